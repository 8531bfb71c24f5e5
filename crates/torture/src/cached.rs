//! The cache of a run: it is attached, opened, closed, detached, and lost.
//!
//! A cache that is lost was there when the boot before ended, however it ended. The pool is opened
//! without it, the model is set back to the cut that the pool says it holds, and everything is
//! compared; then the story goes on from there, with a new cache or without one.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, StorageError};
use cache::{Cache, CacheFile, CreateOptions};
use pool::Pool;
use rt::Rt;
use volume::Volumes;

use crate::env::{Boot, Env};
use crate::faults::Devices;
use crate::model::cuts::Gauge;
use crate::model::lag::EngineView;
use crate::settings::{CacheDamage, CachePlan};
use crate::snapshots;
use crate::verify::verify;

/// The knowledge of whether the pool has a cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// The pool has no cache.
    #[default]
    None,
    /// A cache was about to be attached when the boot ended: it is empty, if the pool has it.
    Attaching,
    /// The cache was about to be detached when the boot ended.
    Detaching,
    /// The pool has a cache.
    Attached,
    /// The pool had a cache, which is gone.
    Lost,
    /// The pool had a cache, perhaps, which is gone.
    PerhapsLost,
    /// As `Lost`, and the model knows that the cache is gone.
    SetBack,
}

/// Between two boots: the cache's device is gone, or not.
pub(crate) fn perhaps_lose(env: &Env, attachment: &Cell<Attachment>) {
    let Some(plan) = &env.settings.cache else { return };
    let lost = match attachment.get() {
        Attachment::Attached => Attachment::Lost,
        Attachment::Attaching | Attachment::Detaching => Attachment::PerhapsLost,
        _ => return,
    };
    let struck = env.cache_struck.get() && (plan.damage == CacheDamage::Dies || env.one_in(2));
    if struck || plan.lost > 0 && env.one_in(plan.lost) {
        env.note("the cache is lost");
        env.count("caches lost", 1);
        env.count(
            "caches lost in the middle of an attach or a detach",
            u64::from(lost == Attachment::PerhapsLost),
        );
        attachment.set(lost);
    }
}

/// Between two boots: a cache's device that had died answers again. What was flushed is there, and
/// it may not show any more that something happened to it.
pub(crate) fn perhaps_return(env: &Env, devices: &Devices, attachment: &Cell<Attachment>) {
    let Some(plan) = &env.settings.cache else { return };
    let (Some(file), Attachment::Attached | Attachment::Lost) = (devices.cache(), attachment.get())
    else {
        return;
    };
    if plan.damage != CacheDamage::Dies || !env.cache_struck.get() || env.one_in(3) {
        return;
    }
    env.world.revive(file.file);
    attachment.set(Attachment::Attached);
    env.note("the cache's device is back");
    env.count("cache devices that died and came back", 1);
    env.cache_struck.set(false);
    env.cache_returned.set(true);
}

/// Why the program ends itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndReason {
    /// The pool is beyond repair, which may be beyond the budget; or it cannot be said any more
    /// what it should hold.
    Refused,
    /// The cache's device was struck, and is of no use: the story goes on without it.
    CacheFailed,
    /// A device that is needed has failed: the next start finds it well.
    DeviceFailed,
}

fn judge(env: &Env, what: &str, outcome: Result<(), StorageError>) -> Result<(), EndReason> {
    match outcome {
        Ok(()) => Ok(()),
        Err(e) if env.failing.get() && !env.beyond() => {
            env.note(format!("{what}: {:?}: {e}", e.kind));
            Err(EndReason::DeviceFailed)
        }
        Err(e) if env.errors_allowed() => {
            env.note(format!("{what}: {:?}: {e}", e.kind));
            Err(if env.beyond() { EndReason::Refused } else { EndReason::CacheFailed })
        }
        Err(e) => env.fail(format!("{what}: {:?}: {e}", e.kind)),
    }
}

fn right(env: &Env, outcome: Result<(), String>) {
    if let Err(text) = outcome {
        env.fail(text);
    }
}

