//! Eviction: buckets are freed ahead of need.

use std::time::Duration;

use format::cache::journal::blocks_for;
use queue::Class;

use crate::Cache;
use crate::replacement::keeps_blocks;
use crate::store::buckets::Victim;
use crate::store::ring_room::{JournalRoom, Share};

/// Buckets evicted, or looked at, in one go.
const SLICE: usize = 64;
/// Buckets whose survivors move at once.
const MOST_LEAVING: u32 = 32;
/// The wait before the next try after a write of the journal has failed.
const AGAIN: Duration = Duration::from_millis(200);

impl Cache {
    /// True if fewer buckets are free, or will be soon, than should be.
    pub(crate) fn is_short(&self) -> bool {
        let st = self.state();
        st.buckets.free() + st.buckets.pending() < self.free_target()
    }

    /// True if buckets are short; or if, of those that writers may take, fewer than half are free
    /// now.
    pub(crate) fn is_low_on_buckets(&self) -> bool {
        self.is_short()
            || self.state().buckets.free() < self.node_reserve() + self.layout().free_band() / 2
    }

    /// True if buckets are to be evicted. Where survivors have to move first, eviction begins ahead
    /// of need.
    pub(crate) fn wants_victims(&self) -> bool {
        let (target, st) = (self.free_target(), self.state());
        let soon = st.buckets.free() + st.buckets.pending() + st.buckets.leaving();
        let ahead = keeps_blocks(self.settings().policy) && soon < target + target / 8;
        drop(st);
        ahead || self.is_low_on_buckets()
    }

    /// True if room is so short that no bucket waits until its survivors have moved: they are
    /// dropped.
    pub(crate) fn must_evict_now(&self) -> bool {
        self.state().buckets.free() <= self.node_reserve() + self.layout().free_band() / 4
            || self.admission().has_line()
            || self.turns().is_dry()
            || self.wants_node_room()
    }

    /// Keeps a reserve of free buckets: evicts, and makes the journal durable so that what was
    /// evicted may be used.
    pub(crate) async fn reclaimer(&self) {
        while !self.health().is_closed() {
            let wait = self.wakes().reclaim.wait();
            if !self.wants_victims() {
                wait.await;
                continue;
            }
            let Ok(mut room) = self.ring_room(Share::Upkeep, blocks_for(SLICE, 0)).await else {
                // Failed, or closed.
                return;
            };
            let evicted = self.evict_some(&mut room);
            drop(room);
            if self.state().buckets.pending() > 0 {
                let target = self.state().journal().pushed();
                if let Err(e) = self.durable(target, Class::Commit).await {
                    if self.check_failed().is_err() {
                        return;
                    }
                    tracing::warn!(cache = %self.path(), "evicted buckets cannot be reused yet: \
                        the journal write failed: {e}");
                    self.rt().sleep(AGAIN).await;
                    continue;
                }
                self.state_mut().free_durable();
            } else if evicted == 0
                && (self.state().buckets.leaving() > 0 || !self.is_low_on_buckets())
            {
                // Moves end by themselves, and eviction ahead of need has time.
                wait.await;
            } else if evicted == 0 {
                // All is dirty or being read: a pass makes it clean, and reads end by themselves.
                self.wakes().pass.notify();
                wait.await;
            }
            self.rt().yield_now().await;
        }
    }

    /// Evicts until enough buckets are free, or soon will be. Returns how many it has evicted.
    fn evict_some(&self, room: &mut JournalRoom) -> usize {
        // Somewhat more than the least, so that buckets are not short again with the next one.
        let enough = self.free_target() + self.free_target() / 4 + 1;
        let forced = self.must_evict_now();
        let (mut evicted, mut victims) = (0, Vec::new());
        let mut st = self.state_mut();
        while evicted < SLICE {
            let leaving = if forced { 0 } else { st.buckets.leaving() };
            if st.buckets.free() + st.buckets.pending() + leaving >= enough
                || leaving >= MOST_LEAVING
            {
                break;
            }
            match st.evict(room, forced) {
                Some(Victim::Evicted(..)) => evicted += 1,
                Some(Victim::Leaving(id, generation)) => victims.push((id, generation)),
                None => break,
            }
        }
        drop(st);
        victims.into_iter().for_each(|(id, generation)| self.keep_survivors(id, generation));
        evicted
    }
}
