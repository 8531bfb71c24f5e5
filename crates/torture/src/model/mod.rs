//! The model: what every sector of every volume may hold, and which volumes there may be.
//!
//! Time is counted in ticks: one for every beginning and every end of an operation, so that what
//! came before what is never in doubt. A boot that ends in a crash begins a new *era*; what it had
//! not flushed is open from then on, until it is read.
//!
//! * [`block`]: one block; [`volume`]: one volume; [`cuts`], [`image`]: what the pool holds without
//!   its cache, and when a flush is durable where; [`lag`]: how old that may be; [`snapshots`];
//!   here: the names of volumes, and the clock

pub(crate) mod block;
pub(crate) mod cuts;
mod image;
pub(crate) mod lag;
pub(crate) mod snapshots;
pub(crate) mod volume;

use std::collections::BTreeMap;

use base::{BLOCK_U64, BlockRange, Lba, SECTOR};
use pool::{CacheMode, VolumeInfo};

use block::Value;
use cuts::Cuts;
use lag::LaggingBlocks;
use snapshots::Snapshots;
use volume::{DoubtfulResize, End, Mismatch, Volume};

/// The doubt about a name after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doubt {
    None,
    /// The creation of the volume was not answered.
    Creating,
    /// The deletion of the volume was not answered.
    Deleting,
}

struct Slot {
    volume: u32,
    doubt: Doubt,
}

/// A change of a volume's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Write,
    /// Whole blocks are given up, parts of blocks stay.
    Discard,
    /// Zeros, which may or must take space.
    Zeroes {
        allocate: bool,
    },
}

/// The way in which a boot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Everything was closed well.
    Closed,
    /// The process died alone: the host has kept what was answered.
    Killed,
    /// Power failed, or a device.
    Crashed,
}

#[derive(Default)]
pub(crate) struct Model {
    tick: u64,
    era: u32,
    next_op: u64,
    next_volume: u32,
    slots: BTreeMap<String, Slot>,
    volumes: BTreeMap<u32, Volume>,
    cuts: Cuts,
    snapshots: Snapshots,
    /// Boots that were killed, whose answers the next open has to find: when each ended, and its
    /// era.
    kept: Vec<(u64, u32)>,
    /// The pool's image was older than it may be.
    pub too_old: Option<String>,
}

impl Model {
    pub fn new() -> Model {
        Model { era: 1, next_op: 1, next_volume: 1, ..Model::default() }
    }

    fn tick(&mut self) -> u64 {
        self.tick_and_look().0
    }

    fn tick_and_look(&mut self) -> (u64, Option<lag::EngineView>) {
        let sight = self.look();
        self.tick += 1;
        (self.tick, sight)
    }

