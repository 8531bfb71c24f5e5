//! A file system on an attachment.
//!
//! Fault model: a file system is made on a volume of which the server says that it holds nothing,
//! or where the user says that what it holds may go. That no file system is recognised is no
//! reason: there may be other data, or the place where it would be may not be readable.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use base::shell_word;
use nix::unistd::getuid;

use super::attachment::{attach, detach};
use super::mounts::mounted_at;
use super::record::{AttachRequest, AttachmentRecord, AttachmentRecords};
use super::tool;
use crate::error::{CommandError, Result};

/// A volume to be mounted, and how.
pub struct MountRequest {
    pub wanted: AttachRequest,
    /// The directory to mount at.
    pub dir: PathBuf,
    /// The type of a file system that is made first, if there is nothing on the volume.
    pub make: Option<String>,
    /// True if the file system is made also where there is something on the volume.
    pub force: bool,
    /// The server says that the volume holds data, of whatever kind.
    pub holds_data: bool,
    /// Options of `mount -o`.
    pub options: Option<String>,
}

/// Attaches and mounts a volume. If that fails, it is detached again.
pub fn mount(records: &AttachmentRecords, what: &MountRequest) -> Result<AttachmentRecord> {
    if !getuid().is_root() {
        return Err(CommandError::Failed(
            "only root can mount a file system: run this as root, or forebay attach the volume and \
             use what reads the file (fuse2fs, guestmount)"
                .into(),
        ));
    }
    let dir = directory(&what.dir)?;
    if mounted_at(&dir).is_some() {
        let text = format!("something is mounted at {} already", dir.display());
        return Err(CommandError::Failed(text));
    }
    // A block device or a file: what is mounted is the same.
    let (mut record, _) = attach(records, &what.wanted)?;
    let mounted = on_it(&record, what, &dir);
    match mounted {
        Ok(()) => {
            record.mounted = Some(dir);
            records.put(&record)?;
            Ok(record)
        }
        Err(e) => {
            if let Err(left) = detach(records, &record.name) {
                return Err(CommandError::Failed(format!("{e}; and it stays attached: {left}")));
            }
            Err(e)
        }
    }
}

fn on_it(record: &AttachmentRecord, what: &MountRequest, dir: &Path) -> Result<()> {
    match &what.make {
        Some(kind) if what.force => make(record, kind, true)?,
        wanted => {
            let found = file_system(&record.path)?;
            if let Some(text) = refusal(&record.volume, found.as_deref(), what) {
                return Err(CommandError::Failed(text));
            }
            if let Some(kind) = wanted {
                make(record, kind, false)?;
            }
        }
    }
    let mut command = tool::need("mount", "mount")?;
    let mut options: Vec<&str> = what.options.as_deref().into_iter().collect();
    if record.path.is_file() {
        options.push("loop");
    }
    if record.read_only {
        options.push("ro");
    }
    if !options.is_empty() {
        command.arg("-o").arg(options.join(","));
    }
    tool::run(command.arg(&record.path).arg(dir)).map(|_| ())
}

/// Why a volume is not mounted, or no file system made on it, where this was found on it.
fn refusal(volume: &str, found: Option<&str>, what: &MountRequest) -> Option<String> {
    match (found, &what.make) {
        (Some(_), None) => None,
        (Some(found), Some(_)) => Some(format!(
            "nothing was made: {volume} holds {found} already. Mount it without --make, or say \
             --force: a new file system is made then, and what {volume} holds is lost"
        )),
        (None, Some(kind)) if what.holds_data => Some(format!(
            "nothing was made: {volume} holds data that is no file system which blkid knows. \
             --make {kind} --force makes one, and what {volume} holds is lost"
        )),
        (None, None) if what.holds_data => Some(format!(
            "there is no file system on {volume} that blkid knows, and {volume} holds other data: \
             forebay attach gives it as a disk"
        )),
        (None, None) => {
            Some(format!("there is nothing on {volume}: say --make ext4 to make a file system"))
        }
        (None, Some(_)) => None,
    }
}

/// Makes a file system; `over`: over what is there.
fn make(record: &AttachmentRecord, kind: &str, over: bool) -> Result<()> {
    let mut command = tool::need(&format!("mkfs.{kind}"), "e2fsprogs, xfsprogs or btrfs-progs")?;
    if kind.starts_with("ext") {
        // Also on a file.
        command.arg("-F");
    } else if over {
        command.arg("-f");
    }
    tool::run(command.arg("-q").arg(&record.path)).map(drop)
}

