//! The help for a user who may not do the same as a server's user.

use std::fmt::Display;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Uid, User, geteuid};

use crate::error::CommandError;

/// Returns a failure that has to do with something of a directory of `forebay up`, or with a path
/// in it. If rights are missing, the failure names the user who has them.
pub fn failed(path: &Path, e: &Error) -> CommandError {
    let told = CommandError::failed(path.display(), e);
    if e.kind() != ErrorKind::PermissionDenied {
        return told;
    }
    match owner(path).filter(|(_, uid)| *uid != geteuid()) {
        Some((owned, uid)) => {
            let name = name(uid);
            told.or_next(&format!(
                "run it as the server's user: {} belongs to {name}, so sudo -u {name} forebay ...",
                owned.display()
            ))
        }
        None => told.or_next("run it as the server's user"),
    }
}

/// Returns the path with its owner, or else the lowest of its directories that this user can see.
fn owner(path: &Path) -> Option<(&Path, Uid)> {
    let mut seen = path.ancestors().filter_map(|one| Some((one, one.metadata().ok()?)));
    seen.next().map(|(one, meta)| (one, Uid::from_raw(meta.uid())))
}

/// The user as `sudo -u` takes it.
fn name(uid: Uid) -> impl Display {
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| format!("\\#{uid}"), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_named_where_it_is_somebody_else() {
        let denied = || Error::from(ErrorKind::PermissionDenied);
        let text = |path: &Path, e: Error| failed(path, &e).to_string();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a").join("devices.json");
        let own = text(&path, denied());
        assert!(own.ends_with("; run it as the server's user"), "{own}");
        assert!(!text(&path, Error::from(ErrorKind::NotFound)).contains("run it"));
        if geteuid().as_raw() != 0 {
            let of_root = text(Path::new("/etc/none"), denied());
            assert!(of_root.contains("/etc belongs to root, so sudo -u root forebay"), "{of_root}");
        }
        assert_eq!(name(Uid::from_raw(0)).to_string(), "root");
        assert_eq!(name(Uid::from_raw(4_000_000_000)).to_string(), "\\#4000000000");
    }
}
