//! The core of an open pool, on which its flows are built: its state, and what flows share besides.
//!
//! A flow holds the core and the flows below it, and nothing else; so no flow calls one above it.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use base::{
    BLOCK, Generation, GroupId, Instant, OpenId, PoolAddr, Result, SharedPlace, Slice, VolumeId,
};
use btree::UnneededTrees;
use format::page::Chunk;
use queue::Class;
use rt::Rt;
use rt::sync::{Event, Semaphore, Shared};
use rustc_hash::FxHashMap;

use crate::devices::Disk;
use crate::devices::standing::{Permit, Standing};
use crate::devices::watch_times::LookSchedule;
use crate::settings::Settings;
use crate::space::Reservation;
use crate::state::State;
use crate::txn::{CommitMetrics, Requests};

/// Things that are dealt with before other tasks get a turn.
const SLICE: usize = 64;
/// Nodes that are freed before other tasks get a turn.
const NODES: usize = 128;
/// Bytes of the zeros that holes are read from.
const ZEROS: usize = 1 << 20;

struct Inner {
    rt: Rt,
    /// The settings, which change in [`crate::Pool::set`] alone.
    settings: RefCell<Settings>,
    /// Rung when the settings have changed.
    set: Event,
    state: RefCell<State>,
    metrics: RefCell<CommitMetrics>,
    /// Groups whose bitmaps are being read.
    loading_maps: RefCell<FxHashMap<GroupId, Shared<Result<()>>>>,
    zeros: Slice,
    requests: Requests,
    /// Held by the commit that runs, and by what must not run beside one.
    commits: Semaphore,
    /// When all slots of superblocks were looked at.
    looks: LookSchedule,
    /// Notified when devices were taken out of use because they failed.
    dropped: Event,
    /// Held by the write of the pass that is taking blocks.
    pass_takes: Semaphore,
    /// Clients wait for what the write-back pass does, or will soon.
    pass_hurries: Cell<bool>,
    closed: Cell<bool>,
    /// The place where the host keeps memory that outlives the process.
    host_place: RefCell<Option<SharedPlace>>,
    /// True if changes were entered that the last incarnation had answered, and are not durable
    /// yet.
    recovered: Cell<bool>,
}

/// The state, to be changed between two awaits. When it is dropped, the tasks that commit are told
/// what there is to commit: so no flow can forget to.
pub(crate) struct StateGuard<'p> {
    st: RefMut<'p, State>,
    pool: &'p Inner,
    /// The uncommitted changes at the time when this was made.
    before: Uncommitted,
}

/// The uncommitted changes of the open transaction.
#[derive(Clone, Copy)]
struct Uncommitted {
    any: bool,
    nodes: u64,
}

impl Uncommitted {
    fn of(st: &State) -> Uncommitted {
        let open = st.txns.open();
        Uncommitted { any: !open.is_clean(), nodes: open.dirty_nodes() }
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.st
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.st
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let (before, now) = (self.before, Uncommitted::of(&self.st));
        if now.any && !before.any {
            self.pool.requests.tell_dirtied();
        }
        if now.nodes > before.nodes {
            self.pool.ask_if_much(now.nodes);
        }
        if now.any && self.st.host_log.has_much() {
            self.pool.requests.ask();
        }
    }
}

impl Inner {
    /// Asks for a commit if so many dirty nodes are much.
    fn ask_if_much(&self, dirty_nodes: u64) {
        if dirty_nodes >= self.settings.borrow().dirty_nodes {
            self.requests.ask();
        }
    }
}

/// The core of an open pool; clones are the same. Flows are built on it.
#[derive(Clone)]
pub(crate) struct Core(Rc<Inner>);

impl Core {
    /// The core of a pool of this state. Nothing runs yet.
    pub(crate) fn over(rt: &Rt, settings: Settings, state: State) -> Core {
        Core(Rc::new(Inner {
            rt: rt.clone(),
            settings: RefCell::new(settings),
            set: Event::new(),
            state: RefCell::new(state),
            metrics: RefCell::new(CommitMetrics::default()),
            loading_maps: RefCell::new(FxHashMap::default()),
            zeros: rt.bufs().zeroed(ZEROS).freeze(),
            requests: Requests::new(),
            commits: Semaphore::new(1),
            looks: LookSchedule::default(),
            dropped: Event::new(),
            pass_takes: Semaphore::new(1),
            pass_hurries: Cell::new(false),
            closed: Cell::new(false),
            host_place: RefCell::default(),
            recovered: Cell::new(false),
        }))
    }