/// Names what is on a disk, as far as `blkid` knows it; `None` if `blkid` finds nothing.
fn file_system(path: &Path) -> Result<Option<String>> {
    let mut command = tool::need("blkid", "util-linux")?;
    let done = command.args(["-p", "-o", "export"]).arg(path).output();
    let done = done.map_err(|e| CommandError::failed("blkid", e))?;
    let text = String::from_utf8_lossy(&done.stdout);
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    match done.status.code() {
        Some(0) => Ok(of("TYPE=")
            .or_else(|| of("PTTYPE=").map(|table| format!("a table of partitions ({table})")))
            .or(Some("something that is not known".into()))),
        // Nothing was found; or it could not be read, which blkid does not tell.
        Some(2) => read_ends(path).map(|()| None),
        Some(8) => Ok(Some("signs of several file systems".into())),
        _ => Err(CommandError::failed("blkid", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// Reads where file systems have their marks: the beginning and the end.
fn read_ends(path: &Path) -> Result<()> {
    const PART: u64 = 1 << 20;
    let failed = |e: std::io::Error| {
        CommandError::Failed(format!(
            "{} cannot be read, so it is not known what it holds: {e}. Nothing was made; forebay \
             status says how the pool is",
            path.display()
        ))
    };
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    for at in [0, size.saturating_sub(PART)] {
        file.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut part = Read::by_ref(&mut file).take(PART);
        std::io::copy(&mut part, &mut std::io::sink()).map_err(failed)?;
    }
    Ok(())
}

/// The directory to mount at.
fn directory(dir: &Path) -> Result<PathBuf> {
    let at = dir.display();
    match dir.canonicalize() {
        Ok(dir) if dir.is_dir() => Ok(dir),
        Ok(_) => Err(CommandError::Failed(format!(
            "{at} is no directory: name another place, as in forebay mount VOLUME DIR"
        ))),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(CommandError::Failed(format!(
            "there is no directory {at}: mkdir -p {}, then forebay mount it again",
            shell_word(&at.to_string())
        ))),
        Err(e) => Err(CommandError::failed(at, e)),
    }
}

/// Unmounts what is at a directory, and detaches it.
pub fn unmount(records: &AttachmentRecords, dir: &Path) -> Result<String> {
    let dir = absolute(dir)?;
    let all = records.all()?;
    let Some(record) = all.iter().find(|one| one.mounted.as_ref() == Some(&dir)) else {
        return Err(CommandError::Failed(format!(
            "forebay has mounted nothing at {}; forebay attached lists what it has",
            dir.display()
        )));
    };
    if mounted_at(&dir).is_some() {
        tool::run(tool::need("umount", "mount")?.arg(&dir))?;
    }
    detach(records, &record.name)?;
    Ok(record.name.clone())
}

fn absolute(dir: &Path) -> Result<PathBuf> {
    dir.canonicalize().map_err(|e| CommandError::failed(dir.display(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(make: Option<&str>, holds_data: bool) -> MountRequest {
        let means = None;
        let (name, volume, socket) = ("v".to_owned(), "v".to_owned(), "/s".into());
        MountRequest {
            wanted: AttachRequest { name, volume, socket, read_only: false, means },
            dir: "/m".into(),
            make: make.map(str::to_owned),
            force: false,
            holds_data,
            options: None,
        }
    }

    #[test]
    fn a_volume_that_holds_anything_is_left_as_it_is() {
        let refused =
            |found, make, holds| refusal("v", found, &wanted(make, holds)).unwrap_or_default();
        assert_eq!(refused(None, Some("ext4"), false), "");
        assert_eq!(refused(Some("xfs"), None, true), "");
        assert!(refused(Some("xfs"), Some("ext4"), true).contains("holds xfs already"));
        assert!(refused(None, Some("xfs"), true).contains("--make xfs --force"));
        // What to make a file system with is said of an empty volume alone.
        assert!(refused(None, None, false).contains("say --make ext4"));
        assert!(!refused(None, None, true).contains("--make"));
    }

    #[test]
    fn a_place_that_is_not_there_is_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(directory(dir.path()).unwrap().is_dir());
        let (file, none) = (dir.path().join("a"), dir.path().join("no ne"));
        std::fs::write(&file, "").unwrap();
        let said = |path: &Path| directory(path).unwrap_err().to_string();
        assert!(said(&none).contains(&format!("mkdir -p '{}'", none.display())), "{}", said(&none));
        assert!(said(&file).contains("is no directory") && !said(&file).contains("mkdir"));
    }

    #[test]
    fn what_cannot_be_read_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, [0; 5000]).unwrap();
        assert_eq!(read_ends(&file), Ok(()));
        // A directory is opened, and cannot be read.
        let said = read_ends(dir.path()).unwrap_err().to_string();
        assert!(said.contains("cannot be read") && said.contains("Nothing was made"), "{said}");
    }
}
