//! The models by themselves, and a file under simulated time.

use std::cell::RefCell;
use std::rc::Rc;

use base::{BufList, Duration, Instant, Prng, SliceList};
use proptest::prelude::*;
use rt::{FileId, Op, OpId, Order, Rt};
use sim::{DiskModel, Latency, World};

use super::hdd::{Hdd, REVOLUTION, seek};
use super::*;

const GIB: u64 = 1 << 30;
const MIB: usize = 1 << 20;

fn seconds(d: Duration) -> f64 {
    d.as_secs_f64()
}

/// Keeps `depth` requests in the model until `count` are done; gives the time that took, from
/// `from` on.
fn run(
    model: &mut Emulation,
    from: Instant,
    depth: usize,
    count: usize,
    mut next: impl FnMut() -> (Access, u64, usize),
) -> f64 {
    let (mut now, mut sent, mut done) = (from, 0, Vec::new());
    while done.len() < count {
        while sent < count && sent - done.len() < depth {
            let (access, offset, len) = next();
            model.submit(now, access, offset, len);
            sent += 1;
        }
        now = model.next_at().unwrap();
        model.take_done(now, &mut done);
    }
    seconds(now.since(from))
}

fn random_iops(what: Emulate, access: Access, depth: usize, count: usize) -> f64 {
    let mut model = Emulation::new(what, 16 * GIB);
    let mut rng = Prng::new(7);
    count as f64
        / run(&mut model, Instant(1 << 40), depth, count, || {
            (access, rng.below(16 * GIB / 4096) * 4096, 4096)
        })
}

/// MB/s of requests of 1 MiB one after the other from `start` on.
fn stream(what: Emulate, access: Access, depth: usize, start: u64) -> f64 {
    let mut model = Emulation::new(what, 16 * GIB);
    let mut at = start;
    let took = run(&mut model, Instant(1 << 40), depth, 256, || {
        at += MIB as u64;
        (access, at - MIB as u64, MIB)
    });
    256.0 * MIB as f64 / took / 1e6
}

fn assert_between(what: &str, value: f64, least: f64, most: f64) {
    assert!((least..=most).contains(&value), "{what}: {value:.1} is not in {least} to {most}");
}

#[test]
fn seeks_take_what_the_header_says() {
    assert_between("to the next track", seek(0.0) * 1e3, 0.8, 0.8);
    assert_between("a third", seek(1.0 / 3.0) * 1e3, 8.45, 8.55);
    assert_between("all", seek(1.0) * 1e3, 16.95, 17.05);
}

#[test]
fn the_spiral_is_passed_at_the_rates_of_its_zones() {
    let disk = Hdd::new(16 * GIB);
    let rate = |at: u64| MIB as f64 / (disk.passed(at + MIB as u64) - disk.passed(at)) / 1e6;
    assert_between("outer edge", rate(0), 219.0, 220.0);
    assert_between("middle", rate(8 * GIB), 164.0, 166.0);
    assert_between("inner edge", rate(16 * GIB - MIB as u64), 110.0, 111.0);
    for offset in [0, 4096, GIB, 7 * GIB + 12345, 16 * GIB - 1] {
        assert!(disk.at(disk.passed(offset)).abs_diff(offset) <= 64);
    }
}

#[test]
fn random_requests_take_what_a_disk_takes() {
    let at = |depth| random_iops(Emulate::Hdd, Access::Read, depth, 4000);
    let (one, four, many, more) = (at(1), at(4), at(32), at(128));
    assert_between("depth 1", one, 75.0, 90.0);
    assert_between("depth 4", four, one * 1.2, 160.0);
    assert_between("depth 32", many, 180.0, 320.0);
    assert_between("depth 128, of which the disk sees 32", more, many * 0.95, many * 1.05);
    assert_between("writes", random_iops(Emulate::Hdd, Access::Write, 1, 4000), 75.0, 90.0);
}

