//! What a check of a pool and its cache has found, for people and programs.

use cache::CacheFile;
use offline::cache::check::{self as cache_check, Standing};
use offline::pool::check::{self as pool_check, Report};
use offline::{CheckOptions, Problem, Progress};
use pool::DeviceFile;
use rt::Rt;
use serde::Serialize;

use crate::error::{DAMAGED, LOST};
use crate::terminal::progress::{Progress as Shown, Step, Unit};
use crate::terminal::{Look, Tone};
use crate::units::human_bytes;

/// The reports.
#[derive(Serialize)]
pub struct Checked {
    /// Of the pool.
    #[serde(flatten)]
    pub pool: Report,
    /// Of its cache, if there is one.
    pub cache_report: Option<cache_check::Report>,
}

impl Checked {
    /// Checks both. `is_named`: the cache's place was named, and is not only the usual one.
    pub async fn of(
        rt: &Rt,
        files: Vec<DeviceFile>,
        (cache, is_named): (Option<CacheFile>, bool),
        options: &CheckOptions,
        shown: &mut Shown,
    ) -> base::Result<Checked> {
        let mut show = |p: Progress| shown.show(&step(&p));
        let pool = pool_check::check(rt, files, options, &mut show).await?;
        let mut cache_report = match cache {
            Some(file) => {
                Some(cache_check::check(rt, &file, &pool.image, options, &mut show).await)
            }
            None => None,
        };
        if !is_named && cache_report.as_ref().is_some_and(is_anothers) {
            cache_report = None;
        }
        Ok(Checked { pool, cache_report })
    }

    /// What was counted in pool and cache: errors, and damaged copies of what has a good one.
    fn found(&self) -> (u64, u64) {
        let cache = self.cache_report.as_ref();
        let (errors, copies) = cache.map_or((0, 0), |r| (r.errors, r.damaged_copies));
        (self.pool.errors + errors, self.pool.damaged_copies + copies)
    }

    /// The exit status.
    pub fn exit_status(&self) -> u8 {
        match self.found() {
            (0, 0) => 0,
            (0, _) => DAMAGED,
            _ => LOST,
        }
    }
}

/// A file of the usual name that is the cache of another pool is not what was asked about.
pub fn is_anothers(r: &cache_check::Report) -> bool {
    r.standing == Standing::Foreign && r.uuid.is_some()
}

/// How far a check is.
pub fn step(p: &Progress) -> Step {
    Step {
        what: format!("{:?}", p.phase).to_lowercase(),
        done: p.done,
        total: p.total,
        unit: Unit::Share,
        ..Step::default()
    }
}

/// So many of something.
pub fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Everything that was found, for people.
pub fn text(checked: &Checked, look: &Look) -> String {
    found(checked) + &verdict(checked, look)
}

/// What was looked at, and each problem.
pub fn found(checked: &Checked) -> String {
    let mut out = of_pool(&checked.pool);
    match (&checked.cache_report, &checked.pool.cache) {
        (Some(r), _) => out += &of_cache(r),
        (None, Some(uuid)) => {
            out += &format!(
                "the pool's cache, {uuid}, was not checked, nor what it alone holds: name it with \
                 --cache\n"
            );
        }
        (None, None) => {}
    }
    out
}

/// What it comes to.
pub fn verdict(checked: &Checked, look: &Look) -> String {
    let (tone, text) = match checked.found() {
        (0, 0) => (Tone::Good, "clean".to_owned()),
        (0, n) => (
            Tone::Warn,
            format!(
                "NOT CLEAN: damaged copies: {n}; nothing is lost, a good copy of each is there\n  \
                 to do: forebay check --repair; or serve the pool: forebay scrub start --wait"
            ),
        ),
        (n, m) => (
            Tone::Bad,
            format!(
                "NOT CLEAN: errors: {n}, damaged copies: {m}\n  to do: forebay check --repair \
                 --dry-run says what can be healed; restore the rest from a\n  backup (\"The pool \
                 cannot be served, or is to be checked\" in docs/operations.md)"
            ),
        ),
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
    let listed = problems.len() as u64;
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
    if r.degraded {
        let away: Vec<String> = r
            .devices
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
        out += &format!(
            "degraded ({}): only what the other devices hold was checked\n",
            away.join(", ")
        );
    }
    out
}

fn of_cache(r: &cache_check::Report) -> String {
    let mut out = problems(&r.problems, r.errors + r.damaged_copies + r.notes);
    if r.standing != Standing::Attached {
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
