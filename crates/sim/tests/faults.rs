//! Every fault has its effect, is counted, and does not change the pristine bytes.

mod common;

use base::{BufList, Duration, IoError, SECTOR};
use common::{World1, cut, fill, flush, read, write};
use rt::Op;
use sim::{Fault, FaultRates};

const MIB: u64 = 1 << 20;

/// A world whose disk holds 64 KiB of 1, flushed.
fn written(seed: u64) -> World1 {
    let w = World1::new(seed, MIB);
    on(&w, async |w| {
        write(&w.rt, w.disk, 0, 65536, 1).await;
        flush(&w.rt, w.disk).await;
    });
    w
}

fn on<T: 'static>(w: &World1, f: impl AsyncFnOnce(World1) -> T + 'static) -> T {
    let w2 = w.clone();
    w.rt.block_on(async move { f(w2).await }).expect("not killed")
}

fn get(w: &World1, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    on(w, async move |w| read(&w.rt, w.disk, offset, len).await)
}

fn put(w: &World1, offset: u64, len: usize, value: u8) -> Result<u64, IoError> {
    on(w, async move |w| w.rt.op(fill(&w.rt, w.disk, offset, len, value, false)).await.result)
}

#[test]
fn bit_rot_changes_one_sector_until_it_is_rewritten() {
    let w = written(1);
    assert!(w.world.inject(w.disk, Fault::BitRot { offset: 4096, len: 512 }));
    let got = get(&w, 4096, 4096).expect("readable");
    let flipped: u32 = got[..SECTOR].iter().map(|b| (b ^ 1).count_ones()).sum();
    assert!(
        (1..=8).contains(&flipped) && got[SECTOR..].iter().all(|b| *b == 1),
        "{flipped} bits flipped"
    );
    assert_eq!(w.world.faulted(w.disk), [8]);
    assert_eq!(w.world.pristine(w.disk, 4096, 4096), [1; 4096]);
    cut(&w);
    assert_eq!(w.world.faulted(w.disk), [8], "it is on the medium");
    let w = w.reboot();
    put(&w, 4096, 4096, 2).expect("written");
    on(&w, async |w| flush(&w.rt, w.disk).await);
    assert!(w.world.faulted(w.disk).is_empty());
    assert_eq!(w.world.fault_counts(w.disk).bit_rot, 1);
}

#[test]
fn rot_belongs_to_a_version_and_a_cut_may_bring_it_back() {
    let (mut clean_old, mut rotten_new, mut back, mut healed) = (0, 0, 0, 0);
    for seed in 0..100 {
        // The unflushed version rots.
        let w = written(seed);
        put(&w, 0, 512, 2).expect("written");
        w.world.inject(w.disk, Fault::BitRot { offset: 0, len: 512 });
        cut(&w);
        let is_old = w.world.contents(w.disk, 0, 512) == [1; 512];
        assert_eq!(w.world.faulted(w.disk), if is_old { vec![] } else { vec![0] });
        assert_eq!(w.world.pristine(w.disk, 0, 512), [if is_old { 1 } else { 2 }; 512]);
        *(if is_old { &mut clean_old } else { &mut rotten_new }) += 1;
        // The flushed version rots and the sector next to it becomes unreadable. Both are rewritten
        // and not flushed.
        let w = written(seed);
        w.world.inject(w.disk, Fault::BitRot { offset: 0, len: 512 });
        w.world.inject(w.disk, Fault::ReadError { offset: 512, len: 512 });
        put(&w, 0, 1024, 2).expect("written");
        assert!(w.world.faulted(w.disk).is_empty());
        cut(&w);
        let bytes = w.world.contents(w.disk, 0, 1024);
        let lost = [bytes[..512] != [2; 512], bytes[512..] != [2; 512]];
        let want: Vec<u64> = (0..2).filter(|i| lost[*i as usize]).collect();
        assert_eq!(w.world.faulted(w.disk), want);
        *(if want.is_empty() { &mut healed } else { &mut back }) += 1;
    }
    assert!(
        clean_old > 10 && rotten_new > 10 && back > 10 && healed > 10,
        "{clean_old} {rotten_new} {back} {healed}"
    );
}

