//! What recovery believes of what it can and cannot read.

use base::{BLOCK, BlockRange, CacheAddr, ErrorKind, Lba, StorageError, VolumeId};
use pool::Pool;
use sim::Fault;

use super::*;
use crate::store::key::Body;
use crate::testkit::{Lab, fill, settings};
use crate::{Cache, CacheFile};

const AT: u64 = 2000;
const BLOCKS: u64 = 16;

/// Where the last flushed entry begins, in both rings, and the first of the blocks that it tells
/// of.
type LastFlushed = ([u64; 2], CacheAddr);

/// Power is cut after a flush of 16 blocks over older ones that were flushed too; `mark`: and after
/// the watermark that follows it.
fn flushed(lab: &Lab, mark: bool) -> LastFlushed {
    let place = std::rc::Rc::new(std::cell::Cell::new(None));
    let told = place.clone();
    lab.power_cut(move |cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        fill(&cache, a, AT, BLOCKS, 1).await;
        cache.flush().await.unwrap();
        fill(&cache, a, AT, BLOCKS, 101).await;
        let ring = cache.core().layout().ring();
        let position = cache.core().state().journal().next_place().0.position;
        cache.flush().await.unwrap();
        if mark {
            cache.flows().journal.write_watermark().await.unwrap();
        }
        let found = cache
            .core()
            .resident(Class::Commit, |st| {
                st.index.overlapping(&st.buckets, a, BlockRange::of(Lba(AT), 1), 1)
            })
            .await
            .unwrap();
        let Body::Data { addr, .. } = found[0].body else { panic!("{found:?}") };
        told.set(Some((ring.places(position), addr)));
    });
    place.take().unwrap()
}

fn opened<T: 'static, F: Future<Output = T> + 'static>(
    lab: &Lab,
    f: impl FnOnce(std::result::Result<Cache, StorageError>, VolumeId) -> F + 'static,
) -> T {
    let (files, file): (_, CacheFile) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        let a = pool.find_volume("a").unwrap().id;
        let cache = Cache::open(&rt, &file, &pool, settings()).await;
        let (closes, pool_closes) = (cache.as_ref().ok().cloned(), pool.clone());
        let out = f(cache, a).await;
        if let Some(cache) = closes {
            cache.close().await.unwrap();
        }
        pool_closes.close().await.unwrap();
        out
    })
}

/// What each of the 16 blocks reads as.
fn content(lab: &Lab) -> Vec<Option<u8>> {
    opened(lab, |cache, a| async move {
        let cache = cache.unwrap();
        let mut out = Vec::new();
        for i in 0..BLOCKS {
            let read = cache.read(a, Lba(AT + i), 1).await;
            out.push(read.ok().map(|data| data[0][0]));
        }
        out
    })
}

fn new() -> Vec<Option<u8>> {
    (0..BLOCKS as u8).map(|i| Some(101 + i)).collect()
}

#[test]
fn one_copy_of_the_last_entry_is_enough() {
    let strikes: [fn(u64) -> Fault; 3] = [
        |offset| Fault::BitRot { offset, len: 512 },
        |offset| Fault::ReadError { offset, len: 512 },
        |offset| Fault::FailReads { offset, len: 512, times: 1 },
    ];
    for strike in strikes {
        for copy in 0..2 {
            let lab = Lab::new();
            let (places, _) = flushed(&lab, false);
            assert!(lab.world.inject(lab.device, strike(places[copy])));
            assert_eq!(content(&lab), new());
        }
    }
}

#[test]
fn what_cannot_be_read_is_not_absent() {
    let lab = Lab::new();
    let (places, _) = flushed(&lab, false);
    for offset in places {
        assert!(lab.world.inject(lab.device, Fault::FailReads { offset, len: 512, times: 20 }));
    }
    let e = opened(&lab, |cache, _| async move { cache.err().unwrap() });
    assert!(
        e.kind == ErrorKind::Io
            && e.context.contains("cannot be read in either")
            && e.context.contains("--forget")
    );
    // When the error has passed nothing was changed.
    let tries =
        (0..20).take_while(|_| opened(&lab, |cache, _| async move { cache.is_err() })).count();
    assert!(tries > 0 && tries < 20);
    assert_eq!(content(&lab), new());
}

