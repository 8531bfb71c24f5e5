//! The tables: volume and group pages, group records, bitmaps.

use std::rc::Rc;

use base::{Bitmap, Buf, Generation, GroupId};
use format::page::{
    BITS_PER_PAGE, GROUPS_PER_PAGE, GroupKind, GroupRecord, PageId, PageKind, PageVersion,
    VOLUMES_PER_PAGE, VolumeRecord, decode_bitmap, decode_groups, decode_volumes, open_page,
    page_digest,
};
use pool::offline_repair::{Content, Spot};

use super::plan::PoolRepairPlan;
use super::report::PoolCounts;
use super::source::PoolSource;
use super::space::Space;
use crate::report::{Log, Subject};

/// Pages read by one request.
const PAGES_PER_READ: u32 = 64;
/// Block groups whose bitmaps are read at once.
const GROUPS_AT_ONCE: usize = 16;
const REWRITTEN: &str = "it is rewritten when the pool is opened";

/// The content of the tables.
pub(crate) struct Tables {
    pub volumes: Vec<VolumeRecord>,
    pub groups: Vec<GroupRecord>,
    /// False if a page is lost: what it said is not known.
    pub whole: bool,
}

/// A version of a page on a device.
struct Version {
    device: usize,
    version: PageVersion,
    slot: u8,
    payload: Vec<u8>,
}

/// Reads all table pages on all devices and compares them.
pub(crate) async fn read_tables(
    src: &Rc<PoolSource>,
    log: &mut Log<PoolCounts>,
    plan: &mut PoolRepairPlan,
) -> Tables {
    let g = src.geometry;
    let mut tables = Tables { volumes: Vec::new(), groups: Vec::new(), whole: true };
    let mut digest = 0u64;
    let live = src.live();
    let mut at = 0;
    while at < g.table_pages() {
        let n = PAGES_PER_READ.min(g.table_pages() - at);
        let read = src.read_each(&live, g.page_offset(u64::from(at), 0), n as usize * 2).await;
        for i in 0..n {
            let page = at + i;
            let kind = g.kind_of_table_page(page);
            log.counts.table_pages += 1;
            let slots = |blocks: &[Option<Buf>]| {
                [2 * i, 2 * i + 1].map(|s| blocks[s as usize].as_ref().map(|b| b.to_vec()))
            };
            let copies: Vec<_> = read.iter().map(|(d, blocks)| (*d, slots(blocks))).collect();
            let chosen = choose(src, kind, page, &copies, log, plan);
            let version = chosen.as_ref().map_or(PageVersion::default(), |c| c.version);
            digest = digest.wrapping_add(page_digest(page, version));
            let decoded = chosen.is_some_and(|c| take_in(kind, page, &c.payload, &mut tables, log));
            if !decoded {
                tables.whole = false;
                match kind {
                    PageKind::Volumes => {}
                    _ => tables.groups.extend(vec![GroupRecord::free(); GROUPS_PER_PAGE as usize]),
                }
            }
        }
        at += n;
    }
    if tables.whole && digest != src.best.tables_digest {
        let remedy = "give all devices of the pool; if they are all here, restore from a backup";
        let what = "they are not those of the newest superblock: a page is older than it should \
                    be on every device";
        log.error(Subject::Table, "tables", what, remedy);
    }
    tables.groups.truncate(g.group_capacity as usize);
    tables
}

/// The newest version of a page that is not newer than the superblock; copies that differ from it
/// are reported.
fn choose(
    src: &PoolSource,
    kind: PageKind,
    page: u32,
    copies: &[(usize, [Option<Vec<u8>>; 2])],
    log: &mut Log<PoolCounts>,
    plan: &mut PoolRepairPlan,
) -> Option<Version> {
    let id = PageId { pool_uuid: src.best.pool_uuid, kind, page: u64::from(page), slot: 0 };
    let mut chosen: Option<Version> = None;
    for (device, slots) in copies {
        for (slot, block) in slots.iter().enumerate() {
            let Some(Ok((version, payload))) =
                block.as_ref().map(|b| open_page(&id.in_slot(slot as u8), b))
            else {
                continue;
            };
            if version.generation.0 <= src.best.generation
                && chosen.as_ref().is_none_or(|c| c.version < version)
            {
                let (device, slot) = (*device, slot as u8);
                chosen = Some(Version { device, version, slot, payload: payload.to_vec() });
            }
        }
    }
    let place = format!("table page {page}");
    let Some(c) = chosen else {
        log.error(Subject::Table, place, "no good copy on any device", "restore from a backup");
        return None;
    };
    for (d, slots) in copies {
        let block = slots[usize::from(c.slot)].as_ref();
        let why = match block.map(|b| open_page(&id.in_slot(c.slot), b)) {
            None => "it cannot be read".to_owned(),
            Some(Err(e)) => e.to_string(),
            Some(Ok((found, _))) if found.generation.0 > src.best.generation => format!(
                "generation {found}, newer than the superblock, where {} was expected: the \
                 pool was opened \
                 without the other devices, and that was cut short",
                c.version
            ),
            Some(Ok((found, _))) if found != c.version => {
                format!("generation {found} where {} was expected: a write was lost", c.version)
            }
            Some(Ok((found, payload))) if payload != c.payload => {
                let what = format!("two different versions of generation {found}");
                log.error(Subject::Table, &place, what, "restore from a backup");
                continue;
            }
            Some(Ok(_)) => continue,
        };
        log.copy(Subject::Table, &place, &src.name(*d), why, REWRITTEN);
        let offset = src.geometry.page_offset(u64::from(page), c.slot);
        let [bad, good] = [*d, c.device].map(|device| Spot { device, offset });
        plan.copy(Subject::Table, bad, good, Content::Page(id.in_slot(c.slot), c.version));
    }
    Some(c)
}

