//! `forebay config`: what a server goes by, and where each value comes from.

use std::path::{Path, PathBuf};

use clap::Args;
use model::request;

use crate::cli::options::{ClientOptions, DEFAULT_HOME};
use crate::config::example::example;
use crate::config::{ConfigFile, Sections, ServeConfig, shown};
use crate::error::Result;
use crate::output::{is_json, no_json, print, print_json};

/// Show what a server goes by, and where each value comes from
///
/// The output can be read as a configuration file. A comment behind each value says where it comes
/// from: default, configuration (the file), option (of the command line, or FOREBAY_LOG), or set
/// (forebay set, device or cache, while the server ran).
#[derive(Args, Debug)]
pub struct Config {
    /// Check this file and show what it would say, without a server
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration file that has every key with an explanation and its default
    #[arg(long, conflicts_with = "config")]
    example: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Config {
    pub fn run(self) -> Result<()> {
        if self.example {
            no_json("forebay config --example")?;
            return print(&example());
        }
        let (all, of) = match &self.config {
            Some(path) => {
                let file = ConfigFile::read(path)?;
                let home = Path::new(DEFAULT_HOME);
                let config = ServeConfig::new(Sections::default(), file, home)?;
                let all = shown::all(&config.places, &config.settings, Some(path));
                (all, "What a server with this file goes by.".to_owned())
            }
            None => {
                let socket = self.client.socket();
                let all = self.client.ask(request::GetConfig {})?;
                (all, format!("What the server at {} goes by.", socket.display()))
            }
        };
        if is_json() {
            return print_json(&all);
        }
        let file = all.file.as_deref().unwrap_or("none");
        print(&shown::toml(&all, &format!("# {of}\n# Its configuration file: {file}\n\n")))
    }
}
