//! The requests of commands, as the server carries them out.

use std::path::Path;

use base::{Duration, ErrorKind, Instant, VolumeId};
use ledger::explain::Question;
use model::cache::GcStatus;
use model::explain::Explanation;
use model::moves::{DeviceMoves, MovesAnswer};
use model::volume::FirstData;
use model::{Failure, FailureKind, Request, Verb, request};
use nbd::ConnectionStatus;
use pool::VolumeInfo;
use volume::GiveUpOutcome;

use super::Shard;
use super::snapshots::full_name;
use crate::control::Outcome;
use crate::serve::explain::explanation;
use crate::serve::limits;
use crate::serve::overcommit;
use crate::serve::pool_devices::NewDeviceRole;
use crate::units::human_bytes;

/// A client that has left is known to have within this time.
const JUST_LEFT: Duration = Duration::from_secs(1);

/// Gives the answer to a request the type that all answers have.
async fn carry<R: Verb>(
    request: R,
    work: impl AsyncFnOnce(R) -> Result<R::Answer, Failure>,
) -> Outcome {
    Ok(work(request).await?.into())
}

fn no_cache() -> Failure {
    Failure::new(FailureKind::NotFound, "the pool has no cache")
}

impl Shard {
    /// Carries out a request of a command.
    pub(super) async fn answer(&self, request: Request) -> Outcome {
        let pool = self.volumes.pool();
        match request {
            Request::Status(r) => carry(r, async |_| Ok(self.status())).await,
            Request::Clients(r) => carry(r, async |_| Ok(self.clients())).await,
            Request::VolumeList(r) => {
                carry(r, async |_| Ok(self.volumes.list().into_iter().map(Into::into).collect()))
                    .await
            }
            Request::VolumeData(r) => carry(r, async |r| self.first_data(&r.name).await).await,
            Request::VolumeCreate(r) => carry(r, async |r| self.create_volume(r).await).await,
            Request::VolumeResize(r) => carry(r, async |r| self.resize_volume(r).await).await,
            Request::VolumeLimit(r) => {
                carry(r, async |r| limits::change(&self.volumes, r).await).await
            }
            Request::VolumeReadOnly(r) => carry(r, async |r| self.set_read_only(r).await).await,
            Request::SnapshotList(r) => {
                carry(r, async |r| self.list_snapshots(r.volume.as_deref())).await
            }
            Request::SnapshotCreate(r) => carry(r, async |r| self.take_snapshots(r).await).await,
            Request::SnapshotRename(r) => carry(r, async |r| self.rename_snapshot(r).await).await,
            Request::SnapshotDelete(r) => carry(r, async |r| self.delete_snapshot(r).await).await,
            Request::VolumeRename(r) => carry(r, async |r| self.rename_volume(r).await).await,
            Request::VolumeDelete(r) => carry(r, async |r| self.delete_volume(r).await).await,
            Request::CacheAttach(r) => carry(r, async |r| self.attach(r).await).await,
            Request::CacheDetach(r) => {
                carry(r, async |_| self.caches.detach(&self.volumes).await).await
            }
            Request::SetCacheMode(r) => carry(r, async |r| self.set_mode(r).await).await,
            Request::CacheFlush(r) => carry(r, async |_| self.flush_cache().await).await,
            Request::CacheCancel(r) => carry(r, async |r| self.give_up(r.volume.as_deref())).await,
            Request::Gc(r) => carry(r, async |_| self.collect().await).await,
            Request::GetScrub(r) => carry(r, async |_| Ok(self.scrub_status().await)).await,
            Request::ScrubStart(r) => {
                carry(r, async |r| self.start_scrub(r.device, r.rate).await).await
            }
            Request::ScrubPause(r) => carry(r, async |_| self.pause_scrub().await).await,
            Request::ScrubResume(r) => carry(r, async |r| self.resume_scrub(r.rate).await).await,
            Request::ScrubCancel(r) => carry(r, async |_| self.cancel_scrub().await).await,
            Request::DeviceAdd(r) => carry(r, async |r| self.add_device(r).await).await,
            Request::DeviceResize(r) => {
                carry(r, async |r| self.devices.resize(pool, &r.device, r.size_bytes).await).await
            }
            Request::DeviceRemove(r) => {
                carry(r, async |r| {
                    let moves = self.devices.remove(pool, &r.device).await?;
                    Ok(DeviceMoves { next_start: self.next_start(), ..moves })
                })
                .await
            }
            Request::DeviceOffline(r) => {
                carry(r, async |r| self.devices.offline(pool, &r.device).await).await
            }
            Request::DeviceOnline(r) => {
                carry(r, async |r| {
                    let moves = self.devices.online(pool, &r.device).await?;
                    Ok(DeviceMoves { next_start: self.next_start(), ..moves })
                })
                .await
            }
            Request::DevicesBalance(r) => {
                carry(r, async |_| {
                    pool.moves().balance_devices().await?;
                    tracing::info!(
                        "chunks are moved until all devices are filled to the same share"
                    );
                    Ok(self.moves())
                })
                .await
            }
            Request::PoolCopies(r) => {
                carry(r, async |r| {
                    pool.moves().set_copies(r.copies).await?;
                    tracing::info!(copies = r.copies, "copies of every block changed");
                    Ok(self.moves())
                })
                .await
            }
            Request::GetMoves(r) => {
                carry(r, async |_| {
                    Ok(MovesAnswer { next_start: self.next_start(), ..self.moves() })
                })
                .await
            }
            Request::MovesCancel(r) => {
                carry(r, async |_| {
                    pool.moves().cancel_moves().await?;
                    tracing::info!("removals and rebalance cancelled");
                    Ok(self.moves())
                })
                .await
            }
            Request::MovesPause(r) => {
                carry(r, async |r| {
                    pool.moves().pause_moves(r.paused);
                    Ok(self.moves())
                })
                .await
            }
            Request::Explain(r) => carry(r, async |r| self.explain(&r)).await,
            Request::GetConfig(r) => carry(r, async |_| Ok(self.config())).await,
            Request::Settings(r) => carry(r, async |r| self.tuning.show(r.key.as_deref())).await,
            Request::Set(r) => {
                carry(r, async |r| self.tuning.set(&self.volumes, &r.key, &r.value, r.save).await)
                    .await
            }
        }
    }

