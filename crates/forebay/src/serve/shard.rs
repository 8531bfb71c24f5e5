//! A running server: the shard with its pool, volumes and NBD server on this thread, and its clean
//! end.
//!
//! Fault model: ends cleanly on [`Message::Stop`]: no new requests, those in flight are finished
//! for a while, everything is committed. A process that is killed instead loses nothing that was
//! flushed. While it starts it ends at once, as if it were killed: no client has written anything
//! yet, and a device may never answer.

mod close;
mod listeners;
mod problems_log;
mod requests;
mod scrubs;
mod snapshots;
mod status;

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use cache::Cache;
use export::{Access, VolumeExports};
use http_api::places::HttpCrowds;
use model::status::IoBackend;
use model::{Request, Status};
use nbd::Server;
use pool::{CreateOptions, DeviceFile, Pool};
use posix::sys;
use rt::Rt;
use rt::sync::Event;
use volume::Volumes;

use crate::config::origin::Origin;
use crate::config::{Complete, ServeConfig};
use crate::control::server::{ControlServer, Message, ReplySender};
use crate::doctor::memory_warning;
use crate::error::{CommandError, Result};
use crate::host::calendar::unix_time_at_zero;
use crate::host::home::{StagedDevices, UnfinishedHome};
use crate::host::host_log::HostDirs;
use crate::host::sockets::UnixSocket;
use crate::host::sockets::inherited::Inherited;
use crate::host::world::World;
use crate::serve::banner;
use crate::serve::cache_life::{Caches, PreparedCache, preflight};
use crate::serve::credentials::Files;
use crate::serve::device_places::DevicePlaces;
use crate::serve::http::{HttpSockets, RunningServer};
use crate::serve::mailbox::{Mailbox, mailbox};
use crate::serve::notify::{self, ServiceManager};
use crate::serve::overcommit;
use crate::serve::pool_devices::PoolDevices;
use crate::serve::signals::{self, Ending, Hangup, ShutdownStage};
use crate::serve::tuning::Tuning;
use close::close;
use listeners::Listeners;
use problems_log::log_problems;

/// The time that requests in flight may take when the server ends.
const GRACE: Duration = Duration::from_secs(10);
/// The time that commands which wait for an answer are given to receive it, then.
const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The number of descriptors that are not clients': devices, sockets, control connections.
const OWN_FILES: u64 = 64;

/// The pool that is served.
pub enum Source {
    /// A pool that exists, on these devices.
    Devices(Vec<DeviceFile>),
    /// A pool that is yet to be made.
    New(NewPool),
}

/// A pool that is to be made before it is served.
pub struct NewPool {
    /// The directory. All that was made in it is taken back unless the pool becomes whole.
    pub unmade: UnfinishedHome,
    /// The devices of the pool.
    pub staged: StagedDevices,
    /// The options of the pool.
    pub options: CreateOptions,
    /// The name of the first volume, and its size in bytes.
    pub volume: (String, u64),
}

