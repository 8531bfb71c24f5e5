//! The devices of a pool, to be read and never written: what check and dump stand on.
//!
//! Nothing in here can write: of a device's queue only reads are reachable. That is why it does not
//! go through [`pool::Pool`], which heals what it reads.

use std::rc::Rc;

use base::{BLOCK, Buf, ErrorKind, IoError, PoolAddr, Result, StorageError};
use format::page::Chunk;
use format::superblock::{DeviceState, SLOT_COPIES, SLOTS, Superblock};
use pool::DeviceFile;
use pool::offline_repair::Spot;
use pool::raw::{
    Candidate, Copy as SlotCopy, Disk, Geometry, PoolDevice, Slots, doubt, judge, newest,
    without_blank,
};
use queue::{Class, Limits};
use rt::Rt;

use super::plan::PoolRepairPlan;
use super::report::{DeviceReport, PoolCounts};
use crate::report::{Log, Severity, Slot, Subject};

/// Readable devices and the newest superblock.
pub(crate) struct PoolSource {
    rt: Rt,
    pub geometry: Geometry,
    pub best: Superblock,
    devices: Vec<PoolDevice>,
}

/// One copy of something: which device, and its bytes or why there are none.
pub(crate) type Copy = (usize, std::result::Result<Buf, IoError>);

impl PoolSource {
    /// Reads all superblocks, tells `log` what is wrong with them, and puts the devices in their
    /// places. Refuses what makes no pool.
    pub async fn open(
        rt: &Rt,
        files: Vec<DeviceFile>,
        log: &mut Log<PoolCounts>,
        plan: &mut PoolRepairPlan,
    ) -> Result<(Rc<PoolSource>, Vec<DeviceReport>)> {
        let several = files.len() > 1;
        let (mut found, mut blank) = (Vec::new(), Vec::new());
        let mut slots_of: Vec<(String, Vec<Slot>)> = Vec::new();
        for file in files {
            let queue = file.disk(rt, Limits::default());
            let slots = match Slots::read(rt, &queue, &file.path).await {
                Ok(slots) => slots,
                Err(e) => {
                    queue.close();
                    close_all(&found);
                    return Err(e);
                }
            };
            let foreign = slots.trouble().is_none();
            match slots.newest().cloned() {
                Some(sb) => {
                    judge_slots(&file.path, &slots, &sb, log, plan);
                    slots_of.push((file.path.clone(), report(&slots)));
                    found.push(Candidate { file, queue, sb, slots, unsure: None });
                }
                None => {
                    queue.close();
                    if foreign {
                        blank.push(file.path);
                        continue;
                    }
                    if !several {
                        let text = format!("{}: no superblock can be read", file.path);
                        return Err(StorageError::new(ErrorKind::Damaged, text));
                    }
                    let remedy = "it takes no part; replace the device";
                    log.error(Subject::Device, &file.path, "no superblock can be read", remedy);
                }
            }
        }
        let Some(best) = newest(&found) else {
            let (kind, text) = match blank.first() {
                Some(path) => {
                    (ErrorKind::Foreign, format!("{path}: not a device of a Forebay pool"))
                }
                None => (ErrorKind::Missing, "no device of the pool could be read".to_owned()),
            };
            return Err(StorageError::new(kind, text));
        };
        let mut warnings = Vec::new();
        if let Err(e) = without_blank(&best, &found, &blank, &mut warnings) {
            close_all(&found);
            return Err(e);
        }
        let geometry = Geometry::of(&best);
        if let Err(e) = doubt(&found, &best) {
            log.error(
                Subject::Superblock,
                format!("pool {:?}", best.name),
                e.to_string(),
                "the pool is not opened as it is",
            );
        }
        let devices = judge(&best, &geometry, found, &mut warnings)?;
        for w in warnings {
            log.note(Subject::Device, format!("pool {:?}", best.name), w);
        }
        let reports = devices
            .iter()
            .map(|d| {
                let slots = slots_of
                    .iter()
                    .find(|s| s.0 == d.path())
                    .map(|s| s.1.clone())
                    .unwrap_or_default();
                DeviceReport { path: d.path().to_owned(), state: d.state(), slots }
            })
            .collect();
        Ok((Rc::new(PoolSource { rt: rt.clone(), geometry, best, devices }), reports))
    }

    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    pub fn close(&self) {
        self.devices.iter().filter_map(PoolDevice::disk).for_each(Disk::close);
    }

