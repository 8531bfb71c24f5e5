//! The devices of a pool, to be read and never written: what check and dump stand on.
//!
//! Nothing in here can write: of a device's queue only reads are reachable. That is why it does not go through [`crate::Pool`], which heals
//! what it reads.

use std::rc::Rc;

use base::{BLOCK, Buf, IoError, PoolAddr};
use format::FormatError;
use format::page::Chunk;
use format::superblock::{SLOTS, Superblock};
use queue::{Class, Limits};
use rt::Rt;

use super::report::{DeviceReport, Log, Slot, Subject};
use crate::device::{Disk, PoolDevice};
use crate::error::{ErrorKind, PoolError, Result};
use crate::geometry::Geometry;
use crate::open::{DeviceFile, Found, judge, newest};

/// Readable devices and the newest superblock.
pub(crate) struct Source {
    rt: Rt,
    pub geometry: Geometry,
    pub best: Superblock,
    devices: Vec<PoolDevice>,
}

/// One copy of something: which device, and its bytes or why there are none.
pub(crate) type Copy = (usize, std::result::Result<Buf, IoError>);

impl Source {
    /// Reads all superblocks, tells `log` what is wrong with them, and puts the devices in their places. Refuses what makes no pool.
    pub async fn open(rt: &Rt, files: Vec<DeviceFile>, log: &mut Log) -> Result<(Rc<Source>, Vec<DeviceReport>)> {
        let several = files.len() > 1;
        let mut found = Vec::new();
        let mut slots_of: Vec<(String, Vec<Slot>)> = Vec::new();
        for file in files {
            let queue = file.disk(rt, Limits::default());
            let (slots, sb, foreign) = match read_slots(&queue, &file.path).await {
                Ok(read) => read,
                Err(e) => {
                    queue.close();
                    close_all(&found);
                    return Err(e);
                }
            };
            match sb {
                Some(sb) => {
                    judge_slots(&file.path, &slots, &sb, log);
                    slots_of.push((file.path.clone(), slots));
                    found.push(Found { file, queue, sb, after: None });
                }
                None => {
                    queue.close();
                    if foreign || !several {
                        close_all(&found);
                        let kind = if foreign { ErrorKind::Foreign } else { ErrorKind::Damaged };
                        let text = if foreign { "not a device of a Forebay pool" } else { "no superblock can be read" };
                        return Err(PoolError::new(kind, format!("{}: {text}", file.path)));
                    }
                    let remedy = "it takes no part; replace the device";
                    log.error(Subject::Device, &file.path, "no superblock can be read", remedy);
                }
            }
        }
        let Some(best) = newest(&found) else {
            return Err(PoolError::new(ErrorKind::Missing, "no device of the pool could be read"));
        };
        let geometry = Geometry::of(&best);
        let mut warnings = Vec::new();
        let devices = judge(&best, &geometry, found, &mut warnings)?;
        for w in warnings {
            log.note(Subject::Device, format!("pool {:?}", best.name), w);
        }
        let reports = devices
            .iter()
            .map(|d| {
                let slots = slots_of.iter().find(|s| s.0 == d.path).map(|s| s.1.clone()).unwrap_or_default();
                DeviceReport { path: d.path.clone(), state: d.state(), slots }
            })
            .collect();
        Ok((Rc::new(Source { rt: rt.clone(), geometry, best, devices }), reports))
    }

    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    pub fn close(&self) {
        self.devices.iter().filter_map(|d| d.queue.as_ref()).for_each(Disk::close);
    }