/// Decodes a page's records; false if they make no sense.
fn take_in(
    kind: PageKind,
    page: u32,
    payload: &[u8],
    tables: &mut Tables,
    log: &mut Log<PoolCounts>,
) -> bool {
    let outcome = match kind {
        PageKind::Volumes => decode_volumes(payload).map(|v| {
            debug_assert_eq!(v.len(), VOLUMES_PER_PAGE as usize);
            tables.volumes.extend(v.into_iter().flatten());
        }),
        _ => decode_groups(payload).map(|g| tables.groups.extend(g)),
    };
    outcome
        .map_err(|e| {
            log.error(
                Subject::Table,
                format!("table page {page}"),
                e.to_string(),
                "restore from a backup",
            )
        })
        .is_ok()
}

/// Checks group records against each other and the devices; those that make no sense count as free.
/// False if there were any.
pub(crate) fn check_groups(
    src: &PoolSource,
    groups: &mut [GroupRecord],
    log: &mut Log<PoolCounts>,
) -> bool {
    let devices = src.best.devices.len();
    let mut taken: Vec<Bitmap> =
        (0..devices).map(|d| Bitmap::new(src.chunks(d as u16) as usize)).collect();
    let mut sane = true;
    for (i, record) in groups.iter_mut().enumerate() {
        let mut bad = |what: String| {
            log.error(Subject::Group, format!("block group {i}"), what, "restore from a backup");
            sane = false;
        };
        if record.kind == GroupKind::Free {
            if record.used != 0 {
                bad(format!("it is free and has {} blocks in use", record.used));
            }
            continue;
        }
        let before = bad_record(src, record);
        let mut broken = before.is_some();
        if let Some(what) = before {
            bad(what);
        }
        for c in &record.chunks {
            let d = usize::from(c.device);
            let there = d < devices && u64::from(c.chunk) < src.chunks(c.device);
            if !there {
                bad(format!("chunk {} of device {d} does not exist", c.chunk));
                broken = true;
            } else if src.is_spare(c.device) {
                bad(format!("chunk {} is on device {d}, which is a spare", c.chunk));
            } else if taken[d].assign(c.chunk as usize, 1, true) == 0 {
                bad(format!("chunk {} of device {d} belongs to another group too", c.chunk));
            }
        }
        if broken {
            *record = GroupRecord { checksums: record.checksums, ..GroupRecord::free() };
        } else if record.used > 0 && !record.chunks.iter().any(|c| src.is_whole(c)) {
            let what = "no copy of it is on the devices that are there";
            log.error(
                Subject::Group,
                format!("block group {i}"),
                what,
                "give the missing devices too",
            );
            sane = false;
        }
    }
    sane
}

fn bad_record(src: &PoolSource, record: &GroupRecord) -> Option<String> {
    let mut devices: Vec<u16> = record.chunks.iter().map(|c| c.device).collect();
    devices.sort_unstable();
    devices.dedup();
    // The number of copies may differ from the pool's: copies are made, and given up, while the
    // pool serves.
    if record.chunks.is_empty() {
        return Some("it has no copies".to_owned());
    }
    if devices.len() != record.chunks.len() {
        return Some("two of its copies are on the same device".to_owned());
    }
    if record.used > src.geometry.group_blocks {
        return Some(format!("{} of {} blocks in use", record.used, src.geometry.group_blocks));
    }
    let pages = src.geometry.pages_per_group() as usize;
    let past = record.bitmap_generations.iter().skip(pages).position(|g| *g != Generation(0));
    if let Some(i) = past {
        return Some(format!("a bitmap page {}, of {pages}", pages + i));
    }
    let newest = record.bitmap_generations.iter().max().copied().unwrap_or_default();
    (newest.0 > src.best.generation)
        .then(|| format!("a bitmap page of generation {newest}, newer than the superblock"))
}

