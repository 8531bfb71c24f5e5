//! Findings of a check of a pool and its cache, for people and programs.

use cache::CacheFile;
use offline::cache::check::{self as cache_check, PoolRelation};
use offline::pool::check::{self as pool_check, Report};
use offline::{CheckOptions, Problem, Progress};
use pool::DeviceFile;
use rt::Rt;
use serde::Serialize;

use crate::error::{DAMAGED, LOST, PARTIAL};
use crate::terminal::progress::{Progress as ProgressLine, Step, Unit};
use crate::terminal::{Look, Tone};
use crate::units::human_bytes;

/// The reports of a check.
#[derive(Serialize)]
pub struct CheckReports {
    /// The report about the pool.
    #[serde(flatten)]
    pub pool: Report,
    /// The report about its cache, if there is one.
    pub cache_report: Option<cache_check::CacheReport>,
    /// The parts that were not checked, for people.
    pub not_checked: Vec<String>,
}

/// The next thing to do about what a check has found.
pub enum NextAction {
    /// A repair: nothing was tried yet.
    Repair,
    /// The repair without `--dry-run`: a dry run has said that it would do something.
    MakeRepair,
    /// A restore: what a repair can do is done, or there is nothing that it could do.
    Restore,
}

impl CheckReports {
    /// The reports about what was found in a pool and its cache.
    pub fn new(pool: Report, cache_report: Option<cache_check::CacheReport>) -> CheckReports {
        let mut not_checked = Vec::new();
        if pool.degraded {
            let away = pool.devices.iter().enumerate().filter(|(_, d)| !d.is_whole());
            let away = away.map(|(i, d)| match d.path.as_str() {
                "" => format!("device {i} {}", d.state_word()),
                path => format!("{path} {}", d.state_word()),
            });
            not_checked.push(format!(
                "degraded ({}): only what the other devices hold was checked",
                away.collect::<Vec<_>>().join(", ")
            ));
        }
        let other = cache_report.as_ref().filter(|r| is_other(r));
        match (other, &pool.cache) {
            (Some(r), Some(uuid)) => not_checked.push(format!(
                "the pool's cache {uuid} is not what {} holds, and was not checked; it may hold \
                 what was flushed and is not in the pool yet. Bring it back and name it with \
                 --cache PATH; if it is lost, --forget-cache goes on from the pool's older image",
                r.path
            )),
            (Some(r), None) => not_checked.push(format!(
                "{} is no cache of this pool, which has none: nothing of it was checked",
                r.path
            )),
            (None, _) => {}
        }
        if let (None, Some(uuid)) = (&cache_report, &pool.cache) {
            not_checked.push(format!(
                "the pool's cache, {uuid}, was not checked, nor what it alone holds: name it with \
                 --cache"
            ));
        }
        CheckReports { pool, cache_report, not_checked }
    }

    /// Checks both. `is_named`: the cache's place was named, and is not only the usual one.
    pub async fn of(
        rt: &Rt,
        files: Vec<DeviceFile>,
        cache: Option<CacheFile>,
        is_named: bool,
        options: &CheckOptions,
        shown: &mut ProgressLine,
    ) -> base::Result<CheckReports> {
        let mut show = |p: Progress| shown.show(&step(&p));
        let pool = pool_check::check(rt, files, options, &mut show).await?;
        let mut cache_report = match cache {
            Some(file) => {
                Some(cache_check::check(rt, &file, &pool.image, options, &mut show).await)
            }
            None => None,
        };
        let has_cache = pool.cache.is_some();
        if !is_named && cache_report.as_ref().is_some_and(|r| is_anothers(r, has_cache)) {
            cache_report = None;
        }
        Ok(CheckReports::new(pool, cache_report))
    }

    /// The counts of pool and cache: errors, and damaged copies of what has a good one.
    fn found(&self) -> (u64, u64) {
        let cache = self.cache_report.as_ref();
        let (errors, copies) = cache.map_or((0, 0), |r| (r.errors, r.damaged_copies));
        (self.pool.errors + errors, self.pool.damaged_copies + copies)
    }

