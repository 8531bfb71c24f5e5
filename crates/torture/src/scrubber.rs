//! Scrubs under load: started, paused, resumed, cancelled at any time, at any rate, over crashes
//! and restarts.
//!
//! A scrub calls no block lost that the budget of faults has left, and finds nothing bad where no
//! fault ever struck a device of the pool: what clients, commits and passes change meanwhile is no
//! fault.

use std::rc::Rc;

use base::{Duration, ErrorKind};
use model::scrub::{PoolScrub, ScrubState};
use pool::ScrubOptions;

use crate::admin;
use crate::env::{Boot, Env};

/// One change after the other, until the boot ends.
pub(crate) async fn work(boot: Rc<Boot>) {
    let env = &boot.env;
    if env.settings.changes.scrubs == 0 {
        return;
    }
    let next = || env.answered.get() + env.below(2 * env.settings.changes.scrubs);
    let mut due = next();
    let mut before = boot.volumes.pool().scrubs().scrub_status().await;
    while !env.stopping.get() {
        if env.answered.get() >= due {
            change(&boot, before.state).await;
            due = next();
        }
        let now = boot.volumes.pool().scrubs().scrub_status().await;
        check(env, &now);
        if now.state == ScrubState::Done && before.state == ScrubState::Running {
            env.count("scrubs that came to their end", 1);
        }
        before = now;
        boot.rt.sleep(Duration::from_micros(1 + env.below(5000))).await;
    }
}

async fn change(boot: &Boot, state: ScrubState) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    let rate = [None, None, Some(256 << 10), Some(4 << 20)][env.below(4) as usize];
    let what = env.below(6);
    env.note(format!("scrub: {what} at {rate:?}, was {state}"));
    env.count("changes of a scrub", 1);
    let outcome = match what {
        0..3 => pool.scrubs().start_scrub(ScrubOptions { device: None, rate }).await,
        3 => pool.scrubs().pause_scrub().await,
        4 => pool.scrubs().resume_scrub(rate).await,
        _ => pool.scrubs().cancel_scrub().await,
    };
    match outcome {
        // The scrub was in another state.
        Err(e) if e.kind == ErrorKind::Invalid => {}
        Err(e) => admin::judge(env, "a change of a scrub", &e),
        Ok(()) => {}
    }
}

/// Fails if a scrub has found what is not allowed.
fn check(env: &Env, s: &PoolScrub) {
    // Of a needed device that answers nothing, nothing is good.
    let allowed = env.beyond() || env.device_failed.get() || env.unreachable.borrow().ever();
    if (s.lost > 0 || !s.lost_blocks.is_empty()) && !allowed {
        env.fail(format!("a scrub calls blocks lost within the budget: {s:?}"));
    }
    if s.bad > 0 && env.never_struck() {
        env.fail(format!("a scrub found bad blocks, and nothing ever went wrong: {s:?}"));
    }
    if s.state == ScrubState::Never && s.bad + s.verified_bytes > 0 {
        env.fail(format!("a scrub that never was has found something: {s:?}"));
    }
}
