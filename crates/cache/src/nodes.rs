//! Loading nodes of the index that are not resident.

use base::Slice;
use btree::Fault;
use pool::{ErrorKind, PoolError, Result};
use queue::{Class, Device};
use rt::sync::Event;

use crate::Cache;
use crate::index::node_addr;
use crate::limbo::Pin;
use crate::state::State;
use crate::table::Layout;

impl Cache {
    /// Runs a synchronous step over resident nodes until it needs no more: loads what it faults on and tries again.
    pub(crate) async fn resident<T>(
        &self,
        class: Class,
        mut step: impl FnMut(&mut State) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        loop {
            let (fault, pin) = {
                let mut st = self.state_mut();
                match step(&mut st) {
                    Ok(t) => return Ok(t),
                    Err(fault) => (fault, st.limbo.pin()),
                }
            };
            Box::pin(self.load_node(&fault, class, &pin)).await?;
        }
    }

    /// Brings a node into memory. Tasks that want the same node wait for one read.
    pub(crate) async fn load_node(&self, fault: &Fault, class: Class, pin: &Pin) -> Result<()> {
        let addr = fault.ptr.addr;
        let running = self.0.loading.borrow().get(&addr).map(Event::wait);
        if let Some(wait) = running {
            wait.await;
            return Ok(());
        }
        let event = Event::new();
        self.0.loading.borrow_mut().insert(addr, event.clone());
        let outcome = self.load_node_alone(fault, class).await;
        self.0.loading.borrow_mut().remove(&addr);
        event.notify();
        let _held: &Pin = pin;
        outcome
    }

    async fn load_node_alone(&self, fault: &Fault, class: Class) -> Result<()> {
        let bytes = read_node(&self.0.device, &self.0.layout, fault, class).await?;
        self.state_mut().index.admit(fault, &bytes)
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
