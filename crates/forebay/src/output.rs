//! Facts go to standard output.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::error::{CommandError, Result};

/// Prints a text. A reader that has had enough (`| head`) is no failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CommandError::failed("printing", e)),
        _ => Ok(()),
    }
}

/// Prints a value as JSON over several lines.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(value).map_err(|e| CommandError::failed("printing", e))?;
    print(&(text + "\n"))
}
