//! An open cache: its parts, and the way to them.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::{CacheAddr, EntrySeq, Epoch, Result, Slice, StorageError};
use btree::{Fault, Loader, NodeError, Store};
use pool::{CacheJournal, JournalDurable, Link, Pool, Step};
use queue::Class;
use rt::sync::either;
use rt::{Reason, Rt};

use crate::checkpoint::state::Checkpoints;
use crate::checkpoint::table_slots::DurableState;
use crate::device::cache_device::CacheDevice;
use crate::device::flush_barrier::Health;
use crate::device::layout::Layout;
use crate::error::damaged;
use crate::io::clients::Clients;
use crate::io::group_commit_state::GroupCommits;
use crate::lifecycle::replay::Replay;
use crate::settings::Settings;
use crate::space::admission::Admission;
use crate::space::collected::Collections;
use crate::space::turns::Turns;
use crate::store::index::node_addr;
use crate::store::limbo::Pin;
use crate::store::load::read_node;
use crate::store::node_copies::NodeCopies;
use crate::store::scrubbed::ScrubCounts;
use crate::store::state::State;
use crate::wakes::{Marks, Wakes};
use crate::writeback::drain_gate::DrainGate;
use crate::writeback::state::WriteBack;

/// Each part is of the folder that its type is in, and changes by the methods of that type alone.
struct Inner {
    rt: Rt,
    pool: Pool,
    /// The settings. They change in [`Cache::set`] alone.
    settings: RefCell<Settings>,
    state: RefCell<State>,
    wakes: Wakes,
    device: CacheDevice,
    health: Health,
    admission: Rc<Admission>,
    turns: Turns,
    collections: Collections,
    checkpoints: Checkpoints,
    writeback: WriteBack,
    group_commits: GroupCommits,
    clients: Clients,
    scrub_counts: ScrubCounts,
    node_copies: NodeCopies,
    replay: Cell<Replay>,
}

impl Drop for Inner {
    /// Keeps the room in the pool of dirty data reserved, unless the cache was set aside: dirty
    /// data needs its room when the cache is opened again.
    fn drop(&mut self) {
        if !self.health.is_aside() {
            self.state.get_mut().keep_room();
            self.writeback.keep_room();
        }
    }
}

impl CacheJournal for Inner {
    fn make_durable(self: Rc<Self>) -> JournalDurable {
        Box::pin(async move { Cache(self).records_durable().await })
    }
}

/// An open cache; clones are the same.
#[derive(Clone)]
pub struct Cache(Rc<Inner>);

/// A cache as it was found on its device.
pub(crate) struct Found {
    pub device: CacheDevice,
    pub state: State,
    /// The events that tasks wait for.
    pub wakes: Wakes,
    pub durable: DurableState,
    /// The last entry of the journal: all up to it are durable.
    pub newest: EntrySeq,
}

impl Cache {
    /// The cache that was found. Nothing runs yet.
    pub(crate) fn over(rt: &Rt, pool: &Pool, settings: Settings, found: Found) -> Cache {
        let now = rt.now();
        let Found { device, state, wakes, durable, newest } = found;
        Cache(Rc::new(Inner {
            rt: rt.clone(),
            pool: pool.clone(),
            health: state.health().clone(),
            state: RefCell::new(state),
            wakes,
            device,
            admission: Rc::new(Admission::new(&settings)),
            turns: Turns::new(),
            collections: Collections::new(now),
            checkpoints: Checkpoints::new(durable),
            writeback: WriteBack::new(&settings),
            group_commits: GroupCommits::new(newest),
            clients: Clients::new(now, settings.sequential_cutoff),
            scrub_counts: ScrubCounts::default(),
            node_copies: NodeCopies::default(),
            replay: Cell::default(),
            settings: RefCell::new(settings),
        }))
    }

