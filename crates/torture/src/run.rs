//! One run: boots until the last, each with clients, faults and an end; then rest.

mod checks;
mod lost_nodes;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::prng::mix64;
use base::{BLOCK_U64, Duration, ErrorKind, StorageError};
use export::{Access, VolumeExports};
use model::status::PoolState;
use pool::{CreateOptions, DeviceFile, Pool};
use rt::{JoinHandle, Order, Rt};
use sim::World;
use volume::Volumes;

use crate::admin;
use crate::cached::{self, Attachment, EndReason};
use crate::changer::Changer;
use crate::client::Client;
use crate::ending::end;
use crate::env::{Boot, Env};
use crate::faults::Devices;
use crate::limiter;
use crate::model::Stop;
use crate::settings::{BootPlan, Ending, Settings};
use crate::story::{Coverage, Story};
use crate::told;
use crate::tuner;
use crate::verify::{all_in_place, verify};
use crate::{mover, rest, scrubber, snapshots};

/// In so long everything comes to rest when faults have stopped. The slowest disks take 0.4 s for a
/// read in the mean, one after the other, and all blocks are read.
const REST: Duration = Duration::from_secs(4 * 3600);

/// Half of the longest time in which clients rest.
const LONGEST_REST_NS: u64 = 10_000_000_000;

/// The summary of a run that passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// A hash of all that happened.
    pub hash: u64,
    /// Virtual time in nanoseconds.
    pub virtual_ns: u64,
    /// The number of times that each kind of event has happened.
    pub coverage: Coverage,
}

/// The end of a boot.
enum BootEnd {
    /// As planned: by a cut of power, a kill, or a close; and what that means for the answers.
    Planned(Ending, Stop),
    /// The program has ended itself over a device.
    Failed,
    /// The pool is beyond repair, which may be beyond the budget.
    Refused,
}

pub(crate) fn run(settings: Settings, story: Rc<RefCell<Story>>, trace: bool) -> Summary {
    let world = World::new(settings.seed);
    world.set_trace(trace);
    let env = Rc::new(Env::new(settings, world.clone(), story));
    let devices = Rc::new(Devices::new(&env));
    let mut run = Run {
        env: env.clone(),
        devices: devices.clone(),
        created: false,
        boots: 0,
        attachment: Rc::default(),
    };
    let going = run.all_boots();
    if going {
        run.rest();
    }
    devices.count_faults();
    env.count("cache: cuts seen", env.model.borrow().cuts_taken());
    let (judged, most) = env.model.borrow().lag();
    env.count("cache: writes judged by the age of the pool's image", judged);
    env.count(
        "cache: runs whose image was at least half as old as allowed",
        u64::from(most >= 500),
    );
    let coverage = env.coverage.borrow().clone();
    let hash = coverage.0.values().fold(world.history_hash(), |h, n| mix64(h ^ n));
    Summary { hash, virtual_ns: world.now().0, coverage }
}

struct Run {
    env: Rc<Env>,
    devices: Rc<Devices>,
    created: bool,
    boots: u64,
    attachment: Rc<Cell<Attachment>>,
}

impl Run {
    /// Everything but the end; false if the pool was refused, as it may be beyond the budget.
    fn all_boots(&mut self) -> bool {
        for plan in self.env.settings.boots.clone() {
            self.find_nodes();
            let there = self.devices.between_boots();
            if self.created {
                cached::perhaps_return(&self.env, &self.devices, &self.attachment);
                // In a row of boots that end at once, only some are looked at.
                if !self.devices.still_fail() && (plan.cut_at.is_none() || self.env.one_in(4)) {
                    self.offline_check(false);
                }
                if self.attachment.get() == Attachment::Attached && self.env.one_in(2) {
                    self.devices.strike_cache_at_rest();
                }
                if self.attachment.get() == Attachment::Attached {
                    self.devices.spoil_cache();
                }
                self.devices.spoil_start();
                cached::perhaps_lose(&self.env, &self.attachment);
                self.lose_nodes();
            }
            match self.boot(plan, there) {
                BootEnd::Refused => return false,
                BootEnd::Failed => {
                    self.env.count("kills", 1);
                    self.env.model.borrow_mut().stop_snapshots();
                    self.env.model.borrow_mut().stop(Stop::Crashed);
                }
                BootEnd::Planned(ending, stop) => {
                    let how = match ending {
                        Ending::PowerCut => "power cuts",
                        Ending::Kill => "kills",
                        Ending::Close => "closes",
                    };
                    self.env.count(how, 1);
                    self.env.model.borrow_mut().stop_snapshots();
                    self.env.model.borrow_mut().stop(stop);
                }
            }
        }
        true
    }

