//! The problems of a server, and what to do: from the status to sentences for people.
//!
//! Each state has a page in docs/operations.md, which [`Problem::page`] names.

mod answers;
pub mod expiry;
pub mod moves;

use std::time::{Duration, UNIX_EPOCH};

use base::{counted, shell_word};
use model::Status;
use model::cache::{CacheState, CacheStatus, KeptStatus};
use model::device::{
    DeviceState, DeviceStatus, QueueStatus, SitsOutWhy, SpareStatus, SpareTaken, SparesStatus,
};
use model::health::{Problem, ProblemAction};
use model::scrub::PoolScrub;
use model::status::{CommitStatus, ConfigurationDrift, ConnectionKind, Crowd, PoolStatus};
use model::volume::VolumeOfStatus;

use crate::units::{human_bytes, human_seconds, utc};

/// A pool is nearly full from this share on.
const NEARLY_FULL: f64 = 0.9;

/// A device that does not answer a request for so long is told of, in milliseconds: others than
/// broken ones are done by then.
const SILENT_MS: f64 = 10_000.0;

/// Blocks of a device that were not what was written are worth a line from this number on.
const MUCH_ROT: u64 = 10;

/// All that is wrong, the worst first.
pub fn problems(status: &Status) -> Vec<Problem> {
    let mut all = Vec::new();
    let pool = &status.pool;
    of_pool(pool, &status.commit, &mut all);
    if let Some(cache) = &status.cache {
        of_cache(cache, &mut all);
    }
    let ends = status.tls.as_ref().map(expiry::problems).into_iter().flatten();
    all.extend(ends.map(|(what, todo)| problem("tls", what, todo)));
    for device in &pool.devices {
        let queue = device.queue.as_ref();
        let found = [
            of_device(device, &pool.moves.leaving),
            queue.and_then(|queue| of_silence(&device.path, queue, true)),
            of_writes(device),
            of_source(device),
            of_rot(device),
        ];
        let id = || Some(device.id.clone());
        all.extend(found.into_iter().flatten().map(|one| Problem { device: id(), ..one }));
    }
    all.extend(pool.spares.taken.iter().map(|one| of_taken(one, &pool.spares)));
    all.extend(status.server.crowds.iter().map(of_crowd));
    all.extend(status.drift.as_ref().map(of_drift));
    all.extend(moves::problem(&pool.moves).map(|(page, what, todo)| {
        let action = (page == "moves-paused").then_some(ProblemAction::MovesResume);
        Problem { action, ..problem(page, what, todo) }
    }));
    all
}

fn problem(page: &'static str, what: impl Into<String>, todo: impl Into<String>) -> Problem {
    let (what, todo) = (what.into(), todo.into());
    Problem { page: page.into(), what, todo, device: None, action: None }
}

/// The problem, with the action that ends it.
fn with_action(action: ProblemAction, problem: Problem) -> Problem {
    Problem { action: Some(action), ..problem }
}

/// There was no room for a client.
fn of_crowd(crowd: &Crowd) -> Problem {
    let over = match crowd.kind {
        ConnectionKind::NbdUnix => "NBD clients over unix sockets",
        ConnectionKind::NbdTcp => "NBD clients over TCP",
        ConnectionKind::Http => "HTTP clients",
    };
    let what = match crowd.refused {
        true => {
            format!("{over} are refused, as all places are taken: the last from {}", crowd.from)
        }
        false => format!(
            "there are many {over} that say nothing, and they close each other: the last from {}",
            crowd.from
        ),
    };
    let todo = match (crowd.refused, crowd.kind) {
        (true, ConnectionKind::Http) => "close pages and programs that are not needed",
        (true, _) => {
            "forebay clients says who is there; nbd.max_connections, with a restart, gives more \
             places"
        }
        (false, _) => "see who that is; others are served meanwhile",
    };
    problem("clients-crowd", what, todo)
}

