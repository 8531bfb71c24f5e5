use std::time::Duration;

use model::Status;
use model::cache::{CacheJob, CacheStatus, HitRatioStatus, WritebackStatus};
use model::device::{DeviceStatus, QueueStatus};
use model::health::Problem;
use model::io::{IoByClass, IoOfClass, IoOfKind, RequestsByKind};
use model::scrub::LostBlocks;
use model::status::{Admission, PoolStatus, ServerStatus};
use model::volume::{RequestsOfVolume, Volume, VolumeIo, VolumeOfStatus};

use super::*;

const LOOK: Look = Look { columns: 80, colour: false };

/// Counters after so many requests of 4 KiB, each of 200 us.
fn kind(count: u64) -> IoOfKind {
    IoOfKind {
        count,
        bytes: count * 4096,
        latency_sum_us: count as f64 * 200.0,
        latency_at_most: vec![0, count, count],
        ..IoOfKind::default()
    }
}

fn queue(reads: u64) -> QueueStatus {
    let class = |reads, writes| IoOfClass {
        read: kind(reads),
        write: kind(writes),
        flush: kind(0),
        ..IoOfClass::default()
    };
    let io = IoByClass {
        foreground: class(reads, reads / 2),
        write_back: class(0, reads / 10),
        commit: class(0, 0),
        ..IoByClass::default()
    };
    QueueStatus { io, ..QueueStatus::default() }
}

fn device(path: &str, reads: u64) -> DeviceStatus {
    DeviceStatus { path: path.into(), queue: Some(queue(reads)), ..DeviceStatus::default() }
}

fn volume(id: u32, reads: u64) -> VolumeOfStatus {
    let IoOfKind { count, bytes, latency_sum_us, latency_at_most, .. } = kind(reads);
    let read = VolumeIo { count, bytes, latency_sum_us, latency_at_most };
    VolumeOfStatus {
        volume: Volume {
            name: format!("a-volume-with-a-name-that-is-rather-long-{id:03}"),
            ..Volume::default()
        },
        id,
        requests: Some(RequestsOfVolume { read, ..RequestsOfVolume::default() }),
    }
}

fn cache(turns: u64) -> CacheStatus {
    CacheStatus {
        path: "/ssd/cache.img".into(),
        dirty_bytes: 12 << 20,
        clean_bytes: 300 << 20,
        size_bytes: 2 << 30,
        hits: 90 * turns,
        misses: 10 * turns,
        working: vec![CacheJob::WriteBack],
        hit_ratio: HitRatioStatus { last_minute: Some(0.5), ..HitRatioStatus::default() },
        writeback: WritebackStatus {
            rate: 8 << 20,
            carried_bytes: turns << 20,
            lag_seconds: 1.25,
            max_lag_seconds: 30.0,
            dirty: 11 << 20,
            target: 5 << 20,
            proportional: -2048.0,
            integral: 4096.0,
            ..WritebackStatus::default()
        },
        queue: queue(20 * turns),
        ..CacheStatus::default()
    }
}

/// A server with 300 volumes after so many turns, in each of which volume i gets i reads.
fn status(turns: u64) -> Status {
    Status {
        latency_bounds_us: vec![100, 250, 500],
        pool: PoolStatus {
            name: "tank".into(),
            used_bytes: 1 << 33,
            capacity_bytes: 1 << 34,
            devices: vec![device("/hdd/a.img", 10 * turns), device("/hdd/b.img", 0)],
            ..PoolStatus::default()
        },
        server: ServerStatus {
            uptime_seconds: 18_720,
            connections: 3,
            requests_in_flight: 7,
            ..ServerStatus::default()
        },
        admission: Admission { waiting: 1, ..Admission::default() },
        requests: RequestsByKind {
            read: kind(1000 * turns),
            write: kind(500 * turns),
            ..RequestsByKind::default()
        },
        volumes: (0..300).map(|i| volume(i, u64::from(i) * turns)).collect(),
        cache: Some(cache(turns)),
        ..Status::default()
    }
}

fn sample(turns: u64) -> Sample {
    Sample::of(status(turns), Duration::from_secs(2 * turns))
}

/// The first line with these words, a space between two.
fn shown(lines: &[String], words: &str) -> String {
    let mut lines = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words}"))
}

#[test]
fn it_fits_a_terminal_of_eighty_by_twenty_four() {
    let lines = lines(&sample(3), &sample(4), &LOOK, Some(24));
    assert!(lines.len() <= 24, "{}", lines.join("\n"));
    assert!(lines.iter().all(|line| width(line) <= 80), "{}", lines.join("\n"));
    for part in ["VOLUME", "more volumes", "DEVICE", "a.img", "cache", "write-back", "stalls"] {
        shown(&lines, part);
    }
}

