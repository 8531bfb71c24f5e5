//! Opening a pool: its devices are found and [judged](judge), its [tables] read, and what a crash
//! has left behind [catches up](superblock_sync). And [creating](create) one.

mod create;
mod judge;
mod recover;
mod superblock_sync;
mod tables;

use std::cell::RefCell;

use base::{
    ErrorKind, Generation, GroupId, HostMemoryId, OpenId, Result, SharedPlace, StorageError,
    counted,
};
use format::page::{Chunk, GroupKind, GroupRecord};
use format::superblock::{DeviceRecord, Superblock};
use rt::Rt;

use crate::attached::{Attached, CacheMark, Published};
use crate::commit::Committer;
use crate::devices::standing::{Permit, Standing};
use crate::devices::writers::{Mark, Writers};
use crate::devices::{DeviceFile, Devices, PoolDevice, is_up_to_date};
use crate::findings::{Moves, Scrub};
use crate::forest::Forest;
use crate::history::Histories;
use crate::host_log::HostLog;
use crate::pool::Pool;
use crate::settings::Settings;
use crate::space::{Geometry, Space};
use crate::state::{Identity, State};
use crate::txn::{Progress, Tables};

pub use create::{check_create, create};
pub use judge::{Candidate, doubt, judge, newest, newest_superblock, without_blank};
use recover::Incomplete;
pub(crate) use tables::PageCopy;

/// A pool that was found on its devices, and can be opened. Nothing was written to it yet, and it
/// gives no permits to write: so whatever else a start needs can be seen to first. The first commit
/// of a device alone sets it apart from the devices that are not there.
pub struct Ready {
    pool: Pool,
    lacking: Vec<PageCopy>,
    /// Blocks that were entered from the host log, and of which a copy is not good.
    incomplete: RefCell<Vec<Incomplete>>,
    warnings: Vec<String>,
}

impl Ready {
    /// The pool, to be looked at.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens it for use: the first commit. Warnings (a missing device, a stale one that is left
    /// out) are logged and returned.
    pub async fn open(self) -> Result<(Pool, Vec<String>)> {
        let Ready { pool, lacking, incomplete, warnings } = self;
        for w in &warnings {
            tracing::warn!("{w}");
        }
        let begun = pool.begin(lacking, incomplete.into_inner()).await;
        if begun.is_err() {
            // The pool's tasks end.
            pool.set_closed();
        }
        begun.map(|()| (pool, warnings))
    }

    /// Enters what the last incarnation had answered and not made durable, from what the host has
    /// of it in `place`; from now on the pool keeps its own log there. Nothing is written to a
    /// device: [`Ready::open`] makes it durable. To be called before the cache is looked at.
    pub async fn recover(&self, place: SharedPlace) -> Result<()> {
        self.pool.set_host_place(place.clone());
        let incomplete = self.pool.recover_from(&place).await?;
        *self.incomplete.borrow_mut() = incomplete;
        Ok(())
    }

    /// Lets go of the devices, as they were found.
    pub fn close(self) {
        self.pool.set_closed();
    }
}

impl Pool {
    /// The first commit is durable: what is answered from now on is recorded in the log of this
    /// incarnation, and those of others are not needed any more.
    fn begin_host_log(&self) {
        let Some(place) = self.host_place() else { return };
        let st = self.state();
        let committed = st.txns.committed();
        let id = HostMemoryId {
            incarnation: recover::incarnation_of(committed),
            open: st.histories.drawn(),
        };
        if !place.keeps() {
            place.remove_others(st.identity.uuid, None);
            return;
        }
        if let Err(e) = st.host_log.begin(&place, st.identity.uuid, id, committed.0) {
            tracing::error!(
                "what is answered does not outlive this process before it is flushed: the host has \
                 no memory for it in {} ({e})",
                place.name()
            );
        }
        place.remove_others(st.identity.uuid, Some(id));
    }

    /// The first commit, and the work that goes on from then on. `lacking`: what devices in use do
    /// not have of the newest commit's table pages. `incomplete`: blocks of which they lack copies.
    async fn begin(&self, lacking: Vec<PageCopy>, incomplete: Vec<Incomplete>) -> Result<()> {
        self.state_mut().standing.open();
        self.begin_looking();
        self.sync_superblocks(lacking).await?;
        self.write_lacking_copies(incomplete).await;
        self.state_mut().begin_open();
        self.end_stale_stagings();
        // The first commit marks a new incarnation: all that a crash left behind is older than what
        // follows.
        let mut committer = Committer::new(self);
        committer.run().await?;
        self.begin_host_log();
        committer.start();
        self.reap_all();
        self.begin_scrubbing();
        self.begin_moving();
        self.begin_returning();
        self.begin_sparing();
        Ok(())
    }