    /// The exit status.
    pub fn exit_status(&self) -> u8 {
        match self.found() {
            (0, 0) if self.not_checked.is_empty() => 0,
            (0, 0) => PARTIAL,
            (0, _) => DAMAGED,
            _ => LOST,
        }
    }
}

/// A file of the usual name that is the cache of another pool is not what was asked about. Nor is
/// one that is none, where the pool has no cache.
pub fn is_anothers(r: &cache_check::CacheReport, has_cache: bool) -> bool {
    r.standing == PoolRelation::Foreign && (r.uuid.is_some() || !has_cache)
}

/// True if the file that was named is not the pool's cache, as far as is known.
fn is_other(r: &cache_check::CacheReport) -> bool {
    r.standing == PoolRelation::Foreign && r.is_clean()
}

/// The progress of a check.
pub fn step(p: &Progress) -> Step {
    Step {
        what: format!("{:?}", p.phase).to_lowercase(),
        done: p.done,
        total: p.total,
        unit: Unit::Share,
        ..Step::default()
    }
}

/// A number of something, in words.
pub fn counted(n: u64, what: &str) -> String {
    base::counted(n, what, &format!("{what}s"))
}

/// Everything that was found, for people.
pub fn text(checked: &CheckReports, next: &NextAction, look: &Look) -> String {
    found(checked) + &verdict(checked, next, look)
}

/// The text about what was looked at, and about each problem.
pub fn found(checked: &CheckReports) -> String {
    let mut out = of_pool(&checked.pool);
    out += &checked.cache_report.as_ref().map(of_cache).unwrap_or_default();
    checked.not_checked.iter().for_each(|what| out += &format!("{what}\n"));
    out
}

/// The verdict of a check, and what to do.
pub fn verdict(checked: &CheckReports, next: &NextAction, look: &Look) -> String {
    let restore = "restore what has no good copy from a backup (\"The pool cannot be served,\n  \
                   or is to be checked\" in docs/operations.md)";
    let whole = !checked.pool.degraded;
    let lacks_device = checked.pool.devices.iter().any(|d| d.path.is_empty() && !d.is_whole());
    let (tone, text) = match checked.found() {
        (0, 0) if checked.not_checked.is_empty() => (Tone::Good, "clean".to_owned()),
        (0, 0) => {
            let devices = "give all devices; one that was away gets what it lacks when the pool is \
                           served with it";
            let lacks_cache = checked.not_checked.len() > usize::from(!whole);
            let name = match (&checked.cache_report, &checked.pool.cache) {
                (None, _) => "name the cache, too",
                (Some(_), Some(_)) => "name the pool's own cache (--cache PATH)",
                (Some(_), None) => "leave --cache out",
            };
            let todo = [(!whole, devices), (lacks_cache, name)];
            let todo: Vec<_> = todo.into_iter().filter(|one| one.0).map(|one| one.1).collect();
            let todo = todo.join("; ");
            let text = format!("NOT ALL WAS CHECKED: what was is clean\n  to do: {todo}");
            (Tone::Warn, text)
        }
        (0, n) => {
            let todo = match next {
                _ if !whole => {
                    "serve the pool, which brings its devices up to date: forebay scrub start \
                     --wait heals\n  the rest"
                }
                NextAction::Repair => {
                    "forebay check --repair; or serve the pool: forebay scrub start --wait"
                }
                NextAction::MakeRepair => "forebay check --repair, without --dry-run",
                NextAction::Restore => "see what was not repaired, and why",
            };
            let what = "nothing is lost, a good copy of each is there";
            let text = format!("NOT CLEAN: damaged copies: {n}; {what}\n  to do: {todo}");
            (Tone::Warn, text)
        }
        (n, m) => {
            let todo = match next {
                _ if lacks_device => format!(
                    "give all devices of the pool: one that is away may have a good copy. Else \
                     {restore}"
                ),
                _ if !whole => format!(
                    "serve the pool, which brings its devices up to date: forebay scrub start \
                     --wait heals what it can;\n  {restore}"
                ),
                NextAction::Repair => format!(
                    "forebay check --repair --dry-run says what can be healed;\n  {restore}"
                ),
                NextAction::MakeRepair => {
                    format!("forebay check --repair heals what it can, as said above;\n  {restore}")
                }
                NextAction::Restore => restore.to_owned(),
            };
            (Tone::Bad, format!("NOT CLEAN: errors: {n}, damaged copies: {m}\n  to do: {todo}"))
        }
    };
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let rest = if rest.is_empty() { String::new() } else { format!("{rest}\n") };
    look.paint(tone, first) + "\n" + &rest
}

