//! What the server does where a command asks for it.

use std::path::Path;

use base::{Duration, ErrorKind, Instant, VolumeId};
use ledger::explain::Question;
use nbd::ConnectionStatus;
use pool::VolumeInfo;
use serde_json::{Value, json};
use volume::GivenUp;

use super::Shard;
use crate::control::{Answer, Request, RequestError};
use crate::device_life::Role;
use crate::explain;
use crate::limits;
use crate::overcommit;
use crate::units::human_bytes;

/// A client that has left is known to have within this time.
const JUST_LEFT: Duration = Duration::from_secs(1);

impl Shard {
    /// Carries out a request of a command.
    pub(super) async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status {} => return Ok(self.status()),
            Request::Clients {} => return Ok(self.clients()),
            Request::VolumeList {} => {
                return serde_json::to_value(self.volumes.list())
                    .map_err(|e| RequestError::new("failed", e.to_string()));
            }
            Request::VolumeData { name } => return self.first_data(&name).await,
            Request::VolumeCreate { name, size_bytes, sector_bytes } => {
                self.volumes.create(&name, size_bytes, sector_bytes).await?;
                tracing::info!(name, size_bytes, "volume created");
                self.tell_overcommit();
            }
            Request::VolumeResize { name, size_bytes, shrink: false, .. } => {
                self.grow(&name, size_bytes).await?;
                tracing::info!(name, size_bytes, "volume resized");
                self.tell_overcommit();
            }
            Request::VolumeResize { name, size_bytes, shrink: true, force } => {
                let cuts = |v: &VolumeInfo| v.size_bytes > size_bytes;
                self.check_unused(&name, force, cuts).await?;
                self.volumes.resize(&name, size_bytes).await?;
                tracing::info!(name, size_bytes, "volume resized");
            }
            Request::VolumeLimit { name, iops, bytes_per_second, burst_ms } => {
                let change = limits::Change { iops, bytes_per_second, burst_ms };
                return limits::change(&self.volumes, &name, &change).await;
            }
            Request::VolumeReadOnly { name, read_only } => {
                self.volumes.set_read_only(&name, read_only).await?;
                tracing::info!(volume = name, read_only, "read-only flag changed");
            }
            Request::VolumeDelete { name, force } => {
                self.check_unused(&name, force, |_| true).await?;
                self.volumes.delete(&name).await?;
                tracing::info!(name, "volume deleted");
            }
            Request::CacheAttach { path, .. } if path.as_os_str().is_empty() => {
                return Err(RequestError::new("invalid", "the path of the cache is empty"));
            }
            Request::CacheAttach { path, size_bytes, force } => {
                self.caches.attach(&self.volumes, &path, (size_bytes, force)).await?;
                self.note_device(&path);
            }
            Request::CacheDetach {} => self.caches.detach(&self.volumes).await?,
            Request::CacheMode { volume, mode } => {
                self.volumes.set_mode(&volume, mode).await?;
                tracing::info!(volume, mode = mode.name(), "cache mode changed");
            }
            Request::Gc {} => {
                let Some(cache) = self.volumes.cache() else {
                    return Err(RequestError::new("not-found", "the pool has no cache"));
                };
                cache.collect().await?;
                return Ok(json!(cache.status().gc));
            }
            Request::ScrubStatus {} => return self.scrub_status().await,
            Request::ScrubStart { device, rate } => return self.start_scrub(device, rate).await,
            Request::ScrubPause {} => return self.pause_scrub().await,
            Request::ScrubResume { rate } => return self.resume_scrub(rate).await,
            Request::ScrubCancel {} => return self.cancel_scrub().await,
            Request::DeviceAdd { device, replaces, force, spare } => {
                let role = match (replaces.as_deref(), spare) {
                    (Some(_), true) => {
                        let text = "a device replaces another one or is a spare, not both";
                        return Err(RequestError::invalid(text));
                    }
                    (Some(old), false) => Role::Replaces(old),
                    (None, true) => Role::Spare,
                    (None, false) => Role::Serves,
                };
                let added = self.devices.add(self.volumes.pool(), &device, role, force).await;
                self.note_device(Path::new(&device));
                return self.with_next_start(added);
            }
            Request::DeviceResize { device, size_bytes } => {
                return self.devices.resize(self.volumes.pool(), &device, size_bytes).await;
            }
            Request::DevicesBalance {} => {
                self.volumes.pool().balance_devices().await?;
                tracing::info!("chunks are moved until all devices are filled to the same share");
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::DeviceRemove { device } => {
                return self
                    .with_next_start(self.devices.remove(self.volumes.pool(), &device).await);
            }
            Request::DeviceOffline { device } => {
                return self.devices.offline(self.volumes.pool(), &device).await;
            }
            Request::DeviceOnline { device } => {
                return self
                    .with_next_start(self.devices.online(self.volumes.pool(), &device).await);
            }
            Request::PoolCopies { copies } => {
                self.volumes.pool().set_copies(copies).await?;
                tracing::info!(copies, "copies of every block changed");
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::MovesStatus {} => {
                return self.with_next_start(Ok(self.devices.moves(self.volumes.pool())));
            }
            Request::MovesCancel {} => {
                self.volumes.pool().cancel_moves().await?;
                tracing::info!("removals and rebalance cancelled");
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::MovesPause { paused } => {
                self.volumes.pool().pause_moves(paused);
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::Explain { volume, class, since_seconds, slower_than_us } => {
                return self.explain(
                    volume.as_deref(),
                    class.as_deref(),
                    since_seconds,
                    slower_than_us,
                );
            }
            Request::Config {} => return Ok(self.config()),
            Request::Settings { key } => return self.tuning.show(key.as_deref()),
            Request::Set { key, value, save } => {
                return self.tuning.set(&self.volumes, &key, &value, save).await;
            }
            Request::CacheCancel { volume } => self.give_up(volume.as_deref())?,
            Request::CacheFlush {} => match self.volumes.cache() {
                // The pool has everything.
                Some(cache) if cache.is_aside() => {}
                Some(cache) => cache.write_all_back().await?,
                None => return Err(RequestError::new("not-found", "the pool has no cache")),
            },
        }
        Ok(Value::Null)
    }

    /// The server uses one more device: what is recorded of answered writes is for this one too.
    fn note_device(&self, path: &Path) {
        if let Some(place) = &self.host_log {
            place.add_device(path);
        }
    }

    /// Gives up a detach, or the change of a volume's mode.
    fn give_up(&self, volume: Option<&str>) -> Result<(), RequestError> {
        let what = volume.map_or("the detach".to_owned(), |v| format!("the change of {v}'s mode"));
        let text = match self.volumes.give_up(volume)? {
            GivenUp::Yes => {
                tracing::info!("cancelled: {what}");
                return Ok(());
            }
            GivenUp::NoneRuns => format!("{what} has not begun, or has ended"),
            GivenUp::TooLate => format!(
                "{what} cannot be cancelled any more: everything is written back, and it ends in a \
                 moment"
            ),
        };
        Err(RequestError::new("refused", text))
    }

    /// The log has that the pool may become full before the volumes are.
    fn tell_overcommit(&self) {
        let pool = self.volumes.pool().status().pool;
        if let Some(text) = overcommit::told(pool.provisioned_bytes, pool.capacity_bytes) {
            tracing::warn!("{text}");
        }
    }

    /// Makes a volume larger. Says what would be lost if it is larger now.
    async fn grow(&self, name: &str, size: u64) -> Result<(), RequestError> {
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
            return Err(RequestError::new("refused", text));
        }
        Ok(grown?)
    }

    /// Refuses what would take data away from clients that are at work with it.
    async fn check_unused(
        &self,
        name: &str,
        force: bool,
        takes: impl Fn(&VolumeInfo) -> bool,
    ) -> Result<(), RequestError> {
        // A volume that is read-only is refused for that.
        let volume = self.volumes.list().into_iter().find(|v| v.name == name);
        if force || !volume.is_some_and(|v| !v.read_only && takes(&v)) {
            return Ok(());
        }
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
        let text = format!(
            "{open} {connections} the volume {name:?} open, and would lose what is in it; unmount \
             it there first, or say --force (force in the API)"
        );
        Err(RequestError::new("refused", text))
    }

    /// Where the first data of a volume is: its first block that is allocated, in the pool or in
    /// the cache.
    async fn first_data(&self, name: &str) -> Answer {
        let size_of = || Some(self.volumes.list().into_iter().find(|v| v.name == name)?.size_bytes);
        let (Some(volume), Some(size)) = (self.volumes.open(name), size_of()) else {
            let text = format!("there is no volume {name:?}");
            return Err(RequestError::new("not-found", text));
        };
        let mut at = 0;
        while at < size {
            // No more than is asked for is looked at, so it may take several steps.
            let parts = volume.extents(at, size - at, 1).await?;
            for part in &parts {
                if part.allocated {
                    return Ok(json!({ "offset": at }));
                }
                at += part.len;
            }
            if parts.is_empty() {
                break;
            }
        }
        Ok(json!({ "offset": null }))
    }

    /// What was asked of devices, and what the next start has to be told of them.
    fn with_next_start(&self, answer: Answer) -> Answer {
        let mut told = answer?;
        told["next_start"] = json!(self.next_start());
        Ok(told)
    }

    fn explain(
        &self,
        volume: Option<&str>,
        class: Option<&str>,
        since_seconds: u64,
        slower_than_us: u64,
    ) -> Answer {
        let pool = self.volumes.pool();
        let ledger = self.rt.ledger();
        let known = |name: &str| match pool.find_volume(name) {
            Some(info) => Some(info.id),
            // One that is deleted has no name any more.
            None => name.parse().ok().map(VolumeId).filter(|id| ledger.knows(*id)),
        };
        let volume = match volume.map(|name| (name, known(name))) {
            Some((name, None)) => {
                let text = format!(
                    "there is no volume {name:?}; one that was deleted goes by the number that \
                     explain says of its requests"
                );
                return Err(RequestError::new("not-found", text));
            }
            found => found.and_then(|(_, id)| id),
        };
        let kind = class.map(explain::kind_of).transpose().map_err(RequestError::invalid)?;
        let now = self.rt.now();
        let since = Instant(now.0.saturating_sub(since_seconds.saturating_mul(1_000_000_000)));
        let slower_than_ns = slower_than_us.saturating_mul(1_000);
        let question = Question { volume, kind, since, slower_than_ns };
        let name = |id| pool.volume(id).map(|v| v.name);
        Ok(explain::answer((ledger, self.rt.moment()), &question, name))
    }
}
