//! A volume whose mapping cannot be read does not stop the write-back of others.

use std::time::Duration;

use base::{BLOCK, ErrorKind, Lba, SECTOR, VolumeId};
use format::tree::{group_of_tree, mapping_tree_id};
use queue::Class;
use sim::Fault;

use crate::policy::seal::WhichCut;
use crate::space::take::TakenBlocks;
use crate::store::buckets::census::Stream;
use crate::store::key::Body;
use crate::store::state::State;
use crate::testkit::{BLOCKS, Lab, POOL_BYTES, fill, open, place_of, settings, write_part};
use crate::writeback::walk::{Carried, Content};
use crate::{Cache, Patch, Settings, StreamWrites};

const A: VolumeId = VolumeId(1);

/// From now on the leaves of the mapping of "a" cannot be read, until the disk is revived.
fn lose_mapping(lab: &Lab) {
    let lost = lose_leaves(lab, |tree| tree == mapping_tree_id(A));
    assert!(lost > 1, "{lost}");
}

/// The same of some trees; returns how many leaves.
fn lose_leaves(lab: &Lab, of: impl Fn(u64) -> bool) -> usize {
    let mut lost = 0;
    for at in (0..POOL_BYTES).step_by(BLOCK) {
        let block = lab.world.contents(lab.disk, at, BLOCK);
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        let is_node = block.starts_with(b"FBnd");
        if is_node && of(number(16)) && block[4] == 0 {
            let fault = Fault::FailReads { offset: at, len: BLOCK as u64, times: u32::MAX };
            assert!(lab.world.inject(lab.disk, fault));
            lost += 1;
        }
    }
    lost
}

/// Takes all the room there is, to the last block. Clean buckets are evicted, as long as there are
/// some.
async fn take_all(cache: &Cache) -> Vec<TakenBlocks> {
    let (mut taken, mut idle) = (Vec::new(), 0);
    while idle < 100 {
        let some = cache.take_some(Stream::Main, 16);
        if some.blocks() > 0 {
            taken.push(some);
            continue;
        }
        idle = if cache.status().buckets.clean > 0 { 0 } else { idle + 1 };
        cache.rt().sleep(Duration::from_millis(1)).await;
    }
    taken
}

async fn is_staged(cache: &Cache, volume: VolumeId, lba: u64) -> bool {
    let range = (Lba(lba), Lba(lba + 1));
    let look = |st: &mut State| st.index.overlapping(&st.buckets, volume, range, 1);
    let found = cache.resident(Class::Foreground, look).await.expect("look");
    matches!(found.first().expect("there").body, Body::Staged { .. })
}

async fn byte_of(cache: &Cache, volume: VolumeId, lba: u64) -> Result<u8, ErrorKind> {
    let found = cache.read(volume, Lba(lba), 1).await;
    found.map(|data| data[0][0]).map_err(|e| e.kind)
}