    /// Rows of the devices that may be read.
    pub fn live(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|&d| self.is_live(d)).collect()
    }

    pub fn is_live(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|d| d.live().is_some())
    }

    /// True if a chunk is a copy that counts.
    pub fn is_whole(&self, c: &Chunk) -> bool {
        !c.behind && self.is_live(usize::from(c.device))
    }

    /// The devices of the pool that are not there, and those that are, and are out of use.
    pub fn away(&self) -> (Vec<String>, Vec<String>) {
        let rows = 0..self.devices.len();
        let away = rows.filter(|&d| !self.is_removed(d) && !self.is_live(d));
        let (there, missing): (Vec<_>, Vec<_>) =
            away.partition(|&d| !self.devices[d].path().is_empty());
        let names = |rows: Vec<usize>| rows.into_iter().map(|d| self.name(d)).collect();
        (names(missing), names(there))
    }

    /// True if a row has no device.
    fn is_removed(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|d| d.record().state == DeviceState::Removed)
    }

    /// True if a device of the pool is away, or lacks something. A row without a device lacks
    /// nothing.
    pub fn degraded(&self) -> bool {
        let lacks = |d: &PoolDevice| d.live().is_none() || d.record().lacks_since.is_some();
        let is_there = |d: &PoolDevice| d.record().state != DeviceState::Removed;
        self.devices.iter().any(|d| is_there(d) && lacks(d))
    }

    /// True if a device has no chunks until it takes the place of another one.
    pub fn is_spare(&self, device: u16) -> bool {
        self.devices.get(usize::from(device)).is_some_and(|d| d.record().spare)
    }

    /// Chunks that a device offers.
    pub fn chunks(&self, device: u16) -> u64 {
        self.devices.get(usize::from(device)).map_or(0, |d| d.record().chunks)
    }

    /// Returns where a block of a group is on a device.
    pub fn spot(&self, chunks: &[Chunk], block: u32, device: usize) -> Option<Spot> {
        let chunk = chunks.iter().find(|c| usize::from(c.device) == device)?;
        Some(Spot { device, offset: self.geometry.chunk_offset(chunk.chunk, block) })
    }

    /// Returns the name by which users call a device.
    pub fn name(&self, device: usize) -> String {
        match self.devices.get(device) {
            Some(d) if !d.path().is_empty() => d.path().to_owned(),
            _ => format!("device {device}"),
        }
    }

    /// Reads `len` bytes, whole blocks; what fails is asked for again, block by block.
    pub async fn read(
        &self,
        device: usize,
        offset: u64,
        len: usize,
    ) -> std::result::Result<Buf, IoError> {
        let Some(queue) = self.devices.get(device).and_then(|d| d.live()) else {
            return Err(IoError::NO_DEVICE);
        };
        let read = queue.read_blocks(Class::Foreground, offset, len / BLOCK).await;
        read.unreadable.first().map_or(Ok(read.buf), |(_, e)| Err(*e))
    }

    /// Reads `blocks` blocks from each of `devices` at once; of a device that cannot read all of
    /// them, block by block. What cannot be read is `None`.
    pub async fn read_each(
        self: &Rc<Self>,
        devices: &[usize],
        offset: u64,
        blocks: usize,
    ) -> Vec<(usize, Vec<Option<Buf>>)> {
        let tasks: Vec<_> = devices
            .iter()
            .map(|&d| {
                let src = self.clone();
                self.rt.spawn(async move { (d, src.read_blocks(d, offset, blocks).await) })
            })
            .collect();
        let mut all = Vec::with_capacity(tasks.len());
        for t in tasks {
            all.extend(t.await);
        }
        all
    }

    async fn read_blocks(&self, device: usize, offset: u64, blocks: usize) -> Vec<Option<Buf>> {
        let mut out = Vec::with_capacity(blocks);
        let Some(queue) = self.devices.get(device).and_then(|d| d.live()) else {
            out.resize_with(blocks, || None);
            return out;
        };
        let read = queue.read_blocks(Class::Foreground, offset, blocks).await;
        out.extend(
            (0..blocks)
                .map(|block| read.get(block).ok().map(|bytes| self.rt.bufs().copy_of(bytes))),
        );
        out
    }

    /// Reads `blocks` blocks at `addr` from each of the chunks that are copies that count.
    pub async fn read_copies(
        self: &Rc<Self>,
        chunks: &[Chunk],
        addr: PoolAddr,
        blocks: usize,
    ) -> Vec<Copy> {
        self.read_chunks(chunks, addr, blocks, |c| self.is_whole(c)).await
    }

    /// As [`PoolSource::read_copies`], of one block, from each of the chunks that are behind. They
    /// may have it, if it was written before their devices were away; no copy is missing if not.
    pub async fn read_behind(self: &Rc<Self>, chunks: &[Chunk], addr: PoolAddr) -> Vec<Copy> {
        let is_behind = |c: &Chunk| c.behind && self.is_live(usize::from(c.device));
        self.read_chunks(chunks, addr, 1, is_behind).await
    }

    async fn read_chunks(
        self: &Rc<Self>,
        chunks: &[Chunk],
        addr: PoolAddr,
        blocks: usize,
        which: impl Fn(&Chunk) -> bool,
    ) -> Vec<Copy> {
        let (_, block) = self.geometry.split(addr);
        let tasks: Vec<_> = chunks
            .iter()
            .filter(|c| which(c) && u64::from(c.chunk) < self.chunks(c.device))
            .map(|c| {
                let (src, d, offset) = (
                    self.clone(),
                    usize::from(c.device),
                    self.geometry.chunk_offset(c.chunk, block),
                );
                self.rt.spawn(async move { (d, src.read(d, offset, blocks * BLOCK).await) })
            })
            .collect();
        let mut all = Vec::with_capacity(tasks.len());
        for t in tasks {
            all.extend(t.await);
        }
        all
    }
}

