//! The adaptive policy against a model, and its rules one by one.

use std::collections::BTreeSet;

use base::Prng;

use super::*;

const BLOCKS: u32 = 8;

fn full(buckets: u32, origin: impl Fn(u32) -> Origin) -> Adaptive {
    let mut a = Adaptive::new(buckets as usize, BLOCKS);
    for id in 0..buckets {
        a.begin(id, origin(id), 0);
        a.insert(id);
    }
    a
}

#[test]
fn what_was_read_gives_its_oldest_if_it_exceeds_its_share_then_what_was_written() {
    // 5, 85 and 10 of 100 are their shares.
    let mut a = full(100, |id| Origin::ALL[id as usize / 34]);
    let mut gone = Vec::new();
    for clock in 1..=60 {
        let id = a.victim(|_| true).unwrap();
        a.evicted(id, 0, BLOCKS, clock);
        a.end(id);
        gone.push(id);
    }
    // Three of 69 are not more than their share. What was written is below its own for long.
    assert_eq!(gone[..31], (0..31).collect::<Vec<u32>>());
    assert_eq!(gone[31], 68);
    assert!(gone[..50].iter().all(|&id| !(34..68).contains(&id)), "{gone:?}");
    let of = |origin: Origin| {
        let mine = |id: &&u32| Origin::ALL[**id as usize / 34] == origin;
        gone.iter().filter(mine).copied().collect::<Vec<u32>>()
    };
    for origin in Origin::ALL {
        assert!(of(origin).is_sorted(), "{origin:?}: {:?}", of(origin));
    }
    assert_eq!(of(Origin::Read).first(), Some(&0));
}

#[test]
fn the_blocks_with_the_most_hits_survive_and_at_most_half_of_a_bucket() {
    // Blocks that were moved before are a debt.
    for (origin, moved, hits, kept) in [
        (Origin::Read, 0, [0, 1, 2, 3, 0, 0, 0, 0], vec![1, 2, 3]),
        (Origin::Read, 1, [0, 1, 2, 3, 0, 0, 1, 0], vec![2, 3]),
        (Origin::Write, 9, [0, 1, 2, 3, 0, 0, 1, 3], vec![3, 7]),
        (Origin::Write, 0, [2, 3, 3, 2, 2, 1, 3, 0], vec![0, 1, 2, 6]),
        (Origin::Main, 9, [0, 1, 0, 0, 0, 0, 0, 2], vec![1, 7]),
        (Origin::Main, 0, [1, 1, 3, 1, 2, 1, 1, 3], vec![0, 2, 4, 7]),
    ] {
        let mut a = full(1, |_| origin);
        a.moved(moved);
        for (slot, n) in hits.into_iter().enumerate() {
            (0..n).for_each(|_| a.touch(0, slot as u32, 1));
        }
        assert_eq!(a.survivors(0).to_vec(), kept, "{origin:?} {hits:?}");
        let after: Vec<u8> = kept.iter().map(|&slot| a.hits_after(0, slot)).collect();
        let less = |slot: &u32| hits[*slot as usize] - 1;
        let main = origin == Origin::Main;
        assert_eq!(after, kept.iter().map(|s| if main { less(s) } else { 0 }).collect::<Vec<_>>());
        a.remove(0);
        a.end(0);
        a.begin(0, origin, 1);
        assert!(a.survivors(0).is_empty(), "hits of its last life");
    }
}

#[test]
fn a_thin_bucket_of_the_main_queue_is_its_next_victim() {
    let mut a = full(10, |_| Origin::Main);
    a.thin(7);
    a.thin(7);
    assert_eq!(a.len(), 10);
    let gone: Vec<u32> = (0..3).map(|_| a.victim(|_| true).unwrap()).collect();
    assert_eq!(gone, [7, 0, 1]);
    // Of the others that means nothing. And of one that is no candidate yet, it is kept in mind.
    let mut a = full(10, |id| if id < 5 { Origin::Read } else { Origin::Main });
    a.remove(8);
    [2, 8].into_iter().for_each(|id| a.thin(id));
    a.insert(8);
    let mut gone = Vec::new();
    while let Some(id) = a.victim(|_| true) {
        a.evicted(id, 0, 1, gone.len() as u32 + 1);
        a.end(id);
        gone.push(id);
    }
    let main: Vec<u32> = gone.iter().copied().filter(|id| *id >= 5).collect();
    let read: Vec<u32> = gone.into_iter().filter(|id| *id < 5).collect();
    assert_eq!((main, read), (vec![8, 5, 6, 7, 9], vec![0, 1, 2, 3, 4]));
}

#[test]
fn all_of_a_thin_bucket_is_kept_once_with_its_hits() {
    let mut a = full(2, |_| Origin::Main);
    a.touch(1, 3, 1);
    a.thin(1);
    assert_eq!(a.victim(|_| true), Some(1));
    assert_eq!(a.survivors(1).to_vec(), (0..BLOCKS).collect::<Vec<u32>>());
    assert_eq!((a.hits_after(1, 3), a.hits_after(1, 4)), (1, 0));
    // What could not be moved goes.
    a.insert_first(1);
    assert_eq!(a.victim(|_| true), Some(1));
    assert!(a.survivors(1).is_empty());
    a.end(1);
    a.begin(1, Origin::Main, 1);
    a.thin(1);
    assert_eq!(a.survivors(1).len(), BLOCKS as usize, "a new life");
}