    /// The runtime that it is on.
    pub(crate) fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The pool behind it.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Has the pool's commits ask this cache what they have to wait for
    /// ([`Cache::records_durable`]).
    pub(crate) fn link_to_pool(&self) {
        let journal: Weak<dyn CacheJournal> = Rc::downgrade(&self.0) as _;
        self.pool().link_journal(Link::Live(journal));
    }

    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.state.borrow()
    }

    /// The one way to change the state. When it is dropped it wakes the tasks that the change
    /// concerns.
    pub(crate) fn state_mut(&self) -> Transact<'_> {
        let st = self.0.state.borrow_mut();
        Transact { cache: self, before: Marks::of(&st), st: Some(st) }
    }

    /// The events that tasks wait for.
    pub(crate) fn wakes(&self) -> &Wakes {
        &self.0.wakes
    }

    /// A copy of the settings that hold now.
    pub fn current_settings(&self) -> Settings {
        self.settings().clone()
    }

    pub(crate) fn settings(&self) -> Ref<'_, Settings> {
        self.0.settings.borrow()
    }

    /// Puts settings in the place of the old ones. To be called by [`Cache::set`] alone.
    pub(crate) fn replace_settings(&self, new: Settings) {
        self.0.settings.replace(new);
    }

    /// Sleeps for as long as the settings say, also where they change meanwhile, or until the cache
    /// is closed.
    pub(crate) async fn sleep_by(&self, time: impl Fn(&Settings) -> Duration) {
        let began = self.rt().now();
        loop {
            let changed = self.wakes().settings.wait();
            let due = began.after(time(&self.settings()));
            if self.rt().now() >= due || self.health().is_closed() {
                return;
            }
            either(self.rt().sleep_until(due), changed).await;
        }
    }

    /// Clones that are left.
    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        Rc::strong_count(&self.0)
    }

    /// The device of the cache.
    pub(crate) fn device(&self) -> &CacheDevice {
        &self.0.device
    }

    /// The path of the cache's device, as the user names it.
    pub(crate) fn path(&self) -> &str {
        self.0.device.path()
    }

    /// The layout of the cache's device.
    pub(crate) fn layout(&self) -> &Layout {
        self.0.device.layout()
    }

    /// The byte on the device at which a block of a bucket stands.
    pub(crate) fn offset_of(&self, addr: CacheAddr) -> u64 {
        self.layout().offset_of(addr)
    }

    /// The health of the cache: whether it may still be written to.
    pub(crate) fn health(&self) -> &Health {
        &self.0.health
    }

    /// The writers that wait until they may go on.
    pub(crate) fn admission(&self) -> &Rc<Admission> {
        &self.0.admission
    }

    /// The lines in which requests wait for room.
    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// The passes of garbage collection.
    pub(crate) fn collections(&self) -> &Collections {
        &self.0.collections
    }

    /// The checkpoint that runs, and what the last one has made durable.
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.0.checkpoints
    }

    /// The passes of write-back.
    pub(crate) fn writeback(&self) -> &WriteBack {
        &self.0.writeback
    }

    /// The gate through which changes come in that passes are to carry.
    pub(crate) fn gate(&self) -> &Rc<DrainGate> {
        self.0.writeback.gate()
    }

    /// The group commit that runs, and the journal's watermark.
    pub(crate) fn group_commits(&self) -> &GroupCommits {
        &self.0.group_commits
    }

    /// Knowledge about clients from their requests.
    pub(crate) fn clients(&self) -> &Clients {
        &self.0.clients
    }

    /// Counts of what scrubs have found.
    pub(crate) fn scrub_counts(&self) -> &ScrubCounts {
        &self.0.scrub_counts
    }

    /// Counts of what happened to copies of the index's nodes.
    pub(crate) fn node_copies(&self) -> &NodeCopies {
        &self.0.node_copies
    }

    /// Counts of what the open has replayed.
    pub(crate) fn replayed(&self) -> Replay {
        self.0.replay.get()
    }

    /// Notes what was replayed. To be called by the open alone.
    pub(crate) fn note_replayed(&self, replay: Replay) {
        self.0.replay.set(replay);
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
        let wakes = self.wakes();
        if after.has_more_room(before) {
            wakes.room.notify();
        }
        if after.may_reclaim(before) && self.wants_victims() {
            wakes.reclaim.notify();
        }
        if after.takes_room(before) && self.wants_compaction() {
            wakes.compact.notify();
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
            if self.much_is_dirty() {
                wakes.pass.notify();
            }
        }
    }
}

/// A loader of the index's nodes, by requests of a class.
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

    fn pin(st: &State, _: &Fault) -> Pin {
        st.limbo().pin()
    }

    const REASON: Reason = Reason::Index;

    fn rt(&self) -> Rt {
        self.0.rt().clone()
    }

    fn gives_way(&self) -> bool {
        self.1.is_background()
    }

    async fn read(&mut self, fault: &Fault, _: &Pin) -> Result<Slice> {
        let Nodes(cache, class) = *self;
        let copy = cache.state().buckets.copy_of(node_addr(fault.ptr.addr));
        let (queue, layout) = (cache.device().queue(), cache.layout());
        let (bytes, bad) = read_node(queue, layout, fault, copy, class).await?;
        if let Some(bad) = bad {
            cache.heal_node(&fault.ptr, bad, bytes.clone(), class);
        }
        Ok(bytes)
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
