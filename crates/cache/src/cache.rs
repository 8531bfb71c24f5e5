//! An open cache: its parts, and the way to them.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::Duration;

use base::{CacheAddr, EntrySeq, Epoch, Instant, Result, Slice, StorageError};
use btree::{Fault, Loader, NodeError, Store};
use pool::{Pool, Step};
use queue::{Class, Device};
use rt::sync::{Semaphore, either};
use rt::{Reason, Rt};

use crate::checkpoint::table_slots::DurableState;
use crate::device::flush_barrier::{Barrier, Health};
use crate::device::layout::Layout;
use crate::error::damaged;
use crate::io::recent_parts::RecentParts;
use crate::io::window::Bypass;
use crate::latch::Latch;
use crate::lifecycle::replay::Replay;
use crate::policy::streams::Streams;
use crate::settings::Settings;
use crate::space::admission::{Admission, Waiting};
use crate::space::collected::GcStats;
use crate::store::limbo::Pin;
use crate::store::load::read_node;
use crate::store::scrubbed::CacheScrub;
use crate::store::state::State;
use crate::wakes::{Marks, Wakes};
use crate::writeback::passes::Passes;

pub(crate) struct Inner {
    pub rt: Rt,
    pub pool: Pool,
    pub device: Device,
    pub path: String,
    pub layout: Layout,
    /// They change in [`Cache::set`] alone.
    pub settings: RefCell<Settings>,
    pub state: RefCell<State>,
    pub wakes: Wakes,
    /// The group commit that is under way.
    pub flushing: Latch,
    /// Held by the first of the requests that wait for room in the journal or for nodes.
    pub door: Semaphore,
    pub durable_state: RefCell<DurableState>,
    /// The checkpoint that is under way. It tells when it has frozen what it writes.
    pub checkpointing: Latch,
    pub passes: RefCell<Passes>,
    /// Held by a pass, and by what must not meet one (a volume's end).
    pub pass_lock: Semaphore,
    /// When a client asked for something last.
    pub last_request: Cell<Instant>,
    pub replay: Cell<Replay>,
    pub gc: RefCell<GcStats>,
    pub gc_lock: Semaphore,
    pub scrub: Cell<CacheScrub>,
    pub opened_at: Instant,
    pub bypass: Rc<Bypass>,
    pub admission: Rc<Admission>,
    /// Held by the write that is taking blocks.
    pub taking: Semaphore,
    /// Since when no write has found a block.
    pub dry_since: Cell<Option<Waiting>>,
    /// The last entry that a watermark calls durable.
    pub watermark: Cell<EntrySeq>,
    pub barrier: Barrier,
    pub health: Health,
    pub recent_parts: RefCell<RecentParts>,
    /// Streams of reads, and of writes.
    pub read: Streams,
    pub written: Streams,
}

impl Drop for Inner {
    /// What is dirty needs its room in the pool when the cache is opened again.
    fn drop(&mut self) {
        if !self.health.is_aside() {
            self.state.get_mut().take_reservation().keep();
            self.passes.get_mut().cuts_mut().keep_room();
        }
    }
}

/// An open cache; clones are the same.
#[derive(Clone)]
pub struct Cache(pub(crate) Rc<Inner>);

impl Cache {
    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.state.borrow()
    }

    /// The one way to change the state. When it is dropped it wakes the tasks that the change
    /// concerns.
    pub(crate) fn state_mut(&self) -> Transact<'_> {
        let st = self.0.state.borrow_mut();
        Transact { cache: self, before: Marks::of(&st), st: Some(st) }
    }

    /// A copy of the settings that hold now.
    pub fn current_settings(&self) -> Settings {
        self.settings().clone()
    }

    pub(crate) fn settings(&self) -> Ref<'_, Settings> {
        self.0.settings.borrow()
    }

    /// Sleeps for as long as the settings say, also where they change meanwhile.
    pub(crate) async fn sleep_by(&self, time: impl Fn(&Settings) -> Duration) {
        let began = self.0.rt.now();
        loop {
            let changed = self.0.wakes.settings.wait();
            let due = began.after(time(&self.settings()));
            if self.0.rt.now() >= due {
                return;
            }
            either(self.0.rt.sleep_until(due), changed).await;
        }
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

/// A change of the state, until the next await.
pub(crate) struct Transact<'c> {
    cache: &'c Cache,
    before: Marks,
    st: Option<RefMut<'c, State>>,
}

impl Deref for Transact<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.st.as_deref().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }
}

impl DerefMut for Transact<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.st.as_deref_mut().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }
}

impl Drop for Transact<'_> {
    fn drop(&mut self) {
        let after = Marks::of(self);
        self.st = None;
        if after != self.before {
            self.cache.wake(&self.before, &after);
        }
    }
}

impl Cache {
    /// Wakes the tasks that a change concerns.
    fn wake(&self, before: &Marks, after: &Marks) {
        let wakes = &self.0.wakes;
        if after.has_more_room(before) {
            wakes.room.notify();
        }
        if after.may_reclaim(before) && self.wants_victims() {
            wakes.reclaim.notify();
        }
        if after.has_more_summaries(before) {
            wakes.summary.notify();
        }
        if (after.has_more_records(before) || after.takes_room(before)) && self.wants_checkpoint() {
            wakes.checkpoint.notify();
        }
        if after.has_other_dirt(before) {
            self.note_dirty();
            self.pressed();
            if self.wants_seal() {
                wakes.seal.notify();
            }
            if self.much_is_dirty() || self.pass_wanted_by_staged() {
                wakes.pass.notify();
            }
        }
    }
}

/// How the index's nodes are loaded, by requests of a class.
struct Nodes<'c>(&'c Cache, Class);

impl Loader for Nodes<'_> {
    type State = State;
    type Error = StorageError;
    type Pin = Pin;

    fn state(&mut self) -> impl DerefMut<Target = State> {
        self.0.state_mut()
    }

    fn store(st: &mut State) -> &mut Store {
        st.index.store_mut()
    }

    fn pin(st: &State) -> Pin {
        st.limbo.pin()
    }

    const REASON: Reason = Reason::Index;

    fn rt(&self) -> Rt {
        self.0.0.rt.clone()
    }

    async fn read(&mut self, fault: &Fault, _: &Pin) -> Result<Slice> {
        read_node(&self.0.0.device, &self.0.0.layout, fault, self.1).await
    }

    fn refused(fault: &Fault, why: NodeError) -> StorageError {
        damaged(fault, why)
    }
}

impl Cache {
    /// Runs a synchronous step over resident nodes until it needs no more.
    pub(crate) async fn resident<T>(
        &self,
        class: Class,
        step: impl FnMut(&mut State) -> Step<T>,
    ) -> Result<T> {
        btree::resident(&mut Nodes(self, class), step).await
    }
}