    async fn create_volume(&self, r: request::VolumeCreate) -> Result<(), Failure> {
        let (name, size_bytes) = (r.name, r.size_bytes);
        self.volumes.create(&name, size_bytes, r.sector_bytes).await?;
        tracing::info!(name, size_bytes, "volume created");
        self.tell_overcommit();
        Ok(())
    }

    async fn resize_volume(&self, r: request::VolumeResize) -> Result<(), Failure> {
        let (name, size_bytes) = (r.name, r.size_bytes);
        if r.shrink {
            let cuts = |v: &VolumeInfo| v.size_bytes > size_bytes;
            self.check_unused(&name, r.force, cuts).await?;
            self.volumes.resize(&name, size_bytes).await?;
        } else {
            self.grow(&name, size_bytes).await?;
        }
        tracing::info!(name, size_bytes, "volume resized");
        if !r.shrink {
            self.tell_overcommit();
        }
        Ok(())
    }

    async fn set_read_only(&self, r: request::VolumeReadOnly) -> Result<(), Failure> {
        self.volumes.set_read_only(&r.name, r.read_only).await?;
        tracing::info!(volume = r.name, read_only = r.read_only, "read-only flag changed");
        Ok(())
    }

    async fn rename_volume(&self, r: request::VolumeRename) -> Result<(), Failure> {
        let knows = "would not find it again by this name; end it first, or say --force";
        self.check_not_open(&r.name, r.force, |_| true, knows).await?;
        let snapshots = self.volumes.snapshots(Some(&r.name))?;
        let old_names = || snapshots.iter().map(full_name);
        for snapshot in old_names().filter(|_| !r.force) {
            self.check_left(&snapshot, &format!("the snapshot {snapshot}"), knows).await?;
        }
        self.volumes.rename(&r.name, &r.to).await?;
        self.nbd.note_renamed(&r.name, &r.to);
        for (one, snapshot) in snapshots.iter().zip(old_names()) {
            self.nbd.note_renamed(&snapshot, &format!("{}@{}", r.to, one.name));
        }
        tracing::info!(name = r.name, to = r.to, "volume renamed");
        Ok(())
    }

