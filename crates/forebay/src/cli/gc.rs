//! `forebay gc`: garbage collection of a running server's cache, now.

use clap::Args;
use model::request;

use crate::cli::options::ClientOptions;
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::terminal::text::paragraph;
use crate::terminal::{Look, Tone};

/// Collect the cache's garbage now: dead keys, thin nodes, sparse buckets; it runs by itself when
/// it is due
#[derive(Args, Debug)]
pub struct Gc {
    #[command(flatten)]
    client: ClientOptions,
}

impl Gc {
    pub fn run(self) -> Result<()> {
        let gc = self.client.ask(request::Gc {})?;
        if is_json() {
            return print_json(&gc);
        }
        let text = format!(
            "collected: since the server was started {} passes dropped {} dead keys, merged {} \
             nodes, moved {} blocks and {} nodes; counters that were wrong: {}",
            gc.passes,
            gc.dropped_keys,
            gc.merged_nodes,
            gc.moved_blocks,
            gc.moved_nodes,
            gc.miscounted_buckets,
        );
        print(&paragraph(Tone::Plain, "", &text, &Look::of_stdout()))
    }
}