    /// Rows of the devices that may be read.
    pub fn live(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|&d| self.is_live(d)).collect()
    }

    pub fn is_live(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|d| d.live().is_some())
    }

    pub fn degraded(&self) -> bool {
        self.devices.iter().any(|d| d.live().is_none())
    }

    /// Chunks that a device offers.
    pub fn chunks(&self, device: u16) -> u64 {
        self.devices.get(usize::from(device)).map_or(0, |d| d.record.chunks)
    }

    /// What users call a device.
    pub fn name(&self, device: usize) -> String {
        match self.devices.get(device) {
            Some(d) if !d.path.is_empty() => d.path.clone(),
            _ => format!("device {device}"),
        }
    }

    /// Reads `len` bytes, whole blocks; what fails is asked for again, block by block.
    pub async fn read(&self, device: usize, offset: u64, len: usize) -> std::result::Result<Buf, IoError> {
        let Some(queue) = self.devices.get(device).and_then(|d| d.live()) else { return Err(IoError::NO_DEVICE) };
        let read = queue.read_blocks(Class::Foreground, offset, len / BLOCK).await;
        read.unreadable.first().map_or(Ok(read.buf), |(_, e)| Err(*e))
    }

    /// Reads `blocks` blocks from each of `devices` at once; of a device that cannot read all of them, block by block. What cannot be read is
    /// `None`.
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
        out.extend((0..blocks).map(|block| read.get(block).ok().map(|bytes| self.rt.bufs().copy_of(bytes))));
        out
    }

    /// Reads `blocks` blocks at `addr` from each of the chunks on devices that are there.
    pub async fn read_copies(self: &Rc<Self>, chunks: &[Chunk], addr: PoolAddr, blocks: usize) -> Vec<Copy> {
        let (_, block) = self.geometry.split(addr);
        let tasks: Vec<_> = chunks
            .iter()
            .filter(|c| self.is_live(usize::from(c.device)) && u64::from(c.chunk) < self.chunks(c.device))
            .map(|c| {
                let (src, d, offset) =
                    (self.clone(), usize::from(c.device), self.geometry.chunk_offset(c.chunk, block));
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

fn close_all(found: &[Found]) {
    found.iter().for_each(|f| f.queue.close());
}

/// All slots of a device, the newest superblock in them, and whether nothing in them looks like one.
async fn read_slots(queue: &Disk, path: &str) -> Result<(Vec<Slot>, Option<Superblock>, bool)> {
    let mut slots = Vec::new();
    let mut foreign = true;
    let mut best: Option<Superblock> = None;
    for slot in 0..SLOTS {
        let read = queue.read_blocks(Class::Foreground, Superblock::offset_of(slot), 1).await;
        let damaged = |why: String| Slot::Damaged { why };
        let block = &read.buf;
        let decoded = read.get(0).map(Superblock::decode);
        foreign &= matches!(decoded, Ok(Err(FormatError::Magic(_))));
        slots.push(match decoded {
            Err(e) => damaged(e.to_string()),
            Ok(Ok(sb)) if sb.sequence % SLOTS != slot => {
                damaged(format!("sequence {}: one of another slot", sb.sequence))
            }
            Ok(Ok(sb)) => {
                let found = Slot::Ok { sequence: sb.sequence, generation: sb.generation };
                if best.as_ref().is_none_or(|b| b.sequence < sb.sequence) {
                    best = Some(sb);
                }
                found
            }
            Ok(Err(e @ (FormatError::Version { .. } | FormatError::Features { .. }))) => {
                return Err(PoolError::new(ErrorKind::Newer, format!("{path}: {e}")));
            }
            Ok(Err(FormatError::Magic(_))) if block.iter().all(|&b| b == 0) => Slot::Empty,
            Ok(Err(e)) => damaged(e.to_string()),
        });
    }
    Ok((slots, best, foreign))
}

fn judge_slots(path: &str, slots: &[Slot], best: &Superblock, log: &mut Log) {
    for (i, slot) in slots.iter().enumerate() {
        let place = format!("superblock slot {i}");
        // The slot that is written next holds what a loss of power tore, at worst.
        let next = (best.sequence + 1) % SLOTS == i as u64;
        match slot {
            Slot::Damaged { why } if next => log.note(
                Subject::Superblock,
                format!("{place} on {path}"),
                format!("{why}; it is the next to be written: a crash may have torn it"),
            ),
            Slot::Damaged { why } => log.copy(Subject::Superblock, &place, path, why.clone(), "it will be overwritten"),
            Slot::Empty if best.sequence >= SLOTS && !next => {
                log.copy(Subject::Superblock, &place, path, "it is empty", "it will be overwritten");
            }
            Slot::Empty | Slot::Ok { .. } => {}
        }
    }
}