/// Serves until it is told to stop. `device_places`: where the next start finds the devices;
/// `origin` is the configuration file, if there is one.
pub fn serve(
    world: World,
    config: ServeConfig,
    source: Source,
    device_places: DevicePlaces,
    origin: Option<Origin>,
) -> Result<()> {
    let failed = |e: std::io::Error| CommandError::failed("starting", e);
    memory_warning(&config).into_iter().for_each(|text| tracing::warn!("{text}"));
    let (sender, mut mailbox) = mailbox(&world.rt, &world.handles).map_err(failed)?;
    let mut inherited = Inherited::of_environment()?;
    let mut places = banner::ServerAddresses::of(&config);
    let nbd_uris = places.nbd_uris();
    let (chosen, placed, said) = (config.settings, config.places, config.said);
    let named = placed.named();
    let tuning = Rc::new(Tuning::new(&world.rt, &world.handles, chosen, placed, origin));
    if let Source::Devices(files) = &source {
        // This thread may wait for a device: for as long as it does, a signal ends the process as
        // it ends any other.
        preflight(&said.cache, files.iter().map(|f| Path::new(&f.path)))?;
    }
    let host_log = said.io.host_log.said().open(&config.home);
    if let (Ok(place), Source::Devices(files)) = (&host_log, &source) {
        let cache = said.cache.path.as_deref().filter(|path| path.exists());
        files.iter().map(|f| Path::new(&f.path)).chain(cache).for_each(|p| place.add_device(p));
    }
    let (emulations, opened) = (world.emulations(), &said.devices);
    let (rt, handles) = (world.rt.clone(), &world.handles);
    let devices = PoolDevices::new(&rt, handles, emulations, opened, device_places, named)?;
    let devices = Rc::new(devices);
    let caches = Caches::new(&rt, handles, said.cache.clone(), tuning.clone(), devices.clone());
    let ending = Ending::default();
    let hangup = Hangup::of(tuning.file().is_some());
    signals::watch(sender.clone(), ending.clone(), hangup)?;
    let manager = Rc::new(ServiceManager::of_environment().map_err(failed)?);
    let last_told = manager.clone();
    raise_open_files(tuning.limits().max_connections);

    let mut listeners = Listeners::open(&world, &said, &mut inherited)?;
    let http = HttpSockets::open(&said.http, &mut inherited)?;
    places.http = http.places.clone();
    let (nbd_name, nbd_socket) =
        UnixSocket::open(said.nbd.socket.said(), &said.nbd.permits(), &mut inherited)?;
    let (control, permits) = (said.control.socket.said(), said.control.permits());
    let outcome = UnixSocket::open(control, &permits, &mut inherited).and_then(
        |(control_name, control_socket)| {
            let outcome = (|| {
                inherited.finish()?;
                listeners.add_local(&world, nbd_socket.into())?;
                let backend = world.backend;
                let access = Access::by(said.access.said());
                let take_back = said.take_back;
                let mut engine = Starting {
                    rt,
                    backend,
                    listeners,
                    access,
                    devices,
                    tuning,
                    caches,
                    host_log,
                    ending,
                    manager,
                    http: None,
                    nbd_uris,
                };
                let control = ControlServer::start(control_socket, sender.clone());
                let control = control.map_err(failed)?;
                let http = http.start(sender)?;
                engine.http = http.as_ref().map(RunningServer::crowds);
                let served = world.rt.block_on(async move {
                    let unix_time_at_zero = unix_time_at_zero(&engine.rt);
                    let settings = engine.tuning.pool();
                    let settings = pool::Settings { unix_time_at_zero, take_back, ..settings };
                    let stops = |m: &Message| matches!(m, Message::Stop);
                    let goes_on = tell_start(&engine.rt, &engine.manager);
                    let opened = mailbox.unless(stops, engine.open(source, settings)).await;
                    drop(goes_on);
                    let Some(opened) = opened else {
                        // No task waits for what is under way on devices.
                        std::mem::forget(engine.rt.clone());
                        tracing::info!("stopped before anything was served");
                        return Ok(());
                    };
                    let (pool, cache, heard) = opened?;
                    engine
                        .run(pool, cache, mailbox, |status| banner::tell(&places, status, &heard))
                        .await
                });
                control.drain(REPLY_GRACE);
                http.into_iter().for_each(RunningServer::stop);
                last_told.finish();
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

/// The parts of a server that are there before the pool is.
struct Starting {
    rt: Rt,
    backend: IoBackend,
    listeners: Listeners,
    access: Access,
    devices: Rc<PoolDevices>,
    tuning: Rc<Tuning>,
    caches: Caches,
    host_log: std::result::Result<Rc<HostDirs>, String>,
    ending: Ending,
    manager: Rc<ServiceManager>,
    /// What the HTTP server counts.
    http: Option<Arc<HttpCrowds>>,
    nbd_uris: Vec<String>,
}

impl Starting {
    /// The pool, its cache, and what the user should hear. May be dropped at any time: then nothing
    /// is closed, as after a loss of power. What a start may be refused for is looked at before the
    /// pool is opened: that is a commit, which would set a device that is alone apart from the rest
    /// of its mirror.
    async fn open(
        &self,
        source: Source,
        settings: pool::Settings,
    ) -> Result<(Pool, Option<Cache>, Vec<String>)> {
        let (ready, new) = match source {
            Source::Devices(files) => {
                let ready = Pool::ready(&self.rt, files.clone(), settings).await?;
                self.devices.close_unused(ready.pool(), &files);
                (ready, None)
            }
            Source::New(new) => (make_pool(&self.rt, &new, settings).await?, Some(new)),
        };
        let prepared = match self.recover_and_prepare(&ready).await {
            Ok(prepared) => prepared,
            Err(e) => {
                ready.close();
                return Err(e);
            }
        };
        let (pool, mut heard) = match self.open_pool(ready, new).await {
            Ok(opened) => opened,
            Err(e) => {
                self.caches.put_back(prepared).await;
                return Err(e);
            }
        };
        heard.iter_mut().for_each(|w| w.insert_str(0, "WARNING: "));
        match self.caches.open(&pool, prepared, &mut heard).await {
            Ok(cache) => Ok((pool, cache, heard)),
            Err(e) => {
                pool.close().await?;
                Err(e)
            }
        }
    }

    /// Enters what the last process had answered, and finds the cache. What was answered stands in
    /// the cache's journal before the pool is opened: the first commit must not get ahead of it.
    async fn recover_and_prepare(&self, ready: &pool::ReadyPool) -> Result<PreparedCache> {
        match &self.host_log {
            Ok(place) => ready.recover(place.clone()).await?,
            Err(why) => ready.pool().keeps_no_answers(why),
        }
        let mut prepared = self.caches.prepare(ready).await?;
        if let PreparedCache::Cache { ready, .. } = &mut prepared
            && let Err(e) = ready.finish_journal().await
        {
            self.caches.put_back(prepared).await;
            return Err(e.into());
        }
        Ok(prepared)
    }

    async fn open_pool(
        &self,
        ready: pool::ReadyPool,
        new: Option<NewPool>,
    ) -> Result<(Pool, Vec<String>)> {
        let (pool, mut warnings) = ready.open().await?;
        if let Some(new) = new {
            let (name, size_bytes) = &new.volume;
            pool.create_volume(name, *size_bytes, 512).await?;
            let made = pool.status().pool;
            warnings.extend(overcommit::told(made.provisioned_bytes, made.capacity_bytes));
            new.unmade.keep();
            new.staged.publish()?;
        }
        Ok((pool, warnings))
    }

    async fn run(
        self,
        pool: Pool,
        cache: Option<Cache>,
        mut mailbox: Mailbox<Message>,
        ready: impl FnOnce(&Status) -> Result<()>,
    ) -> Result<()> {
        self.devices.remember(&pool).await;
        let host_log = self.host_log.ok();
        if let Some(place) = &host_log {
            // The devices that were made at this start have their final paths only now.
            let devices = pool.status().pool.devices;
            let paths = devices.iter().map(|d| &d.path).filter(|path| !path.is_empty());
            paths.for_each(|path| place.add_device(Path::new(path)));
        }
        let volumes = Volumes::with_cache(&pool, cache);
        let exports = VolumeExports::new(volumes.clone(), self.access);
        let nbd = Server::new(self.rt.clone(), exports, self.tuning.limits());
        nbd.find_clients_by(self.listeners.origins());
        let certificates = self.listeners.certificates();
        for (socket, security) in self.listeners.into_all() {
            nbd.serve_with(socket, security);
        }
        let shard = Rc::new(Shard {
            started: self.rt.now(),
            rt: self.rt,
            backend: self.backend,
            volumes,
            devices: self.devices,
            tuning: self.tuning,
            caches: self.caches,
            certificates,
            host_log,
            nbd,
            http: self.http,
            nbd_uris: self.nbd_uris,
            ending: self.ending,
            busy: Cell::new(0),
            answered: Event::new(),
        });
        let (devices, served) = (shard.devices.clone(), shard.volumes.pool().clone());
        shard.rt.detach(async move { devices.close_removed(served).await });
        tracing::info!(io = %shard.backend, "serving");
        shard.ending.waits_for(ShutdownStage::Clients);
        ready(&shard.status())?;
        let manager = self.manager;
        manager.ready();
        tell_state(&shard, &manager);
        let served = Rc::downgrade(&shard);
        log_problems(&shard.rt, move || served.upgrade().map(|shard| shard.status()));
        loop {
            match mailbox.next().await {
                Some(Message::Request(request, reply)) => shard.start(request, reply),
                Some(Message::Reload) => shard.reload(),
                Some(Message::Stop) | None => break,
            }
        }
        // A client that asks from now on is told that the server is stopping.
        drop(mailbox);
        manager.stopping();
        shard.stop().await
    }
}

/// Tells the service manager that the start goes on, until the guard is dropped: to write back at a
/// start may take long.
fn tell_start(rt: &Rt, manager: &Rc<ServiceManager>) -> Rc<()> {
    let goes_on = Rc::new(());
    let (rt, manager, still) = (rt.clone(), manager.clone(), Rc::downgrade(&goes_on));
    rt.clone().detach(async move {
        loop {
            rt.sleep(notify::START_EVERY).await;
            if still.strong_count() == 0 {
                return;
            }
            manager.starting();
        }
    });
    goes_on
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

async fn make_pool(rt: &Rt, new: &NewPool, settings: pool::Settings) -> Result<pool::ReadyPool> {
    let files = &new.staged.files;
    let ids: Vec<[u8; 16]> = (0..=files.len()).map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
    pool::create(rt, files, &new.options, &ids).await?;
    Ok(Pool::ready(rt, files.clone(), settings).await?)
}

struct Shard {
    rt: Rt,
    started: Instant,
    backend: IoBackend,
    volumes: Volumes,
    devices: Rc<PoolDevices>,
    tuning: Rc<Tuning>,
    caches: Caches,
    /// The files of TLS.
    certificates: Option<Files>,
    host_log: Option<Rc<HostDirs>>,
    nbd: Server<VolumeExports>,
    /// What the HTTP server counts.
    http: Option<Arc<HttpCrowds>>,
    /// The URIs of volumes, as the status has them.
    nbd_uris: Vec<String>,
    ending: Ending,
    /// Control requests being carried out.
    busy: Cell<usize>,
    answered: Event,
}

impl Shard {
    /// Carries out a request in a task of its own.
    fn start(self: &Rc<Self>, request: Request, reply: ReplySender) {
        self.busy.set(self.busy.get() + 1);
        let shard = self.clone();
        drop(self.rt.spawn(async move {
            let answer = shard.answer(request).await;
            reply(answer);
            shard.busy.set(shard.busy.get() - 1);
            shard.answered.notify();
        }));
    }

    /// Reads the configuration file again, in a task of its own, and the files of TLS in a thread.
    fn reload(self: &Rc<Self>) {
        if let Some(files) = &self.certificates {
            files.look_at_once();
        }
        let shard = self.clone();
        self.rt.detach(async move {
            let (devices, cache) = (shard.devices_now(), shard.cache_now());
            if let Some(named) = shard.tuning.reload(&shard.volumes, devices, cache).await {
                shard.devices.compare_with(shard.volumes.pool(), named).await;
            }
        });
    }

    async fn stop(self: Rc<Self>) -> Result<()> {
        // Requests that wait for a limit are carried out now.
        self.volumes.admit_all();
        if !self.nbd.shutdown(GRACE).await {
            tracing::warn!("some requests did not end in time");
        }
        self.ending.waits_for(ShutdownStage::Commands);
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
        self.ending.waits_for(ShutdownStage::Devices);
        // A device may have left the pool just now.
        self.devices.remember(self.volumes.pool()).await;
        tracing::info!("stopped");
        Ok(())
    }
}

/// May this process have too few descriptors for all clients, it says so: those that come then are
/// not accepted.
fn raise_open_files(max_connections: usize) {
    // Over unix sockets and over TCP, with those that are not known yet.
    let needed = 2 * (max_connections + nbd::Limits::default().max_unknown) as u64 + OWN_FILES;
    match sys::raise_open_files() {
        Ok(limit) if limit < needed => tracing::warn!(
            "at most {limit} files can be open, and {max_connections} connections need {needed}: \
             raise the hard limit (ulimit -Hn), or lower max_connections"
        ),
        Ok(_) => {}
        Err(e) => tracing::warn!("cannot read the open-file limit: {e}"),
    }
}
