//! Room that a request takes at the door: in the journal, and for the nodes that it changes.

use std::rc::Rc;

use base::{ErrorKind, Result, StorageError};
use format::cache::journal::blocks_for;
use queue::Class;
use rt::Reason;
use rt::sync::{either, within};

use crate::core::Core;
use crate::core::levels::JOURNAL_WAITING;
use crate::health::fail::Failures;
use crate::job;
use crate::policy::writer_delay::PATIENCE;
use crate::space::writer_line::WaitStart;
use crate::store::ring_room::{JournalRoom, Share};
use crate::transfer::journal_writer::JournalWriter;

/// The room for nodes that a task needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NodeRoom {
    /// Room for this many nodes, which is reserved from then on.
    Reserved(u64),
    /// Room for this many nodes more than are due.
    Spare(u64),
    /// No room for nodes is needed.
    Any,
}

/// Room for requests: blocks of buckets, room in the journal's ring, and room for nodes.
pub(crate) struct Room {
    pub(super) core: Core,
    pub(super) failures: Rc<Failures>,
    pub(super) journal: Rc<JournalWriter>,
}

impl Room {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        journal: &Rc<JournalWriter>,
    ) -> Rc<Room> {
        Rc::new(Room { core: core.clone(), failures: failures.clone(), journal: journal.clone() })
    }

    /// Room for a client's request, which may push records of `blocks` blocks of the ring and
    /// change `nodes` nodes. Requests get room in the order of arrival. It is to be taken before
    /// anything else that a request waits for, and kept until its records are pushed.
    pub(crate) async fn room_for_request(&self, blocks: u32, nodes: u64) -> Result<JournalRoom> {
        self.failures.check_failed()?;
        match self.try_room(blocks, nodes) {
            Some(room) => Ok(room),
            None => Box::pin(self.wait_at_the_door(blocks, nodes)).await,
        }
    }

    /// Like [`Room::room_for_request`], but returns `None` instead of waiting.
    pub(crate) fn try_room(&self, blocks: u32, nodes: u64) -> Option<JournalRoom> {
        if !self.core.turns().is_door_free()
            || self.core.levels().is_crowded()
            || !self.core.levels().has_nodes_for(nodes)
        {
            return None;
        }
        let room = self.core.state().journal().room().try_take(Share::Clients, blocks)?;
        Some(room.with_nodes(nodes))
    }

    /// The reason for which a request at the door waits, and the job that it waits for.
    fn why_at_the_door(&self, nodes: u64) -> (Reason, &'static str) {
        if !self.core.levels().has_nodes_for(nodes) {
            (Reason::NodeRoom, job::WRITE_BACK)
        } else if self.core.state().journal().waiting() > JOURNAL_WAITING {
            (Reason::JournalEntries, job::JOURNAL)
        } else if self.core.levels().has_many_changed_nodes() {
            (Reason::ChangedNodes, job::CHECKPOINT)
        } else {
            (Reason::Ring, job::CHECKPOINT)
        }
    }

    async fn wait_at_the_door(&self, blocks: u32, nodes: u64) -> Result<JournalRoom> {
        let waiting = self.core.levels().begin_waiting();
        let (reason, job) = self.why_at_the_door(nodes);
        let _first = self.core.rt().waits_for_job(reason, job, self.core.turns().door()).await;
        loop {
            self.uncrowd(NodeRoom::Reserved(nodes), waiting).await?;
            let room = self.ring_room(Share::Clients, blocks).await?;
            if !self.core.levels().is_crowded() && self.core.levels().has_nodes_for(nodes) {
                return Ok(room.with_nodes(nodes));
            }
        }
    }

    /// Waits until garbage collection may go on. It may use half of the margin, where clients have
    /// to wait, as it makes room in the end.
    pub(crate) async fn crowd_of_upkeep(&self) -> Result<()> {
        self.failures.check_failed()?;
        let spare = self.core.layout().node_margin() / 2;
        if self.core.levels().is_crowded() || self.core.levels().lacks_node_room(spare) {
            Box::pin(self.uncrowd(NodeRoom::Spare(spare), self.core.levels().begin_waiting()))
                .await?;
        }
        Ok(())
    }

    /// Room for the records of a task that keeps passes away. If only a pass can make room, for
    /// nodes and so for checkpoints, a wait for it would never end: after `PATIENCE` this fails
    /// with [`ErrorKind::NoSpace`].
    pub(crate) async fn room_between_passes(&self) -> Result<JournalRoom> {
        self.failures.check_failed()?;
        if self.core.levels().is_crowded() && !self.core.levels().wants_node_room() {
            Box::pin(self.uncrowd(NodeRoom::Any, self.core.levels().begin_waiting())).await?;
        }
        let text = "the cache has no room for what this changes before more is written back: try \
                    again later";
        let none = || StorageError::new(ErrorKind::NoSpace, text);
        self.ring_room_under_lock(blocks_for(1, 0), none).await
    }

    /// Room in the ring for a step of a pass, which pushes so many records with so many checksums
    /// at once. A checkpoint may wait for the pass, and the ring for the checkpoint: where it has
    /// no room for nodes this fails after `PATIENCE`, so that all who wait for the pass are told.
    pub(crate) async fn room_in_pass(
        &self,
        records: usize,
        checksums: usize,
    ) -> Result<JournalRoom> {
        let text = "the cache has no room for what a pass changes: its journal is full, and there \
                    are too few free buckets for the checkpoint that would free it";
        let none = || StorageError::new(ErrorKind::Io, text);
        self.ring_room_under_lock(blocks_for(records, checksums), none).await
    }

    /// Room in the ring for a task that holds the lock of passes. Fails with `none` after
    /// `PATIENCE` without room for nodes.
    async fn ring_room_under_lock(
        &self,
        blocks: u32,
        none: impl FnOnce() -> StorageError,
    ) -> Result<JournalRoom> {
        self.failures.check_failed()?;
        let room = self.core.state().journal().room().clone();
        if let Some(room) = room.try_take(Share::Upkeep, blocks) {
            return Ok(room);
        }
        self.core.check_open()?;
        let (mut line, mut without_since) = (room.line_up(Share::Upkeep, blocks), None);
        loop {
            let wakes = self.core.wakes();
            let changed = either(wakes.room.wait(), wakes.reclaim.wait());
            let now = self.core.rt().now();
            let since = if self.core.levels().lacks_node_room(0) {
                *without_since.get_or_insert(now)
            } else {
                without_since = None;
                now
            };
            if now.since(since) >= PATIENCE {
                return Err(none());
            }
            let look = either(changed, self.core.rt().sleep_until(since.after(PATIENCE)));
            if let Some(room) = within(&mut line, look).await {
                self.failures.check_failed()?;
                self.core.check_open()?;
                return room.unwrap_or_else(|| Err(base::StorageError::ended()));
            }
        }
    }

    /// Room in the journal's ring for a record of upkeep, which is of no pass. A task that holds it
    /// may wait for devices only.
    pub(crate) async fn upkeep_room(&self) -> Result<JournalRoom> {
        self.ring_room(Share::Upkeep, blocks_for(1, 1)).await
    }

    /// Room in the journal's ring.
    pub(crate) async fn ring_room(&self, share: Share, blocks: u32) -> Result<JournalRoom> {
        loop {
            self.failures.check_failed()?;
            let ring = self.core.state().journal().room().clone();
            if let Some(room) = ring.try_take(share, blocks) {
                return Ok(room);
            }
            self.core.check_open()?;
            let line = ring.line_up(share, blocks);
            let room = self.core.rt().waits_for_job(Reason::Ring, job::CHECKPOINT, line).await;
            if let Some(room) = room {
                return room;
            }
            self.failures.check_failed()?;
            self.core.check_open()?;
        }
    }

    /// True if a task that needs room for nodes has to wait.
    fn lacks(&self, nodes: NodeRoom) -> bool {
        match nodes {
            NodeRoom::Reserved(nodes) => !self.core.levels().has_nodes_for(nodes),
            NodeRoom::Spare(spare) => self.core.levels().lacks_node_room(spare),
            NodeRoom::Any => false,
        }
    }

    /// Waits until the cache is not crowded and there is room for `nodes`. All tasks that wait
    /// share one checkpoint. They need only its beginning: from then on changed nodes are counted
    /// anew.
    async fn uncrowd(&self, nodes: NodeRoom, waiting: WaitStart) -> Result<()> {
        while self.core.levels().is_crowded() || self.lacks(nodes) {
            self.failures.check_failed()?;
            self.core.check_open()?;
            if nodes == NodeRoom::Any && self.core.levels().wants_node_room() {
                // A checkpoint may not find room before the next pass, and this task must not wait
                // for passes.
                break;
            }
            let wait = self.core.checkpoints().moved();
            if self.core.state().journal().waiting() > JOURNAL_WAITING {
                let target = self.core.state().journal().pushed();
                let durable = self.journal.durable(target, Class::Foreground);
                self.core.rt().waits(Reason::JournalEntries, durable).await?;
                continue;
            }
            if self.lacks(nodes) {
                self.core.levels().check_carried()?;
                if self.core.rt().now().since(waiting.since) > PATIENCE {
                    self.check_hopeful(waiting)?;
                    Box::pin(self.check_worn(waiting)).await?;
                }
                let room = self.wait_for_room();
                self.core.rt().waits_for_job(Reason::NodeRoom, job::WRITE_BACK, room).await;
                continue;
            }
            self.core.wakes().checkpoint.notify();
            self.core.rt().waits_for_job(Reason::ChangedNodes, job::CHECKPOINT, wait).await;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "request_room_tests.rs"]
mod tests;
