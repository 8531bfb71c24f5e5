//! Opening: which devices belong together, which of them may be read, and what the tables say. Nothing is written here.
//!
//! | found on a device | what happens |
//! | --- | --- |
//! | no superblock | refused: foreign |
//! | a superblock of a newer format | refused: newer |
//! | another pool's | refused: foreign |
//! | no other device is in use by both its own superblock and the newest | refused: split brain |
//! | the newest superblock calls it failed | left out: stale |
//! | its newest superblock is older than the commit that the newest names as known to all, without having been called failed | left out: stale |
//! | not given, not there | missing: the pool opens without it, if every block has a copy elsewhere |
//!
//! The newest superblock has the highest generation, and of those the highest sequence number. A device whose own is of that commit or a later one was
//! left by power before its superblock was written: all else was flushed on every device before the first superblock was, so it is up to date.
//!
//! Every device is flushed before it is read. After a kill, what is read may stand in a volatile cache only; what
//! is written on the grounds of it could get to the medium alone. A device that cannot flush is as good as missing,
//! unless by what it says the others are stale.
//!
//! *Split brain* is when a device may hold a completed commit that the newest state has not seen. A device in use never becomes so again once a
//! superblock calls it failed, and a commit is complete when every device in use has its superblock. So if some other device is in use by
//! both, it had whatever this one completed, was there when the newest state went on, and that state contains it: this one is merely stale, or
//! ahead by a superblock that was never complete. Of devices A and B (a superblock *says* which are in use; `I` is the incarnation of both
//! before):
//!
//! | what happened | A says | B says | newest | the other |
//! | --- | --- | --- | --- | --- |
//! | power left B a superblock ahead; all open again | A B, `I` | A B, `I` | B | up to date |
//! | the same while opening; A opened alone afterwards | A, `I+2` | A B, `I+1` | A | stale |
//! | B dropped at run time | A, `I` | A B, `I` | A, by sequence | stale |
//! | B missing when A was opened, once or often | A, `I+2` or more | A B, `I` | A | stale |
//! | the same, power failed before A's first superblock | A B, `I` | A B, `I` | either | up to date |
//! | the same, and B was a superblock ahead | A B, `I` | A B, `I` | B | up to date, but for table pages |
//! | each was opened alone, as often as you like | A, `I+2` or more | B, `I+2` or more | either | split brain |
//! | A went on after it dropped B, then B was opened alone | A, `I` | B, `I+2` | B | split brain |
//! | B was ahead while opening, then each was opened alone | A, `I+2` | B, `I+3` | B | split brain |
//! | C missing, power left B ahead while opening, then A and C opened | A C, `I+2` | A B, `I+2` | A, C or B | stale, not split |
//!
//! An open that calls a device failed that was in use skips an incarnation: the missing device may hold the first superblock of the next one, from
//! an attempt that power cut short, and must not be taken for the newest.
//!
//! A device in use whose own superblock is not of the newest commit is *behind*. It is brought up
//! to date before anything else is written: see `catch_up.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::{BLOCK, Generation, GroupId, IoError};
use btree::Store;
use format::FormatError;
use format::page::{
    GroupKind, GroupRecord, PageId, PageKind, VolumeRecord, VolumeState, decode_groups, decode_volumes, open_page,
    page_digest,
};
use format::superblock::{DeviceRecord, DeviceState, Superblock};
use queue::{Class, Device, Limits};
use rt::{FileId, Rt};

use crate::CacheMark;
use crate::catch_up::PageCopy;
use crate::device::{Disk, PoolDevice};
use crate::error::{ErrorKind, PoolError, Result};
use crate::geometry::Geometry;
use crate::reservation::Ledger;
use crate::settings::Settings;
use crate::slots::{After, Slots};
use crate::standing::{Permit, Standing};
use crate::state::{Group, Space, State, TablePage};
use crate::txn::{LiveTree, Txn, Volume, checksum_tree_id};

