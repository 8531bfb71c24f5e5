//! Blocks that older versions have written past the cache are carried to their volume when the
//! cache is opened, and no client is served before.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, BLOCK_U64, ErrorKind};
use cache::{Cache, Settings};
use format::tree::mapping_tree_id;
use offline::CheckOptions;
use offline::cache::check::PoolRelation;
use offline::pool::check::check;
use pool::Pool;
use sim::Fault;
use volume::Volumes;

use crate::{Golden, Lab, THERE, V0_2_0, assert_holds, story};

/// Of the last program that wrote past the cache, between 0.2.0 and 0.3.0. Of a stream that went
/// past it all is written again but some sectors of its first block: no key says that anything is
/// staged, but for the part over that block.
const PARTS: Golden = Golden {
    disks: &[("disk0", include_str!("past/disk0.txt"))],
    cache: include_str!("past/cache.txt"),
    story: include_str!("past/story.txt"),
};
const ONE: [&str; 1] = ["disk0"];
/// The first block of that stream.
const BELOW: u64 = 1 << 20;

impl Lab {
    /// The places of the block of volume "data" from this byte on, as `tag` was written to it.
    fn places(&self, at: u64, tag: u8) -> Vec<(rt::FileId, u64)> {
        let mut wanted = [tag; BLOCK];
        wanted[..8].copy_from_slice(&at.to_le_bytes());
        let on = |d: &pool::DeviceFile| {
            let (file, all) = (d.file, (0..d.size_bytes).step_by(BLOCK));
            let holds = |&at: &u64| self.world.contents(file, at, BLOCK) == wanted;
            all.filter(holds).map(|at| (file, at)).collect::<Vec<_>>()
        };
        let found: Vec<_> = self.disks.iter().flat_map(on).collect();
        assert!(!found.is_empty(), "nothing holds it");
        found
    }

    /// No copy of that block can be read.
    fn lose(&self, at: u64, tag: u8) {
        for (file, offset) in self.places(at, tag) {
            assert!(self.world.inject(file, Fault::ReadError { offset, len: BLOCK_U64 }));
        }
    }

    fn stagings(&self, names: &[&str]) -> u64 {
        let disks = self.disks(names);
        self.run(move |rt| async move {
            let options = CheckOptions::default();
            check(&rt, disks, &options, &mut |_| ()).await.expect("a pool").counts.stagings
        })
    }
}

/// "data" holds what it should, but for this block, which cannot be read.
async fn holds_but(volumes: &Volumes, golden: &Golden, bad: u64) {
    let told = story::told(golden.story);
    let (volume, held) = (volumes.open("data").expect("there"), &told["data"].1);
    for (at, want) in (0..).step_by(BLOCK).zip(held.chunks(BLOCK)) {
        match volume.read(at, BLOCK_U64).await {
            Ok(data) => assert!(at != bad && data.iter().flat_map(|s| s.iter()).eq(want), "{at}"),
            Err(e) => assert_eq!((at, e.kind), (bad, ErrorKind::Io), "{e}"),
        }
    }
}

/// Whenever a start is cut short that carries them, the next one carries them.
#[test]
fn staged_blocks_are_carried_by_a_start() {
    let mut cut = 0;
    for step in 1.. {
        let lab = Lab::new(&V0_2_0);
        assert!(lab.stagings(&THERE) > 0);
        let opened = Rc::new(Cell::new(false));
        let (disks, file, done) = (lab.disks(&THERE), lab.cache.clone(), opened.clone());
        lab.run(move |rt| async move {
            let task = rt.clone();
            rt.detach(async move {
                let settings = pool::Settings::default();
                let (pool, _) = Pool::open(&task, disks, settings).await.expect("a pool");
                let opened = Cache::open(&task, &file, &pool, Settings::default()).await;
                let _cache = opened.expect("the cache opens");
                done.set(true);
                task.sleep(Duration::from_secs(1)).await;
            });
            rt.sleep(Duration::from_micros(step * 150)).await;
        });
        if step % 3 > 0 {
            lab.world.power_cut();
        }
        lab.assert_clean(&THERE, true, PoolRelation::Attached);
        lab.serve(&THERE, |_, _, volumes| async move {
            assert_holds(&volumes, V0_2_0.story).await;
        });
        assert_eq!(lab.stagings(&THERE), 0);
        if opened.get() {
            break;
        }
        cut += 1;
    }
    assert!(cut > 20, "only {cut} starts were cut short");
}

