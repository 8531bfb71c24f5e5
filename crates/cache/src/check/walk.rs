//! Walks the index of a checkpoint node by node, parents before children, in the order of keys.
//!
//! Each node is checked by itself (`format::node::decode`: checksum, address, generation, level, order of keys), against the keys that its parent gives it,
//! and against the checkpoint: none is younger.

use std::collections::VecDeque;

use base::Generation;
use format::cache::superblock::CacheSuperblock;
use format::node::{Key, NodePage, NodeRef, decode};
use pool::check::Subject;

use super::{GIVE_UP, Log, Source};
use crate::index::{INDEX_TREE, node_addr};
use crate::table::Layout;

/// Nodes that are read at once.
const BATCH: usize = 32;

/// The keys that may stand below a link: from the first up to and without the second.
type Bounds = (Key, Option<Key>);

/// A node that was read.
type Found = (NodeRef, NodePage, Bounds);

struct Frame {
    page: NodePage,
    bounds: Bounds,
    /// The next child to be read.
    next: usize,
    ready: VecDeque<Found>,
}

/// How a node is called in a report.
pub(super) fn place_of(r: &NodeRef) -> String {
    format!("node of the index at block {}", r.ptr.addr)
}

/// A place in the index.
pub(crate) struct Walk {
    layout: Layout,
    newest: Generation,
    stack: Vec<Frame>,
    /// The root, until it is asked for.
    root: Option<NodeRef>,
    /// False if a part of the index could not be read.
    pub whole: bool,
}

impl Walk {
    /// Over the index of this checkpoint.
    pub fn new(sb: &CacheSuperblock, layout: &Layout) -> Walk {
        let root = sb.root.map(|r| NodeRef { ptr: r.ptr, level: r.height.saturating_sub(1), tree: INDEX_TREE });
        Walk { layout: *layout, newest: sb.generation, stack: Vec::new(), root, whole: true }
    }

    /// The next node; `None` after the last.
    pub async fn next_node(&mut self, src: &Source, log: &mut Log) -> Option<(NodeRef, NodePage)> {
        if let Some(root) = self.root.take() {
            let found = self.read(src, log, vec![(root, (Key::EMPTY, None))]).await.pop_front()?;
            return Some(self.enter(found));
        }
        loop {
            let frame = self.stack.last_mut()?;
            if let Some(found) = frame.ready.pop_front() {
                return Some(self.enter(found));
            }
            if frame.next == frame.page.count() {
                self.stack.pop();
                continue;
            }
            let from = frame.next;
            frame.next = (from + BATCH).min(frame.page.count());
            let refs = (from..frame.next).map(|i| child_ref(frame, i)).collect();
            let ready = self.read(src, log, refs).await;
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
    }

    /// Hands a node out; an inner node's children come next.
    fn enter(&mut self, (r, page, bounds): Found) -> (NodeRef, NodePage) {
        if page.level() > 0 {
            self.stack.push(Frame { page: page.clone(), bounds, next: 0, ready: VecDeque::new() });
        }
        (r, page)
    }

    async fn read(&mut self, src: &Source, log: &mut Log, refs: Vec<(NodeRef, Bounds)>) -> VecDeque<Found> {
        let tasks: Vec<_> = refs
            .into_iter()
            .map(|(r, bounds)| {
                let addr = node_addr(r.ptr.addr);
                let offset = self.layout.contains(addr, 1).then(|| self.layout.offset_of(addr));
                let reader = src.clone();
                let task = src.rt.spawn(async move {
                    match offset {
                        Some(offset) => reader.block(offset).await,
                        None => Err("its address is outside of the cache".to_owned()),
                    }
                });
                (r, bounds, task)
            })
            .collect();
        let mut out = VecDeque::with_capacity(tasks.len());
        for (r, bounds, task) in tasks {
            let read = task.await.unwrap_or_else(|| Err("it was not read".to_owned()));
            match read.and_then(|bytes| self.judge(&bytes, &r, &bounds)) {
                Ok(page) => out.push_back((r, page, bounds)),
                Err(why) => {
                    self.whole = false;
                    log.error(Subject::Node, place_of(&r), why, GIVE_UP);
                }
            }
        }
        out
    }

    fn judge(&self, bytes: &[u8], r: &NodeRef, bounds: &Bounds) -> Result<NodePage, String> {
        let page = decode(bytes, r).map_err(|e| e.to_string())?;
        if r.ptr.generation > self.newest {
            return Err(format!("it is of generation {}, newer than the checkpoint", r.ptr.generation));
        }
        if !in_bounds(&page, bounds) {
            return Err("its keys are not those that its parent expects".into());
        }
        Ok(page)
    }
}

fn child_ref(frame: &Frame, i: usize) -> (NodeRef, Bounds) {
    let page = &frame.page;
    let low = if i > 0 { page.key(i) } else { frame.bounds.0 };
    let high = if i + 1 < page.count() { Some(page.key(i + 1)) } else { frame.bounds.1 };
    (NodeRef { ptr: page.pointer(i), level: page.level() - 1, tree: INDEX_TREE }, (low, high))
}

fn in_bounds(page: &NodePage, (low, high): &Bounds) -> bool {
    let first = usize::from(page.level() > 0);
    let count = page.count();
    if first >= count {
        return true;
    }
    let above = if first == 0 { *page.key(0) >= **low } else { *page.key(first) > **low };
    above && high.as_ref().is_none_or(|high| *page.key(count - 1) < **high)
}