    async fn delete_volume(&self, r: request::VolumeDelete) -> Result<(), Failure> {
        self.check_without_snapshots(&r.name)?;
        self.check_unused(&r.name, r.force, |_| true).await?;
        self.volumes.delete(&r.name).await?;
        tracing::info!(name = r.name, "volume deleted");
        Ok(())
    }

    async fn attach(&self, r: request::CacheAttach) -> Result<(), Failure> {
        if r.path.as_os_str().is_empty() {
            return Err(Failure::invalid("the path of the cache is empty"));
        }
        self.caches.attach(&self.volumes, &r.path, r.size_bytes, r.force).await?;
        self.note_device(&r.path);
        Ok(())
    }

    async fn set_mode(&self, r: request::SetCacheMode) -> Result<(), Failure> {
        self.volumes.set_mode(&r.volume, r.mode).await?;
        tracing::info!(volume = r.volume, mode = %r.mode, "cache mode changed");
        Ok(())
    }

    async fn flush_cache(&self) -> Result<(), Failure> {
        let cache = self.volumes.cache().ok_or_else(no_cache)?;
        // Of a cache that is aside the pool has everything.
        if !cache.is_aside() {
            cache.write_all_back().await?;
        }
        Ok(())
    }

    async fn collect(&self) -> Result<GcStatus, Failure> {
        let cache = self.volumes.cache().ok_or_else(no_cache)?;
        cache.collect().await?;
        Ok(cache.status().gc)
    }

    async fn add_device(&self, r: request::DeviceAdd) -> Result<DeviceMoves, Failure> {
        let role = match (r.replaces.as_deref(), r.spare) {
            (Some(_), true) => {
                let text = "a device replaces another one or is a spare, not both";
                return Err(Failure::invalid(text));
            }
            (Some(old), false) => NewDeviceRole::Replaces(old),
            (None, true) => NewDeviceRole::Spare,
            (None, false) => NewDeviceRole::Serves,
        };
        let added = self.devices.add(self.volumes.pool(), &r.device, role, r.force).await;
        self.note_device(Path::new(&r.device));
        Ok(DeviceMoves { next_start: self.next_start(), ..added? })
    }

    /// Returns what is moved, without what the next start has to be told.
    fn moves(&self) -> MovesAnswer {
        MovesAnswer { moves: self.volumes.pool().moves().moves_status(), next_start: None }
    }

    /// The server uses one more device: what is recorded of answered writes is for this one too.
    fn note_device(&self, path: &Path) {
        if let Some(place) = &self.host_log {
            place.add_device(path);
        }
    }

    /// Gives up a detach, or the change of a volume's mode.
    fn give_up(&self, volume: Option<&str>) -> Result<(), Failure> {
        let what = volume.map_or("the detach".to_owned(), |v| format!("the change of {v}'s mode"));
        let text = match self.volumes.give_up(volume)? {
            GiveUpOutcome::Yes => {
                tracing::info!("cancelled: {what}");
                return Ok(());
            }
            GiveUpOutcome::NoneRuns => format!("{what} has not begun, or has ended"),
            GiveUpOutcome::TooLate => format!(
                "{what} cannot be cancelled any more: everything is written back, and it ends in a \
                 moment"
            ),
        };
        Err(Failure::new(FailureKind::Refused, text))
    }

    /// The log has that the pool may become full before the volumes are.
    fn tell_overcommit(&self) {
        let pool = self.volumes.pool().status().pool;
        if let Some(text) = overcommit::told(pool.provisioned_bytes, pool.capacity_bytes) {
            tracing::warn!("{text}");
        }
    }

    /// Makes a volume larger. Says what would be lost if it is larger now.
    async fn grow(&self, name: &str, size: u64) -> Result<(), Failure> {
        let grown = self.volumes.grow(name, size).await;
        if grown.as_ref().is_err_and(|e| e.kind == ErrorKind::Loses) {
            let volume = self.volumes.list().into_iter().find(|v| v.name == name);
            let now = volume.map_or(size, |v| v.size_bytes.max(size));
            let text = format!(
                "nothing was changed: {name:?} has {} now, and the last {} of it, with all data \
                 there, would be lost for good; to cut that off, say shrink",
                human_bytes(now),
                human_bytes(now - size),
            );
            return Err(Failure::new(FailureKind::Refused, text));
        }
        Ok(grown?)
    }