    fn op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op - 1
    }

    /// Numbers of the volumes that are there and not about to go.
    pub fn live(&self) -> Vec<(String, u32)> {
        let calm = |s: &&Slot| {
            s.doubt == Doubt::None && self.volumes.get(&s.volume).is_some_and(|v| !v.dying)
        };
        self.slots.iter().filter(|(_, s)| calm(s)).map(|(n, s)| (n.clone(), s.volume)).collect()
    }

    /// Names in use, or perhaps.
    pub fn names(&self) -> usize {
        self.slots.len()
    }

    pub fn has(&self, name: &str) -> bool {
        self.slots.contains_key(name)
    }

    /// The number of the volume that has this name, or perhaps has it.
    pub fn number_of(&self, name: &str) -> Option<u32> {
        self.slots.get(name).map(|slot| slot.volume)
    }

    pub fn volume(&self, id: u32) -> Option<&Volume> {
        self.volumes.get(&id)
    }

    /// Begins a change of `[offset, offset + len)` of a volume; gives its number, which is also its
    /// content's.
    pub fn begin(&mut self, id: u32, kind: Kind, offset: u64, len: u64) -> u64 {
        let (op, (tick, sight), era) = (self.op(), self.tick_and_look(), self.era);
        let back = self.writes_back(id);
        let Some(v) = self.volumes.get_mut(&id) else { return op };
        let (from, behind) = (offset / BLOCK_U64, (offset + len).div_ceil(BLOCK_U64));
        if kind != Kind::Write {
            self.cuts.lag.give_up(id, from, behind);
        } else if back && v.switching.is_none() {
            let blocks = BlockRange::new(Lba(from), Lba(behind));
            self.cuts.lag.begin(op, LaggingBlocks { volume: id, blocks }, sight);
        }
        let (first, mut end) = (offset / SECTOR as u64, (offset + len) / SECTOR as u64);
        // The last block of a volume ends with it: what reaches the end reaches the end of the
        // block. After a shrink that failed, and may be undone by a crash, there may be something
        // behind the end, which goes only if the whole block is given up.
        let whole = first <= end / block::SECTORS * block::SECTORS
            && kind != (Kind::Zeroes { allocate: true });
        if offset + len == v.size && kind != Kind::Write && (whole || v.also.is_empty()) {
            end = end.next_multiple_of(block::SECTORS);
        }
        let value = match kind {
            Kind::Write => Value::Write(op),
            Kind::Discard | Kind::Zeroes { allocate: false } => Value::Hole,
            Kind::Zeroes { allocate: true } => Value::Zero,
        };
        v.begin(op, first..end, value, kind == Kind::Discard, tick, era);
        op
    }

    /// A change has been answered.
    pub fn end(&mut self, id: u32, op: u64, ok: bool, durable: bool) {
        let (tick, sight) = self.tick_and_look();
        if let Some(v) = self.volumes.get_mut(&id) {
            self.cuts.lag.end(op, ok && !v.is_giving_up(op), sight);
            v.end(op, End { tick, ok, durable: ok && durable });
        }
    }

    pub fn begin_read(&mut self, id: u32) -> u64 {
        let (op, tick) = (self.op(), self.tick());
        if let Some(v) = self.volumes.get_mut(&id) {
            v.begin_read(op, tick);
        }
        op
    }

    pub fn end_read(
        &mut self,
        id: u32,
        op: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<u64, Mismatch> {
        self.tick();
        let era = self.era;
        self.volumes.get_mut(&id).map_or(Ok(0), |v| v.end_read(op, offset, data, era))
    }

    /// A read that failed.
    pub fn drop_read(&mut self, id: u32, op: u64) {
        if let Some(v) = self.volumes.get_mut(&id) {
            // No data: nothing to judge.
            let _ = v.end_read(op, 0, &[], self.era);
        }
    }

    /// The tick at which a flush begins.
    pub fn begin_flush(&mut self) -> u64 {
        self.tick()
    }

    pub fn end_flush(&mut self, id: u32, from: u64) {
        let era = self.era;
        if let Some(v) = self.volumes.get_mut(&id) {
            v.flushed(from, era);
        }
    }

    /// A flush of the whole pool is done.
    pub fn end_commit(&mut self, from: u64) {
        let era = self.era;
        self.volumes.values_mut().for_each(|v| v.flushed(from, era));
    }

    pub fn begin_create(&mut self, name: &str, size: u64, sector: u32) -> u32 {
        let id = self.next_volume;
        self.next_volume += 1;
        self.volumes.insert(id, Volume::new(id, size, sector));
        self.slots.insert(name.to_owned(), Slot { volume: id, doubt: Doubt::Creating });
        id
    }

    pub fn end_create(&mut self, name: &str, ok: bool) {
        if ok {
            self.doubt(name, Doubt::None);
        }
    }

    /// All names of volumes that are there and not about to go, with their modes.
    pub fn modes(&self) -> Vec<(String, u32, CacheMode)> {
        let of = |(n, id): (String, u32)| self.volumes.get(&id).map(|v| (n, id, v.mode));
        self.live().into_iter().filter_map(of).collect()
    }

    /// A creation failed in a way that leaves no doubt.
    pub fn forget(&mut self, name: &str) {
        if let Some(s) = self.slots.remove(name) {
            self.volumes.remove(&s.volume);
        }
    }

    pub fn begin_delete(&mut self, name: &str) {
        self.doubt(name, Doubt::Deleting);
        if let Some(v) = self.slots.get(name).and_then(|s| self.volumes.get_mut(&s.volume)) {
            v.dying = true;
            let id = v.id;
            self.cuts.lag.give_up(id, 0, u64::MAX);
        }
    }

    /// A deletion was refused: the volume stays.
    pub fn keep(&mut self, name: &str) {
        self.doubt(name, Doubt::None);
        if let Some(v) = self.slots.get(name).and_then(|s| self.volumes.get_mut(&s.volume)) {
            v.dying = false;
        }
    }

    fn doubt(&mut self, name: &str, doubt: Doubt) {
        if let Some(s) = self.slots.get_mut(name) {
            s.doubt = doubt;
        }
    }

    /// A resize begins; gives the number of the change that a shrink makes.
    pub fn begin_resize(&mut self, id: u32, size: u64) -> Option<u64> {
        let (op, tick, era) = (self.op(), self.tick(), self.era);
        let v = self.volumes.get_mut(&id)?;
        v.resizing = Some((size, op));
        v.note_resize();
        if size < v.size {
            self.cuts.lag.give_up(id, size / BLOCK_U64, u64::MAX);
            let end = (v.size / SECTOR as u64).next_multiple_of(block::SECTORS);
            v.begin(op, size / SECTOR as u64..end, Value::Hole, false, tick, era);
        }
        Some(op)
    }

    /// A resize was answered: well, or with an error after which the volume has `size` bytes.
    pub fn end_resize(&mut self, id: u32, op: u64, size: u64, ok: bool) {
        let tick = self.tick();
        if let Some(v) = self.volumes.get_mut(&id) {
            v.resizing = None;
            if ok {
                v.resized(size, tick);
            }
            v.size = size;
            v.note_resize();
            v.end(op, End { tick, ok, durable: ok });
        }
    }

    /// A resize has failed: the volume may turn out to have another size after the next open.
    pub fn doubt_size(&mut self, id: u32, doubted: DoubtfulResize) {
        if let Some(v) = self.volumes.get_mut(&id) {
            v.also.push(doubted);
        }
    }

    /// The boot ends. If it was closed well, all that was answered is durable. If it was killed,
    /// the next boot that opens the pool has to find that ([`Model::find_kept`]).
    pub fn stop(&mut self, end: Stop) {
        let tick = self.tick();
        let era = self.era;
        for v in self.volumes.values_mut() {
            v.stop(tick);
            if end == Stop::Closed {
                v.flushed(tick + 1, era);
            }
        }
        match end {
            Stop::Closed => {}
            Stop::Killed => self.kept.push((tick + 1, era)),
            Stop::Crashed => self.kept.clear(),
        }
        self.tick();
        self.era += 1;
    }

    /// The pool is open: what was answered before kills is there for good, as if it were flushed.
    pub fn find_kept(&mut self) {
        for (tick, era) in std::mem::take(&mut self.kept) {
            self.volumes.values_mut().for_each(|v| v.flushed(tick, era));
        }
    }

    /// Answers given before kills may be lost: the device that has them is.
    pub fn lose_kept(&mut self) {
        self.kept.clear();
    }

    /// After an open: the pool has these volumes. What was in doubt is decided.
    pub fn reconcile(&mut self, found: &[VolumeInfo]) -> Result<(), String> {
        if let Some(f) = found.iter().find(|f| !self.slots.contains_key(&f.name)) {
            return Err(format!(
                "there is a volume {:?} that was deleted or never made: {f:?}",
                f.name
            ));
        }
        let names: Vec<String> = self.slots.keys().cloned().collect();
        for name in names {
            let (id, doubt) =
                self.slots.get(&name).map_or((0, Doubt::None), |s| (s.volume, s.doubt));
            let Some(info) = found.iter().find(|f| f.name == name) else {
                if doubt == Doubt::None {
                    return Err(format!("volume {name:?} (number {id} of the model) is gone"));
                }
                self.forget(&name);
                continue;
            };
            self.doubt(&name, Doubt::None);
            let Some(v) = self.volumes.get_mut(&id) else { continue };
            v.dying = false;
            let also = std::mem::take(&mut v.also);
            let mut sizes: Vec<u64> = also.iter().map(|doubted| doubted.size).collect();
            let resizing = v.resizing.take();
            sizes.extend(resizing.map(|r| r.0));
            sizes.push(v.size);
            if let Some((_, op)) = resizing.filter(|r| r.0 != v.size && info.size_bytes == v.size) {
                v.not_resized(op);
            }
            // The volume is as it was before: nothing of what failed, and of what came then, is.
            if let Some(undone) = also.iter().position(|d| d.done && d.size == info.size_bytes)
                && info.size_bytes != v.size
            {
                also[undone..].iter().for_each(|d| v.not_resized(d.op));
            }
            if info.sector_bytes != v.sector || !sizes.contains(&info.size_bytes) {
                let sizes = (sizes, v.sector);
                return Err(format!(
                    "volume {name:?} should have one of these sizes, and this sector {sizes:?}: \
                     {info:?}"
                ));
            }
            // Also if that is the size since a shrink that failed: it has happened after all.
            if sizes.iter().any(|size| *size > info.size_bytes) {
                v.truncate(info.size_bytes, self.tick);
            }
            v.size = info.size_bytes;
            self.find_mode(id, info.cache_mode)?;
        }
        Ok(())
    }

    /// Compares what the pool says its volumes take with what they may take. For when nothing is
    /// under way.
    pub fn check_space(&self, found: &[VolumeInfo]) -> Result<(), String> {
        for f in found {
            let Some(v) = self.slots.get(&f.name).and_then(|s| self.volumes.get(&s.volume)) else {
                continue;
            };
            let (least, most) = v.allocated();
            if !(least..=most).contains(&f.allocated_bytes) {
                let (name, is) = (&f.name, f.allocated_bytes);
                return Err(format!(
                    "volume {name:?} takes {is} bytes, it should be {least} to {most}"
                ));
            }
        }
        Ok(())
    }
}