#[test]
fn streams_run_at_the_speed_of_the_medium() {
    assert_between("reads, outer", stream(Emulate::Hdd, Access::Read, 1, 0), 205.0, 220.0);
    assert_between("reads, inner", stream(Emulate::Hdd, Access::Read, 1, 15 * GIB), 108.0, 125.0);
    assert_between(
        "writes that are queued, outer",
        stream(Emulate::Hdd, Access::Write, 4, 0),
        205.0,
        220.0,
    );
}

#[test]
fn a_sweep_over_every_other_block_is_as_fast_as_the_medium() {
    let mut model = Emulation::new(Emulate::Hdd, 16 * GIB);
    let mut at = 0;
    let took = run(&mut model, Instant(1 << 40), 8, 20_000, || {
        at += 8192;
        (Access::Write, at - 8192, 4096)
    });
    assert_between("MB/s passed", 20_000.0 * 8192.0 / took / 1e6, 205.0, 220.0);
}

#[test]
fn a_write_that_comes_too_late_waits_for_its_sector_to_come_round() {
    let mut disk = Emulation::new(Emulate::Hdd, GIB);
    let mut done = Vec::new();
    disk.submit(Instant(0), Access::Write, 0, 4096);
    let first = disk.next_at().unwrap();
    disk.take_done(first, &mut done);
    disk.submit(first.after(Duration::from_micros(50)), Access::Write, 4096, 4096);
    assert_between(
        "second write",
        seconds(disk.next_at().unwrap().since(first)),
        REVOLUTION,
        REVOLUTION + 50e-6,
    );
}

#[test]
fn what_was_read_ahead_is_there_at_once_and_only_as_much_as_fits() {
    let mut disk = Emulation::new(Emulate::Hdd, GIB);
    let mut done = Vec::new();
    disk.submit(Instant(0), Access::Read, 0, 4096);
    let first = disk.next_at().unwrap();
    disk.take_done(first, &mut done);
    let later = first.after(Duration::from_millis(500));
    disk.submit(later, Access::Read, 4096, MIB);
    let hit = disk.next_at().unwrap();
    assert_between("a hit", seconds(hit.since(later)) * 1e3, 1.9, 2.1);
    disk.take_done(hit, &mut done);
    disk.submit(hit, Access::Read, 8 << 20, 4096);
    assert_between("beyond", seconds(disk.next_at().unwrap().since(hit)) * 1e3, 0.8, 12.0);
    assert_eq!(done.len(), 2);
}

#[test]
fn no_request_starves() {
    let mut disk = Emulation::new(Emulate::Hdd, 16 * GIB);
    let (mut now, mut done, mut rng) = (Instant(0), Vec::new(), Prng::new(1));
    let mut near = || rng.below(64) * 4096;
    for _ in 0..8 {
        disk.submit(now, Access::Read, near(), 4096);
    }
    let far = disk.submit(now, Access::Read, 15 * GIB, 4096);
    while !done.contains(&far) {
        now = disk.next_at().unwrap();
        disk.take_done(now, &mut done);
        disk.submit(now, Access::Read, near(), 4096);
        assert!(done.len() < 80, "left behind by {} others", done.len());
    }
    assert!(done.len() > 40, "the nearest do not come first");
}

#[test]
fn an_ssd_is_bounded_by_latency_parallelism_and_its_link() {
    let iops = |access, depth| random_iops(Emulate::Ssd, access, depth, 4000);
    assert_between("reads, depth 1", iops(Access::Read, 1), 11_000.0, 11_500.0);
    assert_between("writes, depth 1", iops(Access::Write, 1), 25_000.0, 27_000.0);
    assert_between("reads, depth 32", iops(Access::Read, 32), 100_000.0, 122_100.0);
    assert_between("durable writes, depth 1", iops(Access::DurableWrite, 1), 950.0, 970.0);
    assert_between("stream", stream(Emulate::Ssd, Access::Read, 4, 0), 480.0, 500.0);
    let mut ssd = Emulation::new(Emulate::Ssd, GIB);
    ssd.submit(Instant(0), Access::Flush, 0, 0);
    assert_eq!(ssd.next_at(), Some(Instant(1_000_000)));
}

