//! The messages to the service manager (systemd's `Type=notify`): that the pool is served, what the
//! server does, that its engine turns, that it ends.
//!
//! Fault model: the manager may be slow or gone, and its socket may block. A thread of its own
//! writes there. The engine leaves a message and goes on; where the manager is so far behind that
//! messages pile up, one is dropped. A drop costs nothing: the next one says what is true then.
//! That the server ends is not dropped. It is the last that the manager hears, and the process
//! waits for this, though for five seconds at most.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use base::counted;
use model::Status;
use sd_notify::NotifyState;

use crate::units::human_bytes;

/// The number of messages that may wait for the manager.
const MOST_WAITING: usize = 4;
/// The time between two messages about what the server does, if the manager asked for no watchdog.
const UNWATCHED: Duration = Duration::from_secs(10);

/// The interval at which the manager hears that a start goes on, and the time that the manager
/// gives the start each time.
pub const START_EVERY: Duration = Duration::from_secs(20);
const START_GOES_ON: Duration = Duration::from_secs(60);

/// The time that an end waits for the manager to take the last message.
const LAST_WORD: Duration = Duration::from_secs(5);

/// The service manager, or none if there is none.
pub struct ServiceManager {
    messages: Option<SyncSender<Notification>>,
    ends: Arc<AtomicBool>,
    /// The channel that is closed when the manager has heard everything.
    told: Receiver<()>,
    every: Duration,
    watched: bool,
    said: Cell<bool>,
}

enum Notification {
    /// The start takes long, and goes on.
    Starting,
    /// Clients are served.
    Ready,
    /// The engine turns, and this is what it does.
    Alive { watched: bool, state: String },
    /// The server ends.
    Stopping,
}

impl ServiceManager {
    /// The one that started this process, as its environment says (`NOTIFY_SOCKET`,
    /// `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn of_environment() -> std::io::Result<ServiceManager> {
        let limit = sd_notify::watchdog_enabled();
        let watched = limit.is_some();
        // Twice within the time would do; one of three may be late.
        let every = limit.map_or(UNWATCHED, |limit| limit / 3);
        let mut messages = None;
        let ends = Arc::new(AtomicBool::new(false));
        let (tells, told) = channel();
        if std::env::var_os("NOTIFY_SOCKET").is_some() {
            let (sender, receiver) = sync_channel(MOST_WAITING);
            let ends = ends.clone();
            let tell = move || {
                tell(&receiver, &ends);
                drop(tells);
            };
            std::thread::Builder::new().name("notify".into()).spawn(tell)?;
            messages = Some(sender);
        }
        Ok(ServiceManager { messages, ends, told, every, watched, said: Cell::new(false) })
    }

    /// Returns the time between two calls of [`ServiceManager::alive`]; `None` if there is no
    /// manager.
    pub fn every(&self) -> Option<Duration> {
        self.messages.as_ref().map(|_| self.every)
    }

    /// The start goes on: the manager gives it [`START_GOES_ON`] more.
    pub fn starting(&self) {
        self.send(Notification::Starting);
    }

    /// Clients are served from now on.
    pub fn ready(&self) {
        self.send(Notification::Ready);
    }

    /// The engine turns, and does this.
    pub fn alive(&self, state: String) {
        self.send(Notification::Alive { watched: self.watched, state });
    }

    /// The server ends. The manager waits for its end then, and no watchdog bites.
    pub fn stopping(&self) {
        self.ends.store(true, Ordering::Release);
        // A full queue wakes the thread as well.
        let _ = self.messages.as_ref().map(|messages| messages.try_send(Notification::Stopping));
    }

    /// Says that the server ends, if nothing did, and waits until the manager was told. Blocks for
    /// at most five seconds: for the end of the process.
    pub fn finish(&self) {
        self.stopping();
        // Nothing is ever sent: the thread ends, or it takes too long.
        let _ = self.told.recv_timeout(LAST_WORD);
    }

    fn send(&self, message: Notification) {
        let Some(messages) = &self.messages else { return };
        if self.ends.load(Ordering::Acquire) {
            return;
        }
        if messages.try_send(message).is_err() && !self.said.replace(true) {
            tracing::warn!("the service manager does not read what it is told");
        }
    }
}

