//! Hundreds that need a pass at the same time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::VolumeId;
use queue::Class;
use sim::Fault;

use crate::Cache;
use crate::store::state::State;
use crate::testkit::{CommitHook, Lab, fill, settings, write_part};

const MANY: u64 = 300;

fn begun(cache: &Cache) -> u64 {
    cache.core().writeback().passes_mut().tries().begun()
}

/// Takes all room that the pool has.
fn reserve_all(cache: &Cache) {
    for blocks in [256, 1] {
        while let Ok(room) = cache.pool().reserve(blocks) {
            room.keep();
        }
    }
}

/// Writes a block, and returns whether that went well.
async fn write(cache: &Cache, volume: VolumeId, lba: u64) -> bool {
    let data = cache.pool().bufs().zeroed(base::BLOCK).freeze();
    cache.write(volume, base::Lba(lba), &data).await.is_ok()
}

/// The pool is full as far as it can be read, and gone. Each of the writes fails after a pass or
/// two, and not after as many as there are writes.
#[test]
fn writes_that_a_lost_pool_has_no_room_for_fail_with_one_pass() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.files()[0].file);
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 3500, 200, 1).await;
        reserve_all(&cache);
        world.inject(disk, Fault::Dead);
        world.set_delay(disk, Duration::from_millis(100));
        let (before, failed) = (begun(&cache), Rc::new(Cell::new(0)));
        let tasks: Vec<_> = (0..MANY)
            .map(|i| {
                let (cache, failed) = (cache.clone(), failed.clone());
                cache.core().rt().clone().spawn(async move {
                    if !write(&cache, a, i).await {
                        failed.set(failed.get() + 1);
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        assert_eq!(failed.get(), MANY);
        let passes = begun(&cache) - before;
        assert!(passes <= 6, "{MANY} writes ran {passes} passes");
        world.set_delay(disk, Duration::ZERO);
        world.revive(disk);
    });
}

/// Who asks while a pass runs waits for the next, which has what was dirty by then.
#[test]
fn all_who_ask_at_once_share_a_pass() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        cache.publish_all().await.unwrap();
        fill(&cache, a, 0, 500, 1).await;
        let before = begun(&cache);
        let publish = |cache: &Cache| {
            let cache = cache.clone();
            cache.core().rt().clone().spawn(async move {
                let target = cache.epoch();
                cache.publish_all().await.unwrap();
                assert!(cache.core().state().index.published() >= target);
            })
        };
        let mut tasks: Vec<_> = (0..MANY).map(|_| publish(&cache)).collect();
        while begun(&cache) == before {
            cache.core().rt().sleep(Duration::from_micros(1)).await;
        }
        fill(&cache, a, 600, 500, 2).await;
        tasks.extend((0..MANY).map(|_| publish(&cache)));
        for t in tasks {
            t.await.unwrap();
        }
        assert_eq!(begun(&cache) - before, 2);
        assert!(cache.core().levels().all_written_back());
    });
}

/// A pass that fails is no answer for who asked when it ran already.
#[test]
fn a_pass_that_ran_already_is_nobodys_answer() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        cache.publish_all().await.unwrap();
        fill(&cache, a, 0, 500, 1).await;
        let refused = Rc::new(Cell::new(false));
        let told = refused.clone();
        let _asked = CommitHook::link(cache.pool(), move || {
            let first = !told.replace(true);
            if first {
                Err(base::StorageError::new(base::ErrorKind::NoSpace, "not now"))
            } else {
                Ok(None)
            }
        });
        let c = cache.clone();
        let first = cache.core().rt().spawn(async move { c.publish_all().await });
        while !refused.get() {
            cache.core().rt().sleep(Duration::from_micros(1)).await;
        }
        let c = cache.clone();
        let second = cache.core().rt().spawn(async move { c.publish_all().await });
        assert!(first.await.unwrap().is_err());
        second.await.unwrap().unwrap();
    });
}

