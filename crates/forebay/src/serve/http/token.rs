//! The file with what HTTP clients have to know.
//!
//! Fault model: a token that others can read is none, so such a file is refused. One that is made
//! is for its owner alone from the moment it exists.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use http_api::Token;
use uuid::Uuid;

use crate::error::{CommandError, Result};
use crate::host::whole_file;

/// Bytes of such a file at most.
const MAX_BYTES: u64 = 4096;

/// Reads it.
pub fn read(path: &Path) -> Result<Token> {
    let at = path.display();
    let failed = |e: std::io::Error| CommandError::failed(format_args!("the HTTP token {at}"), e);
    let refuse = |text: &str| Err(CommandError::Failed(format!("the HTTP token {at}: {text}")));
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return refuse("it is no file");
    }
    if ![nix::unistd::geteuid().as_raw(), 0].contains(&meta.uid()) {
        return refuse("it belongs to another user, who knows it: make one of your own, or chown");
    }
    if meta.permissions().mode() & 0o077 != 0 {
        return refuse("others than its owner may use it: change that by chmod 600");
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    match Token::new(text.trim()) {
        Some(token) => Ok(token),
        None => refuse("it is to have at least 16 visible characters of ASCII, in one line"),
    }
}

/// Makes it if it is not there.
pub fn make(path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        CommandError::failed(format_args!("making the HTTP token {}", path.display()), e)
    };
    match path.symlink_metadata() {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    let (first, second) = (Uuid::new_v4().simple(), Uuid::new_v4().simple());
    whole_file::write(path, format!("{first}{second}\n").as_bytes(), 0o600).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("http.token");
        assert!(read(&path).is_err());
        make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(first.trim().len(), 64);
        make(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        assert!(read(&path).unwrap() == Token::new(first.trim()).unwrap());
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let Err(e) = read(&path) else { panic!("{mode:o} is read") };
            assert!(e.to_string().contains("chmod 600"), "{e}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "short\n", "two lines of\nsome length"] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text:?}");
        }
    }
}