fn problems(problems: &[Problem], found: u64) -> String {
    let mut out = String::new();
    for p in problems {
        out += &format!("{p}\n");
    }
    let listed: u64 = problems.iter().map(|p| p.counted).sum();
    if found > listed {
        out += &format!("... and {} more\n", found - listed);
    }
    out
}

fn verified(data: bool, bytes: u64) -> String {
    match data {
        true => format!("; {} of data verified", human_bytes(bytes)),
        false => "; data not read (--data reads it)".to_owned(),
    }
}

fn of_pool(r: &Report) -> String {
    let mut out = problems(&r.problems, r.errors + r.damaged_copies + r.notes);
    let c = &r.counts;
    out += &format!(
        "pool {:?}: {}, {}, {}, {}, {}{}{}\n",
        r.pool,
        counted(c.volumes, "volume"),
        counted(c.groups, "block group"),
        counted(c.nodes, "tree node"),
        counted(c.extents, "extent"),
        counted(c.data_blocks, "data block"),
        verified(r.data, c.verified_bytes),
        if r.data { ", all copies counted" } else { "" },
    );
    out
}

fn of_cache(r: &cache_check::CacheReport) -> String {
    let mut out = problems(&r.problems, r.errors + r.damaged_copies + r.notes);
    if r.standing != PoolRelation::Attached {
        return out;
    }
    let c = &r.counts;
    out += &format!(
        "cache {}: {}, {}, {} since its checkpoint, {} ({} stale), {} ({} dirty){}\n",
        r.path,
        counted(c.buckets, "bucket"),
        counted(c.nodes, "tree node"),
        match c.journal_entries {
            1 => "1 journal entry".to_owned(),
            n => format!("{n} journal entries"),
        },
        counted(c.keys, "key"),
        c.stale_keys,
        counted(c.live_blocks, "data block"),
        c.dirty_blocks,
        verified(r.data, c.verified_bytes),
    );
    out
}

#[cfg(test)]
mod tests {
    use model::device::DeviceState;
    use offline::pool::check::DeviceReport;
    use offline::report::Findings;

    use super::*;

    const LOOK: Look = Look { columns: 80, colour: false };

    fn said(devices: &[(&str, DeviceState)]) -> String {
        let device = |(path, state): &(&str, DeviceState)| DeviceReport {
            path: (*path).into(),
            state: Some(*state),
            slots: Vec::new(),
        };
        let report = Report {
            pool: "p".into(),
            uuid: String::new(),
            generation: 1,
            sequence: 1,
            copies: 2,
            degraded: devices.iter().map(device).any(|d| !d.is_whole()),
            data: true,
            devices: devices.iter().map(device).collect(),
            findings: Findings {
                counts: pool_check::PoolCounts::default(),
                errors: 1,
                damaged_copies: 0,
                notes: 0,
                problems: Vec::new(),
            },
            cache: None,
            image: pool_check::Image::default(),
        };
        verdict(&CheckReports::new(report, None), &NextAction::Repair, &LOOK)
    }

    #[test]
    fn what_to_do_fits_what_is_there() {
        let missing = said(&[("/a", DeviceState::Online), ("", DeviceState::Missing)]);
        assert!(missing.contains("give all devices"), "{missing}");
        let behind = said(&[("/a", DeviceState::Online), ("/b", DeviceState::Behind)]);
        assert!(!behind.contains("give all") && behind.contains("serve the pool"), "{behind}");
        let whole = said(&[("/a", DeviceState::Online), ("/b", DeviceState::Online)]);
        assert!(whole.contains("forebay check --repair --dry-run"), "{whole}");
    }
}
