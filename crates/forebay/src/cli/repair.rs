//! `forebay check --repair`: bad copies are written again from good ones.

use std::path::Path;

use base::BLOCK_U64;
use cache::CacheFile;
use offline::cache::check as cache_check;
use offline::cache::repair as cache_repair;
use offline::pool::check as pool_check;
use offline::pool::repair as pool_repair;
use offline::repair::{Failure, Outcome, Repairs};
use offline::report::Findings;
use offline::{CheckOptions, Problem, Progress};
use pool::DeviceFile;
use rt::Rt;
use serde::Serialize;

use crate::cli::checked::{CheckReports, NextAction, counted, found, is_anothers, step, verdict};
use crate::cli::options::OfflineOptions;
use crate::error::{CommandError, Result};
use crate::host::host_log::left_behind;
use crate::output::{is_json, print, print_json};
use crate::terminal::progress::Progress as ProgressLine;
use crate::terminal::{Column, Look, Table};

/// The text about a cache if the pool behind it is not repaired.
const POOL_FIRST: &str = "the pool was not repaired";

/// Repairs what the options name. The exit status says what is left.
pub fn run(options: &OfflineOptions, dir: &Path, dry_run: bool) -> Result<u8> {
    let alone = |e| match e {
        CommandError::Failed(text) => CommandError::Failed(format!(
            "{text}. A repair needs all devices for itself; while the pool is served, forebay \
             scrub start heals it"
        )),
        e => e,
    };
    let (world, opened) = options.open_for(dir, !dry_run).map_err(alone)?;
    if !opened.gone.is_empty() {
        return Err(CommandError::Failed(format!(
            "{}. Nothing was written, as a good copy may be there: give all devices of the pool. \
             If one is lost, serve the pool and type forebay device replace",
            opened.gone.iter().map(|one| one.why.as_str()).collect::<Vec<_>>().join("; ")
        )));
    }
    let paths = opened.files.iter().map(|file| Path::new(&file.path));
    if let Some(left) = left_behind(paths, dir) {
        tracing::warn!(
            "the last process that served this pool has died and left answered writes in {}: \
             serve the pool once, if it can be served, which enters them; after a repair of the \
             pool they do not count any more",
            left.display()
        );
    }
    let cache = options.open_cache_for(&world, dir, !dry_run).map_err(alone)?;
    let is_named = options.names_cache();
    let rt = world.rt.clone();
    let repaired = world.rt.block_on(async move {
        let mut shown = ProgressLine::new(is_json());
        RepairResult::of(&rt, opened.files, cache, is_named, dry_run, &mut shown).await
    });
    let repaired =
        repaired.ok_or_else(|| CommandError::Failed("the repair was ended".into()))??;
    if is_json() {
        print_json(&repaired)?
    } else {
        print(&repaired.text(&Look::of_stdout()))?
    }
    Ok(repaired.now.exit_status())
}

/// Copies that were not repaired, those next to each other in a line.
fn not_repaired(failures: &[Failure]) -> String {
    let goes_on = |a: &Failure, b: &Failure| {
        (a.kind, &a.device, &a.why) == (b.kind, &b.device, &b.why)
            && a.offset + BLOCK_U64 == b.offset
    };
    let mut sorted: Vec<&Failure> = failures.iter().collect();
    sorted.sort_by_key(|f| (&f.device, f.offset));
    let runs = sorted.chunk_by(|a, b| goes_on(a, b)).filter_map(|run| Some((run.first()?, run)));
    let line = |(first, run): (&&Failure, &[&Failure])| {
        let Failure { device, kind, offset, why } = first;
        let place = match run.len() as u64 {
            1 => format!("byte {offset}"),
            n => format!("bytes {offset} to {} ({n} blocks)", offset + n * BLOCK_U64 - 1),
        };
        format!("not repaired: {kind:?} at {place} of {device}: {why}\n")
    };
    runs.map(line).collect()
}

/// The result of a repair, and the state after it.
#[derive(Serialize)]
struct RepairResult {
    #[serde(flatten)]
    now: CheckReports,
    repair: RepairReport,
    /// The findings of the check before, if anything was written.
    #[serde(skip)]
    before: Option<CheckReports>,
}

#[derive(Serialize)]
struct RepairReport {
    pool: Part,
    cache: Option<Part>,
}

/// The repairs in the pool, or in the cache.
#[derive(Serialize)]
struct Part {
    #[serde(flatten)]
    repairs: Repairs,
    /// The findings of the check before.
    found: StateBefore,
}

#[derive(Serialize)]
struct StateBefore {
    errors: u64,
    damaged_copies: u64,
    problems: Vec<Problem>,
}

impl Part {
    fn new<C>(repairs: Repairs, before: &Findings<C>) -> Part {
        let found = StateBefore {
            errors: before.errors,
            damaged_copies: before.damaged_copies,
            problems: before.problems.clone(),
        };
        Part { repairs, found }
    }
}

