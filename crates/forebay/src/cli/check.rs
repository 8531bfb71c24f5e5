//! `forebay check`: whether everything in a pool and its cache is as it should be.

use std::path::PathBuf;

use clap::Args;
use offline::CheckOptions;

use crate::cli::checked::{CheckReports, NextAction, text};
use crate::cli::options::{DEFAULT_HOME, OfflineOptions, log_warnings};
use crate::cli::repair;
use crate::error::{CommandError, Result};
use crate::output::{is_json, print, print_json};
use crate::terminal::Look;
use crate::terminal::progress::Progress;

/// Check a pool that is not being served, and its cache: every structure, every reference
///
/// Reads only, unless --repair is given: what is damaged in one copy is healed when a server reads
/// it. The exit status is 0 only if nothing is wrong, or nothing is any more; 3 if something is
/// lost, 4 if copies are damaged and a good one of each is there, 5 if nothing is wrong as far as
/// could be checked, and 1 if the check itself failed.
#[derive(Args, Debug)]
pub struct Check {
    /// A directory of `forebay up`
    #[arg(default_value = DEFAULT_HOME, conflicts_with = "devices")]
    dir: PathBuf,
    /// Read all data too and verify its checksums, in every copy
    #[arg(long)]
    data: bool,
    /// Write bad copies again from good ones, free blocks that nothing refers to, and check once
    /// more. What has no good copy is named and left as it is. All data is read
    #[arg(long)]
    repair: bool,
    /// Say what --repair would do, and write nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
    #[command(flatten)]
    offline: OfflineOptions,
}

impl Check {
    /// The exit status.
    pub fn run(self) -> Result<u8> {
        log_warnings()?;
        if self.repair {
            return repair::run(&self.offline, &self.dir, self.dry_run);
        }
        let (world, files) = self.offline.open(&self.dir)?;
        let cache = self.offline.open_cache(&world, &self.dir)?;
        let is_named = self.offline.names_cache();
        let options = CheckOptions { data: self.data, ..CheckOptions::default() };
        let rt = world.rt.clone();
        let checked = world.rt.block_on(async move {
            let mut progress = Progress::new(is_json());
            CheckReports::of(&rt, files, cache, is_named, &options, &mut progress).await
        });
        let checked =
            checked.ok_or_else(|| CommandError::Failed("the check was ended".into()))??;
        if is_json() {
            print_json(&checked)?
        } else {
            print(&text(&checked, &NextAction::Repair, &Look::of_stdout()))?
        }
        Ok(checked.exit_status())
    }
}
