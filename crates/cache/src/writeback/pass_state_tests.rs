//! What stays between passes, against a model that keeps the time of every write.

use base::{ErrorKind, Prng};
use btree::Tree;

use super::*;
use crate::testkit::Lab;

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn cut(epoch: u32, taken_at: Instant) -> Cut {
    let tree = Tree::open(format::tree::INDEX_TREE, None);
    Cut { epoch: Epoch(epoch), tree, taken_at, blocks: 10, handed_over: false }
}

#[test]
fn the_age_is_never_less_than_that_of_the_oldest_write_which_is_not_published() {
    Lab::new().with(|cache| async move {
        let mut room = cache.core().state_mut().empty_reservation();
        (0..200).for_each(|seed| some_passes(seed, &mut room));
    });
}

fn some_passes(seed: u64, room: &mut pool::Reservation) {
    let mut rng = Prng::new(seed);
    let mut passes = Passes::new(&Settings::default());
    // The open epoch; writes that are not published, by epoch; when cuts were taken.
    let (mut open, mut writes, mut cuts) = (1, Vec::new(), Vec::new());
    for ms in 1..2_000 {
        match rng.below(8) {
            0..4 => {
                writes.push((open, at(ms)));
                assert_eq!(passes.note_dirty(true, at(ms)), writes.len() + cuts.len() == 1);
            }
            4 if cuts.len() < 5 => {
                let taken = cut(open, at(ms));
                passes.cuts_mut().push(taken.clone(), room.split(0));
                cuts.push(taken);
                open += 1;
                passes.note_dirty(!writes.is_empty(), at(ms));
            }
            5 if !cuts.is_empty() => {
                let published = cuts.remove(0);
                writes.retain(|(epoch, _)| *epoch > published.epoch.0);
                passes.conclude(&published, Epoch(open), !writes.is_empty());
            }
            _ => {}
        }
        let oldest = writes.first().map(|&(_, then)| at(ms).since(then));
        let age = passes.age(at(ms));
        assert!(age >= oldest, "seed {seed}: {age:?}, and a write is {oldest:?} old");
        assert_eq!(age.is_some(), !writes.is_empty() || !cuts.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_turn_ends_when_all_that_was_open_at_its_beginning_is_published() {
    let mut passes = Passes::new(&Settings::default());
    let (first, second, third) = (cut(1, at(1)), cut(2, at(2)), cut(3, at(3)));
    passes.conclude(&first, Epoch(3), true);
    assert_eq!(passes.turns(), 1);
    passes.conclude(&second, Epoch(4), true);
    assert_eq!((passes.turns(), passes.published()), (1, 2), "epoch 3 was open then");
    passes.conclude(&third, Epoch(4), true);
    assert_eq!(passes.turns(), 2);
}

#[test]
fn a_failure_is_news_once_and_ends_with_a_pass_that_ends_well() {
    let mut passes = Passes::new(&Settings::default());
    let error = |text: &str| StorageError::new(ErrorKind::Io, text);
    assert!(passes.fails(error("a"), at(1)));
    assert!(!passes.fails(error("a"), at(2)));
    assert!(passes.fails(error("b"), at(3)));
    assert_eq!(passes.failing().unwrap().0, at(1));
    passes.conclude(&cut(1, at(1)), Epoch(2), false);
    assert!(passes.failing().is_none() && passes.age(at(9)).is_none());
    assert!(passes.fails(error("b"), at(4)));
    assert_eq!(passes.failing().unwrap().0, at(4));
}

#[test]
fn what_is_urgent_is_not_paid_for() {
    let mut passes = Passes::new(&Settings::default());
    passes.set_urgent(true);
    for _ in 0..1_000 {
        assert!(passes.take_turn(at(1), 1 << 20, 1 << 20).is_zero());
    }
    assert_eq!(passes.rate_in_force(), None, "nothing bounds it");
    passes.set_urgent(false);
    assert!(passes.take_turn(at(1), 1 << 20, 1 << 20).is_zero());
    let wait = passes.take_turn(at(1), 1 << 20, 1 << 20);
    assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1), "{wait:?}");
    assert_eq!(passes.sleeps_at(), Some(1 << 20));
    assert_eq!(passes.rate_in_force(), Some(1 << 20));
    assert_eq!(passes.carried(), 1_001 * 256);
    passes.ends();
    assert_eq!(passes.rate_in_force(), None, "no pass is under way");
}
