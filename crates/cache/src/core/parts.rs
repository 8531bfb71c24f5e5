//! The parts of an open cache: its state, its settings, its device, and what flows keep from one
//! run to the next. The parts know no flow.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{CacheAddr, EntrySeq, Epoch, Result};
use pool::Pool;
use rt::Rt;

use crate::checkpoint::state::Checkpoints;
use crate::checkpoint::table_slots::DurableState;
use crate::device::cache_device::CacheDevice;
use crate::device::flush_barrier::Health;
use crate::device::layout::Layout;
use crate::io::clients::Clients;
use crate::lifecycle::replay::Replay;
use crate::settings::Settings;
use crate::space::collected::Collections;
use crate::space::turns::Turns;
use crate::space::writer_line::Admission;
use crate::store::node_copies::NodeCopies;
use crate::store::scrubbed::ScrubCounts;
use crate::store::state::State;
use crate::transfer::journal_writer_state::GroupCommits;
use crate::wakes::WakeEvents;
use crate::writeback::drain_gate::DrainGate;
use crate::writeback::state::WriteBack;

/// Each part is of the folder that its type is in, and changes by the methods of that type alone.
pub(crate) struct Parts {
    rt: Rt,
    pool: Pool,
    /// The settings. They change in [`crate::Cache::set`] alone.
    settings: RefCell<Settings>,
    state: RefCell<State>,
    wakes: WakeEvents,
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

impl Drop for Parts {
    /// Keeps the room in the pool of dirty data reserved, unless the cache was set aside: dirty
    /// data needs its room when the cache is opened again.
    fn drop(&mut self) {
        if !self.health.is_aside() {
            self.state.get_mut().keep_room();
            self.writeback.keep_room();
        }
    }
}

/// A cache as it was found on its device.
pub(crate) struct FoundCache {
    pub device: CacheDevice,
    pub state: State,
    /// The events that tasks wait for.
    pub wakes: WakeEvents,
    pub durable: DurableState,
    /// The last entry of the journal: all up to it are durable.
    pub newest: EntrySeq,
}

impl Parts {
    /// The parts of the cache that was found. Nothing runs yet.
    pub(super) fn new(rt: &Rt, pool: &Pool, settings: Settings, found: FoundCache) -> Parts {
        let now = rt.now();
        let FoundCache { device, state, wakes, durable, newest } = found;
        Parts {
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
        }
    }

    /// The state, to be changed by [`super::Core::state_mut`] alone.
    pub(super) fn state_cell(&self) -> &RefCell<State> {
        &self.state
    }

    /// The runtime that it is on.
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }

    /// The pool behind it.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn settings(&self) -> Ref<'_, Settings> {
        self.settings.borrow()
    }

    /// A copy of the settings that hold now.
    pub(crate) fn current_settings(&self) -> Settings {
        self.settings().clone()
    }

    /// Puts settings in the place of the old ones. To be called by [`crate::Cache::set`] alone.
    pub(crate) fn replace_settings(&self, new: Settings) {
        self.settings.replace(new);
    }

    /// The device of the cache.
    pub(crate) fn device(&self) -> &CacheDevice {
        &self.device
    }

    /// The path of the cache's device, as the user names it.
    pub(crate) fn path(&self) -> &str {
        self.device.path()
    }

    /// The layout of the cache's device.
    pub(crate) fn layout(&self) -> &Layout {
        self.device.layout()
    }

    /// The byte on the device at which a block of a bucket stands.
    pub(crate) fn offset_of(&self, addr: CacheAddr) -> u64 {
        self.layout().offset_of(addr)
    }

    /// The health of the cache: whether it may still be written to.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// The writers that wait until they may go on.
    pub(crate) fn admission(&self) -> &Rc<Admission> {
        &self.admission
    }

    /// The lines in which requests wait for room.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The passes of garbage collection.
    pub(crate) fn collections(&self) -> &Collections {
        &self.collections
    }

    /// The checkpoint that runs, and what the last one has made durable.
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// The passes of write-back.
    pub(crate) fn writeback(&self) -> &WriteBack {
        &self.writeback
    }

    /// The gate through which changes come in that passes are to carry.
    pub(crate) fn gate(&self) -> &Rc<DrainGate> {
        self.writeback.gate()
    }

    /// The group commit that runs, and the journal's watermark.
    pub(crate) fn group_commits(&self) -> &GroupCommits {
        &self.group_commits
    }

    /// Knowledge about clients from their requests.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Counts of what scrubs have found.
    pub(crate) fn scrub_counts(&self) -> &ScrubCounts {
        &self.scrub_counts
    }

    /// Counts of what happened to copies of the index's nodes.
    pub(crate) fn node_copies(&self) -> &NodeCopies {
        &self.node_copies
    }

    /// Counts of what the open has replayed.
    pub(crate) fn replayed(&self) -> Replay {
        self.replay.get()
    }

    /// Notes what was replayed. To be called by the open alone.
    pub(crate) fn note_replayed(&self, replay: Replay) {
        self.replay.set(replay);
    }

    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// The open epoch: what is written now belongs to the cut of this number.
    pub(crate) fn epoch(&self) -> Epoch {
        self.state().buckets.epochs().open()
    }

    /// The events that tasks wait for.
    pub(crate) fn wakes(&self) -> &WakeEvents {
        &self.wakes
    }

    /// True if the cache device has failed: what this cache alone has cannot be read, and the cache
    /// does not learn of further writes.
    pub(crate) fn has_failed(&self) -> bool {
        self.health().has_failed()
    }

    /// Fails when the cache is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.health().check_open()
    }

    /// True if the cache has failed while it held nothing that the pool lacks, or is being detached
    /// and was closed: the pool goes on alone.
    pub(crate) fn is_aside(&self) -> bool {
        self.health().is_aside()
    }
}
