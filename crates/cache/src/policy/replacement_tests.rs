//! Every policy against a naive model: what is a candidate, and for LRU and FIFO which one goes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::links::MAX_STEPS;
use super::*;

#[test]
fn words() {
    for p in Policy::ALL {
        assert_eq!(p.to_string().parse(), Ok(p));
    }
    let e = "s3fifo".parse::<Policy>().unwrap_err();
    assert_eq!(e, "\"s3fifo\" is not one of lru, fifo, random, adaptive");
}

/// A queue in a vector, oldest first: the first one is the victim where nothing is pinned.
struct Model {
    policy: Policy,
    queue: Vec<u32>,
}

impl Model {
    fn remove(&mut self, id: u32) {
        let at = self.queue.iter().position(|&q| q == id).unwrap();
        self.queue.remove(at);
    }

    fn touch(&mut self, id: u32) {
        if self.policy == Policy::Lru && self.queue.contains(&id) {
            self.remove(id);
            self.queue.push(id);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Insert(u32),
    Remove(u32),
    Touch(u32),
    Victim,
}

/// Fills a bucket, and makes it a candidate.
fn enter(r: &mut Replacement, id: u32) {
    r.begin(id, Origin::ALL[id as usize % 3], 0);
    r.insert(id);
}

fn steps() -> impl Strategy<Value = Vec<Act>> {
    let id = 0..24u32;
    let step = prop_oneof![
        4 => id.clone().prop_map(Act::Insert),
        1 => id.clone().prop_map(Act::Remove),
        4 => id.prop_map(Act::Touch),
        2 => Just(Act::Victim),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn as_the_model(
        policy in prop::sample::select(vec![Policy::Lru, Policy::Fifo]),
        steps in steps(),
    ) {
        let mut real = Replacement::new(policy, 24, 8, 1);
        let mut model = Model { policy, queue: Vec::new() };
        for step in steps {
            match step {
                Act::Insert(id) if !real.contains(id) => {
                    enter(&mut real, id);
                    model.queue.push(id);
                }
                Act::Remove(id) if real.contains(id) => {
                    real.remove(id);
                    model.remove(id);
                }
                Act::Touch(id) => {
                    real.touch(id, id % 8, 1);
                    model.touch(id);
                }
                Act::Victim => {
                    let v = model.queue.first().copied();
                    prop_assert_eq!(real.victim(|_| true), v);
                    if let Some(v) = v {
                        model.remove(v);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(real.len(), model.queue.len());
        }
    }

    /// With pins: a victim was a candidate that might go; none is lost; all unpinned ones go in the
    /// end.
    #[test]
    fn candidates_are_exact(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        steps in steps(),
        pinned in any::<u32>(),
    ) {
        let may = |id: u32| pinned >> id & 1 == 0;
        let mut real = Replacement::new(policy, 24, 8, 1);
        let mut model = BTreeSet::new();
        for step in steps {
            match step {
                Act::Insert(id) if model.insert(id) => enter(&mut real, id),
                Act::Remove(id) if model.remove(&id) => {
                    real.remove(id);
                    real.end(id);
                }
                Act::Touch(id) => real.touch(id, id % 8, 1),
                Act::Victim => {
                    if let Some(v) = real.victim(may) {
                        prop_assert!(may(v) && model.remove(&v));
                        real.end(v);
                    }
                }
                _ => {}
            }
            prop_assert_eq!(real.len(), model.len());
            for id in 0..24 {
                prop_assert_eq!(real.contains(id), model.contains(&id));
            }
        }
        for _ in 0..1000 {
            if let Some(v) = real.victim(may) {
                prop_assert!(model.remove(&v));
            }
        }
        prop_assert!(model.iter().all(|&id| !may(id)), "left: {:?}", model);
    }
}

#[test]
fn a_victim_is_found_in_bounded_steps() {
    const N: u32 = 100_000;
    for policy in Policy::ALL {
        let mut r = Replacement::new(policy, N as usize, 8, 1);
        (0..N).for_each(|id| enter(&mut r, id));
        for round in 0..N {
            // All are marked, all the time.
            if round % 1000 == 0 {
                for id in 0..N {
                    if r.contains(id) {
                        (0..3).for_each(|_| r.touch(id, 0, 1));
                    }
                }
            }
            let mut asked = 0;
            let v = r.victim(|_| {
                asked += 1;
                true
            });
            assert!(v.is_some() && asked <= MAX_STEPS, "{policy}: {asked}");
            v.into_iter().for_each(|id| r.end(id));
        }
        assert!(r.is_empty());
        // All pinned: no victim, in bounded steps, and none is lost.
        (0..N).for_each(|id| enter(&mut r, id));
        let mut asked = 0;
        let v = r.victim(|_| {
            asked += 1;
            false
        });
        assert!(v.is_none() && asked <= MAX_STEPS && r.len() == N as usize, "{policy}: {asked}");
        // A run of pinned ones is passed by in a bounded number of calls.
        let calls = (0..N).take_while(|_| r.victim(|id| id >= 1000).is_none()).count();
        assert!(calls <= 1000 / MAX_STEPS + 2, "{policy}: {calls}");
    }
}

#[test]
fn what_is_read_is_spared() {
    let mut r = Replacement::new(Policy::Lru, 100, 8, 1);
    r.touch(0, 0, 1);
    (0..40).for_each(|id| enter(&mut r, id));
    (0..5).for_each(|_| (0..10).for_each(|id| r.touch(id, 0, 1)));
    let gone: Vec<u32> = (0..20).map(|_| r.victim(|_| true).unwrap()).collect();
    assert!(gone.iter().all(|&id| id >= 10), "{gone:?}");
}