/// The configuration names other devices, or another cache, than the pool has.
fn of_drift(drift: &ConfigurationDrift) -> Problem {
    let mut parts = Vec::new();
    let all = |paths: &[String]| paths.join(", ");
    if !drift.unnamed_devices.is_empty() {
        parts.push(format!("it does not name {}", all(&drift.unnamed_devices)));
    }
    if !drift.needless_devices.is_empty() {
        let paths = all(&drift.needless_devices);
        parts.push(format!("it names {paths}, where no device of the pool is"));
    }
    match (&drift.unnamed_cache, &drift.needless_cache) {
        (Some(is), Some(named)) => {
            parts.push(format!("it names {named} for the cache, which is {is}"));
        }
        (Some(is), None) => parts.push(format!("it does not name the cache, {is}")),
        (None, Some(named)) => {
            parts.push(format!("it names the cache {named}, and the pool has none"));
        }
        (None, None) => {}
    }
    let what = format!("the configuration differs from the pool: {}", parts.join("; "));
    problem("configuration-differs", what, drift.todo.clone())
}

const TWO_WRITERS: &str = "stop this server and the other one; see that one machine alone, by one \
    name alone, can reach each disk; then forebay check --data, and start one";

fn of_pool(pool: &PoolStatus, commit: &CommitStatus, all: &mut Vec<Problem>) {
    if let Some(trouble) = &pool.trouble {
        let what = format!("the pool takes no more writes, reads go on: {trouble}");
        let (page, todo) = match pool.other_writer {
            true => ("two-writers", TWO_WRITERS),
            false => ("pool-failed", "see to the device, then restart forebay"),
        };
        all.push(problem(page, what, todo));
    } else if commit.failed > 0 {
        let what = match commit.failed {
            1 => "a commit of the pool has failed".to_owned(),
            n => format!("{n} commits of the pool have failed"),
        };
        all.push(problem("commits-fail", what, "see the log for why; each was tried again"));
    }
    all.extend(answers::of_pool(pool).map(|(what, todo)| at_risk(what, todo)));
    let scrub = &pool.scrub;
    all.extend(of_lost(scrub));
    if scrub.incomplete {
        let what = match scrub.passed_over {
            0 => "an earlier scrub passed over parts of the pool".to_owned(),
            1 => "a scrub passed over a part of the pool".to_owned(),
            n => format!("a scrub passed over {n} parts of the pool"),
        };
        let what = what + ": what says where their blocks are has no good copy";
        let todo = "the log names them; stop the server and see what is damaged by forebay check; \
                    the line goes when forebay scrub start --wait passes over nothing";
        all.push(problem("scrub-incomplete", what, todo));
    }
    if let Some(seconds) = scrub.paused_long_s {
        let what = format!(
            "a scrub has been paused for {}; none begins by itself meanwhile",
            human_seconds(seconds)
        );
        let paused = problem("scrub-paused", what, "forebay scrub resume, or forebay scrub cancel");
        all.push(with_action(ProblemAction::ScrubResume, paused));
    }
    let (capacity, left) = (pool.capacity_bytes, pool.available_bytes);
    let taken = pool.used_bytes + pool.reserved_bytes;
    let share = taken as f64 / capacity.max(1) as f64;
    // Metadata keeps its share: of a small pool that is much of the rest.
    let share_of_data = taken as f64 / (taken + left).max(1) as f64;
    if capacity > 0 && (share >= NEARLY_FULL || share_of_data >= NEARLY_FULL) {
        let what = format!(
            "the pool is {:.0} % full, {} are left for data",
            share * 100.0,
            human_bytes(left)
        );
        let todo = match pool.capacity_limit_bytes {
            most if most > 0 && capacity >= most => format!(
                "delete or trim volumes; devices give no more room, as the pool was made for {} at \
                 most: a new pool can have more",
                human_bytes(most)
            ),
            _ => "add a device (forebay device add), or delete or trim volumes".into(),
        };
        all.push(problem("pool-full", what, todo));
    }
}

