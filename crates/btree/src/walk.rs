//! Goes over a tree as it stands on a device, node by node: for checks and dumps, which stop at
//! nothing.
//!
//! Parents come before their children, in the order of keys. Nodes are read many at once; what
//! cannot be read, or is not as its parent says, is passed over, with all below it.

use std::collections::VecDeque;
use std::future::Future;

use format::node::{NodeError, NodePage, NodeRef, RootPtr, decode};

use crate::node::Bounds;

/// Nodes that are read at once.
const BATCH: usize = 32;

/// A node that is to be read.
pub struct WantedNode {
    /// Which one.
    pub node: NodeRef,
    bounds: Bounds,
}

impl WantedNode {
    /// The node in its block, verified by itself.
    pub fn decode(&self, block: &[u8]) -> Result<NodePage, NodeError> {
        decode(block, &self.node)
    }

    /// True if its keys are those that its parent expects.
    pub fn fits(&self, page: &NodePage) -> bool {
        self.bounds.hold(page)
    }
}

/// A source of nodes.
pub trait Nodes {
    /// Reads and judges nodes, in order; `None` for those that the walk does not get.
    fn read(&mut self, wanted: &[WantedNode]) -> impl Future<Output = Vec<Option<NodePage>>>;
}

/// A node whose children come next.
struct Frame {
    page: NodePage,
    bounds: Bounds,
    /// The next child to be read.
    next: usize,
    ready: VecDeque<(WantedNode, NodePage)>,
}

/// A place in a tree.
pub struct Walk {
    tree: u64,
    stack: Vec<Frame>,
    /// The root, until it is asked for.
    root: Option<NodeRef>,
    whole: bool,
}

impl Walk {
    /// Over the tree with this root.
    pub fn new(tree: u64, root: Option<RootPtr>) -> Walk {
        let root = root.map(|r| NodeRef { ptr: r.ptr, level: r.height.saturating_sub(1), tree });
        Walk { tree, stack: Vec::new(), root, whole: true }
    }

    /// False if a part of the tree could not be read.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The next node; `None` after the last.
    pub async fn next_node(&mut self, nodes: &mut impl Nodes) -> Option<(NodeRef, NodePage)> {
        if let Some(node) = self.root.take() {
            let wanted = vec![WantedNode { node, bounds: Bounds::ALL }];
            let (root, page) = self.read(nodes, wanted).await.pop_front()?;
            return Some(self.enter(root, page));
        }
        loop {
            let frame = self.stack.last_mut()?;
            if let Some((wanted, page)) = frame.ready.pop_front() {
                return Some(self.enter(wanted, page));
            }
            if frame.next == frame.page.count() {
                self.stack.pop();
                continue;
            }
            let from = frame.next;
            frame.next = (from + BATCH).min(frame.page.count());
            let level = frame.page.level() - 1;
            let child = |i| WantedNode {
                node: NodeRef { ptr: frame.page.pointer(i), level, tree: self.tree },
                bounds: frame.bounds.of_child(&frame.page, i),
            };
            let wanted = (from..frame.next).map(child).collect();
            let ready = self.read(nodes, wanted).await;
            if let Some(frame) = self.stack.last_mut() {
                frame.ready = ready;
            }
        }
    }

    /// Does not go below the node that came last.
    pub fn leave(&mut self, page: &NodePage) {
        if page.level() > 0 {
            self.stack.pop();
        }
        self.whole = false;
    }

    /// Hands a node out; an inner node's children come next.
    fn enter(&mut self, wanted: WantedNode, page: NodePage) -> (NodeRef, NodePage) {
        if page.level() > 0 {
            self.stack.push(Frame {
                page: page.clone(),
                bounds: wanted.bounds,
                next: 0,
                ready: VecDeque::new(),
            });
        }
        (wanted.node, page)
    }

    async fn read(
        &mut self,
        nodes: &mut impl Nodes,
        wanted: Vec<WantedNode>,
    ) -> VecDeque<(WantedNode, NodePage)> {
        let pages = nodes.read(&wanted).await;
        self.whole &= pages.iter().all(Option::is_some);
        wanted.into_iter().zip(pages).filter_map(|(wanted, page)| Some((wanted, page?))).collect()
    }
}
