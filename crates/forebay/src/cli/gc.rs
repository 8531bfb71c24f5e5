//! `forebay gc`: garbage collection of a running server's cache, now.

use clap::Args;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::control::client::ask;
use crate::error::Result;
use crate::output::{print, print_json};

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
        let gc = ask(&self.client.socket, &Request::Gc {})?;
        if self.json {
            return print_json(&gc);
        }
        let n = |field: &str| gc[field].as_u64().unwrap_or(0);
        print(&format!(
            "collected: since the server was started {} passes dropped {} dead keys, merged {} \
             nodes, moved {} blocks and {} nodes; counters that were wrong: {}\n",
            n("passes"),
            n("dropped_keys"),
            n("merged_nodes"),
            n("moved_blocks"),
            n("moved_nodes"),
            n("miscounted_buckets"),
        ))
    }
}