    /// Finds a pool on those of its devices that are there. Writes nothing.
    pub async fn ready(rt: &Rt, files: Vec<DeviceFile>, settings: Settings) -> Result<Ready> {
        let Loaded { state, warnings, lacking } = load(rt, files, &settings).await?;
        Ok(Ready {
            pool: Pool::over(rt, settings, state),
            lacking,
            incomplete: RefCell::default(),
            warnings,
        })
    }

    /// Opens a pool that needs nothing else: [`Pool::ready`], and [`Ready::open`].
    pub async fn open(
        rt: &Rt,
        files: Vec<DeviceFile>,
        settings: Settings,
    ) -> Result<(Pool, Vec<String>)> {
        Pool::ready(rt, files, settings).await?.open().await
    }

    /// The name of this open of the pool: a random number that no other open has, of this pool or
    /// of a copy of it. All superblocks that this open writes have it, from its first commit on.
    pub fn opened(&self) -> OpenId {
        self.state().histories.drawn()
    }

    /// The open that wrote the newest superblock. Of a pool that is only [ready](Pool::ready): the
    /// last open before this one; 0 if that was of a version before opens had names.
    pub fn last_opened(&self) -> OpenId {
        self.state().histories.opened()
    }

    /// True once it takes writes: [`Ready::open`] was called.
    pub fn is_open(&self) -> bool {
        !matches!(self.state().standing, Standing::Closed)
    }
}

/// The findings of an open that is only tried: see [`Pool::preflight`].
pub struct Preflight {
    /// The warnings that the open would give, without those in `returning`.
    pub warnings: Vec<String>,
    /// The warnings about devices that lack something, and get it by themselves.
    pub returning: Vec<String>,
    /// True if a device would be missing, or would lack something for longer than getting it takes.
    pub degraded: bool,
    /// Bytes of all volumes together, whether they were written or not.
    pub provisioned_bytes: u64,
    /// Bytes that data and metadata may take together, one copy counted.
    pub capacity_bytes: u64,
}

impl Pool {
    /// Returns what an open of these devices would find, or the error with which it would be
    /// refused. Writes nothing; the devices may be open for reading alone.
    pub async fn preflight(
        rt: &Rt,
        files: Vec<DeviceFile>,
        settings: Settings,
    ) -> Result<Preflight> {
        let Loaded { state, warnings, .. } = load(rt, files, &settings).await?;
        let devices = &state.devices;
        let tells = |text: &str, d: &PoolDevice| {
            d.may_return() && text.strip_prefix(d.path()).is_some_and(|t| t.starts_with(": stale"))
        };
        let (returning, warnings) =
            warnings.into_iter().partition(|text| devices.iter().any(|d| tells(text, d)));
        let degraded = devices.stays_degraded();
        let provisioned_bytes = state.forest.provisioned_bytes();
        let capacity_bytes = state.space.capacity_bytes(devices);
        devices.close();
        Ok(Preflight { warnings, returning, degraded, provisioned_bytes, capacity_bytes })
    }
}

/// A pool as its devices say.
pub(crate) struct Loaded {
    pub state: State,
    pub warnings: Vec<String>,
    /// The table pages of the newest commit that devices in use lack, if any of them is behind.
    pub lacking: Vec<PageCopy>,
}

