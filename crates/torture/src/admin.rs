//! Volumes come, go and change their size, while clients use them.

use std::rc::Rc;

use base::{Duration, ErrorKind, SECTOR, StorageError};

use crate::env::{Boot, Env};
use crate::model::Model;
use crate::model::volume::DoubtfulResize;

/// Does something to some volume now and then, until the boot ends.
pub(crate) async fn administrate(boot: Rc<Boot>) {
    let env = boot.env.clone();
    loop {
        let every = env.settings.admin;
        let none = env.model.borrow().live().is_empty();
        let due = env.answered.get() + if none { 0 } else { env.below(2 * every.max(1)) };
        while env.answered.get() < due || (every == 0 && !none) {
            if env.stopping.get() {
                return;
            }
            boot.rt.sleep(Duration::from_millis(1)).await;
        }
        if env.stopping.get() {
            return;
        }
        step(&boot).await;
        boot.rt.sleep(Duration::from_micros(1 + env.below(5000))).await;
    }
}

async fn step(boot: &Rc<Boot>) {
    let env = &boot.env;
    let name = format!("vol{}", env.below(env.settings.names as u64));
    let known = env.model.borrow().live().into_iter().find(|(n, _)| *n == name);
    match known {
        Some((_, id)) => match env.below(4) {
            0 => delete(boot, &name, id).await,
            1 => list(boot),
            _ => resize(boot, &name, id).await,
        },
        None if !env.model.borrow().has(&name) => create(boot, &name).await,
        None => {}
    }
}

fn size(env: &Env, sector: u64) -> u64 {
    if env.settings.huge && env.one_in(3) {
        return [1 << 30, 1 << 40, 1 << 50][env.below(3) as usize] - env.below(3) * sector;
    }
    if env.settings.full_size {
        return env.settings.volume_bytes;
    }
    let blocks = 1 + env.below(env.settings.volume_bytes / 4096);
    if env.one_in(3) {
        (blocks * 4096 / sector).saturating_sub(env.below(7)).max(1) * sector
    } else {
        blocks * 4096
    }
}

async fn create(boot: &Rc<Boot>, name: &str) {
    let env = &boot.env;
    let sector = if env.one_in(4) { 4096 } else { SECTOR as u64 };
    let size = size(env, sector);
    let id = env.model.borrow_mut().begin_create(name, size, sector as u32);
    env.note(format!("creates {name}, number {id}, of {size} bytes, sector {sector}"));
    let ended = has_ended(boot, "");
    let outcome = boot.volumes.create(name, size, sector as u32).await.map(|_| ());
    env.note(format!("create {name}: {}", tell(&outcome)));
    env.count("create", 1);
    env.model.borrow_mut().end_create(name, outcome.is_ok());
    if let Err(e) = outcome {
        // Snapshots take places in the table of volumes, too.
        if e.kind != ErrorKind::Limit || env.settings.changes.snapshots == 0 {
            judge(env, "create", &e);
        }
        if boot.volumes.open(name).is_some() {
            env.fail(format!("the creation of {name} failed, and it is there: {e}"));
        }
        // Only a superblock can name it, and one whose write is reported as failed may be there
        // after all: the next open tells. Else the pool has given it up, for good. While it is in
        // doubt the name is not used again.
        let perhaps = !ended && has_ended(boot, "superblock write");
        env.count("creations of which nobody could say whether they happened", u64::from(perhaps));
        if !perhaps {
            env.model.borrow_mut().forget(name);
        }
    }
}

/// The pool takes no more writes, over this.
fn has_ended(boot: &Rc<Boot>, what: &str) -> bool {
    boot.volumes.pool().status().pool.trouble.is_some_and(|why| why.contains(what))
}

async fn delete(boot: &Rc<Boot>, name: &str, id: u32) {
    let env = &boot.env;
    let has_snapshots = env.model.borrow().snapshots_of(id).next().is_some();
    let being_taken = env.model.borrow().is_being_taken(id);
    // Of a volume that has one the engine refuses, as `snapshots.rs` checks. Of one of which the
    // first is being taken, either may come first.
    if has_snapshots && !(being_taken && env.one_in(2)) {
        return;
    }
    env.model.borrow_mut().begin_delete(name);
    env.note(format!("deletes {name}, number {id}"));
    let outcome = boot.volumes.delete(name).await;
    env.note(format!("delete {name}: {}", tell(&outcome)));
    env.count("delete", 1);
    match outcome {
        Ok(()) => {
            if env.model.borrow().snapshots_of(id).any(|(_, s)| s.is_settled()) {
                env.fail(format!("{name} was deleted, and it has a snapshot"));
            }
            env.model.borrow_mut().forget(name);
        }
        Err(e) if e.kind == ErrorKind::Invalid && being_taken => {
            env.model.borrow_mut().keep(name);
            env.count("snapshots: volumes kept by one that was just being taken", 1);
        }
        Err(e) => judge(env, "delete", &e),
    }
}

