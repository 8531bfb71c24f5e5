//! What TLS goes by, read again where its files change: certificates are renewed while a server
//! runs.
//!
//! Fault model: what cannot be read at the start ends the start. Later it is an error in the log,
//! and what was read before holds until it can be read. Files are read in a thread of their own, so
//! one that does not answer keeps no client waiting.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

use nbd::Acceptors;
use tls::{Acceptor, Credentials};

use crate::error::{CommandError, Result};

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(10);

/// What tells one content of a file from another: the time it was changed, its size and its number.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamps(from: &Credentials) -> Vec<Stamp> {
    let stamp = |path: &Path| {
        use std::os::unix::fs::MetadataExt;
        let meta = path.metadata().ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    from.files().iter().map(|path| stamp(path)).collect()
}

/// Has the files looked at before it is time.
#[derive(Clone)]
pub struct Look(Sender<()>);

impl Look {
    /// Reads them soon, if they have changed. Does not wait for it.
    pub fn at_once(&self) {
        // Without the thread the process is at its end.
        let _ = self.0.send(());
    }
}

/// Reads the files now, and then whenever they change.
pub fn watch(from: &Credentials) -> Result<(Acceptors, Look)> {
    let (sender, newer) = channel();
    let (asks, asked) = channel();
    let (mut watched, first) = Watched::new(from.clone(), sender)?;
    let look = move || {
        while asked.recv_timeout(EVERY) != Err(RecvTimeoutError::Disconnected) {
            watched.look();
        }
    };
    let spawned = std::thread::Builder::new().name("certificates".into()).spawn(look);
    spawned.map_err(|e| CommandError::failed("starting a thread for certificates", e))?;
    let current = RefCell::new(first);
    let acceptors: Acceptors = Rc::new(move || {
        let mut current = current.borrow_mut();
        if let Some(newest) = newer.try_iter().last() {
            *current = newest;
        }
        current.clone()
    });
    Ok((acceptors, Look(asks)))
}

struct Watched {
    from: Credentials,
    /// To the engine.
    sender: Sender<Acceptor>,
    read: Vec<Stamp>,
    /// What was last found, and could not be used.
    refused: Option<Vec<Stamp>>,
}

impl Watched {
    /// What holds at first, too.
    fn new(from: Credentials, sender: Sender<Acceptor>) -> Result<(Watched, Acceptor)> {
        // Before they are read: what changes meanwhile is read again.
        let read = stamps(&from);
        let acceptor = Acceptor::new(&from).map_err(|e| CommandError::failed("TLS", e))?;
        Ok((Watched { from, sender, read, refused: None }, acceptor))
    }

    /// Reads the files if they have changed.
    fn look(&mut self) {
        let now = stamps(&self.from);
        if now == self.read {
            return;
        }
        match Acceptor::new(&self.from) {
            Ok(acceptor) => {
                (self.read, self.refused) = (now, None);
                // Without an engine the process is at its end.
                if self.sender.send(acceptor).is_ok() {
                    tracing::info!("certificates and keys of TLS were read again");
                }
            }
            // A certificate and its key are not replaced in the same moment: it is tried again.
            Err(e) if self.refused.as_ref() != Some(&now) => {
                self.refused = Some(now);
                tracing::error!("cannot load the new TLS files, keeping the old ones: {e}");
            }
            Err(_) => {}
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
        assert!(Watched::new(from.clone(), sender.clone()).is_err());
        put("a:00112233445566778899aabbccddeeff\n");
        let (mut watched, _) = Watched::new(from, sender).unwrap();
        let read = watched.read.clone();
        watched.look();
        assert!(watched.read == read && watched.refused.is_none());
        put("a:0011\n");
        watched.look();
        assert!(watched.read == read && watched.refused.is_some());
        put("a:00112233445566778899aabbccddeeff\nb:00112233445566778899aabbccddeeff\n");
        watched.look();
        assert!(watched.read != read && watched.refused.is_none());
        assert_eq!(newer.try_iter().count(), 1);
        std::fs::remove_file(&path).unwrap();
        watched.look();
        assert!(watched.refused.is_some());
    }
}
