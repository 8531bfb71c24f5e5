//! What allocation finds, and what it does without.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Bitmap, BlockRange, Duration, ErrorKind, Lba, VolumeId};
use model::status::PoolState;
use queue::Class;
use rt::sync::within;
use rt::{Order, Rt};
use sim::{DiskModel, Fault, World};

use super::*;
use crate::space::{ChunkChange, CloseOutcome, Pin, Purpose, Run};
use crate::transfer::walk::{Leaf, Walk};
use crate::{CreateOptions, DeviceFile, Pool, Settings};

const MIB: u64 = 1 << 20;
const DISK: u64 = 16 * MIB;

/// A world with a pool of one copy on one disk, with an empty volume.
fn bench() -> (World, Vec<DeviceFile>) {
    let world = World::new(1);
    let file = world.add_disk(DiskModel::nvme(DISK));
    let files = vec![DeviceFile { path: "disk".into(), file, size_bytes: DISK }];
    run(&world, &files, |rt, files| async move {
        let options = CreateOptions { name: "tank".into(), copies: 1, group_bytes: Some(MIB) };
        crate::create(&rt, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
        let pool = open(&rt, files).await;
        assert_eq!(pool.create_volume("v", 1 << 30, 4096).await.expect("volume"), VolumeId(1));
        pool.close().await.expect("close");
    });
    (world, files)
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    world: &World,
    files: &[DeviceFile],
    body: impl FnOnce(Rt, Vec<DeviceFile>) -> F,
) -> T {
    let rt = Rt::new(world.backend(), Order::Seeded(world.history_hash()), 256);
    let out = rt.block_on(body(rt.clone(), files.to_vec()));
    rt.kill();
    out.expect("alive")
}

async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Pool {
    let settings = Settings { loaded_groups: 2, ..Settings::default() };
    Pool::open(rt, files, settings).await.expect("open").0
}

fn all_groups(space: &Space) -> impl Iterator<Item = GroupId> {
    (0..).map(GroupId).take_while(|&id| space.groups.contains(id))
}

/// The first group of data.
fn data_group(space: &Space) -> GroupId {
    let mut all = all_groups(space);
    all.find(|&id| space.groups.kind(id) == GroupKind::Data).expect("a data group")
}

async fn publish(pass: &crate::Pass) {
    let handed = pass.hand_over(base::Epoch(1), base::Instant(0)).await.expect("handed over");
    handed.commit().await.expect("commit");
}

async fn put(pool: &Pool, lba: u64, blocks: u64) -> base::Result<()> {
    let data = pool.bufs().zeroed(blocks as usize * BLOCK).freeze();
    pool.write(VolumeId(1), Lba(lba), &data).await
}

/// As much as there is room for; so many blocks were written.
async fn fill(pool: &Pool) -> u64 {
    let mut at = 0;
    while put(pool, at, 64).await.is_ok() {
        at += 64;
    }
    at
}

/// A tree on a device refers to blocks that are free by the bitmap. The commit that frees them ends
/// the pool's standing, before anything is changed; nothing is tried again.
#[test]
fn a_free_of_what_is_free_changes_nothing_and_ends_commits() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 0, 8).await.expect("write");
        pool.commit().await.expect("commit");
        put(&pool, 100, 8).await.expect("write");
        {
            let mut st = pool.core().state_mut();
            let first =
                st.txns.open().allocs().flatten().next().expect("something was written").addr;
            st.txns.open_mut().note_free(Run { addr: first.plus(64), len: 2 }, u32::MAX);
        }
        let maps = || -> Vec<Option<Bitmap>> {
            let st = pool.core().state();
            let durable = |id| st.space.bitmaps.of(id).map(|m| m.durable.clone());
            all_groups(&st.space).map(durable).collect()
        };
        let before = maps();
        let e = pool.commit().await.expect_err("damaged");
        assert!(e.kind == ErrorKind::Damaged && e.context.contains("forebay check"), "{e}");
        assert_eq!(pool.commit().await.expect_err("for good").context, e.context);
        rt.sleep(Duration::from_secs(30)).await;
        assert!(maps() == before, "the bitmaps were changed in part");
        assert_eq!(put(&pool, 0, 1).await.expect_err("a write").context, e.context);
        pool.read(VolumeId(1), Lba(100), 8).await.expect("reads go on");
        assert_eq!(pool.status().pool.state, PoolState::Failed);
    });
}

