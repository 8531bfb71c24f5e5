//! `forebay gc`: garbage collection of a running server's cache, now.

use clap::Args;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::terminal::text::paragraph;
use crate::terminal::{Look, Tone};

/// Collect the cache's garbage now: dead keys, thin nodes, sparse buckets; it runs by itself when
/// it is due
#[derive(Args, Debug)]
pub struct Gc {
    /// Print what it did, with all passes before, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Gc {
    pub fn run(self) -> Result<()> {
        let gc = self.client.ask(&Request::Gc {})?;
        if self.json {
            return print_json(&gc);
        }
        let n = |field: &str| gc[field].as_u64().unwrap_or(0);
        let text = format!(
            "collected: since the server was started {} passes dropped {} dead keys, merged {} \
             nodes, moved {} blocks and {} nodes; counters that were wrong: {}",
            n("passes"),
            n("dropped_keys"),
            n("merged_nodes"),
            n("moved_blocks"),
            n("moved_nodes"),
            n("miscounted_buckets"),
        );
        print(&paragraph((Tone::Plain, ""), &text, &Look::of_stdout()))
    }
}
