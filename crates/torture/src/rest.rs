//! A run at rest, with all its data: no fault happens any more, and all devices answer.
//!
//! All devices come back into use, all chunks come where they belong, and a scrub reads every copy
//! of everything. Then nothing is bad any more: the offline check finds nothing, and each block
//! group has as many copies as the pool keeps, whole, and on different devices in use.
//!
//! A device that has lost all its superblocks is replaced, as its user would do. Where moves say
//! that they wait for room, a device is added.

use std::rc::Rc;

use base::{Duration, ErrorKind};
use format::page::{Chunk, GroupKind};
use model::device::DeviceState;
use model::moves::MovesState;
use model::scrub::{PoolScrub, ScrubState};
use offline::pool::check::Report;
use offline::pool::dump::PoolItem;
use offline::{Severity, Subject};
use pool::{Pool, ScrubOptions};

use crate::env::{Boot, Env};
use crate::faults::Devices;

/// The time in seconds that everything may take to come where it belongs. Faults that rested on a
/// device for long make its own return slow: a try may come as late as five minutes after the one
/// before.
const SECONDS: u64 = 1200;
/// The time in seconds that moves may wait for room before a device is added.
const WAITS: u64 = 30;
/// Devices that are added for the sake of room, at most.
const MOST_ADDED: u64 = 3;

/// Brings everything back to where it belongs, and heals what is bad.
pub(crate) async fn restore(boot: &Boot, devices: &Devices) {
    if boot.env.beyond() {
        return;
    }
    settle(boot, devices).await;
    scrub(boot).await;
}

/// All devices are in use, and all chunks are where they belong.
async fn settle(boot: &Boot, devices: &Devices) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    pool.moves().pause_moves(false);
    let (mut waited, mut added) = (0, 0);
    for _ in 0..SECONDS {
        bring_back(boot, devices).await;
        let moves = pool.moves().moves_status();
        if moves.state == MovesState::None && all_in_use(pool) {
            env.count("at rest: runs with all chunks where they belong", 1);
            env.count("at rest: runs with moves that needed more room", u64::from(added > 0));
            return env.check_fills();
        }
        waited = if moves.state == MovesState::Waiting { waited + 1 } else { 0 };
        let for_room = moves.trouble.as_deref().is_some_and(|why| why.contains("room"));
        if waited > WAITS && for_room && added < MOST_ADDED {
            (waited, added) = (0, added + 1);
            let file = devices.another();
            env.note(format!("{} is added, as moves wait for room", file.path));
            if let Err(e) = pool.moves().add_device(file, env.id()).await {
                env.fail(format!("at rest: a device cannot be added: {:?}: {e}", e.kind));
            }
        }
        boot.rt.sleep(Duration::from_secs(1)).await;
    }
    let states: Vec<_> =
        pool.status().pool.devices.into_iter().map(|d| (d.path, d.state)).collect();
    env.fail(format!(
        "at rest: not all comes where it belongs: {states:?}\n{:?}",
        pool.moves().moves_status()
    ));
}

fn all_in_use(pool: &Pool) -> bool {
    let devices = pool.status().pool.devices;
    devices.iter().all(|d| matches!(d.state, DeviceState::Online | DeviceState::Spare))
}

/// Takes devices into use that are not, or replaces them where they are beyond use.
async fn bring_back(boot: &Boot, devices: &Devices) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    for d in pool.status().pool.devices {
        // One that is offline and has lost its superblocks has no path.
        let name = if d.path.is_empty() { &d.id } else { &d.path };
        let lost = match d.state {
            DeviceState::Offline
            | DeviceState::Failed
            | DeviceState::Stale
            | DeviceState::Flapping => {
                match pool.returns().online_device(name).await {
                    // The device comes back by itself just now, or has left the pool.
                    Err(e) if matches!(e.kind, ErrorKind::Invalid | ErrorKind::NotFound) => false,
                    Ok(there) => !there,
                    Err(e) if devices.may_be_lost(&d.path, &e) => true,
                    Err(e) => env
                        .fail(format!("at rest: {} does not come back: {:?}: {e}", d.path, e.kind)),
                }
            }
            DeviceState::Missing => true,
            _ => false,
        };
        if !lost {
            continue;
        }
        if env.settings.victims.is_empty() {
            env.fail(format!("at rest: {} ({}) is lost, and nothing struck it", d.path, d.id));
        }
        let file = devices.another();
        env.note(format!("{} is lost, and replaced by {}", d.id, file.path));
        match pool.moves().replace_device(&d.id, file, env.id()).await {
            Ok(()) => env.count("at rest: lost devices that were replaced", 1),
            // The device leaves already, or has left.
            Err(e) if matches!(e.kind, ErrorKind::Invalid | ErrorKind::NotFound) => {}
            Err(e) => env.fail(format!("at rest: replacing {}: {:?}: {e}", d.id, e.kind)),
        }
    }
}