#[test]
fn bitmaps_of_groups_that_were_formed_are_unloaded() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 0, 6 * MIB / BLOCK_U64).await.expect("write");
        pool.commit().await.expect("commit");
        rt.sleep(Duration::from_secs(1)).await;
        let loaded = pool.core().state().space.bitmaps.loaded();
        // Two, and those that the cursors are in.
        assert!(loaded <= 4, "{loaded}");
        pool.close().await.expect("close");
    });
}

#[test]
fn what_a_read_kept_from_being_free_is_free_when_it_has_ended() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        // So that direct writes have to leave something.
        let _reserved = pool.reserve(1).expect("room");
        let blocks = fill(&pool).await;
        for ended in [true, false] {
            pool.commit().await.expect("commit");
            let pin = pool.core().state().space.limbo().pin();
            pool.discard(VolumeId(1), Lba(0), Lba(blocks)).await.expect("discard");
            pool.commit().await.expect("commit");
            rt.sleep(Duration::from_secs(1)).await;
            assert!(pool.core().state().space.limbo().has_any());
            if ended {
                drop(pin);
            } else {
                // It ends in a moment.
                let r = rt.clone();
                rt.detach(async move {
                    r.sleep(Duration::from_millis(25)).await;
                    drop(pin);
                });
            }
            assert!(fill(&pool).await >= blocks / 2, "there was room");
        }
        pool.close().await.expect("close");
    });
}

#[test]
fn as_much_can_be_written_as_is_said_to_be_left() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let left = |pool: &Pool| pool.status().pool.available_bytes / BLOCK_U64;
        let said = left(&pool);
        let wrote = fill(&pool).await;
        assert!(wrote <= said && wrote + 64 > said, "{wrote} of {said}");
        assert!(left(&pool) < 64, "{} are left", left(&pool));
        pool.close().await.expect("close");
    });
}

/// A pool that was full, of which a read of all blocks, or of one, keeps what was discarded.
async fn discarded_while_pinned(
    rt: &Rt,
    pool: &Pool,
    pin: impl FnOnce(&crate::state::State) -> Pin,
) -> (Pin, u64) {
    let blocks = fill(pool).await;
    pool.commit().await.expect("commit");
    let pin = pin(&pool.core().state());
    pool.discard(VolumeId(1), Lba(0), Lba(blocks)).await.expect("discard");
    pool.commit().await.expect("commit");
    rt.sleep(Duration::from_secs(1)).await;
    assert!(pool.core().state().space.limbo().has_any());
    (pin, blocks)
}

/// Drops a pin after a while.
fn drop_later(rt: &Rt, secs: u64, pin: Pin) {
    let r = rt.clone();
    rt.detach(async move {
        r.sleep(Duration::from_secs(secs)).await;
        drop(pin);
    });
}

#[test]
fn a_write_waits_for_reads_of_freed_blocks_as_long_as_they_take() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let (pin, blocks) = discarded_while_pinned(&rt, &pool, |st| st.space.limbo().pin()).await;
        drop_later(&rt, 60, pin);
        let began = rt.now();
        assert!(fill(&pool).await >= blocks / 2, "there was room");
        assert!(rt.now().since(began) >= Duration::from_secs(60));
        pool.close().await.expect("close");
    });
}

/// A move has closed a group, and takes its time.
#[test]
fn a_write_waits_for_reads_of_freed_blocks_also_beside_a_move() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let (pin, blocks) = discarded_while_pinned(&rt, &pool, |st| st.space.limbo().pin()).await;
        {
            let mut st = pool.core().state_mut();
            let (demand, st) = (st.demand(), &mut *st);
            let group = data_group(&st.space);
            let keeps = st.space.groups().chunks(group).to_vec();
            let want = ChunkChange { group, keeps, loses: Vec::new(), gets: 1, of: None };
            assert_eq!(st.space.close_group(&st.devices, &want, &demand), CloseOutcome::Closed);
        }
        drop_later(&rt, 60, pin);
        let began = rt.now();
        let mut write = std::pin::pin!(put(&pool, 0, blocks / 2));
        let outcome = within(&mut write, rt.sleep(Duration::from_secs(600))).await;
        outcome.expect("it ends").expect("there is room");
        assert_eq!(rt.now().since(began).as_secs_f64() as u64, 60);
    });
}

