//! Flushes of the cache device that fail while others are under way.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::Lba;
use pool::Pool;
use sim::{Fault, FlushLoss, Times};

use super::*;
use crate::Cache;
use crate::testkit::{Lab, fill, settings};

#[test]
fn one_at_a_time_asks_for_durability() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, _| async move {
        let slow = Duration::from_millis(100);
        world.set_delay(device, slow);
        let began = cache.core().rt().now();
        let flush = |cache: Cache| async move {
            cache.flows().failures.flush_device(Class::Commit, "flush").await
        };
        let (a, b) = (
            cache.core().rt().spawn(flush(cache.clone())),
            cache.core().rt().spawn(flush(cache.clone())),
        );
        assert!(a.await.unwrap().is_ok() && b.await.unwrap().is_ok());
        assert!(cache.core().rt().now().since(began) >= 2 * slow);
        world.set_delay(device, Duration::ZERO);
        // The first fails, and the second is not asked any more.
        world.inject(device, Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All });
        let (a, b) = (
            cache.core().rt().spawn(flush(cache.clone())),
            cache.core().rt().spawn(flush(cache.clone())),
        );
        assert!(a.await.unwrap().is_err() && b.await.unwrap().is_err() && cache.has_failed());
    });
}

/// The flush of a group commit fails while a checkpoint is under way, or the other way round:
/// neither ends well, and what was flushed before is there.
#[test]
fn nothing_under_way_becomes_durable_when_a_flush_has_failed() {
    let mut failed = 0;
    for late in 0..12 {
        let lab = Lab::new();
        let (world, device) = (lab.world.clone(), lab.device);
        let told = Rc::new(Cell::new(None));
        let tell = told.clone();
        lab.power_cut(move |cache| async move {
            let a = cache.pool().find_volume("a").unwrap().id;
            for i in 0..40 {
                fill(&cache, a, 100 * i, 16, 1).await;
            }
            cache.flush().await.unwrap();
            for i in 0..40 {
                fill(&cache, a, 100 * i, 16, 101).await;
            }
            let before = cache.flows().commits.mark(false).entry;
            world.inject(device, Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All });
            let c = cache.clone();
            let checkpoint = cache
                .core()
                .rt()
                .spawn(async move { c.flows().checkpointer.checkpoint_now().await });
            cache.core().rt().sleep(Duration::from_micros(50 * late)).await;
            let flushed = cache.flush().await;
            let checkpoint = checkpoint.await.unwrap();
            // The first of them to ask fails; there is nothing left to flush if the checkpoint had
            // ended before.
            assert!(flushed.is_err() && checkpoint.is_err(), "{late}: {flushed:?}, {checkpoint:?}");
            assert_eq!(
                cache.flows().commits.mark(false).entry,
                before,
                "the pool is told of what is not durable"
            );
            assert!(flushed.unwrap_err().context.contains("restart forebay"));
            tell.set(Some(cache.has_failed()));
        });
        failed += u32::from(told.get() == Some(true));
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
            let a = pool.find_volume("a").unwrap().id;
            for i in 0..40 {
                for block in 0..16 {
                    let data = cache.read(a, Lba(100 * i + block), 1).await.unwrap();
                    let (old, new) = (1 + block as u8, 101 + block as u8);
                    assert!([old, new].contains(&data[0][0]), "{late}: block {}", 100 * i + block);
                }
            }
            cache.close().await.unwrap();
            pool.close().await.unwrap();
        });
    }
    assert!(failed > 0);
}
