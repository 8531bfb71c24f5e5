//! Tests of disks: what reads see, what survives a crash, and that one seed is one history.

mod common;

use base::{BufList, SECTOR};
use common::{World1, cut, fill, flush, read, write};
use rt::Op;

/// The last flushed version, and the versions written after it.
#[derive(Clone)]
struct Sector {
    stable: u8,
    later: Vec<u8>,
}

/// Makes random writes, leaves some in flight, and cuts the power. Returns the world, and what each
/// sector may hold.
fn history(seed: u64) -> (World1, Vec<Sector>, u64) {
    let w = World1::new(seed, 64 * 4096);
    let sectors = vec![Sector { stable: 0, later: Vec::new() }; 64 * 8];
    let w2 = w.clone();
    let model = std::rc::Rc::new(std::cell::RefCell::new(sectors));
    let m = model.clone();
    w.rt.block_on(async move {
        let mut rng = base::Prng::new(seed);
        for value in 1..=200u8 {
            let first = rng.below(64 * 8);
            let n = rng.range(1, 33).min(64 * 8 - first) as usize;
            let fua = value < 190 && rng.one_in(20);
            let op = fill(&w2.rt, w2.disk, first * SECTOR as u64, n * SECTOR, value, fua);
            let range = first as usize..first as usize + n;
            for s in &mut m.borrow_mut()[range.clone()] {
                s.later.push(value);
            }
            match rng.below(10) {
                // Leave it in flight, and flush nothing after it: it may complete after a flush
                // that is submitted later.
                0 if value > 190 => {
                    w2.rt.submit(op, |_| {});
                    if value > 198 {
                        break;
                    }
                }
                _ => {
                    assert_eq!(w2.rt.op(op).await.result, Ok((n * SECTOR) as u64));
                    if fua {
                        for s in &mut m.borrow_mut()[range] {
                            *s = Sector { stable: value, later: Vec::new() };
                        }
                    }
                }
            }
            if rng.one_in(15) && value < 190 {
                flush(&w2.rt, w2.disk).await;
                for s in &mut m.borrow_mut()[..] {
                    *s = Sector {
                        stable: s.later.last().copied().unwrap_or(s.stable),
                        later: Vec::new(),
                    };
                }
            }
        }
    });
    w.world.power_cut();
    w.rt.kill();
    let sectors = model.borrow().clone();
    let hash = w.world.history_hash();
    (w, sectors, hash)
}

#[test]
fn one_seed_is_one_history() {
    let all: Vec<u64> = (0..10).map(|seed| history(seed).2).collect();
    for (seed, hash) in all.iter().enumerate() {
        let (w, _, again) = history(seed as u64);
        assert_eq!(*hash, again);
        assert_eq!(
            w.world.contents(w.disk, 0, 64 * 4096),
            history(seed as u64).0.world.contents(w.disk, 0, 64 * 4096)
        );
        assert_eq!(
            all.iter().filter(|h| *h == hash).count(),
            1,
            "other seeds have other histories"
        );
    }
}

#[test]
fn a_cut_leaves_the_stable_version_or_a_later_one() {
    let (mut stable, mut last, mut between) = (0, 0, 0);
    for seed in 0..300 {
        let (w, sectors, _) = history(seed);
        let bytes = w.world.contents(w.disk, 0, 64 * 4096);
        for (i, (s, got)) in sectors.iter().zip(bytes.chunks(SECTOR)).enumerate() {
            assert!(got.iter().all(|b| *b == got[0]), "seed {seed}: sector {i} is a mixture");
            assert!(
                got[0] == s.stable || s.later.contains(&got[0]),
                "seed {seed}: sector {i} holds {}",
                got[0]
            );
            if !s.later.is_empty() {
                stable += u32::from(got[0] == s.stable);
                last += u32::from(s.later.last() == Some(&got[0]));
                between += u32::from(s.later[..s.later.len() - 1].contains(&got[0]));
            }
        }
        assert_eq!(w.world.pristine(w.disk, 0, 64 * 4096), bytes, "a cut is no fault");
        assert!(w.world.faulted(w.disk).is_empty());
    }
    assert!(stable > 1000 && last > 1000 && between > 100, "{stable} {last} {between}");
}

#[test]
fn writes_are_torn_lost_kept_and_applied_unacknowledged() {
    let (mut torn, mut none, mut all, mut unacknowledged) = (0, 0, 0, 0);
    for seed in 0..200 {
        for acknowledged in [true, false] {
            let w = World1::new(seed, 1 << 20);
            let w2 = w.clone();
            w.rt.block_on(async move {
                let op = fill(&w2.rt, w2.disk, 8192, 8192, 7, false);
                if acknowledged {
                    w2.rt.op(op).await;
                } else {
                    w2.rt.submit(op, |_| {});
                }
            });
            w.world.power_cut();
            let kept =
                w.world.contents(w.disk, 8192, 8192).iter().filter(|b| **b == 7).count() / SECTOR;
            match kept {
                0 => none += 1,
                16 => all += 1,
                _ => torn += 1,
            }
            unacknowledged += u32::from(kept > 0 && !acknowledged);
        }
    }
    assert!(
        torn > 50 && none > 50 && all > 50 && unacknowledged > 50,
        "{torn} {none} {all} {unacknowledged}"
    );
}

