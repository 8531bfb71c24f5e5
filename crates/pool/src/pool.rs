//! The handle of an open pool: its state, and what flows share besides.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use base::{BLOCK, GroupId, Result, SharedPlace, Slice};
use queue::Class;
use rt::Rt;
use rt::sync::{Event, Semaphore, Shared};
use rustc_hash::FxHashMap;

use crate::devices::Disk;
use crate::devices::looks::Looks;
use crate::devices::standing::Permit;
use crate::settings::Settings;
use crate::state::State;
use crate::txn::{CommitMetrics, Requests};

/// Bytes of the zeros that holes are read from.
const ZEROS: usize = 1 << 20;

struct Inner {
    rt: Rt,
    /// The settings, which change in [`Pool::set`] alone.
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
    looks: Looks,
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
pub(crate) struct Changing<'p> {
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

impl Deref for Changing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.st
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.st
    }
}

impl Drop for Changing<'_> {
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

/// An open pool; clones are the same pool.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

impl Pool {
    pub(crate) fn over(rt: &Rt, settings: Settings, state: State) -> Pool {
        Pool(Rc::new(Inner {
            rt: rt.clone(),
            settings: RefCell::new(settings),
            set: Event::new(),
            state: RefCell::new(state),
            metrics: RefCell::new(CommitMetrics::default()),
            loading_maps: RefCell::new(FxHashMap::default()),
            zeros: rt.bufs().zeroed(ZEROS).freeze(),
            requests: Requests::new(),
            commits: Semaphore::new(1),
            looks: Looks::default(),
            pass_takes: Semaphore::new(1),
            pass_hurries: Cell::new(false),
            closed: Cell::new(false),
            host_place: RefCell::default(),
            recovered: Cell::new(false),
        }))
    }

    /// The place where the host keeps memory that outlives the process, if this pool uses it.
    pub fn host_place(&self) -> Option<SharedPlace> {
        self.0.host_place.borrow().clone()
    }

    pub(crate) fn set_host_place(&self, place: SharedPlace) {
        self.0.host_place.replace(Some(place));
    }

    /// True if changes were entered that the last incarnation had answered and not made durable.
    pub fn has_recovered(&self) -> bool {
        self.0.recovered.get()
    }

    pub(crate) fn set_recovered(&self) {
        self.0.recovered.set(true);
    }

    /// Why what is answered does not outlive the process, though it should.
    pub fn host_log_lost(&self) -> Option<String> {
        self.state().host_log.lost()
    }

    /// Logs and records why answered changes do not outlive the process, though they should.
    pub fn keeps_no_answers(&self, why: &str) {
        tracing::error!(
            "what is answered does not outlive this process before it is flushed: the host has no \
             memory for it: {why}"
        );
        self.state().host_log.note_lost(why);
    }

    /// The clean keys of the attached cache do not count: it does not know of all that was dropped
    /// from its index. The next commit says so.
    pub fn void_clean_keys(&self) {
        let mut st = self.state_mut();
        st.attached.void_clean_keys();
        st.need_superblock();
    }

    /// The runtime that it is on.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The pool's uuid.
    pub fn uuid(&self) -> [u8; 16] {
        self.state().identity.uuid
    }

    /// The buffers of the shard.
    pub fn bufs(&self) -> &base::BufPool {
        self.0.rt.bufs()
    }

    /// The time as of the last turn of the runtime.
    pub fn now(&self) -> base::Instant {
        self.0.rt.now()
    }

    /// A copy of the settings that hold now.
    pub fn current_settings(&self) -> Settings {
        self.settings().clone()
    }

    pub(crate) fn settings(&self) -> Ref<'_, Settings> {
        self.0.settings.borrow()
    }

    /// Puts settings in the place of the old ones, and rings for it. To be called by [`Pool::set`]
    /// alone.
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

    /// The state, to be changed; see [`Changing`].
    pub(crate) fn state_mut(&self) -> Changing<'_> {
        let st = self.0.state.borrow_mut();
        let before = Uncommitted::of(&st);
        Changing { st, pool: &self.0, before }
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
    pub(crate) fn looks(&self) -> &Looks {
        &self.0.looks
    }

    /// Held by the write of a pass that is taking blocks.
    pub(crate) fn pass_takes(&self) -> &Semaphore {
        &self.0.pass_takes
    }

    /// Says whether clients wait for what the write-back pass does, or will soon. If not, its
    /// writes are of the background on the pool's devices.
    pub fn hurry_pass(&self, hurries: bool) {
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

    /// True once [`Pool::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// True if no commit will succeed any more: nothing but reads goes on.
    pub fn has_ended(&self) -> bool {
        self.state().standing.ended().is_some()
    }

    /// From now on background tasks end.
    pub(crate) fn set_closed(&self) {
        self.0.closed.set(true);
        self.0.requests.wake_all();
        self.0.looks.wake_all();
        let st = self.state();
        st.txns.wake_all();
        st.scrub.look_again();
        st.devices.close();
    }

    /// A view of `len` zero bytes, at most as many as one step reads, which takes no memory of its
    /// own.
    pub fn zero_block(&self, len: usize) -> Slice {
        assert!(len <= ZEROS && len % BLOCK == 0);
        self.0.zeros.slice(0, len)
    }
}
