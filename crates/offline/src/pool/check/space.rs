//! Which blocks are allocated and which are referred to: two bits a block, and per group a
//! fingerprint of who owns its blocks.
//!
//! Owners are recorded twice, from both sides: a volume's extents say which pool blocks it has, in
//! the order of the volume; a group's checksum records say whose its blocks are, in the order of
//! the group. To compare the two without holding either, each side is summed up: over all blocks of
//! a group, a hash of (block, volume, volume's block). Equal sums mean equal owners.

use base::prng::mix64;
use base::{Bitmap, GroupId, PoolAddr};
use format::page::{Chunk, GroupKind, GroupRecord};
use pool::raw::Geometry;

/// The state of a block group, as far as it is known.
pub(crate) struct GroupSpace {
    pub record: GroupRecord,
    /// Absent for free groups, and if its bitmap could not be read.
    pub allocated: Option<Bitmap>,
    /// The blocks that something refers to.
    pub referred: Bitmap,
    /// The sum over its extents.
    pub owners: u64,
    /// False if a deadlist has blocks of which nothing else says whose they were.
    pub owners_known: bool,
    /// Blocks that snapshots have, and no volume.
    pub past: Bitmap,
    /// Blocks that stand in a deadlist.
    pub dead: Bitmap,
}

/// All block groups of a pool.
pub(crate) struct Space {
    pub geometry: Geometry,
    pub groups: Vec<GroupSpace>,
}

/// The outcome of a claim of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Claim {
    /// Blocks that are not allocated.
    pub free: u32,
    /// Blocks that something else refers to as well.
    pub shared: u32,
}

/// What a block is that stands in a deadlist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeadClaim {
    /// A snapshot has it, and no volume: as it should be.
    OfSnapshot,
    /// Nothing has it: a snapshot that is being deleted may have had it.
    OfNone,
    /// A volume has it.
    OfVolume,
    /// Another deadlist, or another record of this one, has it.
    Twice,
    /// It is not allocated.
    Free,
}

impl Space {
    pub fn new(geometry: Geometry, records: Vec<GroupRecord>) -> Space {
        let groups = records
            .into_iter()
            .map(|record| {
                let bits =
                    if record.kind == GroupKind::Free { 0 } else { geometry.group_blocks as usize };
                GroupSpace {
                    record,
                    allocated: None,
                    referred: Bitmap::new(bits),
                    owners: 0,
                    owners_known: true,
                    past: Bitmap::new(0),
                    dead: Bitmap::new(0),
                }
            })
            .collect();
        Space { geometry, groups }
    }

    /// The group of `[addr, addr + len)` and the first block inside it, if they are in one group of
    /// `kind`.
    pub fn locate(&self, addr: PoolAddr, len: u32, kind: GroupKind) -> Option<(usize, u32)> {
        if !self.geometry.contains(addr) {
            return None;
        }
        let (group, block) = self.geometry.split(addr);
        let fits = block.checked_add(len).is_some_and(|end| end <= self.geometry.group_blocks);
        let g = self.groups.get(group.0 as usize).filter(|g| g.record.kind == kind)?;
        (fits && !g.referred.is_empty()).then_some((group.0 as usize, block))
    }

    /// Returns the chunks that hold the copies of a block's group.
    pub fn chunks_of(&self, addr: PoolAddr) -> &[Chunk] {
        let group = self.geometry.split(addr).0.0 as usize;
        self.groups.get(group).map_or(&[], |g| &g.record.chunks)
    }

    /// Marks blocks of a group as referred to.
    pub fn claim(&mut self, group: usize, block: u32, len: u32) -> Claim {
        let g = &mut self.groups[group];
        let at = block as usize..(block + len) as usize;
        let free = match &g.allocated {
            Some(bits) => at.clone().filter(|&b| !bits.get(b)).count() as u32,
            None => 0,
        };
        let new = g.referred.assign(block as usize, len as usize, true) as u32;
        Claim { free, shared: len - new }
    }

    /// Claims a block for a snapshot; returns whether nothing has it that was looked at before.
    pub fn claim_past(&mut self, group: usize, block: u32) -> (Claim, bool) {
        let claim = self.claim(group, block, 1);
        let g = &mut self.groups[group];
        if g.past.is_empty() {
            g.past = Bitmap::new(g.referred.len());
        }
        if claim.shared == 0 {
            g.past.assign(block as usize, 1, true);
        }
        (claim, claim.shared == 0)
    }

    /// A deadlist has a block.
    pub fn claim_dead(&mut self, group: usize, block: u32) -> DeadClaim {
        let g = &mut self.groups[group];
        if g.dead.is_empty() {
            g.dead = Bitmap::new(g.referred.len());
        }
        let is_past = !g.past.is_empty() && g.past.get(block as usize);
        let was_dead = g.dead.assign(block as usize, 1, true) == 0;
        let claim = self.claim(group, block, 1);
        match () {
            () if was_dead => DeadClaim::Twice,
            () if claim.free > 0 => DeadClaim::Free,
            () if is_past => DeadClaim::OfSnapshot,
            () if claim.shared > 0 => DeadClaim::OfVolume,
            () => DeadClaim::OfNone,
        }
    }

    /// Blocks of a group that snapshots have, and no volume and no deadlist: how many, and the
    /// first of them.
    pub fn undead(&self, group: usize) -> Option<(u32, u32)> {
        let g = &self.groups[group];
        let lost = |&b: &usize| g.past.get(b) && (g.dead.is_empty() || !g.dead.get(b));
        let mut all = (0..g.past.len()).filter(lost);
        let first = all.next()?;
        Some((1 + all.count() as u32, first as u32))
    }

    /// Runs of blocks of a group that are allocated and not referred to: the first, and how many.
    pub fn leaked_runs(&self, group: usize) -> Vec<(PoolAddr, u32)> {
        let g = &self.groups[group];
        let Some(bits) = &g.allocated else { return Vec::new() };
        let id = GroupId(group as u32);
        let lost = |&b: &usize| bits.get(b) && !g.referred.get(b);
        let mut runs: Vec<(PoolAddr, u32)> = Vec::new();
        for b in (0..bits.len()).filter(lost) {
            let addr = self.geometry.join(id, b as u32);
            match runs.last_mut() {
                Some((first, len)) if first.plus(u64::from(*len)) == addr => *len += 1,
                _ => runs.push((addr, 1)),
            }
        }
        runs
    }

    /// The number of blocks of a group that are allocated and not referred to, and the first of
    /// them.
    pub fn leaked(&self, group: usize) -> Option<(u32, u32)> {
        let g = &self.groups[group];
        let bits = g.allocated.as_ref()?;
        let (mut count, mut first) = (0, None);
        for (i, (a, r)) in bits.words().iter().zip(g.referred.words()).enumerate() {
            let lost = a & !r;
            if lost != 0 && first.is_none() {
                first = Some(i as u32 * 64 + lost.trailing_zeros());
            }
            count += lost.count_ones();
        }
        first.map(|f| (count, f))
    }
}

/// Returns what a block adds to its group's sum.
pub(crate) fn owner_hash(block: u32, volume: u32, lba: u64) -> u64 {
    mix64(mix64(u64::from(block) << 32 | u64::from(volume)) ^ lba)
}