#[test]
fn a_watermark_knows_the_last_entry() {
    let lab = Lab::new();
    let (places, _) = flushed(&lab, true);
    for offset in places {
        assert!(lab.world.inject(lab.device, Fault::BitRot { offset, len: 512 }));
    }
    let e = opened(&lab, |cache, _| async move { cache.err().unwrap() });
    assert!(e.kind == ErrorKind::Damaged && e.context.contains("was durable"), "{e}");
}

#[test]
fn a_block_that_cannot_be_read_is_an_error_and_its_neighbours_are_served() {
    let lab = Lab::new();
    let (_, addr) = flushed(&lab, false);
    let offset = lab.layout().offset_of(CacheAddr(addr.0 + 5));
    assert!(lab.world.inject(lab.device, Fault::ReadError { offset, len: 512 }));
    let mut want = new();
    want[5] = None;
    assert_eq!(content(&lab), want);
    let lab = Lab::new();
    let (_, addr) = flushed(&lab, false);
    let offset = lab.layout().offset_of(CacheAddr(addr.0 + 5));
    assert!(lab.world.inject(lab.device, Fault::FailReads { offset, len: BLOCK as u64, times: 2 }));
    assert_eq!(content(&lab), new(), "an error that passes is none");
}

#[test]
fn what_was_known_to_be_durable_is_never_taken_for_absent() {
    let lab = Lab::new();
    let (_, addr) = flushed(&lab, true);
    let offset = lab.layout().offset_of(CacheAddr(addr.0 + 5));
    assert!(lab.world.inject(lab.device, Fault::BitRot { offset, len: 512 }));
    let mut want = new();
    want[5] = None;
    assert_eq!(content(&lab), want);
}

#[test]
fn a_checkpoint_that_may_be_newer_is_not_passed_over() {
    let lab = Lab::new();
    flushed(&lab, false);
    let newest = lab.superblock().sequence;
    let strike = |n: u64, times| {
        let offset = format::cache::superblock::CacheSuperblock::offset_of(n);
        assert!(lab.world.inject(lab.device, Fault::FailReads { offset, len: 512, times }));
    };
    strike(newest, 3);
    assert_eq!(content(&lab), new(), "the other of the pair says the same");
    let newest = lab.superblock().sequence;
    strike(newest, 3);
    strike(newest - 1, 3);
    let e = opened(&lab, |cache, _| async move { cache.err().unwrap() });
    assert!(e.kind == ErrorKind::Damaged && e.context.contains("two in a row"), "{e}");
    assert_eq!(content(&lab), new());
}

#[test]
fn what_cannot_be_flushed_is_not_opened() {
    let lab = Lab::new();
    flushed(&lab, false);
    let (files, file, world) = (lab.files(), lab.file(), lab.world.clone());
    let device = lab.device;
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        assert!(world.inject(device, Fault::FailNext));
        let e = Cache::open(&rt, &file, &pool, settings()).await.err().unwrap();
        assert!(e.kind == ErrorKind::Io && e.context.contains("cannot be flushed"), "{e}");
        pool.close().await.unwrap();
    });
    assert_eq!(content(&lab), new());
}

/// What a killed life has written, the device may still lose. Nothing is done with it before it
/// cannot.
#[test]
fn what_is_believed_is_durable() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    let rt = rt::Rt::new(lab.world.backend(), rt::Order::Seeded(3), 1024);
    let r = rt.clone();
    rt.block_on(async move {
        let (pool, _) = Pool::open(&r, files, pool::Settings::default()).await.unwrap();
        let cache = Cache::open(&r, &file, &pool, settings()).await.unwrap();
        let a = pool.find_volume("a").unwrap().id;
        fill(&cache, a, AT, BLOCKS, 101).await;
    })
    .unwrap();
    rt.kill();
    let all = || lab.world.contents(lab.device, 0, 16 << 20);
    let left = all();
    // The open ends at its first read.
    let newest = lab.superblock().sequence;
    for n in [newest - 1, newest] {
        let offset = format::cache::superblock::CacheSuperblock::offset_of(n);
        assert!(lab.world.inject(lab.device, Fault::FailReads { offset, len: 512, times: 3 }));
    }
    opened(&lab, |cache, _| async move { assert!(cache.is_err()) });
    let rt = rt::Rt::new(lab.world.backend(), rt::Order::Fifo, 16);
    lab.world.power_cut();
    rt.kill();
    assert!(all() == left, "something that was read is gone");
}
