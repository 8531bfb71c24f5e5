//! `forebay top`: what a server does, second by second.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use crate::cli::options::ClientOptions;
use crate::error::{CommandError, Result};
use crate::output::print;
use crate::terminal::Look;
use crate::top::lines;
use crate::top::live::{Poller, show};
use crate::units::parse_duration;

/// The shortest interval: a shorter one costs the server more than it tells.
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(3600);

/// Watch a running server: volumes, devices by class, cache, stalls
///
/// Shows what happened since the last look: requests and bytes a second, how long requests took on
/// average and within which time 99 of 100 were answered. q or Ctrl-C ends it.
#[derive(Args, Debug)]
pub struct Top {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Print what happens in that time, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    client: ClientOptions,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    match parse_duration(text)? {
        time if (LEAST..=MOST).contains(&time) => Ok(time),
        _ => Err("it is from 100ms to 1h".into()),
    }
}

impl Top {
    pub fn run(self) -> Result<()> {
        let look = Look::of_stdout();
        let socket = &self.client.socket();
        if self.once {
            let (before, now) = Poller::new(socket).pair(self.every)?;
            return print(&(lines(&before, &now, &look, None).join("\n") + "\n"));
        }
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Err(CommandError::Usage(
                "it needs a terminal; forebay top --once prints what happens in a second, for \
                 programs there is forebay status --json"
                    .into(),
            ));
        }
        show(socket, self.every, look.colour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_neither_too_short_nor_too_long() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for text in ["1ms", "2h", "soon", "0s"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
