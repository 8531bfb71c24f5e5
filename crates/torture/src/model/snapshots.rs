//! Snapshots: what each of them may have, and which there may be.
//!
//! **What is promised.**
//!
//! * A snapshot has all that was answered before its creation began, flushed or not, with a cache
//!   and without one, in each mode. It has nothing that began after its creation was answered. Of
//!   what was under way in between, each change of a block is there or not.
//! * What it has is the volume at one moment: it has no write that began after another one was
//!   answered which it lacks. Snapshots that are taken at once are of one moment where none of
//!   their volumes writes back, or all of them do.
//! * From then on it is the same for ever: all reads see the same.
//! * A creation, a change of the name and a deletion that were answered are durable. Cut short, by
//!   a crash or by an error after which the pool takes no more writes, each may have happened, or
//!   not; snapshots that are taken at once are there all, or none.
//!
//! **How it is known.** While a snapshot is being taken, it counts as a read of its volume that is
//! under way: so no change is forgotten that it may lack. When its creation ends, in whichever way,
//! it gets what the volume may hold then. All that was ever seen of one of its blocks must fit that
//! together.

mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::VolumeId;
use pool::{CacheMode, Pool, SnapshotInfo};

use super::block::{Block, SECTORS, SeenSectors, Value, Verdict, View};
use super::volume::{Blocks, Mismatch, Volume, blocks_seen, describe, explain};
use crate::content::SectorContent;

/// What is not known of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotDoubt {
    /// Nothing: it is there.
    None,
    /// It is being taken, or that was not answered.
    Creating,
    /// It is being deleted, or that was not answered.
    Deleting,
    /// Its name changes, or that was not answered.
    Renaming,
}

/// A snapshot.
pub(crate) struct Snapshot {
    /// The number of the volume in the model.
    pub of: u32,
    /// The name of the volume.
    pub volume: String,
    /// The names that it may have: more than one only in doubt.
    pub names: Vec<String>,
    pub doubt: SnapshotDoubt,
    /// The sizes that it may have: one, when it was seen.
    pub sizes: BTreeSet<u64>,
    pub sector: u32,
    /// The creation that it is of.
    creation: u64,
    /// The snapshots that are of the same moment.
    moment: u64,
    /// What it may have; nothing is known while it is being taken.
    blocks: Option<Rc<Blocks>>,
    view: View,
    /// What was seen of each block, in all reads.
    seen: BTreeMap<u64, SeenSectors>,
}

/// The moment that a snapshot is of, as far as it is known: what it surely has began before it, and
/// what it surely lacks was answered after it.
#[derive(Default)]
struct MomentBounds {
    /// The last write that it has: when that began, and its number.
    after: Option<(u64, u64)>,
    /// The first write that it lacks: when that was answered, and its number.
    before: Option<(u64, u64)>,
}

/// The snapshots of all volumes.
#[derive(Default)]
pub(crate) struct Snapshots {
    next: u64,
    all: BTreeMap<u64, Snapshot>,
    moments: BTreeMap<u64, MomentBounds>,
    /// Blocks may be unreadable. Then a pass leaves what it cannot carry and publishes the rest, so
    /// a snapshot may lack a write that is older than another one which it has.
    may_lack: bool,
}

/// A creation of snapshots that is under way.
pub(crate) struct Creation {
    pub op: u64,
    pub numbers: Vec<u64>,
}

/// How a creation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Created {
    Yes,
    No,
    /// The next open tells.
    Perhaps,
}

impl Snapshot {
    /// Its name, where that is certain.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Whether it is known to be there, with this name, and that no change of it is under way.
    pub fn is_settled(&self) -> bool {
        self.doubt == SnapshotDoubt::None
    }

    /// Blocks that may hold something.
    pub fn known_blocks(&self) -> Vec<u64> {
        self.blocks.iter().flat_map(|blocks| blocks.keys().copied()).collect()
    }

    /// Whether a block takes space: for sure, perhaps.
    pub fn takes(&self, number: u64) -> (bool, bool) {
        let block = self.blocks.as_ref().and_then(|blocks| blocks.get(&number));
        block.map_or((false, false), Block::takes)
    }

    /// Judges what was seen of one block; true if it was too hard.
    fn see(
        &mut self,
        number: u64,
        seen: &SeenSectors,
        bounds: Option<&mut MomentBounds>,
    ) -> Result<bool, Mismatch> {
        let all = self.seen.entry(number).or_default();
        let changed = all
            .iter()
            .zip(seen)
            .any(|(before, now)| before.is_some() && now.is_some() && before != now);
        if changed {
            let text =
                format!("a snapshot has changed\n{}\nbefore:\n{}", describe(seen), describe(all));
            return Err(Mismatch { block: number, text });
        }
        let new = all.iter().zip(seen).any(|(before, now)| before.is_none() && now.is_some());
        if !new {
            return Ok(false);
        }
        all.iter_mut().zip(seen).for_each(|(all, now)| *all = all.take().or_else(|| now.clone()));
        let Some(block) = self.blocks.as_ref().and_then(|blocks| blocks.get(&number)) else {
            if all.iter().flatten().all(|found| *found == SectorContent::Zero) {
                return Ok(false);
            }
            let text = format!("{}\nexpected: zeros in a snapshot", describe(all));
            return Err(Mismatch { block: number, text });
        };
        match block.allows(all, self.view) {
            Verdict::Explained => {}
            Verdict::TooHard => return Ok(true),
            Verdict::Impossible => {
                let what = explain(block, self.view);
                let text = format!("{}\nexpected in a snapshot: {what}", describe(all));
                return Err(Mismatch { block: number, text });
            }
        }
        let Some(bounds) = bounds else { return Ok(false) };
        bounds.narrow(block, all, self.view);
        bounds.check().map(|()| false).map_err(|why| {
            let what = explain(block, self.view);
            let text = format!("{why}\n{}\nbefore: {what}", describe(all));
            Mismatch { block: number, text }
        })
    }
}

impl MomentBounds {
    /// What these sectors say of the moment.
    fn narrow(&mut self, block: &Block, seen: &SeenSectors, view: View) {
        for (s, found) in (0..SECTORS).zip(seen) {
            let Some(SectorContent::Write(op)) = found else { continue };
            let own = block.changes.iter().find(|c| c.op == *op);
            if let Some(own) = own {
                self.after = self.after.max(Some((own.start, *op)));
            }
            // The base is older than all changes.
            let is_base = own.is_none() && block.base[s as usize] == Value::Write(*op);
            let lacks = block.changes.iter().filter(|c| {
                let later = is_base || own.is_some_and(|own| c.start > own.end);
                let is_write = matches!(c.value, Value::Write(_)) && c.mask >> s & 1 == 1;
                is_write && later && c.ok && c.era == view.era
            });
            if let Some(first) = lacks.map(|c| (c.end, c.op)).min() {
                self.before = Some(self.before.map_or(first, |before| before.min(first)));
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        match (self.after, self.before) {
            (Some((began, has)), Some((ended, lacks))) if began > ended => Err(format!(
                "a snapshot has write {has}, which began at tick {began}, and lacks write {lacks}, \
                 which was answered at tick {ended}"
            )),
            _ => Ok(()),
        }
    }
}

impl Snapshot {
    /// It has no more than the volume may hold now.
    fn pin_content(&mut self, v: &Volume) {
        self.blocks = Some(v.image());
        let (least, most) = v.sizes();
        self.sizes.extend([least, most]);
    }
}
