//! A running server: the shard with its pool, volumes and NBD server on this thread, and its clean
//! end.
//!
//! Fault model: ends cleanly on [`Message::Stop`]: no new requests, those in flight are finished
//! for a while, everything is committed. A process that is killed instead loses nothing that was
//! flushed. While it starts it ends at once, as if it were killed: no client has written anything
//! yet, and a device may never answer.

mod status;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Instant;
use cache::Cache;
use export::VolumeExports;
use ledger::explain::Question;
use nbd::Server;
use pool::{CreateOptions, DeviceFile, Pool};
use posix::sys;
use rt::Rt;
use rt::sync::Event;
use serde_json::{Value, json};
use volume::Volumes;

use crate::banner;
use crate::cache_life::Caches;
use crate::config::ServeConfig;
use crate::control::server::{ControlServer, Message, Reply};
use crate::control::{Answer, Request, RequestError};
use crate::device_life::{PoolDevices, Role};
use crate::error::{CommandError, Result};
use crate::explain;
use crate::home::{Home, Staged};
use crate::http::{HttpSockets, Running};
use crate::limits;
use crate::mailbox::{Mailbox, mailbox};
use crate::notify::{self, ServiceManager};
use crate::signals::{self, Ending, Waits};
use crate::sockets::inherited::Inherited;
use crate::sockets::{UnixSocket, open_tcp};
use crate::tuning::Tuning;
use crate::world::World;

/// How long requests in flight may take when the server ends.
const GRACE: Duration = Duration::from_secs(10);
/// How long commands that wait for an answer are given to receive it, then.
const REPLY_GRACE: Duration = Duration::from_secs(1);
/// Descriptors that are not clients': devices, sockets, control connections.
const OWN_FILES: u64 = 64;

/// The pool that is served.
pub enum Source {
    /// One that exists, on these devices.
    Devices(Vec<DeviceFile>),
    /// One that is yet to be made.
    New(NewPool),
}

/// A pool that is to be made before it is served.
pub struct NewPool {
    /// Where.
    pub home: Home,
    /// Its devices.
    pub staged: Staged,
    /// How.
    pub options: CreateOptions,
    /// Name and size of its first volume.
    pub volume: (String, u64),
}

/// Serves until it is told to stop.
pub fn serve(world: World, config: ServeConfig, source: Source) -> Result<()> {
    let failed = |e: std::io::Error| CommandError::failed("starting", e);
    let (sender, mut mailbox) = mailbox(&world.rt, &world.handles).map_err(failed)?;
    let mut inherited = Inherited::of_environment()?;
    let mut places = banner::Places::of(&config);
    let chosen = (config.settings, config.places);
    let tuning = Tuning::new(&world.rt, &world.handles, chosen, config.file);
    let tuning = Rc::new(tuning);
    let caches = Caches::new(&world.rt, &world.handles, config.cache, tuning.clone());
    if let Source::Devices(files) = &source {
        // This thread may wait for a device: for as long as it does, a signal ends the process as
        // it ends any other.
        caches.preflight(files)?;
    }
    let ending = Ending::default();
    signals::watch(sender.clone(), ending.clone())?;
    let manager = Rc::new(ServiceManager::of_environment().map_err(failed)?);
    raise_open_files(tuning.limits().max_connections);

    let mut listeners = Vec::new();
    for &address in &config.nbd_listen {
        if !address.ip().is_loopback() {
            tracing::warn!(
                "whoever reaches {address} can read and write all volumes: NBD has no passwords"
            );
        }
        listeners.push(
            world.handles.adopt_listener(open_tcp(address, &mut inherited)?).map_err(failed)?,
        );
    }
    let http = HttpSockets::open(&config.http, &mut inherited)?;
    places.http = http.places.clone();
    let (nbd_name, nbd_socket) = UnixSocket::open(&config.nbd_socket, &mut inherited)?;
    let outcome = UnixSocket::open(&config.control_socket, &mut inherited).and_then(
        |(control_name, control_socket)| {
            let outcome = (|| {
                inherited.finish()?;
                listeners.push(world.handles.adopt_listener(nbd_socket.into()).map_err(failed)?);
                let (rt, backend) = (world.rt.clone(), world.backend);
                let (emulations, known) = (world.emulations(), &config.devices);
                let devices = PoolDevices::new(&rt, &world.handles, emulations, known);
                let devices = Rc::new(devices);
                let engine =
                    Starting { rt, backend, listeners, devices, tuning, caches, ending, manager };
                let control = ControlServer::start(control_socket, sender.clone());
                let control = control.map_err(failed)?;
                let http = http.start(sender)?;
                let served = world.rt.block_on(async move {
                    let unix_time_at_zero = unix_time_at_zero(&engine.rt);
                    let settings = engine.tuning.pool();
                    let settings = pool::Settings { unix_time_at_zero, ..settings };
                    let stops = |m: &Message| matches!(m, Message::Stop);
                    let Some(opened) = mailbox.unless(stops, engine.open(source, settings)).await
                    else {
                        // No task waits for what is under way on devices.
                        std::mem::forget(engine.rt.clone());
                        tracing::info!("stopped before anything was served");
                        return Ok(());
                    };
                    let (pool, cache, heard) = opened?;
                    engine
                        .run(pool, cache, mailbox, |status| {
                            banner::print_banner(&places, status, &heard)
                        })
                        .await
                });
                control.drain(REPLY_GRACE);
                http.into_iter().for_each(Running::stop);
                // Nothing kills this runtime, so it has a result.
                served.unwrap_or(Ok(()))
            })();
            control_name.remove();
            outcome
        },
    );
    nbd_name.remove();
    outcome
}

