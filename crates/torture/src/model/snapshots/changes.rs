//! Snapshots are taken, renamed, deleted and read, and found after an open.

use super::*;
use crate::model::Model;

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
                s.pin_content(v);
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
    pub fn stop_snapshots(&mut self) {
        for (number, s) in self.snapshots.all.iter_mut().filter(|(_, s)| s.blocks.is_none()) {
            if let Some(v) = self.volumes.get(&s.of) {
                s.pin_content(v);
            }
            s.moment = *number;
        }
    }

    /// The volume may have this size now, and so what is being taken of it.
    pub fn note_size(&mut self, id: u32) {
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
