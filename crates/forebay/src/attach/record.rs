//! Records of attachments: a file for each, in a directory of the user that made them.
//!
//! Fault model: a command that attaches may be killed. From its begin to its end there is an empty
//! file, which the command has locked. One that is not locked was left by a command that was
//! killed; it is taken over.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::shell_word;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::getuid;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};

/// The directory of root's records; other users have theirs in `XDG_RUNTIME_DIR`.
const OF_ROOT: &str = "/run/forebay-attached";
const OF_USER: &str = "forebay-attached";

/// The means by which a volume is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AttachMethod {
    /// A block device, by the kernel's NBD
    Kernel,
    /// A file, by FUSE (nbdfuse)
    Fuse,
}

impl AttachMethod {
    /// The name of the means, as `--json` prints it.
    pub fn name(self) -> &'static str {
        match self {
            AttachMethod::Kernel => "kernel",
            AttachMethod::Fuse => "fuse",
        }
    }
}

/// An attachment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachmentRecord {
    /// The name of the attachment.
    pub name: String,
    pub volume: String,
    /// The means by which the volume is attached.
    pub means: AttachMethod,
    /// The block device or the file.
    pub path: PathBuf,
    /// True if nothing may be changed through the attachment.
    pub read_only: bool,
    /// The unix socket of NBD clients.
    pub socket: PathBuf,
    /// The number of the process that serves the attachment, and the time it began, in ticks of the
    /// kernel.
    pub process: Option<(i32, u64)>,
    /// The directory where forebay has mounted the volume.
    #[serde(default)]
    pub mounted: Option<PathBuf>,
}

/// An attachment that is to be made.
pub struct AttachRequest {
    /// The name of the attachment.
    pub name: String,
    pub volume: String,
    /// The unix socket of NBD clients.
    pub socket: PathBuf,
    /// True if nothing may be changed through the attachment.
    pub read_only: bool,
    /// The means to attach by, if they were named.
    pub means: Option<AttachMethod>,
}

/// The directory of the records.
pub struct AttachmentRecords(PathBuf);

/// A record that is being made, or that a command which was killed has left. It is removed again
/// unless it is kept.
pub struct Claim {
    path: PathBuf,
    kept: bool,
    _lock: Flock<File>,
}

/// The state of the record at a path where a record is to be made.
enum RecordState {
    /// There was no record, or one that was left: it is this process's now.
    Claim(Claim),
    /// Another command makes the record now.
    Busy,
    /// The record was made.
    Written,
}

impl AttachmentRecords {
    /// Opens the directory of this user; it is made if it is not there.
    pub fn open() -> Result<AttachmentRecords> {
        let dir = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            _ if getuid().is_root() => PathBuf::from(OF_ROOT),
            Some(dir) => Path::new(&dir).join(OF_USER),
            None => {
                return Err(CommandError::Failed(
                    "XDG_RUNTIME_DIR is not set, so there is no place for what is attached: run \
                     this in a login session, or as root"
                        .into(),
                ));
            }
        };
        AttachmentRecords::in_directory(dir)
    }

    fn in_directory(dir: PathBuf) -> Result<AttachmentRecords> {
        let failed = |e: std::io::Error| CommandError::failed(dir.display(), e);
        DirBuilder::new().mode(0o700).recursive(true).create(&dir).map_err(failed)?;
        let meta = dir.symlink_metadata().map_err(failed)?;
        if !meta.is_dir() || meta.uid() != getuid().as_raw() || meta.mode() & 0o022 != 0 {
            return Err(CommandError::Failed(format!(
                "{} is not a directory that only this user can change: remove it",
                dir.display()
            )));
        }
        Ok(AttachmentRecords(dir))
    }

    /// A file of an attachment, beside its record.
    pub fn beside(&self, name: &str, end: &str) -> PathBuf {
        self.0.join(format!("{}.{end}", file_name(name)))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.beside(name, "json")
    }

    /// Begins an attachment. Errors: there is one of this name, or another command makes one now.
    pub fn claim(&self, name: &str) -> Result<Claim> {
        let path = self.path(name);
        match claim(&path).map_err(|e| CommandError::failed(path.display(), e))? {
            RecordState::Claim(claim) => Ok(claim),
            RecordState::Busy => Err(busy(name)),
            RecordState::Written => {
                let at = self.of(name).map(|record| format!(" as {}", record.path.display()));
                Err(CommandError::Failed(format!(
                    "{name} is attached already{} (forebay attached lists all, forebay detach {} \
                     takes it away, --name gives another name)",
                    at.unwrap_or_default(),
                    shell_word(name)
                )))
            }
        }
    }

    /// Takes over the record that a command has left which was killed while it attached this name;
    /// `None` if there is none.
    pub fn left(&self, name: &str) -> Option<Claim> {
        left(&self.path(name))
    }

    /// Takes over the records of all names that killed commands have left.
    pub fn all_left(&self) -> Result<Vec<Claim>> {
        Ok(self.paths()?.iter().filter_map(|path| left(path)).collect())
    }

    /// Reads the record of a name. Errors: there is none, another command makes it now, or it
    /// cannot be read.
    pub fn of(&self, name: &str) -> Result<AttachmentRecord> {
        let path = self.path(name);
        match read(&path) {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err(CommandError::Failed(format!(
                "{name} is not attached; forebay attached lists what is"
            ))),
            Err(why) if why.is_empty() => Err(busy(name)),
            Err(why) => {
                Err(CommandError::Failed(format!("{}: {why}. Remove this file", path.display())))
            }
        }
    }

    fn paths(&self) -> Result<Vec<PathBuf>> {
        let failed = |e: std::io::Error| CommandError::failed(self.0.display(), e);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|end| end == "json") {
                all.push(path);
            }
        }
        Ok(all)
    }

    /// All records that can be read, sorted by their names.
    pub fn all(&self) -> Result<Vec<AttachmentRecord>> {
        let paths = self.paths()?;
        let read = paths.iter().filter_map(|path| read(path).ok().flatten());
        let mut all: Vec<AttachmentRecord> = read.collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// Writes a record anew.
    pub fn put(&self, record: &AttachmentRecord) -> Result<()> {
        let path = self.path(&record.name);
        let new = self.beside(&record.name, "new");
        let failed = |e: std::io::Error| CommandError::failed(path.display(), e);
        let text = serde_json::to_string(record).map_err(|e| failed(e.into()))?;
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }

    /// Removes a record.
    pub fn remove(&self, name: &str) -> Result<()> {
        for end in ["log", "pid"] {
            let _ = std::fs::remove_file(self.beside(name, end));
        }
        let path = self.path(name);
        std::fs::remove_file(&path).map_err(|e| CommandError::failed(path.display(), e))
    }
}