/// What is there before the pool is.
struct Starting {
    rt: Rt,
    backend: &'static str,
    listeners: Vec<rt::SocketId>,
    devices: Rc<PoolDevices>,
    tuning: Rc<Tuning>,
    caches: Caches,
    ending: Ending,
    manager: Rc<ServiceManager>,
}

/// Takes back what was made of a new pool, unless it is whole.
struct Unmade<'a>(Option<&'a Home>);

impl Drop for Unmade<'_> {
    fn drop(&mut self) {
        if let Some(home) = self.0 {
            home.unstage();
        }
    }
}

impl Starting {
    /// The pool, its cache, and what the user should hear. May be dropped at any time: then nothing
    /// is closed, as after a loss of power.
    async fn open(
        &self,
        source: Source,
        settings: pool::Settings,
    ) -> Result<(Pool, Option<Cache>, Vec<String>)> {
        let (pool, mut heard) = self.open_pool(source, settings).await?;
        heard.iter_mut().for_each(|w| w.insert_str(0, "WARNING: "));
        match self.caches.open(&pool, &mut heard).await {
            Ok(cache) => Ok((pool, cache, heard)),
            Err(e) => {
                pool.close().await?;
                Err(e)
            }
        }
    }

    async fn open_pool(
        &self,
        source: Source,
        settings: pool::Settings,
    ) -> Result<(Pool, Vec<String>)> {
        match source {
            Source::Devices(files) => Ok(Pool::open(&self.rt, files, settings).await?),
            Source::New(new) => {
                let mut unmade = Unmade(Some(&new.home));
                let pool = make_pool(&self.rt, &new, settings).await?;
                unmade.0 = None;
                new.staged.publish()?;
                Ok((pool, Vec::new()))
            }
        }
    }

