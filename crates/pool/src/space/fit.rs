//! Whether all chunks that groups are to get find room.
//!
//! The copies of a group are on different devices, so a sum of free chunks says nothing: they may
//! be on the device that has the group already. Groups that have chunks on the same devices and are
//! to get as many are *alike*. There are few kinds of groups, however many groups there are, and
//! few devices. So this is a small flow: from the kinds to the devices, of all chunks that groups
//! are to get. A group takes one chunk of a device at most.

use std::collections::{BTreeMap, VecDeque};

use base::GroupId;
use format::page::{Chunk, GroupKind};

use super::{Space, Want};
use crate::devices::Devices;

/// A set of devices, a bit for each row.
type Rows = u128;

fn rows_of(set: Rows) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let row = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(row)
    })
}

/// What groups are to get: how many groups there are of those that have chunks on these devices,
/// and are to get so many on others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wishes(BTreeMap<(Rows, usize), u64>);

/// Chunks that find no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shortage {
    /// How many.
    pub chunks: u64,
    /// Devices without a free chunk on which more room would help.
    pub rows: Vec<usize>,
    /// How many devices have to be added, if no device grows.
    pub devices: usize,
}

impl Wishes {
    /// Adds a group with chunks on the devices of `has`, which is to get `gets` on others.
    fn add(&mut self, has: Rows, gets: usize) {
        if gets > 0 {
            *self.0.entry((has, gets)).or_default() += 1;
        }
    }

    /// What finds no room, if `free` says how many chunks of each device may be taken.
    pub fn shortage(&self, free: &[u64]) -> Option<Shortage> {
        let flow = Flow::of(self, free.to_vec());
        let chunks = flow.left();
        if chunks == 0 {
            return None;
        }
        // A group gets at most as many chunks as there can be copies, so this ends.
        let suffice = |&added: &usize| {
            let unbounded = std::iter::repeat_n(u64::MAX, added);
            Flow::of(self, free.iter().copied().chain(unbounded).collect()).left() == 0
        };
        let devices = (1..).find(suffice).unwrap_or_default();
        Some(Shortage { chunks, rows: rows_of(flow.in_the_way()).collect(), devices })
    }

    fn left(&self, free: &[u64]) -> u64 {
        Flow::of(self, free.to_vec()).left()
    }

    /// The devices on which a group is to get `gets` chunks, so that the groups of these wishes
    /// find room too, as far as that is possible. `has`: where it has chunks; `order`: the devices
    /// that it may get chunks of, the best ones first.
    fn choose(&self, (mut has, gets): (Rows, usize), order: &[usize], free: &[u64]) -> Vec<usize> {
        let left = |has, gets, free: &[u64]| {
            let mut all = self.clone();
            all.add(has, gets);
            all.left(free)
        };
        let (mut free, mut chosen) = (free.to_vec(), Vec::new());
        let least = left(has, gets, &free);
        for &row in order {
            if chosen.len() == gets {
                return chosen;
            }
            let with = has | 1 << row;
            free[row] -= 1;
            if left(with, gets - chosen.len() - 1, &free) <= least {
                chosen.push(row);
                has = with;
            } else {
                free[row] += 1;
            }
        }
        let others = order.iter().filter(|&row| has & 1 << row == 0);
        chosen.extend(others.take(gets - chosen.len()));
        chosen
    }
}

/// Groups that are alike.
struct Kind {
    groups: u64,
    /// Chunks that they have not got yet.
    left: u64,
    /// Chunks that they have got, by device.
    got: Vec<u64>,
    /// Devices of which some of the groups can get a chunk, if there is one.
    open: Rows,
}

impl Kind {
    /// They get so many chunks of a device.
    fn take(&mut self, row: usize, n: u64) {
        self.got[row] += n;
        if self.got[row] == self.groups {
            self.open &= !(1 << row);
        }
    }

    fn give(&mut self, row: usize, n: u64) {
        self.got[row] -= n;
        self.open |= 1 << row;
    }
}