/// A whole scrub. It finds nothing lost, and heals all that is bad.
async fn scrub(boot: &Boot) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    if matches!(pool.scrubs().scrub_status().await.state, ScrubState::Running | ScrubState::Paused)
        && let Err(e) = pool.scrubs().cancel_scrub().await
        && e.kind != ErrorKind::Invalid
    {
        env.fail(format!("at rest: a scrub cannot be cancelled: {:?}: {e}", e.kind));
    }
    if let Err(e) = pool.scrubs().start_scrub(ScrubOptions::default()).await {
        env.fail(format!("at rest: a scrub cannot be started: {:?}: {e}", e.kind));
    }
    for _ in 0..SECONDS {
        let status = pool.scrubs().scrub_status().await;
        if status.state == ScrubState::Done {
            return judge_scrub(env, &status);
        }
        boot.rt.sleep(Duration::from_secs(1)).await;
    }
    env.fail(format!("at rest: a scrub does not end: {:?}", pool.scrubs().scrub_status().await));
}

fn judge_scrub(env: &Rc<Env>, s: &PoolScrub) {
    env.count("at rest: bad copies that the last scrub healed", s.healed);
    if s.lost > 0 || !s.lost_blocks.is_empty() || s.bad != s.healed {
        env.fail(format!("at rest: a scrub leaves something bad, or lost: {s:?}"));
    }
    if s.bad > 0 && env.never_struck() {
        env.fail(format!("at rest: a scrub found bad blocks, and nothing went wrong: {s:?}"));
    }
}

/// Fails if the offline check has found anything, or if a block group (those in `items`) does not
/// have all its copies.
pub(crate) fn judge(env: &Env, report: &Report, items: &[PoolItem]) {
    let bad = report.problems.iter().filter(|p| {
        p.severity > Severity::Note || matches!(p.subject, Subject::Superblock | Subject::Device)
    });
    let bad: Vec<String> = bad.map(ToString::to_string).collect();
    if !bad.is_empty() {
        env.fail(format!("at rest, after a scrub, the check found:\n{}", bad.join("\n")));
    }
    let states: Vec<_> = report.devices.iter().map(|d| (&d.path, d.state)).collect();
    if report.degraded || report.devices.iter().any(|d| !d.is_whole()) {
        env.fail(format!("at rest, not all devices are in use: {states:?}"));
    }
    if !env.copies.borrow().contains(&report.copies) {
        env.fail(format!("at rest, the pool keeps {} copies: {:?}", report.copies, env.copies));
    }
    for item in items {
        let PoolItem::Group { group, use_, chunks, .. } = item else { continue };
        if *use_ == GroupKind::Free {
            continue;
        }
        let holds = |c: &&Chunk| {
            let state = states.get(usize::from(c.device)).and_then(|(_, state)| *state);
            !c.behind && state == Some(DeviceState::Online)
        };
        let mut on: Vec<u16> = chunks.iter().filter(holds).map(|c| c.device).collect();
        on.sort_unstable();
        on.dedup();
        if on.len() != usize::from(report.copies) || chunks.len() != on.len() {
            env.fail(format!(
                "at rest, block group {group} should have {} copies: {chunks:?}, {states:?}",
                report.copies
            ));
        }
        env.count("at rest: block groups that have all their copies", 1);
    }
}