#[test]
fn one_volume_that_cannot_be_reached_stops_no_other() {
    let lab = Lab::new();
    lose_mapping(&lab);
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.within_an_hour(settings(), move |cache, a| async move {
        assert_eq!(a, A);
        let b = cache.pool().find_volume("b").expect("there").id;
        fill(&cache, b, 0, 10, 77).await;
        for _ in 0..3 {
            cache.publish_all().await.expect("b comes to the pool");
        }
        assert_eq!(cache.pool().read(b, Lba(0), 1).await.expect("read")[0][0], 77);
        let kept = cache.kept();
        assert!(matches!(&kept[..], [(id, kept)] if *id == a && kept.blocks == 450), "{kept:?}");
        assert_eq!(byte_of(&cache, a, 2003).await, Ok(1));
        assert_eq!(byte_of(&cache, a, 3050).await, Ok(0));
        let e = cache.write_all_back().await.expect_err("a is not written back");
        assert!(e.context.starts_with("450 blocks of volume a in the cache"), "{e}");
        // An eighth of the cache is full of it.
        let mut block = cache.pool().bufs().take(BLOCK);
        block.fill(5);
        let block = block.freeze();
        let e = cache.write(a, Lba(7), &block).await.expect_err("no more of a");
        assert!(e.context.starts_with("volume a takes no more writes"), "{e}");
        fill(&cache, b, 20, 10, 78).await;
        cache.publish_all().await.expect("b comes to the pool");
        cache.detach().await.expect_err("it stays");
        world.revive(disk);
        cache.write_all_back().await.expect("all is well");
        assert!(cache.kept().is_empty() && cache.is_written_back(a));
        assert_eq!(cache.pool().read(a, Lba(2003), 1).await.expect("read")[0][0], 1);
        cache.write(a, Lba(7), &block).await.expect("a is written to again");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// Where the cache has no room it is staged in the next epoch.
#[test]
fn what_is_staged_of_it_comes_into_the_cache() {
    for (cut, full) in [(false, false), (true, false), (false, true), (true, true)] {
        let lab = Lab::new();
        lab.with(|cache| async move {
            cache.publish_all().await.expect("published");
        });
        lose_mapping(&lab);
        let past = || Settings {
            stream_writes: StreamWrites::Past,
            sequential_cutoff: 64 << 10,
            ..settings()
        };
        let (files, file) = (lab.files(), lab.file());
        let rt = rt::Rt::new(lab.world.backend(), rt::Order::Seeded(3), 1024);
        let r = rt.clone();
        rt.block_on(async move {
            let (pool, cache, a) = open(&r, files, &file, past()).await;
            let b = pool.find_volume("b").expect("there").id;
            fill(&cache, b, 0, 10, 77).await;
            for i in 0..4 {
                fill(&cache, a, 3200 + i * 32, 32, 9 + i as u8).await;
            }
            let staged = cache.status().staged_bytes / BLOCK as u64;
            assert!(staged >= 64, "{staged} blocks are staged");
            let mut part = cache.pool().bufs().take(SECTOR);
            part.fill(200);
            write_part(&cache, (a, Lba(3300)), SECTOR, &part.freeze()).await.expect("part");
            let taken = if full { take_all(&cache).await } else { Vec::new() };
            cache.publish_all().await.expect("b comes to the pool");
            let status = cache.status();
            assert_eq!(status.kept.len(), 1);
            if full {
                assert!(status.staged_bytes > 0, "{status:?}");
                assert_eq!(pool.stagings().len(), 1);
                // What a client writes meanwhile is not replaced.
                fill(&cache, a, 3232, 4, 100).await;
                cache.publish_all().await.expect("b comes to the pool");
            } else {
                assert_eq!(status.staged_bytes, 0);
                assert!(pool.stagings().is_empty());
            }
            drop(taken);
            if cut {
                cache.flush().await.expect("flush");
            } else {
                cache.close().await.expect("close");
                pool.close().await.expect("close");
            }
        })
        .expect("not killed");
        if cut {
            lab.world.power_cut();
        }
        rt.kill();
        lab.world.revive(lab.disk);
        lab.with(move |cache| async move {
            for _ in 0..2 {
                for i in 0..128 {
                    let expected = match i {
                        32..36 if full => 100 + i as u8 - 32,
                        _ => (9 + i / 32 + i % 32) as u8,
                    };
                    assert_eq!(byte_of(&cache, A, 3200 + i).await, Ok(expected), "block {i}");
                }
                let part = cache.read(A, Lba(3300), 1).await.expect("read");
                assert_eq!(part[0][SECTOR], 200);
                cache.write_all_back().await.expect("all is well");
            }
        });
        let report = lab.check();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// The pool cannot say which staged blocks have arrived. What they hold says it, so the start is
/// not refused.
#[test]
fn a_start_goes_on_without_the_checksums_of_what_is_staged() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    let past = || Settings {
        stream_writes: StreamWrites::Past,
        sequential_cutoff: 64 << 10,
        ..settings()
    };
    let rt = rt::Rt::new(lab.world.backend(), rt::Order::Seeded(3), 1024);
    let r = rt.clone();
    rt.block_on(async move {
        let (_, cache, a) = open(&r, files, &file, past()).await;
        for i in 0..4 {
            fill(&cache, a, 3200 + i * 32, 32, 9 + i as u8).await;
        }
        assert!(cache.status().staged_bytes > 0);
        cache.flush().await.expect("flush");
    })
    .expect("not killed");
    lab.world.power_cut();
    rt.kill();
    assert!(lose_leaves(&lab, |tree| group_of_tree(tree).is_some()) > 1);
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.within_an_hour(settings(), move |cache, a| async move {
        assert!(cache.status().staged_bytes > 0);
        assert_eq!(byte_of(&cache, a, 3300).await, Err(ErrorKind::Io));
        world.revive(disk);
        for i in 0..128 {
            let expected = (9 + i / 32 + i % 32) as u8;
            assert_eq!(byte_of(&cache, a, 3200 + i).await, Ok(expected), "block {i}");
        }
        cache.write_all_back().await.expect("all is well");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// A part lies over a staged block of a cut, and was written when the cut was there already: also
/// by a write that had looked before the pass did.
#[test]
fn a_part_that_was_written_since_the_cut_keeps_what_it_lies_over() {
    let cases = (0..8).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0));
    for (before_the_cut, late, full) in cases {
        let lab = Lab::new();
        lab.with(|cache| async move {
            cache.publish_all().await.expect("published");
        });
        lose_mapping(&lab);
        let past = Settings {
            stream_writes: StreamWrites::Past,
            sequential_cutoff: 64 << 10,
            ..settings()
        };
        let (world, disk) = (lab.world.clone(), lab.disk);
        lab.within_an_hour(past, move |cache, a| async move {
            for i in 0..4 {
                fill(&cache, a, 3200 + i * 32, 32, 9 + i as u8).await;
            }
            let sector = |byte| {
                let mut part = cache.pool().bufs().take(SECTOR);
                part.fill(byte);
                part.freeze()
            };
            let block = (a, Lba(3300));
            if before_the_cut {
                write_part(&cache, block, SECTOR, &sector(199)).await.expect("part");
            }
            let mut room = cache.upkeep_room().await.expect("room");
            cache.take_cut(&mut room);
            drop(room);
            cache.writeback().passes_mut().cuts_mut().carry(WhichCut::Oldest);
            let known = write_part(&cache, block, SECTOR, &sector(200)).await.expect("part");
            let mut planned = cache.plan(a, Lba(3204), 1).await.expect("planned");
            let mut planned_part = cache.plan(a, Lba(3300), 1).await.expect("planned");
            let taken = if full { take_all(&cache).await } else { Vec::new() };
            cache.next_pass().await.expect("the cut is published");
            assert_eq!(cache.pool().stagings().len(), usize::from(full));
            assert_eq!(is_staged(&cache, a, 3300).await, full);
            drop(taken);
            let piece = planned.pop().expect("a piece");
            let read = cache.read_piece(a, piece, false).await.expect("the cache has it");
            assert_eq!(read[0][0], 13);
            let piece = planned_part.pop().expect("a piece");
            let read = cache.read_piece(a, piece, false).await.expect("the cache has it");
            assert_eq!((read[0][0], read[0][SECTOR]), (16, 200));
            if late {
                let patch = Patch { at: 2 * SECTOR, data: sector(201) };
                cache.write_parts(block, &[patch], Some(known)).await.expect("part");
            }
            for _ in 0..2 {
                let part = cache.read(a, Lba(3300), 1).await.expect("the cache has it");
                assert_eq!((part[0][0], part[0][SECTOR]), (16, 200), "{before_the_cut} {late}");
                assert_eq!(part[0][2 * SECTOR], if late { 201 } else { 16 });
                world.revive(disk);
                cache.write_all_back().await.expect("all is well");
            }
        });
        let report = lab.check();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// What an earlier try has copied is not copied again: that would need room again each time.
#[test]
fn a_pass_that_is_tried_again_copies_nothing_twice() {
    let lab = Lab::new();
    let past =
        Settings { stream_writes: StreamWrites::Past, sequential_cutoff: 64 << 10, ..settings() };
    lab.within_an_hour(past, move |cache, a| async move {
        for i in 0..4 {
            fill(&cache, a, 3200 + i * 32, 32, 9 + i as u8).await;
        }
        let mut room = cache.upkeep_room().await.expect("room");
        cache.take_cut(&mut room);
        drop(room);
        let cut = cache.writeback().passes_mut().cuts_mut().carry(WhichCut::Oldest);
        let cut = cut.expect("it was taken");
        let why = base::StorageError::new(ErrorKind::Unreachable, "lost");
        let run =
            Carried { volume: a, lba: Lba(3232), blocks: 96, content: Content::Staged(cut.epoch) };
        let written = || cache.device().queue().stats().of(Class::WriteBack).write.bytes;
        let before = written();
        cache.keep_run(&run, why.clone(), &cut).await.expect("kept");
        let once = written();
        assert!(once >= before + 64 * BLOCK as u64, "{}", once - before);
        cache.keep_run(&run, why, &cut).await.expect("kept");
        assert_eq!(written(), once);
        assert_eq!(byte_of(&cache, a, 3300).await, Ok(16));
    });
}

/// A pass fails in the middle of what it keeps. Its next try keeps the rest, and the status has
/// all.
#[test]
fn what_an_earlier_try_has_kept_stays_in_the_status() {
    for full in [false, true] {
        let lab = Lab::new();
        lab.with(|cache| async move {
            cache.publish_all().await.expect("published");
        });
        lose_mapping(&lab);
        let past = Settings {
            stream_writes: StreamWrites::Past,
            sequential_cutoff: 64 << 10,
            ..settings()
        };
        let (world, device) = (lab.world.clone(), lab.device);
        lab.within_an_hour(past, move |cache, a| async move {
            for i in 0..4 {
                fill(&cache, a, 3200 + i * 32, 32, 9 + i as u8).await;
            }
            fill(&cache, a, 7, 3, 5).await;
            let staged = cache.status().staged_bytes / BLOCK as u64;
            assert!(staged >= 64, "{staged} blocks are staged");
            let mut part = cache.pool().bufs().take(SECTOR);
            part.fill(200);
            write_part(&cache, (a, Lba(3300)), SECTOR, &part.freeze()).await.expect("part");
            let (addr, len) = (place_of(&cache, a, 3300).await, BLOCK as u64);
            let offset = cache.offset_of(addr);
            let lost = Fault::FailReads { offset, len, times: u32::MAX };
            assert!(world.inject(device, lost));
            let taken = if full { take_all(&cache).await } else { Vec::new() };
            let e = cache.next_pass().await.expect_err("the part cannot be read");
            assert!(e.context.starts_with("block 3300 of volume a is bad in the cache"), "{e}");
            world.revive(device);
            cache.next_pass().await.expect("published");
            drop(taken);
            let kept = cache.kept();
            assert!(matches!(&kept[..], [(id, kept)] if *id == a && kept.all() == 131), "{kept:?}");
        });
    }
}

/// Nothing of the volume is left, and nothing else is dirty: no pass comes that would see it.
#[test]
fn what_is_dirty_no_more_is_not_kept() {
    let lab = Lab::new();
    lab.with(|cache| async move {
        cache.publish_all().await.expect("published");
    });
    lose_mapping(&lab);
    lab.within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 2000, 600, 1).await;
        cache.publish_all().await.expect("published");
        assert_eq!(cache.kept_blocks(), 600);
        let why = cache.check_writable(a).expect_err("much is kept");
        assert!(why.context.starts_with("volume a takes no more writes"), "{why}");
        let alone = cache.between_passes().await;
        cache.forget_from(a, Lba(0)).await.expect("forget");
        drop(alone);
        assert_eq!((cache.kept().len(), cache.kept_blocks()), (0, 0));
        fill(&cache, a, 7, 1, 5).await;
    });
}

#[test]
fn a_volume_that_is_deleted_is_kept_no_more() {
    let lab = Lab::new();
    lose_mapping(&lab);
    lab.within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("published");
        assert_eq!(cache.kept().len(), 1);
        cache.discard(a, Lba(0), Lba(BLOCKS)).await.expect("discard");
        cache.publish_all().await.expect("published");
        let kept = cache.kept();
        assert!(matches!(&kept[..], [(_, kept)] if kept.blocks == 0), "{kept:?}");
        cache.forget(a).await.expect("forget");
        cache.pool().delete_volume(a).await.expect("delete");
        cache.publish_all().await.expect("published");
        assert!(cache.kept().is_empty());
        cache.write_all_back().await.expect("all is well");
    });
}
