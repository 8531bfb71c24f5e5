//! The cache of a run: it is attached, opened, closed, detached, and lost.
//!
//! A cache that is lost was there when the boot before ended, however it ended. The pool is opened without it, the model is set back to the cut that the
//! pool says it holds, and everything is compared; then the story goes on from there, with a new cache or without one.

use std::cell::Cell;
use std::rc::Rc;

use cache::{Cache, CacheStatus, CreateOptions};
use pool::{Pool, PoolError};
use rt::Rt;
use volume::Volumes;

use crate::env::{Boot, Env};
use crate::faults::Devices;
use crate::settings::CacheDamage;
use crate::story::Coverage;
use crate::verify::verify;

/// What is known of pool and cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// The pool has no cache.
    #[default]
    None,
    /// It was about to be attached, or detached, when the boot ended.
    Doubtful,
    /// The pool has a cache.
    Attached,
    /// It had one, which is gone.
    Lost,
    /// As `Lost`, and the model knows.
    SetBack,
}

/// Between two boots: the cache's device is gone, or not.
pub(crate) fn perhaps_lose(env: &Env, attachment: &Cell<Attachment>) {
    let Some(plan) = &env.settings.cache else { return };
    if attachment.get() != Attachment::Attached {
        return;
    }
    let struck = env.cache_struck.get() && (plan.damage == CacheDamage::Dies || env.one_in(2));
    if struck || plan.lost > 0 && env.one_in(plan.lost) {
        env.note("the cache is lost");
        env.count("caches lost", 1);
        attachment.set(Attachment::Lost);
    }
}

/// Why the program ends itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Over {
    /// The pool is beyond repair, which may be beyond the budget; or nobody can say any more what it should hold.
    Refused,
    /// The cache's device was struck, and is of no use: the story goes on without it.
    CacheFailed,
}

