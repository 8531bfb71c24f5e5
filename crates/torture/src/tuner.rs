//! Settings of pool and cache change under load, at any time, to anything that they may be. They
//! hold until the boot ends: the next one opens with those of the run.

use std::rc::Rc;

use base::Duration;
use cache::{LagPolicy, Promote};

use crate::cached;
use crate::env::{Boot, Env};

fn one_of<T: Copy>(env: &Env, choices: &[T]) -> T {
    choices[env.below(choices.len() as u64) as usize]
}

fn ms_of(env: &Env, choices: &[u64]) -> Duration {
    Duration::from_millis(one_of(env, choices))
}

/// One change after the other, until the boot ends.
pub(crate) async fn work(boot: Rc<Boot>) {
    let env = &boot.env;
    let next = || env.answered.get() + env.below(2 * env.settings.changes.settings);
    let mut due = next();
    while !env.stopping.get() {
        if env.answered.get() >= due {
            if env.one_in(4) {
                set_pool(&boot)
            } else {
                set_cache(&boot)
            }
            due = next();
        }
        boot.rt.sleep(Duration::from_micros(1 + env.below(2000))).await;
    }
}

fn set_pool(boot: &Boot) {
    let (env, pool) = (&boot.env, boot.volumes.pool());
    let mut new = pool.current_settings();
    match env.below(3) {
        0 => new.commit_interval = ms_of(env, &[2, 20, 200, 1000, 5000]),
        1 => new.dirty_nodes = one_of(env, &[16, 64, 200]),
        _ => new.loaded_groups = one_of(env, &[2, 4, 16, 256]),
    }
    env.note(format!("sets the pool: {new:?}"));
    env.count("changes of the pool's settings", 1);
    if let Err(e) = pool.set(new) {
        env.fail(format!("setting the pool: {e}"));
    }
}

fn set_cache(boot: &Boot) {
    let env = &boot.env;
    let (Some(cache), Some(plan)) = (boot.volumes.cache(), &env.settings.cache) else { return };
    let mut new = cache.current_settings();
    draw(env, &mut new);
    env.note(format!("sets the cache: {new:?}"));
    env.count("changes of the cache's settings", 1);
    let (min, max) = (new.writeback.min, new.writeback.max);
    let limit = cached::allowed_lag(plan, &new);
    if let Err(e) = cache.set(new) {
        env.fail(format!("setting the cache: {e}"));
    }
    env.model.borrow_mut().change_lag(limit);
    let rate = cache.status().writeback.rate;
    if !(min..=max).contains(&rate) {
        env.fail(format!("the rate of write-back is {rate}, outside of {min} to {max}"));
    }
}

fn draw(env: &Env, new: &mut cache::Settings) {
    match env.below(9) {
        0 => {
            let max = one_of(env, &[1 << 20, 16 << 20, 1 << 30]);
            new.writeback = cache::rate_controller::RateSettings {
                min: one_of(env, &[64 << 10, 4 << 20]).min(max),
                max,
                idle_rate: one_of(env, &[64 << 10, 64 << 20]).min(max),
            };
        }
        1 => {
            new.dirty_target_percent = one_of(env, &[5, 20, 40, 60]);
            new.dirty_limit_percent = new.dirty_target_percent + one_of(env, &[5, 30, 35]);
        }
        2 => new.max_lag = ms_of(env, &[4, 50, 500, 30_000, 3_600_000]),
        3 => new.max_lag_policy = one_of(env, &LagPolicy::ALL),
        4 => new.sequential_cutoff = one_of(env, &[0, 4096, 64 << 10, 4 << 20]),
        5 => {
            new.promote = one_of(env, &Promote::ALL);
            new.promote_blocks = one_of(env, &[0, 4, 64]);
        }
        6 => {
            new.gc_slice = Duration::from_micros(one_of(env, &[0, 10, 200]));
            new.gc_min_nodes = one_of(env, &[1, 4, 100]);
            new.gc_pause = ms_of(env, &[0, 1, 100]);
        }
        7 => {
            new.targets.read = Duration::from_micros(one_of(env, &[0, 1, 500, 5000]));
            new.targets.write = Duration::from_micros(one_of(env, &[0, 1, 500, 5000]));
        }
        _ => new.journal_interval = ms_of(env, &[1, 20, 1000]),
    }
}