/// The copies need room in the pool. Where it has none the start is refused before it has written
/// anything, so that the older version can be started once more.
#[test]
fn a_start_without_room_for_them_changes_nothing() {
    let lab = Lab::new(&V0_2_0);
    let contents = |lab: &Lab| {
        let disks = lab.disks.iter().map(|d| (d.file, d.size_bytes));
        let all = disks.chain([(lab.cache.file, lab.cache.size_bytes)]);
        all.map(|(file, bytes)| lab.world.contents(file, 0, bytes as usize)).collect::<Vec<_>>()
    };
    let before = contents(&lab);
    let (disks, file) = (lab.disks(&THERE), lab.cache.clone());
    lab.run(|rt| async move {
        let ready = Pool::ready(&rt, disks, pool::Settings::default()).await.expect("ready");
        // All the room is somebody else's.
        let room = |bits: u32| ready.pool().reserve(1 << bits).ok();
        let taken: Vec<_> = (0..40).rev().filter_map(room).collect();
        let refused = Cache::ready(&rt, &file, &ready, Settings::default()).await;
        let e = refused.err().expect("there is no room for copies");
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
        assert!(e.context.contains("cache flush, and stop it; nothing was changed"), "{e}");
        drop(taken);
    });
    assert!(contents(&lab) == before);
    lab.serve(&THERE, |_, _, volumes| async move {
        assert_holds(&volumes, V0_2_0.story).await;
    });
}

#[test]
fn a_part_is_all_that_tells_of_a_staged_block() {
    let lab = Lab::new(&PARTS);
    assert!(lab.stagings(&ONE) > 0);
    lab.serve(&ONE, |_, pool, volumes| async move {
        assert_eq!(pool.cache_link().staged_blocks(), 0);
        assert_holds(&volumes, PARTS.story).await;
    });
    assert_eq!(lab.stagings(&ONE), 0);
    lab.assert_clean(&ONE, false, PoolRelation::Attached);
    lab.serve(&ONE, |_, _, volumes| async move {
        volumes.detach().await.expect("the cache is written back");
        assert_holds(&volumes, PARTS.story).await;
    });
}

/// A staged block of which no copy is good is lost, by itself, and never read as anything else:
/// under a part, and alone.
#[test]
fn a_staged_block_that_is_bad_costs_nothing_else() {
    let alone = (2 << 20) + (128 << 10);
    for (golden, names, at, tag) in [(&PARTS, &ONE[..], BELOW, 20), (&V0_2_0, &THERE, alone, 50)] {
        let lab = Lab::new(golden);
        lab.lose(at, tag);
        for _ in 0..2 {
            lab.serve(names, move |_, pool, volumes| async move {
                assert_eq!(pool.cache_link().staged_blocks(), 0);
                holds_but(&volumes, golden, at).await;
            });
        }
        assert_eq!(lab.stagings(names), 0);
    }
}

/// The nodes of the volume's mapping cannot be read for a while. Nothing is served, and nothing is
/// lost.
#[test]
fn a_start_that_cannot_carry_them_is_refused() {
    let lab = Lab::new(&PARTS);
    let disk = lab.disks[0].file;
    for at in (0..lab.disks[0].size_bytes).step_by(BLOCK) {
        let block = lab.world.contents(disk, at, BLOCK);
        let tree = u64::from_le_bytes(block[16..24].try_into().expect("8 bytes"));
        if block.starts_with(b"FBnd") && tree == mapping_tree_id(base::VolumeId(1)) {
            let fault = Fault::FailReads { offset: at, len: BLOCK_U64, times: u32::MAX };
            assert!(lab.world.inject(disk, fault));
        }
    }
    for _ in 0..2 {
        let (disks, file) = (lab.disks(&ONE), lab.cache.clone());
        lab.run(|rt| async move {
            let settings = pool::Settings::default();
            let (pool, _) = Pool::open(&rt, disks, settings).await.expect("the pool opens");
            let e = Cache::open(&rt, &file, &pool, Settings::default()).await.err();
            let e = e.expect("it cannot be carried");
            assert_eq!(e.kind, ErrorKind::Unreachable, "{e}");
            pool.close().await.expect("close");
        });
        assert!(lab.stagings(&ONE) > 0);
    }
    lab.world.revive(disk);
    lab.serve(&ONE, |_, _, volumes| async move {
        assert_holds(&volumes, PARTS.story).await;
    });
}