    /// A runtime over the devices as they are, in a process of its own.
    fn runtime(&mut self) -> Rt {
        self.boots += 1;
        let seed = mix64(self.env.settings.seed ^ self.boots << 32);
        self.env.reset();
        Rt::new(self.env.world.backend(), Order::Seeded(seed), self.env.settings.slots)
    }

    fn boot(&mut self, plan: BootPlan, there: Vec<DeviceFile>) -> BootEnd {
        let rt = self.runtime();
        self.env.note(format!("boot {}: {plan:?}", self.boots));
        let session = Session {
            env: self.env.clone(),
            devices: self.devices.clone(),
            rt: rt.clone(),
            attachment: self.attachment.clone(),
        };
        let created = Rc::new(Cell::new(self.created));
        let c = created.clone();
        let outcome = rt.block_on(async move { session.live(plan, there, c).await });
        self.created = created.get();
        // The death of the process alone loses nothing that was answered, unless a device that is
        // needed fails with it.
        let killed = plan.ending == Ending::Kill && !self.env.errors_allowed();
        let stop = if killed { Stop::Killed } else { Stop::Crashed };
        self.env.count("kills that lose nothing", u64::from(killed && outcome.is_none()));
        // A device may have been left out, or was about to be.
        if self.env.opening.get()
            && (self.env.failing.get() || !self.env.settings.victims.is_empty())
        {
            self.env.cut_open.set(true);
        }
        self.env.reset();
        rt.kill();
        match outcome {
            None => BootEnd::Planned(plan.ending, stop),
            Some(Ok(())) => BootEnd::Planned(Ending::Close, Stop::Closed),
            Some(Err(EndReason::CacheFailed | EndReason::DeviceFailed)) => BootEnd::Failed,
            Some(Err(EndReason::Refused)) => BootEnd::Refused,
        }
    }

    /// Faults stop, and everything must come to rest.
    fn rest(&mut self) {
        self.devices.calm();
        self.find_nodes();
        self.devices.revive_all();
        self.env.note("faults stop");
        cached::give_up_if_struck(&self.env, &self.attachment);
        if self.created {
            self.offline_check(false);
        }
        if !self.final_boot(self.devices.members(), Task::Settle) {
            return;
        }
        self.env.model.borrow_mut().stop_snapshots();
        self.env.model.borrow_mut().stop(Stop::Closed);
        self.check_at_rest();
        if !self.final_boot(self.devices.members(), Task::Empty) {
            return;
        }
        self.env.model.borrow_mut().stop_snapshots();
        self.env.model.borrow_mut().stop(Stop::Closed);
        if let Some(report) = self.check_at_rest() {
            let c = &report.counts;
            let left = c.volumes + c.extents + c.snapshots + c.dead_runs;
            if !self.env.beyond() && left > 0 {
                self.env.fail(format!("all volumes were deleted, the check finds {c:?}"));
            }
        }
    }

    fn final_boot(&mut self, there: Vec<DeviceFile>, task: Task) -> bool {
        let rt = self.runtime();
        self.env.note(format!("the last boots: {task:?}"));
        let session = Session {
            env: self.env.clone(),
            devices: self.devices.clone(),
            rt: rt.clone(),
            attachment: self.attachment.clone(),
        };
        let guard = (self.env.clone(), rt.clone());
        drop(rt.spawn(async move {
            guard.1.sleep(REST).await;
            guard.0.fail(format!("{REST:?} after the last fault the pool has not come to rest"));
        }));
        let created = self.created;
        let outcome = rt.block_on(async move { session.settle(there, task, created).await });
        self.env.reset();
        rt.kill();
        self.created = true;
        match outcome {
            Some(Err(EndReason::CacheFailed | EndReason::DeviceFailed)) => {
                self.env.fail("the cache fails when all faults are over")
            }
            other => other == Some(Ok(())),
        }
    }
}

/// A pool that is open, its warnings, and its cache.
type OpenedPool =
    Result<Result<(Pool, Vec<String>, Option<cache::ReadyCache>), StorageError>, StorageError>;

/// The task of one of the last boots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    /// Everything is read, flushed and closed.
    Settle,
    /// All volumes are deleted: all space must come back.
    Empty,
}

