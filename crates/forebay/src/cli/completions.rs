//! `forebay completions`: what makes a shell complete commands and options.

use clap::Args;
use clap_complete::Shell;

use crate::error::Result;
use crate::output::print;

/// Print what makes a shell complete commands and options
///
/// For example: forebay completions bash > /etc/bash_completion.d/forebay
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// `command`: the whole command line.
    pub fn run(self, mut command: clap::Command) -> Result<()> {
        let mut script = Vec::new();
        let name = command.get_name().to_owned();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