    async fn run(
        self,
        pool: Pool,
        cache: Option<Cache>,
        mut mailbox: Mailbox<Message>,
        ready: impl FnOnce(&Value) -> Result<()>,
    ) -> Result<()> {
        let volumes = Volumes::with_cache(&pool, cache);
        let exports = VolumeExports(volumes.clone());
        let nbd = Server::new(self.rt.clone(), exports, self.tuning.limits());
        self.listeners.iter().for_each(|&l| nbd.serve(l));
        let shard = Rc::new(Shard {
            started: self.rt.now(),
            rt: self.rt,
            backend: self.backend,
            volumes,
            devices: self.devices,
            tuning: self.tuning,
            caches: self.caches,
            nbd,
            ending: self.ending,
            busy: Cell::new(0),
            answered: Event::new(),
        });
        let (devices, served) = (shard.devices.clone(), shard.volumes.pool().clone());
        shard.rt.detach(async move { devices.close_removed(served).await });
        tracing::info!(io = shard.backend, "serving");
        shard.ending.waits_for(Waits::Clients);
        ready(&shard.status())?;
        let manager = self.manager;
        manager.ready();
        tell_state(&shard, &manager);
        while let Some(Message::Request(request, reply)) = mailbox.next().await {
            shard.start(request, reply);
        }
        // A client that asks from now on is told that the server is stopping.
        drop(mailbox);
        manager.stopping();
        shard.stop().await
    }
}

/// Tells the service manager at once, and then again and again, what the server does. If the engine
/// stands still it hears nothing, and its watchdog bites.
fn tell_state(shard: &Rc<Shard>, manager: &Rc<ServiceManager>) {
    let Some(every) = manager.every() else { return };
    let (rt, shard, manager) = (shard.rt.clone(), Rc::downgrade(shard), manager.clone());
    rt.clone().detach(async move {
        while let Some(shard) = shard.upgrade() {
            manager.alive(notify::line(&shard.status()));
            drop(shard);
            rt.sleep(every).await;
        }
    });
}

/// Unix time at the runtime's time zero, in seconds.
pub fn unix_time_at_zero(rt: &Rt) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "told to people, decides nothing")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(rt.now().since(base::Instant(0))).as_secs()
}

async fn make_pool(rt: &Rt, new: &NewPool, settings: pool::Settings) -> Result<Pool> {
    let files = &new.staged.files;
    let ids: Vec<[u8; 16]> = (0..=files.len()).map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
    pool::create(rt, files, &new.options, &ids).await?;
    let (pool, _) = Pool::open(rt, files.clone(), settings).await?;
    let (name, size_bytes) = &new.volume;
    pool.create_volume(name, *size_bytes, 512).await?;
    Ok(pool)
}

struct Shard {
    rt: Rt,
    started: Instant,
    backend: &'static str,
    volumes: Volumes,
    devices: Rc<PoolDevices>,
    tuning: Rc<Tuning>,
    caches: Caches,
    nbd: Server<VolumeExports>,
    ending: Ending,
    /// Control requests being carried out.
    busy: Cell<usize>,
    answered: Event,
}

impl Shard {
    /// Carries out a request in a task of its own.
    fn start(self: &Rc<Self>, request: Request, reply: Reply) {
        self.busy.set(self.busy.get() + 1);
        let shard = self.clone();
        drop(self.rt.spawn(async move {
            let answer = shard.answer(request).await;
            reply(answer);
            shard.busy.set(shard.busy.get() - 1);
            shard.answered.notify();
        }));
    }

