//! `forebay completions`: what makes a shell complete commands, options, and the names of what a
//! server has.

use clap::{Args, Command, ValueEnum};
use clap_complete::{CompleteEnv, Shell};

use crate::error::{CommandError, Result};
use crate::output::print;

/// The variable by which a shell asks this program what a line may go on with.
const VARIABLE: &str = "FOREBAY_COMPLETE";

/// Print what makes a shell complete commands, options, volumes, snapshots, devices and settings
///
/// For example: forebay completions bash > /etc/bash_completion.d/forebay. The shell asks the
/// program itself what fits, and that asks the server for names.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// `command`: the whole command line.
    pub fn run(self, command: &Command) -> Result<()> {
        let name = command.get_name();
        let mut script = Vec::new();
        let shell = self.shell.to_possible_value();
        let shells = clap_complete::env::Shells::builtins();
        let shell = shell.as_ref().and_then(|shell| shells.completer(shell.get_name()));
        let failed = |e: String| CommandError::failed("completions", e);
        shell
            .ok_or_else(|| failed("this shell is not known".to_owned()))?
            .write_registration(VARIABLE, name, name, name, &mut script)
            .map_err(|e| failed(e.to_string()))?;
        print(&String::from_utf8_lossy(&script))
    }
}

/// Answers a shell that asks what a line may go on with, and ends the process then.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}