/// A file or block device that the backend has opened.
#[derive(Clone, Debug)]
pub struct DeviceFile {
    /// What the user calls it.
    pub path: String,
    /// Its number at the seam.
    pub file: FileId,
    /// Its size in bytes.
    pub size_bytes: u64,
}

impl DeviceFile {
    /// A queue on it.
    pub(crate) fn disk(&self, rt: &Rt, limits: Limits) -> Disk {
        Disk::over(self.queue(rt, limits))
    }

    /// A queue on it, for what is no pool yet.
    pub(crate) fn queue(&self, rt: &Rt, limits: Limits) -> Device {
        Device::new(rt, self.file, limits)
    }
}

pub(crate) struct Loaded {
    pub state: State,
    pub warnings: Vec<String>,
    /// What devices in use lack of the newest commit's table pages, if any of them is behind.
    pub lacking: Vec<PageCopy>,
}

pub(crate) struct Found {
    pub file: DeviceFile,
    pub queue: Disk,
    pub sb: Superblock,
    pub slots: Slots,
    /// It could not make durable what it holds.
    pub unsure: Option<IoError>,
}

/// The newest superblock of a device.
fn newest_of(slots: &Slots, path: &str) -> Result<Superblock> {
    if let Some(sb) = slots.newest() {
        return Ok(sb.clone());
    }
    Err(match slots.trouble() {
        Some(t) => PoolError::new(ErrorKind::Damaged, format!("{path}: no superblock can be read ({t})")),
        None => {
            let text = format!("{path}: not a device of a Forebay pool; see forebay create");
            PoolError::new(ErrorKind::Foreign, text)
        }
    })
}

/// Finds out which of `files` make the newest state of their pool, and reads its tables. Writes nothing.
pub(crate) async fn load(rt: &Rt, files: Vec<DeviceFile>, settings: &Settings) -> Result<Loaded> {
    let mut warnings = Vec::new();
    let standing = Standing::good();
    let found = read_all(rt, standing.permit()?, files, settings, &mut warnings).await?;
    let found = without_unsure(found, &mut warnings)?;
    let Some(best) = newest(&found) else {
        return Err(PoolError::new(ErrorKind::Missing, "no device of the pool could be read"));
    };
    warnings.extend(doubt(&found, &best)?);
    let geometry = Geometry::of(&best);
    // A crash may have come between the superblocks of two devices. Should another come before the next commit has written both, neither is stale.
    let in_use = |f: &&Found| {
        let record = best.devices.get(usize::from(f.sb.device));
        f.sb.generation >= best.previous && record.is_some_and(|record| record.state == DeviceState::Online)
    };
    let known = found.iter().filter(in_use).map(|f| f.sb.generation).min().unwrap_or(best.generation);
    let devices = judge(&best, &geometry, found, &mut warnings)?;
    let behind = known < best.generation;
    let (forced, lacking) = (BTreeSet::new(), Vec::new());
    let mut loader = Loader { rt, geometry, best: &best, devices, forced, behind, lacking };
    let (pages, places, records) = loader.tables().await?;
    let Loader { devices, forced, lacking, .. } = loader;
    let mut state = assemble(&best, geometry, standing, settings, devices, (pages, places, records, forced))?;
    state.known = Generation(known);
    Ok(Loaded { state, warnings, lacking })
}

