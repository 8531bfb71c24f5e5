//! Facts go to standard output.

use std::io::{ErrorKind, Write};

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::error::{CommandError, Result};

/// Whether the output of this process is JSON, as the command line says.
static JSON: AtomicBool = AtomicBool::new(false);

/// Chooses JSON, or text, for all that is printed.
pub fn choose_json(is_json: bool) {
    JSON.store(is_json, Ordering::Relaxed);
}

/// Whether the output is JSON.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Says what a command has done: a text for people, or `{"done": TEXT}` for programs.
pub fn done(text: &str) -> Result<()> {
    #[derive(Serialize)]
    struct Done<'a> {
        done: &'a str,
    }
    match is_json() {
        true => print_json(&Done { done: text }),
        false => print(&format!("{text}\n")),
    }
}

/// Refuses JSON where a command has none.
pub fn no_json(command: &str) -> Result<()> {
    match is_json() {
        true => Err(CommandError::Usage(format!("{command} prints no JSON"))),
        false => Ok(()),
    }
}

/// A failure as a program reads it: `{"error": TEXT, "exit_status": NUMBER}`.
pub fn failure_as_json(text: &str, exit_status: u8) -> String {
    serde_json::json!({ "error": text, "exit_status": exit_status }).to_string()
}

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
