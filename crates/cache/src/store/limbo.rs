//! Nodes of the index that checkpoints have replaced: when their blocks may be given to others.
//!
//! Two kinds of users may still need them. *Readers* that began before need them for a moment; they
//! hold a [`Pin`]. *Cuts* that are not published yet know nodes up to the generation that
//! was open when it was taken, and none that had been replaced before. So a node is held if the
//! newest cut of the moment in which it was replaced can know it, and until that cut is published,
//! for an older one may know it too. Most nodes are replaced soon after they were made, and are
//! younger than all cuts. What is held is therefore little more than what the cuts' trees have.

use std::collections::VecDeque;
use std::rc::Rc;

use base::{Epoch, Generation};
use btree::NodePtr;

/// A reader of index nodes holds a pin, so that their blocks are not reused meanwhile.
pub(crate) type Pin = Rc<()>;

#[derive(Default)]
pub(crate) struct Limbo {
    pin: Pin,
    /// Nodes that nothing refers to any more, and the pin of readers that may have begun before.
    waiting: VecDeque<(Pin, Vec<NodePtr>)>,
    /// The cuts that are not published, the oldest first: the epoch of each, and the newest
    /// generation that it knows.
    cuts: VecDeque<(Epoch, Generation)>,
    /// Nodes that perhaps only cuts know, with the epoch of the newest of these cuts. In the order
    /// of the cuts.
    held: VecDeque<(Epoch, Vec<NodePtr>)>,
    published_before: Generation,
}

impl Limbo {
    /// Returns a pin for a reader that begins.
    pub fn pin(&self) -> Pin {
        self.pin.clone()
    }

    /// A cut of `epoch` was taken while `open` was the open generation.
    pub(super) fn take_cut(&mut self, epoch: Epoch, open: Generation) {
        self.cuts.push_back((epoch, open));
    }

    /// While there are cuts: the newest generation that one of them knows.
    pub fn cut(&self) -> Option<Generation> {
        self.cuts.back().map(|(_, generation)| *generation)
    }

    /// Nodes that are held for cuts: for all, and for the newest of them.
    pub fn held(&self) -> (u64, u64) {
        let newest = self.cuts.back().map(|(epoch, _)| *epoch);
        let count = |(_, nodes): &(Epoch, Vec<NodePtr>)| nodes.len() as u64;
        (
            self.held.iter().map(count).sum(),
            self.held.iter().filter(|(of, _)| Some(*of) == newest).map(count).sum(),
        )
    }

    /// The cut of `epoch` is published: what it and older ones knew, and no younger one, is known
    /// to none any more.
    pub(super) fn published(&mut self, epoch: Epoch) {
        while let Some(&(_, generation)) = self.cuts.front().filter(|(of, _)| *of <= epoch) {
            self.published_before = generation;
            self.cuts.pop_front();
        }
        while self.held.front().is_some_and(|(of, _)| *of <= epoch)
            && let Some((_, nodes)) = self.held.pop_front()
        {
            self.free(nodes);
        }
    }

    /// Nodes of older generations hold nothing that is not published: all of it was in the cut that
    /// was published last.
    pub fn published_before(&self) -> Generation {
        self.published_before
    }

    /// No checkpoint refers to these nodes any more.
    pub(super) fn replaced(&mut self, nodes: Vec<NodePtr>) {
        let Some(&(newest, generation)) = self.cuts.back() else { return self.free(nodes) };
        let (known, free): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| node.generation <= generation);
        match self.held.back_mut() {
            Some((of, held)) if *of == newest => held.extend(known),
            _ => self.held.push_back((newest, known)),
        }
        self.free(free);
    }

    /// Readers alone may still be about these nodes.
    fn free(&mut self, nodes: Vec<NodePtr>) {
        self.waiting.push_back((std::mem::take(&mut self.pin), nodes));
    }

    /// The next node whose block may be given to others.
    pub(super) fn next_free(&mut self) -> Option<NodePtr> {
        loop {
            let (pin, nodes) = self.waiting.front_mut()?;
            if Rc::strong_count(pin) > 1 {
                return None;
            }
            if let Some(node) = nodes.pop() {
                return Some(node);
            }
            self.waiting.pop_front();
        }
    }

    /// All that are in here.
    #[cfg(test)]
    pub fn nodes(&self) -> impl Iterator<Item = &NodePtr> {
        self.waiting
            .iter()
            .flat_map(|(_, nodes)| nodes)
            .chain(self.held.iter().flat_map(|(_, nodes)| nodes))
    }
}

#[cfg(test)]
mod tests {
    use base::PoolAddr;

