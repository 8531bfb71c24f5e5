//! Two processes that have the same cache and its pool open.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::Lba;

use crate::testkit::{Lab, fill, open, settings};

/// Counts the writes to the devices of a lab from now on.
fn count_writes(lab: &Lab) -> Rc<Cell<u64>> {
    let count = Rc::new(Cell::new(0));
    for file in [lab.disk, lab.device] {
        let seen = count.clone();
        lab.world.watch_writes(file, move |_, _| seen.set(seen.get() + 1));
    }
    count
}

/// One stood still while another one took the cache over: it writes nothing more, to the pool
/// neither, and no flush of its clients succeeds. The other one goes on, and all that it has
/// flushed is there.
#[test]
fn one_that_stood_still_writes_nothing_more() {
    for how in 0..3 {
        let lab = Lab::new();
        let (files, file, written) = (lab.files(), lab.file(), count_writes(&lab));
        lab.boot(move |rt| async move {
            let (pool, cache, a) = open(&rt, files.clone(), &file, settings()).await;
            fill(&cache, a, 100, 8, 1).await;
            cache.flush().await.expect("alone");
            rt.sleep(Duration::from_secs(20)).await;
            let (_, other, _) = open(&rt, files, &file, settings()).await;
            fill(&other, a, 100, 8, 2).await;
            other.flush().await.expect("the first one stands still");
            rt.sleep(Duration::from_secs(20)).await;
            let before = written.get();
            let outcome = match how {
                0 => {
                    let block = pool.bufs().zeroed(4096).freeze();
                    let wrote = cache.write(a, Lba(7), &block).await;
                    wrote.and(cache.flush().await)
                }
                1 => cache.discard(a, Lba(0), Lba(8)).await.and(cache.flush().await),
                _ => cache.flows().checkpointer.checkpoint_now().await,
            };
            let e = outcome.expect_err("another one has it");
            assert!(e.context.contains("another process writes to this cache"), "{e}");
            assert!(cache.has_failed() && !cache.is_aside());
            let why = pool.other_writer().expect("the pool stops, too");
            assert_eq!(why.context, e.context);
            rt.sleep(Duration::from_secs(20)).await;
            assert_eq!(written.get(), before, "{how}: the first one has written");
            fill(&other, a, 200, 8, 3).await;
            other.flush().await.expect("nobody else has written");
        });
        lab.with(move |cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            for (lba, byte) in [(100, 2), (107, 9), (200, 3)] {
                let data = cache.read(a, Lba(lba), 1).await.expect("read");
                assert_eq!(data[0][0], byte, "{how}: block {lba}");
            }
        });
        assert!(lab.check().is_clean(), "{how}: {:?}", lab.check());
    }
}

/// All slots were read a moment ago, so the cache may write. It reads the slot of a superblock all
/// the same before it writes that.
#[test]
fn a_superblock_of_another_one_is_seen_before_it_is_overwritten() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (_, cache, a) = open(&rt, files.clone(), &file, settings()).await;
        rt.sleep(Duration::from_secs(20)).await;
        fill(&cache, a, 100, 8, 1).await;
        cache.flush().await.expect("alone");
        let looked = rt.now();
        let (_, _other, _) = open(&rt, files, &file, settings()).await;
        assert!(rt.now().since(looked) < Duration::from_millis(500), "the last look counts");
        let e = cache.flows().checkpointer.checkpoint_now().await.expect_err("another one has it");
        assert!(e.context.contains("another process writes to this cache"), "{e}");
    });
}

/// The pool has found another writer: the cache says of nothing more that it is durable.
#[test]
fn a_cache_ends_with_its_pool() {
    let lab = Lab::new();
    let (files, file, written) = (lab.files(), lab.file(), count_writes(&lab));
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        fill(&cache, a, 100, 8, 1).await;
        let why = base::StorageError::new(base::ErrorKind::Foreign, "there is another one");
        pool.end_for_other_writer(why);
        let before = written.get();
        let e = cache.flush().await.expect_err("it would never count");
        assert_eq!(e.context, "there is another one");
        rt.sleep(Duration::from_secs(20)).await;
        assert_eq!(written.get(), before);
    });
}
