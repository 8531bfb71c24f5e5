//! The clean nodes of trees, and how those that are missing come to memory.
//!
//! A [`Store`] is plain data and stands in its owner's state. The owner says how a node is read,
//! and how its state is reached between two awaits ([`Loader`]). The loop that runs a step until it
//! needs nothing more ([`resident`]) and the loading of a node, once for all who want it
//! ([`load`]), are here. Loads that give way to clients are the exception: who must not wait behind
//! the background's share of a device reads a node itself that such a load is under way for.

use std::any::Any;
use std::future::Future;
use std::ops::DerefMut;
use std::rc::Rc;

use base::{BLOCK, PoolAddr, Slice, StorageError};
use format::node::NodeError;
use rt::sync::{Shared, Worker};
use rt::{Reason, Rt};
use rustc_hash::FxHashMap;

use crate::Fault;
use crate::cache::{CacheStats, NodeCache};

/// Why a step ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Stop<E> {
    /// The step needs a node. It has changed nothing, and is run again when the node is there.
    #[error(transparent)]
    Fault(Fault),
    /// The step failed.
    #[error("{0}")]
    Error(E),
}

impl From<StorageError> for Stop<StorageError> {
    fn from(e: StorageError) -> Stop<StorageError> {
        Stop::Error(e)
    }
}

impl<E> From<Fault> for Stop<E> {
    fn from(fault: Fault) -> Stop<E> {
        Stop::Fault(fault)
    }
}

/// The clean resident nodes of any number of trees, and the loads that are under way.
pub struct Store {
    pub(crate) nodes: NodeCache,
    loading: FxHashMap<Fault, Load>,
    /// Loads that have begun.
    loads: u64,
}

/// A load that is under way.
struct Load {
    number: u64,
    gives_way: bool,
    shared: Shared<LoadResult>,
}

/// The result of a load; the error type is the loader's.
type LoadResult = Result<(), Rc<dyn Any>>;

impl Store {
    /// A store of at most `limit_nodes` nodes, but at least 16; an edit that needs more has more
    /// while it waits for them.
    pub fn new(limit_nodes: usize) -> Store {
        Store { nodes: NodeCache::new(limit_nodes), loading: FxHashMap::default(), loads: 0 }
    }

    /// Verifies that `bytes` are the node that `fault` asks for, and keeps it.
    pub fn admit(&mut self, fault: &Fault, bytes: &[u8]) -> Result<(), NodeError> {
        self.nodes.admit(fault, bytes)
    }

    /// The block was freed: what it held is of no use.
    pub fn forget(&mut self, addr: PoolAddr) {
        self.nodes.forget(addr);
    }

    /// Keeps a node that is about to be edited from eviction, beside the limit, until it is edited
    /// or three more turns have begun. At most 4096 are kept so. False if it is not resident.
    pub fn hold(&mut self, fault: &Fault) -> bool {
        self.nodes.hold(fault)
    }

    /// True if a node is resident.
    pub fn has(&self, fault: &Fault) -> bool {
        self.nodes.peek(fault).is_some()
    }

    /// Another batch of nodes will be held: those that were held for long are let go.
    pub fn next_turn(&mut self) {
        self.nodes.next_turn();
    }

    /// No edit that nodes were held for will come.
    pub fn let_go(&mut self) {
        self.nodes.let_go();
    }

    /// The number of nodes that are resident.
    pub fn resident(&self) -> usize {
        self.nodes.resident()
    }

    /// The number of bytes that the pages of the resident nodes take.
    pub fn resident_bytes(&self) -> usize {
        self.resident() * BLOCK
    }

    /// The counts of the store's lookups, loads and waits since it was made.
    pub fn stats(&self) -> CacheStats {
        self.nodes.stats()
    }

    /// A new load of this node, and its number; or the one that is under way, if it is soon enough.
    /// Later ones share the new load.
    fn begin(
        &mut self,
        fault: Fault,
        gives_way: bool,
    ) -> Result<(u64, Worker<LoadResult>), Shared<LoadResult>> {
        let load = self.loading.get(&fault).filter(|load| load.shared.is_running());
        if let Some(load) = load.filter(|load| gives_way || !load.gives_way) {
            return Err(load.shared.clone());
        }
        let (shared, worker) = Shared::begin();
        self.loads += 1;
        self.loading.insert(fault, Load { number: self.loads, gives_way, shared });
        Ok((self.loads, worker))
    }