proptest! {
    /// Whatever is asked, however late the model is told the time: everything is done once, in the
    /// order of time, never before it arrived.
    #[test]
    fn everything_is_done_once(
        hdd: bool,
        size in 1u64..(1 << 40),
        requests in proptest::collection::vec(
            (0u64..20_000_000, 0u8..4, any::<u64>(), 0usize..(8 << 20)),
            1..80,
        ),
    ) {
        let mut model = Emulation::new(if hdd { Emulate::Hdd } else { Emulate::Ssd }, size);
        let (mut now, mut arrived, mut done) = (Instant(0), Vec::new(), Vec::new());
        for (pause, kind, offset, len) in requests {
            now = now.after(Duration::from_nanos(pause));
            let all = [Access::Read, Access::Write, Access::DurableWrite, Access::Flush];
            let access = all[usize::from(kind)];
            let offset = if kind % 2 == 0 { offset % (2 * size) } else { offset };
            arrived.push(model.submit(now, access, offset, len));
            if pause % 3 == 0 {
                model.take_done(now, &mut done);
                prop_assert!(model.next_at().is_none_or(|at| at > now));
            }
        }
        while let Some(at) = model.next_at() {
            now = now.max(at);
            model.take_done(now, &mut done);
        }
        done.sort();
        prop_assert_eq!(done, arrived);
    }
}

/// A runtime over a simulated world in which `file` is emulated.
fn runtime(world: &World, seed: u64, file: FileId, what: Emulate, size_bytes: u64) -> Rt {
    let emulations = Emulations::default();
    let rt = Rt::new(emulations.over(world.backend()), Order::Seeded(seed), 1024);
    emulations.add(file, what, size_bytes);
    rt
}

fn read_of(rt: &Rt, file: FileId, offset: u64, len: usize) -> Op {
    let bufs: BufList = std::iter::once(rt.bufs().take(len)).collect();
    Op::Read { file, offset, bufs }
}

