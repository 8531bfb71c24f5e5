//! Eviction: buckets are freed ahead of need.

use std::rc::Rc;
use std::time::Duration;

use format::cache::journal::blocks_for;
use queue::Class;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::space::request_room::Room;
use crate::space::survivors::SurvivorMover;
use crate::store::buckets::Victim;
use crate::store::ring_room::{JournalRoom, Share};
use crate::transfer::journal_writer::JournalWriter;

/// Buckets evicted, or looked at, in one go.
const SLICE: usize = 64;
/// Buckets whose survivors move at once.
const MOST_LEAVING: u32 = 32;
/// The wait before the next try after a write of the journal has failed.
const AGAIN: Duration = Duration::from_millis(200);

/// Evicts buckets ahead of need.
pub(crate) struct Evictor {
    core: Core,
    failures: Rc<Failures>,
    journal: Rc<JournalWriter>,
    room: Rc<Room>,
    survivors: Rc<SurvivorMover>,
}

impl Evictor {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        journal: &Rc<JournalWriter>,
        room: &Rc<Room>,
        survivors: &Rc<SurvivorMover>,
    ) -> Rc<Evictor> {
        Rc::new(Evictor {
            core: core.clone(),
            failures: failures.clone(),
            journal: journal.clone(),
            room: room.clone(),
            survivors: survivors.clone(),
        })
    }

    /// Keeps a reserve of free buckets: evicts, and makes the journal durable so that what was
    /// evicted may be used.
    pub(crate) async fn reclaimer(&self) {
        while !self.core.health().is_closed() {
            let wait = self.core.wakes().reclaim.wait();
            if !self.core.due().wants_victims() {
                wait.await;
                continue;
            }
            let Ok(mut room) = self.room.ring_room(Share::Upkeep, blocks_for(SLICE, 0)).await
            else {
                // Failed, or closed.
                return;
            };
            let evicted = self.evict_some(&mut room);
            drop(room);
            if self.core.state().buckets.reuse().pending() > 0 {
                let target = self.core.state().journal().pushed();
                if let Err(e) = self.journal.durable(target, Class::Commit).await {
                    if self.failures.check_failed().is_err() {
                        return;
                    }
                    tracing::warn!(cache = %self.core.path(), "evicted buckets cannot be reused \
                        yet: the journal write failed: {e}");
                    self.core.rt().sleep(AGAIN).await;
                    continue;
                }
                self.core.state_mut().free_durable();
            } else if evicted == 0
                && (self.core.state().buckets.usage().leaving() > 0
                    || !self.core.levels().is_low_on_buckets())
            {
                // Moves end by themselves, and eviction ahead of need has time.
                wait.await;
            } else if evicted == 0 {
                // All is dirty or being read: a pass makes it clean, and reads end by themselves.
                self.core.wakes().pass.notify();
                wait.await;
            }
            self.core.rt().yield_now().await;
        }
    }

    /// Evicts until enough buckets are free, or soon will be. Returns how many it has evicted.
    fn evict_some(&self, room: &mut JournalRoom) -> usize {
        // Somewhat more than the least, so that buckets are not short again with the next one.
        let enough = self.core.levels().free_target() + self.core.levels().free_target() / 4 + 1;
        let forced = self.core.levels().must_evict_now();
        let (mut evicted, mut victims) = (0, Vec::new());
        let mut st = self.core.state_mut();
        while evicted < SLICE {
            let leaving = if forced { 0 } else { st.buckets.usage().leaving() };
            if st.buckets.reuse().free_soon() + leaving >= enough || leaving >= MOST_LEAVING {
                break;
            }
            match st.evict(room, forced) {
                Some(Victim::Evicted(..)) => evicted += 1,
                Some(Victim::Leaving(id, generation)) => victims.push((id, generation)),
                None => break,
            }
        }
        drop(st);
        victims
            .into_iter()
            .for_each(|(id, generation)| self.survivors.keep_survivors(id, generation));
        evicted
    }
}
