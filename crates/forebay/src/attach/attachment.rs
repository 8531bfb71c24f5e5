//! Attaching and detaching, by the best means that are there.

use base::shell_word;

use super::record::{Claim, Means, Record, Records, Wanted};
use super::{fuse, kernel, mounts};
use crate::error::{CommandError, Result};

/// Attaches a volume. What is left of an attachment whose server or process has ended is taken away
/// first. Errors: it is attached already; no means are there, with what is missing.
pub fn attach(records: &Records, wanted: &Wanted) -> Result<Record> {
    if records.of(&wanted.name).is_ok_and(|left| !is_there(&left)) {
        detach(records, &wanted.name)?;
    }
    let claim = records.claim(&wanted.name)?;
    let claim = without_rest(claim)?;
    let kernel = kernel::missing();
    let fuse = fuse::missing();
    let means = match (wanted.means, &kernel, &fuse) {
        (Some(Means::Kernel), Some(what), _) | (Some(Means::Fuse), _, Some(what)) => {
            return Err(CommandError::Failed(what.clone()));
        }
        (Some(means), ..) => means,
        (None, None, _) => Means::Kernel,
        (None, Some(_), None) => Means::Fuse,
        (None, Some(kernel), Some(fuse)) => {
            return Err(CommandError::Failed(format!("{kernel}; {fuse}")));
        }
    };
    let record = match means {
        Means::Kernel => kernel::attach(records, wanted)?,
        Means::Fuse => fuse::attach(records, wanted)?,
    };
    claim.keep(records, &record)?;
    Ok(record)
}

/// Takes away what a command that was killed has made for an attachment. If that cannot be done,
/// what is left of it stays known.
fn without_rest(claim: Claim) -> Result<Claim> {
    match fuse::clear(&claim) {
        Ok(()) => Ok(claim),
        Err(e) => {
            claim.leave();
            Err(e)
        }
    }
}

/// The same for all commands that were killed. What cannot be taken away now stays.
pub fn clear_left(records: &Records) -> Result<()> {
    for claim in records.all_left()? {
        let _ = without_rest(claim);
    }
    Ok(())
}

/// Takes an attachment away. Errors: something uses it, with what to end first.
pub fn detach(records: &Records, name: &str) -> Result<()> {
    if let Some(claim) = records.left(name) {
        return without_rest(claim).map(drop);
    }
    let record = records.of(name)?;
    if let Some(dir) = mounts::in_use(&record) {
        let dir = dir.display();
        return Err(CommandError::Failed(format!(
            "{name} is mounted at {dir}: forebay unmount {}, which detaches it too",
            shell_word(&dir.to_string())
        )));
    }
    match record.means {
        Means::Kernel => kernel::detach(&record)?,
        Means::Fuse => fuse::detach(&record)?,
    }
    records.remove(name)
}

/// Whether the other end of a record is still there.
pub fn is_there(record: &Record) -> bool {
    match record.means {
        Means::Kernel => kernel::is_there(record),
        Means::Fuse => fuse::is_there(record),
    }
}
