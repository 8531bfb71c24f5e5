//! SIGINT and SIGTERM: the first asks the shard to end cleanly, the second ends the process at once, as a loss of power would: what
//! was flushed is safe.
//!
//! Fault model: nobody may read the log any more, or so slowly that a line waits. Nothing here depends on a line being written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use crate::control::server::Message;
use crate::error::{CommandError, Result};
use crate::mailbox::Sender;

/// Handles signals in a thread of its own from now on.
pub fn watch(shard: Sender<Message>) -> Result<()> {
    let failed = |e: std::io::Error| CommandError::failed("handling signals", e);
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, asked.clone()).map_err(failed)?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let handle = move || {
        for signal in signals.forever() {
            asked.store(true, Ordering::Release);
            // A shard that takes no more messages is ending already.
            let _ = shard.send(Message::Stop);
            tracing::info!("stopping on {}; another signal ends it at once", signal_name(signal).unwrap_or("a signal"));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(handle).map_err(failed)?;
    Ok(())
}
