//! Small files that are there whole, or as they were before.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The rights of a file that others may read, and only its owner may change, whatever the umask is.
pub const SHARED: u32 = 0o644;

/// Writes the file at `path` anew, of these rights (less the umask). Durable when it returns. After
/// an error the old one, if there was one, is as it was, and nothing else is left; but the new one
/// may be there where it could not be made durable. Blocks.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // A crash may have left one.
    remove_if_there(&beside)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes what is at `path`, if anything is.
pub fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_there_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        fs::write(dir.path().join("list.new"), "half of one").unwrap();
        write(&path, b"first", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        // A directory cannot be replaced by a file.
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(write(&taken, b"second", 0o600).is_err());
        let names = fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, ["list", "taken"], "nothing is left");
    }
}
