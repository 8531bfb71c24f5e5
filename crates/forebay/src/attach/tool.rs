//! Programs of the system that do a part of the work.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::{CommandError, Result};

/// Directories of programs of the administrator, beside those of `PATH`.
const ALSO: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The path of a program, if it is installed.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(ALSO.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A command that runs a program. Errors: it is not installed, with the package that has it.
pub fn need(name: &str, package: &str) -> Result<Command> {
    let missing = || {
        CommandError::Failed(format!(
            "{name} is not installed (Debian has it in the package {package})"
        ))
    };
    find(name).map(Command::new).ok_or_else(missing)
}

/// Runs a program to its end and returns its output. Errors: it failed, with what it said.
pub fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|e| CommandError::failed(&name, e))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim();
    let what = if said.is_empty() { done.status.to_string() } else { said.to_owned() };
    Err(CommandError::failed(name, what))
}

/// When a process began, in ticks of the kernel: tells it from a later one of the same number.
pub fn began(process: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    // A process that has ended and was not waited for is none.
    (state != "Z").then(|| fields.nth(18)?.parse().ok()).flatten()
}

/// Whether a process that was noted is still there.
pub fn lives(process: Option<(i32, u64)>) -> bool {
    process.is_some_and(|(number, time)| began(number) == Some(time))
}