    use super::*;

    fn nodes(from: u64, generation: u64) -> Vec<NodePtr> {
        (from..from + 3)
            .map(|n| NodePtr { addr: PoolAddr(n), generation: Generation(generation), crc: 0 })
            .collect()
    }

    fn free(limbo: &mut Limbo) -> Vec<u64> {
        let mut all: Vec<u64> =
            std::iter::from_fn(|| limbo.next_free()).map(|node| node.addr.0).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn readers_hold_what_was_replaced_after_they_began() {
        let mut limbo = Limbo::default();
        limbo.replaced(nodes(10, 1));
        let reader = limbo.pin();
        limbo.replaced(nodes(20, 2));
        let late = limbo.pin();
        limbo.replaced(nodes(30, 3));
        assert_eq!(free(&mut limbo), [10, 11, 12]);
        drop(late);
        assert!(free(&mut limbo).is_empty());
        drop(reader);
        assert_eq!(free(&mut limbo), [20, 21, 22, 30, 31, 32]);
        assert_eq!(limbo.nodes().count(), 0);
    }

    #[test]
    fn a_cut_holds_what_it_knows_and_nothing_else() {
        let mut limbo = Limbo::default();
        limbo.replaced(nodes(10, 1));
        limbo.take_cut(Epoch(1), Generation(5));
        limbo.replaced(nodes(20, 4));
        limbo.replaced(nodes(30, 5));
        limbo.replaced(nodes(40, 6));
        // The first were replaced before it was taken, the last were made after that.
        assert_eq!(free(&mut limbo), [10, 11, 12, 40, 41, 42]);
        assert_eq!(limbo.published_before(), Generation(0));
        limbo.published(Epoch(1));
        assert_eq!(limbo.published_before(), Generation(5));
        // The next cut comes before anything of that was given back, and does not know it either.
        limbo.take_cut(Epoch(2), Generation(7));
        limbo.replaced(nodes(50, 7));
        assert_eq!(free(&mut limbo), [20, 21, 22, 30, 31, 32]);
        assert_eq!(limbo.nodes().count(), 3);
    }

    #[test]
    fn who_reads_for_a_cut_at_its_end_is_waited_for() {
        let mut limbo = Limbo::default();
        limbo.take_cut(Epoch(1), Generation(5));
        limbo.replaced(nodes(20, 4));
        let reader = limbo.pin();
        limbo.published(Epoch(1));
        assert!(free(&mut limbo).is_empty());
        drop(reader);
        assert_eq!(free(&mut limbo), [20, 21, 22]);
    }

    #[test]
    fn of_several_cuts_each_holds_what_was_replaced_while_it_was_the_newest() {
        let mut limbo = Limbo::default();
        limbo.take_cut(Epoch(1), Generation(5));
        limbo.replaced(nodes(10, 4));
        limbo.take_cut(Epoch(2), Generation(7));
        limbo.replaced(nodes(20, 3));
        limbo.replaced(nodes(30, 6));
        limbo.take_cut(Epoch(3), Generation(9));
        limbo.replaced(nodes(40, 8));
        limbo.replaced(nodes(50, 10));
        assert_eq!(limbo.held(), (12, 3));
        assert_eq!((limbo.cut(), free(&mut limbo)), (Some(Generation(9)), vec![50, 51, 52]));
        // The second cut, which was newest then, may know what the first did.
        limbo.published(Epoch(1));
        assert_eq!((limbo.published_before(), free(&mut limbo)), (Generation(5), vec![10, 11, 12]));
        // What becomes free is not of the third, which was taken later.
        limbo.published(Epoch(2));
        assert_eq!(
            (limbo.published_before(), free(&mut limbo)),
            (Generation(7), vec![20, 21, 22, 30, 31, 32])
        );
        limbo.published(Epoch(3));
        assert_eq!((limbo.cut(), free(&mut limbo)), (None, vec![40, 41, 42]));
    }

    #[test]
    fn the_newest_of_several_cuts_is_published_with_all_before_it() {
        let mut limbo = Limbo::default();
        for i in 1..4 {
            limbo.take_cut(Epoch(i), Generation(u64::from(i) * 2));
            limbo.replaced(nodes(u64::from(i) * 10, 1));
        }
        limbo.published(Epoch(2));
        assert_eq!(
            (limbo.published_before(), free(&mut limbo)),
            (Generation(4), vec![10, 11, 12, 20, 21, 22])
        );
        limbo.published(Epoch(3));
        assert_eq!((limbo.published_before(), free(&mut limbo)), (Generation(6), vec![30, 31, 32]));
    }
}
