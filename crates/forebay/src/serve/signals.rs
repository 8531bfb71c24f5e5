//! SIGINT and SIGTERM: the first asks the shard to end cleanly, the second ends the process at
//! once, as a loss of power would: what was flushed is safe. SIGHUP has the configuration file read
//! again; without a file it asks for the end, as where a terminal is closed.
//!
//! Fault model: the log may not be read any more, or so slowly that a line waits. Nothing here
//! depends on a line being written. A device may never answer: what an end waits for is told by a
//! thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::control::server::Message;
use crate::error::{CommandError, Result};
use crate::serve::mailbox::Sender;

/// The time between two log lines about an end that takes long.
const PATIENCE: Duration = Duration::from_secs(5);

/// The progress of an end, for those who wait for it.
#[derive(Clone, Default)]
pub struct Ending(Arc<AtomicU8>);

/// The part of a server that an end waits for.
#[derive(Clone, Copy)]
pub enum ShutdownStage {
    /// The start, which is given up.
    Start,
    /// Requests of clients.
    Clients,
    /// Requests on the control socket.
    Commands,
    Cache,
    Pool,
    /// The work that is under way on devices, though it is not needed.
    Devices,
}

impl Ending {
    /// Notes that the end waits for this now.
    pub fn waits_for(&self, step: ShutdownStage) {
        self.0.store(step as u8, Ordering::Release);
    }

    fn text(&self) -> &'static str {
        const TEXTS: [(ShutdownStage, &str); 6] = [
            (ShutdownStage::Start, "the start, which is given up"),
            (ShutdownStage::Clients, "requests of clients that are under way"),
            (ShutdownStage::Commands, "commands that are being carried out"),
            (ShutdownStage::Cache, "the cache to write what it needs for the next start"),
            (ShutdownStage::Pool, "the pool's last commit"),
            (ShutdownStage::Devices, "requests to devices that do not answer"),
        ];
        let step = self.0.load(Ordering::Acquire);
        TEXTS.iter().find(|(s, _)| *s as u8 == step).map_or("nothing", |t| t.1)
    }

    /// Says again and again what the end waits for, until the process has ended.
    fn tell(&self) {
        loop {
            #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
            std::thread::sleep(PATIENCE);
            tracing::warn!(
                "still stopping, waiting for {}; another signal ends it at once",
                self.text()
            );
        }
    }
}

/// The effect of SIGHUP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hangup {
    /// The configuration file is read again.
    Reload,
    /// The server ends. A second SIGHUP, as of a shell and of its terminal, changes nothing.
    End,
    /// Nothing happens: this process was started with SIGHUP ignored (`nohup`).
    Nothing,
}

impl Hangup {
    /// Returns the effect of SIGHUP in a server that has a configuration file, or has none.
    pub fn of(file: bool) -> Hangup {
        let status = || std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        match file {
            true => Hangup::Reload,
            false if is_ignored(&status(), SIGHUP) => Hangup::Nothing,
            false => Hangup::End,
        }
    }
}

/// Whether a process ignores a signal, as the kernel tells its status.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Handles signals in a thread of its own from now on.
pub fn watch(shard: Sender<Message>, ending: Ending, hangup: Hangup) -> Result<()> {
    let failed = |e: std::io::Error| CommandError::failed("handling signals", e);
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, asked.clone()).map_err(failed)?;
    }
    let hears = (hangup != Hangup::Nothing).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hears)).map_err(failed)?;
    let handle = move || {
        for signal in signals.forever() {
            if signal == SIGHUP && hangup == Hangup::Reload {
                // One that finds the mailbox full is lost, and so is one at the end.
                let _ = shard.try_send(Message::Reload);
                continue;
            }
            if asked.swap(true, Ordering::AcqRel) {
                continue;
            }
            let ending = ending.clone();
            // Without it only the log says less.
            let _ = std::thread::Builder::new().name("ending".into()).spawn(move || ending.tell());
            // A shard that takes no more messages is ending already.
            let _ = shard.send(Message::Stop);
            tracing::info!(
                "stopping on {}; another signal ends it at once",
                signal_name(signal).unwrap_or("a signal")
            );
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(handle).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_known() {
        let status = |mask: &str| format!("Name:\tforebay\nSigBlk:\t0001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(&status("0000000000000001"), SIGHUP));
        assert!(is_ignored(&status("0000000000004001"), SIGTERM));
        assert!(!is_ignored(&status("0000000000001000"), SIGHUP));
        assert!(!is_ignored("", SIGHUP) && !is_ignored("SigIgn:\tx\n", SIGHUP));
        assert_eq!(Hangup::of(true), Hangup::Reload);
    }
}