fn close_all(found: &[Candidate]) {
    found.iter().for_each(|f| f.queue.close());
}

/// Returns the states of a device's superblock slots, for the report.
fn report(slots: &Slots) -> Vec<Slot> {
    let say = |copies: &[SlotCopy; SLOT_COPIES]| {
        let sbs = copies
            .iter()
            .filter_map(|c| if let SlotCopy::Superblock(sb) = c { Some(sb) } else { None });
        if let Some(sb) = sbs.max_by_key(|sb| sb.sequence) {
            return Slot::Ok { sequence: sb.sequence, generation: sb.generation };
        }
        let why = copies.iter().find_map(trouble);
        match why {
            Some(why) => Slot::Damaged { why },
            None if matches!(copies[0], SlotCopy::Empty) => Slot::Empty,
            None => Slot::Damaged { why: "not a superblock".into() },
        }
    };
    slots.copies().map(|(_, copies)| say(copies)).collect()
}

fn trouble(copy: &SlotCopy) -> Option<String> {
    match copy {
        SlotCopy::Damaged(why) | SlotCopy::Unreadable(why) => Some(why.clone()),
        SlotCopy::Superblock(_) | SlotCopy::Empty | SlotCopy::Foreign => None,
    }
}

fn judge_slots(
    path: &str,
    slots: &Slots,
    best: &Superblock,
    log: &mut Log<PoolCounts>,
    plan: &mut PoolRepairPlan,
) {
    let said = report(slots);
    let twins = slots.copies().filter_map(|(_, [_, twin])| sequence(twin)).min();
    for (i, copies) in slots.copies() {
        let before = log.total(Severity::DamagedCopy);
        let is_next = log.judge_slot(path, i as u64, SLOTS, &said[i], best.sequence);
        if log.total(Severity::DamagedCopy) > before {
            plan.slot(path);
        }
        if is_next || !matches!(said[i], Slot::Ok { .. }) {
            continue;
        }
        // Power that failed while it was written leaves one whole.
        for why in copies.iter().filter_map(|c| trouble(c).or_else(|| absent(c, copies, twins))) {
            let what = format!("one of its two copies: {why}; the other one counts");
            log.note(Subject::Superblock, format!("superblock slot {i} on {path}"), what);
            plan.slot(path);
        }
    }
}

fn sequence(copy: &SlotCopy) -> Option<u64> {
    if let SlotCopy::Superblock(sb) = copy { Some(sb.sequence) } else { None }
}

/// Why a copy should be a superblock and is nothing like it. Superblocks before the first of
/// `twins` were written once.
fn absent(
    copy: &SlotCopy,
    [first, second]: &[SlotCopy; SLOT_COPIES],
    twins: Option<u64>,
) -> Option<String> {
    let is_twin = std::ptr::eq(copy, second);
    let written = if is_twin { sequence(first) >= twins && twins.is_some() } else { true };
    let nothing = matches!(copy, SlotCopy::Empty | SlotCopy::Foreign);
    (nothing && written).then(|| "not a superblock".to_owned())
}