#[test]
fn rates_are_differences_of_counters() {
    let lines = lines(&sample(3), &sample(4), &LOOK, None);
    let text = lines.join("\n");
    let head = "pool tank: online, 8 GiB of 16 GiB used, 7 in flight, 3 clients, up 5 h 12 min\n";
    assert!(text.starts_with(head), "{text}");
    let all = shown(&lines, "IOPS");
    assert_eq!(all, "750 IOPS, 500 read 2 MiB/s, 250 write 1000 KiB/s, mean 200 us, 99 % 250 us");
    let busiest = shown(&lines, "-299");
    assert!(busiest.ends_with("150 598 KiB 0 0 B 200 us 250 us"), "{busiest}");
    let read = shown(&lines, "a.img foreground");
    assert_eq!(read, "a.img foreground 5.0 20 KiB 2.5 10 KiB 200 us 250 us");
    assert!(shown(&lines, "b.img").starts_with("b.img idle 0 0 B"), "{text}");
    assert!(shown(&lines, "cache.img write-back").contains("1.0 4 KiB"), "{text}");
    assert!(!text.contains("commit"), "a class that did nothing has no row\n{text}");
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("hits: 90 % now, 50 % in the last minute"), "{text}");
    for part in ["512 KiB/s of 8 MiB/s", "lag 1.2 s of 30.0 s", "P -2 KiB/s", "I 4 KiB/s"] {
        assert!(flat.contains(part), "{part} is not in\n{text}");
    }
    assert!(flat.contains("controller saw "), "{text}");
    assert!(text.contains("none in the last 10 minutes"), "{text}");
    let mut now = sample(4);
    now.status.server.connections = 1;
    let text = super::lines(&sample(3), &now, &LOOK, None).join("\n");
    assert!(text.contains(", 1 client, "), "{text}");
}

#[test]
fn the_busy_are_first_and_the_rest_is_counted() {
    let lines = lines(&sample(1), &sample(2), &LOOK, None);
    let at = lines.iter().position(|line| line.starts_with("VOLUME")).unwrap();
    let names: Vec<&str> =
        lines[at + 1..at + 20].iter().filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names[0].ends_with("299") && names[18].ends_with("281"), "{names:?}");
    assert_eq!(lines[at + 21], "  and 280 more volumes");
    let idle = super::lines(&sample(1), &sample(1), &LOOK, None);
    assert_eq!(idle[at + 6], "  and 295 more volumes", "{}", idle.join("\n"));
}

#[test]
fn a_device_that_has_requests_is_not_idle() {
    let with = |ms: f64| {
        let mut now = status(2);
        now.pool.devices[1].queue.as_mut().unwrap().silent_ms = ms;
        let lines = lines(&sample(2), &Sample::of(now, Duration::from_secs(4)), &LOOK, None);
        shown(&lines, "b.img")
    };
    for (ms, word) in [(0.0, "idle"), (3.0, "busy"), (36_000.0, "silent")] {
        assert!(with(ms).starts_with(&format!("b.img {word} ")), "{}", with(ms));
    }
}

#[test]
fn what_is_wrong_is_told() {
    let mut now = status(2);
    now.pool.state = PoolState::Degraded;
    now.pool.devices[1].state = DeviceState::Missing;
    now.pool.scrub.lost_blocks = vec![LostBlocks {
        volume: "a-volume-with-a-name-that-is-rather-long-007".into(),
        ..LostBlocks::default()
    }];
    now.stalls = Some("9 requests took long; 8 waited for device a.img".into());
    let problem = |what: &str| Problem { what: what.into(), ..Problem::default() };
    now.health = ["b.img is missing", "y", "z"].map(problem).into();
    now.cache.as_mut().unwrap().writeback.writers_waiting = 4;
    let now = Sample::of(now, Duration::from_secs(4));
    let lines = lines(&sample(1), &now, &LOOK, Some(40));
    let at = lines.iter().position(|line| line.starts_with("VOLUME")).unwrap();
    assert!(lines[at + 1].contains("007"), "the volume with a problem is first");
    let text = lines.join("\n");
    for part in [
        "pool tank: degraded",
        "b.img      missing",
        "8 waited for device a.img",
        "! b.img is missing",
        "what to do: forebay status (3 in all)",
        "4 writes wait for room",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let coloured = super::lines(&sample(1), &now, &Look { columns: 80, colour: true }, Some(40));
    assert!(coloured[0].starts_with("\u{1b}[1m\u{1b}[31mpool tank: degraded"), "{:?}", coloured[0]);
}

#[test]
fn no_size_and_no_status_is_a_panic() {
    let strange = Sample::of(Status::default(), Duration::ZERO);
    for columns in [80, 200] {
        for rows in [None, Some(0), Some(1), Some(5), Some(11), Some(24), Some(200)] {
            let look = Look { columns, colour: true };
            for (before, now) in
                [(&strange, &strange), (&strange, &sample(2)), (&sample(2), &strange)]
            {
                let lines = lines(before, now, &look, rows);
                assert!(lines.len() <= rows.unwrap_or(usize::MAX));
            }
        }
    }
}
