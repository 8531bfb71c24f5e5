//! Which devices belong together, and what they may hold: what anybody knows from outside, who saw
//! each boot and each copy that was made of a device. Nothing here looks into the engine.
//!
//! A *history* is a node of a tree: what the volume held while some devices were served together.
//! Each device knows of one, or of one of several where a boot was cut short. Devices belong
//! together if the history that one of them knows contains those of all others. Then that one is
//! served, and nothing else. If two of them know histories of which neither contains the other,
//! and clients have written in both, they went apart: no start may take one for the other.

use std::collections::BTreeSet;

/// The number of a history.
pub(super) type Id = usize;

/// The numbers of the writes that a block may hold, 0 for none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct BlockWrites {
    /// The durable write.
    sure: u64,
    /// The writes that came after the durable one.
    later: Vec<u64>,
}

/// The content that the volume may have, block by block.
#[derive(Clone, Debug)]
pub(super) struct Content(Vec<BlockWrites>);

impl Content {
    pub fn new(blocks: usize) -> Content {
        Content(vec![BlockWrites::default(); blocks])
    }

    pub fn write(&mut self, block: usize, number: u64) {
        self.0[block].later.push(number);
    }

    fn flushed(&mut self) {
        for b in &mut self.0 {
            b.sure = b.later.pop().unwrap_or(b.sure);
            b.later.clear();
        }
    }

    /// Returns the number of the write that a read of the running volume must give.
    pub fn newest(&self, block: usize) -> u64 {
        let b = &self.0[block];
        b.later.last().copied().unwrap_or(b.sure)
    }

    /// The first block that holds what it may not.
    fn wrong(&self, found: &[u64]) -> Option<usize> {
        let may = |b: &BlockWrites, number: u64| b.sure == number || b.later.contains(&number);
        (0..found.len()).find(|&i| !may(&self.0[i], found[i]))
    }

    /// Either this or the other.
    fn or(&mut self, other: &Content) {
        for (b, o) in self.0.iter_mut().zip(&other.0) {
            let newest = b.later.last().copied().unwrap_or(b.sure);
            let others = o.later.iter().copied().chain([o.sure]);
            b.later.splice(0..0, others);
            b.later.push(newest);
        }
    }
}

struct Node {
    /// The history that it goes on from; one of several where that is not known.
    parents: Vec<Id>,
    content: Content,
    written: WriteCertainty,
}

/// Whether a client has written in a history. What was not flushed power may take with it: then
/// there may be nothing by which the devices went apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteCertainty {
    No,
    Perhaps,
    Surely,
}

/// The knowledge of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceKnowledge {
    /// One of these histories.
    pub one_of: Vec<Id>,
    /// True if the device has all of its history: alone it is enough, where the pool keeps a copy
    /// on each device.
    pub whole: bool,
}

/// The outcomes that are allowed for a start.
#[derive(Debug)]
pub(super) struct AllowedOutcomes {
    /// The histories of which the start may serve one.
    pub serve: BTreeSet<Id>,
    /// True if the start may refuse.
    pub refuse: bool,
}

/// The worst one last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Yes,
    Perhaps,
    No,
}

#[derive(Default)]
pub(super) struct Histories(Vec<Node>);

impl Histories {
    pub fn first(&mut self, content: Content) -> Id {
        self.0.push(Node { parents: Vec::new(), content, written: WriteCertainty::Surely });
        self.0.len() - 1
    }

    /// A history that goes on from one of these.
    pub fn go_on(&mut self, parents: Vec<Id>) -> Id {
        let mut content = self.0[parents[0]].content.clone();
        parents[1..].iter().for_each(|p| content.or(&self.0[*p].content));
        self.0.push(Node { parents, content, written: WriteCertainty::No });
        self.0.len() - 1
    }

    /// Notes what was found in `id` when it began: the history went on from those parents that may
    /// have had that. If none may have, the error says which block, and what it may hold by the
    /// newest of them.
    pub fn found(&mut self, id: Id, found: &[u64]) -> Result<(), (usize, String)> {
        let parents = std::mem::take(&mut self.0[id].parents);
        let wrong: Vec<_> = parents.iter().map(|p| self.0[*p].content.wrong(found)).collect();
        let right: Vec<Id> =
            parents.iter().zip(&wrong).filter(|(_, w)| w.is_none()).map(|(p, _)| *p).collect();
        if let (true, Some(block)) = (right.is_empty(), wrong.last().copied().flatten()) {
            let of: Vec<_> = parents.iter().map(|p| (*p, &self.0[*p].content.0[block])).collect();
            return Err((block, format!("by these histories it may hold {of:?}")));
        }
        let node = &mut self.0[id];
        node.parents = right;
        for (b, number) in node.content.0.iter_mut().zip(found) {
            *b = BlockWrites { sure: *number, later: Vec::new() };
        }
        Ok(())
    }

    pub fn content(&mut self, id: Id) -> &mut Content {
        &mut self.0[id].content
    }

    pub fn parents(&self, id: Id) -> &[Id] {
        &self.0[id].parents
    }

