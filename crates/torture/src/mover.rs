//! Devices are added, grow, are replaced, removed, taken out of use and back under load, and copies
//! made and given up, over crashes and restarts. Meanwhile victims rot, die, are absent, come back
//! as they were long before, and lose writes. Only victims go offline then, so what is on other
//! devices stays whole. No device that is needed fails in these runs. `swarm.rs` says which faults
//! do not meet moves yet.
//!
//! Chunks that moves fill are written in ascending order ([`crate::filled`]).
//!
//! In the end, with all data there, each block is where it should be, on as many devices as it
//! should be, and all of it is good: see [`crate::rest`]. When all volumes are deleted, what is
//! still to be moved comes to its end too.

use std::rc::Rc;

use base::{Duration, ErrorKind, Result};
use model::device::DeviceState;
use model::moves::MovesState;
use pool::Pool;

use crate::admin;
use crate::env::{Boot, Env};
use crate::faults::Devices;
use crate::members::members;

/// Devices that a run adds at most.
const MOST_ADDED: usize = 12;

/// One change after the other, until the boot ends.
pub(crate) async fn work(boot: Rc<Boot>, devices: Rc<Devices>) {
    let env = &boot.env;
    if env.settings.changes.moves == 0 {
        return;
    }
    let next = || env.answered.get() + 1 + env.below(2 * env.settings.changes.moves);
    let mut due = next();
    while !env.stopping.get() {
        env.check_fills();
        if env.answered.get() >= due {
            change(&boot, &devices).await;
            due = next();
        }
        boot.rt.sleep(Duration::from_micros(1 + env.below(5000))).await;
    }
}

async fn change(boot: &Boot, devices: &Devices) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    let members = members(&env.world, &devices.all());
    let (first, now) = (env.settings.devices.len(), members.len());
    let some = |n: usize| members[env.below(n as u64) as usize].path.clone();
    let stays = anchor(env);
    let may_leave: Vec<&str> = members
        .iter()
        .map(|f| f.path.as_str())
        .filter(|path| stays.as_deref() != Some(path))
        .collect();
    let some_that_leaves = || may_leave[env.below(may_leave.len() as u64) as usize].to_owned();
    let spares = spares(pool);
    let serving = now - spares.len().min(now);
    let outcome = match env.below(17) {
        0 | 1 if devices.all().len() < first + MOST_ADDED => {
            let file = devices.another();
            env.note(format!("{} is added", file.path));
            pool.moves().add_device(file, env.id()).await
        }
        2 | 3 if devices.all().len() < first + MOST_ADDED && !may_leave.is_empty() => {
            let (old, file) = (some_that_leaves(), devices.another());
            env.note(format!("{old} is replaced by {}", file.path));
            pool.moves().replace_device(&old, file, env.id()).await
        }
        // Never fewer than there were: clients may be told that the pool is full only if it is.
        4 if serving > first && !may_leave.is_empty() => {
            let old = some_that_leaves();
            env.note(format!("{old} is removed"));
            pool.moves().remove_device(&old).await
        }
        5 => {
            let most = env.settings.copies + u8::from(serving >= 2 * first);
            let copies = env.settings.copies + env.below(2) as u8;
            env.note(format!("{copies} copies"));
            if copies > most { Ok(()) } else { set_copies(env, pool, copies).await }
        }
        6 => cancel(env, pool).await,
        7 | 8 if now > 0 => {
            // Devices that are whole stay in use where another copy may be bad.
            let away = match env.settings.victims.as_slice() {
                [] => some(now),
                victims => format!("disk{}", victims[env.below(victims.len() as u64) as usize]),
            };
            env.note(format!("{away} goes offline"));
            pool.returns().offline_device(&away).await
        }
        9 | 10 if now > 0 => {
            let back = some(now);
            env.note(format!("{back} comes online"));
            match pool.returns().online_device(&back).await {
                Ok(_) => {
                    env.count("devices that came back", 1);
                    Ok(())
                }
                Err(e) if devices.may_be_lost(&back, &e) => {
                    env.count("victims that cannot come back now", 1);
                    Ok(())
                }
                failed => failed.map(|_| ()),
            }
        }
        11 if devices.all().len() < first + MOST_ADDED => {
            let file = devices.another();
            env.note(format!("{} is added as a spare", file.path));
            pool.moves().add_spare(file, env.id()).await
        }
        12 if !spares.is_empty() && !may_leave.is_empty() => {
            let spare = &spares[env.below(spares.len() as u64) as usize];
            let old = env.one_in(2).then(some_that_leaves);
            env.note(format!("the spare {spare} is used, for {old:?}"));
            let used = pool.spares().use_spare(spare, old.as_deref()).await;
            used.map(|_| env.count("spares that were used", 1))
        }
        13 => {
            env.note("chunks are spread evenly".to_owned());
            pool.moves().balance_devices().await
        }
        14 | 15 if now > 0 => {
            let path = some(now);
            match devices.grow(&path) {
                Some(size) => grow(boot, &path, size).await,
                None => Ok(()),
            }
        }
        _ => {
            pool.moves().pause_moves(env.one_in(3));
            Ok(())
        }
    };
    judge(env, outcome);
}