/// The inside of a boot.
struct Session {
    env: Rc<Env>,
    devices: Rc<Devices>,
    rt: Rt,
    attachment: Rc<Cell<Attachment>>,
}

impl Session {
    /// A boot with clients. It returns after a close, or when the program ends itself; not from a
    /// cut or a kill.
    async fn live(
        self,
        plan: BootPlan,
        there: Vec<DeviceFile>,
        created: Rc<Cell<bool>>,
    ) -> Result<(), EndReason> {
        let env = self.env.clone();
        if plan.ending != Ending::Close {
            let (e, rt) = (env.clone(), self.rt.clone());
            drop(self.rt.spawn(async move {
                rt.sleep(plan.cut_after).await;
                end(&e, &rt, plan.ending).await;
            }));
        }
        if let Some(moment) = plan.cut_at {
            let (e, rt) = (env.clone(), self.rt.clone());
            let cache = self.devices.cache().map(|c| c.file);
            drop(self.rt.spawn(async move {
                e.reach(moment, cache).await;
                e.count("boots that ended at an operation", 1);
                end(&e, &rt, plan.ending).await;
            }));
        }
        if created.get() {
            env.failing.set(self.devices.still_fail());
            env.host_full.set(self.devices.still_full());
            let (devices, rt) = (self.devices.clone(), self.rt.clone());
            drop(self.rt.spawn(async move { devices.fail(rt).await }));
        }
        if !env.beyond() && created.get() {
            self.devices.unleash();
        }
        let there = if created.get() { there } else { self.devices.files.clone() };
        let boot = self.open(there, &created, true).await?;
        if env.cache_lied.get() && boot.volumes.cache().is_some() {
            // Flushed blocks are gone, and the model cannot know which.
            all_in_place(&boot).await;
            return Err(EndReason::Refused);
        }
        self.devices.unleash();
        if plan.verify {
            verify(&boot).await;
        }
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        let (b, devices, rt) = (boot.clone(), self.devices.clone(), self.rt.clone());
        tasks.push(self.rt.spawn(async move { devices.strike(rt).await }));
        let (devices, rt) = (self.devices.clone(), self.rt.clone());
        tasks.push(self.rt.spawn(async move { devices.drag(rt).await }));
        admin::begin(&boot).await;
        tasks.push(self.rt.spawn(async move { admin::administrate(b).await }));
        if env.settings.cache.is_some() {
            let front = Changer::new(&boot, &self.devices, &self.attachment);
            tasks.push(self.rt.spawn(async move { front.work().await }));
        }
        if env.settings.changes.settings > 0 {
            let b = boot.clone();
            tasks.push(self.rt.spawn(async move { tuner::work(b).await }));
        }
        let b = boot.clone();
        tasks.push(self.rt.spawn(async move { limiter::work(b).await }));
        tasks.push(self.rt.spawn(scrubber::work(boot.clone())));
        tasks.push(self.rt.spawn(mover::work(boot.clone(), self.devices.clone())));
        if env.settings.changes.snapshots > 0 {
            tasks.push(self.rt.spawn(snapshots::change_all(boot.clone())));
            tasks.push(self.rt.spawn(snapshots::change_all(boot.clone())));
            tasks.push(self.rt.spawn(snapshots::read_all(boot.clone())));
        }
        if env.settings.failures.collects {
            let b = boot.clone();
            tasks.push(self.rt.spawn(async move { cached::collect(b).await }));
        }
        let server = nbd::Server::new(
            self.rt.clone(),
            VolumeExports::new(boot.volumes.clone(), Access::default()),
            nbd::Limits::default(),
        );
        server.serve(boot.listener);
        for nbd in
            (0..env.settings.direct).map(|_| false).chain((0..env.settings.nbd).map(|_| true))
        {
            let client = Client::new(&boot, nbd);
            for _ in 0..env.settings.depth {
                let c = client.clone();
                tasks.push(self.rt.spawn(async move { c.work().await }));
            }
        }
        while env.answered.get() < plan.operations {
            self.rt.sleep(Duration::from_millis(1)).await;
            env.check_patience();
        }
        if let Some(cache) = env.settings.cache.as_ref().filter(|_| env.one_in(2)) {
            // No client asks for anything: what is dirty must become old enough to be missed.
            env.resting.set(true);
            let long = cached::allowed_lag(cache, &cache.settings).min(LONGEST_REST_NS);
            let until = env.world.now().0 + env.below(2 * long);
            while env.world.now().0 < until {
                self.rt.sleep(Duration::from_millis(10)).await;
                env.check_patience();
            }
            env.resting.set(false);
        }
        if plan.ending != Ending::Close {
            self.rt.sleep(Duration::from_micros(env.below(30_000))).await;
            end(&env, &self.rt, plan.ending).await;
        }
        env.stopping.set(true);
        limiter::end(&boot);
        for t in tasks {
            t.await;
        }
        if !server.shutdown(Duration::from_secs(600)).await {
            env.fail("the NBD server does not come to its end");
        }
        told::check(&env, &self.rt);
        self.close(&boot).await
    }

