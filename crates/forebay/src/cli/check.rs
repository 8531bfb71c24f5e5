//! `forebay check`: whether everything in a pool is as it should be.

use std::path::PathBuf;

use clap::Args;
use pool::check::{CheckOptions, Progress, Report};

use crate::cli::options::{DEFAULT_HOME, OfflineOptions, log_warnings};
use crate::error::{CommandError, Result};
use crate::output::{Meter, print, print_json};
use crate::units::human_bytes;

/// The exit status where something is wrong.
const NOT_CLEAN: u8 = 1;

/// Check a pool that is not being served: every structure, every reference
///
/// Reads only, and repairs nothing: what is damaged in one copy is healed when a server reads it. The exit status is 0 only if nothing is
/// wrong.
#[derive(Args, Debug)]
pub struct Check {
    /// A directory of `forebay up`
    #[arg(default_value = DEFAULT_HOME, conflicts_with = "devices")]
    dir: PathBuf,
    /// Read all data too and verify its checksums, in every copy
    #[arg(long)]
    data: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    offline: OfflineOptions,
}

impl Check {
    /// The exit status.
    pub fn run(self) -> Result<u8> {
        log_warnings();
        let (world, files) = self.offline.open(&self.dir)?;
        let options = CheckOptions { data: self.data, ..CheckOptions::default() };
        let rt = world.rt.clone();
        let checked = world.rt.block_on(async move {
            let mut meter = Meter::new();
            let report = pool::check::check(&rt, files, &options, &mut |p| meter.show(&progress(&p))).await;
            meter.clear();
            report
        });
        let report = checked.ok_or_else(|| CommandError::Failed("the check was ended".into()))??;
        if self.json {
            print_json(&report)?
        } else {
            print(&text(&report))?
        }
        Ok(if report.is_clean() { 0 } else { NOT_CLEAN })
    }
}

fn progress(p: &Progress) -> String {
    format!("{:?}: {}%", p.phase, (p.done * 100).checked_div(p.total).unwrap_or(100)).to_lowercase()
}

fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn text(r: &Report) -> String {
    let mut out = String::new();
    for p in &r.problems {
        out += &format!("{p}\n");
    }
    let found = r.errors + r.damaged_copies + r.notes;
    let listed = r.problems.len() as u64;
    if found > listed {
        out += &format!("... and {} more\n", found - listed);
    }
    let c = &r.counts;
    out += &format!(
        "pool {:?}: {}, {}, {}, {}, {}",
        r.pool,
        counted(c.volumes, "volume"),
        counted(c.groups, "block group"),
        counted(c.nodes, "tree node"),
        counted(c.extents, "extent"),
        counted(c.data_blocks, "data block"),
    );
    out += &match r.data {
        true => format!("; {} of data verified, all copies counted\n", human_bytes(c.verified_bytes)),
        false => "; data not read (--data reads it)\n".to_owned(),
    };
    if r.degraded {
        let away: Vec<String> =
            r.devices
                .iter()
                .enumerate()
                .filter(|(_, d)| d.state != "online")
                .map(|(i, d)| {
                    if d.path.is_empty() {
                        format!("device {i} {}", d.state)
                    } else {
                        format!("{} {}", d.path, d.state)
                    }
                })
                .collect();
        out += &format!("degraded ({}): only what the other devices hold was checked\n", away.join(", "));
    }
    out += &match (r.errors, r.damaged_copies) {
        (0, 0) => "clean\n".to_owned(),
        (0, n) => format!("NOT CLEAN: damaged copies: {n}; nothing is lost, a good copy of each is there\n"),
        (n, m) => format!("NOT CLEAN: errors: {n}, damaged copies: {m}\n"),
    };
    out
}
