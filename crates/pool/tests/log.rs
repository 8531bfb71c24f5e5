//! What the log says of devices: which one it is, and what happens next.

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};

use base::{BLOCK_U64, Duration, IoError, Lba, VolumeId};
use model::scrub::ScrubState;
use pool::{Pool, ScrubOptions};
use rt::{Op, Rt};
use sim::Fault;
use testkit::{Effect, MIB, Mirror, blocks, fill, open, put, writes_to};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const BLOCKS: u64 = 200;

/// Hands on all lines: the device, volume or tree that each names, and its text.
struct Lines(Sender<Line>);

#[derive(Default, Debug)]
struct Line {
    device: String,
    part: String,
    level: String,
    text: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "device" => self.device = format!("{value:?}"),
            "volume" | "tree" => self.part = format!("{value:?}"),
            "message" => self.text = format!("{value:?}"),
            _ => {}
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().to_string();
        let mut line = Line { level, ..Line::default() };
        event.record(&mut line);
        self.0.send(line).expect("the test runs");
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// All lines with this text have this device, and there is one.
fn named(lines: &[Line], device: &str, text: &str) {
    let with: Vec<&Line> = lines.iter().filter(|l| l.text.contains(text)).collect();
    assert!(!with.is_empty(), "{text:?} is not in {lines:#?}");
    assert!(with.iter().all(|l| l.device == device), "{with:#?}");
}

/// Reads all blocks at once, so from both disks.
async fn read_all(rt: &Rt, pool: &Pool, id: VolumeId) {
    let read = |at| {
        let pool = pool.clone();
        rt.spawn(async move { pool.read(id, Lba(at), 1).await })
    };
    let reads: Vec<_> = (0..BLOCKS).map(read).collect();
    for read in reads {
        read.await.expect("it ends").expect("read");
    }
}

#[test]
fn a_line_about_a_device_names_it_and_says_what_happens_next() {
    let bench = Mirror::new(1, (2, 2), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS, 1).await;
        id
    });
    let (rules, world, id) = (bench.rules.clone(), bench.world.clone(), bench.volume);
    // Blocks of the second disk that rot, and others that cannot be read.
    let second = bench.files[1].file;
    let data = (2 * MIB..32 * MIB).step_by(4096);
    let held = data.filter(|&at| world.contents(second, at, 4096).iter().all(|&b| b == 1));
    for (i, offset) in held.enumerate() {
        let (rots, unreadable) =
            (Fault::BitRot { offset, len: BLOCK_U64 }, Fault::ReadError { offset, len: BLOCK_U64 });
        assert!(world.inject(second, if i % 2 == 0 { rots } else { unreadable }));
    }
    let (sender, lines) = mpsc::channel();
    let guard = tracing::subscriber::set_default(Lines(sender));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        read_all(&rt, &pool, id).await;
        // A read that fails once, then all writes to the disk, as long as it is in use.
        let once = Rc::new(Cell::new(true));
        rules.set(move |op| {
            let reads =
                matches!(op, Op::Read { file, .. } if *file == second) && once.replace(false);
            (reads || writes_to(op, second)).then_some((IoError::IO, Effect::No))
        });
        read_all(&rt, &pool, id).await;
        put(&pool, id, 1000, 10, 1).await;
        pool.commit().await.expect("without the second");
        rt.sleep(Duration::from_secs(500)).await;
        pool.close().await.expect("close");
    });
    drop(guard);
    let lines: Vec<Line> = lines.try_iter().collect();
    for text in [
        "a read failed (Input/output error (os error 5)); a second one succeeded, and the request",
        "checksum error 1 on this device; it is read from another copy",
        "read error 1 on this device: ",
        "a write failed: ",
        "it is tried again",
        "write failed: ",
        "the device is dropped, if the pool can do without it",
        "device dropped from the pool",
        "the device cannot be used yet: ",
        "it is tried again in 60 s",
        "it stays out until forebay device online",
    ] {
        named(&lines, "disk1", text);
    }
}

/// All lines that have come with this text.
fn with(lines: &mpsc::Receiver<Line>, text: &str) -> Vec<Line> {
    lines.try_iter().filter(|line| line.text.contains(text)).collect()
}