async fn resize(boot: &Rc<Boot>, name: &str, id: u32) {
    let env = &boot.env;
    let Some((old, sector, busy)) = ({
        let model = env.model.borrow();
        model.volume(id).map(|v| (v.size, u64::from(v.sector), v.tail_busy()))
    }) else {
        return;
    };
    let mut to = size(env, sector);
    if env.one_in(3) {
        // A little: by sectors.
        to = ((old / sector + env.below(20)).saturating_sub(10).max(1) * sector).min(1 << 50);
    }
    // A change of zeros that reaches the end, and so the last block, must know where that is.
    if busy && (to % 4096 != 0 || old % 4096 != 0) {
        return;
    }
    let Some(op) = env.model.borrow_mut().begin_resize(id, to) else { return };
    env.model.borrow_mut().note_size(id);
    env.begins(op, id, if to < old { "shrink to" } else { "grow to" }, 0, 0);
    env.note(format!("op {op}: resizes {name} from {old} to {to} bytes"));
    env.note_change();
    let outcome = boot.volumes.resize(name, to).await;
    env.count(if to < old { "shrink" } else { "grow" }, 1);
    let now = boot.volumes.open(name).and_then(|v| v.info()).map_or(old, |i| i.size_bytes);
    env.ends(op, tell(&outcome));
    if outcome.is_ok() && now != to {
        env.fail(format!("resize of {name} from {old} to {to} bytes: now it has {now}"));
    }
    match outcome {
        Ok(()) => {
            let mut model = env.model.borrow_mut();
            model.end_resize(id, op, to, true);
            model.note_size(id);
        }
        Err(e) => {
            let reads = env.cannot_reach(id) || env.unreachable.borrow().checksums();
            if !reads || e.kind == ErrorKind::NoSpace {
                judge(env, "resize", &e);
            }
            give_up_resize(&mut env.model.borrow_mut(), id, op, old, to, now);
        }
    }
}

/// Either size may be the durable one.
fn give_up_resize(model: &mut Model, id: u32, op: u64, old: u64, to: u64, now: u64) {
    model.end_resize(id, op, now, false);
    model.note_size(id);
    let done = now != old;
    model.doubt_size(id, DoubtfulResize { size: if done { old } else { to }, op, done });
}

fn list(boot: &Rc<Boot>) {
    let env = &boot.env;
    let found = boot.volumes.list();
    let live = env.model.borrow().live();
    for (name, id) in live {
        let Some(f) = found.iter().find(|f| f.name == name) else {
            env.fail(format!("volume {name:?} is not in the list: {found:?}"))
        };
        let model = env.model.borrow();
        let (least, most) = model.volume(id).map_or((0, u64::MAX), |v| v.sizes());
        if model.volume(id).is_some_and(|v| !v.may_be_in(f.cache_mode)) {
            env.fail(format!("volume {name:?} is in another mode: {f:?}"));
        }
        if f.size_bytes != least && f.size_bytes != most {
            env.fail(format!("volume {name:?} should have {least} or {most} bytes: {f:?}"));
        }
    }
    env.count("list", 1);
}

fn tell(outcome: &Result<(), StorageError>) -> String {
    match outcome {
        Ok(()) => "done".to_owned(),
        Err(e) => format!("failed: {:?}: {e}", e.kind),
    }
}

pub(crate) fn judge(env: &Env, what: &str, e: &StorageError) {
    let allowed = match e.kind {
        ErrorKind::NoSpace => {
            env.count("volume operations refused for want of space", 1);
            env.host_full.get() || what != "delete"
        }
        ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Missing => env.errors_allowed(),
        _ => false,
    };
    if !allowed {
        env.fail(format!("{what} failed: {:?}: {e}", e.kind));
    }
}

/// Ordinary volumes, so that there is something to work on from the start.
pub(crate) async fn begin(boot: &Rc<Boot>) {
    let wanted = 1 + boot.env.below(boot.env.settings.names as u64);
    for i in 0..wanted {
        let name = format!("vol{i}");
        if !boot.env.model.borrow().has(&name) {
            create(boot, &name).await;
        }
    }
}
