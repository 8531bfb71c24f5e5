//! Which transactions are open, being committed and durable.

use base::{Birth, ErrorKind, Generation, Result, StorageError};
use rt::sync::Event;

use super::{Kind, Txn, not_open};
use crate::space::Reservation;

/// The generations that an edit depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generations {
    /// The open direct transaction has this generation.
    pub open: Generation,
    /// The transaction that is being committed has this one.
    pub committing: Option<Generation>,
    /// The last durable transaction has this one.
    pub committed: Generation,
}

impl Generations {
    /// The generation that trees get which join a write-back pass now.
    pub fn of_pass(&self) -> Generation {
        Generation(self.open.0 - 1)
    }

    /// True if a node of this generation was changed by a pass whose oldest generation is `oldest`.
    /// Direct transactions have every other number.
    pub fn is_of_pass(generation: Generation, oldest: Generation) -> bool {
        generation >= oldest && generation.0 % 2 == oldest.0 % 2
    }
}

/// The open transactions, and the generations of commits.
pub(crate) struct Progress {
    open: Txn,
    /// The open write-back pass.
    pass: Option<Txn>,
    /// Rung when the pass was published, or given up.
    pass_ended: Event,
    committing: Option<Generation>,
    /// The oldest generation of the passes that it publishes.
    oldest_committing: Option<Generation>,
    /// The birth of the blocks that are written from now on.
    birth: Birth,
    /// Nodes of the running commit that have no address yet.
    nodes_left: u64,
    /// Nodes of deadlists that the running commit writes, about.
    deadlist_nodes_left: u64,
    committed: Generation,
    /// The newest generation that the superblocks of all devices in use say. A crash may have left
    /// some without the committed one.
    known: Generation,
    /// The number of the newest superblock.
    sequence: u64,
}

impl Progress {
    /// After an open: `open` is the first generation of this incarnation.
    pub fn new(
        committed: Generation,
        known: Generation,
        open: Generation,
        sequence: u64,
        birth: Birth,
    ) -> Progress {
        let open = Txn::direct(open, birth);
        Progress {
            open,
            pass: None,
            pass_ended: Event::new(),
            committing: None,
            oldest_committing: None,
            birth,
            nodes_left: 0,
            deadlist_nodes_left: 0,
            committed,
            known,
            sequence,
        }
    }

    pub fn generations(&self) -> Generations {
        Generations {
            open: self.open.generation(),
            committing: self.committing,
            committed: self.committed,
        }
    }

    /// The open direct transaction.
    pub fn open(&self) -> &Txn {
        &self.open
    }

    pub fn open_mut(&mut self) -> &mut Txn {
        &mut self.open
    }

    /// The open write-back pass.
    pub fn pass(&self) -> Option<&Txn> {
        self.pass.as_ref()
    }

    /// A transaction of a kind. Error: there is no open pass.
    pub fn txn_mut(&mut self, kind: Kind) -> Result<&mut Txn> {
        match kind {
            Kind::Direct => Ok(&mut self.open),
            Kind::Pass => self.pass.as_mut().ok_or_else(not_open),
        }
    }

    /// Opens a pass, which takes all of `room`. There is one at a time.
    pub fn begin_pass(&mut self, room: &mut Reservation) -> Result<()> {
        if self.pass.is_some() {
            return Err(StorageError::new(ErrorKind::Invalid, "a write-back pass is open already"));
        }
        self.pass = Some(Txn::pass(room.split_all(), self.birth));
        Ok(())
    }

    /// Ends the pass, and wakes the tasks that wait for that.
    pub fn take_pass(&mut self) -> Option<Txn> {
        let pass = self.pass.take()?;
        self.pass_ended.notify();
        Some(pass)
    }

    /// Waits for the end of a pass.
    pub fn pass_ended(&self) -> impl Future<Output = ()> + use<> {
        self.pass_ended.wait()
    }

    /// The pool is closed: all that wait look for themselves.
    pub fn wake_all(&self) {
        self.pass_ended.notify();
    }

    /// Nodes that have no address yet, of direct transactions.
    pub fn dirty_nodes(&self) -> u64 {
        self.open.dirty_nodes()
            + self.open.deadlist_nodes()
            + self.nodes_left
            + self.deadlist_nodes_left
    }

    /// The birth of the blocks that are written from now on.
    pub fn birth(&self) -> Birth {
        self.birth
    }

    /// Snapshots are taken of what the open transaction has, which is frozen next: what is written
    /// after that is of the next birth. Error: there is none.
    pub fn end_birth(&mut self) -> Result<Birth> {
        let ended = self.birth;
        let Some(next) = ended.0.checked_add(1) else {
            let text = "the pool cannot count any more snapshots";
            return Err(StorageError::new(ErrorKind::Limit, text));
        };
        self.birth = Birth(next);
        // A volume that the open pass edits from now on may be one of those that have a snapshot.
        if let Some(pass) = &mut self.pass {
            pass.set_birth(self.birth);
        }
        Ok(ended)
    }

    /// Ends the open transaction, and opens the next one. O(1).
    pub fn freeze(&mut self) -> Txn {
        let generation = self.open.generation();
        self.committing = Some(generation);
        self.oldest_committing = self.open.oldest_of_passes();
        self.nodes_left = self.open.dirty_nodes();
        self.deadlist_nodes_left = self.open.deadlist_nodes();
        let next = Txn::direct(Generation(generation.0 + 2), self.birth);
        std::mem::replace(&mut self.open, next)
    }

    /// The transaction that is being committed.
    pub fn committing(&self) -> Option<Generation> {
        self.committing
    }

    /// Nodes of the running commit that have no address yet.
    pub fn nodes_left(&self) -> u64 {
        self.nodes_left
    }

    /// Counts nodes of the running commit that have got their addresses.
    pub fn nodes_placed(&mut self, nodes: u64) {
        let left = self.nodes_left.checked_sub(nodes);
        self.nodes_left = left.unwrap_or_else(|| {
            unreachable!("{nodes} nodes got addresses, {} had none", self.nodes_left)
        });
    }

    /// The running commit is durable.
    pub fn complete(&mut self, generation: Generation) {
        self.committed = generation;
        self.known = generation;
        (self.committing, self.oldest_committing) = (None, None);
        (self.nodes_left, self.deadlist_nodes_left) = (0, 0);
    }

    /// The durable transaction.
    pub fn committed(&self) -> Generation {
        self.committed
    }

    /// The newest commit that all superblocks say.
    pub fn known(&self) -> Generation {
        self.known
    }

    /// A device in use has all nodes, pages and data up to this generation, whatever it may have
    /// forgotten since its last flush.
    pub fn everyone_has(&self) -> Generation {
        let passes = [
            self.pass.as_ref().and_then(Txn::oldest_of_passes),
            self.open.oldest_of_passes(),
            self.oldest_committing,
        ];
        let before = |g: Generation| Generation(g.0.saturating_sub(1));
        passes.into_iter().flatten().map(before).fold(self.known, Generation::min)
    }

    /// All devices in use have the superblock of the committed transaction.
    pub fn all_know(&mut self) {
        self.known = self.committed;
    }

    /// Of the newest superblock.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the sequence number of the next superblock, and counts it.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
