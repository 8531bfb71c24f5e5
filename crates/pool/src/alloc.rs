//! Allocation: next fit in an open group per kind, groups made from chunks as they are needed.
//!
//! Metadata must always find room for what is dirty, or nothing could be committed, not even what frees space. So data may only take a new
//! group, and a write may only begin, if enough stays for all dirty nodes and a reserve ([`State::admit`]).

use base::{Bitmap, GroupId, PoolAddr};
use format::page::{Chunk, GroupKind, GroupRecord, MAX_BITMAP_PAGES};
use smallvec::SmallVec;

use crate::error::{ErrorKind, PoolError};
use crate::extents::Run;
use crate::state::{Maps, State, kind_index};

/// Nodes that one change of trees may add at most: two trees, a path and splits in each, several records.
const NODES_PER_CHANGE: u64 = 48;

/// Freed runs that an allocation makes available in passing.
const DRAIN: usize = 32;

/// The outcome of an allocation.
pub(crate) enum Alloc {
    /// These blocks are the caller's.
    Got(Run),
    /// The maps of this group have to be loaded first.
    NeedMaps(GroupId),
    /// There is nothing.
    Full,
}

/// How a change is admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It takes space.
    Write,
    /// It gives space back, and may use the reserve.
    Free,
}

impl State {
    /// Takes up to `want` contiguous blocks of `kind`.
    pub fn alloc(&mut self, kind: GroupKind, want: u32) -> Alloc {
        self.drain_limbo(DRAIN);
        let k = kind_index(kind);
        loop {
            if let Some((id, at)) = self.space.cursor[k] {
                let Some(maps) = &mut self.groups[id.0 as usize].maps else { return Alloc::NeedMaps(id) };
                if let Some((start, len)) = maps.busy.find_free_run(at as usize, want as usize) {
                    maps.busy.assign(start, len, true);
                    let busy = self.group(id).busy_count + len as u32;
                    self.set_busy(id, busy);
                    self.space.cursor[k] = Some((id, (start + len) as u32));
                    return Alloc::Got(Run { addr: self.geometry.join(id, start as u32), len: len as u32 });
                }
                self.space.cursor[k] = None;
            }
            self.drain_limbo(64 * DRAIN);
            // Groups of the round are its own until it is published.
            let own = |id: &GroupId| self.group(*id).round.is_none();
            let emptiest = self.space.by_free[k].iter().rev().map(|&(_, id)| id).find(own);
            // A group that is mostly full scatters what is written: rather begin a new one.
            let roomy = emptiest.filter(|&id| {
                let free = self.geometry.group_blocks - self.group(id).busy_count;
                free >= self.geometry.group_blocks / 4
            });
            let next = match roomy {
                Some(id) => Some(id),
                None if kind == GroupKind::Metadata || self.data_may_form() => self.form_group(kind).or(emptiest),
                None => emptiest,
            };
            let Some(id) = next else { return Alloc::Full };
            self.space.cursor[k] = Some((id, 0));
        }
    }

    /// Blocks that metadata can still take.
    fn metadata_room(&self) -> u64 {
        self.space.free[1] + self.formable() * u64::from(self.geometry.group_blocks)
    }

    /// Blocks of metadata groups that are free now.
    pub fn metadata_free(&self) -> u64 {
        self.space.free[1].saturating_sub(self.dirty_nodes() + NODES_PER_CHANGE + self.reserve())
    }

    fn reserve(&self) -> u64 {
        u64::from(self.geometry.group_blocks / 8).max(64)
    }

    fn dirty_nodes(&self) -> u64 {
        self.open.nodes.dirty() as u64 + self.committing_nodes
    }

    /// True if a change of the trees may go ahead: all its nodes will find room at commit.
    pub fn admit(&self, purpose: Purpose) -> bool {
        let need = self.dirty_nodes() + NODES_PER_CHANGE + if purpose == Purpose::Write { self.reserve() } else { 0 };
        self.metadata_room() >= need
    }

    fn data_may_form(&self) -> bool {
        let blocks = u64::from(self.geometry.group_blocks);
        let after = self.metadata_room().checked_sub(blocks);
        self.formable() > 0
            && after.is_some_and(|room| room >= 2 * (self.dirty_nodes() + NODES_PER_CHANGE + self.reserve()))
    }

    /// How many more groups the free chunks make, at least: each takes `copies` chunks of different devices, one of them of a device that is there, and others
    /// of such as long as there are ([`form_group`](State::form_group)).
    pub fn formable(&self) -> u64 {
        let copies = u64::from(self.copies);
        let most = self.free_groups.len() as u64;
        let free = |live| self.devices.iter().filter(move |d| d.live().is_some() == live).map(|d| d.free_chunks);
        let whole = groups_of(free(true), copies, most);
        // What is left is on fewer than `copies` devices. It makes groups with the places of those that are missing, for when they are replaced.
        let mut rest: SmallVec<[u64; 4]> = free(true).filter_map(|n| n.checked_sub(whole)).collect();
        rest.sort_unstable_by(|a, b| b.cmp(a));
        let partial = |live: u64| match rest.get(live as usize - 1) {
            Some(&n) => groups_of(free(false), copies - live, n),
            None => 0,
        };
        let partial = (1..copies).rev().map(partial).find(|&n| n > 0);
        (whole + partial.unwrap_or(0)).min(most)
    }

