//! Snapshots of volumes, in simulation, against a model of what each of them has.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, Lba, Prng, VolumeId};
use offline::pool::check::PoolCounts;
use pool::{DeviceFile, Pool, ScrubOptions, Settings, WantedSnapshot};
use rt::{Order, Rt};
use sim::{DiskModel, Fault, World};
use testkit::{
    MIB, Mirror, block, blocks, boot, check_pool, create_pool, disk, moved, only_byte, open,
    scrubbed,
};

const DISK: u64 = 32 * MIB;
const BLOCKS: u64 = 600;

/// The content of a volume: a byte for each block, 0 for one that was never written.
type Content = Vec<u8>;

fn wanted(of: VolumeId, name: &str) -> Vec<WantedSnapshot> {
    vec![WantedSnapshot { of, name: name.into() }]
}

async fn content(pool: &Pool, id: VolumeId) -> Content {
    let mut all = Vec::with_capacity(BLOCKS as usize);
    for lba in 0..BLOCKS {
        let data = pool.read(id, Lba(lba), 1).await.expect("read");
        all.push(only_byte(&data).expect("one value"));
    }
    all
}

/// The volume and its snapshots, as they should be.
#[derive(Clone, Default)]
struct Expected {
    now: Content,
    past: BTreeMap<String, Content>,
}

impl Expected {
    fn new() -> Expected {
        Expected { now: vec![0; BLOCKS as usize], past: BTreeMap::new() }
    }

    async fn is_met(&self, pool: &Pool, v: VolumeId) {
        assert_eq!(content(pool, v).await, self.now, "the volume");
        let names: Vec<String> = pool.snapshots().of(v).into_iter().map(|s| s.name).collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(sorted, self.past.keys().cloned().collect::<Vec<_>>());
        for (name, expected) in &self.past {
            let snapshot = pool.snapshots().find("v", name).expect("it is there");
            assert_eq!(content(pool, snapshot.id).await, *expected, "snapshot {name}");
        }
    }
}

/// A step of the life of a volume.
async fn step(pool: &Pool, v: VolumeId, expected: &mut Expected, rng: &mut Prng, n: u64) {
    let at = rng.below(BLOCKS);
    let len = 1 + rng.below(40).min(BLOCKS - at - 1);
    match rng.below(20) {
        0..=9 => {
            let value = 1 + (n % 250) as u8;
            pool.write(v, Lba(at), &blocks(value, len)).await.expect("write");
            expected.now[at as usize..(at + len) as usize].fill(value);
        }
        10..=12 => {
            pool.discard(v, Lba(at), Lba(at + len)).await.expect("discard");
            expected.now[at as usize..(at + len) as usize].fill(0);
        }
        13..=15 => {
            let name = format!("s{n}");
            pool.snapshots().take(wanted(v, &name)).await.expect("taken");
            expected.past.insert(name, expected.now.clone());
        }
        16..=17 if !expected.past.is_empty() => {
            let nth = rng.below(expected.past.len() as u64) as usize;
            let name = expected.past.keys().nth(nth).expect("there").clone();
            let snapshot = pool.snapshots().find("v", &name).expect("it is there");
            pool.snapshots().delete(snapshot.id).await.expect("deleted");
            expected.past.remove(&name);
        }
        18 => pool.commit().await.expect("commit"),
        _ => expected.is_met(pool, v).await,
    }
}

fn bench(seed: u64) -> (World, Vec<DeviceFile>) {
    let world = World::new(seed);
    let files = vec![disk(&world, "a", DiskModel::nvme(DISK))];
    (world, files)
}

async fn is_clean(rt: &Rt, files: &[DeviceFile], what: &str) -> PoolCounts {
    let report = check_pool(rt, files.to_vec()).await;
    assert!(report.is_clean(), "{what}: {report:?}");
    report.counts
}

/// Waits until what was deleted is gone.
async fn drained(rt: &Rt, pool: &Pool) {
    let mut before = u64::MAX;
    loop {
        rt.sleep(Duration::from_secs(5)).await;
        pool.commit().await.expect("commit");
        let used = pool.status().pool.used_bytes;
        if used == before {
            return;
        }
        before = used;
    }
}

