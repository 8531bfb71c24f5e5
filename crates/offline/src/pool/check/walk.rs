//! Walks a tree leaf by leaf, in the order of its keys, reading every node on every copy.
//!
//! Each node is checked by itself ([`btree::Walk`]), against the keys its parent gives it, and
//! against the space: it must stand in a metadata group, be allocated, and be referred to once. A
//! node that is referred to twice is not entered a second time, so that a walk ends whatever the
//! bytes say.

use base::{BLOCK, PoolAddr};
use btree::{Nodes, WantedNode};
use format::node::{NodePage, NodePtr, NodeRef, RootPtr};
use format::page::GroupKind;
use pool::offline_repair::Content;

use super::PoolChecker;
use super::source::Copy;
use crate::report::Subject;

const LOST: &str = "what it holds is lost; restore from a backup";
const NOT_MISSED: &str = "the volume is deleted, and forebay check --repair frees all that it held";
const HEALED: &str = "it is healed when the pool reads it";

/// A place in a tree.
pub(crate) struct Walk {
    walk: btree::Walk,
    name: String,
    root: Option<RootPtr>,
    /// A second walk: space is not claimed and nothing is reported again.
    quiet: bool,
    /// The tree is of a snapshot: what was met before is shared, and not entered again.
    of_snapshot: bool,
    /// The advice for a node that is lost.
    remedy: &'static str,
}

impl Walk {
    pub fn new(tree: u64, name: String, root: Option<RootPtr>, quiet: bool) -> Walk {
        let walk = btree::Walk::new(tree, root);
        Walk { walk, name, root, quiet, of_snapshot: false, remedy: LOST }
    }

    /// The tree is of a volume that was deleted: what is lost of it is not missed.
    pub fn of_deleted(self) -> Walk {
        Walk { remedy: NOT_MISSED, ..self }
    }

    /// The tree is of a snapshot: nodes and blocks that were met before are shared.
    pub fn of_snapshot(self) -> Walk {
        Walk { of_snapshot: true, ..self }
    }

    /// False if a part of the tree could not be read.
    pub fn is_whole(&self) -> bool {
        self.walk.is_whole()
    }

    /// The next leaf; `None` after the last.
    pub async fn next_leaf(&mut self, check: &mut PoolChecker<'_>) -> Option<NodePage> {
        loop {
            let (_, page) = self.next_node(check).await?;
            if page.level() == 0 {
                return Some(page);
            }
        }
    }

    /// The next node, parents before children; `None` after the last.
    pub async fn next_node(&mut self, check: &mut PoolChecker<'_>) -> Option<(NodeRef, NodePage)> {
        let root = self.root.take().filter(|_| !self.quiet);
        if let Some(root) = root.filter(|root| root.ptr.generation.0 > check.src.best.generation) {
            let what = format!(
                "its root is of generation {}, newer than the superblock",
                root.ptr.generation
            );
            check.log.error(Subject::Node, &self.name, what, "restore from a backup");
        }
        let Walk { name, quiet, of_snapshot, remedy, .. } = self;
        let (quiet, of_snapshot) = (*quiet, *of_snapshot);
        self.walk.next_node(&mut Copies { check, name, quiet, of_snapshot, remedy }).await
    }
}

/// All copies of a tree's nodes.
struct Copies<'c, 'a> {
    check: &'c mut PoolChecker<'a>,
    name: &'c str,
    quiet: bool,
    of_snapshot: bool,
    remedy: &'static str,
}

