//! Tests of operations that fail: flushes that lose writes, operations that are done but reported
//! as failed, reads that fail for a while, disks that are unreachable for a time.

mod common;

use base::{Duration, IoError, SECTOR};
use common::{World1, cut, fill, flush, read, write};
use rt::Op;
use sim::{Fault, FaultRates, FlushLoss, Times};

const MIB: u64 = 1 << 20;
const ONE: Times = Times::Next(1);

fn on<T: 'static>(w: &World1, f: impl AsyncFnOnce(World1) -> T + 'static) -> T {
    let w2 = w.clone();
    w.rt.block_on(async move { f(w2).await }).expect("not killed")
}

/// A world whose disk holds 64 KiB of 1, flushed. Its first half is overwritten with 2, not
/// flushed.
fn half_flushed(seed: u64) -> World1 {
    let w = World1::new(seed, MIB);
    on(&w, async |w| {
        write(&w.rt, w.disk, 0, 65536, 1).await;
        flush(&w.rt, w.disk).await;
        write(&w.rt, w.disk, 0, 32768, 2).await;
    });
    w
}

fn get(w: &World1, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    on(w, async move |w| read(&w.rt, w.disk, offset, len).await)
}

fn put(w: &World1, offset: u64, len: usize, value: u8) -> Result<u64, IoError> {
    on(w, async move |w| w.rt.op(fill(&w.rt, w.disk, offset, len, value, false)).await.result)
}

fn try_flush(w: &World1) -> Result<u64, IoError> {
    on(w, async |w| w.rt.op(Op::Flush { file: w.disk }).await.result)
}

/// Counts the sectors that hold 2 among the first 64. All other sectors must hold 1.
fn twos(w: &World1) -> usize {
    let bytes = w.world.contents(w.disk, 0, 65536);
    let sectors: Vec<_> = bytes.chunks(SECTOR).collect();
    assert!(sectors.iter().all(|s| *s == [1; SECTOR] || *s == [2; SECTOR]));
    assert!(sectors[64..].iter().all(|s| s[0] == 1));
    sectors.iter().filter(|s| s[0] == 2).count()
}

#[test]
fn no_later_flush_restores_what_a_failed_flush_lost() {
    let mut counts = [0; 3];
    for seed in 0..100 {
        for (loses, count) in
            [FlushLoss::Nothing, FlushLoss::Part, FlushLoss::All].into_iter().zip(&mut counts)
        {
            let w = half_flushed(seed);
            w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses });
            assert_eq!(try_flush(&w), Err(IoError::IO));
            assert_eq!(get(&w, 0, 32768), Ok(vec![2; 32768]), "reads see it as before");
            assert_eq!(try_flush(&w), Ok(0), "the error is reported once");
            cut(&w);
            *count += twos(&w);
            let c = w.world.fault_counts(w.disk);
            assert_eq!((c.failed_flushes, c.lost_sectors), (1, 64 - twos(&w) as u64));
            assert!(w.world.faulted(w.disk).is_empty(), "it was reported, so it is no damage");
        }
    }
    assert_eq!((counts[0], counts[2]), (6400, 0));
    assert!((1000..5400).contains(&counts[1]), "{counts:?}");
}

#[test]
fn sectors_rewritten_after_a_failed_flush_are_made_stable_by_the_next() {
    let w = half_flushed(1);
    w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses: FlushLoss::All });
    assert_eq!(try_flush(&w), Err(IoError::IO));
    put(&w, 0, 16384, 2).expect("written");
    assert_eq!(try_flush(&w), Ok(0));
    cut(&w);
    assert_eq!(twos(&w), 32, "the half that was written again");
}

#[test]
fn a_failed_flush_loses_no_later_write() {
    for seed in 0..50 {
        let w = half_flushed(seed);
        w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses: FlushLoss::All });
        on(&w, async |w| {
            // This write completes before the flush does, and the flush does not cover it.
            let late = w.rt.op(fill(&w.rt, w.disk, 0, 4096, 2, false));
            assert_eq!(w.rt.op(Op::Flush { file: w.disk }).await.result, Err(IoError::IO));
            late.await;
            flush(&w.rt, w.disk).await;
        });
        cut(&w);
        assert_eq!(twos(&w), 8);
    }
}

#[test]
fn after_a_kill_lost_sectors_are_old_or_new_and_can_be_flushed() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..100 {
        let w = half_flushed(seed);
        w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses: FlushLoss::All });
        assert_eq!(try_flush(&w), Err(IoError::IO));
        let w = w.reboot();
        let seen = twos(&w);
        new += seen;
        old += 64 - seen;
        if seed % 2 == 0 {
            assert_eq!(try_flush(&w), Ok(0));
            cut(&w);
            assert_eq!(twos(&w), seen, "what was seen was flushed");
        } else {
            cut(&w);
            assert!(twos(&w) <= seen);
        }
        assert!(w.world.faulted(w.disk).is_empty());
    }
    assert!(old > 1000 && new > 1000, "{old} {new}");
}