fn at_risk(what: String, todo: String) -> Problem {
    problem("answers-at-risk", what, todo)
}

/// Blocks without a good copy, those too that the list has no room for.
fn of_lost(scrub: &PoolScrub) -> Option<Problem> {
    let (listed, more) = (!scrub.lost_blocks.is_empty(), scrub.more_lost);
    let mut todo = String::new();
    if listed {
        todo += "see which by forebay scrub status; restore them from a backup, or write them anew";
    }
    if listed && more {
        todo += "; and more: run a scrub when these are mended (forebay scrub start --wait)";
    } else if more {
        todo += "more are lost than were listed: forebay scrub start --wait finds which";
    }
    let what = "blocks of volumes have no good copy";
    (listed || more).then(|| problem("blocks-lost", what, todo))
}

/// Returns what is wrong with a volume, and what to do.
pub fn of_volume(volume: &VolumeOfStatus, status: &Status) -> Option<&'static str> {
    let name = &volume.volume.name;
    if status.pool.scrub.lost_blocks.iter().any(|lost| lost.volume == *name) {
        return Some("has blocks without a good copy: forebay scrub status names them");
    }
    let cache = status.cache.as_ref()?;
    if cache.kept.iter().any(|kept| kept.volume == *name) {
        return Some("is not written back: its mapping cannot be read, see forebay cache status");
    }
    if cache.bad_blocks.iter().any(|(id, _)| *id == volume.id) {
        return Some("has blocks that were lost in the cache: forebay cache status names them");
    }
    None
}

/// `leaving`: the devices that leave.
fn of_device(device: &DeviceStatus, leaving: &[String]) -> Option<Problem> {
    let name = device.name();
    let leaves = leaving.iter().any(|one| one == name);
    let (page, what, todo) = out_of_use(device.state, device.tried_again)?;
    let (more, todo) = match leaves {
        true => ("; it leaves the pool when the others have what it held", LEAVES),
        false => ("", todo),
    };
    let spare = device.spare.as_ref().map(of_spare).unwrap_or_default();
    let last = match (&device.missing_because, &device.last_path) {
        (Some(why), _) => format!(": {why}"),
        (None, Some(path)) => format!(" (it was last at {path})"),
        (None, None) => String::new(),
    };
    let todo = match device.missing_because {
        Some(_) if !leaves => MENDED,
        _ => todo,
    };
    let what = format!("{name} {what}{last}{more}{spare}");
    let told = problem(page, what, todo.replace("NAME", &shell_word(name)));
    Some(match !leaves && can_be_tried(device) {
        true => with_action(ProblemAction::DeviceOnline, told),
        false => told,
    })
}

/// Whether a device that is out of use can be taken into use at its place. One that is missing has
/// to be brought back first, and one that is brought up to date by itself needs nothing.
fn can_be_tried(device: &DeviceStatus) -> bool {
    match device.state {
        DeviceState::Offline | DeviceState::Flapping | DeviceState::Failed => true,
        DeviceState::Stale => !device.tried_again,
        _ => false,
    }
}

const MENDED: &str =
    "mend that, then forebay device online PATH; or forebay device replace NAME NEW";

const LEAVES: &str = "wait, forebay device list shows how far that is; forebay device cancel lets \
                      it stay, then it can be replaced or taken into use again";