#[test]
fn an_unreadable_sector_is_an_error_until_it_is_rewritten() {
    let w = written(1);
    assert!(w.world.inject(w.disk, Fault::ReadError { offset: 8192, len: 1024 }));
    assert_eq!(get(&w, 0, 65536), Err(IoError::IO));
    assert_eq!(get(&w, 8192 + 512, 512), Err(IoError::IO));
    assert_eq!(get(&w, 8192 + 1024, 512), Ok(vec![1; 512]));
    assert_eq!(w.world.faulted(w.disk), [16, 17]);
    put(&w, 8192, 512, 3).expect("written");
    assert_eq!(get(&w, 8192, 512), Ok(vec![3; 512]));
    assert_eq!(w.world.faulted(w.disk), [17]);
    assert_eq!(w.world.fault_counts(w.disk).read_errors, 2);
}

#[test]
fn a_lost_write_is_acknowledged_and_not_done() {
    let w = written(1);
    w.world.inject(w.disk, Fault::LoseNextWrite);
    assert_eq!(put(&w, 4096, 8192, 2), Ok(8192));
    assert_eq!(get(&w, 4096, 8192), Ok(vec![1; 8192]));
    on(&w, async |w| flush(&w.rt, w.disk).await);
    cut(&w);
    assert_eq!(w.world.pristine(w.disk, 4096, 8192), [2; 8192]);
    assert_eq!(w.world.faulted(w.disk), (8..24).collect::<Vec<_>>());
    assert_eq!(w.world.fault_counts(w.disk).lost_writes, 1);
}

#[test]
fn a_misdirected_write_lands_in_another_place() {
    let w = written(1);
    w.world.inject(w.disk, Fault::MisdirectNextWrite);
    assert_eq!(put(&w, 4096, 4096, 2), Ok(4096));
    assert_eq!(get(&w, 4096, 4096), Ok(vec![1; 4096]), "its own place keeps what it has");
    let all = get(&w, 0, 65536).expect("readable");
    assert_eq!(all.iter().filter(|b| **b == 2).count(), 4096, "and another has it");
    assert_eq!(w.world.pristine(w.disk, 4096, 4096), [2; 4096]);
    assert_eq!(w.world.faulted(w.disk).len(), 16);
    assert_eq!(w.world.fault_counts(w.disk).misdirected_writes, 1);
}

#[test]
fn transfers_are_cut_short_by_the_sector() {
    for seed in 0..20 {
        let w = written(seed);
        w.world.inject(w.disk, Fault::ShortenNext);
        let n = put(&w, 0, 8192, 2).expect("something") as usize;
        assert!((512..8192).contains(&n) && n % 512 == 0);
        assert_eq!(w.world.contents(w.disk, 0, 8192), [vec![2; n], vec![1; 8192 - n]].concat());
        w.world.inject(w.disk, Fault::ShortenNext);
        let got = get(&w, 8192, 8192).expect("something");
        assert!((512..8192).contains(&got.len()) && got.iter().all(|b| *b == 1));
        assert!(w.world.faulted(w.disk).is_empty());
    }
}

#[test]
fn a_transient_error_is_one_error() {
    let w = written(1);
    w.world.inject(w.disk, Fault::FailNext);
    assert_eq!(get(&w, 0, 512), Err(IoError::IO));
    assert_eq!(get(&w, 0, 512), Ok(vec![1; 512]));
    w.world.inject(w.disk, Fault::FailNext);
    assert_eq!(put(&w, 0, 4096, 2), Err(IoError::IO));
    assert!(
        get(&w, 0, 4096)
            .expect("readable")
            .chunks(SECTOR)
            .all(|s| s == [1; SECTOR] || s == [2; SECTOR])
    );
    w.world.inject(w.disk, Fault::FailNext);
    assert_eq!(
        on(&w, async |w| w.rt.op(Op::Flush { file: w.disk }).await.result),
        Err(IoError::IO)
    );
    assert_eq!(w.world.fault_counts(w.disk).transient_errors, 3);
    assert!(w.world.faulted(w.disk).is_empty());
}

