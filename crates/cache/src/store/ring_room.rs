//! Room in the journal's ring: it is reserved before it is needed.
//!
//! A task takes a [`JournalRoom`] before it pushes records. The room has as many blocks as the
//! records need at worst, which is in an entry of their own. It is the permit to push
//! ([`crate::store::journal::Journal::push`] spends it); what is left of it is given back when it
//! is dropped. Blocks that records took stay taken until a checkpoint has made these needless.
//! So all that was pushed always finds its place in the ring, and to write the journal never
//! waits for a checkpoint.
//!
//! **The order of waiting.** Each waits for what stands above it only:
//!
//! 1. the cache's device;
//! 2. writing the journal: for the device;
//! 3. a commit of the pool: for the journal, up to the last dropped key
//!    ([`crate::io::pool_commits`]), and the pool's devices;
//! 4. a checkpoint: for the journal, and, if more has changed than was foreseen, for buckets that
//!    evictions and passes make free, as long as none of these waits for room in the ring;
//! 5. room in the ring for upkeep (evictions, cuts, blocks that passes found bad): for checkpoints.
//!    A task with such room waits for devices;
//! 6. evictions and passes: for room for upkeep, and for commits of the pool;
//! 7. room for clients' requests, in the ring and for nodes: for checkpoints, evictions and passes,
//!    and for other requests that have room;
//! 8. requests that have room: for buckets, thus for evictions and passes.
//!
//! Of 7 and 8 each seems to wait for the other; but a request takes room once, before all else that
//! it waits for, and never more while it has some. And 4 may wait for 6 while 6 waits for 5 and
//! that for 4. A part of the ring is kept back for upkeep alone, but no part is large enough for
//! all passes for which such a checkpoint may wait: each enters the blocks again that are bad in
//! the cache, and none of them may make a bucket free. So a checkpoint waits for 6 only while
//! nothing waits at 5 ([`RingRoom::makes_upkeep_wait`]), and for no more than several passes; and a
//! pass at 5 gives up if the checkpoint has no room at all ([`crate::space::request_room`]). See
//! [`crate::space::node_room`] for why a checkpoint hardly ever waits. While write-back fails for
//! good, or in vain, one that has no room at all does not come. Then the clients that wait for it
//! are told why ([`RingRoom::refuse_clients`]).
//!
//! **Order.** Room is given in the order of arrival, to upkeep first. Clients' requests stand at
//! one more door ([`crate::space::request_room`]), so that it is the same order for nodes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::{Result, StorageError};
use format::cache::journal::MAX_ENTRY_BLOCKS;
use rt::sync::{Event, OneShot, OneShotSender, oneshot};

/// The part of the ring that a task may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    /// All of the ring: for a task that frees buckets or publishes them, and waits for no buckets
    /// while it has room.
    Upkeep,
    /// All but what is kept back.
    Clients,
}

/// A sixteenth is kept back for upkeep, but not less and not more than so many blocks.
const KEPT_BACK: (u32, u32) = (16, 256);

/// Nodes that a request may change which replaces up to so many extents.
pub(crate) const fn nodes_for(extents: u64) -> u64 {
    2 + extents / 16
}

struct Waiter {
    blocks: u32,
    to: OneShotSender<Result<JournalRoom>>,
}

struct RingState {
    blocks: u32,
    kept_back: u32,
    /// Blocks of records that no checkpoint has made needless, and of reservations.
    taken: Cell<u32>,
    /// Nodes that requests with room may change.
    nodes: Cell<u64>,
    /// Upkeep's line, and clients'.
    lines: RefCell<[VecDeque<Waiter>; 2]>,
    /// A task waits for room, and some was given back: a checkpoint may be needed.
    wanted: Event,
    /// Room for nodes was given back, or upkeep begins to wait: it frees none meanwhile.
    nodes_freed: Event,
}

/// The room of one ring.
#[derive(Clone)]
pub(crate) struct RingRoom(Rc<RingState>);

/// Blocks of the ring, and nodes, that are reserved for a task.
#[must_use = "room that is dropped is given back"]
pub(crate) struct JournalRoom {
    of: Rc<RingState>,
    blocks: u32,
    nodes: u64,
}

impl RingRoom {
    /// Nothing is taken of a ring of so many blocks. `wanted` is notified when those in line may
    /// need a checkpoint, `nodes_freed` when nodes are given back, or those that wait for more of
    /// them are to look whether any come.
    pub fn new(ring_blocks: u32, wanted: Event, nodes_freed: Event) -> RingRoom {
        // A lap passes over less than an entry at its end, and the ring is never quite full.
        let blocks = ring_blocks - MAX_ENTRY_BLOCKS;
        RingRoom(Rc::new(RingState {
            blocks,
            kept_back: (blocks / 16).clamp(KEPT_BACK.0, KEPT_BACK.1),
            taken: Cell::new(0),
            nodes: Cell::new(0),
            lines: RefCell::default(),
            wanted,
            nodes_freed,
        }))
    }

