//! The changes between two looks at a server: its statuses and its jobs are compared.
//!
//! A thing that has come and gone between two looks is not seen. Nothing is asked of the engine for
//! the comparison.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use model::Status;
use model::change::{Change, Fact, Subject};
use model::job::Job;

/// The time of now, in seconds of Unix time.
pub fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as f64 / 1e3
}

/// The subject, and what tells one thing from another there.
type Key = (Subject, String);

/// All that is compared: a name for people, and a value.
#[derive(Default)]
struct Facts(BTreeMap<Key, (String, Fact)>);

/// The things that are compared, as they were at one moment.
pub struct Observation<'a> {
    pub status: &'a Status,
    /// The list of jobs.
    pub jobs: &'a [Job],
}

fn word(word: &str) -> Fact {
    Fact::Text(word.to_owned())
}

impl Facts {
    fn of(seen: Observation<'_>) -> Facts {
        let Observation { status, jobs } = seen;
        let mut all = Facts::default();
        for problem in &status.health {
            // Several devices may have the same problem: the first is told.
            all.add(Subject::Problem, &problem.page, "", word(&problem.what));
        }
        let pool = &status.pool;
        all.add(Subject::Pool, "", &pool.name, word(pool.state.word()));
        for device in &pool.devices {
            // A device that is missing has no path.
            all.add(Subject::Device, &device.id, &device.path, word(device.state.word()));
        }
        if let Some(cache) = &status.cache {
            all.add(Subject::Cache, &cache.path, "", word(cache.state.word()));
        }
        all.add(Subject::Scrub, "", &pool.name, word(pool.scrub.state.word()));
        all.add(Subject::Moves, "", &pool.name, word(pool.moves.state.word()));
        for job in jobs {
            all.add(Subject::Job, &job.job.to_string(), "", word(job.state.word()));
        }
        for of in &status.volumes {
            let (id, volume) = (of.id.to_string(), &of.volume);
            all.add(Subject::Volume, &id, &volume.name, Fact::Number(volume.size_bytes));
            let mode = word(volume.cache_mode.word());
            all.add(Subject::VolumeMode, &id, &volume.name, mode);
            let read_only = Fact::Flag(volume.read_only);
            all.add(Subject::VolumeReadOnly, &id, &volume.name, read_only);
        }
        all
    }

    fn add(&mut self, subject: Subject, key: &str, name: &str, value: Fact) {
        let name = if name.is_empty() { key } else { name };
        self.0.entry((subject, key.to_owned())).or_insert((name.to_owned(), value));
    }
}