    /// See [`crate::Pool::host_place`].
    pub(crate) fn host_place(&self) -> Option<SharedPlace> {
        self.0.host_place.borrow().clone()
    }

    pub(crate) fn set_host_place(&self, place: SharedPlace) {
        self.0.host_place.replace(Some(place));
    }

    /// See [`crate::Pool::has_recovered`].
    pub(crate) fn has_recovered(&self) -> bool {
        self.0.recovered.get()
    }

    pub(crate) fn set_recovered(&self) {
        self.0.recovered.set(true);
    }

    /// See [`crate::Pool::host_log_lost`].
    pub(crate) fn host_log_lost(&self) -> Option<String> {
        self.state().host_log.lost()
    }

    /// See [`crate::Pool::keeps_no_answers`].
    pub(crate) fn keeps_no_answers(&self, why: &str) {
        tracing::error!(
            "what is answered does not outlive this process before it is flushed: the host has no \
             memory for it: {why}"
        );
        self.state().host_log.note_lost(why);
    }

    /// See [`crate::Pool::void_clean_keys`].
    pub(crate) fn void_clean_keys(&self) {
        let mut st = self.state_mut();
        st.attached.void_clean_keys();
        st.need_superblock();
    }

    /// See [`crate::Pool::rt`].
    pub(crate) fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// See [`crate::Pool::uuid`].
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.state().identity.uuid
    }

    /// See [`crate::Pool::bufs`].
    pub(crate) fn bufs(&self) -> &base::BufPool {
        self.0.rt.bufs()
    }

    /// See [`crate::Pool::now`].
    pub(crate) fn now(&self) -> base::Instant {
        self.0.rt.now()
    }

    /// See [`crate::Pool::current_settings`].
    pub(crate) fn current_settings(&self) -> Settings {
        self.settings().clone()
    }

    pub(crate) fn settings(&self) -> Ref<'_, Settings> {
        self.0.settings.borrow()
    }

    /// Puts settings in the place of the old ones, and rings for it. To be called by
    /// [`crate::Pool::set`] alone.
    pub(crate) fn replace_settings(&self, new: Settings) {
        self.0.settings.replace(new);
        self.0.set.notify();
        self.0.ask_if_much(Uncommitted::of(&self.state()).nodes);
    }

    /// Rung when the settings have changed.
    pub(crate) fn was_set(&self) -> impl Future<Output = ()> + use<> {
        self.0.set.wait()
    }

    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.state.borrow()
    }

    /// The state, to be changed; see [`StateGuard`].
    pub(crate) fn state_mut(&self) -> StateGuard<'_> {
        let st = self.0.state.borrow_mut();
        let before = Uncommitted::of(&st);
        StateGuard { st, pool: &self.0, before }
    }

    pub(crate) fn metrics(&self) -> Ref<'_, CommitMetrics> {
        self.0.metrics.borrow()
    }

    pub(crate) fn metrics_mut(&self) -> RefMut<'_, CommitMetrics> {
        self.0.metrics.borrow_mut()
    }

    pub(crate) fn loading_maps(&self) -> RefMut<'_, FxHashMap<GroupId, Shared<Result<()>>>> {
        self.0.loading_maps.borrow_mut()
    }

    pub(crate) fn requests(&self) -> &Requests {
        &self.0.requests
    }

    /// One permit, which the commit that runs has.
    pub(crate) fn commits(&self) -> &Semaphore {
        &self.0.commits
    }

    /// When all slots of superblocks were looked at.
    pub(crate) fn looks(&self) -> &LookSchedule {
        &self.0.looks
    }

    /// Says that devices were taken out of use because they failed. The task of returns tells each
    /// that it is out of use, and tries to take it back.
    pub(crate) fn note_dropped(&self) {
        self.0.dropped.notify();
    }

    /// Waits until devices were taken out of use because they failed.
    pub(crate) fn dropped(&self) -> impl Future<Output = ()> + use<> {
        self.0.dropped.wait()
    }

    /// Held by the write of a pass that is taking blocks.
    pub(crate) fn pass_takes(&self) -> &Semaphore {
        &self.0.pass_takes
    }

    /// See [`crate::Pool::hurry_pass`].
    pub(crate) fn hurry_pass(&self, hurries: bool) {
        self.0.pass_hurries.set(hurries);
    }

    /// The class that the writes of a write-back pass have on the devices at the moment.
    pub(crate) fn pass_class(&self) -> Class {
        if self.0.pass_hurries.get() { Class::HurriedWriteBack } else { Class::WriteBack }
    }

    /// The door of every step that writes.
    pub(crate) fn permit(&self) -> Result<Permit> {
        self.state().standing.permit()
    }

    /// The queue of a device that is in use, or coming into use.
    pub(crate) fn disk(&self, row: usize) -> Option<Disk> {
        self.state().devices.written(row).cloned()
    }

    /// See [`crate::Pool::is_closed`].
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// See [`crate::Pool::has_ended`].
    pub(crate) fn has_ended(&self) -> bool {
        self.state().standing.ended().is_some()
    }

    /// From now on background tasks end.
    pub(crate) fn set_closed(&self) {
        self.0.closed.set(true);
        self.0.requests.wake_all();
        self.0.looks.wake_all();
        self.0.dropped.notify();
        let st = self.state();
        st.txns.wake_all();
        st.scrub.look_again();
        st.devices.close();
    }

    /// See [`crate::Pool::zero_block`].
    pub(crate) fn zero_block(&self, len: usize) -> Slice {
        assert!(len <= ZEROS && len % BLOCK == 0);
        self.0.zeros.slice(0, len)
    }

    /// See [`crate::Pool::volume_name`].
    pub(crate) fn volume_name(&self, id: VolumeId) -> String {
        self.state().volume_name(id)
    }

    /// See [`crate::Pool::committed`].
    pub(crate) fn committed(&self) -> Generation {
        self.state().txns.committed()
    }

    /// See [`crate::Pool::commit_ended`].
    pub(crate) fn commit_ended(&self) -> impl Future<Output = ()> + use<> {
        self.requests().ended()
    }

    /// Gives others a turn after a whole slice of work.
    pub(crate) async fn breathe(&self, done: usize) {
        if done >= SLICE {
            self.rt().yield_now().await;
        }
    }

    /// Gives others a turn when `done` things fill one more slice.
    pub(crate) async fn breathe_each(&self, done: usize) {
        if done % SLICE == 0 {
            self.rt().yield_now().await;
        }
    }

    /// Frees the nodes of trees that are not needed any more, in slices.
    pub(crate) async fn take_apart(&self, mut trees: UnneededTrees) {
        while trees.free(NODES) {
            self.rt().yield_now().await;
        }
    }

    /// The place of a block in a chunk: the row of the device, and the offset in bytes.
    pub(crate) fn place(&self, c: Chunk, addr: PoolAddr) -> (usize, u64) {
        let geometry = self.state().space.geometry();
        (usize::from(c.device), geometry.chunk_offset(c.chunk, geometry.split(addr).1))
    }

    /// See [`crate::Pool::opened`].
    pub(crate) fn opened(&self) -> OpenId {
        self.state().histories.drawn()
    }

    /// See [`crate::Pool::last_opened`].
    pub(crate) fn last_opened(&self) -> OpenId {
        self.state().histories.opened()
    }

    /// See [`crate::Pool::is_open`].
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state().standing, Standing::Closed)
    }

    /// In seconds of Unix time; 0: not known.
    pub(crate) fn unix_time(&self, at: Instant) -> u32 {
        match self.settings().unix_time_at_zero {
            0 => 0,
            zero => u32::try_from(zero + at.since(Instant(0)).as_secs()).unwrap_or(0),
        }
    }

    /// See [`crate::Pool::reserve`].
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation> {
        self.state().reserve(blocks)
    }

    /// See [`crate::Pool::take_over`].
    pub(crate) fn take_over(&self, blocks: u64) -> Reservation {
        self.state().space.claims().take_over(blocks)
    }
}