/// Finds out which of `files` make the newest state of their pool, and reads its tables. Writes
/// nothing.
pub(crate) async fn load(rt: &Rt, files: Vec<DeviceFile>, settings: &Settings) -> Result<Loaded> {
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
    let histories = Histories::found(&best, OpenId::drawn(rt.random()));
    let (known, highest) = (Generation(known), Generation(highest));
    let assembled = assemble(&best, histories, known, highest, settings, devices, tables);
    let state = assembled.map_err(helps)?;
    Ok(Loaded { state, warnings, lacking })
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
    let forest = Forest::new(geometry, nodes, tables.volumes, next_volume, &tables.groups)?;
    // The upper half counts incarnations: generations of a run that ended in a crash are never used
    // again. One that a device that is left out now may hold the beginning of is skipped.
    let dropped = |(d, was): (&PoolDevice, &DeviceRecord)| d.record().state != was.state;
    let step = if devices.iter().zip(&best.devices).any(dropped) { 2 } else { 1 };
    let open = Generation(((highest.0 >> 32) + step) << 32);
    let published = Published { epoch: best.published, taken_at: best.published_at };
    let mark = best.cache_uuid.map(|uuid| CacheMark {
        uuid,
        entry: best.cache_journal,
        opened: best.lineage.cache_opened,
        clean_void: best.clean_void,
    });
    let mut space = Space::new(geometry, best.copies, tables.groups);
    for row in 0..devices.count() {
        let Some(d) = devices.row_mut(row) else { continue };
        if space.behind_on(row) > 0 && d.live().is_some() && d.record().lacks_since.is_none() {
            // A commit of an older version that power cut short may have left it so.
            d.set_lacks_since(Some(Generation(0)));
        }
        // Summed before anything is served.
        space.lacked_bytes(row, d.record().lacks_since.unwrap_or_default());
    }
    let writers = Writers::new(Mark::of(best), histories.drawn());
    Ok(State {
        identity: Identity { uuid: best.pool_uuid, name: best.name.clone(), copies: best.copies },
        devices,
        space,
        forest,
        txns: Progress::new(Generation(best.generation), known, open, best.sequence),
        tables: Tables::new(tables.pages, tables.forced, best.tables_digest),
        attached: Attached::new(mark, published),
        scrub: Scrub::new(best.scrub.clone()),
        moves: Moves::new(best.balancing),
        histories,
        standing: Standing::Closed,
        host_log: HostLog::default(),
        writers,
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
            let fits =
                devices.get_mut(usize::from(c.device)).is_some_and(|d| d.take_chunk(c.chunk));
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

#[cfg(test)]
mod tests {
    use base::{BLOCK, Lba};
    use rt::Order;
    use sim::{DiskModel, World};

    use super::*;
    use crate::CreateOptions;

    const DISK: u64 = 16 << 20;

    /// A start that is refused with half of a mirror has not gone on with it alone.
    #[test]
    fn a_pool_that_is_only_ready_takes_no_writes() {
        let world = World::new(1);
        let disk = |path: &str| DeviceFile {
            path: path.into(),
            file: world.add_disk(DiskModel::nvme(DISK)),
            size_bytes: DISK,
        };
        let files = vec![disk("p0"), disk("p1")];
        let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
        let (r, w) = (rt.clone(), world.clone());
        let done = rt.block_on(async move {
            let options = CreateOptions { name: "p".into(), copies: 2, group_bytes: Some(1 << 20) };
            crate::create(&r, &files, &options, &[[1; 16], [2; 16], [3; 16]]).await.unwrap();
            let open = |files: &[DeviceFile]| Pool::open(&r, files.to_vec(), Settings::default());
            let block = |byte: u8| {
                let mut buf = r.bufs().take(BLOCK);
                buf.fill(byte);
                buf.freeze()
            };
            let (pool, _) = open(&files).await.unwrap();
            let v = pool.create_volume("v", 1 << 20, 4096).await.unwrap();
            pool.write(v, Lba(0), &block(1)).await.unwrap();
            pool.close().await.unwrap();

            let one = files[1..].to_vec();
            let before = w.contents(one[0].file, 0, DISK as usize);
            let ready = Pool::ready(&r, one, Settings::default()).await.unwrap();
            assert!(!ready.pool().is_open());
            assert_eq!(ready.pool().read(v, Lba(0), 1).await.unwrap()[0][0], 1);
            assert!(ready.pool().write(v, Lba(0), &block(2)).await.is_err());
            assert!(ready.pool().create_volume("w", 1 << 20, 4096).await.is_err());
            assert!(ready.pool().commit().await.is_err());
            ready.close();
            assert!(w.contents(files[1].file, 0, DISK as usize) == before);

            let (pool, _) = open(&files[..1]).await.unwrap();
            assert!(pool.is_open());
            pool.write(v, Lba(0), &block(3)).await.unwrap();
            pool.close().await.unwrap();
            let (pool, _) = open(&files).await.expect("not split");
            assert_eq!(pool.read(v, Lba(0), 1).await.unwrap()[0][0], 3);
            pool.close().await.unwrap();
        });
        rt.kill();
        done.unwrap();
    }
}