    async fn close(&self, boot: &Boot) -> Result<(), EndReason> {
        let env = &self.env;
        self.devices.calm();
        let pool = boot.volumes.pool().clone();
        if let Some(cache) = &boot.volumes.cache() {
            // Also of a cache that fails now: which of its blocks were lost.
            cached::close(boot, cache, &self.attachment)
                .await
                .inspect_err(|_| env.take_counters())?;
        }
        let mut outcome = pool.commit().await;
        if outcome.is_err() && env.host_full.get() {
            outcome = pool.commit().await;
        }
        env.take_counters();
        match outcome.and(pool.close().await) {
            Ok(()) => Ok(()),
            Err(e) if env.failing.get() && !env.beyond() => {
                env.note(format!("close: {:?}: {e}", e.kind));
                Err(EndReason::DeviceFailed)
            }
            Err(_) if env.beyond() => Err(EndReason::Refused),
            Err(e) => env.fail(format!("the pool cannot be closed: {e}")),
        }
    }

    /// Opens the pool, or makes it, and its cache.
    async fn open(
        &self,
        there: Vec<DeviceFile>,
        created: &Cell<bool>,
        may_attach: bool,
    ) -> Result<Rc<Boot>, EndReason> {
        let env = &self.env;
        if !created.get() {
            let options = CreateOptions {
                name: "torture".to_owned(),
                copies: env.settings.copies,
                group_bytes: Some(env.settings.group_bytes),
            };
            let ids: Vec<[u8; 16]> =
                (0..=there.len()).map(|_| std::array::from_fn(|_| env.below(256) as u8)).collect();
            if let Err(e) = pool::create(&self.rt, &there, &options, &ids).await {
                env.fail(format!("the pool cannot be created: {e}"));
            }
            created.set(true);
            self.devices.forget_snapshots();
            env.note("the pool is created");
        }
        let mut there = there;
        env.opening.set(true);
        let (pool, warnings, prepared) = loop {
            match self.open_pool(there.clone()).await {
                Ok(Err(e)) => {
                    env.opening.set(false);
                    return Err(cached::refused(env, &e, &self.attachment));
                }
                Ok(Ok(opened)) => break opened,
                Err(e) if self.devices.may_refuse(&e) => {
                    env.count("opens that met a device without a superblock", 1);
                    env.note(format!("open: {e}"));
                    let victims: Vec<String> =
                        env.settings.victims.iter().map(|d| format!("disk{d}")).collect();
                    let before = there.len();
                    there.retain(|f| !victims.contains(&f.path));
                    if before == there.len() {
                        env.fail(format!("open: {e}"));
                    }
                }
                Err(e) if env.failing.get() && !env.beyond() => {
                    env.count("opens that failed over a device that is needed", 1);
                    env.note(format!("open: {:?}: {e}", e.kind));
                    return Err(EndReason::DeviceFailed);
                }
                Err(e) if env.beyond() => {
                    env.count("opens refused", 1);
                    env.note(format!("open refused: {:?}: {e}", e.kind));
                    let clear = matches!(
                        e.kind,
                        ErrorKind::Io
                            | ErrorKind::Damaged
                            | ErrorKind::Missing
                            | ErrorKind::NoSpace
                    );
                    if !clear {
                        env.fail(format!(
                            "the pool was refused for a wrong reason: {:?}: {e}",
                            e.kind
                        ));
                    }
                    return Err(EndReason::Refused);
                }
                Err(e) => env.fail(format!("the pool cannot be opened: {:?}: {e}", e.kind)),
            }
        };
        for w in &warnings {
            env.note(format!("open warns: {w}"));
        }
        env.opening.set(false);
        env.cut_open.set(false);
        env.count("opens", 1);
        env.count("degraded opens", u64::from(pool.status().pool.state == PoolState::Degraded));
        env.count("opens with warnings", u64::from(!warnings.is_empty()));
        *env.pool.borrow_mut() = Some(pool.clone());
        if let Err(text) = env.model.borrow_mut().reconcile(&pool.volumes()) {
            env.fail(text);
        }
        if let Err(text) = env.model.borrow_mut().reconcile_snapshots(&pool) {
            env.fail(text);
        }
        limiter::check(env, &pool.volumes());
        if !env.beyond() {
            mover::check_copies(env, &pool);
        }
        let (devices, attachment) = (&self.devices, &self.attachment);
        let cache =
            cached::open(env, &self.rt, &pool, prepared, devices, attachment, may_attach).await?;
        if env.unreachable.borrow().any() {
            // Changes that could not be entered below a lost node are lost.
            env.model.borrow_mut().lose_kept();
        }
        env.model.borrow_mut().find_kept();
        let volumes = Volumes::with_cache(&pool, cache);
        let listener = env.world.listener();
        Ok(Rc::new(Boot { env: env.clone(), rt: self.rt.clone(), volumes, listener }))
    }