/// Tells the manager what comes, until the server ends.
fn tell(messages: &Receiver<Notification>, ends: &AtomicBool) {
    let mut failed = false;
    for message in messages {
        let message = if ends.load(Ordering::Acquire) { Notification::Stopping } else { message };
        let told = match &message {
            Notification::Starting => {
                let more = NotifyState::ExtendTimeoutUsec(START_GOES_ON.as_micros() as u32);
                sd_notify::notify(&[more, NotifyState::Status("starting")])
            }
            Notification::Ready => sd_notify::notify(&[NotifyState::Ready]),
            Notification::Alive { watched, state } => {
                let all = [NotifyState::Status(state), NotifyState::Watchdog];
                sd_notify::notify(if *watched { &all } else { &all[..1] })
            }
            Notification::Stopping => {
                let state = "stopping: everything is made durable";
                sd_notify::notify(&[NotifyState::Stopping, NotifyState::Status(state)])
            }
        };
        if let (Err(e), false) = (told, failed) {
            failed = true;
            tracing::warn!("cannot notify systemd (NOTIFY_SOCKET): {e}");
        }
        if matches!(message, Notification::Stopping) {
            return;
        }
    }
}

/// A server's status in a line: what is wrong first, else what is served.
pub fn line(status: &Status) -> String {
    let mut text = String::new();
    if let Some(worst) = status.health.first() {
        let more = status.health.len() - 1;
        let rest = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let _ = write!(text, "! {}{rest}; ", worst.what);
    }
    let volumes = counted(status.volumes.len() as u64, "volume", "volumes");
    let clients = counted(status.server.connections, "connection", "connections");
    let _ = write!(text, "serving {volumes}, {clients}");
    if let Some(cache) = &status.cache {
        let _ = write!(text, ", {} dirty in the cache", human_bytes(cache.dirty_bytes));
    }
    text
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::health::Problem;
    use model::volume::VolumeOfStatus;

    use super::*;

    #[test]
    fn a_line_says_what_is_served() {
        let mut status =
            Status { volumes: vec![VolumeOfStatus::default(); 2], ..Status::default() };
        status.server.connections = 1;
        assert_eq!(line(&status), "serving 2 volumes, 1 connection");
        status.cache = Some(CacheStatus { dirty_bytes: 3 << 20, ..CacheStatus::default() });
        let dirty = "serving 2 volumes, 1 connection, 3 MiB dirty in the cache";
        assert_eq!(line(&status), dirty);
    }

    #[test]
    fn a_line_begins_with_what_is_wrong() {
        let problem = |what: &str| Problem { what: what.to_owned(), ..Problem::default() };
        let status = Status {
            volumes: vec![VolumeOfStatus::default()],
            health: vec![problem("a device is missing"), problem("the pool is nearly full")],
            ..Status::default()
        };
        let wanted = "! a device is missing (and 1 more); serving 1 volume, 0 connections";
        assert_eq!(line(&status), wanted);
    }

    #[test]
    fn what_a_manager_does_not_take_is_dropped() {
        let (sender, receiver) = sync_channel(MOST_WAITING);
        let (_tells, told) = channel();
        let manager = ServiceManager {
            messages: Some(sender),
            ends: Arc::default(),
            told,
            every: UNWATCHED,
            watched: true,
            said: Cell::new(false),
        };
        for _ in 0..3 * MOST_WAITING {
            manager.alive("busy".into());
        }
        assert_eq!(receiver.try_iter().count(), MOST_WAITING);
        assert!(manager.said.get());
    }
}