    /// Keeps what a load has read, unless another one was sooner.
    fn end(&mut self, number: u64, fault: &Fault, bytes: &[u8]) -> Result<(), NodeError> {
        self.given_up(number, fault);
        if self.has(fault) { Ok(()) } else { self.admit(fault, bytes) }
    }

    /// A load has ended.
    fn given_up(&mut self, number: u64, fault: &Fault) {
        if self.loading.get(fault).is_some_and(|load| load.number == number) {
            self.loading.remove(fault);
        }
    }
}

/// An owner of a store: how its state is reached, and how a node is read.
pub trait Loader {
    /// The state that steps look at and change. It has the store in it.
    type State;
    /// The error that a step or a read may fail with.
    type Error: Clone + 'static;
    /// Keeps the blocks that a step saw from being given to others while they are read.
    type Pin;

    /// The state, until the next await.
    fn state(&mut self) -> impl DerefMut<Target = Self::State>;

    /// The store in it.
    fn store(state: &mut Self::State) -> &mut Store;

    /// Keeps the node in its place until it was read. Taken together with the look at a tree.
    fn pin(state: &Self::State, fault: &Fault) -> Self::Pin;

    /// Why a request that needs a node waits.
    const REASON: Reason;

    /// The runtime.
    fn rt(&self) -> Rt;

    /// Whether its reads give way to those of clients, and so may take long.
    fn gives_way(&self) -> bool;

    /// Reads the block of a node.
    fn read(
        &mut self,
        fault: &Fault,
        pin: &Self::Pin,
    ) -> impl Future<Output = Result<Slice, Self::Error>>;

    /// Makes the error of a read whose bytes are not the node.
    fn refused(fault: &Fault, why: NodeError) -> Self::Error;
}

/// Runs a step until it needs no more nodes.
pub async fn resident<L: Loader, T>(
    loader: &mut L,
    mut step: impl FnMut(&mut L::State) -> Result<T, Stop<L::Error>>,
) -> Result<T, L::Error> {
    loop {
        let (fault, pin) = {
            let mut state = loader.state();
            match step(&mut state) {
                Ok(t) => return Ok(t),
                Err(Stop::Error(e)) => return Err(e),
                Err(Stop::Fault(fault)) => {
                    L::store(&mut state).nodes.note_wait();
                    let pin = L::pin(&state, &fault);
                    (fault, pin)
                }
            }
        };
        // Boxed, as all that is rare on the way of a request: what a task carries about should be
        // small.
        Box::pin(load(loader, &fault, &pin)).await?;
    }
}

/// Brings a node into memory. Tasks that want the same node wait for one read, and if it fails, all
/// of them fail: were each to try again, one that never gives up could be first every time. If the
/// read is dropped, they fault again. No task waits for a read that gives way, if its own would
/// not.
pub async fn load<L: Loader>(loader: &mut L, fault: &Fault, pin: &L::Pin) -> Result<(), L::Error> {
    let gives_way = loader.gives_way();
    let begun = L::store(&mut loader.state()).begin(*fault, gives_way);
    let (number, worker) = match begun {
        Ok(begun) => begun,
        Err(load) => {
            let loaded = loader.rt().waits(L::REASON, load.wait()).await;
            let failed = loaded.and_then(Result::err);
            let error = failed.and_then(|e| e.downcast_ref::<L::Error>().cloned());
            return error.map_or(Ok(()), Err);
        }
    };
    let rt = loader.rt();
    let bytes = rt.waits(L::REASON, loader.read(fault, pin)).await;
    let mut state = loader.state();
    let store = L::store(&mut state);
    let outcome = match bytes {
        Ok(bytes) => store.end(number, fault, &bytes).map_err(|why| L::refused(fault, why)),
        Err(e) => {
            store.given_up(number, fault);
            if store.has(fault) { Ok(()) } else { Err(e) }
        }
    };
    worker.end(outcome.clone().map_err(|e| Rc::new(e) as Rc<dyn Any>));
    outcome
}
