//! Nodes of the index stand twice, and nodes and pages that cannot be written in their place stand
//! elsewhere.

use std::time::Duration;

use base::{BLOCK, BLOCK_U64, BucketId, CacheAddr, Lba, VolumeId};
use format::cache::bucket::BucketKind;
use model::cache::CacheState;
use sim::Fault;

use crate::device::table::{choose_slot, open_slot, read_slots};
use crate::testkit::{Lab, fill, open, settings};
use crate::{Cache, Settings};

/// Few nodes stay in memory, so that they are read again and again.
fn few_nodes() -> Settings {
    Settings { resident_nodes: 8, ..settings() }
}

/// Where each node of the last checkpoint stands, and its copy.
fn places(cache: &Cache) -> Vec<(CacheAddr, Option<CacheAddr>)> {
    let st = cache.core().state();
    let all = (0..cache.core().layout().buckets).flat_map(|id| {
        let record = st.buckets.record(BucketId(id));
        let blocks = u64::from(cache.core().layout().bucket_blocks);
        let first = u64::from(id) * blocks;
        let is_nodes = record.kind == BucketKind::Nodes;
        (first..first + if is_nodes { blocks } else { 0 }).map(CacheAddr)
    });
    all.map(|addr| (addr, st.buckets.table().copy_of(addr))).collect()
}

/// Dirty blocks enough for many nodes: `blocks` single ones.
async fn fill_many(cache: &Cache, a: VolumeId, blocks: u64, byte: u8) {
    for i in 0..blocks {
        fill(cache, a, i * 3, 1, byte.wrapping_add(i as u8)).await;
    }
}

async fn expect_many(cache: &Cache, a: VolumeId, blocks: u64, byte: u8) {
    for i in 0..blocks {
        let read = cache.read(a, Lba(i * 3), 1).await.expect("read");
        assert_eq!(read[0][0], byte.wrapping_add(i as u8), "block {}", i * 3);
    }
}

/// Makes one place of each node bad: the first, or that of the copy; or by turns.
#[derive(Clone, Copy, Debug)]
enum Which {
    First,
    Copy,
    ByTurns,
}

fn spoil(lab: &Lab, cache: &Cache, which: Which, rots: bool) -> usize {
    let mut spoilt = 0;
    for (i, (addr, copy)) in places(cache).into_iter().enumerate() {
        let copy = copy.expect("each node stands twice");
        let bad = match which {
            Which::First => addr,
            Which::Copy => copy,
            Which::ByTurns if i % 2 == 0 => addr,
            Which::ByTurns => copy,
        };
        let offset = cache.core().offset_of(bad);
        let fault = match rots {
            true => Fault::BitRot { offset, len: BLOCK_U64 },
            false => Fault::ReadError { offset, len: BLOCK_U64 },
        };
        assert!(lab.world.inject(lab.device, fault));
        spoilt += 1;
    }
    spoilt
}

#[test]
fn an_unreadable_copy_of_each_node_stops_neither_write_back_nor_a_start() {
    for (which, rots) in [
        (Which::First, false),
        (Which::Copy, false),
        (Which::ByTurns, false),
        (Which::ByTurns, true),
    ] {
        let lab = Lab::new();
        lab.with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            fill_many(&cache, a, 900, 1).await;
        });
        // A start that reads the nodes, and replays over them.
        lab.power_cut(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            cache.flows().checkpointer.checkpoint_now().await.expect("a checkpoint");
            fill_many(&cache, a, 900, 2).await;
            cache.flush().await.expect("flush");
        });
        let (files, file) = (lab.files(), lab.file());
        lab.boot({
            let world = (lab.world.clone(), lab.device);
            move |rt| async move {
                let (pool, cache, a) = open(&rt, files, &file, few_nodes()).await;
                let lab = Lab { world: world.0, device: world.1, disk: world.1 };
                assert!(spoil(&lab, &cache, which, rots) > 30);
                cache.publish_all().await.expect("written back");
                assert!(cache.core().levels().all_written_back());
                expect_many(&cache, a, 900, 2).await;
                let index = cache.status().index;
                assert!(matches!(which, Which::Copy) || index.bad_copies > 0, "{index:?}");
                rt.sleep(Duration::from_secs(1)).await;
                let index = cache.status().index;
                assert_eq!(index.bad_copies, index.healed_copies, "{which:?}");
                // Changes of the run, and losses to the faults that were not met.
                cache.close().await.expect("close");
                pool.close().await.expect("close");
            }
        });
        lab.with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            expect_many(&cache, a, 900, 2).await;
            // A start after one that found bad nodes alone.
            fill_many(&cache, a, 900, 3).await;
        });
        lab.with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            expect_many(&cache, a, 900, 3).await;
        });
        let report = lab.check();
        assert_eq!(report.findings.errors, 0, "{which:?}: {:?}", report.findings.problems);
    }
}

#[test]
fn a_start_reads_the_copy_of_a_node_that_cannot_be_read() {
    let lab = Lab::new();
    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        fill_many(&cache, a, 900, 1).await;
        cache.flows().checkpointer.checkpoint_now().await.expect("a checkpoint");
        fill_many(&cache, a, 900, 2).await;
        cache.flush().await.expect("flush");
    });
    let (buckets, layout) = table(&lab);
    let mut spoilt = 0;
    for (id, record) in (0u64..).zip(&buckets) {
        if record.kind == BucketKind::Nodes {
            let blocks = u64::from(layout.bucket_blocks);
            let offset = layout.offset_of(CacheAddr(id * blocks));
            lab.world.inject(lab.device, Fault::ReadError { offset, len: blocks * BLOCK_U64 });
            spoilt += 1;
        }
    }
    assert!(spoilt > 1);
    let report = lab.check();
    assert_eq!(report.findings.errors, 0, "{:?}", report.findings.problems);
    assert!(report.findings.damaged_copies > 10, "{:?}", report.findings.problems);
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        expect_many(&cache, a, 900, 2).await;
        cache.publish_all().await.expect("written back");
    });
}

