//! As many chunks as possible for all groups that are to get some.
//!
//! The model is a flow from the *kinds* of groups to the devices. The groups of a kind are to get
//! equally many chunks, and can get them of the same devices. A group takes one chunk of a device
//! at most.
//!
//! One kind after the other gets free chunks. Where none is left that it can get, kinds that have
//! got chunks give some of them for free ones of other devices: that is a *way* of *hops*. The work
//! for a kind depends on the number of devices, and hardly on the number of kinds: for any two
//! devices it is known whether a kind can give a chunk of one for a chunk of the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::space::groups::sets::{Rows, rows_of};

/// The work that a slice has done, and the most that it may do.
pub(super) struct Work {
    pub done: u64,
    pub most: u64,
}

impl Work {
    pub fn did(&mut self, n: u64) {
        self.done += n;
    }

    fn is_over(&self) -> bool {
        self.done >= self.most
    }
}

/// Groups that are alike.
struct Kind {
    groups: u64,
    /// Chunks that they have not got yet.
    left: u64,
    /// Chunks that they have got, by device.
    got: BTreeMap<usize, u64>,
    /// The devices of these.
    gives: Rows,
    /// Devices of which some of the groups can get a chunk, if there is one.
    open: Rows,
}

impl Kind {
    fn got(&self, row: usize) -> u64 {
        self.got.get(&row).copied().unwrap_or_default()
    }
}

/// As many chunks as possible for all kinds of groups.
pub(super) struct Flow {
    free: Vec<u64>,
    kinds: Vec<Kind>,
    /// By device: the kinds that have got chunks of it.
    holders: Vec<BTreeSet<usize>>,
    /// By two devices: how many kinds have got chunks of the first, and can get some of the second.
    hops: Vec<Vec<u32>>,
    /// By device: the second devices of these, where there are such kinds.
    ways: Vec<Rows>,
    /// A kind for which chunks are still looked for.
    pending: Option<usize>,
}

impl Flow {
    pub fn new(free: &[u64]) -> Flow {
        let n = free.len();
        Flow {
            free: free.to_vec(),
            kinds: Vec::new(),
            holders: vec![BTreeSet::new(); n],
            hops: vec![vec![0; n]; n],
            ways: vec![0; n],
            pending: None,
        }
    }

    /// Adds a kind: so many groups are to get `gets` chunks each, of different devices of these.
    /// The one before is [settled](Flow::settle).
    pub fn add(&mut self, open: Rows, groups: u64, gets: usize) {
        if groups > 0 && gets > 0 {
            let left = groups * gets as u64;
            self.pending = Some(self.kinds.len());
            self.kinds.push(Kind { groups, left, got: BTreeMap::new(), gives: 0, open });
        }
    }

    /// Finds chunks for the kind that was added last, as many as possible. Returns false if the
    /// slice is over, and this is to go on in the next one.
    pub fn settle(&mut self, work: &mut Work) -> bool {
        while let Some(kind) = self.pending {
            if work.is_over() {
                return false;
            }
            let all = self.kinds[kind].left == 0;
            if all || !self.take_free(kind, work) && !self.make_room(kind, work) {
                self.pending = None;
            }
        }
        true
    }

    /// By device: chunks that are left.
    pub fn free(&self) -> &[u64] {
        &self.free
    }

    /// Chunks that find no room.
    pub fn left(&self) -> u64 {
        self.kinds.iter().map(|k| k.left).sum()
    }

    /// A kind has got `n` chunks more of a device.
    fn take(&mut self, kind: usize, row: usize, n: u64) {
        let got = self.kinds[kind].got(row) + n;
        self.set_got(kind, row, got);
    }

    /// A kind has got `n` chunks fewer of a device.
    fn give(&mut self, kind: usize, row: usize, n: u64) {
        let got = self.kinds[kind].got(row) - n;
        self.set_got(kind, row, got);
    }

    fn set_got(&mut self, kind: usize, row: usize, got: u64) {
        let k = &mut self.kinds[kind];
        match got {
            0 => k.got.remove(&row),
            n => k.got.insert(row, n),
        };
        let open = got < k.groups;
        self.set_bits(kind, row, got > 0, open);
    }

    /// Sets whether a kind has got chunks of a device, and whether it can get more, and what
    /// follows for the hops.
    fn set_bits(&mut self, kind: usize, row: usize, gives: bool, open: bool) {
        let k = &self.kinds[kind];
        if gives != (k.gives >> row & 1 == 1) {
            rows_of(k.open).for_each(|to| count(&mut self.hops, &mut self.ways, row, to, gives));
            match gives {
                true => self.holders[row].insert(kind),
                false => self.holders[row].remove(&kind),
            };
            self.kinds[kind].gives ^= 1 << row;
        }
        let k = &self.kinds[kind];
        if open != (k.open >> row & 1 == 1) {
            rows_of(k.gives)
                .for_each(|from| count(&mut self.hops, &mut self.ways, from, row, open));
            self.kinds[kind].open ^= 1 << row;
        }
    }

    /// A kind takes free chunks, of the device with the most. Returns false if there are none.
    fn take_free(&mut self, kind: usize, work: &mut Work) -> bool {
        let k = &self.kinds[kind];
        work.did(k.open.count_ones().into());
        let with_room = rows_of(k.open).filter(|&row| self.free[row] > 0);
        let Some(row) = with_room.max_by_key(|&row| self.free[row]) else { return false };
        let n = k.left.min(self.free[row]).min(k.groups - k.got(row));
        work.did(k.open.count_ones().into());
        self.take(kind, row, n);
        self.kinds[kind].left -= n;
        self.free[row] -= n;
        true
    }

