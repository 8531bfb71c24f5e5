//! A server's status as numbers.

use std::time::Duration;

use model::Status;
use model::cache::CacheStatus;
use model::device::{DeviceState, DeviceStatus, QueueStatus};
use model::io::{IoOfClass, RequestsByKind};
use model::volume::{Latencies, RequestsOfVolume};

use super::counts::Counts;
use crate::serve::health::{is_silent, of_volume};

/// Counters by what was asked for.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    pub read: Counts,
    pub write: Counts,
    /// All else: flushes, discards, zeroes.
    pub other: Counts,
}

impl Ops {
    fn of(read: &Latencies, write: &Latencies, others: &[Latencies]) -> Ops {
        let other = others.iter().fold(Counts::default(), |sum, one| sum.and(&Counts::of(one)));
        Ops { read: Counts::of(read), write: Counts::of(write), other }
    }

    /// Requests of all clients.
    fn of_requests(of: &RequestsByKind) -> Ops {
        let others = [&of.flush, &of.discard, &of.zero].map(|kind| kind.latencies());
        Ops::of(&of.read.latencies(), &of.write.latencies(), &others)
    }

    /// Requests of the clients of a volume.
    fn of_volume(of: &RequestsOfVolume) -> Ops {
        let others = [&of.flush, &of.discard, &of.zero].map(|kind| kind.latencies());
        Ops::of(&of.read.latencies(), &of.write.latencies(), &others)
    }

    /// I/O of a class.
    fn of_class(of: &IoOfClass) -> Ops {
        Ops::of(&of.read.latencies(), &of.write.latencies(), &[of.flush.latencies()])
    }

    /// Counters of what came after `before`.
    pub fn since(&self, before: &Ops) -> Ops {
        Ops {
            read: self.read.since(&before.read),
            write: self.write.since(&before.write),
            other: self.other.since(&before.other),
        }
    }

    /// The sum of all kinds.
    pub fn all(&self) -> Counts {
        self.read.and(&self.write).and(&self.other)
    }
}

/// The status of a server at a moment, as numbers.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The time of the sample, by the clock of the command.
    pub at: Duration,
    /// The whole status: for what is no counter.
    pub status: Status,
    /// Requests of all clients.
    pub requests: Ops,
    /// Requests by volume, in the server's order: its name, and whether it has a problem.
    pub volumes: Vec<(String, bool, Ops)>,
    /// I/O by device and class.
    pub devices: Vec<DeviceSample>,
    /// The bounds of latencies that the server counts by, in microseconds.
    pub bounds_us: Vec<f64>,
}

/// A device of the pool, or the cache's.
#[derive(Clone, Debug)]
pub struct DeviceSample {
    /// The path of the device; its id if it has no path.
    pub path: String,
    /// The state of the device; absent for the cache's device.
    pub state: Option<DeviceState>,
    /// I/O by class.
    pub classes: Vec<(&'static str, Ops)>,
    /// True if the device has requests that have not ended.
    pub has_requests: bool,
    /// True if the device has not answered one of its requests for long.
    pub silent: bool,
}

impl Sample {
    /// A sample of a status that was answered at this time.
    pub fn of(status: Status, at: Duration) -> Sample {
        let volumes = status.volumes.iter().map(|v| {
            let ops = v.requests.as_ref().map(Ops::of_volume).unwrap_or_default();
            (v.volume.name.clone(), of_volume(v, &status).is_some(), ops)
        });
        let devices = status.pool.devices.iter().map(DeviceSample::of_pool);
        let devices = devices.chain(status.cache.as_ref().map(DeviceSample::of_cache));
        Sample {
            at,
            requests: Ops::of_requests(&status.requests),
            volumes: volumes.collect(),
            devices: devices.collect(),
            bounds_us: status.latency_bounds_us.iter().map(|bound| *bound as f64).collect(),
            status,
        }
    }
}

impl DeviceSample {
    fn of_pool(of: &DeviceStatus) -> DeviceSample {
        DeviceSample::of(of.name(), Some(of.state), of.queue.as_ref())
    }

    fn of_cache(of: &CacheStatus) -> DeviceSample {
        DeviceSample::of(&of.path, None, Some(&of.queue))
    }

    fn of(path: &str, state: Option<DeviceState>, queue: Option<&QueueStatus>) -> DeviceSample {
        let mut classes: Vec<(&'static str, Ops)> = queue
            .into_iter()
            .flat_map(|queue| queue.io.by_name())
            .map(|(class, ops)| (class, Ops::of_class(ops)))
            .collect();
        classes.sort_by_key(|(class, _)| *class);
        DeviceSample {
            path: path.to_owned(),
            state,
            classes,
            has_requests: queue.is_some_and(|queue| queue.silent_ms > 0.0),
            silent: queue.is_some_and(is_silent),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::io::{IoByClass, IoOfKind};
    use model::scrub::{LostBlocks, PoolScrub};
    use model::status::PoolStatus;
    use model::volume::{Volume, VolumeIo, VolumeOfStatus};

    use super::*;

    fn kind(count: u64) -> IoOfKind {
        IoOfKind { count, ..IoOfKind::default() }
    }

    fn volume(name: &str, requests: Option<RequestsOfVolume>) -> VolumeOfStatus {
        let volume = Volume { name: name.into(), ..Volume::default() };
        VolumeOfStatus { volume, requests, ..VolumeOfStatus::default() }
    }

    #[test]
    fn a_status_is_read() {
        let io = |count| VolumeIo { count, ..VolumeIo::default() };
        let of_volume =
            RequestsOfVolume { read: io(3), flush: io(4), zero: io(5), ..Default::default() };
        let missing =
            DeviceStatus { id: "u".into(), state: DeviceState::Missing, ..DeviceStatus::default() };
        let lost = LostBlocks { volume: "b".into(), ..LostBlocks::default() };
        let scrub = PoolScrub { lost_blocks: vec![lost], ..PoolScrub::default() };
        let commit = IoOfClass { read: kind(3), flush: kind(9), ..IoOfClass::default() };
        let queue = QueueStatus {
            io: IoByClass { commit, ..IoByClass::default() },
            ..QueueStatus::default()
        };
        let status = Status {
            latency_bounds_us: vec![10, 25],
            requests: RequestsByKind {
                read: kind(3),
                flush: kind(4),
                zero: kind(5),
                ..RequestsByKind::default()
            },
            volumes: vec![volume("a", Some(of_volume)), volume("b", None)],
            pool: PoolStatus { devices: vec![missing], scrub, ..PoolStatus::default() },
            cache: Some(CacheStatus { path: "/c".into(), queue, ..CacheStatus::default() }),
            ..Status::default()
        };
        let sample = Sample::of(status, Duration::from_secs(1));
        assert_eq!((sample.requests.read.count, sample.requests.all().count), (3, 12));
        assert_eq!(sample.volumes[0].2.other.count, 9);
        assert_eq!(sample.bounds_us, [10.0, 25.0]);
        let problems: Vec<bool> = sample.volumes.iter().map(|(_, bad, _)| *bad).collect();
        assert_eq!(problems, [false, true]);
        assert_eq!(sample.devices[0].path, "u");
        assert_eq!(sample.devices[1].state, None);
        let classes = &sample.devices[1].classes;
        assert!(classes.is_sorted_by_key(|(class, _)| *class), "{classes:?}");
        let commits = classes.iter().find(|(class, _)| *class == "commit");
        assert_eq!(commits.map(|(_, ops)| ops.other.count), Some(9));
    }
}
