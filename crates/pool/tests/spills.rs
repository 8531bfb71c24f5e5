//! A pass writes nodes before its end, and so has few of them in memory, whatever it carries.

use base::{BLOCK_U64, Epoch, Lba, SliceList, VolumeId, crc32c};
use pool::{Pass, Pool, Settings};
use rt::Rt;
use sim::Fault;
use testkit::{Mirror, block, only_byte, open, put};

/// Changed nodes from which on a pass writes them.
const NODES: u64 = 8;
/// Nodes that one more edit may change.
const ONE_EDIT: u64 = 12;
/// Blocks that are written, and how far they are from each other.
const WRITTEN: u64 = 2700;
const APART: u64 = 64;
/// Some of them.
const MORE: u64 = 300;
const ONE: Epoch = Epoch(1);

/// A pool of two copies with a volume of which each of the blocks holds `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (2, 2), |pool| async move {
        let size = WRITTEN * APART * BLOCK_U64;
        let id = pool.create_volume("v", size, 4096).await.expect("volume");
        for i in 0..WRITTEN {
            put(&pool, id, i * APART, 1, 1).await;
        }
        pool.cache_link().set_cache_uuid(Some([9; 16])).await.expect("cache");
        id
    })
}

async fn opened(rt: &Rt, files: Vec<pool::DeviceFile>) -> Pool {
    let pool = open(rt, files).await;
    pool.set(Settings { dirty_nodes: NODES, ..pool.current_settings() }).expect("set");
    pool
}

/// Block `i` holds `value` when the pass is published.
async fn carry(pass: &Pass, id: VolumeId, i: u64, value: u8) -> base::Result<()> {
    let data = block(value);
    let crcs = [crc32c(&data)];
    pass.write(id, Lba(i * APART), SliceList::from_iter([data]), &crcs).await
}

/// A pass that has carried `value` to all blocks.
async fn carried(pool: &Pool, id: VolumeId, value: u8) -> Pass {
    let mut room = pool.reserve_beside_changes(WRITTEN).await.expect("room");
    let pass = pool.begin_pass(&mut room).expect("pass");
    for i in 0..WRITTEN {
        carry(&pass, id, i, value).await.expect("write");
        let dirty = pool.status().memory.dirty_nodes;
        assert!(dirty < NODES + ONE_EDIT, "{dirty} changed nodes at block {i}");
    }
    pass
}

async fn publish(pass: Pass) {
    let handed_over = pass.hand_over(ONE, base::Instant(0)).await.expect("handed over");
    handed_over.commit().await.expect("commit");
}

async fn hold(pool: &Pool, id: VolumeId, value: u8) {
    for i in 0..WRITTEN {
        let data = pool.read(id, Lba(i * APART), 1).await.expect("read");
        assert_eq!(only_byte(&data), Some(value), "block {i}");
    }
}

/// The pool is whole, and all that is in use belongs to something.
fn is_whole(bench: &Mirror, value: u8) {
    let id = bench.volume;
    let used = bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        hold(&pool, id, value).await;
        rt.sleep(base::Duration::from_secs(1)).await;
        pool.commit().await.expect("commit");
        let used = pool.status().pool.used_bytes;
        pool.close().await.expect("close");
        used
    });
    let report = bench.check();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.counts.data_blocks, WRITTEN);
    assert_eq!(used / BLOCK_U64, report.counts.data_blocks + report.counts.nodes);
}

#[test]
fn a_pass_has_few_nodes_in_memory_and_is_published_whole() {
    let bench = mirror(1);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = opened(&rt, files).await;
        let pass = carried(&pool, id, 2).await;
        hold(&pool, id, 1).await;
        // Nodes that are written are edited again, at places in no order.
        for i in (0..WRITTEN).rev().step_by(7) {
            pass.discard(id, Lba(i * APART), Lba(i * APART + 1)).await.expect("discard");
        }
        publish(pass).await;
        for i in (0..WRITTEN).rev() {
            let want = if (WRITTEN - 1 - i) % 7 == 0 { 0 } else { 2 };
            let data = pool.read(id, Lba(i * APART), 1).await.expect("read");
            assert_eq!(only_byte(&data), Some(want), "block {i}");
            if want == 0 {
                put(&pool, id, i * APART, 1, 2).await;
            }
        }
        pool.close().await.expect("close");
    });
    is_whole(&bench, 2);
}

