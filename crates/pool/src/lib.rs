//! The pool: devices, block groups, trees and transactions; checksummed, mirrored, copy-on-write.
//!
//! How a write travels: [`io`] allocates ([`alloc`]), writes all copies ([`mirror`]) and enters them into the volume's mapping tree
//! ([`mapping`]) and the group's checksum tree ([`checksums`]) of the open transaction ([`txn`]). [`commit`] makes it durable. How a
//! read travels: [`io`] looks up addresses and checksums, [`mirror`] reads and verifies, heals if it must. What is not in memory is
//! brought there by [`nodes`]. [`open`] finds and judges the devices; [`check`] verifies a whole pool offline.
//!
//! Fault model: any one device may lie, lose, tear, rot, stall or vanish; with two copies or more nothing that was committed is lost, and
//! wrong bytes are never returned. Power may fail at any moment: the pool is then as of its last commit.
//!
//! All state is plain data ([`state`]) that changes between awaits only.

mod adopt;
mod alloc;
mod attached;
mod catch_up;
pub mod check;
mod checksums;
mod commit;
mod create;
mod device;
pub mod dump;
mod durable;
pub mod error;
mod extents;
pub mod geometry;
mod io;
mod mapping;
mod metrics;
mod mirror;
mod node_writer;
mod nodes;
pub mod open;
mod pages;
mod promises;
mod reservation;
mod round;
pub mod settings;
mod slots;
mod staging;
mod standing;
mod state;
pub mod status;
mod txn;
mod volumes;
mod warm;
mod writes;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::pin::Pin;
use std::rc::Rc;

use base::{BLOCK, Generation, GroupId, Slice};
use rt::Rt;
use rt::sync::Event;
use rustc_hash::FxHashMap;

pub use create::{check_create, create};
pub use device::DeviceErrors;
pub use error::{ErrorKind, PoolError, Result, Step};
pub use format::page::CacheMode;
pub use open::DeviceFile;
pub use reservation::Reservation;
pub use round::Round;
pub use settings::{CreateOptions, Settings};
pub use staging::Staging;
pub use volumes::VolumeInfo;

use commit::Frozen;
use metrics::CommitMetrics;
use state::State;

/// Bytes of the zeros that holes are read from.
const ZEROS: usize = 1 << 20;

struct Inner {
    rt: Rt,
    settings: Settings,
    state: RefCell<State>,
    /// A commit that failed and has to be tried again.
    frozen: RefCell<Option<Frozen>>,
    metrics: RefCell<CommitMetrics>,
    loading_maps: RefCell<FxHashMap<GroupId, Event>>,
    zeros: Slice,
    /// Someone wants a commit.
    requested: Cell<bool>,
    request: Event,
    /// A commit has ended, well or not.
    done: Event,
    failures: Cell<u64>,
    last_error: RefCell<Option<PoolError>>,
    /// The open transaction is not empty any more.
    dirtied: Event,
    /// What has to be durable elsewhere before a commit is.
    before_commit: RefCell<Option<BeforeCommit>>,
    /// A round was published, or given up.
    round_ended: Event,
    closed: Cell<bool>,
}

/// Something that a commit waits for before it becomes durable; see [`Pool::before_commit`].
pub type BeforeCommit = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Option<CacheMark>>>>>>;

/// What the next superblock says of a cache. An entry of its journal that is durable, with all before it: were it not to be found at the next open, it was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheMark {
    /// The cache.
    pub uuid: [u8; 16],
    /// The entry's sequence number.
    pub entry: u64,
    /// The cache does not know all that the pool was told: its clean keys do not count, until [`Pool::clean_keys_dropped`].
    pub clean_void: bool,
}

/// An open pool; clones are the same pool.
#[derive(Clone)]
pub struct Pool(Rc<Inner>);

impl Pool {
    /// Opens a pool for use on those of its devices that are there. Warnings (a missing device, a stale one that is left out) are logged and
    /// returned.
    pub async fn open(rt: &Rt, files: Vec<DeviceFile>, settings: Settings) -> Result<(Pool, Vec<String>)> {
        let loaded = open::load(rt, files, &settings).await?;
        let warnings = loaded.warnings;
        for w in &warnings {
            tracing::warn!("{w}");
        }
        let pool = Pool::over(rt, settings, loaded.state);
        pool.catch_up(loaded.lacking).await?;
        {
            let mut st = pool.state_mut();
            st.open.superblock = true;
            st.end_stale_stagings();
        }
        // The first commit marks a new incarnation: whatever a crash left behind is older than all that follows.
        pool.run_commit().await?;
        let p = pool.clone();
        drop(rt.spawn(async move { p.committer().await }));
        let p = pool.clone();
        drop(rt.spawn(async move { p.clock().await }));
        pool.reap_all();
        Ok((pool, warnings))
    }

    pub(crate) fn over(rt: &Rt, settings: Settings, state: State) -> Pool {
        Pool(Rc::new(Inner {
            rt: rt.clone(),
            settings,
            state: RefCell::new(state),
            frozen: RefCell::new(None),
            metrics: RefCell::new(CommitMetrics::default()),
            loading_maps: RefCell::new(FxHashMap::default()),
            zeros: rt.bufs().zeroed(ZEROS).freeze(),
            requested: Cell::new(false),
            request: Event::new(),
            done: Event::new(),
            failures: Cell::new(0),
            last_error: RefCell::new(None),
            dirtied: Event::new(),
            before_commit: RefCell::new(None),
            round_ended: Event::new(),
            closed: Cell::new(false),
        }))
    }

