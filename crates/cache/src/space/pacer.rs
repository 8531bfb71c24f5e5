//! Rate of a pass: the controller's rate ([`crate::policy::rate_controller`]), or more where the
//! room or the age of the pool's image requires it.

use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK_U64, Instant};
use rt::Reason;
use rt::sync::either;

use crate::core::Core;

/// A pass that paces itself looks at its rate this often.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// While the pool's image is no older than this part of `max_lag`, only the controller and the room
/// that is gone say how fast a pass goes.
const BEGINNING: u32 = 6;

/// The speed of passes.
pub(crate) struct Pacer {
    pub(super) core: Core,
}

impl Pacer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<Pacer> {
        Rc::new(Pacer { core: core.clone() })
    }

    /// Tells the queue of the cache's device, and the pool, whether write-back has time. It has
    /// none while writers are slowed or are about to be, while a task waits until everything is
    /// published, and while the pool's image is too old.
    pub(crate) fn share_device(&self) {
        let begin = self.core.admission().begin();
        let needed = self.core.admission().has_line()
            || self.core.writeback().passes().is_urgent()
            || self.core.levels().is_late()
            || self.core.levels().load(self.core.rt().now()).gone() > 0.9 * begin;
        self.core.device().queue().set_background_patient(!needed);
        self.core.pool().hurry_pass(needed);
    }

    /// Waits until `bytes` more may be carried: at the controller's rate, or at the rate that being
    /// in time or the room requires, but never above the maximum that is set. The rate is computed
    /// anew whenever more is needed. While a task waits until everything is published (a detach, a
    /// full pool), or when the cache closes, this does not wait.
    pub(crate) async fn pace(&self, bytes: u64) {
        loop {
            let pressed = self.core.wakes().pace.wait();
            if self.core.health().is_closed() {
                return;
            }
            let now = self.core.rt().now();
            let rate = self.rate(now);
            self.share_device();
            let wait = self.core.writeback().passes_mut().take_turn(now, bytes, rate);
            if wait.is_zero() {
                break;
            }
            let turn = either(self.core.rt().sleep(wait.min(LOOK_AGAIN)), pressed);
            if rate < self.core.settings().writeback.max {
                turn.await;
            } else {
                // A writer that waits for room waits for this, and not for a slow pool.
                self.core.rt().waits(Reason::WritebackRate, turn).await;
            }
        }
        self.core.admission().carried(bytes / BLOCK_U64);
    }

    /// Bytes a second that a pass may carry now.
    fn rate(&self, now: Instant) -> u64 {
        let pressure =
            if self.core.levels().is_late() { 1.0 } else { self.core.levels().pressure() };
        let (open, cut) = self.core.levels().split_by_pass();
        let target = self.core.layout().data_blocks()
            * BLOCK_U64
            * u64::from(self.core.settings().dirty_target_percent)
            / 100;
        let max = self.core.settings().writeback.max;
        let idle = self.core.clients().quiet_for(now) > Duration::from_secs(1);
        let mut passes = self.core.writeback().passes_mut();
        let rate = passes.controlled(now, (open + cut) * BLOCK_U64, target, idle);
        let taken = passes.cuts().carried().map_or(now, |c| c.taken_at);
        let left = (self.core.settings().max_lag / 2)
            .saturating_sub(now.since(taken))
            .as_secs_f64()
            .max(0.1);
        // The whole cut is counted, also what was carried already: then the pass is somewhat too
        // fast, and so in time. While a burst begins there is no hurry, so that the pass takes
        // little speed from the burst.
        let begins = passes.age(now).unwrap_or_default() < self.core.settings().max_lag / BEGINNING;
        let in_time = if begins { 0.0 } else { (cut * BLOCK_U64) as f64 / left };
        rate.max(in_time as u64).max((max as f64 * pressure) as u64).min(max)
    }
}