#[test]
fn what_background_work_reads_keeps_no_other_block() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let one = |st: &crate::state::State| {
            let first = BlockRange::of(Lba(0), 1);
            let at = st.forest.extents(VolumeId(1), first, 1).expect("resident");
            st.space.limbo().pin_blocks([Run { addr: at[0].addr, len: 1 }], &st.space.limbo().pin())
        };
        let (pin, blocks) = discarded_while_pinned(&rt, &pool, one).await;
        let began = rt.now();
        put(&pool, 0, blocks / 2).await.expect("there is room");
        assert!(rt.now().since(began) < Duration::from_secs(1));
        // The last write has to wait for the rest of the page, which is of use to it.
        drop_later(&rt, 60, pin);
        fill(&pool).await;
        assert!(rt.now().since(began) >= Duration::from_secs(60));
        pool.close().await.expect("close");
    });
}

/// A pool with some data, of which the bitmap of the data group cannot be read.
fn bench_with_an_unreadable_bitmap() -> (World, Vec<DeviceFile>) {
    let (world, files) = bench();
    let pages = run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 0, 10).await.expect("write");
        pool.close().await.expect("close");
        let st = pool.core().state();
        let page = st.space.geometry().bitmap_page(data_group(&st.space), 0);
        [0, 1].map(|slot| st.space.geometry().page_offset(page, slot))
    });
    for offset in pages {
        world.inject(files[0].file, Fault::ReadError { offset, len: BLOCK_U64 });
    }
    (world, files)
}

/// One group is not counted among those from which something can be taken.
fn assert_one_is_passed_over(pool: &Pool) {
    assert_are_passed_over(pool, 1);
}

fn assert_are_passed_over(pool: &Pool, groups: usize) {
    let st = pool.core().state();
    assert_eq!(st.space.supply.unreadable(), groups);
    st.space.supply.check();
}

#[test]
fn a_group_whose_bitmap_cannot_be_read_is_passed_over() {
    let (world, files) = bench_with_an_unreadable_bitmap();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 1000, 10).await.expect("another group");
        pool.commit().await.expect("commit");
        assert_one_is_passed_over(&pool);
        // Torture's seed 80108223: what is left in that group is not known, so the pool is not
        // full.
        let mut at = 2000;
        let error = loop {
            match put(&pool, at, 64).await {
                Ok(()) => at += 64,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
        assert_eq!(pool.reserve(1 << 30).err().map(|e| e.kind), Some(ErrorKind::Io));
    });
}

/// Torture's seed 80206728. A commit tried again and again, and was the next to read the bitmap
/// each time; a write-back pass waited for it for ever, and with it every write.
#[test]
fn a_bitmap_that_cannot_be_read_keeps_nobody_waiting() {
    let (world, files) = bench_with_an_unreadable_bitmap();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let id = data_group(&pool.core().state().space);
        let (tries, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let again = {
            let (pool, tries, done) = (pool.clone(), tries.clone(), done.clone());
            rt.spawn(async move {
                while !done.get() && tries.get() < 100 {
                    pool.flows().loader.load_maps(id).await.expect_err("it cannot be read");
                    tries.set(tries.get() + 1);
                }
            })
        };
        let others: Vec<_> = (0..8)
            .map(|_| {
                let pool = pool.clone();
                rt.spawn(async move {
                    pool.flows().loader.load_maps(id).await.expect_err("it cannot be read")
                })
            })
            .collect();
        for other in others {
            other.await.expect("ran");
        }
        assert!(tries.get() <= 2, "{} tries before all others knew", tries.get());
        done.set(true);
        again.await.expect("ran");
    });
}