    /// Takes an unused group into use, on the devices with the most free chunks, those that are there first.
    pub(crate) fn form_group(&mut self, kind: GroupKind) -> Option<GroupId> {
        let copies = usize::from(self.copies);
        let mut order: Vec<usize> = (0..self.devices.len()).filter(|&d| self.devices[d].free_chunks > 0).collect();
        let missing = |d: usize| self.devices[d].live().is_none();
        order.sort_by_key(|&d| (missing(d), std::cmp::Reverse(self.devices[d].free_chunks), d));
        if order.len() < copies || missing(order[0]) {
            return None;
        }
        let id = self.free_groups.pop_first()?;
        let mut chunks = Vec::with_capacity(copies);
        for &d in &order[..copies] {
            let device = &mut self.devices[d];
            let chunk = device.chunks.find(0, false)? as u32;
            device.take_chunk(chunk);
            chunks.push(Chunk { device: d as u16, chunk });
        }
        let bits = self.geometry.group_blocks as usize;
        let g = self.group_mut(id);
        assert!(g.record.kind == GroupKind::Free && g.record.used == 0);
        g.record = GroupRecord { kind, chunks, checksums: g.record.checksums, ..GroupRecord::free() };
        g.busy_count = 0;
        let maps = Maps { busy: Bitmap::new(bits), durable: Bitmap::new(bits), slots: [0; MAX_BITMAP_PAGES] };
        self.set_maps(id, Some(Box::new(maps)));
        self.open.groups.insert(id);
        self.index_group(id);
        Some(id)
    }

    /// Gives up a group in which nothing is allocated, neither now nor by the last commit.
    fn dissolve_group(&mut self, id: GroupId) {
        self.unindex_group(id);
        let g = self.group_mut(id);
        assert!(g.busy_count == 0 && g.record.used == 0);
        let chunks = std::mem::take(&mut g.record.chunks);
        g.record = GroupRecord { checksums: g.record.checksums, ..GroupRecord::free() };
        self.set_maps(id, None);
        for c in chunks {
            self.devices[usize::from(c.device)].give_chunk(c.chunk);
        }
        self.open.groups.insert(id);
        self.free_groups.insert(id);
    }

    /// Gives up groups that have become empty, at most `max`.
    pub fn dissolve_empty(&mut self, max: usize) {
        for _ in 0..max {
            let Some(id) = self.maybe_empty.pop_first() else { return };
            let g = self.group(id);
            // A round that has a group looks at it again when it ends.
            if !g.unreadable
                && g.record.kind != GroupKind::Free
                && g.busy_count == 0
                && g.record.used == 0
                && g.round.is_none()
            {
                self.dissolve_group(id);
            }
        }
    }

    /// Nothing is taken from a group whose bitmaps cannot be read, unless they can be when a commit needs them.
    pub fn set_unreadable(&mut self, id: GroupId, unreadable: bool) {
        if self.group(id).unreadable == unreadable {
            return;
        }
        self.group_mut(id).unreadable = unreadable;
        if !unreadable {
            return self.index_group(id);
        }
        self.unindex_group(id);
        if let Some(r) = &mut self.round
            && r.cursor.is_some_and(|c| c.0 == id)
        {
            r.cursor = None;
        }
    }

    /// Why nothing could be taken: no group has room; or some may have, and cannot say.
    pub fn no_room(&self, what: &str) -> PoolError {
        match self.groups.iter().filter(|g| g.unreadable).count() {
            0 => PoolError::new(ErrorKind::NoSpace, format!("{what}; discard something or add space")),
            n => {
                let text = format!(
                    "{what} but where the bitmaps cannot be read, which are those of {n} block groups; \
                     see to the pool's devices, then restart forebay"
                );
                PoolError::new(ErrorKind::Io, text)
            }
        }
    }

    /// True if waiting for a commit may free something.
    pub fn gives_back(&self) -> bool {
        !self.open.frees.is_empty()
            || !self.open.rounds.is_empty()
            || self.committing.is_some()
            || !self.limbo.is_empty()
    }

    /// Gives back blocks that were taken but never referred to.
    pub fn unalloc(&mut self, addr: PoolAddr, len: u32) {
        self.release(Run { addr, len });
    }
}

/// The most groups, up to `most`, of which each takes a chunk of `each` different devices that have so many free.
fn groups_of(free: impl Iterator<Item = u64> + Clone, each: u64, most: u64) -> u64 {
    let fits = |n: u64| free.clone().map(|f| f.min(n)).sum::<u64>() >= each * n;
    let (mut lo, mut hi) = (0, most);
    while lo < hi {
        let mid = (lo + hi).div_ceil(2);
        if fits(mid) { lo = mid } else { hi = mid - 1 }
    }
    lo
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
mod tests;
