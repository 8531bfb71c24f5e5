//! `forebay pool`: what is stored of a pool and can be changed.

use base::counted;
use clap::{Args, Subcommand};
use model::moves::MovesStatus;
use model::request;

use crate::cli::device::{ended, under_way, wait_for};
use crate::cli::options::ClientOptions;
use crate::error::{CommandError, Result};
use crate::output::done;

/// Change what is stored of the pool
#[derive(Args, Debug)]
pub struct PoolCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Change a property: copies=N, the copies of every block
    Set {
        /// The property and its value
        #[arg(value_name = "KEY=VALUE", value_parser = property)]
        property: Property,
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
}

/// The lack of a pool with one copy of every block.
pub const ONE_COPY: &str =
    "one of every block: a device that fails takes what it holds, and nothing heals what is bad";

/// A property that can be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Property {
    Copies(u8),
}

fn property(text: &str) -> std::result::Result<Property, String> {
    match text.split_once('=') {
        Some(("copies", value)) => value
            .parse()
            .map(Property::Copies)
            .map_err(|_| format!("{value:?} is no number of copies")),
        Some((key, _)) => Err(format!("a pool has no property {key:?}; it has: copies")),
        None => Err("write it as KEY=VALUE, such as copies=2".into()),
    }
}

impl PoolCommand {
    pub fn run(self) -> Result<()> {
        let Action::Set { property: Property::Copies(copies), wait, client } = self.action;
        if copies == 0 {
            return Err(CommandError::Usage(
                "a pool has one to three copies of every block: forebay pool set copies=2".into(),
            ));
        }
        let mut moves = client.ask(request::PoolCopies { copies })?;
        if wait {
            let how = "forebay device list shows how far it is, and forebay pool set copies=N with \
                       the old number gives it up";
            moves = wait_for(&client, moves, how)?;
            ended(&moves.moves)?;
        }
        done(&told(copies, &moves.moves))
    }
}

/// The result of another number of copies, in a line; and what is lost with the second copy, in
/// another.
fn told(copies: u8, moves: &MovesStatus) -> String {
    let lost = if copies == 1 { format!("\ncopies: {ONE_COPY}") } else { String::new() };
    let copies = counted(u64::from(copies), "copy", "copies");
    match under_way(moves) {
        None => format!("the pool has {copies} of every block; nothing had to be moved{lost}"),
        Some(shown) => format!("the pool is to have {copies} of every block; {shown}{lost}"),
    }
}

#[cfg(test)]
mod tests {
    use model::moves::MovesState;

    use super::*;

    #[test]
    fn what_was_done_is_told() {
        let idle = MovesStatus::default();
        let said = told(3, &idle);
        assert_eq!(said, "the pool has 3 copies of every block; nothing had to be moved");
        let said = told(1, &idle);
        assert!(said.ends_with("nothing heals what is bad") && said.lines().count() == 2, "{said}");
        let runs =
            MovesStatus { state: MovesState::Running, left_bytes: 4096, ..MovesStatus::default() };
        let said = told(2, &runs);
        assert!(
            said.starts_with("the pool is to have 2 copies of every block; running: "),
            "{said}"
        );
    }

    #[test]
    fn properties_are_read() {
        assert_eq!(property("copies=2"), Ok(Property::Copies(2)));
        for text in ["copies", "copies=x", "copies=999", "name=x"] {
            assert!(property(text).is_err(), "{text}");
        }
    }
}
