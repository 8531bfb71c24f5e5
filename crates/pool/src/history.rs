//! Which open of the pool this is, and which history its commits belong to: see
//! [`format::superblock::lineage`].
//!
//! An open by itself makes no history. The first commit that changes what the pool holds does: then
//! the pool is another than each copy of it, whatever both may count. A superblock that only says
//! how far a scrub is, or which device is away, changes nothing of that kind. So two halves that
//! were each opened alone, and not written, are the same pool still. But an open with a cache is a
//! change: the cache goes on with the devices of that open, and no others have what it knows.

use base::{Generation, OpenId};
use format::superblock::Superblock;
use format::superblock::lineage::{History, Lineage, MAX_HISTORIES};

/// The opens and the histories of the pool.
#[derive(Debug)]
pub(crate) struct Histories {
    /// The current open.
    drawn: OpenId,
    /// The open that wrote the newest superblock, and the one before it.
    opened: OpenId,
    opened_before: OpenId,
    /// The newest first; never empty.
    histories: Vec<History>,
    /// The end of the newest one as of the last durable commit.
    durable: Generation,
}

/// The histories that a superblock names. One that names none is of before opens had names.
pub(crate) fn histories_of(sb: &Superblock) -> Vec<History> {
    match sb.lineage.histories.is_empty() {
        true => vec![History { name: OpenId(0), end: Generation(sb.generation) }],
        false => sb.lineage.histories.clone(),
    }
}

/// The last change of what the pool holds that a superblock has.
pub(crate) fn end_of(sb: &Superblock) -> History {
    let first = sb.lineage.histories.first().copied();
    first.unwrap_or(History { name: OpenId(0), end: Generation(sb.generation) })
}

/// True if the pool of `newer` has been what it was as of `older`, and went on from there; or is
/// that still.
pub(crate) fn goes_on_from(newer: &Superblock, older: &Superblock) -> bool {
    passed(newer, end_of(older))
}

/// True if the pool of `newer` has been what it was as of the last change of `older` that was
/// complete for certain.
pub(crate) fn goes_on_from_settled(newer: &Superblock, older: &Superblock) -> bool {
    let settled = older.lineage.settled;
    let of = histories_of(older);
    of.iter()
        .rev()
        .find(|h| settled <= h.end)
        .is_some_and(|h| passed(newer, History { name: h.name, end: settled }))
}

fn passed(newer: &Superblock, at: History) -> bool {
    histories_of(newer).iter().any(|h| h.name == at.name && at.end <= h.end)
}

impl Histories {
    /// As the newest superblock says, for an open that has drawn this name.
    pub fn found(best: &Superblock, drawn: OpenId) -> Histories {
        let Lineage { opened, opened_before, settled, .. } = best.lineage;
        let histories = histories_of(best);
        let told = best.lineage.is_known();
        let durable = if told { settled } else { Generation(best.previous) };
        Histories { drawn, opened, opened_before, histories, durable }
    }

    /// The name of this open.
    pub fn drawn(&self) -> OpenId {
        self.drawn
    }

    /// The open that wrote the newest superblock.
    pub fn opened(&self) -> OpenId {
        self.opened
    }

    /// All devices in use have the superblock that was found. From now on superblocks are of this
    /// open.
    pub fn begin(&mut self) {
        if self.opened != self.drawn {
            self.opened_before = std::mem::replace(&mut self.opened, self.drawn);
        }
    }

    /// The commit of this generation changes what the pool holds. `away`: up to which generations
    /// devices have everything that are away; the histories in which they left are kept.
    pub fn changes(&mut self, generation: Generation, away: &[Generation]) {
        match self.histories.first_mut() {
            Some(newest) if newest.name == self.drawn => newest.end = generation,
            _ => self.histories.insert(0, History { name: self.drawn, end: generation }),
        }
        if self.histories.len() > MAX_HISTORIES {
            self.histories.remove(self.least_needed(away));
        }
    }

    /// The oldest history but those in which a device left that is away; the oldest of all if each
    /// of them is one.
    fn least_needed(&self, away: &[Generation]) -> usize {
        let began = |at: usize| self.histories.get(at + 1).map_or(Generation(0), |h| h.end);
        let left_in =
            |at: usize| away.iter().any(|&g| began(at) < g && g <= self.histories[at].end);
        let last = self.histories.len() - 1;
        (1..=last).rev().find(|&at| !left_in(at)).unwrap_or(last)
    }

    /// All devices in use have the superblock of the last commit.
    pub fn complete(&mut self) {
        self.durable = self.histories[0].end;
    }

    /// The last durable change of what the pool holds. What is newer, up to the last commit,
    /// changes nothing that a device would lack.
    pub fn durable(&self) -> Generation {
        self.durable
    }

    /// The lineage of the next superblock.
    pub fn lineage(&self, cache_opened: OpenId) -> Lineage {
        Lineage {
            opened: self.opened,
            opened_before: self.opened_before,
            cache_opened,
            settled: self.durable,
            histories: self.histories.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histories() -> Histories {
        let first = History { name: OpenId(0), end: Generation(10) };
        Histories {
            drawn: OpenId(100),
            opened: OpenId(7),
            opened_before: OpenId(6),
            histories: vec![first],
            durable: Generation(10),
        }
    }

    #[test]
    fn an_open_makes_a_history_with_its_first_change() {
        let mut h = histories();
        h.begin();
        h.begin();
        assert_eq!((h.opened, h.opened_before), (OpenId(100), OpenId(7)));
        assert_eq!(h.lineage(OpenId(0)).histories.len(), 1);
        h.changes(Generation(20), &[]);
        h.changes(Generation(22), &[]);
        let newest = History { name: OpenId(100), end: Generation(22) };
        assert_eq!(h.lineage(OpenId(0)).histories[0], newest);
        assert_eq!((h.histories.len(), h.durable()), (2, Generation(10)));
        h.complete();
        assert_eq!(h.durable(), Generation(22));
    }

    #[test]
    fn the_histories_in_which_devices_left_are_kept() {
        let mut h = histories();
        for n in 1..40 {
            h.drawn = OpenId(100 + n);
            // A device left in the first history, another in the fourth.
            h.changes(Generation(10 + 10 * n), &[Generation(10), Generation(35)]);
        }
        let ends: Vec<u64> = h.histories.iter().map(|h| h.end.0).collect();
        assert_eq!((ends.len(), ends[0]), (MAX_HISTORIES, 400));
        assert!(ends.contains(&10) && ends.contains(&40), "{ends:?}");
        assert!(ends.windows(2).all(|w| w[0] > w[1]), "{ends:?}");
    }
}
