//! Nodes of the index that checkpoints have replaced: when their blocks may be given to others.
//!
//! Two may still be about them. *Readers* that began before, each for a moment: they hold a [`Pin`]. And the *cut*, for as long as its round takes: it knows
//! nodes up to the generation that was open when it was taken. Most nodes are replaced soon after they were made, and are younger than the cut; what was
//! replaced before the cut is older, but not in it either. So what is held for it is no more than what its tree has.

use std::collections::VecDeque;
use std::rc::Rc;

use base::Generation;
use btree::NodePtr;

/// Who reads nodes of the index holds one, so that their blocks are not given to others meanwhile.
pub(crate) type Pin = Rc<()>;

#[derive(Default)]
pub(crate) struct Limbo {
    pin: Pin,
    /// Nodes that nothing refers to any more, and the pin of those who may have begun to read them before.
    waiting: VecDeque<(Pin, Vec<NodePtr>)>,
    /// While there is a cut: the newest generation that it knows.
    cut: Option<Generation>,
    /// What only the cut knows, perhaps.
    held: Vec<NodePtr>,
    published_before: Generation,
}

impl Limbo {
    /// For who begins to read.
    pub fn pin(&self) -> Pin {
        self.pin.clone()
    }

    /// A cut was taken while `open` was the open generation.
    pub fn take_cut(&mut self, open: Generation) {
        self.cut = Some(open);
    }

    /// While there is a cut: the newest generation that it knows.
    pub fn cut(&self) -> Option<Generation> {
        self.cut
    }

    /// The cut is published: what it knew is known to nobody.
    pub fn cut_published(&mut self) {
        if let Some(generation) = self.cut.take() {
            self.published_before = generation;
        }
        let held = std::mem::take(&mut self.held);
        self.replaced(held);
    }

    /// Nodes of older generations hold nothing that is not published: all of it was in the cut that was published last.
    pub fn published_before(&self) -> Generation {
        self.published_before
    }

    /// No checkpoint refers to these nodes any more.
    pub fn replaced(&mut self, nodes: Vec<NodePtr>) {
        let cut = self.cut;
        let known = |node: &NodePtr| cut.is_some_and(|cut| node.generation <= cut);
        let (known, free): (Vec<_>, Vec<_>) = nodes.into_iter().partition(known);
        self.held.extend(known);
        self.waiting.push_back((std::mem::take(&mut self.pin), free));
    }

    /// The next node whose block may be given to others.
    pub fn next_free(&mut self) -> Option<NodePtr> {
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
        self.waiting.iter().flat_map(|(_, nodes)| nodes).chain(&self.held)
    }
}

#[cfg(test)]
mod tests {
    use base::PoolAddr;

    use super::*;

    fn nodes(from: u64, generation: u64) -> Vec<NodePtr> {
        (from..from + 3).map(|n| NodePtr { addr: PoolAddr(n), generation: Generation(generation), crc: 0 }).collect()
    }

    fn free(limbo: &mut Limbo) -> Vec<u64> {
        let mut all: Vec<u64> = std::iter::from_fn(|| limbo.next_free()).map(|node| node.addr.0).collect();
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
        limbo.take_cut(Generation(5));
        limbo.replaced(nodes(20, 4));
        limbo.replaced(nodes(30, 5));
        limbo.replaced(nodes(40, 6));
        // The first were replaced before it was taken, the last were made after that.
        assert_eq!(free(&mut limbo), [10, 11, 12, 40, 41, 42]);
        assert_eq!(limbo.published_before(), Generation(0));
        limbo.cut_published();
        assert_eq!(limbo.published_before(), Generation(5));
        // The next cut comes before anything of that was given back, and does not know it either.
        limbo.take_cut(Generation(7));
        limbo.replaced(nodes(50, 7));
        assert_eq!(free(&mut limbo), [20, 21, 22, 30, 31, 32]);
        assert_eq!(limbo.nodes().count(), 3);
    }

    #[test]
    fn who_reads_for_a_cut_at_its_end_is_waited_for() {
        let mut limbo = Limbo::default();
        limbo.take_cut(Generation(5));
        limbo.replaced(nodes(20, 4));
        let reader = limbo.pin();
        limbo.cut_published();
        assert!(free(&mut limbo).is_empty());
        drop(reader);
        assert_eq!(free(&mut limbo), [20, 21, 22]);
    }
}