    async fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Status {} => return Ok(self.status()),
            Request::VolumeList {} => {
                return serde_json::to_value(self.volumes.list())
                    .map_err(|e| RequestError::new("failed", e.to_string()));
            }
            Request::VolumeCreate { name, size_bytes, sector_bytes } => {
                self.volumes.create(&name, size_bytes, sector_bytes).await?;
                tracing::info!(name, size_bytes, "volume created");
            }
            Request::VolumeResize { name, size_bytes } => {
                self.volumes.resize(&name, size_bytes).await?;
                tracing::info!(name, size_bytes, "volume resized");
            }
            Request::VolumeLimit { name, iops, bytes_per_second, burst_ms } => {
                let change = limits::Change { iops, bytes_per_second, burst_ms };
                return limits::change(&self.volumes, &name, &change).await;
            }
            Request::VolumeDelete { name } => {
                self.volumes.delete(&name).await?;
                tracing::info!(name, "volume deleted");
            }
            Request::CacheAttach { path, size_bytes } => {
                self.caches.attach(&self.volumes, &path, size_bytes).await?;
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
            Request::ScrubStart { device, rate } => {
                let options = pool::ScrubOptions { device, rate };
                self.volumes.pool().start_scrub(options).await?;
                tracing::info!("scrub started");
                return self.scrub_status().await;
            }
            Request::ScrubPause {} => {
                self.volumes.pool().pause_scrub().await?;
                return self.scrub_status().await;
            }
            Request::ScrubResume { rate } => {
                self.volumes.pool().resume_scrub(rate).await?;
                return self.scrub_status().await;
            }
            Request::ScrubCancel {} => {
                self.volumes.pool().cancel_scrub().await?;
                tracing::info!("scrub cancelled");
                return self.scrub_status().await;
            }
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
                return self.devices.add(self.volumes.pool(), &device, role, force).await;
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
                self.volumes.pool().remove_device(&device).await?;
                tracing::info!(device, "device leaves the pool");
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::DeviceOffline { device } => {
                return self.devices.offline(self.volumes.pool(), &device).await;
            }
            Request::DeviceOnline { device } => {
                return self.devices.online(self.volumes.pool(), &device).await;
            }
            Request::PoolCopies { copies } => {
                self.volumes.pool().set_copies(copies).await?;
                tracing::info!(copies, "copies of every block changed");
                return Ok(self.devices.moves(self.volumes.pool()));
            }
            Request::MovesStatus {} => return Ok(self.devices.moves(self.volumes.pool())),
            Request::MovesCancel {} => {
                self.volumes.pool().cancel_moves().await?;
                tracing::info!("no device leaves the pool, and nothing is balanced");
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
            Request::CacheFlush {} => match self.volumes.cache() {
                Some(cache) => cache.publish_all().await?,
                None => return Err(RequestError::new("not-found", "the pool has no cache")),
            },
        }
        Ok(Value::Null)
    }

    async fn scrub_status(&self) -> Answer {
        Ok(json!(self.volumes.pool().scrub_status().await))
    }

    fn explain(
        &self,
        volume: Option<&str>,
        class: Option<&str>,
        since_seconds: u64,
        slower_than_us: u64,
    ) -> Answer {
        let pool = self.volumes.pool();
        let volume = match volume.map(|name| (name, pool.find_volume(name))) {
            Some((name, None)) => {
                let text = format!("there is no volume {name:?}");
                return Err(RequestError::new("not-found", text));
            }
            found => found.and_then(|(_, info)| info).map(|info| info.id),
        };
        let kind = class.map(explain::kind_of).transpose().map_err(RequestError::invalid)?;
        let now = self.rt.now();
        let since = Instant(now.0.saturating_sub(since_seconds.saturating_mul(1_000_000_000)));
        let slower_than_ns = slower_than_us.saturating_mul(1_000);
        let question = Question { volume, kind, since, slower_than_ns };
        let name = |id| pool.volume(id).map(|v| v.name);
        Ok(explain::answer((self.rt.ledger(), now), &question, name))
    }

    async fn stop(self: Rc<Self>) -> Result<()> {
        // Requests that wait for a limit are carried out now.
        self.volumes.admit_all();
        if !self.nbd.shutdown(GRACE).await {
            tracing::warn!("some requests did not end in time");
        }
        self.ending.waits_for(Waits::Commands);
        let deadline = self.rt.now().after(GRACE);
        while self.busy.get() > 0 && self.rt.now() < deadline {
            let answered = self.answered.wait();
            let (rt, event) = (self.rt.clone(), self.answered.clone());
            drop(self.rt.spawn(async move {
                rt.sleep_until(deadline).await;
                event.notify();
            }));
            answered.await;
        }
        close(&self.volumes, &self.ending).await?;
        self.ending.waits_for(Waits::Devices);
        tracing::info!("stopped");
        Ok(())
    }
}

