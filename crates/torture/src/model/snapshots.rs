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

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::VolumeId;
use pool::{CacheMode, Pool, SnapshotInfo};

use super::Model;
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

impl Model {
    /// Blocks and nodes of trees may be unreadable in this run.
    pub fn blocks_may_be_lost(&mut self) {
        self.snapshots.may_lack = true;
    }

    /// Begins to take snapshots of volumes, by their numbers and names, with these names.
    pub fn begin_snapshots(&mut self, wanted: &[(String, u32, String)]) -> Creation {
        let (op, tick, era) = (self.op(), self.tick(), self.era);
        let shared = self.snapshots.next;
        let alike = self.are_alike(wanted.iter().map(|w| w.1));
        let mut numbers = Vec::with_capacity(wanted.len());
        for (volume, of, name) in wanted {
            let number = self.snapshots.next;
            self.snapshots.next += 1;
            let Some(v) = self.volumes.get_mut(of) else { continue };
            v.begin_read(op, tick);
            let (least, most) = v.sizes();
            let snapshot = Snapshot {
                of: *of,
                volume: volume.clone(),
                names: vec![name.clone()],
                doubt: SnapshotDoubt::Creating,
                sizes: BTreeSet::from([least, most]),
                sector: v.sector,
                creation: op,
                moment: if alike { shared } else { number },
                blocks: None,
                view: View { era, from: tick },
                seen: BTreeMap::new(),
            };
            self.snapshots.all.insert(number, snapshot);
            numbers.push(number);
        }
        Creation { op, numbers }
    }

    /// All of these volumes write back, or none does.
    fn are_alike(&self, ids: impl Iterator<Item = u32>) -> bool {
        let of = |id| {
            let v = self.volumes.get(&id)?;
            let settled = v.is_direct() || v.mode == CacheMode::WriteBack && v.is_in_one_mode();
            settled.then(|| self.writes_back(id))
        };
        let all: Vec<Option<bool>> = ids.map(of).collect();
        all.iter().all(|back| back.is_some() && *back == all[0])
    }

    /// A creation has ended.
    pub fn end_snapshots(&mut self, creation: &Creation, outcome: Created) {
        self.tick();
        let alike = {
            let of = creation.numbers.iter().filter_map(|n| self.snapshots.all.get(n));
            let ids: Vec<u32> = of.map(|s| s.of).collect();
            self.are_alike(ids.into_iter())
        };
        for number in &creation.numbers {
            let Some(s) = self.snapshots.all.get_mut(number) else { continue };
            if let Some(v) = self.volumes.get_mut(&s.of) {
                s.take(v);
                // No data: nothing to judge.
                let _ = v.end_read(creation.op, 0, &[], self.era);
            }
            if !alike {
                s.moment = *number;
            }
            match outcome {
                Created::Yes => s.doubt = SnapshotDoubt::None,
                Created::Perhaps => {}
                Created::No => _ = self.snapshots.all.remove(number),
            }
        }
    }

    /// The boot ends: snapshots that were being taken have no more than there is now.
    pub(super) fn stop_snapshots(&mut self) {
        for (number, s) in self.snapshots.all.iter_mut().filter(|(_, s)| s.blocks.is_none()) {
            if let Some(v) = self.volumes.get(&s.of) {
                s.take(v);
            }
            s.moment = *number;
        }
    }

    /// The volume may have this size now, and so what is being taken of it.
    pub(super) fn note_size(&mut self, id: u32) {
        let Some((least, most)) = self.volumes.get(&id).map(Volume::sizes) else { return };
        for s in self.snapshots.all.values_mut().filter(|s| s.of == id && s.blocks.is_none()) {
            s.sizes.extend([least, most]);
        }
    }

    /// A change of a snapshot begins.
    pub fn begin_snapshot_change(&mut self, number: u64, doubt: SnapshotDoubt) {
        self.tick();
        if let Some(s) = self.snapshots.all.get_mut(&number) {
            s.doubt = doubt;
        }
    }

    /// A snapshot is there, with this name, and no change of it is under way.
    pub fn settle_snapshot(&mut self, number: u64, name: &str) {
        self.tick();
        if let Some(s) = self.snapshots.all.get_mut(&number) {
            s.doubt = SnapshotDoubt::None;
            s.names = vec![name.to_owned()];
        }
    }

    /// It may have this name, too.
    pub fn doubt_name(&mut self, number: u64, name: &str) {
        if let Some(s) = self.snapshots.all.get_mut(&number) {
            s.names.push(name.to_owned());
        }
    }

    /// A snapshot is gone.
    pub fn forget_snapshot(&mut self, number: u64) {
        self.tick();
        self.snapshots.all.remove(&number);
    }