impl Nodes for Copies<'_, '_> {
    async fn read(&mut self, wanted: &[WantedNode]) -> Vec<Option<NodePage>> {
        let mut tasks = Vec::with_capacity(wanted.len());
        for addr in wanted.iter().map(|w| w.node.ptr.addr) {
            let go = self.quiet || self.claim(addr);
            let space = &self.check.space;
            let chunks = space.locate(addr, 1, GroupKind::Metadata).filter(|_| go);
            let chunks = chunks.map(|(g, _)| space.groups[g].record.chunks.clone());
            tasks.push(chunks.map(|chunks| {
                let (src, of) = (self.check.src.clone(), chunks.clone());
                let read = async move { src.read_copies(&of, addr, 1).await };
                (chunks, self.check.src.rt().spawn(read))
            }));
        }
        let mut out = Vec::with_capacity(wanted.len());
        for (wanted, task) in wanted.iter().zip(tasks) {
            out.push(match task {
                Some((chunks, task)) => {
                    let mut copies = task.await.unwrap_or_default();
                    let is_good = |(_, outcome): &Copy| {
                        outcome.as_ref().is_ok_and(|b| wanted.decode(&b[..BLOCK]).is_ok())
                    };
                    if !copies.iter().any(is_good) {
                        let behind = self.check.src.read_behind(&chunks, wanted.node.ptr.addr);
                        copies.extend(behind.await.into_iter().filter(is_good));
                    }
                    self.judge(wanted, &copies)
                }
                None => None,
            });
        }
        out
    }
}

impl Copies<'_, '_> {
    fn place(&self, addr: PoolAddr) -> String {
        format!("node at block {addr} of {}", self.name)
    }

    /// Marks a node's block as referred to; false if it should not be entered.
    fn claim(&mut self, addr: PoolAddr) -> bool {
        let (place, check) = (self.place(addr), &mut *self.check);
        let Some((group, block)) = check.space.locate(addr, 1, GroupKind::Metadata) else {
            check.log.error(Subject::Node, place, "its block is in no metadata group", LOST);
            check.whole &= !self.of_snapshot;
            return false;
        };
        let claim = match self.of_snapshot {
            true => check.space.claim_past(group, block).0,
            false => check.space.claim(group, block, 1),
        };
        if claim.shared > 0 && self.of_snapshot {
            return false;
        }
        check.log.counts.nodes += 1;
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

    /// Judges a node by all its copies: reports what is wrong, and returns the node if a copy is
    /// good.
    fn judge(&mut self, wanted: &WantedNode, copies: &[Copy]) -> Option<NodePage> {
        let (place, check) = (self.place(wanted.node.ptr.addr), &mut *self.check);
        let mut good = None;
        let mut bad: Vec<(usize, String)> = Vec::new();
        for (d, outcome) in copies {
            let decoded = match outcome {
                Ok(bytes) => wanted.decode(&bytes[..BLOCK]).map_err(|e| e.to_string()),
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
        let page = good.filter(|page| {
            let fits = wanted.fits(page);
            if !fits && !self.quiet {
                check.log.error(
                    Subject::Node,
                    &place,
                    "its keys are not those that its parent expects",
                    LOST,
                );
            }
            fits
        });
        // Of the walk of a snapshot it is not told whether nodes were shared or lost.
        check.whole &= page.is_some() || !self.of_snapshot;
        if self.quiet || (page.is_none() && bad.len() < copies.len()) {
            return page;
        }
        if page.is_some() {
            let NodePtr { addr, crc, .. } = wanted.node.ptr;
            let chunks = check.space.chunks_of(addr);
            let (_, block) = check.space.geometry.split(addr);
            let good_on = copies.iter().map(|c| c.0).find(|d| bad.iter().all(|b| b.0 != *d));
            let good = good_on.and_then(|d| check.src.spot(chunks, block, d));
            for (d, why) in bad {
                let name = check.src.name(d);
                check.log.copy(Subject::Node, &place, &name, why, HEALED);
                if let (Some(bad), Some(good)) = (check.src.spot(chunks, block, d), good) {
                    check.plan.copy(Subject::Node, bad, good, Content::Block(crc));
                }
            }
        } else {
            let why = match bad.first() {
                Some((_, why)) => format!("no good copy ({} tried): {why}", bad.len()),
                None => "no device with a copy of it is there".to_owned(),
            };
            check.log.lost(Subject::Node, place, why, self.remedy);
        }
        page
    }
}