/// A step of a change that makes room: a kind of groups gives chunks of one device, and takes as
/// many of another.
type Hop = (usize, usize, usize);

/// As many chunks as possible for all kinds of groups.
struct Flow {
    free: Vec<u64>,
    kinds: Vec<Kind>,
}

impl Flow {
    fn of(wishes: &Wishes, free: Vec<u64>) -> Flow {
        let all: Rows = (1 << free.len()) - 1;
        let kind = |(&(has, gets), &groups): (&(Rows, usize), &u64)| {
            let (left, got) = (groups * gets as u64, vec![0; free.len()]);
            Kind { groups, left, got, open: all & !has }
        };
        let kinds = wishes.0.iter().map(kind).collect();
        let mut flow = Flow { free, kinds };
        for kind in 0..flow.kinds.len() {
            flow.take_free(kind);
            while flow.kinds[kind].left > 0 && flow.make_room(kind) {}
        }
        flow
    }

    /// Chunks that find no room.
    fn left(&self) -> u64 {
        self.kinds.iter().map(|k| k.left).sum()
    }

    /// A kind takes free chunks, of the devices with the most.
    fn take_free(&mut self, kind: usize) {
        let k = &mut self.kinds[kind];
        while k.left > 0 {
            let with_room = rows_of(k.open).filter(|&row| self.free[row] > 0);
            let Some(row) = with_room.max_by_key(|&row| self.free[row]) else { return };
            let n = k.left.min(self.free[row]).min(k.groups - k.got[row]);
            k.take(row, n);
            k.left -= n;
            self.free[row] -= n;
        }
    }

    /// A kind takes chunks of other kinds, which take others for them. Returns false if that is not
    /// possible.
    fn make_room(&mut self, kind: usize) -> bool {
        let Ok((first, hops)) = self.way(kind) else { return false };
        let last = hops.last().map_or(first, |hop| hop.2);
        let k = &self.kinds[kind];
        let mut n = k.left.min(k.groups - k.got[first]).min(self.free[last]);
        for &(kind, from, to) in &hops {
            let k = &self.kinds[kind];
            n = n.min(k.got[from]).min(k.groups - k.got[to]);
        }
        for &(kind, from, to) in &hops {
            self.kinds[kind].give(from, n);
            self.kinds[kind].take(to, n);
        }
        self.kinds[kind].take(first, n);
        self.kinds[kind].left -= n;
        self.free[last] -= n;
        true
    }

    /// The device of which a kind can take chunks, and the hops that make room there. Error: there
    /// is none; these are the devices that are in the way.
    fn way(&self, kind: usize) -> Result<(usize, Vec<Hop>), Rows> {
        let mut seen = self.kinds[kind].open;
        let mut next: VecDeque<usize> = rows_of(seen).collect();
        let mut by: Vec<Option<Hop>> = vec![None; self.free.len()];
        while let Some(row) = next.pop_front() {
            if self.free[row] > 0 {
                return Ok(hops_to(row, &by));
            }
            for (i, k) in self.kinds.iter().enumerate().filter(|(_, k)| k.got[row] > 0) {
                for to in rows_of(k.open & !seen) {
                    by[to] = Some((i, row, to));
                    next.push_back(to);
                }
                seen |= k.open;
            }
        }
        Err(seen)
    }

    /// Devices without a free chunk that all kinds need which find no room.
    fn in_the_way(&self) -> Rows {
        let stuck = (0..self.kinds.len()).filter(|&kind| self.kinds[kind].left > 0);
        stuck.filter_map(|kind| self.way(kind).err()).fold(0, |all, rows| all | rows)
    }
}

/// The first device of the way to `last`, and the hops from there.
fn hops_to(last: usize, by: &[Option<Hop>]) -> (usize, Vec<Hop>) {
    let (mut hops, mut at) = (Vec::new(), last);
    while let Some(hop) = by[at] {
        hops.push(hop);
        at = hop.1;
    }
    hops.reverse();
    (at, hops)
}

