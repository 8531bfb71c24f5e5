//! Walks a tree leaf by leaf, in the order of its keys, reading every node on every copy.
//!
//! Each node is checked by itself (`format::node::decode`), against the keys its parent gives it, and against the space: it must stand in
//! a metadata group, be allocated, and be referred to once. A node that is referred to twice is not entered a second time, so that a walk
//! ends whatever the bytes say.

use std::collections::VecDeque;

use base::BLOCK;
use format::node::{Key, NodePage, NodeRef, RootPtr, decode};
use format::page::GroupKind;

use super::Checker;
use super::report::Subject;
use super::source::Copy;

/// Nodes that are read at once.
const BATCH: usize = 32;
const LOST: &str = "what it holds is lost; restore from a backup";
const HEALED: &str = "it is healed when the pool reads it";

/// The keys that may stand below a link: from the first up to and without the second.
type Bounds = (Key, Option<Key>);

struct Frame {
    page: NodePage,
    bounds: Bounds,
    /// The next child to be read.
    next: usize,
    /// Children that have been read; `None` where it failed.
    ready: VecDeque<Option<Found>>,
}

/// A node that was read.
type Found = (NodeRef, NodePage, Bounds);

/// A place in a tree.
pub(crate) struct Walk {
    tree: u64,
    name: String,
    stack: Vec<Frame>,
    /// The root, until it is asked for.
    root: Option<NodeRef>,
    /// A second walk: space is not claimed and nothing is reported again.
    quiet: bool,
    /// False if a part of the tree could not be read.
    pub whole: bool,
}

impl Walk {
    pub fn new(tree: u64, name: String, root: Option<RootPtr>, quiet: bool) -> Walk {
        let root = root.map(|r| NodeRef { ptr: r.ptr, level: r.height.saturating_sub(1), tree });
        Walk { tree, name, stack: Vec::new(), root, quiet, whole: true }
    }

    /// The next leaf; `None` after the last.
    pub async fn next_leaf(&mut self, check: &mut Checker<'_>) -> Option<NodePage> {
        loop {
            let (_, page) = self.next_node(check).await?;
            if page.level() == 0 {
                return Some(page);
            }
        }
    }

    /// The next node, parents before children; `None` after the last.
    pub async fn next_node(&mut self, check: &mut Checker<'_>) -> Option<(NodeRef, NodePage)> {
        if let Some(root) = self.root.take() {
            if !self.quiet && root.ptr.generation.0 > check.src.best.generation {
                let what = format!("its root is of generation {}, newer than the superblock", root.ptr.generation);
                check.log.error(Subject::Node, &self.name, what, "restore from a backup");
            }
            let found = self.read(check, vec![(root, (Key::EMPTY, None))]).await.pop().flatten()?;
            return Some(self.enter(found));
        }
        loop {
            let frame = self.stack.last_mut()?;
            if let Some(child) = frame.ready.pop_front() {
                match child {
                    Some(found) => return Some(self.enter(found)),
                    None => continue,
                }
            }
            if frame.next == frame.page.count() {
                self.stack.pop();
                continue;
            }
            let from = frame.next;
            frame.next = (from + BATCH).min(frame.page.count());
            let refs = (from..frame.next).map(|i| child_ref(frame, i, self.tree)).collect();
            let ready = self.read(check, refs).await;
            if let Some(frame) = self.stack.last_mut() {
                frame.ready.extend(ready);
            }
        }
    }

    /// Hands a node out; an inner node's children come next.
    fn enter(&mut self, (r, page, bounds): Found) -> (NodeRef, NodePage) {
        if page.level() > 0 {
            self.stack.push(Frame { page: page.clone(), bounds, next: 0, ready: VecDeque::new() });
        }
        (r, page)
    }