/// Reads the bitmaps of all groups in use, on all devices, into `space`; false if one is lost.
pub(crate) async fn read_bitmaps(
    src: &Rc<PoolSource>,
    space: &mut Space,
    log: &mut Log<PoolCounts>,
    plan: &mut PoolRepairPlan,
    mut step: impl FnMut(u64, u64),
) -> bool {
    let used: Vec<usize> = (0..space.groups.len())
        .filter(|&i| space.groups[i].record.kind != GroupKind::Free)
        .collect();
    let mut whole = true;
    let live = src.live();
    for (n, part) in used.chunks(GROUPS_AT_ONCE).enumerate() {
        let tasks: Vec<_> = part
            .iter()
            .map(|&i| {
                let (src, live) = (src.clone(), live.clone());
                let pages = src.geometry.pages_per_group();
                let offset =
                    src.geometry.page_offset(src.geometry.bitmap_page(GroupId(i as u32), 0), 0);
                let read = async move { src.read_each(&live, offset, pages as usize * 2).await };
                (i, space.groups[i].record.clone(), read)
            })
            .map(|(i, record, read)| (i, record, src.rt().spawn(read)))
            .collect();
        for (i, record, task) in tasks {
            let copies = task.await.unwrap_or_default();
            log.counts.groups += 1;
            space.groups[i].allocated = bitmap(src, i, &record, &copies, log, plan);
            whole &= space.groups[i].allocated.is_some();
        }
        step((n * GROUPS_AT_ONCE + part.len()) as u64, used.len() as u64);
    }
    whole
}

fn bitmap(
    src: &PoolSource,
    group: usize,
    record: &GroupRecord,
    copies: &[(usize, Vec<Option<Buf>>)],
    log: &mut Log<PoolCounts>,
    plan: &mut PoolRepairPlan,
) -> Option<Bitmap> {
    let g = src.geometry;
    let mut bits = Bitmap::new(g.group_blocks as usize);
    let mut whole = true;
    for i in 0..g.pages_per_group() {
        let want = record.bitmap_generations[i as usize];
        if want == Generation(0) {
            continue;
        }
        log.counts.bitmap_pages += 1;
        let page = g.bitmap_page(GroupId(group as u32), i);
        let id = PageId { pool_uuid: src.best.pool_uuid, kind: PageKind::Bitmap, page, slot: 0 };
        let place = format!("bitmap page {i} of block group {group}");
        let version = |blocks: &[Option<Buf>]| {
            let slots = &blocks[2 * i as usize..2 * i as usize + 2];
            slots.iter().enumerate().find_map(|(slot, block)| {
                let (version, payload) =
                    open_page(&id.in_slot(slot as u8), block.as_ref()?).ok()?;
                let words = decode_bitmap(payload, g.bits_of_page(i) as usize).ok()?;
                (version == want.into()).then_some((slot as u8, words))
            })
        };
        let found: Vec<_> = copies.iter().map(|(d, blocks)| (*d, version(blocks))).collect();
        let first = found.iter().find_map(|(d, f)| f.clone().map(|(slot, w)| (*d, slot, w)));
        let Some((of, slot, words)) = first else {
            log.lost(
                Subject::Bitmap,
                place,
                format!("no device has its generation {want}"),
                "restore from a backup",
            );
            whole = false;
            continue;
        };
        for (d, version) in &found {
            match version {
                None => {
                    let what =
                        format!("its generation {want} is not there: damaged, or a write was lost");
                    log.copy(
                        Subject::Bitmap,
                        &place,
                        &src.name(*d),
                        what,
                        "it is healed when the pool reads it",
                    );
                    let offset = g.page_offset(page, slot);
                    let [bad, good] = [*d, of].map(|device| Spot { device, offset });
                    plan.copy(
                        Subject::Bitmap,
                        bad,
                        good,
                        Content::Page(id.in_slot(slot), want.into()),
                    );
                }
                Some((_, other)) if *other != words => {
                    let what = format!("two different versions of generation {want}");
                    log.error(Subject::Bitmap, &place, what, "restore from a backup");
                }
                Some(_) => {}
            }
        }
        bits.set_words(i as usize * (BITS_PER_PAGE as usize / 64), &words);
    }
    let count = bits.count() as u32;
    if whole && count != record.used {
        let what = format!("its bitmap has {count} blocks in use, its record says {}", record.used);
        log.error(Subject::Group, format!("block group {group}"), what, "restore from a backup");
    }
    whole.then_some(bits)
}