fn rows_with(chunks: &[Chunk]) -> Rows {
    chunks.iter().fold(0, |all, c| all | 1 << c.device)
}

/// How many chunks may be taken of each device, which is in use and stays.
fn free_chunks(devices: &Devices) -> Vec<u64> {
    let free = |row| if devices.is_live(row) { devices.spare_chunks(row) } else { 0 };
    (0..devices.count()).map(free).collect()
}

impl Space {
    /// What groups are to get, but for one.
    fn wishes(&self, devices: &Devices, but: Option<GroupId>) -> Wishes {
        let mut wishes = Wishes::default();
        for (id, g) in (0..).map(GroupId).zip(&self.groups) {
            if g.record.kind == GroupKind::Free || Some(id) == but {
                continue;
            }
            let chunks = &g.record.chunks;
            if let Some(want) = Want::of(id, chunks, usize::from(self.copies), devices) {
                wishes.add(rows_with(chunks), want.gets);
            }
        }
        wishes
    }

    /// What finds no room of all chunks that groups are to get.
    pub fn shortage(&self, devices: &Devices) -> Option<Shortage> {
        self.wishes(devices, None).shortage(&free_chunks(devices))
    }

    /// The devices on which a group is to get what it wants, so that all other groups find room
    /// too, if that is possible. `order`: the devices that it may get chunks of, the best ones
    /// first, and enough of them.
    pub fn choose(&self, devices: &Devices, want: &Want, order: &[usize]) -> Vec<usize> {
        let first = &order[..want.gets];
        // There is room for everything on each: any choice is right. That is quick to find out.
        let left = self.chunks_to_get(devices);
        if first.iter().all(|&row| devices.spare_chunks(row) >= left) {
            return first.to_vec();
        }
        let has = rows_with(&want.keeps) | rows_with(&want.loses);
        let others = self.wishes(devices, Some(want.group));
        others.choose((has, want.gets), order, &free_chunks(devices))
    }