    /// Opens the pool as the program does: what the last process had answered is entered, and the
    /// cache is looked at before the first commit. The inner error is the cache's.
    async fn open_pool(&self, there: Vec<DeviceFile>) -> OpenedPool {
        let ready = Pool::ready(&self.rt, there, self.env.settings.pool.clone()).await?;
        ready.recover(Rc::new(self.env.world.host())).await?;
        let (devices, attachment) = (&self.devices, &self.attachment);
        let prepared = cached::prepare(&self.env, &self.rt, &ready, devices, attachment).await;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(e) => {
                ready.close();
                return Ok(Err(e));
            }
        };
        let (pool, warnings) = ready.open().await?;
        self.env.count("opens that entered what was answered", u64::from(pool.has_recovered()));
        Ok(Ok((pool, warnings, prepared)))
    }

    /// A boot without faults and clients.
    async fn settle(
        self,
        there: Vec<DeviceFile>,
        task: Task,
        created: bool,
    ) -> Result<(), EndReason> {
        let env = self.env.clone();
        let boot = self.open(there, &Cell::new(created), task == Task::Settle).await?;
        verify(&boot).await;
        if task == Task::Empty {
            snapshots::delete_all(&boot, None).await;
            let names: Vec<String> = boot.volumes.list().into_iter().map(|v| v.name).collect();
            for name in names {
                env.model.borrow_mut().begin_delete(&name);
                match boot.volumes.delete(&name).await {
                    Ok(()) => env.model.borrow_mut().forget(&name),
                    Err(_) if env.beyond() => {}
                    Err(e) => env.fail(format!("delete {name}: {e}")),
                }
            }
            self.wait_for_space(&boot).await;
            mover::settle(&boot).await;
        } else {
            let from = env.model.borrow_mut().begin_flush();
            let outcome = match &boot.volumes.cache() {
                Some(cache) => cache.flush().await,
                None => boot.volumes.pool().commit().await,
            };
            match outcome {
                Ok(()) => env.model.borrow_mut().end_commit(from),
                Err(_) if env.beyond() => {}
                Err(e) => env.fail(format!("the last flush: {e}")),
            }
            verify(&boot).await;
            rest::restore(&boot, &self.devices).await;
            verify(&boot).await;
        }
        self.close(&boot).await
    }

    /// Waits until what was deleted is given back: only what the checksum trees of emptied groups
    /// had may stay.
    async fn wait_for_space(&self, boot: &Boot) {
        let env = &self.env;
        let groups = env.settings.total_bytes() / env.settings.group_bytes;
        let most = (8 * groups + 64) * BLOCK_U64;
        // A minute is long: what has not come back by then will not.
        self.rt.sleep(Duration::from_secs(60)).await;
        // Blocks that reads were about come back with the next commit.
        let last = async { boot.volumes.create("last", 1 << 20, 512).await.map(|_| ()) }.await;
        if let Err(e) = last.and(boot.volumes.delete("last").await)
            && !env.beyond()
        {
            env.fail(format!("a volume in the empty pool: {e}"));
        }
        self.rt.sleep(Duration::from_secs(60)).await;
        let used = boot.volumes.pool().status().pool.used_bytes;
        if used <= most {
            env.count("runs that gave all space back", 1);
        } else if !env.beyond() {
            env.fail(format!(
                "all volumes are deleted, and {used} bytes are still in use (at most \
                 {most} should be)"
            ));
        }
    }
}