#[test]
fn blocks_go_elsewhere_while_the_checksums_of_a_group_cannot_be_read() {
    for by_pass in [false, true] {
        let (world, files) = bench();
        run(&world, &files, |rt, files| async move {
            let pool = open(&rt, files).await;
            put(&pool, 0, 10).await.expect("write");
            pool.close().await.expect("close");
        });
        let file = files[0].file;
        for offset in (0..DISK).step_by(BLOCK) {
            let block = world.contents(file, offset, BLOCK);
            let tree = u64::from_le_bytes(block[16..24].try_into().expect("8 bytes"));
            if format::tree::group_of_tree(tree).is_some() && block[4] == 0 {
                let fault = Fault::FailReads { offset, len: BLOCK_U64, times: u32::MAX };
                assert!(world.inject(file, fault));
            }
        }
        let disk = world.clone();
        run(&world, &files, |rt, files| async move {
            let pool = open(&rt, files).await;
            if by_pass {
                let data = pool.bufs().zeroed(10 * BLOCK);
                let crcs: Vec<_> = data.chunks(BLOCK).map(base::crc32c).collect();
                let pass = pool.begin_pass(&mut pool.reserve(10).expect("room")).expect("pass");
                let data = [data.freeze()].into_iter().collect();
                pass.write(VolumeId(1), Lba(1000), data, &crcs).await.expect("another group");
                assert_one_is_passed_over(&pool);
                publish(&pass).await;
            } else {
                put(&pool, 1000, 10).await.expect("another group");
            }
            pool.commit().await.expect("commit");
            assert_one_is_passed_over(&pool);
            pool.read(VolumeId(1), Lba(0), 1).await.expect_err("its checksum is not known");
            pool.discard(VolumeId(1), Lba(0), Lba(4)).await.expect("discard");
            pool.commit().await.expect("commit");
            assert_one_is_passed_over(&pool);
            disk.revive(file);
            // No commit comes by itself, and there is no room elsewhere.
            fill(&pool).await;
            pool.commit().await.expect("commit");
            assert_one_is_passed_over(&pool);
            rt.sleep(Duration::from_secs(61)).await;
            put(&pool, 2000, 64).await.expect("write");
            pool.commit().await.expect("commit");
            assert_are_passed_over(&pool, 0);
            put(&pool, 3000, 10).await.expect("write");
            pool.close().await.expect("close");
        });
        run(&world, &files, |rt, files| async move {
            let pool = open(&rt, files).await;
            for lba in [4, 9, 1000, 2000, 3000] {
                pool.read(VolumeId(1), Lba(lba), 1).await.expect("read");
            }
            pool.close().await.expect("close");
        });
    }
}

#[test]
fn a_write_back_pass_takes_nothing_from_it() {
    let (world, files) = bench_with_an_unreadable_bitmap();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let data = pool.bufs().zeroed(10 * BLOCK);
        let crcs: Vec<_> = data.chunks(BLOCK).map(base::crc32c).collect();
        let pass = pool.begin_pass(&mut pool.reserve(10).expect("room")).expect("pass");
        pass.write(VolumeId(1), Lba(1000), [data.freeze()].into_iter().collect(), &crcs)
            .await
            .expect("another group");
        assert_one_is_passed_over(&pool);
        publish(&pass).await;
        for lba in [0, 1000] {
            pool.read(VolumeId(1), Lba(lba), 10).await.expect("read");
        }
        pool.close().await.expect("close");
    });
}

#[test]
fn what_volumes_have_is_counted_as_it_changes() {
    let (world, files) = bench();
    let counted =
        |pool: &Pool, blocks: u64| assert_eq!(pool.core().state().forest.held().0, blocks);
    run(&world, &files, move |rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        pool.cache_link().set_cache_uuid(Some([9; 16])).await.expect("a cache");
        put(&pool, 0, 100).await.expect("write");
        put(&pool, 50, 100).await.expect("write");
        counted(&pool, 150);
        pool.discard(VolumeId(1), Lba(10), Lba(20)).await.expect("discard");
        counted(&pool, 140);
        let data = pool.bufs().zeroed(30 * BLOCK);
        let crcs: Vec<_> = data.chunks(BLOCK).map(base::crc32c).collect();
        let pass = pool.begin_pass(&mut pool.reserve(30).expect("room")).expect("pass");
        let data = [data.freeze()].into_iter().collect();
        pass.write(VolumeId(1), Lba(200), data, &crcs).await.expect("write");
        counted(&pool, 140);
        publish(&pass).await;
        counted(&pool, 170);
        pool.delete_volume(VolumeId(1)).await.expect("delete");
        pool.close().await.expect("close");
        let pool = open(&rt, files).await;
        rt.sleep(Duration::from_secs(1)).await;
        pool.commit().await.expect("commit");
        counted(&pool, 0);
        pool.close().await.expect("close");
    });
}

#[test]
fn a_look_at_the_pool_frees_a_little() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 0, 2000).await.expect("write");
        pool.commit().await.expect("commit");
        let pin = pool.core().state().space.limbo().pin();
        for lba in (0..2000).step_by(2) {
            pool.discard(VolumeId(1), Lba(lba), Lba(lba + 1)).await.expect("discard");
        }
        pool.commit().await.expect("commit");
        rt.sleep(Duration::from_secs(1)).await;
        drop(pin);
        let looks = (0..100).take_while(|_| {
            pool.status();
            pool.core().state().space.limbo().has_any()
        });
        assert!((2..50).contains(&looks.count()));
        pool.close().await.expect("close");
    });
}