    /// How many chunks all groups together are to get.
    fn chunks_to_get(&self, devices: &Devices) -> u64 {
        let stays =
            |c: &&Chunk| devices.row(usize::from(c.device)).is_some_and(|d| !d.is_leaving());
        let gets = |g: &super::Group| {
            let stay = g.record.chunks.iter().filter(stays).count();
            usize::from(self.copies).saturating_sub(stay) as u64
        };
        self.used_groups().map(gets).sum()
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    fn wishes(groups: &[(Rows, usize)]) -> Wishes {
        let mut all = Wishes::default();
        groups.iter().for_each(|&(has, gets)| all.add(has, gets));
        all
    }

    /// The most chunks that these groups can get, by trying all ways.
    fn most(groups: &[(Rows, usize)], free: &mut [u64]) -> u64 {
        let Some((&(has, gets), others)) = groups.split_first() else { return 0 };
        let sets = (0..1 << free.len()).filter(|set: &Rows| {
            set & has == 0
                && set.count_ones() as usize <= gets
                && rows_of(*set).all(|row| free[row] > 0)
        });
        let sets: Vec<Rows> = sets.collect();
        let mut best = 0;
        for set in sets {
            rows_of(set).for_each(|row| free[row] -= 1);
            best = best.max(u64::from(set.count_ones()) + most(others, free));
            rows_of(set).for_each(|row| free[row] += 1);
        }
        best
    }

    /// A few groups on a few devices, and what is free there.
    fn case(rng: &mut Prng) -> (Vec<(Rows, usize)>, Vec<u64>) {
        let n = rng.range(1, 5) as usize;
        let free = (0..n).map(|_| rng.range(0, 4)).collect();
        let group = |rng: &mut Prng| (Rows::from(rng.range(0, 1 << n)), rng.range(1, 3) as usize);
        ((0..rng.range(1, 6)).map(|_| group(rng)).collect(), free)
    }

    /// Two copies. The first device leaves; it has 50 groups together with the second one. There
    /// are 60 free chunks, and 10 of them are of use.
    #[test]
    fn free_chunks_beside_the_other_copy_are_of_no_use() {
        let on_both = wishes(&[(0b011, 1); 50]);
        let found = on_both.shortage(&[0, 50, 10]).expect("a shortage");
        assert_eq!(found, Shortage { chunks: 40, rows: vec![2], devices: 1 });
        assert_eq!(on_both.shortage(&[0, 0, 50]), None);
        assert_eq!(on_both.shortage(&[0, 0, 10, 40]), None);
        let found = wishes(&[(0b1, 2)]).shortage(&[9]).expect("a shortage");
        assert_eq!(found, Shortage { chunks: 2, rows: vec![], devices: 2 });
    }

    #[test]
    fn what_finds_no_room_is_what_no_way_of_placing_it_finds_room_for() {
        let mut rng = Prng::new(1);
        for _ in 0..3000 {
            let (groups, mut free) = case(&mut rng);
            let all: u64 = groups.iter().map(|g| g.1 as u64).sum();
            let chunks = all - most(&groups, &mut free);
            let found = wishes(&groups).shortage(&free);
            assert_eq!(found.as_ref().map_or(0, |s| s.chunks), chunks, "{groups:?} {free:?}");
            let Some(found) = found else { continue };
            for row in 0..free.len() {
                free[row] += 1;
                let helps = wishes(&groups).left(&free) < chunks;
                assert_eq!(helps, found.rows.contains(&row), "{groups:?} {free:?} {row}");
                free[row] -= 1;
            }
            for (added, suffices) in [(found.devices, true), (found.devices - 1, false)] {
                let more = free.iter().copied().chain(std::iter::repeat_n(chunks, added));
                let left = wishes(&groups).left(&more.collect::<Vec<_>>());
                assert_eq!(left == 0, suffices, "{groups:?} {free:?}");
            }
        }
    }

    /// Each group takes its chunks without knowing what comes later.
    #[test]
    fn what_finds_room_together_finds_it_one_by_one() {
        let (mut rng, mut seen) = (Prng::new(2), 0);
        for _ in 0..3000 {
            let (mut groups, mut free) = case(&mut rng);
            if wishes(&groups).shortage(&free).is_some() {
                continue;
            }
            seen += 1;
            while let Some((has, gets)) = groups.pop() {
                let may = |row: &usize| has & 1 << row == 0 && free[*row] > 0;
                let mut order: Vec<usize> = (0..free.len()).filter(may).collect();
                order.sort_by_key(|&row| std::cmp::Reverse(free[row]));
                let chosen = wishes(&groups).choose((has, gets), &order, &free);
                assert_eq!(chosen.len(), gets);
                chosen.iter().for_each(|&row| free[row] -= 1);
                assert_eq!(wishes(&groups).shortage(&free), None);
            }
        }
        assert!(seen > 500, "{seen}");
    }

    /// It holds the engine: a full pool of many devices and groups is judged at once.
    #[test]
    fn many_kinds_of_groups_are_judged_soon() {
        let mut rng = Prng::new(3);
        let mut all = Wishes::default();
        for _ in 0..100_000 {
            let (a, b) = (rng.range(0, 63), rng.range(0, 63));
            all.add(1 << 63 | 1 << a | 1 << b, 1);
        }
        let free: Vec<u64> = (0..64).map(|row| if row < 63 { 1500 } else { 0 }).collect();
        #[allow(clippy::disallowed_methods, reason = "the test measures")]
        let since = std::time::Instant::now();
        let found = all.shortage(&free).expect("a shortage");
        assert_eq!(found.chunks, 100_000 - 63 * 1500);
        assert!(since.elapsed().as_secs() < 5, "{:?}", since.elapsed());
    }
}