async fn read_all(
    rt: &Rt,
    permit: Permit,
    files: Vec<DeviceFile>,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    let several = files.len() > 1;
    for file in files {
        let queue = file.disk(rt, settings.device);
        let unsure = queue.flush(permit, Class::Commit).await.err();
        let read = Slots::read(rt, &queue, &file.path).await.and_then(|s| Ok((newest_of(&s, &file.path)?, s)));
        match read {
            Ok((sb, slots)) => found.push(Found { file, queue, sb, slots, unsure }),
            // A device whose superblocks are all unreadable is as good as missing, if others are there.
            Err(e) if e.kind == ErrorKind::Damaged && several => {
                warnings.push(format!("{e}; going on as if it were missing"));
                queue.close();
            }
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Leaves out the devices that could not flush: what they hold may be gone in a moment. Not if by what they say the others are stale.
fn without_unsure(found: Vec<Found>, warnings: &mut Vec<String>) -> Result<Vec<Found>> {
    let Some(best) = newest(&found) else { return Ok(found) };
    let up_to_date = |f: &Found| {
        let record = best.devices.get(usize::from(f.sb.device));
        f.sb.generation >= best.previous && record.is_some_and(|d| d.state == DeviceState::Online)
    };
    let others = found.iter().any(|f| f.unsure.is_none() && up_to_date(f));
    let mut sure = Vec::with_capacity(found.len());
    for f in found {
        let Some(e) = f.unsure else {
            sure.push(f);
            continue;
        };
        let what = format!("{}: it could not make durable what it holds: {e}", f.file.path);
        if !others {
            let text =
                format!("{what}; nothing may be written on the grounds of that; see to the device, then start again");
            return Err(PoolError::new(ErrorKind::Io, text));
        }
        warnings.push(format!("{what}; going on as if it were missing"));
        f.queue.close();
    }
    Ok(sure)
}

/// The superblock that judges all.
pub(crate) fn newest(found: &[Found]) -> Option<Superblock> {
    found.iter().map(|f| &f.sb).max_by_key(|sb| (sb.generation, sb.sequence)).cloned()
}

/// Whether the state after `best` was never complete. If no device in use shows that, it may be that none can read
/// its superblock any more: then what it has freed may be in use, and `best` is nothing to go on from. What looks
/// torn by a loss of power is taken for that, and told.
pub(crate) fn doubt(found: &[Found], best: &Superblock) -> Result<Option<String>> {
    let in_use =
        |f: &&Found| best.devices.get(usize::from(f.sb.device)).is_some_and(|d| d.state == DeviceState::Online);
    let after: Vec<_> = found.iter().filter(in_use).map(|f| (&f.file.path, f.slots.after(best.sequence))).collect();
    if after.iter().any(|(_, after)| *after == After::Never) {
        return Ok(None);
    }
    let unknown = after.iter().find_map(|(path, after)| match after {
        After::Unknown(why) => Some(format!("{path}: superblock {why}")),
        _ => None,
    });
    if let Some(what) = unknown {
        let text = format!(
            "{what}. It was read several times, and it may be the newest superblock: the commit before must not be taken for the newest then. Try again; give all \
             devices of the pool; if the device is dying, copy it to another one and open that"
        );
        return Err(PoolError::new(ErrorKind::Damaged, text));
    }
    let torn = after.iter().find_map(|(path, after)| match after {
        After::Torn(why) => Some(format!("{path}: superblock {why}")),
        _ => None,
    });
    Ok(torn.map(|what| {
        format!(
            "{what}. Power that failed while it was written looks like that, and then nothing is lost; if the device has damaged both copies of it, the last \
             commit before it is gone"
        )
    }))
}

/// True if what the device of `own` has completed may be unknown to the state of `best`.
fn went_apart(own: &Superblock, best: &Superblock) -> bool {
    let online = |sb: &Superblock, row: usize| sb.devices.get(row).is_some_and(|d| d.state == DeviceState::Online);
    let shared = |row: usize| row != usize::from(own.device) && online(own, row) && online(best, row);
    own.device != best.device && !(0..best.devices.len()).any(shared)
}

/// Puts every device of the pool in its place, by the table at the top of this file.
pub(crate) fn judge(
    best: &Superblock,
    geometry: &Geometry,
    found: Vec<Found>,
    warnings: &mut Vec<String>,
) -> Result<Vec<PoolDevice>> {
    let mut rows: BTreeMap<u16, Found> = BTreeMap::new();
    for f in found {
        let path = f.file.path.clone();
        if f.sb.pool_uuid != best.pool_uuid {
            let name = |sb: &Superblock| format!("{:?} ({})", sb.name, uuid::Uuid::from_bytes(sb.pool_uuid));
            let text = format!("{path}: belongs to the pool {}, not to {}", name(&f.sb), name(best));
            return Err(PoolError::new(ErrorKind::Foreign, text));
        }
        let uuid = f.sb.devices[usize::from(f.sb.device)].uuid;
        if best.devices.get(usize::from(f.sb.device)).is_none_or(|d| d.uuid != uuid) {
            let text = format!("{path}: the pool {:?} does not know this device (any more)", best.name);
            return Err(PoolError::new(ErrorKind::Foreign, text));
        }
        if let Some(other) = rows.get(&f.sb.device) {
            let text = format!("{path} and {} are the same device of the pool: one is a copy", other.file.path);
            return Err(PoolError::new(ErrorKind::Foreign, text));
        }
        rows.insert(f.sb.device, f);
    }
    let mut devices = Vec::with_capacity(best.devices.len());
    for (i, record) in best.devices.iter().enumerate() {
        let Some(f) = rows.remove(&(i as u16)) else {
            let mut d = PoolDevice::new(record.clone(), String::new(), None);
            if d.record.state == DeviceState::Online {
                warnings.push(format!("device {i} of the pool {:?} is missing: the pool is degraded", best.name));
                d.record.state = DeviceState::Failed;
                d.record.failed_at = best.sequence + 1;
            }
            devices.push(d);
            continue;
        };
        let path = f.file.path.clone();
        let need = geometry.chunk_offset(record.chunks as u32, 0);
        if f.file.size_bytes < need {
            let text = format!("{path}: has {} bytes, the pool needs {need}; it was truncated", f.file.size_bytes);
            return Err(PoolError::new(ErrorKind::Damaged, text));
        }
        let mut d = PoolDevice::new(record.clone(), path.clone(), Some(f.queue));
        if went_apart(&f.sb, best) {
            let text = format!(
                "{path}: this device and the others of the pool {:?} were each written without the other; \
                 open the pool with one side only, the other must be added anew",
                best.name
            );
            return Err(PoolError::new(ErrorKind::SplitBrain, text));
        }
        if record.state == DeviceState::Failed {
            d.trouble = Some("stale");
            warnings.push(format!("{path}: stale, the pool went on without it; it is not used"));
        } else if f.sb.generation < best.previous {
            d.trouble = Some("stale");
            d.record.state = DeviceState::Failed;
            d.record.failed_at = best.sequence + 1;
            warnings.push(format!("{path}: stale, its superblocks are older than the others allow; it is not used"));
        }
        devices.push(d);
    }
    Ok(devices)
}

/// Pages, volume table, group records.
type Tables = (Vec<TablePage>, Vec<Option<VolumeRecord>>, Vec<GroupRecord>);

struct Loader<'a> {
    rt: &'a Rt,
    geometry: Geometry,
    best: &'a Superblock,
    devices: Vec<PoolDevice>,
    /// Pages of which a slot holds what must not be found again: what a crash left, whole or torn, or an old version on one device.
    forced: BTreeSet<u32>,
    /// A device in use is behind: copies that are lacking are noted.
    behind: bool,
    lacking: Vec<PageCopy>,
}

/// Pages read by one request.
const PAGES_PER_READ: u32 = 128;

impl Loader<'_> {
    /// Of every table page the newest version that is not newer than the superblock, from whichever device has it.
    async fn tables(&mut self) -> Result<Tables> {
        let total = self.geometry.table_pages();
        let mut pages = Vec::with_capacity(total as usize);
        let (mut places, mut records) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < total {
            let n = PAGES_PER_READ.min(total - at);
            let versions = self.read_part(at, n).await;
            for i in 0..n {
                let page = at + i;
                let (entry, payload) = self.choose(page, &versions, i)?;
                let what = |e: FormatError| PoolError::new(ErrorKind::Damaged, format!("table page {page}: {e}"));
                match self.geometry.kind_of_table_page(page) {
                    PageKind::Volumes => places.extend(decode_volumes(payload).map_err(what)?),
                    _ => records.extend(decode_groups(payload).map_err(what)?),
                }
                pages.push(entry);
            }
            at += n;
        }
        records.truncate(self.geometry.group_capacity as usize);
        let digest =
            pages.iter().enumerate().fold(0u64, |d, (i, p)| d.wrapping_add(page_digest(i as u32, p.generation)));
        if digest != self.best.tables_digest {
            let text = "the tables are not those of the newest superblock: a page is older on every device that is there; \
                        a write was lost, or a device is missing that holds it";
            return Err(PoolError::new(ErrorKind::Damaged, text));
        }
        Ok((pages, places, records))
    }

    /// The bytes of `n` pages from `at` on, from every device in use; a device that cannot be read contributes nothing.
    async fn read_part(&mut self, at: u32, n: u32) -> Vec<(usize, Vec<u8>)> {
        let mut versions = Vec::new();
        let offset = self.geometry.page_offset(u64::from(at), 0);
        for (row, d) in self.devices.iter_mut().enumerate() {
            let Some(queue) = d.live().cloned() else { continue };
            let len = n as usize * 2 * BLOCK;
            let (outcome, buf) = queue.read(Class::Commit, offset, self.rt.bufs().take(len)).await;
            let mut bytes = vec![0; len];
            match outcome {
                Ok(()) => bytes.copy_from_slice(&buf),
                Err(_) => {
                    // Perhaps not all of it: slot by slot.
                    d.errors.read += 1;
                    for (i, slot) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                        let offset = offset + (i * BLOCK) as u64;
                        let (outcome, buf) = queue.read(Class::Commit, offset, self.rt.bufs().take(BLOCK)).await;
                        match outcome {
                            Ok(()) => slot.copy_from_slice(&buf),
                            Err(_) => _ = self.forced.insert(at + i as u32 / 2),
                        }
                    }
                }
            }
            versions.push((row, bytes));
        }
        versions
    }

    fn choose<'v>(&mut self, page: u32, versions: &'v [(usize, Vec<u8>)], i: u32) -> Result<(TablePage, &'v [u8])> {
        let kind = self.geometry.kind_of_table_page(page);
        let id = PageId { pool_uuid: self.best.pool_uuid, kind, page: u64::from(page), slot: 0 };
        let mut chosen: Option<(TablePage, &[u8], &[u8])> = None;
        let mut seen = Vec::with_capacity(versions.len());
        for (device, bytes) in versions {
            let mut best_here = None;
            for slot in 0..2u8 {
                let from = (i as usize * 2 + usize::from(slot)) * BLOCK;
                let block = &bytes[from..from + BLOCK];
                let Ok((generation, payload)) = open_page(&id.in_slot(slot), block) else {
                    // Perhaps torn by the crash. The sectors that it lacks may be the same in the next version: were power to fail while that is written,
                    // the torn one could be whole all at once, and no longer above the superblock's generation.
                    if block.iter().any(|&byte| byte != 0) {
                        self.forced.insert(page);
                    }
                    continue;
                };
                if generation.0 > self.best.generation {
                    self.forced.insert(page);
                    continue;
                }
                best_here = best_here.max(Some(generation));
                if chosen.as_ref().is_none_or(|(c, ..)| c.generation < generation) {
                    chosen = Some((TablePage { generation, slot }, payload, block));
                }
            }
            seen.push((*device, best_here));
        }
        let Some((entry, payload, block)) = chosen else {
            let text = format!("table page {page}: no good copy on any device");
            return Err(PoolError::new(ErrorKind::Damaged, text));
        };
        for (device, _) in seen.into_iter().filter(|(_, newest)| *newest != Some(entry.generation)) {
            self.forced.insert(page);
            if self.behind {
                let offset = self.geometry.page_offset(u64::from(page), entry.slot);
                self.lacking.push(PageCopy { device, offset, block: block.to_vec() });
            }
        }
        Ok((entry, payload))
    }
}

