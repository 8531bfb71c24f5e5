//! Finding a pool: its devices are [judged](judge), its [tables] read, and what a crash has left
//! behind [catches up](superblock_sync) and is [entered](recover). And [creating](create) one.

mod create;
mod judge;
pub(crate) mod recover;
pub(crate) mod superblock_sync;
mod tables;

use base::{ErrorKind, Generation, GroupId, OpenId, Result, StorageError, counted};
use format::page::{Chunk, GroupKind, GroupRecord, VolumeRecord};
use format::superblock::{DeviceRecord, Superblock};
use rt::Rt;

use crate::attached::{Attached, CacheMark, PublishedCut};
use crate::devices::standing::{Permit, Standing};
use crate::devices::superblock_origin::{Mark, Writers};
use crate::devices::{DeviceFile, Devices, PoolDevice, is_up_to_date};
use crate::findings::{MoveState, Scrub};
use crate::forest::Forest;
use crate::history::Histories;
use crate::host_log::HostLog;
use crate::settings::Settings;
use crate::space::{Geometry, Space};
use crate::state::{Identity, State};
use crate::txn::{Progress, SnapshotRequests, Tables};

pub use create::{check_create, create};
pub use judge::{Candidate, doubt, judge, newest, newest_superblock, without_blank};
pub(crate) use tables::PageCopy;

/// A pool as its devices say.
pub(crate) struct LoadedPool {
    pub state: State,
    pub warnings: Vec<String>,
    /// The table pages of the newest commit that devices in use lack; `None`: each of them has the
    /// newest superblock.
    pub lacking: Option<Vec<PageCopy>>,
}

/// Finds out which of `files` make the newest state of their pool, and reads its tables. Writes
/// nothing.
pub(crate) async fn load(
    rt: &Rt,
    files: Vec<DeviceFile>,
    settings: &Settings,
) -> Result<LoadedPool> {
    let mut warnings = Vec::new();
    let permit = Permit::to_flush_before_reading();
    let (found, blank) = judge::read_all(rt, permit, files, settings, &mut warnings).await?;
    let found = judge::without_unsure(found, &mut warnings)?;
    let Some(mut best) = newest(&found) else {
        return Err(StorageError::new(ErrorKind::Missing, "no device of the pool could be read"));
    };
    if settings.take_back && judge::take_back(&mut best, &found) {
        warnings.push(format!(
            "device {} of the pool {:?} was out of use, and is taken back as it was: what was \
             written since, on other devices, is given up",
            best.device, best.name
        ));
    }
    warnings.extend(doubt(&found, &best)?);
    without_blank(&best, &found, &blank, &mut warnings)?;
    let geometry = Geometry::of(&best);
    // A crash may have come between the superblocks of two devices. Should another come before the
    // next commit has written both, neither is stale.
    let in_use = |f: &&Candidate| is_up_to_date(&f.sb, &best);
    let known =
        found.iter().filter(in_use).map(|f| f.sb.generation).min().unwrap_or(best.generation);
    let number = |sb: &Superblock| (sb.generation, sb.sequence);
    let is_behind = found.iter().filter(in_use).any(|f| number(&f.sb) != number(&best));
    // A device that was opened alone, and not written, may have counted further.
    let highest = found.iter().map(|f| f.sb.generation).max().unwrap_or(best.generation);
    let cut_short = judge::all_cut_short(&best, &geometry, &found);
    let helps = |e: StorageError| match (&cut_short, e.kind) {
        (Some(what), ErrorKind::Missing | ErrorKind::Damaged) => {
            StorageError::new(e.kind, format!("{}; {what}", e.context))
        }
        _ => e,
    };
    let mut devices = judge(&best, &geometry, found, &mut warnings)?;
    let read = tables::read(rt, geometry, &best, &mut devices, known < best.generation).await;
    let mut tables = read.map_err(helps)?;
    let lacking = std::mem::take(&mut tables.lacking);
    let lacking = is_behind.then_some(lacking);
    let histories = Histories::found(&best, OpenId::drawn(rt.random()));
    let (known, highest) = (Generation(known), Generation(highest).max(tables.highest));
    let assembled = assemble(&best, histories, known, highest, settings, devices, tables);
    let state = assembled.map_err(helps)?;
    Ok(LoadedPool { state, warnings, lacking })
}

