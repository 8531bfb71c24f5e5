//! Nodes of the margin ([`crate::space::node_room`]) that steps of a pass have reserved.

use std::cell::Cell;
use std::rc::Rc;

use rt::sync::Event;

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Margin(Rc<ReservedNodes>);

#[derive(Default)]
struct ReservedNodes {
    nodes: Cell<u64>,
    freed: Event,
}

/// Nodes that are reserved until this is dropped.
pub(super) struct MarginNodes {
    of: Margin,
    nodes: u64,
}

impl Margin {
    /// The number of nodes that are reserved.
    pub fn reserved(&self) -> u64 {
        self.0.nodes.get()
    }

    /// Reserves more nodes.
    pub fn reserve(&self, nodes: u64) -> MarginNodes {
        self.0.nodes.set(self.reserved() + nodes);
        MarginNodes { of: self.clone(), nodes }
    }

    /// Waits until some are given back.
    pub fn freed(&self) -> impl Future<Output = ()> + use<> {
        self.0.freed.wait()
    }
}

impl Drop for MarginNodes {
    fn drop(&mut self) {
        self.of.0.nodes.set(self.of.reserved() - self.nodes);
        self.of.0.freed.notify();
    }
}