#[test]
fn snapshots_keep_what_they_had_and_give_back_what_they_alone_have() {
    for seed in 0..30 {
        let (world, files) = bench(seed);
        let f = files.clone();
        let lived = boot(world.backend(), Order::Seeded(seed), |rt| async move {
            create_pool(&rt, &f, 1).await;
            let pool = open(&rt, f.clone()).await;
            let v = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("create");
            let mut expected = Expected::new();
            let mut rng = Prng::new(seed);
            for n in 0..150 {
                step(&pool, v, &mut expected, &mut rng, n).await;
            }
            expected.is_met(&pool, v).await;
            pool.close().await.expect("close");
            is_clean(&rt, &f, &format!("seed {seed}, closed")).await;
            let pool = open(&rt, f.clone()).await;
            expected.is_met(&pool, v).await;
            for name in expected.past.keys() {
                let snapshot = pool.snapshots().find("v", name).expect("it is there");
                pool.snapshots().delete(snapshot.id).await.expect("deleted");
            }
            expected.past.clear();
            drained(&rt, &pool).await;
            expected.is_met(&pool, v).await;
            pool.discard(v, Lba(0), Lba(BLOCKS)).await.expect("discard");
            drained(&rt, &pool).await;
            pool.close().await.expect("close");
            let c = is_clean(&rt, &f, &format!("seed {seed}, all deleted")).await;
            let left = (c.data_blocks, c.dead_runs, c.snapshots, c.extents);
            assert_eq!(left, (0, 0, 0, 0), "seed {seed}: all space is back");
        });
        assert!(lived.is_some(), "seed {seed}");
    }
}

/// Power fails at any moment. The volume and its snapshots are what they were at some commit, and
/// each snapshot has what the volume had when it was taken.
#[test]
fn a_loss_of_power_leaves_whole_snapshots() {
    for seed in 0..60 {
        let (world, files) = bench(seed);
        let kept: Rc<RefCell<BTreeMap<String, Content>>> = Rc::default();
        let gone: Rc<RefCell<Vec<String>>> = Rc::default();
        let (f, taken, deleted) = (files.clone(), kept.clone(), gone.clone());
        boot(world.backend(), Order::Seeded(seed), |rt| async move {
            create_pool(&rt, &f, 1).await;
            let pool = open(&rt, f.clone()).await;
            let v = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("create");
            let end = rt.clone();
            let after = Duration::from_micros(1000 + rt.random() % 60_000);
            rt.detach(async move {
                end.sleep(after).await;
                end.kill();
            });
            let mut rng = Prng::new(seed);
            let mut expected = Expected::new();
            for n in 0.. {
                let before = expected.past.clone();
                step(&pool, v, &mut expected, &mut rng, n).await;
                for (name, had) in &expected.past {
                    taken.borrow_mut().insert(name.clone(), had.clone());
                }
                for name in before.keys().filter(|name| !expected.past.contains_key(*name)) {
                    taken.borrow_mut().remove(name);
                    deleted.borrow_mut().push(name.clone());
                }
            }
        });
        world.power_cut();
        let f = files.clone();
        let (kept, gone) = (kept.borrow().clone(), gone.borrow().clone());
        let lived = boot(world.backend(), Order::Seeded(seed + 100), |rt| async move {
            is_clean(&rt, &f, &format!("seed {seed}, after the loss of power")).await;
            let pool = open(&rt, f.clone()).await;
            for (name, expected) in &kept {
                let snapshot = pool.snapshots().find("v", name);
                // Its deletion may have become durable, and was not answered.
                let Some(snapshot) = snapshot else { continue };
                assert_eq!(content(&pool, snapshot.id).await, *expected, "seed {seed}: {name}");
            }
            let missing = kept.keys().filter(|name| pool.snapshots().find("v", name).is_none());
            assert!(missing.count() <= 1, "seed {seed}: what was answered is there");
            for name in &gone {
                assert!(pool.snapshots().find("v", name).is_none(), "seed {seed}: {name}");
            }
            for snapshot in pool.snapshots().all() {
                pool.snapshots().delete(snapshot.id).await.expect("deleted");
            }
            drained(&rt, &pool).await;
            pool.close().await.expect("close");
            is_clean(&rt, &f, &format!("seed {seed}, all deleted")).await;
        });
        assert!(lived.is_some());
    }
}

