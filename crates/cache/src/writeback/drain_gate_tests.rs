//! The gate alone: what clients may begin in each round, whatever they ask for.

use base::Prng;

use super::*;

fn pass(carried: u64, all: u64, publishes: bool) -> Progress {
    Progress { carried, all, publishes }
}

/// Greedy clients, with requests of several sizes: each round carries little more than half of
/// what the one before did, until little is left.
#[test]
fn a_round_leaves_half_of_what_it_carries() {
    for seed in 0..100 {
        let (r, gate) = (&mut Prng::new(seed), Rc::new(DrainGate::new()));
        let most = 1 + r.below(20);
        let mut under_way = Vec::new();
        gate.begin_round(true);
        for _ in 0..r.range(1, 100_000) {
            assert!(gate.lets_in(pass(0, 0, false)), "the first round holds nothing up");
            drop(gate.enter(1 + r.below(most)));
        }
        let (mut rounds, mut before) = (0, gate.next.get());
        while gate.next.get() > LITTLE {
            gate.begin_round(false);
            let all = 1 + r.below(1000);
            for step in 0..=8 {
                let pass = pass(all * step.min(7) / 7, all, step == 8);
                while gate.lets_in(pass) {
                    let change = gate.enter(1 + r.below(most));
                    // Some are under way for long: they are of the next round, too.
                    if r.one_in(50) && under_way.len() < 4 {
                        under_way.push(change);
                    }
                }
                under_way.truncate(r.below(5) as usize);
            }
            let left = gate.next.get();
            assert!(left <= before / 2 + STEP + 5 * most, "seed {seed}: {left} after {before}");
            (rounds, before) = (rounds + 1, left);
            assert!(rounds < 24, "seed {seed}");
        }
        gate.limit.set(Limit::Nothing);
        assert!(!gate.lets_in(pass(9, 9, true)));
        drop(under_way);
        assert_eq!(gate.under_way.get(), 0);
    }
}

/// Clients come in bit by bit, and there is something for them while a pass is published.
#[test]
fn the_part_of_clients_grows_with_the_pass() {
    let gate = DrainGate::new();
    gate.next.set(8000);
    gate.begin_round(false);
    let allowed = |p| gate.allowed(p).expect("a bound") - STEP;
    assert_eq!(allowed(pass(0, 0, false)), 1000);
    assert_eq!(allowed(pass(0, 10, false)), 1000);
    assert_eq!(allowed(pass(5, 10, false)), 2000);
    assert_eq!(allowed(pass(99, 10, false)), 3000);
    assert_eq!(allowed(pass(10, 10, true)), 4000);
}