#[test]
fn a_stuck_disk_completes_late_or_never() {
    let w = written(1);
    let before = w.world.now();
    w.world.inject(w.disk, Fault::Stuck(Duration::from_secs(3)));
    assert_eq!(get(&w, 0, 512), Ok(vec![1; 512]));
    assert_eq!(w.world.now().since(before), Duration::from_secs(3));
    assert!(get(&w, 0, 512).is_ok() && w.world.now().since(before) < Duration::from_millis(3010));
    w.world.inject(w.disk, Fault::StuckForever);
    let answer = on(&w, async |w| {
        let mut reading = std::pin::pin!(read(&w.rt, w.disk, 0, 512));
        let early =
            std::future::poll_fn(|cx| std::task::Poll::Ready(reading.as_mut().poll(cx).is_ready()))
                .await;
        w.rt.sleep(Duration::from_secs(1000)).await;
        let late =
            std::future::poll_fn(|cx| std::task::Poll::Ready(reading.as_mut().poll(cx).is_ready()))
                .await;
        assert!(!early && !late);
        w.world.revive(w.disk);
        reading.await
    });
    assert_eq!(answer, Ok(vec![1; 512]));
}

#[test]
#[should_panic(expected = "1 operations on disks that are stuck for ever")]
fn waiting_for_ever_is_a_deadlock() {
    let w = written(1);
    w.world.inject(w.disk, Fault::StuckForever);
    _ = get(&w, 0, 512);
}

#[test]
fn a_dead_disk_fails_everything_and_comes_back_stale() {
    let w = written(1);
    put(&w, 0, 4096, 2).expect("written");
    w.world.inject(w.disk, Fault::StuckForever);
    let in_flight = w.rt.op(fill(&w.rt, w.disk, 0, 4096, 3, false));
    on(&w, async |w| w.rt.sleep(Duration::from_secs(1)).await);
    w.world.inject(w.disk, Fault::Dead);
    assert!(on(&w, async |_| in_flight.await).result.is_err());
    assert_eq!(get(&w, 0, 512), Err(IoError::GONE));
    assert_eq!(put(&w, 0, 512, 4), Err(IoError::GONE));
    assert_eq!(
        on(&w, async |w| w.rt.op(Op::Flush { file: w.disk }).await.result),
        Err(IoError::GONE)
    );
    w.world.revive(w.disk);
    let got = get(&w, 0, 8192).expect("alive");
    assert!(
        got[..4096].chunks(SECTOR).all(|s| (1..=3).contains(&s[0]) && s.iter().all(|b| *b == s[0]))
    );
    assert!(got[4096..].iter().all(|b| *b == 1));
}

#[test]
fn a_full_host_refuses_writes_to_new_pages() {
    let w = written(1);
    w.world.inject(w.disk, Fault::Full(true));
    assert_eq!(put(&w, 65536, 4096, 2), Err(IoError::NO_SPACE));
    assert_eq!(put(&w, 0, 4096, 2), Ok(4096));
    assert_eq!(put(&w, 61440, 8192, 2), Ok(4096), "as far as there is room");
    w.world.inject(w.disk, Fault::Full(false));
    assert_eq!(put(&w, 65536, 4096, 2), Ok(4096));
    assert_eq!(put(&w, MIB, 4096, 2), Err(IoError::NO_SPACE), "beyond the end");
    assert_eq!(w.world.fault_counts(w.disk).no_space, 2);
}