/// Changes between two looks. `at` is the time of the second.
pub fn changes(before: Observation<'_>, now: Observation<'_>, at: f64) -> Vec<Change> {
    let (before, now) = (Facts::of(before), Facts::of(now));
    let mut keys: Vec<&Key> = before.0.keys().chain(now.0.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let one = |key: &Key| {
        let (old, new) = (before.0.get(key), now.0.get(key));
        let told = match (old, new, key.0) {
            // The text of a problem may have numbers that grow.
            (Some(_), Some(_), Subject::Problem) => false,
            (Some(old), Some(new), _) => old.1 != new.1,
            // An old job is forgotten.
            (Some(_), None, Subject::Job) => false,
            // The volume itself is told of.
            (_, _, Subject::VolumeMode | Subject::VolumeReadOnly) => false,
            (Some(_), None, _) | (None, Some(_), _) => true,
            (None, None, _) => false,
        };
        // The name of what is missing is its id: the one that it had, or has again, says more.
        let named = [new, old].into_iter().flatten().max_by_key(|fact| fact.0 != key.1)?;
        let value = |fact: Option<&(String, Fact)>| fact.map(|f| f.1.clone());
        told.then(|| Change {
            what: key.0,
            name: named.0.clone(),
            from: value(old),
            to: value(new),
            at,
        })
    };
    keys.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::device::{DeviceState, DeviceStatus};
    use model::health::Problem;
    use model::job::JobState;
    use model::moves::MovesState;
    use model::scrub::ScrubState;
    use model::status::PoolState;
    use model::volume::{CacheMode, Volume, VolumeOfStatus};

    use super::*;

    fn problem(page: &'static str, what: &str) -> Problem {
        Problem { page: page.into(), what: what.to_owned(), ..Problem::default() }
    }

    fn device(id: &str, path: &str, state: DeviceState) -> DeviceStatus {
        DeviceStatus { id: id.into(), path: path.into(), state, ..DeviceStatus::default() }
    }

    fn cache(path: &str) -> Option<CacheStatus> {
        Some(CacheStatus { path: path.into(), ..CacheStatus::default() })
    }

    fn job(job: u64, state: JobState) -> Job {
        Job { job, state, ..Job::default() }
    }

    fn volume(id: u32, name: &str, size_bytes: u64, cache_mode: CacheMode) -> VolumeOfStatus {
        let volume = Volume { name: name.into(), size_bytes, cache_mode, ..Volume::default() };
        VolumeOfStatus { volume, id, requests: None }
    }

    fn status() -> Status {
        let mut status = Status {
            health: vec![problem("pool-full", "it is 91 % full")],
            cache: cache("/c"),
            volumes: vec![volume(1, "v", 10, CacheMode::None), volume(2, "w", 20, CacheMode::None)],
            ..Status::default()
        };
        status.pool.name = "tank".into();
        status.pool.devices =
            vec![device("u1", "/a", DeviceState::Online), device("u2", "/b", DeviceState::Online)];
        status
    }

    fn seen<'a>(status: &'a Status, jobs: &'a [Job]) -> Observation<'a> {
        Observation { status, jobs }
    }

    fn told(before: Observation<'_>, now: Observation<'_>) -> Vec<String> {
        let shown = |fact: Option<Fact>| serde_json::to_string(&fact).unwrap();
        let line = |one: Change| {
            assert_eq!(one.at, 7.5);
            format!("{} {}: {} {}", one.what, one.name, shown(one.from), shown(one.to))
        };
        changes(before, now, 7.5).into_iter().map(line).collect()
    }

    #[test]
    fn all_that_changes_is_told() {
        let (before, mut now) = (status(), status());
        let jobs = [job(1, JobState::Running), job(2, JobState::Done)];
        now.health = vec![
            problem("device-missing", "/b is missing"),
            problem("device-missing", "/d is missing"),
        ];
        now.pool.state = PoolState::Degraded;
        now.pool.devices = vec![
            device("u1", "/a", DeviceState::Online),
            device("u2", "", DeviceState::Missing),
            device("u3", "/d", DeviceState::Online),
        ];
        now.cache = cache("/e");
        now.pool.scrub.state = ScrubState::Running;
        now.pool.moves.state = MovesState::Running;
        now.volumes =
            vec![volume(1, "v", 11, CacheMode::WriteBack), volume(3, "w", 30, CacheMode::None)];
        now.volumes[0].volume.read_only = true;
        let later = [job(1, JobState::Done), job(3, JobState::Failed)];
        assert_eq!(
            told(seen(&before, &jobs), seen(&now, &later)),
            [
                "problem device-missing: null \"/b is missing\"",
                "problem pool-full: \"it is 91 % full\" null",
                "pool tank: \"online\" \"degraded\"",
                "device /b: \"online\" \"missing\"",
                "device /d: null \"online\"",
                "cache /c: \"serving\" null",
                "cache /e: null \"serving\"",
                "scrub tank: \"never\" \"running\"",
                "moves tank: \"none\" \"running\"",
                "job 1: \"running\" \"done\"",
                "job 3: null \"failed\"",
                "volume v: 10 11",
                "volume w: 20 null",
                "volume w: null 30",
                "volume-mode v: \"none\" \"writeback\"",
                "volume-read-only v: false true",
            ]
        );
        // The name that it has again.
        assert!(
            told(seen(&now, &jobs), seen(&before, &jobs))
                .contains(&"device /b: \"missing\" \"online\"".to_owned())
        );
    }

    #[test]
    fn what_only_counts_is_no_change() {
        let (before, mut now) = (status(), status());
        now.health[0].what = "it is 92 % full".into();
        now.cache.as_mut().unwrap().hits = 99;
        now.pool.moves.rate = 5;
        assert!(told(seen(&before, &[]), seen(&now, &[])).is_empty());
    }
}