/// Snapshots come and go while a scrub reads everything, and a device is replaced by another.
#[test]
fn scrubs_and_moves_see_each_block_of_a_snapshot() {
    for seed in 0..12 {
        let bench = Mirror::filled(500 + seed, (2, 2), BLOCKS);
        let (v, new) = (bench.volume, disk(&bench.world, "new", DiskModel::nvme(DISK)));
        let (replacement, world) = (new.clone(), bench.world.clone());
        bench.run(move |rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            let mut expected = Expected { now: vec![1; BLOCKS as usize], ..Expected::new() };
            let mut rng = Prng::new(seed);
            for n in 0..60 {
                step(&pool, v, &mut expected, &mut rng, n).await;
            }
            pool.moves().replace_device("disk0", replacement, [7; 16]).await.expect("replaced");
            pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("started");
            for n in 60..160 {
                step(&pool, v, &mut expected, &mut rng, n).await;
                rt.sleep(Duration::from_millis(20)).await;
            }
            moved(&rt, &pool).await;
            let scrub = scrubbed(&rt, &pool).await;
            assert_eq!((scrub.lost, scrub.bad), (0, 0), "seed {seed}: {scrub:?}");
            // The new device alone has everything, of snapshots too.
            world.inject(files[1].file, Fault::Dead);
            expected.is_met(&pool, v).await;
            pool.close().await.expect("close");
        });
    }
}

/// A copy of each block, also of those that a snapshot alone has, is bad, and a scrub heals it.
#[test]
fn a_scrub_heals_what_a_snapshot_alone_has() {
    let bench = Mirror::filled(9, (2, 2), BLOCKS);
    let (v, world) = (bench.volume, bench.world.clone());
    bench.run(move |rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        pool.snapshots().take(wanted(v, "s")).await.expect("taken");
        pool.write(v, Lba(0), &blocks(2, BLOCKS)).await.expect("write");
        pool.commit().await.expect("commit");
        pool.close().await.expect("close");
        // Data and nodes of one copy.
        for offset in (2 * MIB..32 * MIB).step_by(BLOCK) {
            if world.contents(files[0].file, offset, BLOCK).iter().any(|&b| b != 0) {
                world.inject(files[0].file, Fault::BitRot { offset, len: BLOCK_U64 });
            }
        }
        let pool = open(&rt, files.clone()).await;
        pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("started");
        let scrub = scrubbed(&rt, &pool).await;
        assert_eq!(scrub.lost, 0, "{scrub:?}");
        assert!(scrub.healed > 2 * BLOCKS, "{scrub:?}");
        pool.close().await.expect("close");
        let report = check_pool(&rt, files).await;
        assert!(report.is_clean() && report.damaged_copies == 0, "{report:?}");
    });
}

/// Nodes of deadlists are read again and again, as hardly any stays in memory.
#[test]
fn a_long_deadlist_is_drained_to_its_last_record() {
    const MANY: u64 = 7000;
    let world = World::new(77);
    let files = vec![disk(&world, "a", DiskModel::nvme(96 * MIB))];
    let lived = boot(world.backend(), Order::Seeded(77), |rt| async move {
        create_pool(&rt, &files, 1).await;
        let small = Settings { cached_nodes: 16, ..Settings::default() };
        let (pool, _) = Pool::open(&rt, files.clone(), small).await.expect("open");
        let v = pool.create_volume("v", MANY * BLOCK_U64, 4096).await.expect("create");
        let mut rng = Prng::new(77);
        let mut order: Vec<u64> = (0..MANY).collect();
        for round in 1..=3 {
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
            for (n, &lba) in order.iter().enumerate() {
                pool.write(v, Lba(lba), &block(round)).await.expect("write");
                if n % 500 == 0 {
                    pool.commit().await.expect("commit");
                }
            }
            if round < 3 {
                let name = format!("s{round}");
                pool.snapshots().take(wanted(v, &name)).await.expect("taken");
            }
        }
        pool.commit().await.expect("commit");
        let before = check_pool(&rt, files.clone()).await;
        assert!(before.is_clean() && before.counts.dead_runs > 8000, "{before:?}");
        // The older one first: its blocks stand in the list of the newer one.
        for name in ["s1", "s2"] {
            let snapshot = pool.snapshots().find("v", name).expect("there");
            pool.snapshots().delete(snapshot.id).await.expect("deleted");
        }
        drained(&rt, &pool).await;
        pool.close().await.expect("close");
        let c = is_clean(&rt, &files, "drained").await;
        assert_eq!((c.snapshots, c.dead_runs, c.data_blocks), (0, 0, MANY));
    });
    assert!(lived.is_some());
}