/// The bucket table of the newest checkpoint.
fn table(lab: &Lab) -> (Vec<format::cache::bucket::BucketRecord>, crate::device::layout::Layout) {
    let (sb, layout, file) = (lab.superblock(), lab.layout(), lab.device);
    let records = lab.boot(move |rt| async move {
        let device = queue::Device::new(&rt, file, queue::Limits::default());
        let mut all = Vec::new();
        for page in 0..layout.pages() {
            let slots = read_slots(&device, &layout, page).await;
            let found = choose_slot(&slots, &layout, sb.uuid, page, sb.generation);
            all.extend(found.expect("good").records);
        }
        device.close();
        all
    });
    (records, layout)
}

#[test]
fn nodes_whose_place_takes_no_write_are_written_elsewhere() {
    let lab = Lab::new();
    let (files, file, world) = (lab.files(), lab.file(), lab.world.clone());
    let device = lab.device;
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        // The buckets that the next nodes would get, and those of their copies.
        let mut free = cache.core().state().buckets.reuse().all_free();
        let mut next = Vec::new();
        for _ in 0..3 {
            let first = free.remove(0);
            let far = (0..32).max_by_key(|at| free[*at].0.abs_diff(first.0)).expect("one");
            next.extend([first, free.remove(far)]);
        }
        for id in next {
            let blocks = u64::from(cache.core().layout().bucket_blocks);
            let offset = cache.core().offset_of(CacheAddr(u64::from(id.0) * blocks));
            let len = blocks * BLOCK_U64;
            world.inject(device, Fault::FailWrites { offset, len });
        }
        fill_many(&cache, a, 900, 1).await;
        cache.flows().checkpointer.checkpoint_now().await.expect("written elsewhere");
        let status = cache.status();
        assert_eq!(status.state, CacheState::Serving);
        assert!(status.index.moved > 0, "{:?}", status.index);
        cache.publish_all().await.expect("written back");
        expect_many(&cache, a, 900, 1).await;
        // Nodes that stand once are written anew, twice.
        rt.sleep(Duration::from_secs(120)).await;
        let status = cache.status();
        assert_eq!(status.index.nodes_once, 0, "{:?}", status.index);
        cache.close().await.expect("close");
        pool.close().await.expect("close");
    });
    assert_eq!(lab.check().findings.errors, 0);
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        expect_many(&cache, a, 900, 1).await;
    });
    // Healed by then, the device is used as before.
    lab.world.cure(lab.device);
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        fill_many(&cache, a, 900, 2).await;
        cache.publish_all().await.expect("written back");
        assert_eq!(cache.status().index.moved, 0);
    });
}

#[test]
fn a_device_that_takes_no_writes_at_all_ends_the_cache_as_before() {
    let lab = Lab::new();
    let (files, file, world) = (lab.files(), lab.file(), lab.world.clone());
    let device = lab.device;
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        fill_many(&cache, a, 900, 1).await;
        cache.flush().await.expect("flush");
        let (offset, len) = (cache.core().layout().buckets_offset(), u64::MAX / 2);
        world.inject(device, Fault::FailWrites { offset, len });
        let e =
            cache.flows().checkpointer.checkpoint_now().await.expect_err("nothing can be written");
        assert!(e.to_string().contains("write of the index"), "{e}");
        assert_eq!(cache.status().state, CacheState::Failed);
        cache.close().await.ok();
        pool.close().await.ok();
    });
    lab.world.cure(lab.device);
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        expect_many(&cache, a, 900, 1).await;
    });
}

#[test]
fn a_table_page_whose_slots_take_no_write_stands_in_spare_blocks() {
    let lab = Lab::new();
    let of_table = lab.layout().page_offset(0, 0);
    lab.world.inject(lab.device, Fault::FailWrites { offset: of_table, len: 2 * BLOCK_U64 });
    for byte in 1..5 {
        lab.with(move |cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            fill_many(&cache, a, 300, byte).await;
            cache.flows().checkpointer.checkpoint_now().await.expect("a page is written elsewhere");
            fill_many(&cache, a, 900, byte).await;
            assert_eq!(cache.status().state, CacheState::Serving);
        });
        assert_eq!(lab.superblock().moved.len(), 2, "both slots of the page");
        assert_eq!(lab.check().findings.errors, 0);
        lab.with(move |cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            expect_many(&cache, a, 900, byte).await;
        });
    }
    // The page is read from the spare blocks, and from there alone.
    let layout = lab.layout();
    assert!([0, 1].iter().all(|slot| layout.page_offset(0, *slot) < of_table));
    let uuid = lab.superblock().uuid;
    let (world, device) = (lab.world.clone(), lab.device);
    let whole = lab.boot(move |rt| async move {
        [0, 1].map(|slot| {
            let mut block = rt.bufs().zeroed(BLOCK);
            block.copy_from_slice(&world.contents(device, layout.page_offset(0, slot), BLOCK));
            open_slot(Some(&block), &layout, uuid, 0, slot).is_ok()
        })
    });
    assert_eq!(whole, [true, true]);
    // Where all spare blocks are bad, too, the cache ends with what it had.
    lab.world.inject(lab.device, Fault::FailWrites { offset: 0, len: of_table + 2 * BLOCK_U64 });
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = pool::Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        let e = Cache::open(&rt, &file, &pool, settings()).await.err().expect("no write");
        assert!(e.to_string().contains("cannot be written"), "{e}");
        pool.close().await.expect("close");
    });
}
