//! The cache: buckets, index and journal on one fast device, in front of the pool.
//!
//! What a volume holds now is the pool's published image and, over it, the index. A write is
//! appended to an open bucket, its key enters the index, and the reply goes out; FLUSH makes data
//! and journal durable on the fast device alone. *Rounds* carry what is dirty to the pool: each
//! takes a cut of the index (a snapshot of the tree, taken in O(1), which seals an epoch), writes
//! its blocks in the order of addresses, and publishes all of it at once; so the pool alone is
//! always an exact past state. Long streams go past the buckets, into *staging volumes* of the
//! pool, with keys like any other write.
//!
//! **Invariants.**
//! 1. A bucket's bytes are overwritten only when the index does not refer to it, the journal's record that made it so is durable, nobody reads it, no
//!    unpublished cut needs it, and what replaced it is durable: what is staged, by a commit of the pool.
//! 2. The reply to a FLUSH follows the entries with the records of all writes that completed before it, and then a device flush; and a commit of the pool, where
//!    some of these writes went past the cache.
//! 3. Checkpoint and journal give the index as it was not before the last FLUSH that was answered.
//! 4. The buckets' counters are exact at all times, as of the epoch that they name
//!    ([`buckets::Buckets::counted_above`]).
//! 5. The pool's image changes by publishing a whole cut, and by nothing else, for volumes that write back.
//! 6. No commit of the pool is durable before the journal has the records of all staged blocks in it, and no checkpoint of the index before the pool has
//!    committed the staged blocks that it names.
//! 7. A clean key is what the pool has; but for those of a cache that has failed, of which the pool then says that they do not count ([`health::failover`]).

mod buckets;
pub mod check;
mod checkpoint;
mod device;
pub mod dump;
mod health;
mod io;
mod lifecycle;
mod policy;
mod settings;
mod space;
mod status;
mod store;
mod writeback;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;

use base::{CacheAddr, EntrySeq, Epoch, Instant};
use pool::Pool;
use queue::Device;
use rt::Rt;
use rt::sync::{Event, Semaphore};

pub use io::parts::BlockPart;
pub use lifecycle::create::{CreateOptions, check_create, create};
pub use lifecycle::open::CacheFile;
pub use policy::replacement::Policy;
pub use policy::{controller, replacement, throttle};
pub use settings::{LagPolicy, Promote, Settings};
pub use status::CacheStatus;

use checkpoint::Checkpointer;
use device::table::Layout;
use policy::streams::Streams;
use store::state::State;
use writeback::pass::RoundState;

struct Inner {
    rt: Rt,
    pool: Pool,
    device: Device,
    path: String,
    layout: Layout,
    settings: Settings,
    state: RefCell<State>,
    /// A group commit is under way; it ended.
    flushing: Cell<bool>,
    flushed: Event,
    /// Buckets became free, or room for nodes.
    room: Event,
    /// Held by the first of the requests that wait for room in the journal or for nodes.
    door: Semaphore,
    /// Somebody needs free buckets.
    hungry: Event,
    checkpointer: RefCell<Checkpointer>,
    checkpoint_wanted: Event,
    /// A checkpoint has frozen what it writes, or has ended.
    checkpoint_moved: Event,
    round: RefCell<RoundState>,
    round_wanted: Event,
    /// A pass has begun or ended, or much is dirty in the open epoch.
    seal_wanted: Event,
    /// Held by a round, and by what must not meet one (a volume's end).
    round_lock: Semaphore,
    /// When a client asked for something last.
    last_request: Cell<Instant>,
    replay: Cell<lifecycle::open::Replay>,
    gc: RefCell<space::gc::GcStats>,
    gc_lock: Semaphore,
    opened_at: Instant,
    bypass: io::past::Bypass,
    admission: space::admission::Admission,
    age: writeback::age::Age,
    /// Write-back is needed more than it was: its pace is to be looked at.
    pressed: Event,
    /// Held by the write that is taking blocks.
    taking: Semaphore,
    /// The last entry that a watermark calls durable.
    watermark: Cell<EntrySeq>,
    /// Held while the device is asked to make something durable ([`health::durable`]).
    syncing: Semaphore,
    /// Streams of reads, and of writes.
    read: Streams,
    written: Streams,
    /// It has failed, or is closed to be detached, and the pool has all that it had.
    aside: Cell<bool>,
    closed: Cell<bool>,
}

/// An open cache; clones are the same.
#[derive(Clone)]
pub struct Cache(Rc<Inner>);

impl Cache {
    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.state.borrow()
    }

    pub(crate) fn state_mut(&self) -> RefMut<'_, State> {
        self.0.state.borrow_mut()
    }

    /// The byte on the device at which a block of a bucket stands.
    pub(crate) fn offset_of(&self, addr: CacheAddr) -> u64 {
        self.0.layout.offset_of(addr)
    }

    /// The pool behind it.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// The open epoch: what is written now belongs to the cut of this number.
    pub fn epoch(&self) -> Epoch {
        self.state().buckets.epoch()
    }
}