impl RepairResult {
    async fn of(
        rt: &Rt,
        files: Vec<DeviceFile>,
        cache: Option<CacheFile>,
        is_named: bool,
        dry_run: bool,
        shown: &mut ProgressLine,
    ) -> base::Result<RepairResult> {
        let options = CheckOptions { data: true, ..CheckOptions::default() };
        let mut show = |p: Progress| shown.show(&step(&p));
        let pool = pool_repair::repair(rt, files.clone(), &options, dry_run, &mut show).await?;
        let refused = pool.repairs.refused.is_some();
        let has_cache = pool.now().cache.is_some();
        let mut done = None;
        if let Some(file) = cache {
            let image = &pool.now().image;
            let dry_run = dry_run || refused;
            let outcome =
                cache_repair::repair(rt, &file, image, files, &options, dry_run, &mut show).await?;
            done = Some(outcome).filter(|o| is_named || !is_anothers(o.now(), has_cache));
        }
        if let Some(cache) = done.as_mut().filter(|_| refused) {
            cache.repairs.dry_run = pool.repairs.dry_run;
            cache.repairs.refused.get_or_insert_with(|| POOL_FIRST.to_owned());
        }
        Ok(RepairResult::new(pool, done))
    }

    fn new(
        pool: Outcome<pool_check::Report>,
        cache: Option<Outcome<cache_check::CacheReport>>,
    ) -> RepairResult {
        let wrote = pool.after.is_some() || cache.as_ref().is_some_and(|c| c.after.is_some());
        let now = CheckReports::new(pool.now().clone(), cache.as_ref().map(|c| c.now().clone()));
        let repair = RepairReport {
            pool: Part::new(pool.repairs, &pool.before),
            cache: cache.as_ref().map(|c| Part::new(c.repairs.clone(), &c.before)),
        };
        let before = CheckReports::new(pool.before, cache.map(|c| c.before));
        RepairResult { now, repair, before: Some(before).filter(|_| wrote) }
    }

    fn parts(&self) -> impl Iterator<Item = &Repairs> {
        [Some(&self.repair.pool), self.repair.cache.as_ref()]
            .into_iter()
            .flatten()
            .map(|p| &p.repairs)
    }

    fn text(&self, look: &Look) -> String {
        let dry_run = self.repair.pool.repairs.dry_run;
        let mut out = found(self.before.as_ref().unwrap_or(&self.now));
        out += &self.copies(dry_run, look);
        let forgotten = self.repair.pool.repairs.forgotten_volumes;
        if forgotten > 0 && self.repair.pool.repairs.refused.is_none() {
            let what = if dry_run { "would be forgotten" } else { "forgotten" };
            out += &format!(
                "{} {what}, with all that was left\n",
                counted(forgotten, "deleted volume")
            );
        }
        let leaked = self.repair.pool.repairs.leaked_blocks;
        if leaked > 0 && self.repair.pool.repairs.refused.is_none() {
            let what = if dry_run { "would be freed" } else { "were freed" };
            out += &format!("{} that nothing refers to {what}\n", counted(leaked, "block"));
        }
        for repairs in self.parts() {
            out += &not_repaired(&repairs.failures);
        }
        for (what, repairs) in ["pool", "cache"].iter().zip(self.parts()) {
            if let Some(why) = &repairs.refused {
                out += &format!(
                    "nothing is written to the {what}, as it is not certain what is right: {why}\n"
                );
            }
        }
        if dry_run {
            out += "dry run: nothing was written\n";
        } else if self.before.is_some() {
            out += "checked again: ";
        } else if self.parts().all(|r| r.is_empty() && r.refused.is_none()) {
            out += "nothing to repair\n";
        }
        let heals = self.parts().any(|r| !r.is_empty() && r.refused.is_none());
        let next = if dry_run && heals { NextAction::MakeRepair } else { NextAction::Restore };
        out + &verdict(&self.now, &next, look)
    }

    /// Bad copies, by device and kind.
    fn copies(&self, dry_run: bool, look: &Look) -> String {
        let last = if dry_run { "WOULD BE REPAIRED" } else { "REPAIRED" };
        let mut table = Table::new(&[
            Column::shortened("DEVICE", 20),
            Column::new("KIND"),
            Column::new("BAD COPIES"),
            Column::new(last),
        ]);
        let mut is_empty = true;
        for m in self.parts().filter(|r| r.refused.is_none()).flat_map(|r| &r.copies) {
            let kind = format!("{:?}", m.kind).to_lowercase();
            let last = if dry_run { m.bad } else { m.repaired };
            let (device, bad) = (m.device.as_str().into(), m.bad.to_string().into());
            table.add([device, kind.into(), bad, last.to_string().into()]);
            is_empty = false;
        }
        if is_empty { String::new() } else { table.text(look) }
    }
}

#[cfg(test)]
mod tests {
    use offline::Subject;

    use super::*;

    #[test]
    fn neighbours_that_were_not_repaired_are_one_line() {
        let failure = |offset, why: &str| Failure {
            device: "/a".into(),
            kind: Subject::Data,
            offset: offset * BLOCK_U64,
            why: why.into(),
        };
        let all = [failure(9, "x"), failure(2, "x"), failure(1, "x"), failure(3, "y")];
        assert_eq!(
            not_repaired(&all),
            "not repaired: Data at bytes 4096 to 12287 (2 blocks) of /a: x\n\
             not repaired: Data at byte 12288 of /a: y\n\
             not repaired: Data at byte 36864 of /a: x\n"
        );
    }
}
