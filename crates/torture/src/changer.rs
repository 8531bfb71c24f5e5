//! Changes under load of what is in front of the pool: modes of volumes, a cache that is attached
//! or detached. The promises about such changes stand in the model (`model/cuts.rs`).

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, ErrorKind, StorageError};
use cache::{Cache, CacheFile};
use pool::CacheMode;

use crate::cached::{self, Attachment};
use crate::env::{Boot, Env};
use crate::faults::Devices;

const MODES: [CacheMode; 4] =
    [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None];

/// One change after the other, until the boot ends.
pub(crate) struct Changer {
    boot: Rc<Boot>,
    devices: Rc<Devices>,
    attachment: Rc<Cell<Attachment>>,
}

impl Changer {
    pub fn new(
        boot: &Rc<Boot>,
        devices: &Rc<Devices>,
        attachment: &Rc<Cell<Attachment>>,
    ) -> Changer {
        Changer { boot: boot.clone(), devices: devices.clone(), attachment: attachment.clone() }
    }

    pub async fn work(self) {
        let env = self.boot.env.clone();
        let plan = env.settings.changes;
        let next = |every: u64| {
            if every == 0 { u64::MAX } else { env.answered.get() + env.below(2 * every) }
        };
        if plan.first_modes {
            self.first_modes().await;
        }
        let (mut mode, mut cache) = (next(plan.mode), next(plan.cache));
        while !env.stopping.get() {
            let now = env.answered.get();
            if now >= mode {
                self.switch().await;
                self.flush_all().await;
                mode = next(plan.mode);
            } else if now >= cache {
                self.attach_or_detach().await;
                self.flush_all().await;
                cache = next(plan.cache);
            }
            self.boot.rt.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Flushes all volumes, if the settings ask for that: what was answered before is durable from
    /// now on.
    async fn flush_all(&self) {
        let env = &self.boot.env;
        if !env.settings.changes.flush {
            return;
        }
        let all = env.model.borrow().live();
        for (name, id) in all {
            let Some(volume) = self.boot.volumes.open(&name) else { continue };
            let from = env.model.borrow_mut().begin_flush();
            let outcome = volume.flush().await;
            if outcome.is_ok() {
                env.model.borrow_mut().end_flush(id, from);
                env.note(format!("flushed {name}"));
                env.note_flush();
            }
            judge(env, "a flush", outcome);
        }
    }

    /// Half of the volumes get another mode, most of them one that does not write back.
    async fn first_modes(&self) {
        let env = &self.boot.env;
        let all = env.model.borrow().modes();
        for (name, id, before) in all {
            if env.one_in(2) {
                // Another volume may have the name by now.
                let is_it = |(n, i): &(String, u32)| *n == name && *i == id;
                if !env.model.borrow().live().iter().any(is_it) {
                    continue;
                }
                self.switch_to(&name, id, before, MODES[env.below(4) as usize]).await;
            }
        }
    }

    async fn switch(&self) {
        let env = &self.boot.env;
        let all = env.model.borrow().modes();
        if all.is_empty() {
            return;
        }
        let (name, id, before) = &all[env.below(all.len() as u64) as usize];
        self.switch_to(name, *id, *before, MODES[env.below(4) as usize]).await;
    }

    async fn switch_to(&self, name: &str, id: u32, before: CacheMode, to: CacheMode) {
        let env = &self.boot.env;
        if to == before {
            return;
        }
        let from = env.model.borrow_mut().begin_switch(id, to);
        let op = self.begins(from, id, format!("switches {name} from {before:?} to {to:?}"));
        let outcome = self.boot.volumes.set_mode(name, to).await;
        env.model.borrow_mut().end_switch(id, from, outcome.is_ok());
        env.count("switches", 1);
        let dying = env.model.borrow().volume(id).is_none_or(|v| v.dying);
        match self.ends(op, outcome) {
            Err(e) if e.kind == ErrorKind::NotFound && dying => {}
            // Of a block that was written in part, the rest is not to be had either.
            Err(_) if env.cannot_reach(id) || env.unreachable.borrow().checksums() => {}
            outcome => judge(env, "a switch", outcome),
        }
    }

    async fn attach_or_detach(&self) {
        if self.boot.volumes.cache().is_some() {
            self.detach().await;
        } else if self.boot.volumes.pool().cache_link().cache_uuid().is_none()
            && self.attachment.get() == Attachment::None
        {
            self.attach().await;
        }
    }

    async fn attach(&self) {
        let (env, pool) = (&self.boot.env, self.boot.volumes.pool());
        let Some(file) = self.devices.another_cache() else { return };
        let uuid = std::array::from_fn(|_| env.below(256) as u8);
        self.attachment.set(Attachment::Attaching);
        let from = env.model.borrow_mut().begin_flush();
        let op = self.begins(from, 0, "attaches a cache".to_owned());
        let outcome = match self.make(&file, uuid).await {
            Ok(cache) => match self.boot.volumes.attach(cache.clone()).await {
                Ok(()) => {
                    // In one go: requests may go on from now on.
                    let published = pool.cache_link().published().0;
                    env.model.borrow_mut().end_commit(from);
                    env.model.borrow_mut().attach(published);
                    cached::serve(env, &cache, &file);
                    self.attachment.set(Attachment::Attached);
                    env.count("caches attached under load", 1);
                    Ok(())
                }
                Err(e) => self.undo(cache.detach().await, e),
            },
            Err(e) if pool.cache_link().cache_uuid() == Some(uuid) => {
                self.undo(pool.cache_link().set_cache_uuid(None).await, e)
            }
            Err(e) => Err(e),
        };
        judge(env, "attaching a cache", self.ends(op, outcome));
    }

    async fn make(&self, file: &CacheFile, uuid: [u8; 16]) -> Result<Cache, StorageError> {
        let (env, pool, rt) = (&self.boot.env, self.boot.volumes.pool(), &self.boot.rt);
        let Some(plan) = &env.settings.cache else { unreachable!("there is a device for a cache") };
        cache::create(rt, file, pool, &cached::create_options(plan), uuid).await?;
        Cache::open(rt, file, pool, plan.settings.clone()).await
    }

    /// An attach has failed; the pool has no cache again, if `undone`.
    fn undo(&self, undone: Result<(), StorageError>, e: StorageError) -> Result<(), StorageError> {
        if undone.is_ok() {
            self.attachment.set(Attachment::None);
        }
        Err(e)
    }

    async fn detach(&self) {
        let env = &self.boot.env;
        self.attachment.set(Attachment::Detaching);
        let from = env.model.borrow_mut().begin_flush();
        let op = self.begins(from, 0, "detaches the cache".to_owned());
        let outcome = self.boot.volumes.detach().await;
        if outcome.is_ok() {
            env.model.borrow_mut().end_commit(from);
            env.model.borrow_mut().detach();
            env.take_cache_counters();
            env.cache.borrow_mut().take();
            env.was_struck.set(env.errors_allowed());
            env.cache_struck.set(false);
            env.cache_lost_blocks.set(false);
            self.attachment.set(Attachment::None);
            env.count("caches detached under load", 1);
        }
        match self.ends(op, outcome) {
            Err(_) if env.unreachable.borrow().any() => {
                env.count("detaches refused over what cannot be reached", 1);
            }
            outcome => judge(env, "detaching the cache", outcome),
        }
    }

    fn begins(&self, from: u64, volume: u32, what: String) -> u64 {
        let op = from | 1 << 62;
        self.boot.env.note_change();
        self.boot.env.begins(op, volume, "change in front of the pool", 0, 0);
        self.boot.env.note(format!("op {op}: {what}"));
        op
    }

    fn ends(&self, op: u64, outcome: Result<(), StorageError>) -> Result<(), StorageError> {
        let how = outcome
            .as_ref()
            .map_or_else(|e| format!("failed: {:?}: {e}", e.kind), |()| "done".to_owned());
        self.boot.env.note_change();
        self.boot.env.note(format!("op {op}: {how}"));
        self.boot.env.ends(op, how);
        outcome
    }
}

fn judge(env: &Env, what: &str, outcome: Result<(), StorageError>) {
    let Err(e) = outcome else { return };
    env.count("changes in front of the pool that failed", 1);
    let allowed = match e.kind {
        ErrorKind::NoSpace => env.host_full.get() || env.errors_allowed(),
        ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Missing => env.errors_allowed(),
        _ => false,
    };
    if !allowed {
        env.fail(format!("{what} failed: {:?}: {e}", e.kind));
    }
}