#[test]
fn a_snapshot_is_a_stale_device() {
    let w = written(1);
    let stale = w.world.snapshot_disk(w.disk);
    put(&w, 0, 65536, 2).expect("written");
    on(&w, async |w| flush(&w.rt, w.disk).await);
    cut(&w);
    w.world.restore_disk(w.disk, &stale);
    cut(&w);
    assert_eq!(w.world.contents(w.disk, 0, 65536), vec![1; 65536]);
}

#[test]
fn unaligned_requests_are_refused() {
    let w = written(1);
    assert_eq!(put(&w, 100, 512, 2), Err(IoError::INVALID));
    assert_eq!(put(&w, 0, 100, 2), Err(IoError::INVALID));
    let result = on(&w, async |w| {
        let bufs = BufList::from_iter([w.rt.bufs().take(512), w.rt.bufs().take(40)]);
        w.rt.op(Op::Read { file: w.disk, offset: 0, bufs }).await.result
    });
    assert_eq!(result, Err(IoError::INVALID));
}

/// Random operations on whole blocks, under all faults at once.
fn storm(seed: u64) -> (World1, Vec<Option<u8>>) {
    let w = written(seed);
    w.world.set_rates(
        w.disk,
        FaultRates {
            bit_rot: 50,
            read_error: 50,
            misdirected_write: 50,
            lost_write: 50,
            short_transfer: 20,
            transient_error: 30,
            stuck: 100,
            stuck_for: Duration::from_secs(1),
            ..FaultRates::default()
        },
    );
    let blocks = on(&w, async move |w| {
        let mut rng = base::Prng::new(seed);
        // The content that a block should have; `None` after an error.
        let mut blocks: Vec<Option<u8>> = (0..256).map(|i| Some(u8::from(i < 16))).collect();
        for i in 0..2000u64 {
            let block = rng.below(256);
            if rng.one_in(3) {
                _ = read(&w.rt, w.disk, block * 4096, 4096).await;
                continue;
            }
            let value = (i % 250) as u8;
            let result =
                w.rt.op(fill(&w.rt, w.disk, block * 4096, 4096, value, false)).await.result;
            blocks[block as usize] = (result == Ok(4096)).then_some(value);
        }
        blocks
    });
    (w, blocks)
}

#[test]
fn pristine_bytes_are_correct_under_all_faults() {
    for seed in 0..10 {
        let (w, blocks) = storm(seed);
        for (i, want) in blocks.iter().enumerate() {
            let got = w.world.pristine(w.disk, i as u64 * 4096, 4096);
            assert!(want.is_none_or(|v| got == [v; 4096]), "seed {seed}: block {i}");
        }
        let c = w.world.fault_counts(w.disk);
        let all =
            [c.bit_rot, c.unreadable_sectors, c.read_errors, c.misdirected_writes, c.lost_writes];
        assert!(
            all.iter().chain(&[c.short_transfers, c.transient_errors, c.stuck]).all(|n| *n > 3),
            "{c:?}"
        );
        let (now, pristine) =
            (w.world.contents(w.disk, 0, 1 << 20), w.world.pristine(w.disk, 0, 1 << 20));
        let faulted = w.world.faulted(w.disk);
        for (i, (a, b)) in now.chunks(SECTOR).zip(pristine.chunks(SECTOR)).enumerate() {
            assert!(a == b || faulted.contains(&(i as u64)), "seed {seed}: sector {i}");
        }
        assert!(!faulted.is_empty());
        assert_eq!(w.world.history_hash(), storm(seed).0.world.history_hash());
    }
}

#[test]
fn rewriting_everything_heals_everything() {
    let (w, _) = storm(3);
    w.world.set_rates(w.disk, FaultRates::default());
    put(&w, 0, 1 << 20, 7).expect("written");
    assert!(w.world.faulted(w.disk).is_empty());
    on(&w, async |w| flush(&w.rt, w.disk).await);
    cut(&w);
    assert!(w.world.faulted(w.disk).is_empty());
    assert!(w.world.contents(w.disk, 0, 1 << 20).iter().all(|b| *b == 7));
}