    /// Refuses what would take data away from clients that are at work with it.
    async fn check_unused(
        &self,
        name: &str,
        force: bool,
        takes: impl Fn(&VolumeInfo) -> bool,
    ) -> Result<(), Failure> {
        let loses = "would lose what is in it; unmount it there first, or say --force";
        self.check_not_open(name, force, takes, loses).await
    }

    /// The same; `what` clients that have it open would notice, and what to do.
    async fn check_not_open(
        &self,
        name: &str,
        force: bool,
        takes: impl Fn(&VolumeInfo) -> bool,
        what: &str,
    ) -> Result<(), Failure> {
        // A volume that is read-only is refused for that.
        let volume = self.volumes.list().into_iter().find(|v| v.name == name);
        if force || !volume.is_some_and(|v| !v.read_only && takes(&v)) {
            return Ok(());
        }
        self.check_left(name, &format!("the volume {name:?}"), what).await
    }

    /// Refuses what clients that have the export `name` open would notice. `shown`: the export, for
    /// people; `what`: what clients would notice, and what to do.
    pub(super) async fn check_left(
        &self,
        name: &str,
        shown: &str,
        what: &str,
    ) -> Result<(), Failure> {
        let is_it = |c: &ConnectionStatus| c.export.as_deref() == Some(name);
        let open = || self.nbd.connections().iter().filter(|c| is_it(c)).count();
        // The server may yet have to hear of a client that has just left.
        let until = self.rt.now().after(JUST_LEFT);
        while open() > 0 && self.rt.now() < until {
            self.rt.sleep(JUST_LEFT / 20).await;
        }
        let open = open();
        if open == 0 {
            return Ok(());
        }
        let connections = if open == 1 { "connection has" } else { "connections have" };
        let text = format!("{open} {connections} {shown} open, and {what} (force in the API)");
        Err(Failure::new(FailureKind::Refused, text))
    }

    /// Returns the place of the first data of a volume or a snapshot: its first block that is
    /// allocated, in the pool or in the cache.
    async fn first_data(&self, name: &str) -> Result<FirstData, Failure> {
        let Some(volume) = self.volumes.open(name) else {
            let text = format!("there is no volume {name:?}");
            return Err(Failure::new(FailureKind::NotFound, text));
        };
        let size = volume.size();
        let mut at = 0;
        while at < size {
            // No more than is asked for is looked at, so it may take several steps.
            let parts = volume.extents(at, size - at, 1).await?;
            for part in &parts {
                if part.allocated {
                    return Ok(FirstData { offset: Some(at) });
                }
                at += part.len;
            }
            if parts.is_empty() {
                break;
            }
        }
        Ok(FirstData { offset: None })
    }

    fn explain(&self, r: &request::Explain) -> Result<Explanation, Failure> {
        let pool = self.volumes.pool();
        let ledger = self.rt.ledger();
        let known = |name: &str| match self.volumes.open(name) {
            Some(open) => Some(VolumeId(open.number())),
            // One that is deleted has no name any more.
            None => name.parse().ok().map(VolumeId).filter(|id| ledger.knows(*id)),
        };
        let volume = match r.volume.as_deref().map(|name| (name, known(name))) {
            Some((name, None)) => {
                let text = format!(
                    "there is no volume {name:?}; one that was deleted goes by the number that \
                     explain says of its requests"
                );
                return Err(Failure::new(FailureKind::NotFound, text));
            }
            found => found.and_then(|(_, id)| id),
        };
        let now = self.rt.now();
        let since = Instant(now.0.saturating_sub(r.since_seconds.saturating_mul(1_000_000_000)));
        let slower_than_ns = r.slower_than_us.saturating_mul(1_000);
        let question = Question { volume, kind: r.class, since, slower_than_ns };
        let name = |id| pool.volume(id).map(|v| v.name);
        Ok(explanation(ledger, self.rt.moment(), &question, name))
    }
}
