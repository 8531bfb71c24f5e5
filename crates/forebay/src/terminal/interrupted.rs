//! A command that waits for what goes on without it, and Ctrl-C.
//!
//! Fault model: the server may not answer, so the signal is handled in a thread of its own and ends
//! the process at once, as it does without this.

use std::io::{IsTerminal, StderrLock, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Until it is dropped, Ctrl-C says what goes on, and then ends the process.
pub struct InterruptNotice(Arc<AtomicBool>);

impl InterruptNotice {
    /// Returns the guard. `how` names the commands that show what goes on and end it. Where a
    /// signal cannot be handled, nothing is said.
    pub fn without_us(how: &'static str) -> InterruptNotice {
        let waits = Arc::new(AtomicBool::new(true));
        if let Ok(mut signals) = Signals::new([SIGINT]) {
            let waits = waits.clone();
            let handle = move || {
                for signal in signals.forever() {
                    // Nothing is printed after it: a bar waits for the lock, and the process ends.
                    let mut out = std::io::stderr().lock();
                    if waits.load(Ordering::Acquire) {
                        tell(&mut out, how);
                    }
                    let _ = emulate_default_handler(signal);
                }
            };
            let _ = std::thread::Builder::new().name("interrupted".into()).spawn(handle);
        }
        InterruptNotice(waits)
    }
}

impl Drop for InterruptNotice {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn tell(out: &mut StderrLock<'_>, how: &str) {
    // Behind the bar, and the ^C of the terminal.
    let end = if out.is_terminal() { "\n" } else { "" };
    let _ = writeln!(out, "{end}it goes on without this command; {how}");
}
