//! Limits of volumes change under load, at any time: set, raised, lowered, removed. A change that
//! was acknowledged is there after a crash; one that was cut short, or has failed, may be.
//!
//! The rates are such that no request waits for longer than the run's patience, whatever is before
//! it.

use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

use base::{Duration, ErrorKind};
use pool::{VolumeInfo, VolumeLimit};

use crate::admin;
use crate::env::{Boot, Env};

/// One change after the other, until the boot ends.
pub(crate) async fn work(boot: Rc<Boot>) {
    let env = &boot.env;
    if env.settings.changes.limits == 0 {
        return;
    }
    let next = || env.answered.get() + env.below(2 * env.settings.changes.limits);
    let mut due = next();
    let mut counted = boot.volumes.waits();
    while !env.stopping.get() {
        if env.answered.get() >= due {
            change(&boot).await;
            due = next();
        }
        let waits = boot.volumes.waits();
        env.count("requests that waited for a limit", waits.limited - counted.limited);
        env.count("requests that waited for their share", waits.shared - counted.shared);
        counted = waits;
        boot.rt.sleep(Duration::from_micros(1 + env.below(2000))).await;
    }
}

/// The boot ends well: in half of the runs nothing waits any more, as at the end of a server, and
/// in the others limits hold until the last request is answered.
pub(crate) fn end(boot: &Boot) {
    if boot.env.settings.seed % 2 == 0 {
        boot.volumes.admit_all();
    }
}

async fn change(boot: &Boot) {
    let env = &boot.env;
    let all = boot.volumes.list();
    if all.is_empty() {
        return;
    }
    let info = &all[env.below(all.len() as u64) as usize];
    let (id, new) = (info.id.0, draw(env));
    env.limits.borrow_mut().entry(id).or_insert_with(|| vec![info.limit]).push(new);
    env.note(format!("limits {} to {new:?}", info.name));
    env.count("changes of limits", 1);
    match boot.volumes.set_limit(&info.name, new).await {
        Ok(()) => drop(env.limits.borrow_mut().insert(id, vec![new])),
        // The volume was deleted meanwhile.
        Err(e)
            if e.kind == ErrorKind::NotFound && boot.volumes.pool().volume(info.id).is_none() => {}
        Err(e) => admin::judge(env, "a change of a limit", &e),
    }
}

fn draw(env: &Env) -> Option<VolumeLimit> {
    let one_of = |choices: [u32; 4]| choices[env.below(4) as usize];
    let iops = NonZeroU32::new(one_of([0, 200, 1000, 20_000]));
    let bytes_per_second = NonZeroU64::new(u64::from(one_of([0, 0, 16, 256])) << 20);
    let burst_ms = NonZeroU32::new(one_of([1, 1, 20, 500]))?;
    let any = iops.is_some() || bytes_per_second.is_some();
    any.then_some(VolumeLimit { iops, bytes_per_second, burst_ms })
}

/// After an open: what the pool says of its volumes.
pub(crate) fn check(env: &Env, volumes: &[VolumeInfo]) {
    let mut limits = env.limits.borrow_mut();
    for info in volumes {
        let allowed = limits.entry(info.id.0).or_insert_with(|| vec![None]);
        if !allowed.contains(&info.limit) && !env.beyond() {
            let text =
                format!("{} is limited to {:?}, not to one of {allowed:?}", info.name, info.limit);
            drop(limits);
            env.fail(text);
        }
        *allowed = vec![info.limit];
    }
}