fn assemble(
    best: &Superblock,
    histories: Histories,
    known: Generation,
    highest: Generation,
    settings: &Settings,
    mut devices: Vec<PoolDevice>,
    tables: tables::FoundTables,
) -> Result<State> {
    let geometry = Geometry::of(best);
    take_chunks(&geometry, &tables.groups, &mut devices)?;
    let mut devices = Devices::new(devices);
    devices.set_sit_out(settings.sit_out);
    let (nodes, next_volume) = (settings.cached_nodes, best.next_volume);
    let of_future = |record: &&VolumeRecord| {
        record.snapshot.is_some_and(|origin| {
            origin.generation.0 > best.generation || origin.birth >= best.birth
        })
    };
    if let Some(bad) = tables.volumes.iter().flatten().find(of_future) {
        let text = format!(
            "the snapshot {:?} is of a later commit than the superblock; run forebay check",
            bad.name
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    let forest = Forest::new(geometry, nodes, tables.volumes, next_volume, &tables.groups)?;
    // The upper half counts incarnations: generations of a run that ended in a crash are never used
    // again, also if none of its superblocks was written. One that a device that is left out now
    // may hold the beginning of is skipped.
    let dropped = |(d, was): (&PoolDevice, &DeviceRecord)| d.record().state != was.state;
    let step = if devices.iter().zip(&best.devices).any(dropped) { 2 } else { 1 };
    let Ok(incarnation) = u32::try_from((highest.0 >> 32) + step) else {
        let text = format!(
            "a superblock or a table page says generation {highest}, and no incarnation can \
             follow that; run forebay check"
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    };
    let open = Generation(u64::from(incarnation) << 32);
    let published = PublishedCut { epoch: best.published, taken_at: best.published_at };
    let mark = best.cache_uuid.map(|uuid| CacheMark {
        uuid,
        entry: best.cache_journal,
        opened: best.lineage.cache_opened,
        clean_void: best.clean_void,
    });
    let mut space = Space::new(geometry, best.copies, tables.groups);
    for row in 0..devices.count() {
        let Some(d) = devices.row_mut(row) else { continue };
        if space.groups().sets().behind_on(row) > 0
            && d.live().is_some()
            && d.record().lacks_since.is_none()
        {
            // A commit of an older version that power cut short may have left it so.
            d.set_lacks_since(Some(Generation(0)));
        }
        // Summed before anything is served.
        space.groups_mut().lacked_bytes(row, d.record().lacks_since.unwrap_or_default());
    }
    let writers = Writers::new(Mark::of(best), histories.drawn());
    Ok(State {
        identity: Identity { uuid: best.pool_uuid, name: best.name.clone(), copies: best.copies },
        devices,
        space,
        forest,
        txns: Progress::new(Generation(best.generation), known, open, best.sequence, best.birth),
        tables: Tables::new(tables.pages, tables.forced, best.tables_digest),
        attached: Attached::new(mark, published),
        scrub: Scrub::new(best.scrub.clone()),
        moves: MoveState::new(best.balancing),
        histories,
        standing: Standing::Closed,
        host_log: HostLog::default(),
        writers,
        snapshot_requests: SnapshotRequests::default(),
    })
}

/// Takes the chunks that the groups have, and sees that the groups can be read.
fn take_chunks(
    geometry: &Geometry,
    groups: &[GroupRecord],
    devices: &mut [PoolDevice],
) -> Result<()> {
    let damaged = |text: String| StorageError::new(ErrorKind::Damaged, text);
    let mut lost = 0;
    for (id, record) in (0..).map(GroupId).zip(groups) {
        let used = record.kind != GroupKind::Free;
        let most = if used { geometry.group_blocks } else { 0 };
        let mut past = record.bitmap_generations.iter().skip(geometry.pages_per_group() as usize);
        let is_past = past.any(|written| *written != Generation(0));
        if used && (record.chunks.is_empty() || is_past) || record.used > most {
            let text = "makes no sense; run forebay check";
            return Err(damaged(format!("the record of block group {id} {text}")));
        }
        for c in &record.chunks {
            let fits = devices
                .get_mut(usize::from(c.device))
                .is_some_and(|d| d.chunks_mut().take(c.chunk));
            if !fits {
                let text = format!(
                    "block group {id} claims a chunk that does not exist or is another group's"
                );
                return Err(damaged(text));
            }
        }
        let whole = |c: &Chunk| !c.behind && devices[usize::from(c.device)].live().is_some();
        let live = record.chunks.iter().any(whole);
        lost += u32::from(!live && record.used > 0);
    }
    if lost > 0 {
        let text = format!(
            "{} no copy on the devices that are there; give the missing ones too",
            counted(lost.into(), "block group has", "block groups have")
        );
        return Err(StorageError::new(ErrorKind::Missing, text));
    }
    Ok(())
}