/// The bad blocks that status names, and whether all is in the pool.
async fn write_back(cache: &Cache) -> (Vec<u64>, bool) {
    let outcome = cache.write_all_back().await;
    let bad: Vec<u64> = cache.status().bad_blocks.iter().map(|b| b.1).collect();
    assert_eq!(bad.is_empty(), outcome.is_ok(), "{bad:?}, {outcome:?}");
    (bad, outcome.is_ok())
}

#[test]
fn a_block_that_is_read_well_later_is_bad_no_more() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        let read_badly = async |lba: u64| {
            let step = |st: &mut State| Ok(st.index.place_of(&st.buckets, a, base::Lba(lba)));
            let (addr, _) = cache.core().resident(Class::Foreground, step).await.unwrap().unwrap();
            let offset = cache.core().offset_of(addr);
            assert!(world.inject(device, Fault::FailReads { offset, len: 512, times: 3 }));
            cache.read(a, base::Lba(lba), 1).await.unwrap_err();
            assert_eq!(cache.status().bad_blocks, [(a.0, lba)]);
        };
        fill(&cache, a, 3500, 8, 1).await;
        read_badly(3503).await;
        assert_eq!(write_back(&cache).await, (vec![], true));
        // A scrub finds out too.
        fill(&cache, a, 3500, 8, 2).await;
        read_badly(3504).await;
        cache.pool().scrubs().start_scrub(pool::ScrubOptions::default()).await.unwrap();
        while cache.flows().scrubber.scrub_found().completed == 0 {
            cache.core().rt().sleep(Duration::from_secs(1)).await;
        }
        assert!(cache.status().bad_blocks.is_empty());
        assert_eq!(cache.read(a, base::Lba(3504), 1).await.unwrap()[0][0], 6);
    });
}

#[test]
fn a_block_that_cannot_be_completed_is_named_until_it_is() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.files()[0].file);
    lab.within_an_hour(settings(), move |cache, a| async move {
        let (pool, place) = (cache.pool().clone(), Rc::new(Cell::new(None)));
        let mut block = cache.core().rt().bufs().take(base::BLOCK);
        block.fill(0xA5);
        let found = place.clone();
        world.watch_writes(disk, move |at, data| {
            if data.iter().any(|slice| slice.iter().all(|&b| b == 0xA5)) {
                found.set(Some(at));
            }
        });
        pool.write(a, base::Lba(3600), &block.freeze()).await.unwrap();
        pool.commit().await.unwrap();
        let offset = place.get().expect("it was written");
        let sector = cache.core().rt().bufs().zeroed(base::SECTOR).freeze();
        write_part(&cache, (a, base::Lba(3600)), 512, &sector).await.unwrap();
        assert!(world.inject(disk, Fault::ReadError { offset, len: 512 }));
        for _ in 0..2 {
            assert_eq!(write_back(&cache).await, (vec![3600], false));
        }
        // It heals when it is written again.
        let mut block = cache.core().rt().bufs().take(base::BLOCK);
        block.fill(0xA5);
        pool.write(a, base::Lba(3600), &block.freeze()).await.unwrap();
        assert_eq!(write_back(&cache).await, (vec![], true));
    });
}

/// A task that cannot call for passes asks the task of write-back. Of a closed cache nothing can be
/// asked any more.
#[test]
fn who_asks_the_task_of_write_back_is_answered_until_it_ends() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 0, 500, 1).await;
        let ask = || {
            let asked = cache.core().writeback().ask_to_publish();
            cache.core().wakes().pass.notify();
            asked
        };
        let (one, two) = (ask().expect("it runs"), ask().expect("it runs"));
        one.await.expect("answered").expect("published");
        two.await.expect("answered").expect("published");
        assert!(cache.is_written_back(a));
        cache.close().await.expect("closed");
        // The task learns of the end at its next turn.
        if let Some(late) = ask() {
            assert!(late.await.is_none());
        }
        assert!(ask().is_none());
    });
}