/// Makes everything durable, and closes the cache and then the pool.
async fn close(volumes: &Volumes, ending: &Ending) -> Result<()> {
    ending.waits_for(Waits::Cache);
    let mut outcome = Ok(());
    if let Some(cache) = volumes.cache() {
        match cache.close().await {
            // The pool goes on alone, and has what was written since.
            Err(e) if cache.is_aside() => {
                tracing::warn!("closing the cache, which is out of use: {e}")
            }
            // The pool has what was written by volumes that do not write back, and knows what it
            // may not commit.
            closed => {
                outcome = closed.map_err(|e| CommandError::failed("closing the cache failed", e))
            }
        }
    }
    ending.waits_for(Waits::Pool);
    let last = volumes.pool().close().await;
    outcome.and(last.map_err(|e| CommandError::failed("the last commit failed", e)))
}

/// May this process have too few descriptors for all clients, it says so: those that come then are
/// not accepted.
fn raise_open_files(max_connections: usize) {
    let needed = max_connections as u64 + OWN_FILES;
    match sys::raise_open_files() {
        Ok(limit) if limit < needed => tracing::warn!(
            "at most {limit} files can be open, and {max_connections} connections need {needed}: \
             raise the hard limit (ulimit -Hn), or lower max_connections"
        ),
        Ok(_) => {}
        Err(e) => tracing::warn!("how many files can be open is not known: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use cache::CacheFile;
    use rt::Order;
    use sim::{DiskModel, Fault};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A pool with a cache whose device dies, with something dirty in it or not, and then writes
    /// that are not flushed. Returns whether it was closed well, and what is there in the pool
    /// afterwards.
    fn close_after_the_cache_died(dirty: bool) -> (bool, Option<u8>) {
        let world = sim::World::new(3);
        let disk = |bytes| (world.add_disk(DiskModel::nvme(bytes)), bytes);
        let ((file, size_bytes), (on, cache_bytes)) = (disk(96 * MIB), disk(16 * MIB));
        let disk = DeviceFile { path: "disk".into(), file, size_bytes };
        let on_cache = CacheFile { path: "cache".into(), file: on, size_bytes: cache_bytes };
        let rt = Rt::new(world.backend(), Order::Seeded(3), 1024);
        let r = rt.clone();
        let out = rt.block_on(async move {
            let options = CreateOptions { name: "p".into(), copies: 1, group_bytes: Some(MIB) };
            pool::create(&r, std::slice::from_ref(&disk), &options, &[[1; 16], [2; 16]])
                .await
                .unwrap();
            let settings =
                pool::Settings { commit_interval: Duration::from_secs(3600), ..Default::default() };
            let (pool, _) = Pool::open(&r, vec![disk.clone()], settings.clone()).await.unwrap();
            let options = cache::CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
            cache::create(&r, &on_cache, &pool, &options, [3; 16]).await.unwrap();
            let cache =
                Cache::open(&r, &on_cache, &pool, cache::Settings::default()).await.unwrap();
            let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
            let v = volumes.create("v", 8 * MIB, 4096).await.unwrap();
            let block = |value: u8| {
                let mut buf = r.bufs().take(base::BLOCK);
                buf.fill(value);
                buf.freeze()
            };
            v.write(0, block(1)).await.unwrap();
            v.flush().await.unwrap();
            if !dirty {
                cache.publish_all().await.unwrap();
            }
            world.inject(on, Fault::Dead);
            let _ = v.write(0, block(2)).await;
            let _ = v.flush().await;
            assert_eq!(cache.is_aside(), !dirty);
            if !dirty {
                v.write(0, block(3)).await.unwrap();
            }
            let well = close(&volumes, &Ending::default()).await.is_ok();
            drop((v, volumes, cache));
            let opened = Pool::open(&r, vec![disk], settings).await;
            let Ok((pool, _)) = opened else { return (well, None) };
            let id = pool.find_volume("v").unwrap().id;
            let found = pool.read(id, base::Lba(0), 1).await.unwrap()[0][0];
            pool.close().await.unwrap();
            (well, Some(found))
        });
        rt.kill();
        out.unwrap()
    }

    #[test]
    fn a_pool_without_its_cache_commits_all_at_the_end() {
        assert_eq!(close_after_the_cache_died(false), (true, Some(3)));
    }

    #[test]
    fn a_cache_that_fails_with_something_in_it_is_an_error_at_the_end() {
        assert!(!close_after_the_cache_died(true).0);
    }
}