    async fn read(&mut self, check: &mut Checker<'_>, refs: Vec<(NodeRef, Bounds)>) -> Vec<Option<Found>> {
        let tasks: Vec<_> = refs
            .into_iter()
            .map(|(r, bounds)| {
                let go = self.quiet || self.claim(check, &r);
                let chunks = check.space.locate(r.ptr.addr, 1, GroupKind::Metadata);
                let chunks = chunks.map(|(g, _)| check.space.groups[g].record.chunks.clone()).filter(|_| go);
                let task = chunks.map(|chunks| {
                    let src = check.src.clone();
                    check.src.rt().spawn(async move { src.read_copies(&chunks, r.ptr.addr, 1).await })
                });
                (r, bounds, task)
            })
            .collect();
        let mut out = Vec::with_capacity(tasks.len());
        for (r, bounds, task) in tasks {
            let page = match task {
                Some(t) => {
                    let copies = t.await.unwrap_or_default();
                    self.judge(check, &r, &bounds, &copies)
                }
                None => None,
            };
            self.whole &= page.is_some();
            out.push(page.map(|p| (r, p, bounds)));
        }
        out
    }

    fn place(&self, r: &NodeRef) -> String {
        format!("node at block {} of {}", r.ptr.addr, self.name)
    }

    /// Marks a node's block as referred to; false if it should not be entered.
    fn claim(&self, check: &mut Checker<'_>, r: &NodeRef) -> bool {
        let place = self.place(r);
        let Some((group, block)) = check.space.locate(r.ptr.addr, 1, GroupKind::Metadata) else {
            check.log.error(Subject::Node, place, "its block is in no metadata group", LOST);
            return false;
        };
        check.log.counts.nodes += 1;
        let claim = check.space.claim(group, block, 1);
        if claim.shared > 0 {
            check.log.error(Subject::Node, place, "its block is referred to twice", LOST);
            return false;
        }
        if claim.free > 0 {
            let remedy = "do not write to this pool: the block may be given to something else";
            check.log.error(Subject::Node, place, "its block is not allocated", remedy);
        }
        true
    }

    /// What all copies of a node come to.
    fn judge(&self, check: &mut Checker<'_>, r: &NodeRef, bounds: &Bounds, copies: &[Copy]) -> Option<NodePage> {
        let mut good = None;
        let mut bad: Vec<(usize, String)> = Vec::new();
        for (d, outcome) in copies {
            let decoded = match outcome {
                Ok(bytes) => decode(&bytes[..BLOCK], r).map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            match decoded {
                Ok(page) => {
                    check.log.counts.good_copies += u64::from(!self.quiet);
                    good = Some(page);
                }
                Err(why) => bad.push((*d, why)),
            }
        }
        let place = self.place(r);
        let page = good.filter(|page| {
            let fits = in_bounds(page, bounds);
            if !fits && !self.quiet {
                check.log.error(Subject::Node, &place, "its keys are not those that its parent expects", LOST);
            }
            fits
        });
        if self.quiet || (page.is_none() && bad.len() < copies.len()) {
            return page;
        }
        if page.is_some() {
            for (d, why) in bad {
                let name = check.src.name(d);
                check.log.copy(Subject::Node, &place, &name, why, HEALED);
            }
        } else {
            let why = match bad.first() {
                Some((_, why)) => format!("no good copy ({} tried): {why}", bad.len()),
                None => "no device with a copy of it is there".to_owned(),
            };
            check.log.error(Subject::Node, place, why, LOST);
        }
        page
    }
}

fn child_ref(frame: &Frame, i: usize, tree: u64) -> (NodeRef, Bounds) {
    let page = &frame.page;
    let low = if i > 0 { page.key(i) } else { frame.bounds.0 };
    let high = if i + 1 < page.count() { Some(page.key(i + 1)) } else { frame.bounds.1 };
    (NodeRef { ptr: page.pointer(i), level: page.level() - 1, tree }, (low, high))
}

fn in_bounds(page: &NodePage, (low, high): &Bounds) -> bool {
    let first = usize::from(page.level() > 0);
    let count = page.count();
    if first == count {
        return true;
    }
    let above = if first == 0 { *page.key(0) >= **low } else { *page.key(first) > **low };
    above && high.as_ref().is_none_or(|high| *page.key(count - 1) < **high)
}
