//! Attachments by FUSE: `nbdfuse` shows the volume as a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::mounts::mounted_at;
use super::record::{AttachMethod, AttachRequest, AttachmentRecord, AttachmentRecords, Claim};
use super::tool;
use crate::error::{CommandError, Result};
use crate::host::sockets::nbd_uri_unix;

/// The name of the file in the directory that `nbdfuse` mounts.
const FILE: &str = "disk";
/// The longest time that `nbdfuse` may take to mount the file, or to end.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which a read is not waited for any more.
const ANSWER: Duration = Duration::from_secs(2);
const SECTOR: usize = 512;

/// Returns what is missing for an attachment by FUSE, if anything is.
pub fn missing() -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        return Some("this machine has no FUSE (/dev/fuse): modprobe fuse, as root".into());
    }
    for (name, package) in [("nbdfuse", "nbdfuse"), ("fusermount3", "fuse3")] {
        if let Err(e) = tool::need(name, package) {
            return Some(e.to_string());
        }
    }
    None
}

/// Takes away what is mounted for an attachment that has no record: a command was killed before it
/// had written one, or the process of the mount was.
pub fn clear(claim: &Claim) -> Result<()> {
    let (dir, pid) = (claim.beside("d"), claim.beside("pid"));
    if mounted_at(&dir).is_some() {
        let number = std::fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse().ok());
        let process = number.and_then(|number| Some((number, tool::began(number)?)));
        unmount(&dir)?;
        // The ending process removes files, and the next one has files of the same names.
        ended(process);
    }
    let _ = std::fs::remove_dir(dir);
    for file in [pid, claim.beside("log"), claim.beside("new")] {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Attaches a volume as a file, served by a new process of `nbdfuse`.
pub fn attach(records: &AttachmentRecords, wanted: &AttachRequest) -> Result<AttachmentRecord> {
    let dir = records.beside(&wanted.name, "d");
    let failed = |e: std::io::Error| CommandError::failed(dir.display(), e);
    match std::fs::create_dir(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let (log, pid) = (records.beside(&wanted.name, "log"), records.beside(&wanted.name, "pid"));
    let _ = std::fs::remove_file(&pid);
    let said = File::create(&log).map_err(failed)?;
    let mut command = tool::need("nbdfuse", "nbdfuse")?;
    command.arg("-P").arg(&pid);
    if wanted.read_only {
        command.arg("-r");
    }
    command.arg(dir.join(FILE)).arg(nbd_uri_unix(&wanted.socket, &wanted.volume));
    // The process of `nbdfuse` goes on when this command and its terminal are gone.
    command.process_group(0).stdin(Stdio::null()).stdout(said.try_clone().map_err(failed)?);
    let mut child = command.stderr(said).spawn().map_err(failed)?;
    let outcome = wait(&mut child, &pid, &dir);
    if let Err(why) = outcome {
        let _ = child.kill();
        let _ = child.wait();
        let _ = unmount(&dir);
        let _ = std::fs::remove_dir(&dir);
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(&log);
        return Err(CommandError::failed(
            format_args!("attaching {} by nbdfuse", wanted.volume),
            if text.trim().is_empty() { why } else { text.trim() },
        ));
    }
    let number = child.id() as i32;
    Ok(AttachmentRecord {
        name: wanted.name.clone(),
        volume: wanted.volume.clone(),
        means: AttachMethod::Fuse,
        path: dir.join(FILE),
        read_only: wanted.read_only,
        socket: wanted.socket.clone(),
        process: tool::began(number).map(|time| (number, time)),
        mounted: None,
    })
}

/// Waits until the file is there. Errors: `nbdfuse` has ended, or takes longer than `PATIENCE`.
fn wait(child: &mut Child, pid: &Path, dir: &Path) -> std::result::Result<(), &'static str> {
    #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
    let deadline = Instant::now() + PATIENCE;
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return Err("it ended");
        }
        if pid.exists() && mounted_at(dir).is_some() {
            return Ok(());
        }
        #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
        if Instant::now() > deadline {
            return Err("it does not come");
        }
        #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
        std::thread::sleep(PAUSE);
    }
}

fn unmount(dir: &Path) -> Result<()> {
    tool::run(tool::need("fusermount3", "fuse3")?.arg("-u").arg(dir)).map(|_| ())
}

/// Takes an attachment away: what was written through it is on its way to the server, and its
/// process ends when that has arrived.
pub fn detach(record: &AttachmentRecord) -> Result<()> {
    let Some(dir) = record.path.parent() else { return Ok(()) };
    if mounted_at(dir).is_some() {
        unmount(dir).map_err(|e| {
            CommandError::Failed(format!(
                "{} is in use: {e} (a loop device or a program has {} open)",
                record.name,
                record.path.display()
            ))
        })?;
    }
    if !ended(record.process) {
        return Err(CommandError::Failed(format!(
            "{} is not mounted any more, but the process {} of nbdfuse has not ended: is the \
             server gone? kill it if you need not have what was written last",
            record.name,
            record.process.map_or(0, |p| p.0)
        )));
    }
    let _ = std::fs::remove_dir(dir);
    Ok(())
}

/// Waits for the end of a process; false if it does not come.
fn ended(process: Option<(i32, u64)>) -> bool {
    #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
    let deadline = Instant::now() + PATIENCE;
    while tool::lives(process) {
        #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
        if Instant::now() > deadline {
            return false;
        }
        #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
        std::thread::sleep(PAUSE);
    }
    true
}

/// True if the process of an attachment still serves it.
pub fn is_there(record: &AttachmentRecord) -> bool {
    let is_mounted = || record.path.parent().is_some_and(|d| mounted_at(d).is_some());
    tool::lives(record.process) && is_mounted() && answers(&record.path)
}

/// Whether a sector can be read. The process notices by the next request only that its server has
/// ended. A server that takes long is there.
fn answers(path: &Path) -> bool {
    let (path, (told, heard)) = (path.to_owned(), mpsc::channel());
    let read = move || {
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut [0; SECTOR], 0));
        let _ = told.send(read.is_ok());
    };
    let reads = std::thread::Builder::new().name("probe".into()).spawn(read);
    reads.is_err() || heard.recv_timeout(ANSWER).unwrap_or(true)
}