#[test]
fn a_block_that_comes_back_enters_the_main_queue_if_it_is_young_enough() {
    let mut a = Adaptive::new(100, BLOCKS);
    a.set_clock(1000);
    // There is room in the main queue.
    assert!(a.admits(1000) && a.admits(781) && !a.admits(780) && !a.is_ghost(780));
    for id in 0..10 {
        a.begin(id, Origin::Main, 900 + id);
        a.insert(id);
    }
    // It is full. Its oldest bucket was freed when the clock showed 900.
    assert!(a.admits(921) && !a.admits(920) && a.is_ghost(920));
    (0..5).for_each(|id| assert_eq!(a.victim(|_| true), Some(id)));
    // Now it is the one of 905.
    assert!(a.admits(925) && !a.admits(924));
}

#[test]
fn what_is_missed_lately_gives_its_queue_a_larger_share() {
    let mut a = full(100, |id| if id < 50 { Origin::Read } else { Origin::Main });
    let before = a.shares();
    for clock in 1..=40 {
        let id = a.victim(|_| true).unwrap();
        a.evicted(id, 0, BLOCKS, clock);
        a.end(id);
    }
    // The first bucket of reads was dropped long ago.
    a.missed(0, 0, 1);
    assert_eq!(a.shares(), before);
    let last = (0..50).rev().find(|&id| a.origin(id).is_none()).unwrap();
    a.missed(last, 0, 8);
    // Eight quarters of a bucket of a hundred.
    assert!((before[0] + 19..=before[0] + 20).contains(&a.shares()[0]), "{:?}", a.shares());
    assert!(a.shares()[1] < before[1] && a.shares()[2] < before[2]);
}

/// Candidates, hits and the numbers of buckets in use are those of a naive model.
#[test]
fn as_a_model_that_keeps_everything_by_itself() {
    const N: u32 = 40;
    for seed in 0..30 {
        let mut prng = Prng::new(seed);
        let mut a = Adaptive::new(N as usize, BLOCKS);
        let mut hits = [[0u8; BLOCKS as usize]; N as usize];
        let mut origins = [None; N as usize];
        let mut candidates = BTreeSet::new();
        let mut clock = 0;
        for _ in 0..4000 {
            let id = prng.below(u64::from(N)) as u32;
            let i = id as usize;
            match prng.below(8) {
                0..2 if origins[i].is_none() => {
                    let origin = Origin::ALL[prng.below(3) as usize];
                    a.begin(id, origin, clock);
                    (origins[i], hits[i]) = (Some(origin), [0; BLOCKS as usize]);
                }
                2 if origins[i].is_some() && candidates.insert(id) => a.insert(id),
                3..6 if origins[i].is_some() => {
                    let slot = prng.below(u64::from(BLOCKS)) as u32;
                    a.touch(id, slot, 1);
                    let n = &mut hits[i][slot as usize];
                    *n = (*n + 1).min(3);
                }
                6 if candidates.contains(&id) => a.thin(id),
                7 => {
                    let pinned = prng.below(u64::from(N)) as u32;
                    let Some(v) = a.victim(|id| id != pinned) else { continue };
                    assert!(v != pinned && candidates.remove(&v));
                    let main = origins[v as usize] == Some(Origin::Main);
                    let least = if main { 1 } else { a.budget.least_hits() };
                    if a.moves_whole(v) {
                        assert_eq!(a.survivors(v).len(), BLOCKS as usize);
                        (origins[v as usize], clock) = (None, clock + 1);
                        a.evicted(v, 0, BLOCKS, clock);
                        a.end(v);
                        continue;
                    }
                    let may = hits[v as usize].iter().filter(|n| **n >= least).count();
                    let kept = a.survivors(v);
                    assert_eq!(kept.len(), may.min(BLOCKS as usize / 2));
                    let weakest = kept.iter().map(|&s| hits[v as usize][s as usize]).min();
                    let left = (0..BLOCKS).filter(|s| !kept.contains(s));
                    let strongest = left.map(|s| hits[v as usize][s as usize]).max();
                    a.moved(kept.len() as u32);
                    assert!(kept.is_empty() || kept.len() < may || strongest < weakest);
                    assert!(kept.is_empty() || weakest >= Some(least) && strongest <= weakest);
                    clock += 1;
                    a.evicted(v, 0, BLOCKS, clock);
                    a.end(v);
                    origins[v as usize] = None;
                }
                _ => {}
            }
            assert_eq!(a.len(), candidates.len());
            for o in Origin::ALL {
                let used = origins.iter().filter(|of| **of == Some(o)).count();
                assert_eq!(a.used[o as usize] as usize, used);
            }
        }
        for id in 0..N {
            assert_eq!(a.contains(id), candidates.contains(&id));
            assert_eq!(a.origin(id), origins[id as usize]);
            if origins[id as usize].is_some() {
                let found: Vec<u8> = (0..BLOCKS).map(|s| a.hits(id, s)).collect();
                assert_eq!(found, hits[id as usize]);
            }
        }
    }
}