    /// Makes everything that completed before durable. All who ask at the same time share a commit.
    pub async fn commit(&self) -> Result<()> {
        let (target, failures) = {
            let st = self.state();
            st.standing.permit()?;
            let target = match st.committing {
                _ if !st.open.is_clean() => st.open.generation(),
                Some(running) => running,
                None => return Ok(()),
            };
            (target, self.0.failures.get())
        };
        loop {
            let wait = self.0.done.wait();
            if self.state().committed >= target {
                return Ok(());
            }
            self.permit()?;
            if self.0.failures.get() != failures
                && let Some(e) = &*self.0.last_error.borrow()
            {
                return Err(e.clone());
            }
            if self.0.closed.get() {
                return Err(PoolError::new(ErrorKind::Io, "the pool is closed"));
            }
            self.ask_for_commit();
            wait.await;
        }
    }

    /// From now on every commit calls `f` after its freeze, and does not become durable before that has ended well. A cache makes durable there that it
    /// forgot what direct writes replaced, and says what its journal has.
    pub fn before_commit(&self, f: Option<BeforeCommit>) {
        *self.0.before_commit.borrow_mut() = f;
    }

    /// The commit that is durable.
    pub fn committed(&self) -> Generation {
        self.state().committed
    }

    /// Waits for the end of the next commit, well or not.
    pub fn commit_ended(&self) -> impl Future<Output = ()> + use<> {
        self.0.done.wait()
    }

    /// True once [`Pool::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Commits and ends the background tasks. The pool must not be used afterwards.
    pub async fn close(&self) -> Result<()> {
        let outcome = self.commit().await;
        self.0.closed.set(true);
        self.0.request.notify();
        self.0.dirtied.notify();
        self.0.done.notify();
        self.0.round_ended.notify();
        for d in &self.state().devices {
            if let Some(q) = &d.queue {
                q.close();
            }
        }
        outcome
    }

    /// The task that runs all commits.
    async fn committer(self) {
        loop {
            let wait = self.0.request.wait();
            if self.0.closed.get() {
                return;
            }
            if !self.0.requested.replace(false) {
                wait.await;
                continue;
            }
            if self.state().open.is_clean() && self.0.frozen.borrow().is_none() {
                self.0.done.notify();
                continue;
            }
            if let Err(e) = self.run_commit().await {
                if self.permit().is_ok() {
                    tracing::error!("a commit failed, it is tried again with the next: {e}");
                }
                self.0.failures.set(self.0.failures.get() + 1);
                *self.0.last_error.borrow_mut() = Some(e);
            }
            self.0.done.notify();
        }
    }

    /// The task that asks for a commit when something has been dirty for the interval.
    async fn clock(self) {
        loop {
            let wait = self.0.dirtied.wait();
            if self.0.closed.get() {
                return;
            }
            let idle = self.state().open.is_clean() && self.0.frozen.borrow().is_none();
            if idle {
                wait.await;
                continue;
            }
            self.rt().sleep(self.settings().commit_interval).await;
            if self.permit().is_err() {
                return;
            }
            self.ask_for_commit();
            // The request is taken up before the next look.
            self.rt().settled().await;
        }
    }

    /// Wakes those who wait for a commit: they look for themselves.
    pub(crate) fn tell_committed(&self) {
        self.0.done.notify();
    }

    /// Wakes those who wait for the end of a round.
    pub(crate) fn round_ended(&self) {
        self.0.round_ended.notify();
    }

    fn ask_for_commit(&self) {
        self.0.requested.set(true);
        self.0.request.notify();
    }

    /// To be called after a change: wakes the clock, and asks for a commit when much is dirty.
    pub(crate) fn after_change(&self) {
        let (first, much) = {
            let st = self.state();
            (!st.open.is_clean(), st.open.nodes.dirty() as u64 >= self.settings().dirty_nodes)
        };
        if first {
            self.0.dirtied.notify();
        }
        if much {
            self.ask_for_commit();
        }
    }

    /// The runtime that it is on.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// The pool's uuid.
    pub fn uuid(&self) -> [u8; 16] {
        self.state().uuid
    }

    /// The buffers of the shard.
    pub fn bufs(&self) -> &base::BufPool {
        self.0.rt.bufs()
    }

    /// The time as of the last turn of the runtime.
    pub fn now(&self) -> base::Instant {
        self.0.rt.now()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.0.state.borrow()
    }

    pub(crate) fn state_mut(&self) -> RefMut<'_, State> {
        self.0.state.borrow_mut()
    }

    pub(crate) fn metrics_mut(&self) -> RefMut<'_, CommitMetrics> {
        self.0.metrics.borrow_mut()
    }

    pub(crate) fn loading_maps(&self) -> &RefCell<FxHashMap<GroupId, Event>> {
        &self.0.loading_maps
    }

    pub(crate) fn take_frozen(&self) -> Option<Frozen> {
        self.0.frozen.borrow_mut().take()
    }

    pub(crate) fn keep_frozen(&self, frozen: Frozen) {
        *self.0.frozen.borrow_mut() = Some(frozen);
    }

    /// A view of `len` zero bytes, at most as many as one step reads, which takes no memory of its own.
    pub fn zero_block(&self, len: usize) -> Slice {
        assert!(len <= ZEROS && len % BLOCK == 0);
        self.0.zeros.cut(0, len)
    }
}