    /// A kind takes chunks of other kinds, which take others for them. Returns false if that is not
    /// possible.
    fn make_room(&mut self, kind: usize, work: &mut Work) -> bool {
        let Ok(way) = self.way(self.kinds[kind].open, self.with_room(), work) else { return false };
        let (first, last) = (way[0], way[way.len() - 1]);
        let k = &self.kinds[kind];
        let n = k.left.min(k.groups - k.got(first)).min(self.free[last]);
        let n = self.shift(&way, n, work);
        self.take(kind, first, n);
        self.kinds[kind].left -= n;
        self.free[last] -= n;
        true
    }

    /// The devices that have a free chunk.
    fn with_room(&self) -> Rows {
        let bit = |(row, &free): (usize, &u64)| Rows::from(free > 0) << row;
        self.free.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// The shortest way of hops from one of the devices `from` to one of those in `to`. Error:
    /// there is none; these are the devices where ways lead.
    fn way(&self, from: Rows, to: Rows, work: &mut Work) -> Result<Vec<usize>, Rows> {
        let mut seen = from;
        let mut next: VecDeque<usize> = rows_of(from).collect();
        let mut by: Vec<Option<usize>> = vec![None; self.free.len()];
        work.did(self.free.len() as u64);
        while let Some(row) = next.pop_front() {
            if to >> row & 1 == 1 {
                let mut way: Vec<usize> =
                    std::iter::successors(Some(row), |&row| by[row]).collect();
                way.reverse();
                return Ok(way);
            }
            let new = self.ways[row] & !seen;
            work.did(1 + u64::from(new.count_ones()));
            for to in rows_of(new) {
                by[to] = Some(row);
                next.push_back(to);
            }
            seen |= new;
        }
        Err(seen)
    }

    /// For each hop of a way a kind gives chunks of the first device and takes as many of the
    /// second: as many as possible, and at most `n`. Returns how many.
    fn shift(&mut self, way: &[usize], mut n: u64, work: &mut Work) -> u64 {
        let mut hops = Vec::with_capacity(way.len());
        for (&from, &to) in way.iter().zip(&way[1..]) {
            let can = |kind: &&usize| self.kinds[**kind].open >> to & 1 == 1;
            let looked = &mut 0;
            let kind = self.holders[from].iter().inspect(|_| *looked += 1).find(can);
            let Some(&kind) = kind else { unreachable!("a way leads over hops of kinds") };
            work.did(*looked);
            let k = &self.kinds[kind];
            n = n.min(k.got(from)).min(k.groups - k.got(to));
            hops.push((kind, from, to));
        }
        for (kind, from, to) in hops {
            work.did(2 * self.free.len() as u64);
            self.give(kind, from, n);
            self.take(kind, to, n);
        }
        n
    }

    /// Devices without a free chunk that all kinds need which find no room.
    pub fn in_the_way(&self) -> Rows {
        let stuck = self.kinds.iter().filter(|k| k.left > 0);
        let open = stuck.fold(0, |all, k| all | k.open);
        self.way(open, 0, &mut Work { done: 0, most: 0 }).err().unwrap_or_default()
    }

    /// The devices on which the group that is the last kind is to get `gets` chunks, the first in
    /// `order` of those for which as many chunks find room altogether.
    pub fn choose(mut self, gets: usize, order: &[usize]) -> Vec<usize> {
        let own = self.kinds.len() - 1;
        let mut chosen = Vec::new();
        for &row in order {
            if chosen.len() < gets && self.can_have(own, row) {
                // The group keeps its chunk of this device.
                self.set_bits(own, row, false, false);
                self.kinds[own].got.remove(&row);
                chosen.push(row);
            }
        }
        let others: Vec<usize> =
            order.iter().filter(|row| !chosen.contains(row)).copied().collect();
        chosen.extend(others.into_iter().take(gets - chosen.len()));
        chosen
    }

    /// A group that is a kind gets a chunk of this device, if as many chunks as before find room
    /// then.
    fn can_have(&mut self, own: usize, row: usize) -> bool {
        let k = &self.kinds[own];
        if k.gives >> row & 1 == 1 || k.open >> row & 1 == 0 {
            return k.gives >> row & 1 == 1;
        }
        if k.left > 0 {
            // No chunk of the device is free, or the group would have it. Another kind lacks one
            // more.
            let Some(&other) = self.holders[row].first() else { return false };
            self.give(other, row, 1);
            self.kinds[other].left += 1;
            self.kinds[own].left -= 1;
        } else {
            // The group gives another chunk.
            let (gives, mut work) = (k.gives, Work { done: 0, most: 0 });
            let Ok(way) = self.way(1 << row, gives | self.with_room(), &mut work) else {
                return false;
            };
            self.shift(&way, 1, &mut work);
            let last = way[way.len() - 1];
            let given = if gives >> last & 1 == 1 { last } else { gives.trailing_zeros() as usize };
            self.give(own, given, 1);
            self.free[given] += 1;
            self.free[last] -= 1;
        }
        self.take(own, row, 1);
        true
    }
}

/// Counts a kind that can go, or cannot any more, from one device to another.
fn count(hops: &mut [Vec<u32>], ways: &mut [Rows], from: usize, to: usize, can: bool) {
    let n = &mut hops[from][to];
    *n = if can { *n + 1 } else { *n - 1 };
    ways[from] = ways[from] & !(1 << to) | Rows::from(*n > 0) << to;
}

#[cfg(test)]
#[path = "flow_tests.rs"]
pub(crate) mod tests;