#[test]
fn a_flush_covers_only_the_writes_that_had_completed() {
    let mut lost = 0;
    for seed in 0..200 {
        let w = World1::new(seed, 1 << 20);
        let w2 = w.clone();
        w.rt.block_on(async move {
            write(&w2.rt, w2.disk, 0, 4096, 1).await;
            // This flush is submitted before the write completes, so it does not cover the write.
            let late = w2.rt.op(fill(&w2.rt, w2.disk, 4096, 4096, 2, false));
            flush(&w2.rt, w2.disk).await;
            late.await;
        });
        cut(&w);
        assert!(w.world.contents(w.disk, 0, 4096).iter().all(|b| *b == 1));
        lost += u32::from(w.world.contents(w.disk, 4096, 4096).contains(&0));
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn a_read_may_see_sectors_of_a_write_in_flight() {
    let (mut old, mut mixed) = (0, 0);
    for seed in 0..60 {
        let w = World1::new(seed, 8 << 20);
        let w2 = w.clone();
        let got = w.rt.block_on(async move {
            write(&w2.rt, w2.disk, 0, 4096, 1).await;
            let bufs = BufList::from_iter([w2.rt.bufs().take(4096)]);
            let reading = w2.rt.op(Op::Read { file: w2.disk, offset: 0, bufs });
            // The write is so large that it takes longer than a read.
            w2.rt.submit(fill(&w2.rt, w2.disk, 0, 8 << 20, 2, false), |_| {});
            reading.await.into_bufs()[0].to_vec()
        });
        let got = got.expect("not killed");
        assert!(got.chunks(SECTOR).all(|s| s.iter().all(|b| *b == s[0] && (1..=2).contains(b))));
        match got.iter().filter(|b| **b == 2).count() {
            0 => old += 1,
            4096 => {}
            _ => mixed += 1,
        }
    }
    assert!(old > 3 && mixed > 15, "{old} {mixed}");
}

#[test]
fn a_kill_keeps_the_cache() {
    for seed in 0..50 {
        let w = World1::new(seed, 1 << 20);
        let w2 = w.clone();
        w.rt.block_on(async move { write(&w2.rt, w2.disk, 0, 4096, 1).await });
        let old = w.clone();
        let w = w.reboot();
        let w2 = w.clone();
        let got = w.rt.block_on(async move { read(&w2.rt, w2.disk, 0, 4096).await });
        assert_eq!(got, Some(Ok(vec![1; 4096])));
        old.rt.submit(fill(&old.rt, old.disk, 0, 4096, 9, false), |_| {
            unreachable!("a dead backend completes nothing")
        });
        w.world.power_cut();
        assert!(w.world.contents(w.disk, 0, 4096).iter().all(|b| *b < 2));
    }
}

#[test]
fn a_discard_is_old_or_zero() {
    let (mut old, mut zero) = (0, 0);
    for seed in 0..50 {
        let w = World1::new(seed, 1 << 20);
        let w2 = w.clone();
        w.rt.block_on(async move {
            write(&w2.rt, w2.disk, 0, 65536, 1).await;
            flush(&w2.rt, w2.disk).await;
            let done = w2.rt.op(Op::Discard { file: w2.disk, offset: 4096, len: 1 << 40 }).await;
            assert_eq!(done.result, Ok(0));
        });
        cut(&w);
        let bytes = w.world.contents(w.disk, 0, 65536);
        assert!(bytes[..4096].iter().all(|b| *b == 1));
        assert!(bytes[4096..].chunks(SECTOR).all(|s| s == [0; SECTOR] || s == [1; SECTOR]));
        zero += u32::from(bytes.contains(&0));
        old += u32::from(bytes[4096..].contains(&1));
    }
    assert!(old > 5 && zero > 5, "{old} {zero}");
}

#[test]
fn time_continues_across_boots() {
    let w = World1::new(1, 1 << 20);
    let w2 = w.clone();
    w.rt.block_on(async move { write(&w2.rt, w2.disk, 0, 4096, 1).await });
    let before = w.world.now();
    assert!(before.0 > 0);
    cut(&w);
    assert_eq!(w.reboot().rt.now(), before);
}

#[test]
#[should_panic(expected = "deadlock: at 0 ns")]
fn a_deadlock_panics() {
    let w = World1::new(1, 1 << 20);
    w.rt.block_on(std::future::pending::<()>());
}
