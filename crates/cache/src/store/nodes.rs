//! Loading nodes of the index that are not resident.

use std::ops::DerefMut;

use base::Slice;
use btree::{Fault, Loader, NodeError, Store};
use pool::{ErrorKind, PoolError, Result, Step};
use queue::{Class, Device};

use crate::Cache;
use crate::device::table::Layout;
use crate::store::index::node_addr;
use crate::store::limbo::Pin;
use crate::store::state::State;

/// How the index's nodes are loaded, by requests of a class.
struct Nodes<'c>(&'c Cache, Class);

impl Loader for Nodes<'_> {
    type State = State;
    type Error = PoolError;
    type Pin = Pin;

    fn state(&mut self) -> impl DerefMut<Target = State> {
        self.0.state_mut()
    }

    fn store(st: &mut State) -> &mut Store {
        &mut st.index.store
    }

    fn pin(st: &State) -> Pin {
        st.limbo.pin()
    }

    async fn read(&mut self, fault: &Fault, _: &Pin) -> Result<Slice> {
        read_node(&self.0.0.device, &self.0.0.layout, fault, self.1).await
    }

    fn refused(fault: &Fault, why: NodeError) -> PoolError {
        damaged(fault, why)
    }
}

impl Cache {
    /// Runs a synchronous step over resident nodes until it needs no more.
    pub(crate) async fn resident<T>(&self, class: Class, step: impl FnMut(&mut State) -> Step<T>) -> Result<T> {
        btree::resident(&mut Nodes(self, class), step).await
    }
}

/// Reads the block that a fault asks for.
pub(crate) async fn read_node(device: &Device, layout: &Layout, fault: &Fault, class: Class) -> Result<Slice> {
    let addr = node_addr(fault.ptr.addr);
    if addr.0 >= layout.data_blocks() {
        return Err(damaged(fault, "its address is outside of the cache"));
    }
    let read = device.read_blocks(class, layout.offset_of(addr), 1).await;
    match read.error(0) {
        None => Ok(read.buf.freeze()),
        Some(e) => Err(damaged(fault, e)),
    }
}

/// What is said of a node that cannot be had.
pub(crate) fn damaged(fault: &Fault, why: impl std::fmt::Display) -> PoolError {
    let text = format!(
        "the cache's index: the node at block {}: {why}; run forebay check, or start without the cache to use the pool's image",
        fault.ptr.addr
    );
    PoolError::new(ErrorKind::Damaged, text)
}