/// Requests a second that a file sustains under simulated time: `depth` tasks, each doing `count`
/// reads.
fn simulated(
    what: Emulate,
    disk: DiskModel,
    depth: u64,
    count: u64,
    len: usize,
    random: bool,
) -> f64 {
    let world = World::new(5);
    let size = disk.size_bytes;
    let file = world.add_disk(disk);
    let rt = runtime(&world, 9, file, what, size);
    let r = rt.clone();
    let took = rt.block_on(async move {
        let begun = r.now();
        let rng = Rc::new(RefCell::new(Prng::new(3)));
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (rt, rng) = (r.clone(), rng.clone());
                r.spawn(async move {
                    for i in 0..count {
                        let block =
                            if random { rng.borrow_mut().below(size / len as u64) } else { i };
                        let c = rt.op(read_of(&rt, file, block * len as u64, len)).await;
                        assert_eq!(c.result, Ok(len as u64));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        seconds(r.now().since(begun))
    });
    (depth * count) as f64 / took.unwrap()
}

#[test]
fn a_file_is_as_slow_as_the_model() {
    // As fast as a file in memory.
    let memory = || {
        let quick = Latency::new(Duration::from_micros(2), Duration::from_micros(4));
        DiskModel { read_latency: quick, write_latency: quick, ..DiskModel::nvme(256 << 20) }
    };
    assert_between(
        "hdd, depth 1",
        simulated(Emulate::Hdd, memory(), 1, 400, 4096, true),
        75.0,
        120.0,
    );
    assert_between(
        "hdd, depth 32",
        simulated(Emulate::Hdd, memory(), 32, 50, 4096, true),
        180.0,
        600.0,
    );
    let mib_a_second = simulated(Emulate::Hdd, memory(), 1, 200, MIB, false);
    assert_between("hdd, stream in MB/s", mib_a_second * MIB as f64 / 1e6, 140.0, 220.0);
    assert_between(
        "ssd, depth 1",
        simulated(Emulate::Ssd, memory(), 1, 400, 4096, true),
        8_000.0,
        11_400.0,
    );
}

#[test]
fn a_file_that_is_slow_takes_its_own_time_too() {
    let mut slow = DiskModel::nvme(64 << 20);
    slow.read_latency = Latency::new(Duration::from_millis(50), Duration::from_millis(50));
    assert_between("a slow file", simulated(Emulate::Ssd, slow, 1, 50, 4096, true), 15.0, 20.0);
}

#[test]
fn writes_and_flushes_wait_too_and_what_was_written_is_there() {
    let world = World::new(8);
    let file = world.add_disk(DiskModel::nvme(64 << 20));
    let rt = runtime(&world, 2, file, Emulate::Ssd, 64 << 20);
    let r = rt.clone();
    rt.block_on(async move {
        let begun = r.now();
        let data = SliceList::from_iter([r.bufs().copy_of(&[7; 4096]).freeze()]);
        let c = r.op(Op::Write { file, offset: 8192, data, fua: true }).await;
        assert_eq!(c.result, Ok(4096));
        let written = r.now();
        assert!(written.since(begun) >= Duration::from_micros(1030));
        r.op(Op::Flush { file }).await.result.unwrap();
        assert!(r.now().since(written) >= Duration::from_millis(1));
        let c = r.op(read_of(&r, file, 8192, 4096)).await;
        assert!(c.result == Ok(4096) && c.into_bufs()[0].iter().all(|&b| b == 7));
    })
    .unwrap();
}

#[test]
fn other_files_and_discards_are_as_fast_as_they_are() {
    let world = World::new(4);
    let [slow, fast] = [0, 1].map(|_| world.add_disk(DiskModel::nvme(64 << 20)));
    let rt = runtime(&world, 3, slow, Emulate::Hdd, 64 << 20);
    let r = rt.clone();
    rt.block_on(async move {
        let begun = r.now();
        let read = r.spawn(r.op(read_of(&r, slow, 32 << 20, 4096)));
        for i in 0..8 {
            r.op(read_of(&r, fast, i << 20, 4096)).await.result.unwrap();
        }
        let _ = r.op(Op::Discard { file: slow, offset: 0, len: 4096 }).await;
        assert!(r.now().since(begun) < Duration::from_millis(3));
        read.await.unwrap().result.unwrap();
        assert!(r.now().since(begun) > Duration::from_millis(3));
    })
    .unwrap();
}

#[test]
fn a_wait_ends_when_it_is_to_end_and_with_what_the_model_has_done() {
    let world = World::new(6);
    let (file, ms) = (world.add_disk(DiskModel::nvme(64 << 20)), Duration::from_millis);
    let emulations = Emulations::default();
    emulations.add(file, Emulate::Hdd, 64 << 20);
    let mut backend = emulations.over(world.backend());
    let mut done = Vec::new();
    let mut disk = Emulation::new(Emulate::Hdd, 64 << 20);
    let begun = backend.now();
    disk.submit(begun, Access::Read, 48 << 20, 4096);
    let bufs: BufList = std::iter::once(base::BufPool::new(0).take(4096)).collect();
    backend.submit(OpId(1), Op::Read { file, offset: 48 << 20, bufs });
    // The file is not asked before the model has done it.
    assert_eq!(backend.wait(Some(begun.after(ms(2))), &mut done), begun.after(ms(2)));
    assert!(done.is_empty());
    let at = backend.wait(Some(begun.after(ms(1000))), &mut done);
    let served = disk.next_at().unwrap();
    assert_eq!((done.len(), done[0].id), (1, OpId(1)));
    assert!(at > served && at.since(served) < ms(1), "the file takes its own time from then on");
    // With nothing in flight it is the wait of the world.
    assert_eq!(backend.wait(Some(at.after(ms(1))), &mut done), at.after(ms(1)));
    assert_eq!(done.len(), 1);
}

#[test]
fn names_are_read_and_others_refused() {
    for what in [Emulate::Hdd, Emulate::Ssd] {
        assert_eq!(what.to_string().parse(), Ok(what));
    }
    let e = "tape".parse::<Emulate>().unwrap_err();
    assert!(e.contains("tape") && e.contains("hdd, ssd"), "{e}");
}
