//! The start of a pool that was [found](crate::open) on its devices: its first commit, and the work
//! in the background that goes on from then on.

use std::cell::RefCell;

use base::{HostMemoryId, Result, SharedPlace};
use rt::Rt;

use crate::commit::Committer;
use crate::devices::{DeviceFile, PoolDevice};
use crate::open::recover::{IncompleteBlock, incarnation_of};
use crate::open::{LoadedPool, PageCopy, load};
use crate::pool::Pool;
use crate::settings::Settings;

/// A pool that was found on its devices, and can be opened. Nothing was written to it yet, and it
/// gives no permits to write: so whatever else a start needs can be seen to first. The first commit
/// of a device alone sets it apart from the devices that are not there.
pub struct ReadyPool {
    pool: Pool,
    lacking: Option<Vec<PageCopy>>,
    /// Blocks that were entered from the host log, and of which a copy is not good.
    incomplete: RefCell<Vec<IncompleteBlock>>,
    warnings: Vec<String>,
}

impl ReadyPool {
    /// The pool, to be looked at.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens it for use: the first commit. Warnings (a missing device, a stale one that is left
    /// out) are logged and returned.
    pub async fn open(self) -> Result<(Pool, Vec<String>)> {
        let ReadyPool { pool, lacking, incomplete, warnings } = self;
        for w in &warnings {
            tracing::warn!("{w}");
        }
        let begun = pool.begin(lacking, incomplete.into_inner()).await;
        if begun.is_err() {
            // The pool's tasks end.
            pool.core().set_closed();
        }
        begun.map(|()| (pool, warnings))
    }

    /// Enters what the last incarnation had answered and not made durable, from what the host has
    /// of it in `place`; from now on the pool keeps its own log there. Nothing is written to a
    /// device: [`ReadyPool::open`] makes it durable. To be called before the cache is looked at.
    pub async fn recover(&self, place: SharedPlace) -> Result<()> {
        self.pool.core().set_host_place(place.clone());
        let incomplete = self.pool.flows().recovery.recover_from(&place).await?;
        *self.incomplete.borrow_mut() = incomplete;
        Ok(())
    }

    /// Lets go of the devices, as they were found.
    pub fn close(self) {
        self.pool.core().set_closed();
    }
}

impl Pool {
    /// The first commit is durable: what is answered from now on is recorded in the log of this
    /// incarnation, and those of others are not needed any more.
    fn begin_host_log(&self) {
        let Some(place) = self.core().host_place() else { return };
        let st = self.core().state();
        let committed = st.txns.committed();
        let id =
            HostMemoryId { incarnation: incarnation_of(committed), open: st.histories.drawn() };
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
    /// not have of the newest commit's table pages, if one is behind. `incomplete`: blocks of which
    /// they lack copies.
    async fn begin(
        &self,
        lacking: Option<Vec<PageCopy>>,
        incomplete: Vec<IncompleteBlock>,
    ) -> Result<()> {
        self.core().state_mut().standing.open();
        self.flows().watch.begin_looking();
        self.flows().superblock_sync.sync_superblocks(lacking).await?;
        self.flows().recovery.write_lacking_copies(incomplete).await;
        self.core().state_mut().begin_open();
        self.flows().cache_link.end_stale_stagings();
        // The first commit marks a new incarnation: all that a crash left behind is older than what
        // follows.
        let mut committer = Committer::new(&self.flows().run);
        committer.run().await?;
        self.begin_host_log();
        committer.start();
        self.flows().volumes.reap_all();
        self.flows().snapshots.begin_draining();
        self.flows().scrubber.begin_scrubbing();
        self.flows().mover.begin_moving();
        self.flows().returns.begin_returning();
        self.flows().spares.begin_sparing();
        Ok(())
    }

    /// Finds a pool on those of its devices that are there. Writes nothing.
    pub async fn ready(rt: &Rt, files: Vec<DeviceFile>, settings: Settings) -> Result<ReadyPool> {
        let LoadedPool { state, warnings, lacking } = load(rt, files, &settings).await?;
        Ok(ReadyPool {
            pool: Pool::over(rt, settings, state),
            lacking,
            incomplete: RefCell::default(),
            warnings,
        })
    }

    /// Opens a pool that needs nothing else: [`crate::Pool::ready`], and [`ReadyPool::open`].
    pub async fn open(
        rt: &Rt,
        files: Vec<DeviceFile>,
        settings: Settings,
    ) -> Result<(Pool, Vec<String>)> {
        Pool::ready(rt, files, settings).await?.open().await
    }

    /// Returns what an open of these devices would find, or the error with which it would be
    /// refused. Writes nothing; the devices may be open for reading alone.
    pub async fn preflight(
        rt: &Rt,
        files: Vec<DeviceFile>,
        settings: Settings,
    ) -> Result<Preflight> {
        let LoadedPool { state, warnings, .. } = load(rt, files, &settings).await?;
        let devices = &state.devices;
        let tells = |text: &str, d: &PoolDevice| {
            d.may_return() && text.strip_prefix(d.path()).is_some_and(|t| t.starts_with(": stale"))
        };
        let (returning, warnings) =
            warnings.into_iter().partition(|text| devices.iter().any(|d| tells(text, d)));
        let degraded = devices.stays_degraded();
        let provisioned_bytes = state.forest.provisioned_bytes();
        let capacity_bytes = state.space.groups().capacity_bytes(devices);
        devices.close();
        Ok(Preflight { warnings, returning, degraded, provisioned_bytes, capacity_bytes })
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
