//! Attaching and detaching, by the best means that are there.

use base::shell_word;

use super::record::{AttachMethod, AttachRequest, AttachmentRecord, AttachmentRecords, Claim};
use super::{fuse, kernel, mounts};
use crate::error::{CommandError, Result};

/// Why an attachment is a file, where nothing was said and a block device cannot be had.
pub struct NoDevice(pub String);

/// Attaches a volume. What is left of an attachment whose server or process has ended is taken away
/// first. Errors: it is attached already; no means are there, with what is missing.
pub fn attach(
    records: &AttachmentRecords,
    wanted: &AttachRequest,
) -> Result<(AttachmentRecord, Option<NoDevice>)> {
    if records.of(&wanted.name).is_ok_and(|left| !is_there(&left)) {
        detach(records, &wanted.name)?;
    }
    let claim = records.claim(&wanted.name)?;
    let claim = without_rest(claim)?;
    let (means, note) = choose(wanted.means, kernel::missing(), fuse::missing())?;
    let record = match means {
        AttachMethod::Kernel => kernel::attach(records, wanted)?,
        AttachMethod::Fuse => fuse::attach(records, wanted)?,
    };
    claim.keep(records, &record)?;
    Ok((record, note))
}

/// The best means of those that are there, where none is wanted. `kernel` and `fuse` say what is
/// missing for them.
fn choose(
    wanted: Option<AttachMethod>,
    kernel: Option<String>,
    fuse: Option<String>,
) -> Result<(AttachMethod, Option<NoDevice>)> {
    let text = match (wanted, kernel, fuse) {
        (Some(AttachMethod::Kernel) | None, None, _) => return Ok((AttachMethod::Kernel, None)),
        (Some(AttachMethod::Fuse), _, None) => return Ok((AttachMethod::Fuse, None)),
        (None, Some(kernel), None) => return Ok((AttachMethod::Fuse, Some(NoDevice(kernel)))),
        (Some(AttachMethod::Kernel), Some(kernel), None) => {
            format!("{kernel}; say --by fuse for a file instead")
        }
        (Some(AttachMethod::Fuse), None, Some(fuse)) => {
            format!("{fuse}; say --by kernel for a block device instead")
        }
        (_, Some(kernel), Some(fuse)) => {
            format!("{kernel}; {fuse}; forebay attach needs one of the two")
        }
    };
    Err(CommandError::Failed(text))
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

/// Takes away what all commands that were killed have made. An attachment that cannot be taken away
/// now stays.
pub fn clear_left(records: &AttachmentRecords) -> Result<()> {
    for claim in records.all_left()? {
        let _ = without_rest(claim);
    }
    Ok(())
}

/// Takes an attachment away. Errors: something uses it, with what to end first.
pub fn detach(records: &AttachmentRecords, name: &str) -> Result<()> {
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
        AttachMethod::Kernel => kernel::detach(&record)?,
        AttachMethod::Fuse => fuse::detach(&record)?,
    }
    records.remove(name)
}

/// Whether the other end of a record is still there.
pub fn is_there(record: &AttachmentRecord) -> bool {
    match record.means {
        AttachMethod::Kernel => kernel::is_there(record),
        AttachMethod::Fuse => fuse::is_there(record),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_what_is_there() {
        let (kernel, fuse) = (|| Some("no NBD".to_owned()), || Some("no FUSE".to_owned()));
        let error = |wanted, kernel, fuse| match choose(wanted, kernel, fuse) {
            Ok((means, _)) => panic!("{}", means.name()),
            Err(e) => e.to_string(),
        };
        let text = error(Some(AttachMethod::Kernel), kernel(), None);
        assert!(text.contains("no NBD") && text.contains("--by fuse"), "{text}");
        let text = error(Some(AttachMethod::Fuse), None, fuse());
        assert!(text.contains("no FUSE") && text.contains("--by kernel"), "{text}");
        for wanted in [None, Some(AttachMethod::Kernel), Some(AttachMethod::Fuse)] {
            let text = error(wanted, kernel(), fuse());
            assert!(text.contains("no NBD; no FUSE") && !text.contains("--by"), "{text}");
        }
        let of = |wanted, kernel, fuse| {
            let (means, note) = choose(wanted, kernel, fuse).unwrap();
            (means, note.map(|note| note.0))
        };
        assert_eq!(of(None, None, None), (AttachMethod::Kernel, None));
        assert_eq!(of(None, kernel(), None), (AttachMethod::Fuse, kernel()), "it is told why");
        assert_eq!(
            of(Some(AttachMethod::Fuse), kernel(), None),
            (AttachMethod::Fuse, None),
            "it was asked for"
        );
    }
}