fn assemble(
    best: &Superblock,
    geometry: Geometry,
    standing: Standing,
    settings: &Settings,
    mut devices: Vec<PoolDevice>,
    (table_pages, places, records, forced_pages): (
        Vec<TablePage>,
        Vec<Option<VolumeRecord>>,
        Vec<GroupRecord>,
        BTreeSet<u32>,
    ),
) -> Result<State> {
    let damaged = |text: String| PoolError::new(ErrorKind::Damaged, text);
    let mut groups = Vec::with_capacity(records.len());
    let mut free_groups = BTreeSet::new();
    let mut lost = 0;
    for (i, record) in records.into_iter().enumerate() {
        let id = GroupId(i as u32);
        if record.kind == GroupKind::Free {
            free_groups.insert(id);
        } else if record.chunks.len() != usize::from(best.copies) || record.used > geometry.group_blocks {
            return Err(damaged(format!("the record of block group {i} makes no sense")));
        }
        for c in &record.chunks {
            let fits = devices.get_mut(usize::from(c.device)).is_some_and(|d| d.take_chunk(c.chunk));
            if !fits {
                return Err(damaged(format!(
                    "block group {i} claims a chunk that does not exist or is another group's"
                )));
            }
        }
        let live = record.chunks.iter().any(|c| devices[usize::from(c.device)].live().is_some());
        lost += u32::from(!live && record.used > 0);
        groups.push(Group {
            busy_count: record.used,
            checksums: LiveTree::open(checksum_tree_id(id), record.checksums),
            round: None,
            unreadable: false,
            writing: 0,
            record,
            maps: None,
        });
    }
    if lost > 0 {
        let text = format!("{lost} block groups have no copy on the devices that are there; give the missing ones too");
        return Err(PoolError::new(ErrorKind::Missing, text));
    }
    let (mut volumes, mut stagings) = (BTreeMap::new(), BTreeMap::new());
    for (place, record) in places.iter().enumerate() {
        let Some(r) = record else { continue };
        if volumes.insert(r.id, Volume::new(r.clone(), place as u32)).is_some() {
            return Err(damaged(format!("two volumes have the number {}", r.id)));
        }
        if let Some((volume, epoch)) = r.staged.filter(|_| r.state == VolumeState::Live)
            && stagings.insert((volume, epoch), r.id).is_some()
        {
            return Err(damaged(format!("volume {volume} has two staging volumes for epoch {epoch}")));
        }
    }
    let committed = Generation(best.generation);
    // The upper half counts incarnations: generations of a run that ended in a crash are never used again. One that a device that is left out now
    // may hold the beginning of is skipped.
    let dropped = |(d, was): (&PoolDevice, &DeviceRecord)| d.record.state != was.state;
    let step = if devices.iter().zip(&best.devices).any(dropped) { 2 } else { 1 };
    let open = Generation(((best.generation >> 32) + step) << 32);
    let mut state = State {
        geometry,
        uuid: best.pool_uuid,
        name: best.name.clone(),
        copies: best.copies,
        next_volume: best.next_volume,
        sequence: best.sequence,
        tables_digest: best.tables_digest,
        devices,
        store: Store::new(settings.cached_nodes),
        held: crate::promises::Held::by(volumes.values()),
        volumes,
        stagings,
        places,
        groups,
        table_pages,
        forced_pages,
        free_groups,
        space: Space::default(),
        loaded: BTreeSet::new(),
        unload_hand: GroupId(0),
        maybe_empty: BTreeSet::new(),
        open: Txn::new(open),
        round: None,
        reserved: Ledger::default(),
        published: crate::round::Published { epoch: best.published, taken_at: best.published_at },
        cache_uuid: best.cache_uuid,
        cache_mark: best.cache_uuid.map(|uuid| CacheMark {
            uuid,
            entry: best.cache_journal,
            clean_void: best.clean_void,
        }),
        publishing: None,
        committing: None,
        committing_nodes: 0,
        committed,
        known: committed,
        pin: Rc::new(()),
        limbo: VecDeque::new(),
        standing,
    };
    let used: Vec<GroupId> = (0..state.groups.len() as u32)
        .map(GroupId)
        .filter(|&id| state.group(id).record.kind != GroupKind::Free)
        .collect();
    for id in used {
        state.index_group(id);
        if state.group(id).record.used == 0 {
            state.maybe_empty.insert(id);
        }
    }
    Ok(state)
}
