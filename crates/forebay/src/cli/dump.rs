//! `forebay dump`: the structures of a pool and its cache as they stand on their devices.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use base::ErrorKind;
use clap::Args;
use offline::cache::dump as cache_dump;
use offline::pool::dump::{PoolStructure, dump};
use serde::Serialize;

use crate::cli::options::{DEFAULT_HOME, OfflineOptions, log_warnings};
use crate::error::{CommandError, Result};
use crate::terminal::progress::waiting;

/// Show the structures of a pool that is not being served, or of its cache, as JSON, one object a
/// line
///
/// WHAT is one of: superblock, volumes, groups, bitmap GROUP, mapping VOLUME (the nodes of its
/// tree), extents VOLUME, deadlist VOLUME (what older snapshots alone have), checksums GROUP, node
/// ADDRESS (all copies of that block); or of the cache: cache superblock, cache buckets, cache
/// index (as of the last checkpoint), cache journal (what came since), cache watermark, cache
/// summaries.
/// A snapshot is VOLUME@NAME. docs/format.md explains the fields.
#[derive(Args, Debug)]
// The other way round the last device takes WHAT for one more.
#[command(override_usage = "forebay dump [OPTIONS] <WHAT> [ARGUMENT] [--device <PATH>...]")]
pub struct Dump {
    /// The structure
    what: String,
    /// Which one: a block group's number, a volume's name or number, a block's address in the pool;
    /// or what of the cache
    argument: Option<String>,
    /// A directory of `forebay up`
    #[arg(long, default_value = DEFAULT_HOME, conflicts_with = "devices")]
    dir: PathBuf,
    #[command(flatten)]
    offline: OfflineOptions,
}

impl Dump {
    pub fn run(self) -> Result<()> {
        if self.what == "cache" {
            return self.of_cache();
        }
        let unknown = || {
            CommandError::Usage(format!(
                "{:?} is not one of: {} | cache {}",
                self.what,
                PoolStructure::USAGE,
                cache_dump::CacheStructure::USAGE.replace(" | ", " | cache ")
            ))
        };
        let what = PoolStructure::parse(&self.what, self.argument.as_deref());
        let what = what.map_err(CommandError::Usage)?.ok_or_else(unknown)?;
        log_warnings()?;
        let (world, files) = self.offline.open(&self.dir)?;
        let rt = world.rt.clone();
        let dumping = async move {
            let mut out = Lines::new();
            let outcome = dump(&rt, files, &what, &mut |item| out.put(&item)).await;
            let of_group = matches!(what, PoolStructure::Bitmap(_) | PoolStructure::Checksums(_));
            let failed = |e: base::StorageError| match of_group && e.kind == ErrorKind::NotFound {
                true => CommandError::Usage(format!(
                    "{e}; forebay dump groups lists those that are in use"
                )),
                false => CommandError::from(e),
            };
            outcome.map_err(failed).and_then(|()| out.finish())
        };
        // Nothing kills this runtime, so there is a result.
        into_a_file(|| world.rt.block_on(dumping)).unwrap_or(Ok(()))
    }

    fn of_cache(self) -> Result<()> {
        let word = self.argument.unwrap_or_default();
        let usage = || {
            CommandError::Usage(format!(
                "{word:?} is nothing of a cache: {}",
                cache_dump::CacheStructure::USAGE
            ))
        };
        let what = cache_dump::CacheStructure::parse(&word).ok_or_else(usage)?;
        log_warnings()?;
        let (world, file) = self.offline.open_only_cache(&self.dir)?;
        let rt = world.rt.clone();
        let dumping = async move {
            let mut out = Lines::new();
            let outcome = cache_dump::dump(&rt, &file, what, &mut |item| out.put(&item)).await;
            outcome.map_err(CommandError::from).and_then(|()| out.finish())
        };
        into_a_file(|| world.rt.block_on(dumping)).unwrap_or(Ok(()))
    }
}

/// Says on a terminal that it goes on, unless the lines are there to be seen.
fn into_a_file<T>(act: impl FnOnce() -> T) -> T {
    if std::io::stdout().is_terminal() { act() } else { waiting("dumping", act) }
}

/// Structures as lines, until the output takes no more.
struct Lines {
    out: BufWriter<std::io::Stdout>,
    trouble: Option<std::io::Error>,
}

impl Lines {
    fn new() -> Lines {
        Lines { out: BufWriter::new(std::io::stdout()), trouble: None }
    }

    fn put(&mut self, item: &impl Serialize) {
        if self.trouble.is_none() {
            let line = serde_json::to_string(item).map_err(std::io::Error::from);
            self.trouble = line.and_then(|line| writeln!(self.out, "{line}")).err();
        }
    }

    fn finish(mut self) -> Result<()> {
        match self.trouble.take().map_or_else(|| self.out.flush(), Err) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                Err(CommandError::failed("printing", e))
            }
            _ => Ok(()),
        }
    }
}