/// The cache's device was struck: it is not used any more.
pub(crate) fn give_up_if_struck(env: &Env, attachment: &Cell<Attachment>) {
    if !env.cache_struck.get() && env.spoilt.borrow().is_empty() {
        return;
    }
    match attachment.get() {
        Attachment::Attached => attachment.set(Attachment::Lost),
        Attachment::Attaching | Attachment::Detaching => attachment.set(Attachment::PerhapsLost),
        _ => return,
    }
    env.note("the cache is given up");
}

/// Looks at the cache that the pool names, before the pool is opened, and writes what the last
/// process had not written of its journal. `None`: it is lost, or there is none.
pub(crate) async fn prepare(
    env: &Env,
    rt: &Rt,
    pool: &pool::ReadyPool,
    devices: &Devices,
    attachment: &Cell<Attachment>,
) -> Result<Option<cache::ReadyCache>, StorageError> {
    let (Some(file), Some(plan)) = (&devices.cache(), &env.settings.cache) else { return Ok(None) };
    let there = [Attachment::Attached, Attachment::Attaching, Attachment::Detaching];
    if pool.pool().cache_link().cache_uuid().is_none() || !there.contains(&attachment.get()) {
        return Ok(None);
    }
    let mut ready = Cache::ready(rt, file, pool, plan.settings.clone()).await?;
    if let Err(e) = ready.finish_journal().await {
        ready.close();
        return Err(e);
    }
    Ok(Some(ready))
}

/// The cache is refused.
pub(crate) fn refused(env: &Env, e: &StorageError, attachment: &Cell<Attachment>) -> EndReason {
    if !env.failures_allowed() || env.spared.get() {
        env.fail(format!("opening the cache: {:?}: {e}", e.kind));
    }
    let over = judge(env, "opening the cache", Err(e.clone())).err().unwrap_or(EndReason::Refused);
    if over == EndReason::CacheFailed {
        env.count("struck caches that were refused", 1);
        attachment.set(Attachment::Lost);
    }
    over
}

/// Opens the pool's cache, which was prepared if it is there; goes on without one that is lost;
/// attaches one to a pool that has none, or not.
pub(crate) async fn open(
    env: &Rc<Env>,
    rt: &Rt,
    pool: &Pool,
    prepared: Option<cache::ReadyCache>,
    devices: &Devices,
    attachment: &Cell<Attachment>,
    may_attach: bool,
) -> Result<Option<Cache>, EndReason> {
    let (Some(file), Some(plan)) = (&devices.cache(), &env.settings.cache) else { return Ok(None) };
    let named = pool.cache_link().cache_uuid().is_some();
    match (attachment.get(), named) {
        // The cache held nothing that the pool lacked when the cache's device failed.
        (_, false)
            if env.cache_struck.get()
                || env.cache_returned.get()
                || env.device_failed.get()
                || env.cache_worn.get() =>
        {
            env.count("caches that failed and were not missed", 1);
            gone(env, attachment);
        }
        (Attachment::Attached | Attachment::Lost, false) => {
            env.fail("the pool does not know its cache any more")
        }
        (Attachment::None, true) => env.fail("the pool names a cache that was detached"),
        (Attachment::SetBack, _) | (Attachment::Lost | Attachment::PerhapsLost, true) => {
            forget(env, rt, pool, devices, attachment).await?;
        }
        (Attachment::Attaching, true) => {
            env.count("attaches cut short that are done", 1);
            env.model.borrow_mut().attach(pool.cache_link().published().0);
        }
        (Attachment::Detaching, true) => env.count("detaches cut short that are not done", 1),
        (Attachment::Attached, true) => {}
        (_, false) => gone(env, attachment),
    }
    env.cache_returned.set(false);
    env.cache_worn.set(false);
    env.device_failed.set(env.failing.get());
    if pool.cache_link().cache_uuid().is_none() {
        if !may_attach || env.one_in(4) {
            env.count("boots without a cache, of runs with one", 1);
            return Ok(None);
        }
        devices.renew_cache();
        env.model.borrow_mut().attach(pool.cache_link().published().0);
        attachment.set(Attachment::Attaching);
        let options = create_options(plan);
        let uuid = std::array::from_fn(|_| env.below(256) as u8);
        judge(env, "creating the cache", cache::create(rt, file, pool, &options, uuid).await)?;
        env.note("a cache is attached");
        env.count("caches attached", 1);
    }
    attachment.set(Attachment::Attached);
    env.count(
        "opens of a cache whose clean keys did not count",
        u64::from(pool.cache_link().clean_void()),
    );
    let opened = match prepared {
        Some(ready) => ready.open().await,
        None => Cache::open(rt, file, pool, plan.settings.clone()).await,
    };
    let cache = opened.map_err(|e| refused(env, &e, attachment))?;
    env.count("opens with a cache", 1);
    serve(env, &cache, file);
    Ok(Some(cache))
}

