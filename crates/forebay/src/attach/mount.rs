//! A file system on an attachment.

use std::path::{Path, PathBuf};

use nix::unistd::getuid;

use super::attachment::{attach, detach};
use super::mounts::mounted_at;
use super::record::{Record, Records, Wanted};
use super::tool;
use crate::error::{CommandError, Result};

/// What is to be mounted.
pub struct Mount {
    /// The volume.
    pub wanted: Wanted,
    /// Where.
    pub dir: PathBuf,
    /// A file system is made first, of this type, if there is nothing on the volume.
    pub make: Option<String>,
    /// Options of `mount -o`.
    pub options: Option<String>,
}

/// Attaches and mounts a volume. If that fails, it is detached again.
pub fn mount(records: &Records, what: &Mount) -> Result<Record> {
    if !getuid().is_root() {
        return Err(CommandError::Failed(
            "only root can mount a file system: run this as root, or forebay attach the volume and \
             use what reads the file (fuse2fs, guestmount)"
                .into(),
        ));
    }
    let dir = absolute(&what.dir)?;
    if !dir.is_dir() {
        return Err(CommandError::Failed(format!("{} is no directory: make it", dir.display())));
    }
    if mounted_at(&dir).is_some() {
        let text = format!("something is mounted at {} already", dir.display());
        return Err(CommandError::Failed(text));
    }
    let mut record = attach(records, &what.wanted)?;
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

fn on_it(record: &Record, what: &Mount, dir: &Path) -> Result<()> {
    let volume = &record.volume;
    let found = file_system(&record.path)?;
    match (&found, &what.make) {
        (None, None) => {
            return Err(CommandError::Failed(format!(
                "there is no file system on {volume}: say --make ext4 to make one"
            )));
        }
        (Some(found), Some(_)) => {
            return Err(CommandError::Failed(format!(
                "nothing was made: {volume} holds {found} already. Mount it without --make"
            )));
        }
        (None, Some(kind)) => {
            let mkfs = format!("mkfs.{kind}");
            let mut command = tool::need(&mkfs, "e2fsprogs, xfsprogs or btrfs-progs")?;
            if kind.starts_with("ext") {
                command.arg("-F");
            }
            tool::run(command.arg("-q").arg(&record.path))?;
        }
        (Some(_), None) => {}
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

/// What is on a disk, as far as is known.
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
        // Nothing was found.
        Some(2) => Ok(None),
        _ => Err(CommandError::failed("blkid", String::from_utf8_lossy(&done.stderr).trim())),
    }
}

/// Unmounts what is at a directory, and detaches it.
pub fn unmount(records: &Records, dir: &Path) -> Result<String> {
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