/// The data blocks that a walk over the checksums of a group finds.
async fn walked(pool: &Pool, id: GroupId) -> usize {
    let mut walk = Walk::new(id, 0, pool.core().state().space.geometry().group_blocks);
    let (mut at, mut found) = (0, 0);
    loop {
        let leaf = pool.flows().loader.resident(Class::Scrub, |st| walk.next_leaf(st, at)).await;
        match leaf.expect("its tree can be read") {
            Leaf::Blocks(blocks, upto) => (at, found) = (upto, found + blocks.len()),
            Leaf::NoMaps => pool.flows().loader.load_maps(id).await.expect("they can be read"),
            Leaf::End => return found,
        }
    }
}

/// The checksums of blocks that were freed stay in the tree of a group, also where the group is
/// formed again for nodes.
#[test]
fn nodes_are_not_taken_for_the_data_that_the_group_held_before() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        put(&pool, 0, 100).await.expect("write");
        pool.commit().await.expect("commit");
        let id = data_group(&pool.core().state().space);
        assert_eq!(walked(&pool, id).await, 100);
        pool.discard(VolumeId(1), Lba(0), Lba(100)).await.expect("discard");
        pool.commit().await.expect("commit");
        pool.flows().room.empty_limbo().await;
        assert_eq!(pool.core().state().space.groups().kind(id), GroupKind::Free);
        assert_eq!(walked(&pool, id).await, 0);
        {
            let mut st = pool.core().state_mut();
            while st.space.groups().kind(id) == GroupKind::Free {
                assert!(matches!(st.alloc(GroupKind::Metadata, 64), Alloc::Got(_)));
            }
            // As of a commit that has written nodes there.
            let maps = st.space.bitmaps.of_mut(id).expect("they are new");
            maps.durable.assign(0, 100, true);
        }
        assert_eq!(walked(&pool, id).await, 0);
    });
}

/// Room for nodes is reserved for each change until it is made: as many begin as there is room for,
/// and others wait for these.
#[test]
fn changes_that_are_under_way_hold_room_for_their_nodes() {
    let (world, files) = bench();
    run(&world, &files, |rt, files| async move {
        let pool = open(&rt, files).await;
        let mut st = pool.core().state_mut();
        let admits = |st: &crate::state::State, purpose| {
            let (now, later) = (st.admits(purpose), st.admits_later(purpose));
            (now, later)
        };
        assert_eq!(admits(&st, Purpose::Write), (true, false));
        let before = st.space.groups().formable(&st.devices);
        let mut held = Vec::new();
        while st.admits(Purpose::Write) {
            held.push(st.space.claims().reserve_nodes());
        }
        let blocks = before * u64::from(st.space.geometry().group_blocks)
            + st.space.supply.free(GroupKind::Metadata);
        let reserved = st.space.claims.nodes();
        assert!(held.len() > 10 && reserved <= blocks, "{reserved} nodes in {blocks} blocks");
        assert_eq!(admits(&st, Purpose::Write), (false, true));
        held.clear();
        assert_eq!(admits(&st, Purpose::Write), (true, false));
        assert!(!st.may_take_later(1) && matches!(st.alloc(GroupKind::Data, 1), Alloc::Got(_)));
        drop(rt);
    });
}

/// Many writers at once on a pool that becomes full: what was admitted can be committed, and the
/// pool can be emptied again.
#[test]
fn many_writers_fill_a_pool_and_its_commits_find_room() {
    for seed in 0..3 {
        let (world, files) = bench();
        run(&world, &files, move |rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            let random = rt.clone();
            let writer = move |pool: Pool, rt: Rt| async move {
                let mut n = 0u64;
                // Far apart, so that each write changes leaves of its own.
                while put(&pool, (rt.random() + seed) % (1 << 18), 1 + rt.random() % 8)
                    .await
                    .is_ok()
                {
                    n += 1;
                }
                n
            };
            let tasks: Vec<_> =
                (0..64).map(|_| rt.spawn(writer(pool.clone(), random.clone()))).collect();
            let mut n = 0;
            for task in tasks {
                n += task.await.expect("it ends");
            }
            assert!(n > 200, "{n} writes");
            pool.commit().await.expect("what is dirty finds room");
            assert_eq!(pool.core().state().space.claims.nodes(), 0);
            pool.discard(VolumeId(1), Lba(0), Lba(1 << 18)).await.expect("discard");
            pool.commit().await.expect("commit");
            rt.sleep(Duration::from_secs(1)).await;
            put(&pool, 0, 64).await.expect("there is room again");
            pool.close().await.expect("close");
        });
    }
}