/// Returns the options with which caches are made.
pub(crate) fn create_options(plan: &CachePlan) -> CreateOptions {
    CreateOptions { bucket_bytes: plan.bucket_bytes, journal_bytes: Some(plan.journal_bytes) }
}

/// A cache, open, is in front of the pool from now on.
pub(crate) fn serve(env: &Rc<Env>, cache: &Cache, file: &CacheFile) {
    *env.cache.borrow_mut() = Some(cache.clone());
    let published = cache.pool().cache_link().published().0;
    let excused = env.errors_allowed() || env.host_full.get() || env.unreachable.borrow().any();
    let plan = env.settings.cache.as_ref().filter(|_| !excused);
    let lag = plan.map(|plan| allowed_lag(plan, &cache.current_settings()));
    let dirty = cache.status().dirty_bytes > 0;
    right(env, env.model.borrow_mut().open_cache(published, gauge(env, cache, file), lag, dirty));
}

fn gauge(env: &Env, cache: &Cache, file: &CacheFile) -> Gauge {
    let (world, cache, file) = (env.world.clone(), cache.clone(), file.file);
    let stuck_for = env.settings.cache.as_ref().map_or(0, |plan| nanos(plan.harmless.stuck_for));
    Box::new(move || {
        let stuck = world.fault_counts(file).stuck;
        EngineView {
            open: cache.epoch().0,
            published: cache.pool().cache_link().published().0,
            now_ns: world.now().0,
            idle_ns: nanos(world.idle()),
            stuck_ns: stuck * stuck_for,
            unstuck_ns: stuck.saturating_sub(u64::from(world.is_stuck(file))) * stuck_for,
        }
    })
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// With these settings: `max_lag`, and what two passes in a row (a write may have missed the cut of
/// the one that is under way) may take while the pool's devices are idle, in nanoseconds.
pub(crate) fn allowed_lag(plan: &CachePlan, settings: &cache::Settings) -> u64 {
    /// Neither is paced to take less than a tenth of a second, and what is due is looked for as
    /// often.
    const PASSES: Duration = Duration::from_millis(500);
    let size = plan.disk.size_bytes;
    // At the most that is allowed, all that the cache can hold.
    let paced = Duration::from_secs_f64(size as f64 / settings.writeback.max as f64);
    // Each of its blocks may be read alone, some at a time; leaves of the index, the journal and
    // flushes come one after the other.
    let (read, write, flush) =
        (plan.disk.read_latency.most, plan.disk.write_latency.most, plan.disk.flush_latency.most);
    let device = read * (size / BLOCK_U64 / 16) as u32 + (read + write + flush) * 100;
    nanos(settings.max_lag + PASSES + (paced + device) * 2)
}

/// The pool has no cache, and needs none.
fn gone(env: &Env, attachment: &Cell<Attachment>) {
    env.model.borrow_mut().detach();
    attachment.set(Attachment::None);
}

/// The pool goes on alone, as it was when its last cut was taken. All of it is compared before
/// anything else.
async fn forget(
    env: &Rc<Env>,
    rt: &Rt,
    pool: &Pool,
    devices: &Devices,
    attachment: &Cell<Attachment>,
) -> Result<(), EndReason> {
    if attachment.get() != Attachment::SetBack {
        if env.cache_lost_blocks.get() {
            // The lost blocks are in no cut; the others are, and which is which is not known any
            // more.
            env.count("runs that ended over dirty blocks lost", 1);
            return Err(EndReason::Refused);
        }
        let published = pool.cache_link().published().0;
        env.note(format!("without its cache, the pool is of epoch {published}"));
        env.model.borrow_mut().lose_kept();
        match env.model.borrow_mut().set_back(published) {
            Ok(true) => {}
            Ok(false) => {
                env.count("runs that ended over a switch that had failed", 1);
                return Err(EndReason::Refused);
            }
            Err(text) => env.fail(text),
        }
        attachment.set(Attachment::SetBack);
        devices.renew_cache();
    }
    let listener = env.world.listener();
    let alone = Boot { env: env.clone(), rt: rt.clone(), volumes: Volumes::new(pool), listener };
    let alone = Rc::new(alone);
    delete_unlike(&alone).await;
    verify(&alone).await;
    env.count("pools compared without their cache", 1);
    judge(env, "forgetting the cache", pool.cache_link().set_cache_uuid(None).await)?;
    gone(env, attachment);
    Ok(())
}

/// Deletes volumes that the pool alone may hold as they were at no cut.
async fn delete_unlike(alone: &Rc<Boot>) {
    let env = &alone.env;
    let unlike = env.unreachable.borrow_mut().take_unlike();
    let live = env.model.borrow().live();
    for (name, id) in live.into_iter().filter(|(_, id)| unlike.contains(id)) {
        env.count("volumes deleted as they were like no cut", 1);
        snapshots::delete_all(alone, Some(id)).await;
        env.model.borrow_mut().begin_delete(&name);
        match alone.volumes.delete(&name).await {
            Ok(()) => env.model.borrow_mut().forget(&name),
            Err(e) => env.fail(format!("delete {name}: {:?}: {e}", e.kind)),
        }
    }
}

/// The cache is closed, or detached.
pub(crate) async fn close(
    boot: &Boot,
    cache: &Cache,
    attachment: &Cell<Attachment>,
) -> Result<(), EndReason> {
    let env = &boot.env;
    let detach =
        env.settings.cache.as_ref().is_some_and(|plan| plan.detach > 0 && env.one_in(plan.detach));
    if !detach {
        let outcome = cache.close().await;
        env.model.borrow_mut().look();
        return judge(env, "closing the cache", outcome)
            .inspect_err(|_| give_up_if_struck(env, attachment));
    }
    attachment.set(Attachment::Detaching);
    let from = env.model.borrow_mut().begin_flush();
    let mut outcome = cache.detach().await;
    if outcome.is_err() && env.host_full.get() {
        outcome = cache.detach().await;
    }
    if outcome.is_err() {
        // The cache may have published cuts before the detach failed, and have found that blocks
        // are lost.
        env.model.borrow_mut().look();
        env.cache_lost_blocks.set(env.cache_lost_blocks.get() || cache.status().lost > 0);
    }
    if let (Err(e), true) = (&outcome, env.unreachable.borrow().any()) {
        env.note(format!("detaching the cache: {:?}: {e}", e.kind));
        env.count("detaches refused over what cannot be reached", 1);
        return Err(EndReason::CacheFailed);
    }
    judge(env, "detaching the cache", outcome)
        .inspect_err(|_| give_up_if_struck(env, attachment))?;
    env.note("the cache is detached");
    env.count("caches detached", 1);
    env.model.borrow_mut().end_commit(from);
    gone(env, attachment);
    Ok(())
}

/// Collections of a boot: more would cost time, and find nothing more.
const MOST_COLLECTIONS: u64 = 400;

/// The cache collects all the time.
pub(crate) async fn collect(boot: Rc<Boot>) {
    let env = &boot.env;
    let mut asked = 0;
    while !env.stopping.get() && asked < MOST_COLLECTIONS {
        if env.resting.get() {
            boot.rt.sleep(Duration::from_millis(10)).await;
            continue;
        }
        asked += 1;
        if let Some(cache) = boot.volumes.cache()
            && let Err(e) = cache.collect().await
            && !(cache.is_aside() || env.errors_allowed())
        {
            env.fail(format!("collecting: {:?}: {e}", e.kind));
        }
        env.count("cache: collections asked for", 1);
        boot.rt.sleep(Duration::from_micros(1 + env.below(20_000))).await;
    }
}
