//! The files of TLS, read again where they change: certificates are renewed while a server runs.
//!
//! Fault model: a file that cannot be read at the start ends the start. Later a failure is an error
//! in the log and a problem of the status, and the content that was read before holds until the
//! files can be read. Files are read in a thread of their own, so one that does not answer keeps no
//! client waiting.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use model::status::{TlsFile, TlsStatus};
use nbd::Acceptors;
use tls::{Acceptor, Credentials, Validity};

use crate::error::{CommandError, Result};
use crate::host::calendar::unix_now;
use crate::serve::health::expiry;

/// The time between two looks at the files.
const EVERY: Duration = Duration::from_secs(10);

/// The stamp of a file, by which one content is told from another: the time it was changed, its
/// size and its inode number.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamps(from: &Credentials) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        let meta = path.metadata().ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    from.files().iter().map(|path| stamp(path)).collect()
}

/// A finding of the thread.
enum CredentialNews {
    /// Files that can be used.
    Read(Acceptor),
    /// The files are again those that were read last.
    AsBefore,
    /// The new files cannot be used, for this reason.
    Refused(String),
}

/// The content of the files, as far as the engine has heard of it.
struct CredentialState {
    news: Receiver<CredentialNews>,
    current: Acceptor,
    refused: Option<String>,
}

impl CredentialState {
    fn hear(&mut self) {
        for news in self.news.try_iter() {
            match news {
                CredentialNews::Read(acceptor) => (self.current, self.refused) = (acceptor, None),
                CredentialNews::AsBefore => self.refused = None,
                CredentialNews::Refused(why) => self.refused = Some(why),
            }
        }
    }
}

/// The files, for the engine. Clones are the same.
#[derive(Clone)]
pub struct Files {
    asks: Sender<()>,
    heard: Rc<RefCell<CredentialState>>,
}

impl Files {
    /// Has them read soon, if they have changed. Does not wait for it.
    pub fn look_at_once(&self) {
        // Without the thread the process is at its end.
        let _ = self.asks.send(());
    }

    /// Returns the source of the acceptor by which sessions are made.
    pub fn acceptors(&self) -> Acceptors {
        let heard = self.heard.clone();
        Rc::new(move || {
            let mut heard = heard.borrow_mut();
            heard.hear();
            heard.current.clone()
        })
    }

    /// The files in use, for `forebay status`.
    pub fn status(&self) -> TlsStatus {
        let mut heard = self.heard.borrow_mut();
        heard.hear();
        let now = unix_now();
        let one = |file: &Validity| TlsFile {
            file: file.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: file.path.to_string_lossy().into_owned(),
            ends_at: file.until,
            ends_in_s: file.until - now,
            ends_soon: file.ends_soon(now),
        };
        TlsStatus {
            files: heard.current.validity().iter().map(one).collect(),
            refused: heard.refused.clone(),
        }
    }
}

/// Reads the files now, and then whenever they change.
pub fn watch(from: &Credentials) -> Result<Files> {
    let (sender, news) = channel();
    let (asks, asked) = channel();
    let (mut watched, current) = CredentialWatcher::new(from.clone(), sender)?;
    let look = move || {
        watched.tell_ends(unix_now());
        while asked.recv_timeout(EVERY) != Err(RecvTimeoutError::Disconnected) {
            watched.look();
            watched.tell_ends(unix_now());
        }
    };
    let spawned = std::thread::Builder::new().name("certificates".into()).spawn(look);
    spawned.map_err(|e| CommandError::failed("starting a thread for certificates", e))?;
    Ok(Files {
        asks,
        heard: Rc::new(RefCell::new(CredentialState { news, current, refused: None })),
    })
}

struct CredentialWatcher {
    from: Credentials,
    /// To the engine.
    sender: Sender<CredentialNews>,
    read: Vec<Stamp>,
    /// The files that were last found, and could not be used.
    refused: Option<Vec<Stamp>>,
    /// The validity of the files that were read.
    valid: Vec<Validity>,
    /// The lines about ends that the log has, without their times.
    told: Vec<(PathBuf, bool)>,
}

impl CredentialWatcher {
    /// Reads the files for the first time; returns the acceptor that holds at first, too.
    fn new(
        from: Credentials,
        sender: Sender<CredentialNews>,
    ) -> Result<(CredentialWatcher, Acceptor)> {
        // Before they are read: what changes meanwhile is read again.
        let read = stamps(&from);
        let acceptor = Acceptor::new(&from).map_err(|e| CommandError::failed("TLS", e))?;
        let valid = acceptor.validity().to_vec();
        Ok((
            CredentialWatcher { from, sender, read, refused: None, valid, told: Vec::new() },
            acceptor,
        ))
    }

    /// Reads the files if they have changed.
    fn look(&mut self) {
        let now = stamps(&self.from);
        if now == self.read {
            if self.refused.take().is_some() {
                tracing::info!("the TLS files are as they were when they were read last");
                let _ = self.sender.send(CredentialNews::AsBefore);
            }
            return;
        }
        match Acceptor::new(&self.from) {
            Ok(acceptor) => {
                (self.read, self.refused) = (now, None);
                (self.valid, self.told) = (acceptor.validity().to_vec(), Vec::new());
                // Without an engine the process is at its end.
                if self.sender.send(CredentialNews::Read(acceptor)).is_ok() {
                    tracing::info!("certificates and keys of TLS were read again");
                }
            }
            // A certificate and its key are not replaced in the same moment: it is tried again.
            Err(e) if self.refused.as_ref() != Some(&now) => {
                self.refused = Some(now);
                tracing::error!("cannot load the new TLS files, keeping the old ones: {e}");
                let _ = self.sender.send(CredentialNews::Refused(e.to_string()));
            }
            Err(_) => {}
        }
    }

    /// Has the log say once that a file is about to end, and once that it has.
    fn tell_ends(&mut self, now: i64) {
        for file in self.valid.iter().filter(|file| file.ends_soon(now)) {
            let line = (file.path.clone(), file.until < now);
            if !self.told.contains(&line) {
                tracing::warn!("TLS: {}", expiry::what(&file.path, file.until - now));
                self.told.push(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_has_changed_is_read_and_what_is_wrong_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let put = |text: &str| {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        };
        let from = Credentials { keys: Some(path.clone()), ..Default::default() };
        let (sender, newer) = channel();
        assert!(CredentialWatcher::new(from.clone(), sender.clone()).is_err());
        put("a:00112233445566778899aabbccddeeff\n");
        let (mut watched, _) = CredentialWatcher::new(from, sender).unwrap();
        let read = watched.read.clone();
        watched.look();
        assert!(watched.read == read && watched.refused.is_none());
        let kept = dir.path().join("kept");
        std::fs::rename(&path, &kept).unwrap();
        put("a:0011\n");
        watched.look();
        assert!(watched.read == read && watched.refused.is_some());
        let last = newer.try_iter().last();
        assert!(matches!(last, Some(CredentialNews::Refused(why)) if why.contains("digits")));
        std::fs::rename(&kept, &path).unwrap();
        watched.look();
        assert!(watched.read == read && watched.refused.is_none());
        assert!(matches!(newer.try_iter().last(), Some(CredentialNews::AsBefore)));
        put("a:00112233445566778899aabbccddeeff\nb:00112233445566778899aabbccddeeff\n");
        watched.look();
        assert!(watched.read != read && watched.refused.is_none());
        assert_eq!(newer.try_iter().count(), 1);
        std::fs::remove_file(&path).unwrap();
        watched.look();
        assert!(watched.refused.is_some());
    }
}