fn judge(env: &Env, what: &str, outcome: Result<(), PoolError>) -> Result<(), Over> {
    match outcome {
        Ok(()) => Ok(()),
        Err(e) if env.errors_allowed() => {
            env.note(format!("{what}: {:?}: {e}", e.kind));
            Err(if env.beyond() { Over::Refused } else { Over::CacheFailed })
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
    if env.cache_struck.get() && matches!(attachment.get(), Attachment::Attached | Attachment::Doubtful) {
        env.note("the cache is given up");
        attachment.set(Attachment::Lost);
    }
}

/// Opens the pool's cache; goes on without one that is lost; attaches one to a pool that has none, or not.
pub(crate) async fn open(
    env: &Rc<Env>,
    rt: &Rt,
    pool: &Pool,
    devices: &Devices,
    attachment: &Cell<Attachment>,
    may_attach: bool,
) -> Result<Option<Cache>, Over> {
    let (Some(file), Some(plan)) = (&devices.cache, &env.settings.cache) else { return Ok(None) };
    let named = pool.cache_uuid().is_some();
    match (attachment.get(), named) {
        // It held nothing that the pool lacked when its device failed.
        (_, false) if env.cache_struck.get() => {
            env.count("caches that failed and were not missed", 1);
            attachment.set(Attachment::None);
        }
        (Attachment::Attached | Attachment::Lost, false) => env.fail("the pool does not know its cache any more"),
        (Attachment::None, true) => env.fail("the pool names a cache that was detached"),
        (Attachment::Lost | Attachment::SetBack, _) => forget(env, rt, pool, devices, attachment).await?,
        (_, true) => {}
        (_, false) => attachment.set(Attachment::None),
    }
    if pool.cache_uuid().is_none() {
        if !may_attach || env.one_in(4) {
            env.count("boots without a cache, of runs with one", 1);
            return Ok(None);
        }
        devices.renew_cache();
        env.model.borrow_mut().attach(pool.published().0);
        attachment.set(Attachment::Doubtful);
        let options = CreateOptions { bucket_bytes: plan.bucket_bytes, journal_bytes: Some(plan.journal_bytes) };
        let uuid = std::array::from_fn(|_| env.below(256) as u8);
        judge(env, "creating the cache", cache::create(rt, file, pool, &options, uuid).await)?;
        env.note("a cache is attached");
        env.count("caches attached", 1);
    }
    attachment.set(Attachment::Attached);
    let cache = match Cache::open(rt, file, pool, plan.settings.clone()).await {
        Ok(cache) => cache,
        Err(e) => {
            let over = judge(env, "opening the cache", Err(e)).err().unwrap_or(Over::Refused);
            if over == Over::CacheFailed {
                env.count("struck caches that were refused", 1);
                attachment.set(Attachment::Lost);
            }
            return Err(over);
        }
    };
    env.count("opens with a cache", 1);
    *env.cache.borrow_mut() = Some(cache.clone());
    let gauge = cache.clone();
    let gauge = Box::new(move || (gauge.epoch().0, gauge.pool().published().0));
    right(env, env.model.borrow_mut().open_cache(pool.published().0, gauge));
    Ok(Some(cache))
}

/// The pool goes on alone, as it was when its last cut was taken. All of it is compared before anything else.
async fn forget(
    env: &Rc<Env>,
    rt: &Rt,
    pool: &Pool,
    devices: &Devices,
    attachment: &Cell<Attachment>,
) -> Result<(), Over> {
    if attachment.get() == Attachment::Lost {
        if env.cache_lost_blocks.get() {
            // Those blocks are in no cut; the others are, and nobody knows any more which is which.
            env.count("runs that ended over dirty blocks lost", 1);
            return Err(Over::Refused);
        }
        let published = pool.published().0;
        env.note(format!("without its cache, the pool is of epoch {published}"));
        right(env, env.model.borrow_mut().set_back(published));
        attachment.set(Attachment::SetBack);
        devices.renew_cache();
    }
    let listener = env.world.listener();
    let alone = Boot { env: env.clone(), rt: rt.clone(), volumes: Volumes::new(pool), listener };
    verify(&Rc::new(alone)).await;
    env.count("pools compared without their cache", 1);
    judge(env, "forgetting the cache", pool.set_cache_uuid(None).await)?;
    attachment.set(Attachment::None);
    Ok(())
}

/// The cache is closed, or detached.
pub(crate) async fn close(boot: &Boot, cache: &Cache, attachment: &Cell<Attachment>) -> Result<(), Over> {
    let env = &boot.env;
    let detach = env.settings.cache.as_ref().is_some_and(|plan| plan.detach > 0 && env.one_in(plan.detach));
    if !detach {
        let outcome = cache.close().await;
        env.model.borrow_mut().look();
        return judge(env, "closing the cache", outcome).inspect_err(|_| give_up_if_struck(env, attachment));
    }
    attachment.set(Attachment::Doubtful);
    let mut outcome = cache.detach().await;
    if outcome.is_err() && env.host_full.get() {
        outcome = cache.detach().await;
    }
    judge(env, "detaching the cache", outcome).inspect_err(|_| give_up_if_struck(env, attachment))?;
    env.note("the cache is detached");
    env.count("caches detached", 1);
    attachment.set(Attachment::None);
    Ok(())
}

/// Adds what an open cache has counted.
pub(crate) fn count(s: &CacheStatus, c: &mut Coverage) {
    c.add("cache: blocks hit", s.hits);
    c.add("cache: blocks missed", s.misses);
    c.add("cache: blocks promoted", s.promoted);
    c.add("cache: buckets evicted", s.evicted);
    c.add("cache: bad clean blocks read from the pool", s.refetched);
    c.add("cache: bad dirty blocks met", s.lost);
    c.add("cache: checkpoints", s.index.checkpoints);
    c.add("cache: group commits", s.journal.commits);
    c.add("cache: rounds published", s.writeback.round);
    c.add("cache: records replayed", s.replay.records);
    c.add("cache: blocks that had not arrived", s.replay.dropped_blocks);
    c.add("cache: boots that ended with dirty blocks", u64::from(s.dirty_bytes > 0));
    c.add("cache: boots that ended more than half dirty", u64::from(s.dirty_bytes * 2 > s.size_bytes));
}