/// The page of a state, what it is, and what to do.
fn out_of_use(
    state: DeviceState,
    tried_again: bool,
) -> Option<(&'static str, &'static str, &'static str)> {
    let one = match (state, tried_again) {
        (DeviceState::Missing, _) => (
            "device-missing",
            "is missing",
            "plug it in, then forebay device online PATH; or forebay device replace NAME NEW",
        ),
        (DeviceState::Failed, true) => (
            "device-failed",
            "has failed and is out of use; it is tried again by itself within five minutes",
            "see to it; forebay device online NAME tries it at once; if it stays out: forebay \
             device replace NAME NEW",
        ),
        (DeviceState::Failed, false) => (
            "device-failed",
            "has failed and is out of use; it is not tried again by itself",
            "see to it, then forebay device online NAME; or forebay device replace NAME NEW",
        ),
        (DeviceState::Flapping, _) => (
            "device-flapping",
            "has failed again and again, and is left out",
            "forebay device replace NAME NEW; or see to it, then forebay device online NAME",
        ),
        (DeviceState::Stale, true) => (
            "device-stale",
            "was away while the pool was written; it is brought up to date by itself",
            "wait; if it stays out, the log says why",
        ),
        (DeviceState::Stale, false) => (
            "device-stale",
            "was away while the pool was written; it is not tried again by itself",
            "see in the log why, then forebay device online NAME; or forebay device replace NAME \
             NEW",
        ),
        (DeviceState::Offline, _) => (
            "device-offline",
            "was taken out of use",
            "forebay device online NAME, when it may be used again",
        ),
        (
            DeviceState::Online
            | DeviceState::Spare
            | DeviceState::Behind
            | DeviceState::Joining
            | DeviceState::Leaving,
            _,
        ) => return None,
    };
    Some(one)
}

/// Returns the words about a spare for a device that is out of use.
fn of_spare(spare: &SpareStatus) -> String {
    match &spare.path {
        None => "; no spare in use has room for what it holds".into(),
        Some(path) => {
            let time = human_seconds(spare.in_s);
            format!("; the spare {path} takes its place in {time}")
        }
    }
}

/// A spare has taken the place of a device.
fn of_taken(taken: &SpareTaken, spares: &SparesStatus) -> Problem {
    let when = match taken.at {
        0 => String::new(),
        at => format!(" on {}", utc(UNIX_EPOCH + Duration::from_secs(at.into()))),
    };
    let left = match spares.left {
        0 => "no spare is left".to_owned(),
        n => counted(n, "spare is left", "spares are left"),
    };
    let SpareTaken { spare, device, .. } = taken;
    let what = format!("the spare {spare} took the place of {device}{when}; {left}");
    let todo = "see to the old device; add another spare (forebay device add --spare PATH), and \
                the line goes, as it does with a restart";
    problem("spare-taken", what, todo)
}

/// Whether the device with this queue does not answer.
pub fn is_silent(queue: &QueueStatus) -> bool {
    queue.silent_ms >= SILENT_MS
}

/// `in_pool`: others may have copies of what it has.
fn of_silence(name: &str, queue: &QueueStatus, in_pool: bool) -> Option<Problem> {
    if !is_silent(queue) {
        return None;
    }
    let what = format!(
        "{name} has not answered for {}; what needs it waits",
        human_seconds((queue.silent_ms / 1e3) as u64)
    );
    let mut todo =
        "see to it, its cable and its power, or the server that has it; what waits goes \
                    on when it answers; forebay explain says what waits"
            .to_owned();
    if in_pool {
        let offline = "; where other devices have all copies: forebay device offline ";
        todo += &format!("{offline}{} lets what comes later go on without it", shell_word(name));
    }
    Some(problem("device-silent", what, todo))
}

fn of_writes(device: &DeviceStatus) -> Option<Problem> {
    let (why, name) = (device.write_trouble.as_ref()?, &device.path);
    let what = format!(
        "writes to {name} fail: {why}; clients get errors, unless a cache takes their writes"
    );
    let todo = format!(
        "free some space where it is, or see to the device; where other devices have all copies: \
         forebay device offline {}; the line goes when writes succeed again",
        shell_word(name)
    );
    Some(problem("writes-fail", what, todo))
}