#[test]
fn a_failed_flush_makes_a_rewritten_sector_unreadable_again() {
    for kill in [false, true] {
        let w = half_flushed(3);
        w.world.inject(w.disk, Fault::ReadError { offset: 0, len: 65536 });
        put(&w, 0, 32768, 3).expect("written");
        w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses: FlushLoss::All });
        assert_eq!(try_flush(&w), Err(IoError::IO));
        assert_eq!(get(&w, 0, 32768), Ok(vec![3; 32768]));
        assert_eq!(try_flush(&w), Ok(0));
        if kill {
            let w = w.reboot();
            let bytes = w.world.contents(w.disk, 0, 32768);
            let unreadable = w.world.faulted(w.disk);
            assert!((0..64).all(|s| (bytes[s * SECTOR] == 3) != unreadable.contains(&(s as u64))));
        } else {
            cut(&w);
            assert_eq!(w.world.faulted(w.disk), (0..128).collect::<Vec<_>>());
        }
    }
}

#[test]
fn flushes_may_fail_for_good_until_the_disk_is_revived() {
    let w = half_flushed(1);
    w.world.inject(w.disk, Fault::FailFlush { times: Times::Always, loses: FlushLoss::Nothing });
    assert_eq!(try_flush(&w), Err(IoError::IO));
    assert_eq!(try_flush(&w), Err(IoError::IO));
    let w = w.reboot();
    assert_eq!(try_flush(&w), Err(IoError::IO), "it is the disk that is broken");
    w.world.revive(w.disk);
    assert_eq!(try_flush(&w), Ok(0));
    cut(&w);
    assert_eq!(twos(&w), 64);
}

#[test]
fn an_operation_that_is_done_may_be_reported_as_failed() {
    let w = half_flushed(1);
    w.world.inject(w.disk, Fault::FailNextButDo);
    assert_eq!(put(&w, 0, 32768, 2), Err(IoError::IO));
    assert_eq!(twos(&w), 64);
    w.world.inject(w.disk, Fault::FailNextButDo);
    assert_eq!(try_flush(&w), Err(IoError::IO));
    cut(&w);
    assert_eq!(twos(&w), 64, "the flush was done");
    assert_eq!(w.world.fault_counts(w.disk).failed_but_done, 2);
}

#[test]
fn reads_of_a_range_fail_for_a_while_across_boots() {
    let w = half_flushed(1);
    assert!(w.world.inject(w.disk, Fault::FailReads { offset: 4096, len: 512, times: 3 }));
    assert_eq!(get(&w, 0, 65536), Err(IoError::IO), "the whole request fails");
    assert!(get(&w, 0, 4096).is_ok() && get(&w, 4608, 4096).is_ok());
    assert_eq!(get(&w, 4096, 512), Err(IoError::IO));
    let w = w.reboot();
    assert_eq!(get(&w, 4096, 512), Err(IoError::IO));
    assert_eq!(get(&w, 4096, 512), Ok(vec![2; 512]));
    assert_eq!(w.world.fault_counts(w.disk).transient_reads, 3);
    assert!(w.world.faulted(w.disk).is_empty());
}

#[test]
fn an_unreachable_disk_comes_back_with_its_cache() {
    for seed in 0..20 {
        let w = half_flushed(seed);
        on(&w, async |w| {
            let flying = w.rt.op(fill(&w.rt, w.disk, 32768, 512, 1, false));
            w.world.inject(w.disk, Fault::Unreachable);
            assert!(flying.await.result.is_err());
        });
        assert_eq!(get(&w, 0, 512), Err(IoError::GONE));
        let w = w.reboot();
        assert_eq!(try_flush(&w), Err(IoError::GONE));
        w.world.revive(w.disk);
        assert_eq!(twos(&w), 64);
        assert_eq!(try_flush(&w), Ok(0));
        cut(&w);
        assert_eq!(twos(&w), 64);
        assert_eq!(w.world.fault_counts(w.disk).unreachable, 1);
    }
}

