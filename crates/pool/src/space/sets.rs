//! On which devices groups are: how many groups there are of each set of devices.
//!
//! There are few sets, however many groups there are. So what is asked about all groups, and
//! depends only on where their chunks are, is asked about the sets ([`super::fit`]).
//!
//! The record of a group is an [`Entered`], which changes only by [`Sets::change`]. So the numbers
//! agree with the records at any time.

use std::collections::BTreeMap;
use std::ops::{Bound, Deref};

use format::page::{Chunk, GroupRecord};
use format::superblock::{MAX_COPIES, MAX_DEVICES};
use smallvec::SmallVec;

/// Devices, a bit for each row.
pub(super) type Rows = u64;

const _: () = assert!(MAX_DEVICES <= Rows::BITS as usize);

pub(super) fn rows_of(set: Rows) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let row = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(row)
    })
}

/// The devices of a group's chunks, in order, and which of the chunks are behind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Set(SmallVec<[(u16, bool); MAX_COPIES]>);

impl Set {
    fn of(chunks: &[Chunk]) -> Set {
        let mut all: SmallVec<_> = chunks.iter().map(|c| (c.device, c.behind)).collect();
        all.sort_unstable();
        Set(all)
    }

    /// Chunks of a group of this set. Their numbers say nothing.
    pub fn chunks(&self) -> SmallVec<[Chunk; MAX_COPIES]> {
        let chunk = |&(device, behind): &(u16, bool)| Chunk { behind, ..Chunk::new(device, 0) };
        self.0.iter().map(chunk).collect()
    }

    pub fn rows(&self) -> Rows {
        self.0.iter().fold(0, |all, c| all | 1 << c.0)
    }
}

/// The record of a group, which is counted. It can be read like a [`GroupRecord`].
pub(super) struct Entered(GroupRecord);

impl Entered {
    pub fn set(&self) -> Set {
        Set::of(&self.0.chunks)
    }
}

impl Deref for Entered {
    type Target = GroupRecord;

    fn deref(&self) -> &GroupRecord {
        &self.0
    }
}

/// How many groups there are of each set.
#[derive(Default)]
pub(super) struct Sets {
    groups: BTreeMap<Set, u64>,
    /// Chunks by device.
    on: BTreeMap<usize, u64>,
    /// Groups by the number of their chunks.
    by_chunks: BTreeMap<usize, u64>,
    /// How often a number of groups has changed.
    changes: u64,
}

impl Sets {
    /// Enters the record of a group.
    pub fn enter(&mut self, record: GroupRecord) -> Entered {
        let record = Entered(record);
        self.count(&record.set(), add);
        record
    }

    /// Changes a record that was entered here.
    pub fn change<T>(&mut self, record: &mut Entered, f: impl FnOnce(&mut GroupRecord) -> T) -> T {
        let before = record.set();
        let out = f(&mut record.0);
        let after = record.set();
        if before != after {
            self.count(&before, subtract);
            self.count(&after, add);
        }
        out
    }

    fn count(&mut self, set: &Set, by_one: fn(Option<u64>) -> Option<u64>) {
        // A group that is not in use has no chunks, and one that is has some.
        if set.0.is_empty() {
            return;
        }
        change(&mut self.groups, set.clone(), by_one);
        change(&mut self.by_chunks, set.0.len(), by_one);
        set.0.iter().for_each(|c| change(&mut self.on, c.0.into(), by_one));
        self.changes += 1;
    }

    /// The sets after this one, in order, with their numbers of groups; `None`: all.
    pub fn after(&self, set: Option<&Set>) -> impl Iterator<Item = (&Set, u64)> {
        let from = set.map_or(Bound::Unbounded, Bound::Excluded);
        self.groups.range((from, Bound::Unbounded)).map(|(set, &n)| (set, n))
    }

    /// A number that is another one after each change of what [`Sets::after`] returns.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Chunks of a device.
    pub fn chunks_on(&self, row: usize) -> u64 {
        self.on.get(&row).copied().unwrap_or_default()
    }

    /// Numbers of chunks, from the least on, with the number of groups that have so many.
    pub fn by_chunks(&self) -> impl Iterator<Item = (usize, u64)> {
        self.by_chunks.iter().map(|(&chunks, &groups)| (chunks, groups))
    }
}

fn add(n: Option<u64>) -> Option<u64> {
    Some(n.unwrap_or_default() + 1)
}

fn subtract(n: Option<u64>) -> Option<u64> {
    n.and_then(|n| n.checked_sub(1)).filter(|&n| n > 0)
}

/// Changes a number; one that is zero is left out.
fn change<K: Ord>(of: &mut BTreeMap<K, u64>, key: K, f: fn(Option<u64>) -> Option<u64>) {
    match f(of.get(&key).copied()) {
        Some(n) => drop(of.insert(key, n)),
        None => drop(of.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;
    use format::page::GroupKind;

    use super::*;

    /// Records change at random. The model counts all of them anew.
    #[test]
    fn the_numbers_agree_with_the_records() {
        let (mut rng, mut sets) = (Prng::new(4), Sets::default());
        let mut all: Vec<Entered> = (0..12).map(|_| sets.enter(GroupRecord::free())).collect();
        let mut seen = sets.changes();
        for _ in 0..5000 {
            let before: Vec<(Set, u64)> = sets.after(None).map(|(s, n)| (s.clone(), n)).collect();
            let (at, n) = (rng.below(12) as usize, rng.below(4) as usize);
            let mut rows: Vec<u16> = (0..5).collect();
            while rows.len() > n {
                rows.remove(rng.below(rows.len() as u64) as usize);
            }
            let behind = rng.below(4) == 0;
            sets.change(&mut all[at], |record| match rng.below(3) {
                0 => record.used += 1,
                1 => record.chunks.iter_mut().for_each(|c| c.behind = behind),
                _ => {
                    record.kind = if n == 0 { GroupKind::Free } else { GroupKind::Data };
                    record.chunks = rows.iter().map(|&row| Chunk::new(row, 7)).collect();
                }
            });
            let (mut model, mut by_chunks) = (BTreeMap::new(), BTreeMap::new());
            for record in all.iter().filter(|r| r.kind != GroupKind::Free) {
                *model.entry(record.set()).or_insert(0) += 1;
                *by_chunks.entry(record.chunks.len()).or_insert(0) += 1;
            }
            let model: Vec<(Set, u64)> = model.into_iter().collect();
            let now: Vec<(Set, u64)> = sets.after(None).map(|(s, n)| (s.clone(), n)).collect();
            assert_eq!(now, model);
            assert_eq!(sets.by_chunks().collect::<BTreeMap<_, _>>(), by_chunks);
            for row in 0..5 {
                let chunks = all.iter().flat_map(|r| &r.chunks);
                let on = chunks.filter(|c| usize::from(c.device) == row).count();
                assert_eq!(sets.chunks_on(row), on as u64);
            }
            assert!(now == before || sets.changes() != seen);
            seen = sets.changes();
            if let Some((set, _)) = now.get(now.len() / 2) {
                assert_eq!(sets.after(Some(set)).count(), now.len() - now.len() / 2 - 1);
            }
        }
    }
}