fn of_source(device: &DeviceStatus) -> Option<Problem> {
    let (out, name) = (device.sits_out?, &device.path);
    let left = human_seconds(out.seconds_left);
    let todo = format!(
        "nothing at once, it is read again in {left}; if it comes again: forebay device replace \
         {} NEW",
        shell_word(name)
    );
    let (page, why) = match out.why {
        SitsOutWhy::Slow => ("device-slow", "reads slowly beside the others"),
        SitsOutWhy::Errs => ("device-errs", "has many blocks that cannot be read"),
    };
    let what = format!("{name} {why}: it is read only where no other device has a good copy");
    Some(problem(page, what, todo))
}

fn of_rot(device: &DeviceStatus) -> Option<Problem> {
    let rot = device.rot.filter(|rot| rot.blocks >= MUCH_ROT)?;
    let (blocks, name) = (rot.blocks, &device.path);
    let since = match rot.since_s {
        0 => "just now".to_owned(),
        seconds => format!("in the last {}", human_seconds(seconds)),
    };
    let what = format!("{name}: {blocks} blocks were not what was written, {since}");
    let todo = format!(
        "forebay scrub start --wait mends what can be; the line goes when a scrub finds none; if \
         it comes again, see to cables and memory, or: forebay device replace {} NEW",
        shell_word(name)
    );
    Some(with_action(ProblemAction::ScrubStart, problem("device-rots", what, todo)))
}

fn of_cache(cache: &CacheStatus, all: &mut Vec<Problem>) {
    let path = &cache.path;
    let why = cache.error.as_ref().map(|e| format!(": {e}")).unwrap_or_default();
    match cache.state {
        CacheState::Failed => all.push(problem(
            "cache-failed",
            format!("the cache {path} has failed with writes in it that are not in the pool{why}"),
            "see to the device, then restart forebay: what was flushed is in the cache; if the \
             device is gone for good: forebay serve --forget-cache",
        )),
        CacheState::Aside => all.push(problem(
            "cache-aside",
            format!("the cache {path} is out of use; the pool has everything and goes on{why}"),
            "see to the device, then forebay cache attach, or go on without",
        )),
        CacheState::Serving if cache.error.is_some() => all.push(problem(
            "cache-without-space",
            format!("the file system under the cache {path} is full: writes get errors"),
            "free space there; what clients write is taken again then",
        )),
        CacheState::Serving => {}
    }
    all.extend(answers::of_cache(cache).map(|(what, todo)| at_risk(what, todo)));
    all.extend(of_silence(path, &cache.queue, false));
    if !cache.bad_blocks.is_empty() {
        let what = format!("blocks in the cache {path} were damaged before they came to the pool");
        let todo = "forebay status names them; restore them from a backup, or write them anew, and \
                    replace the cache's device";
        all.push(problem("cache-blocks-lost", what, todo));
    }
    all.extend(cache.kept.iter().map(of_kept));
    let w = &cache.writeback;
    if let Some(error) = &w.error {
        let what = format!("write-back fails: {error}");
        let todo = "see to what it says; it is tried again by itself";
        all.push(problem("writeback-fails", what, todo));
    }
    let (lag, most) = (w.lag_seconds, w.max_lag_seconds);
    if most > 0.0 && lag > 2.0 * most {
        let what = format!(
            "the pool's image is {} old, it should be {} at most",
            human_seconds(lag as u64),
            human_seconds(most as u64)
        );
        let todo = "nothing if the load is a burst; else the pool is too slow for what is written: \
                    see forebay explain";
        all.push(problem("writeback-behind", what, todo));
    }
}

/// Blocks of a volume cannot come to the pool.
fn of_kept(kept: &KeptStatus) -> Problem {
    let name = &kept.volume;
    let what = format!(
        "{} of volume {name} in the cache cannot come to the pool: {}",
        counted(kept.blocks, "block", "blocks"),
        kept.why
    );
    let todo = format!(
        "see to the devices; if what it says is lost for good: restore the volume from a backup \
         under another name, then forebay volume delete {}",
        shell_word(name)
    );
    problem("volume-unreachable", what, todo)
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