/// A program that asked nothing of a disk while it was dead learns by a flush that writes are gone.
#[test]
fn a_disk_that_died_with_unflushed_writes_fails_one_flush() {
    let dies = |w: &World1| {
        w.world.inject(w.disk, Fault::Dead);
        w.world.revive(w.disk);
    };
    let w = half_flushed(1);
    let early = on(&w, async |w| {
        w.world.set_delay(w.disk, Duration::from_secs(1));
        let early = w.rt.op(Op::Flush { file: w.disk });
        w.world.set_delay(w.disk, Duration::ZERO);
        write(&w.rt, w.disk, 0, 512, 2).await;
        w.world.inject(w.disk, Fault::Dead);
        w.world.revive(w.disk);
        early.await.result
    });
    assert_eq!(early, Err(IoError::IO));
    // That one did not cover the last write.
    assert_eq!(try_flush(&w), Err(IoError::IO));
    assert_eq!(try_flush(&w), Ok(0));
    // Nothing was lost.
    dies(&w);
    assert_eq!(try_flush(&w), Ok(0));
    // It was said while the disk was dead.
    put(&w, 0, 512, 2).expect("written");
    w.world.inject(w.disk, Fault::Dead);
    assert_eq!(try_flush(&w), Err(IoError::GONE));
    w.world.revive(w.disk);
    assert_eq!(try_flush(&w), Ok(0));
    // What is written later is safe, and the flush that fails loses none of it.
    put(&w, 0, 512, 2).expect("written");
    dies(&w);
    put(&w, 0, 32768, 2).expect("written");
    assert_eq!(try_flush(&w), Err(IoError::IO));
    assert_eq!(try_flush(&w), Ok(0));
    cut(&w);
    assert_eq!(twos(&w), 64);
    // A new program reads what there is.
    let w = half_flushed(2);
    dies(&w);
    let w = w.reboot();
    assert_eq!(try_flush(&w), Ok(0));
}

#[test]
fn faults_that_have_not_struck_can_be_taken_back() {
    let w = half_flushed(1);
    for fault in [Fault::FailNext, Fault::FailNextButDo, Fault::LoseNextWrite] {
        w.world.inject(w.disk, fault);
    }
    w.world.inject(w.disk, Fault::FailFlush { times: ONE, loses: FlushLoss::All });
    w.world.revive(w.disk);
    w.world.disarm(w.disk);
    put(&w, 0, 512, 2).expect("written");
    assert_eq!(try_flush(&w), Ok(0));
    cut(&w);
    assert_eq!(twos(&w), 64);
}

#[test]
fn rates_inject_every_kind_of_failure() {
    let w = half_flushed(7);
    let rates = FaultRates {
        failed_flush: 4,
        failed_but_done: 10,
        transient_read: 10,
        ..FaultRates::default()
    };
    w.world.set_rates(w.disk, rates);
    for i in 0..400 {
        _ = put(&w, 4096 * (i % 200), 4096, 2);
        _ = get(&w, 4096 * (i % 200), 512);
        _ = try_flush(&w);
    }
    let c = w.world.fault_counts(w.disk);
    let all = [c.failed_flushes, c.lost_sectors, c.failed_but_done, c.transient_reads];
    assert!(all.iter().all(|n| *n > 10), "{c:?}");
    w.world.set_rates(w.disk, FaultRates::default());
    assert_eq!(try_flush(&w), Ok(0));
}

#[test]
fn a_read_that_failed_by_chance_succeeds_when_retried() {
    let w = half_flushed(1);
    w.world.set_rates(w.disk, FaultRates { transient_read: 2, ..FaultRates::default() });
    let mut failed = 0;
    for i in 0..200 {
        if get(&w, i % 16 * 4096, 4096).is_err() {
            failed += 1;
            assert!(get(&w, i % 16 * 4096, 4096).is_ok());
        }
    }
    assert!(failed >= 8, "{failed}");
}

#[test]
fn a_boot_can_be_ended_at_a_write_to_one_disk() {
    let w = World1::new(1, MIB);
    let (watch, w2) = (w.clone(), w.clone());
    let ended = w.rt.block_on(async move {
        w2.rt.spawn(async move {
            watch.world.after_writes(watch.disk, 5).await;
            cut(&watch);
            std::future::pending::<()>().await;
        });
        for i in 0..100 {
            flush(&w2.rt, w2.disk).await;
            write(&w2.rt, w2.disk, 4096 * i, 4096, 1).await;
        }
    });
    assert_eq!(ended, None);
    // The fifth write was in flight, so four have completed.
    let recent = w.world.recent_writes(w.disk);
    assert_eq!(recent.last(), Some(&(4096 * 3, 4096)), "{recent:?}");
}

#[test]
fn a_boot_can_be_ended_at_any_operation() {
    let w = World1::new(1, MIB);
    let (watch, w2) = (w.clone(), w.clone());
    let ended = w.rt.block_on(async move {
        w2.rt.spawn(async move {
            watch.world.after_operations(17).await;
            cut(&watch);
            std::future::pending::<()>().await;
        });
        for i in 0..100 {
            write(&w2.rt, w2.disk, 4096 * i, 4096, 1).await;
        }
    });
    assert_eq!(ended, None);
    // The first operation may have been submitted before the other task waited. The last one was in
    // flight.
    let recent = w.world.recent_writes(w.disk);
    assert!((16..=17).contains(&recent.len()), "{recent:?}");
    assert_eq!(recent.last(), Some(&(4096 * (recent.len() as u64 - 1), 4096)));
}
