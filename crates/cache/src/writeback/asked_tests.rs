//! Hundreds that need a pass at the same time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::VolumeId;
use sim::Fault;

use super::*;
use crate::testkit::{Asked, Lab, fill, settings};

const MANY: u64 = 300;

fn begun(cache: &Cache) -> u64 {
    cache.writeback().passes_mut().tries().begun()
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
                cache.rt().clone().spawn(async move {
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
            cache.rt().clone().spawn(async move {
                let target = cache.epoch();
                cache.publish_all().await.unwrap();
                assert!(cache.state().index.published() >= target);
            })
        };
        let mut tasks: Vec<_> = (0..MANY).map(|_| publish(&cache)).collect();
        while begun(&cache) == before {
            cache.rt().sleep(Duration::from_micros(1)).await;
        }
        fill(&cache, a, 600, 500, 2).await;
        tasks.extend((0..MANY).map(|_| publish(&cache)));
        for t in tasks {
            t.await.unwrap();
        }
        assert_eq!(begun(&cache) - before, 2);
        assert!(cache.all_written_back());
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
        let _asked = Asked::link(cache.pool(), move || {
            let first = !told.replace(true);
            if first {
                Err(base::StorageError::new(base::ErrorKind::NoSpace, "not now"))
            } else {
                Ok(None)
            }
        });
        let c = cache.clone();
        let first = cache.rt().spawn(async move { c.publish_all().await });
        while !refused.get() {
            cache.rt().sleep(Duration::from_micros(1)).await;
        }
        let c = cache.clone();
        let second = cache.rt().spawn(async move { c.publish_all().await });
        assert!(first.await.unwrap().is_err());
        second.await.unwrap().unwrap();
    });
}