#[test]
fn a_pass_that_is_given_up_leaves_nothing_of_what_it_has_written() {
    let bench = mirror(2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = opened(&rt, files).await;
        let pass = carried(&pool, id, 2).await;
        drop(pass.abort().await.expect("it was open"));
        hold(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
    is_whole(&bench, 1);
}

#[test]
fn power_that_fails_during_a_pass_leaves_nothing_of_what_it_has_written() {
    let bench = mirror(3);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.try_run(|rt, files| async move {
        let pool = opened(&rt, files).await;
        let _pass = carried(&pool, id, 2).await;
        world.power_cut();
        rt.kill();
        std::future::pending::<()>().await;
    });
    is_whole(&bench, 1);
}

/// Both devices are full while nodes are written. What was not is written later, before what is
/// newer.
#[test]
fn nodes_that_could_not_be_written_are_written_again() {
    let bench = mirror(4);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.run(|rt, files| async move {
        let pool = opened(&rt, files.clone()).await;
        let pass = pool.begin_pass(&mut pool.reserve(WRITTEN).expect("room")).expect("pass");
        let full = |is: bool| {
            files.iter().for_each(|f| assert!(world.inject(f.file, Fault::Full(is))));
        };
        let mut failed = 0;
        for i in 0..WRITTEN {
            full(i % 40 == 39);
            while let Err(e) = carry(&pass, id, i, 2).await {
                assert_eq!(e.kind, base::ErrorKind::NoSpace, "{e}");
                failed += 1;
                full(false);
            }
        }
        full(false);
        assert!(failed > 10, "{failed}");
        publish(pass).await;
        hold(&pool, id, 2).await;
        pool.close().await.expect("close");
    });
    is_whole(&bench, 2);
}

/// Nodes that the pass wrote itself stand for blocks that it carried: without them it must not be
/// published, and the volume is not to blame.
#[test]
fn a_pass_that_cannot_read_its_own_nodes_fails() {
    let bench = mirror(5);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.run(|rt, files| async move {
        let few = Settings { dirty_nodes: 2, cached_nodes: 8, ..Settings::default() };
        let (pool, _) = Pool::open(&rt, files.clone(), few).await.expect("open");
        let room = &mut pool.reserve(WRITTEN).expect("room");
        let pass = pool.begin_pass(room).expect("pass");
        for i in 0..MORE {
            carry(&pass, id, i, 2).await.expect("write");
        }
        for file in &files {
            for (from, len) in world.recent_writes(file.file) {
                for offset in (from..from + len).step_by(base::BLOCK) {
                    if world.contents(file.file, offset, 4) == b"FBnd" {
                        world.inject(file.file, Fault::ReadError { offset, len: BLOCK_U64 });
                    }
                }
            }
        }
        // Others take their places in memory.
        hold(&pool, id, 1).await;
        let mut failed = None;
        for i in 0..MORE {
            if let Err(e) = carry(&pass, id, i, 3).await {
                failed = Some(e);
                break;
            }
        }
        let failed = failed.expect("it needs nodes that are not in memory");
        assert_ne!(failed.kind, base::ErrorKind::Unreachable, "{failed}");
        pass.abort().await.map(drop).expect("it was open");
        files.iter().for_each(|f| world.cure(f.file));
        hold(&pool, id, 1).await;
        pool.commit().await.expect("commit");
        pool.set(Settings { dirty_nodes: NODES, ..pool.current_settings() }).expect("set");
        let pass = carried(&pool, id, 2).await;
        publish(pass).await;
        pool.close().await.expect("close");
    });
    is_whole(&bench, 2);
}
