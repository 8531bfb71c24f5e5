//! Free buckets ahead of need, and room for what requests change.

use std::time::Duration;

use base::{ErrorKind, Result, StorageError};
use format::cache::journal::blocks_for;
use queue::Class;
use rt::Reason;
use rt::sync::{either, within};

use crate::Cache;
use crate::job;
use crate::policy::writer_delay::PATIENCE;
use crate::space::writers_line::WaitStart;
use crate::store::buckets::Victim;
use crate::store::ring_room::{JournalRoom, Share};

/// Buckets evicted, or looked at, in one go.
const SLICE: usize = 64;
/// Buckets whose survivors move at once.
const MOST_LEAVING: u32 = 32;
/// The wait before the next try after the journal or a commit of the pool has failed.
const AGAIN: Duration = Duration::from_millis(200);
/// Entries of the journal that may wait in memory before writers do.
const JOURNAL_WAITING: usize = 64;

/// The room for nodes that a task needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nodes {
    /// Room for this many nodes, which is reserved from then on.
    Reserved(u64),
    /// Room for this many nodes more than are due.
    Spare(u64),
    /// It needs no room for nodes.
    Any,
}

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
        let ahead = self.settings().policy.keeps_blocks() && soon < target + target / 8;
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
            } else if evicted == 0 && self.state().commits().has_replaced() {
                // The pool has to commit what has replaced it.
                let outcome = self.pool().commit().await;
                self.state_mut().release_replaced(self.pool().committed());
                if outcome.is_err() || self.state().commits().has_replaced() {
                    self.rt().sleep(AGAIN).await;
                }
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

    /// Room for a client's request, which may push records of `blocks` blocks of the ring and
    /// change `nodes` nodes. Requests get room in the order of arrival. It is to be taken before
    /// anything else that a request waits for, and kept until its records are pushed.
    pub(crate) async fn room_for_request(&self, blocks: u32, nodes: u64) -> Result<JournalRoom> {
        self.check_failed()?;
        match self.try_room(blocks, nodes) {
            Some(room) => Ok(room),
            None => Box::pin(self.wait_at_the_door(blocks, nodes)).await,
        }
    }

    /// Like [`Cache::room_for_request`], but returns `None` instead of waiting.
    pub(crate) fn try_room(&self, blocks: u32, nodes: u64) -> Option<JournalRoom> {
        if !self.turns().is_door_free() || self.is_crowded() || !self.has_nodes_for(nodes) {
            return None;
        }
        let room = self.state().journal().room().try_take(Share::Clients, blocks)?;
        Some(room.with_nodes(nodes))
    }

    /// The reason for which a request at the door waits, and the job that it waits for.
    fn why_at_the_door(&self, nodes: u64) -> (Reason, &'static str) {
        if !self.has_nodes_for(nodes) {
            (Reason::NodeRoom, job::WRITE_BACK)
        } else if self.state().journal().waiting() > JOURNAL_WAITING {
            (Reason::JournalEntries, job::JOURNAL)
        } else {
            (Reason::Ring, job::CHECKPOINT)
        }
    }

    async fn wait_at_the_door(&self, blocks: u32, nodes: u64) -> Result<JournalRoom> {
        let waiting = self.begin_waiting();
        let (reason, job) = self.why_at_the_door(nodes);
        let _first = self.rt().waits_for_job(reason, job, self.turns().door()).await;
        loop {
            self.uncrowd(Nodes::Reserved(nodes), waiting).await?;
            let room = self.ring_room(Share::Clients, blocks).await?;
            if !self.is_crowded() && self.has_nodes_for(nodes) {
                return Ok(room.with_nodes(nodes));
            }
        }
    }

    /// Waits until garbage collection may go on. It may use half of the margin, where clients have
    /// to wait, as it makes room in the end.
    pub(crate) async fn crowd_of_upkeep(&self) -> Result<()> {
        self.check_failed()?;
        let spare = self.layout().node_margin() / 2;
        if self.is_crowded() || self.lacks_node_room(spare) {
            Box::pin(self.uncrowd(Nodes::Spare(spare), self.begin_waiting())).await?;
        }
        Ok(())
    }

    /// Room for the records of a task that holds the lock of passes. If only a pass can make room,
    /// for nodes and so for checkpoints, a wait for it would never end: after `PATIENCE` this fails
    /// with [`ErrorKind::NoSpace`].
    pub(crate) async fn room_between_passes(&self) -> Result<JournalRoom> {
        self.check_failed()?;
        let blocks = blocks_for(1, 0);
        if self.is_crowded() && !self.wants_node_room() {
            Box::pin(self.uncrowd(Nodes::Any, self.begin_waiting())).await?;
        }
        let room = self.state().journal().room().clone();
        if let Some(room) = room.try_take(Share::Upkeep, blocks) {
            return Ok(room);
        }
        let (mut line, mut without_since) = (room.line_up(Share::Upkeep, blocks), None);
        loop {
            let wakes = self.wakes();
            let changed = either(wakes.room.wait(), wakes.reclaim.wait());
            let now = self.rt().now();
            let since = if self.lacks_node_room(0) {
                *without_since.get_or_insert(now)
            } else {
                without_since = None;
                now
            };
            if now.since(since) >= PATIENCE {
                let text = "the cache has no room for what this changes before more is written \
                            back: try again later";
                return Err(StorageError::new(ErrorKind::NoSpace, text));
            }
            let look = either(changed, self.rt().sleep_until(since.after(PATIENCE)));
            if let Some(room) = within(&mut line, look).await {
                self.check_failed()?;
                self.check_open()?;
                return room.unwrap_or_else(|| Err(base::StorageError::ended()));
            }
        }
    }

    /// Room in the journal's ring for a record of upkeep. A task that holds it may wait for devices
    /// only.
    pub(crate) async fn upkeep_room(&self) -> Result<JournalRoom> {
        self.ring_room(Share::Upkeep, blocks_for(1, 1)).await
    }

    /// Room in the journal's ring.
    pub(crate) async fn ring_room(&self, share: Share, blocks: u32) -> Result<JournalRoom> {
        loop {
            self.check_failed()?;
            let ring = self.state().journal().room().clone();
            if let Some(room) = ring.try_take(share, blocks) {
                return Ok(room);
            }
            self.check_open()?;
            let line = ring.line_up(share, blocks);
            let room = self.rt().waits_for_job(Reason::Ring, job::CHECKPOINT, line).await;
            if let Some(room) = room {
                return room;
            }
            self.check_failed()?;
            self.check_open()?;
        }
    }

    /// True if more has changed than checkpoints and the journal keep up with.
    fn is_crowded(&self) -> bool {
        let st = self.state();
        st.index.dirty_nodes() >= 2 * self.settings().dirty_nodes
            || st.journal().waiting() > JOURNAL_WAITING
    }

    /// True if a task that needs room for nodes has to wait.
    fn lacks(&self, nodes: Nodes) -> bool {
        match nodes {
            Nodes::Reserved(nodes) => !self.has_nodes_for(nodes),
            Nodes::Spare(spare) => self.lacks_node_room(spare),
            Nodes::Any => false,
        }
    }

    /// Waits until the cache is not crowded and there is room for `nodes`. All tasks that wait
    /// share one checkpoint. They need only its beginning: from then on changed nodes are counted
    /// anew.
    async fn uncrowd(&self, nodes: Nodes, waiting: WaitStart) -> Result<()> {
        while self.is_crowded() || self.lacks(nodes) {
            self.check_failed()?;
            self.check_open()?;
            if nodes == Nodes::Any && self.wants_node_room() {
                // A checkpoint may not find room before the next pass, and this task must not wait
                // for passes.
                break;
            }
            let wait = self.checkpoints().moved();
            if self.state().journal().waiting() > JOURNAL_WAITING {
                let target = self.state().journal().pushed();
                let durable = self.durable(target, Class::Foreground);
                self.rt().waits(Reason::JournalEntries, durable).await?;
                continue;
            }
            if self.lacks(nodes) {
                self.check_carried()?;
                if self.rt().now().since(waiting.since) > PATIENCE {
                    self.check_hopeful(waiting)?;
                    Box::pin(self.check_worn(waiting)).await?;
                }
                let room = self.wait_for_room();
                self.rt().waits_for_job(Reason::NodeRoom, job::WRITE_BACK, room).await;
                continue;
            }
            self.wakes().checkpoint.notify();
            self.rt().waits_for_job(Reason::NodeRoom, job::CHECKPOINT, wait).await;
        }
        Ok(())
    }

    /// True if so much is dirty that a pass should not wait until the pool's image is old.
    pub(crate) fn much_is_dirty(&self) -> bool {
        let (open, _) = self.state().buckets.dirty_blocks();
        let target =
            self.layout().data_blocks() * u64::from(self.settings().dirty_target_percent) / 100;
        // With the usual target this is about the size of a cut under pressure. A larger first one
        // is published late.
        open > 0 && (open > target / 3 || self.pressure() > 0.5)
    }

    /// Wakes a pass that waits for its turn, if write-back is needed much more than when its rate
    /// was computed.
    pub(crate) fn pressed(&self) {
        let slow = self
            .writeback()
            .passes()
            .sleeps_at()
            .is_some_and(|rate| self.wanted_rate() > 2.0 * rate as f64);
        if slow {
            self.wakes().pace.notify();
        }
    }

    fn wanted_rate(&self) -> f64 {
        self.settings().writeback.max as f64 * self.pressure()
    }
}

#[cfg(test)]
#[path = "reclaim_tests.rs"]
mod tests;
