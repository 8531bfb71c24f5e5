//! SIGINT and SIGTERM: the first asks the shard to end cleanly, the second ends the process at once, as a loss of power would: what
//! was flushed is safe.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

use crate::control::server::Message;
use crate::error::{CommandError, Result};
use crate::mailbox::Sender;

/// Handles signals in a thread of its own from now on.
pub fn watch(shard: Sender<Message>) -> Result<()> {
    let failed = |e: std::io::Error| CommandError::failed("handling signals", e);
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let handle = move || {
        let mut asked = false;
        for signal in signals.forever() {
            if asked {
                tracing::warn!("ending at once");
                let _ = emulate_default_handler(signal);
                std::process::exit(1);
            }
            asked = true;
            tracing::info!("stopping on {}; another signal ends it at once", signal_name(signal).unwrap_or("a signal"));
            // A shard that takes no more messages is ending already.
            let _ = shard.send(Message::Stop);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(handle).map_err(failed)?;
    Ok(())
}