    /// A client is about to write.
    pub fn change(&mut self, id: Id) {
        let written = &mut self.0[id].written;
        if *written == WriteCertainty::No {
            *written = WriteCertainty::Perhaps;
        }
    }

    /// Writes in it that have ended are durable, all of them, and none is under way.
    pub fn flushed(&mut self, id: Id) {
        let node = &mut self.0[id];
        node.content.flushed();
        if node.written != WriteCertainty::No {
            node.written = WriteCertainty::Surely;
        }
    }

    /// The histories that it contains, itself among them; `all`: also those that it may contain.
    fn contains(&self, id: Id, all: bool) -> BTreeSet<Id> {
        let (mut found, mut next) = (BTreeSet::new(), vec![id]);
        while let Some(id) = next.pop() {
            let parents = &self.0[id].parents;
            if found.insert(id) && (all || parents.len() == 1) {
                next.extend(parents);
            }
        }
        found
    }

    /// Whether `new` contains `old`, or what clients have written in it.
    fn is_in(&self, old: Id, new: Id) -> Answer {
        if self.contains(new, false).contains(&old) {
            return Answer::Yes;
        }
        let perhaps = self.contains(new, true);
        // Of a history in which nothing was written it does not matter.
        let own = self.contains(old, true).into_iter().filter(|id| !perhaps.contains(id));
        let written = own.into_iter().any(|id| self.0[id].written == WriteCertainty::Surely);
        if perhaps.contains(&old) || !written { Answer::Perhaps } else { Answer::No }
    }

    /// Returns what a start with these devices may do. The number of devices that are not among
    /// them is `away`; the number of devices that may lack something is `spare`.
    pub fn expected(
        &self,
        there: &[&DeviceKnowledge],
        away: usize,
        spare: usize,
    ) -> AllowedOutcomes {
        let mut expected = AllowedOutcomes { serve: BTreeSet::new(), refuse: false };
        let mut picks: Vec<Vec<Id>> = vec![Vec::new()];
        for device in there {
            let longer = |pick: &Vec<Id>| {
                let pick = pick.clone();
                device.one_of.iter().map(move |id| [&pick[..], &[*id]].concat())
            };
            picks = picks.iter().flat_map(longer).collect();
        }
        for pick in picks {
            self.expect(&pick, there, away, spare, &mut expected);
        }
        expected
    }

    /// The same where each device knows this one history.
    fn expect(
        &self,
        pick: &[Id],
        there: &[&DeviceKnowledge],
        away: usize,
        spare: usize,
        expected: &mut AllowedOutcomes,
    ) {
        let mut any = false;
        for &newest in pick {
            let answers = pick.iter().map(|id| self.is_in(*id, newest));
            match answers.max() {
                Some(Answer::Yes) => {
                    any = true;
                    let lack = pick.iter().zip(there).filter(|(id, d)| **id != newest || !d.whole);
                    expected.refuse |= lack.count() + away > spare;
                }
                Some(Answer::Perhaps) => expected.refuse = true,
                _ => continue,
            }
            expected.serve.insert(newest);
        }
        expected.refuse |= !any;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(id: Id) -> DeviceKnowledge {
        DeviceKnowledge { one_of: vec![id], whole: true }
    }

    fn outcome(h: &Histories, a: Id, b: Id) -> (Vec<Id>, bool) {
        let expected = h.expected(&[&whole(a), &whole(b)], 0, 1);
        (expected.serve.into_iter().collect(), expected.refuse)
    }

    #[test]
    fn devices_go_together_if_one_knows_what_the_other_does() {
        let mut h = Histories::default();
        let first = h.first(Content::new(1));
        let [a, b, idle, unsure] = [(); 4].map(|()| h.go_on(vec![first]));
        for id in [a, b] {
            h.change(id);
            h.flushed(id);
        }
        h.change(unsure);
        let later = h.go_on(vec![a]);
        assert_eq!(outcome(&h, first, later), (vec![later], false), "one was left behind");
        assert_eq!(outcome(&h, a, b), (vec![], true), "each was written without the other");
        assert_eq!(outcome(&h, later, b), (vec![], true));
        assert_eq!(outcome(&h, idle, b), (vec![b], true), "nobody wrote in one of them");
        assert_eq!(outcome(&h, unsure, b), (vec![b], true), "power took what was not flushed");
        let alone = h.expected(&[&whole(a)], 1, 1);
        assert!(!alone.refuse && alone.serve.contains(&a));
        let half = DeviceKnowledge { one_of: vec![first, a], whole: false };
        assert!(h.expected(&[&half], 1, 1).refuse, "it may lack something");
    }

    #[test]
    fn a_block_is_durable_or_later() {
        let mut h = Histories::default();
        let first = h.first(Content::new(2));
        h.content(first).write(0, 1);
        h.flushed(first);
        h.content(first).write(0, 2);
        for (found, right) in [([1, 0], true), ([2, 0], true), ([0, 0], false), ([1, 1], false)] {
            let next = h.go_on(vec![first]);
            assert_eq!(h.found(next, &found).is_ok(), right, "{found:?}");
        }
    }
}