#[test]
fn want_of_space_is_told_when_it_begins_and_when_it_ends() {
    let bench = Mirror::new(2, (1, 1), |pool| async move {
        pool.create_volume("v", 64 * MIB, 4096).await.expect("volume")
    });
    let (rules, id, only) = (bench.rules.clone(), bench.volume, bench.files[0].file);
    let (sender, lines) = mpsc::channel();
    let guard = tracing::subscriber::set_default(Lines(sender));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let write = async || pool.write(id, Lba(0), &blocks(1, 1)).await;
        for _ in 0..3 {
            rules.set(move |op| writes_to(op, only).then_some((IoError::NO_SPACE, Effect::No)));
            write().await.expect_err("there is no space");
            // Some may need none.
            rules.clear();
            write().await.expect("write");
        }
        let begun = with(&lines, "writes to this device");
        assert_eq!(begun.len(), 1, "{begun:#?}");
        assert!(begun[0].level == "WARN" && begun[0].text.contains("fail"), "{begun:#?}");
        assert_eq!(begun[0].device, "disk0");
        rt.sleep(Duration::from_secs(11)).await;
        for _ in 0..2 {
            write().await.expect("write");
        }
        let ended = with(&lines, "writes to this device");
        assert_eq!(ended.len(), 1, "{ended:#?}");
        assert!(ended[0].level == "INFO" && ended[0].text.contains("again"), "{ended:#?}");
        pool.close().await.expect("close");
    });
    drop(guard);
}

#[test]
fn a_device_that_is_taken_out_of_use_by_command_is_no_error() {
    let bench = Mirror::new(3, (2, 2), |pool| async move {
        pool.create_volume("v", 64 * MIB, 4096).await.expect("volume")
    });
    let (sender, lines) = mpsc::channel();
    let guard = tracing::subscriber::set_default(Lines(sender));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        pool.close().await.expect("close");
    });
    drop(guard);
    let lines: Vec<Line> = lines.try_iter().collect();
    named(&lines, "disk1", "taken out of use by command");
    assert!(lines.iter().all(|line| line.level != "ERROR"), "{lines:#?}");
}

#[test]
fn a_line_about_what_is_lost_names_the_volume() {
    let bench = Mirror::new(4, (1, 1), |pool| async move {
        let id = pool.create_volume("tickets", 64 * MIB, 4096).await.expect("volume");
        for i in 0..2048 {
            put(&pool, id, i * 911 % 2048, 1, 1).await;
        }
        id
    });
    let (world, id, only) = (bench.world.clone(), bench.volume, bench.files[0].file);
    let (sender, lines) = mpsc::channel();
    let guard = tracing::subscriber::set_default(Lines(sender));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // Trees are in memory then.
        pool.read(id, Lba(0), 2048).await.expect("read");
        for offset in (2 * MIB..32 * MIB).step_by(4096) {
            if world.contents(only, offset, 4096).iter().any(|&b| b != 0) {
                assert!(world.inject(only, Fault::BitRot { offset, len: BLOCK_U64 }));
            }
        }
        pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
        while pool.scrubs().scrub_status().await.state == ScrubState::Running {
            rt.sleep(Duration::from_millis(10)).await;
        }
        pool.read(id, Lba(0), 1).await.expect_err("it is lost");
        pool.close().await.expect("close");
    });
    drop(guard);
    let all: Vec<Line> = lines.try_iter().collect();
    let parts = |text: &str| {
        all.iter().filter(|l| l.text.contains(text)).map(|l| l.part.as_str()).collect::<Vec<_>>()
    };
    let nodes = parts("no copy of a node is good");
    let known = |p: &&str| *p == "mapping of volume tickets" || p.starts_with("checksums of group");
    assert!(!nodes.is_empty() && nodes.iter().all(known), "{nodes:?}");
    assert!(nodes.contains(&"mapping of volume tickets"), "{nodes:?}");
    let blocks = parts("no copy of a block of a volume is good");
    assert!(!blocks.is_empty() && blocks.iter().all(|volume| *volume == "tickets"), "{blocks:?}");
}