/// Returns a device that never leaves the pool, one that is whole, if victims may come back as they
/// were long before.
///
/// Nothing tells of an old copy of a device whether it was in use without the others since. If they
/// have all been replaced meanwhile, the pool refuses it, and should: split brain.
fn anchor(env: &Env) -> Option<String> {
    let victims = &env.settings.victims;
    let whole = (0..env.settings.devices.len()).find(|d| !victims.contains(d));
    whole.filter(|_| env.settings.faults.stale).map(|d| format!("disk{d}"))
}

async fn grow(boot: &Boot, path: &str, size: u64) -> Result<()> {
    boot.env.note(format!("{path} has {size} bytes from now on"));
    boot.volumes.pool().moves().grow_device(path, size).await?;
    boot.env.count("devices that grew", 1);
    Ok(())
}

/// Devices stay of which a cancel says that they do.
async fn cancel(env: &Env, pool: &Pool) -> Result<()> {
    let paths = || pool.status().pool.devices.into_iter().map(|d| d.path);
    let leaving = pool.moves().moves_status().leaving;
    let stay: Vec<String> = paths().filter(|path| leaving.contains(path)).collect();
    pool.moves().cancel_moves().await?;
    env.count("leaves cancelled", stay.len() as u64);
    if let Some(gone) = stay.iter().find(|&path| !paths().any(|has| has == *path)) {
        env.fail(format!("{gone} is removed, though its leave was cancelled"));
    }
    Ok(())
}

/// Changes the number of copies. A number that was acknowledged is so from then on, also after a
/// crash; one that was not may be.
async fn set_copies(env: &Env, pool: &Pool, copies: u8) -> Result<()> {
    let before = env.copies.borrow().clone();
    env.copies.borrow_mut().push(copies);
    let outcome = pool.moves().set_copies(copies).await;
    match &outcome {
        Ok(()) => *env.copies.borrow_mut() = vec![copies],
        Err(e) if e.kind == ErrorKind::Invalid => *env.copies.borrow_mut() = before,
        Err(_) => {}
    }
    outcome
}

/// The pool was opened: it keeps as many copies as it may.
pub(crate) fn check_copies(env: &Env, pool: &Pool) {
    let copies = pool.status().pool.copies;
    if !env.copies.borrow().contains(&copies) {
        env.fail(format!("the pool keeps {copies} copies, and should keep {:?}", env.copies));
    }
    *env.copies.borrow_mut() = vec![copies];
}

fn spares(pool: &Pool) -> Vec<String> {
    let devices = pool.status().pool.devices;
    devices.into_iter().filter(|d| d.state == DeviceState::Spare).map(|d| d.path).collect()
}

fn judge(env: &Env, outcome: Result<()>) {
    match outcome {
        Ok(()) => env.count("changes of the pool's devices", 1),
        // The change cannot be done as things are.
        Err(e) if matches!(e.kind, ErrorKind::Invalid | ErrorKind::NotFound) => {}
        Err(e) => admin::judge(env, "a change of the pool's devices", &e),
    }
}

/// All that is to be moved comes where it belongs.
pub(crate) async fn settle(boot: &Boot) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    if env.settings.changes.moves == 0 {
        return;
    }
    pool.moves().pause_moves(false);
    let offline = |pool: &Pool| {
        let devices = pool.status().pool.devices;
        devices.into_iter().find(|d| d.state == DeviceState::Offline).map(|d| d.path)
    };
    while let Some(path) = offline(pool) {
        if let Err(e) = pool.returns().online_device(&path).await {
            env.fail(format!("{path} does not come back: {e}"));
        }
    }
    for _ in 0..600 {
        if pool.moves().moves_status().state == MovesState::None {
            env.count("runs whose chunks all came where they belong", 1);
            return check(env, pool);
        }
        boot.rt.sleep(Duration::from_secs(1)).await;
    }
    env.fail(format!("chunks do not come where they belong: {:?}", pool.moves().moves_status()));
}

fn check(env: &Env, pool: &Pool) {
    env.check_fills();
    let devices = pool.status().pool.devices;
    if let Some(d) =
        devices.iter().find(|d| !matches!(d.state, DeviceState::Online | DeviceState::Spare))
    {
        env.fail(format!("{} is {}, and nothing is left to move", d.path, d.state));
    }
}