/// The only copy of the nodes of a deadlist is bad: its blocks are leaked, and everything else goes
/// on.
#[test]
fn a_deadlist_that_cannot_be_read_stops_no_commit() {
    let (world, files) = bench(5);
    let w = world.clone();
    let lived = boot(world.backend(), Order::Seeded(5), |rt| async move {
        create_pool(&rt, &files, 1).await;
        let pool = open(&rt, files.clone()).await;
        let v = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("create");
        pool.write(v, Lba(0), &blocks(1, BLOCKS)).await.expect("write");
        pool.snapshots().take(wanted(v, "s")).await.expect("taken");
        pool.write(v, Lba(0), &blocks(2, 100)).await.expect("write");
        pool.close().await.expect("close");
        let mut hit = 0;
        for offset in (2 * MIB..DISK).step_by(BLOCK) {
            let node = w.contents(files[0].file, offset, 24);
            let tree = u64::from_le_bytes(node[16..24].try_into().expect("8 bytes"));
            if node.starts_with(b"FBnd") && tree >> 32 == 4 {
                let fault = Fault::BitRot { offset, len: BLOCK_U64 };
                hit += u64::from(w.inject(files[0].file, fault));
            }
        }
        assert!(hit > 0);
        let pool = open(&rt, files.clone()).await;
        pool.write(v, Lba(50), &blocks(3, 100)).await.expect("write");
        pool.commit().await.expect("a commit goes on");
        let snapshot = pool.snapshots().find("v", "s").expect("there");
        let data = pool.read(snapshot.id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(1), "the snapshot has what it had");
        pool.snapshots().delete(snapshot.id).await.expect("deleted");
        drained(&rt, &pool).await;
        assert!(pool.snapshots().all().is_empty());
        let data = pool.read(v, Lba(50), 100).await.expect("read");
        assert_eq!(only_byte(&data), Some(3));
        pool.close().await.expect("close");
        let report = check_pool(&rt, files).await;
        let is_leak = |p: &offline::Problem| p.what.contains("nothing refers to them");
        let what = "the space is lost, and nothing else";
        assert!(report.problems.iter().all(is_leak) && report.errors > 0, "{what}: {report:?}");
    });
    assert!(lived.is_some());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (world, files) = bench(1);
    boot(world.backend(), Order::Seeded(1), |rt| async move {
        create_pool(&rt, &files, 1).await;
        let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
        let v = pool.create_volume("v", MIB, 4096).await.expect("create");
        pool.write(v, Lba(0), &block(1)).await.expect("write");
        let ids = pool.snapshots().take(wanted(v, "a")).await.expect("taken");
        let kind = |outcome: base::Result<Vec<VolumeId>>| outcome.expect_err("refused").kind;
        assert_eq!(kind(pool.snapshots().take(wanted(v, "a")).await), ErrorKind::Exists);
        assert_eq!(kind(pool.snapshots().take(wanted(v, "")).await), ErrorKind::Invalid);
        assert_eq!(kind(pool.snapshots().take(vec![]).await), ErrorKind::Invalid);
        assert_eq!(kind(pool.snapshots().take(wanted(ids[0], "b")).await), ErrorKind::NotFound);
        let twice = [wanted(v, "b"), wanted(v, "c")].concat();
        assert_eq!(kind(pool.snapshots().take(twice).await), ErrorKind::Invalid);
        assert!(pool.write(ids[0], Lba(0), &block(2)).await.is_err(), "it never changes");
        assert!(pool.discard(ids[0], Lba(0), Lba(1)).await.is_err());
        assert!(pool.delete_volume(ids[0]).await.is_err(), "it is no volume");
        let e = pool.delete_volume(v).await.expect_err("it has a snapshot");
        assert!(e.context.contains("1 snapshot"), "{e}");
        pool.snapshots().rename(ids[0], "z").await.expect("renamed");
        assert!(pool.snapshots().find("v", "a").is_none());
        assert_eq!(pool.snapshots().of(v).len(), 1);
        assert_eq!(pool.volumes().len(), 1, "it is no volume");
        pool.snapshots().delete(ids[0]).await.expect("deleted");
        assert_eq!(
            pool.snapshots().delete(ids[0]).await.expect_err("gone").kind,
            ErrorKind::NotFound
        );
        pool.delete_volume(v).await.expect("its snapshots are gone, or about to be");
        pool.close().await.expect("close");
    });
}