impl Claim {
    /// Writes the record of an attachment that is made, and keeps it.
    pub fn keep(mut self, records: &AttachmentRecords, record: &AttachmentRecord) -> Result<()> {
        records.put(record)?;
        self.kept = true;
        Ok(())
    }

    /// Keeps the record that was left, as the attachment cannot be taken away now.
    pub fn leave(mut self) {
        self.kept = true;
    }

    /// A file of the attachment, beside its record.
    pub fn beside(&self, end: &str) -> PathBuf {
        self.path.with_extension(end)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn busy(name: &str) -> CommandError {
    CommandError::Failed(format!(
        "another command attaches {name} now: try again, or forebay attached lists it when it is \
         there"
    ))
}

/// Locks the empty record at a path, which is made if it is not there.
fn claim(path: &Path) -> std::io::Result<RecordState> {
    loop {
        let mut how = OpenOptions::new();
        let file =
            how.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((file, Errno::EWOULDBLOCK)) if file.metadata()?.len() == 0 => {
                return Ok(RecordState::Busy);
            }
            Err((_, Errno::EWOULDBLOCK)) => return Ok(RecordState::Written),
            Err((_, e)) => return Err(e.into()),
        };
        // Until it was locked, another command may have removed it, or written a record over it.
        let meta = lock.metadata()?;
        let same = |now: std::fs::Metadata| (now.dev(), now.ino()) == (meta.dev(), meta.ino());
        if !path.symlink_metadata().is_ok_and(same) {
            continue;
        }
        return Ok(match meta.len() {
            0 => RecordState::Claim(Claim { path: path.to_owned(), kept: false, _lock: lock }),
            _ => RecordState::Written,
        });
    }
}

fn left(path: &Path) -> Option<Claim> {
    let is_empty = path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0);
    match is_empty.then(|| claim(path))? {
        Ok(RecordState::Claim(claim)) => Some(claim),
        _ => None,
    }
}

/// The record at a path, if there is one. Errors: why it is none; an empty text: it is not written
/// yet.
fn read(path: &Path) -> std::result::Result<Option<AttachmentRecord>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.is_empty() => Err(String::new()),
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| e.to_string()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// A name of a file for any name of an attachment.
fn file_name(name_of: &str) -> String {
    let mut name = String::new();
    for (i, byte) in name_of.bytes().enumerate() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if i > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> AttachmentRecord {
        AttachmentRecord {
            name: name.into(),
            volume: "v".into(),
            means: AttachMethod::Fuse,
            path: "/p".into(),
            read_only: false,
            socket: "/s".into(),
            process: Some((1, 2)),
            mounted: None,
        }
    }

    #[test]
    fn an_attachment_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let records = AttachmentRecords::in_directory(dir.path().join("r")).unwrap();
        assert!(records.of("a b/ü").unwrap_err().to_string().contains("not attached"));
        let claim = records.claim("a b/ü").unwrap();
        assert!(records.claim("a b/ü").is_err());
        drop(claim);
        let claim = records.claim("a b/ü").unwrap();
        claim.keep(&records, &record("a b/ü")).unwrap();
        assert_eq!(records.of("a b/ü"), Ok(record("a b/ü")));
        let e = records.claim("a b/ü").err().unwrap().to_string();
        assert!(e.contains("as /p"), "{e}");
        records.claim(".x").unwrap().keep(&records, &record(".x")).unwrap();
        assert_eq!(records.all(), Ok(vec![record(".x"), record("a b/ü")]));
        records.remove("a b/ü").unwrap();
        assert!(records.of("a b/ü").is_err());
    }

    #[test]
    fn what_a_killed_command_has_left_is_told_from_what_is_being_made() {
        let dir = tempfile::tempdir().unwrap();
        let records = AttachmentRecords::in_directory(dir.path().join("r")).unwrap();
        let claim = records.claim("v").unwrap();
        assert!(records.left("v").is_none() && records.all_left().unwrap().is_empty());
        for e in [records.claim("v").err().unwrap(), records.of("v").unwrap_err()] {
            assert!(e.to_string().contains("another command attaches v now"), "{e}");
        }
        // As if it was killed: the lock goes, and the file stays.
        claim.leave();
        assert_eq!(records.all(), Ok(vec![]));
        let left = records.all_left().unwrap();
        assert_eq!((left.len(), left[0].beside("d")), (1, records.beside("v", "d")));
        left.into_iter().for_each(Claim::leave);
        let claim = records.claim("v").unwrap();
        claim.keep(&records, &record("v")).unwrap();
        assert!(records.left("v").is_none(), "it is whole");
        records.remove("v").unwrap();
        assert!(records.left("v").is_none() && records.all_left().unwrap().is_empty());
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(AttachmentRecords::in_directory(path).is_err());
    }
}