    /// Room of so many blocks, if it is there and no one stands in line for it.
    pub fn try_take(&self, share: Share, blocks: u32) -> Option<JournalRoom> {
        let first = {
            let lines = self.0.lines.borrow();
            lines[Share::Upkeep as usize].is_empty() && lines[share as usize].is_empty()
        };
        (first && self.0.fits(share, blocks)).then(|| self.0.take(blocks))
    }

    /// Stands in line. `None` comes of [`RingRoom::wake_all`], an error of
    /// [`RingRoom::refuse_clients`].
    pub fn line_up(&self, share: Share, blocks: u32) -> OneShot<Result<JournalRoom>> {
        assert!(blocks <= self.0.blocks - self.0.kept_back, "more room than there ever is");
        let (to, room) = oneshot();
        self.0.lines.borrow_mut()[share as usize].push_back(Waiter { blocks, to });
        self.0.grant();
        if share == Share::Upkeep && self.makes_upkeep_wait() {
            self.0.nodes_freed.notify();
        }
        room
    }

    /// Ends all waiting: no room will be made any more.
    pub fn wake_all(&self) {
        drop(self.0.lines.take());
    }

    /// Tells the clients in line why there will be no room for them. Upkeep waits on: it may be
    /// what makes room in the end.
    pub fn refuse_clients(&self, why: &StorageError) {
        let line = std::mem::take(&mut self.0.lines.borrow_mut()[Share::Clients as usize]);
        line.into_iter().for_each(|waiter| waiter.to.send(Err(why.clone())));
    }

    /// True if a task waits for room.
    pub fn has_line(&self) -> bool {
        self.0.lines.borrow().iter().any(|line| !line.is_empty())
    }

    /// True if upkeep waits for room, which a checkpoint would make.
    pub fn makes_upkeep_wait(&self) -> bool {
        !self.0.lines.borrow()[Share::Upkeep as usize].is_empty()
    }

    /// Records have `records` blocks, and a task waits: a checkpoint would help. Not where nearly
    /// all is reserved for requests that have pushed nothing yet.
    pub fn wants_checkpoint(&self, records: u32) -> bool {
        let lines = self.0.lines.borrow();
        let upkeep = !lines[Share::Upkeep as usize].is_empty() && records > 0;
        upkeep || !lines[Share::Clients as usize].is_empty() && records * 8 >= self.0.blocks
    }

    /// Records of so many blocks are needless.
    pub fn forgotten(&self, blocks: u32) {
        self.0.give_back(blocks);
    }

    /// Nodes that requests with room may change.
    pub fn nodes(&self) -> u64 {
        self.0.nodes.get()
    }

    #[cfg(test)]
    pub fn taken(&self) -> u32 {
        self.0.taken.get()
    }
}

impl RingState {
    fn fits(&self, share: Share, blocks: u32) -> bool {
        let most = match share {
            Share::Upkeep => self.blocks,
            Share::Clients => self.blocks - self.kept_back,
        };
        self.taken.get() + blocks <= most
    }

    fn take(self: &Rc<RingState>, blocks: u32) -> JournalRoom {
        self.taken.set(self.taken.get() + blocks);
        JournalRoom { of: self.clone(), blocks, nodes: 0 }
    }

    fn give_back(self: &Rc<RingState>, blocks: u32) {
        self.taken.set(self.taken.get() - blocks);
        self.grant();
    }

    /// Gives room to those in line, as far as there is some.
    fn grant(self: &Rc<RingState>) {
        for share in [Share::Upkeep, Share::Clients] {
            loop {
                let next = {
                    let mut lines = self.lines.borrow_mut();
                    let line = &mut lines[share as usize];
                    match line.front() {
                        None => break,
                        Some(first) if self.fits(share, first.blocks) => line.pop_front(),
                        Some(_) => None,
                    }
                };
                let Some(Waiter { blocks, to }) = next else {
                    self.wanted.notify();
                    return;
                };
                to.send(Ok(self.take(blocks)));
            }
        }
    }
}

impl JournalRoom {
    /// Records took so many blocks of it.
    pub fn spend(&mut self, blocks: u32) {
        assert!(
            blocks <= self.blocks,
            "records took {blocks} blocks of the ring, and {} were reserved",
            self.blocks
        );
        self.blocks -= blocks;
    }

    /// Reserves so many nodes too.
    pub fn with_nodes(mut self, nodes: u64) -> JournalRoom {
        self.nodes += nodes;
        self.of.nodes.set(self.of.nodes.get() + nodes);
        self
    }
}

impl Drop for JournalRoom {
    fn drop(&mut self) {
        self.of.nodes.set(self.of.nodes.get() - self.nodes);
        if self.nodes > 0 {
            self.of.nodes_freed.notify();
        }
        self.of.give_back(self.blocks);
    }
}

#[cfg(test)]
#[path = "ring_room_tests.rs"]
mod tests;