    pub fn snapshot(&self, number: u64) -> Option<&Snapshot> {
        self.snapshots.all.get(&number)
    }

    /// All snapshots that there are or may be, with their numbers.
    pub fn snapshots(&self) -> impl Iterator<Item = (u64, &Snapshot)> {
        self.snapshots.all.iter().map(|(number, s)| (*number, s))
    }

    /// Snapshots of a volume that there are or may be.
    pub fn snapshots_of(&self, id: u32) -> impl Iterator<Item = (u64, &Snapshot)> {
        self.snapshots().filter(move |(_, s)| s.of == id)
    }

    /// Whether snapshots of a volume are being taken, and there are no others.
    pub fn is_being_taken(&self, id: u32) -> bool {
        let mut all = self.snapshots_of(id).peekable();
        all.peek().is_some() && all.all(|(_, s)| s.blocks.is_none())
    }

    /// The settled snapshots: no change of them is under way.
    pub fn settled_snapshots(&self) -> Vec<u64> {
        self.snapshots().filter(|(_, s)| s.is_settled()).map(|(number, _)| number).collect()
    }

    /// `data`, from byte `offset` on, was read of a snapshot: judges it. Returns how many blocks
    /// could not be judged.
    pub fn see_snapshot(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<u64, Mismatch> {
        let Some(s) = self.snapshots.all.get_mut(&number) else { return Ok(0) };
        let mut too_hard = 0;
        let may_lack = self.snapshots.may_lack;
        let bounds = self.snapshots.moments.entry(s.moment).or_default();
        for (block, seen) in blocks_seen(s.of, offset, data) {
            let bounds = (!may_lack).then_some(&mut *bounds);
            too_hard += u64::from(s.see(block, &seen, bounds)?);
        }
        Ok(too_hard)
    }

    /// After an open: the pool has these snapshots. What was in doubt is decided.
    pub fn reconcile_snapshots(&mut self, pool: &Pool) -> Result<(), String> {
        let mut found = pool.snapshots().all();
        let name_of = |id: VolumeId| pool.volume(id).map_or_else(String::new, |v| v.name);
        let numbers: Vec<u64> = self.snapshots.all.keys().copied().collect();
        let (mut taken, mut missing) = (BTreeSet::new(), BTreeSet::new());
        for number in numbers {
            let Some(s) = self.snapshots.all.get_mut(&number) else { continue };
            let is_it = |f: &SnapshotInfo| name_of(f.of) == s.volume && s.names.contains(&f.name);
            let creating = s.doubt == SnapshotDoubt::Creating;
            let Some(at) = found.iter().position(is_it) else {
                if !matches!(s.doubt, SnapshotDoubt::Creating | SnapshotDoubt::Deleting) {
                    return Err(format!("snapshot {}@{:?} is gone", s.volume, s.names));
                }
                if creating {
                    missing.insert(s.creation);
                }
                self.snapshots.all.remove(&number);
                continue;
            };
            let f = found.swap_remove(at);
            if creating {
                taken.insert(s.creation);
            }
            if s.sector != f.sector_bytes || !s.sizes.contains(&f.size_bytes) {
                return Err(format!(
                    "a snapshot should have one of these sizes, and this sector {:?}, {}: {f:?}",
                    s.sizes, s.sector
                ));
            }
            s.sizes = BTreeSet::from([f.size_bytes]);
            s.names = vec![f.name];
            s.doubt = SnapshotDoubt::None;
        }
        if let Some(f) = found.first() {
            return Err(format!("there is a snapshot that was deleted or never taken: {f:?}"));
        }
        match taken.intersection(&missing).next() {
            Some(creation) => Err(format!("creation {creation} of snapshots has half happened")),
            None => Ok(()),
        }
    }

    /// What the pool says of a snapshot, which is there: its size is known from now on.
    pub fn see_snapshot_info(&mut self, number: u64, f: &SnapshotInfo) -> Result<(), String> {
        let Some(s) = self.snapshots.all.get_mut(&number) else { return Ok(()) };
        if s.sector != f.sector_bytes || !s.sizes.contains(&f.size_bytes) {
            return Err(format!(
                "a snapshot should have one of these sizes, and this sector {:?}, {}: {f:?}",
                s.sizes, s.sector
            ));
        }
        s.sizes = BTreeSet::from([f.size_bytes]);
        Ok(())
    }
}

impl Snapshot {
    /// It has no more than the volume may hold now.
    fn take(&mut self, v: &Volume) {
        self.blocks = Some(v.image());
        let (least, most) = v.sizes();
        self.sizes.extend([least, most]);
    }
}
