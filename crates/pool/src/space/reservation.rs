//! Reservations: room for data that was set aside before it is needed.
//!
//! A [`SetAsideBlocks`] knows how many blocks are set aside altogether. Each of them belongs to one
//! [`Reservation`], which is a value: it can be split, merged with another one and spent. What is
//! left of it when it is dropped returns. So the number cannot drift from what the reservations
//! have.

use std::cell::Cell;
use std::rc::Rc;

/// The number of blocks that are set aside; clones share the number.
#[derive(Clone, Default, Debug)]
pub(crate) struct SetAsideBlocks(Rc<Cell<u64>>);

impl SetAsideBlocks {
    /// All blocks that are set aside.
    pub fn blocks(&self) -> u64 {
        self.0.get()
    }

    /// Sets `blocks` blocks aside. The caller has made sure that there is room for them.
    pub fn reserve(&self, blocks: u64) -> Reservation {
        self.0.set(self.0.get() + blocks);
        Reservation { of: self.clone(), blocks }
    }

    fn take(&self, blocks: u64) {
        let left = self.0.get().checked_sub(blocks);
        self.0.set(left.unwrap_or_else(|| unreachable!("{blocks} blocks were not set aside")));
    }
}

/// Blocks of the pool that are set aside for the holder of this value. Those that are left when it
/// is dropped may be taken by others.
#[must_use = "the room is given back when this is dropped"]
#[derive(Debug)]
pub struct Reservation {
    of: SetAsideBlocks,
    blocks: u64,
}

impl Reservation {
    /// The number of blocks that the reservation holds.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Takes `blocks` blocks out of it. It must hold as many.
    pub fn split(&mut self, blocks: u64) -> Reservation {
        self.reduce(blocks);
        Reservation { of: self.of.clone(), blocks }
    }

    /// Takes everything out of it.
    pub fn split_all(&mut self) -> Reservation {
        self.split(self.blocks)
    }

    /// Adds what another one of the same pool holds.
    pub fn merge(&mut self, mut other: Reservation) {
        assert!(Rc::ptr_eq(&self.of.0, &other.of.0), "reservations of two pools");
        self.blocks += std::mem::take(&mut other.blocks);
    }

    /// Spends the room of `blocks` blocks: they were allocated, and are set aside no more.
    pub(crate) fn spend(&mut self, blocks: u64) {
        self.reduce(blocks);
        self.of.take(blocks);
    }

    /// Blocks that were allocated from it are free again, and set aside as before.
    pub(crate) fn restore(&mut self, blocks: u64) {
        self.merge(self.of.reserve(blocks));
    }

    /// Keeps the room set aside for as long as the pool is open: it is needed again after the next
    /// open.
    pub fn keep(mut self) {
        self.blocks = 0;
    }

    fn reduce(&mut self, blocks: u64) {
        let left = self.blocks.checked_sub(blocks);
        self.blocks = left
            .unwrap_or_else(|| unreachable!("{blocks} blocks of a reservation of {}", self.blocks));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.of.take(self.blocks);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is a list of numbers. `SetAsideBlocks` is their sum, and what was kept.
        #[test]
        fn the_number_is_the_sum_of_what_is_held(
            steps in prop::collection::vec((0u8..7, 0usize..4, 0u64..50), 1..200),
        ) {
            let set_aside = SetAsideBlocks::default();
            let (mut taken, mut model): (Vec<Reservation>, Vec<u64>) = (Vec::new(), Vec::new());
            let mut kept = 0u64;
            for (what, at, blocks) in steps {
                let at = at % taken.len().max(1);
                match what {
                    0 => {
                        taken.push(set_aside.reserve(blocks));
                        model.push(blocks);
                    }
                    _ if taken.is_empty() => {}
                    1 => {
                        let blocks = blocks.min(model[at]);
                        taken.push(set_aside.clone().reserve(0));
                        model.push(blocks);
                        let part = taken[at].split(blocks);
                        model[at] -= blocks;
                        taken.last_mut().expect("it was pushed").merge(part);
                    }
                    2 => {
                        let (other, n) = (taken.swap_remove(at), model.swap_remove(at));
                        match taken.first_mut() {
                            Some(first) => {
                                first.merge(other);
                                model[0] += n;
                            }
                            None => drop(other),
                        }
                    }
                    3 => {
                        let blocks = blocks.min(model[at]);
                        taken[at].spend(blocks);
                        model[at] -= blocks;
                    }
                    4 => {
                        taken[at].restore(blocks);
                        model[at] += blocks;
                    }
                    5 => {
                        taken.swap_remove(at).keep();
                        kept += model.swap_remove(at);
                    }
                    _ => {
                        drop(taken.swap_remove(at));
                        model.swap_remove(at);
                    }
                }
                prop_assert_eq!(set_aside.blocks(), model.iter().sum::<u64>() + kept);
                prop_assert!(taken.iter().map(Reservation::blocks).eq(model.iter().copied()));
            }
        }
    }

    #[test]
    #[should_panic(expected = "4 blocks of a reservation of 3")]
    fn more_than_it_holds_is_never_taken() {
        let _ = SetAsideBlocks::default().reserve(3).split(4);
    }
}
