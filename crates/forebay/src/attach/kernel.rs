//! Attachments by the kernel's NBD: block devices, set up by `nbd-client`.

use std::path::{Path, PathBuf};

use nix::unistd::getuid;

use super::record::{AttachMethod, AttachRequest, AttachmentRecord, AttachmentRecords};
use super::tool;
use crate::error::{CommandError, Result};

const SYS: &str = "/sys/block";
/// The directory of links to devices, by the names of attachments.
const LINKS: &str = "/dev/forebay";

/// Returns what is missing for an attachment by the kernel's NBD, if anything is.
pub fn missing() -> Option<String> {
    if !getuid().is_root() {
        return Some("only root can attach a volume as a block device".into());
    }
    if !Path::new(SYS).join("nbd0").exists() {
        // NBD may be a module that is not loaded.
        if let Some(modprobe) = tool::find("modprobe") {
            let _ = tool::run(std::process::Command::new(modprobe).arg("nbd"));
        }
    }
    if !Path::new(SYS).join("nbd0").exists() {
        return Some(
            "this kernel has no NBD: load its module by modprobe nbd, or boot a kernel that has it"
                .into(),
        );
    }
    tool::need("nbd-client", "nbd-client").err().map(|e| e.to_string())
}

/// The numbers of devices that nothing uses, smallest first.
fn free() -> Vec<u32> {
    let number = |name: &str| name.strip_prefix("nbd")?.parse::<u32>().ok();
    let entries = std::fs::read_dir(SYS).into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries
        .filter(|entry| !entry.path().join("pid").exists())
        .filter_map(|entry| number(&entry.file_name().to_string_lossy()))
        .collect();
    all.sort_unstable();
    all
}

fn is_used(device: &Path) -> bool {
    device.file_name().is_some_and(|name| Path::new(SYS).join(name).join("pid").exists())
}

fn link(name: &str) -> PathBuf {
    Path::new(LINKS).join(name)
}

/// Attaches a volume to the first device that is free.
pub fn attach(_records: &AttachmentRecords, wanted: &AttachRequest) -> Result<AttachmentRecord> {
    let mut last = CommandError::Failed(
        "all devices of the kernel's NBD are in use: modprobe -r nbd && modprobe nbd nbds_max=64 \
         makes more"
            .into(),
    );
    for number in free() {
        let device = PathBuf::from(format!("/dev/nbd{number}"));
        let mut command = tool::need("nbd-client", "nbd-client")?;
        command.arg("-unix").arg(&wanted.socket).arg(&device).arg("-name").arg(&wanted.volume);
        // A process of `nbd-client` stays, and connects again where the server was started anew.
        command.args(["-persist", "-nonetlink"]);
        if wanted.read_only {
            command.arg("-readonly");
        }
        match tool::run(&mut command) {
            Ok(_) => {
                make_link(&wanted.name, &device);
                return Ok(AttachmentRecord {
                    name: wanted.name.clone(),
                    volume: wanted.volume.clone(),
                    means: AttachMethod::Kernel,
                    path: device,
                    read_only: wanted.read_only,
                    socket: wanted.socket.clone(),
                    process: None,
                    mounted: None,
                });
            }
            // Another command was faster.
            Err(e) if is_used(&device) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Makes a link by which people find the device. Failures are ignored: the device is there without
/// the link.
fn make_link(name: &str, device: &Path) {
    let link = link(name);
    let _ = std::fs::create_dir_all(LINKS);
    let _ = std::fs::remove_file(&link);
    let _ = std::os::unix::fs::symlink(device, link);
}

/// Disconnects the device of an attachment and removes its link.
pub fn detach(record: &AttachmentRecord) -> Result<()> {
    if is_used(&record.path) {
        tool::run(tool::need("nbd-client", "nbd-client")?.arg("-d").arg(&record.path))?;
    }
    let link = link(&record.name);
    if std::fs::read_link(&link).is_ok_and(|to| to == record.path) {
        let _ = std::fs::remove_file(link);
    }
    Ok(())
}

/// True if the kernel still has the device of an attachment in use.
pub fn is_there(record: &AttachmentRecord) -> bool {
    is_used(&record.path)
}
