//! The nodes of a checkpoint's index, for a walk over them.
//!
//! Each node is checked by itself and against the keys that its parent gives it ([`btree::Walk`]),
//! and against the checkpoint: none is younger.

use base::{BucketId, Buf, CacheAddr};
use btree::{Nodes, Walk, WantedNode};
use cache::raw::{Layout, node_addr};
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::superblock::CacheSuperblock;
use format::node::{NodePage, NodeRef};
use format::tree::INDEX_TREE;
use rt::JoinHandle;

use super::checker::{CacheChecker, CacheLog, CacheSource, GIVE_UP};
use super::plan::{CacheRepairPlan, Fix};
use crate::report::Subject;

/// Of a node whose other copy is good.
const WHOLE: &str = "the other copy is good: it is written again when the cache reads it";

/// Returns the name of a node in a report.
pub(super) fn place_of(r: &NodeRef) -> String {
    format!("node of the index at block {}", r.ptr.addr)
}

/// A walk over the index of this checkpoint.
pub(crate) fn over(sb: &CacheSuperblock) -> Walk {
    Walk::new(INDEX_TREE, sb.root)
}

/// The source of the nodes of a walk: nodes are read here, and what is wrong with them is reported.
pub(crate) struct IndexNodes<'a> {
    pub src: &'a CacheSource,
    pub log: &'a mut CacheLog,
    pub sb: &'a CacheSuperblock,
    pub layout: &'a Layout,
    pub twins: &'a NodeCopies,
    /// Gets the bad copies of nodes whose other copy is good.
    pub plan: &'a mut CacheRepairPlan,
}

/// The places of the copies of nodes, by the bucket table.
#[derive(Default)]
pub(crate) struct NodeCopies(Vec<Option<BucketId>>);

impl NodeCopies {
    /// By these records, in order.
    pub fn of(records: &[BucketRecord]) -> NodeCopies {
        let twin = |f: &BucketRecord| f.twin.filter(|_| f.kind == BucketKind::Nodes);
        NodeCopies(records.iter().map(twin).collect())
    }

    /// Returns where the second copy of the node at `addr` stands.
    pub fn copy_of(&self, layout: &Layout, addr: CacheAddr) -> Option<CacheAddr> {
        let blocks = u64::from(layout.bucket_blocks);
        let twin = self.0.get((addr.0 / blocks) as usize).copied().flatten()?;
        let copy = CacheAddr(u64::from(twin.0) * blocks + addr.0 % blocks);
        layout.contains(copy, 1).then_some(copy)
    }
}

impl CacheChecker<'_> {
    pub(super) fn nodes<'a>(
        &'a mut self,
        sb: &'a CacheSuperblock,
        layout: &'a Layout,
        twins: &'a NodeCopies,
    ) -> IndexNodes<'a> {
        let (log, plan) = (&mut self.log, &mut self.plan);
        IndexNodes { src: &self.src, log, sb, layout, twins, plan }
    }
}

impl Nodes for IndexNodes<'_> {
    async fn read(&mut self, wanted: &[WantedNode]) -> Vec<Option<NodePage>> {
        let reads: Vec<_> = wanted
            .iter()
            .map(|w| {
                let addr = node_addr(w.node.ptr.addr);
                (
                    self.read_at(addr),
                    self.twins.copy_of(self.layout, addr).map(|at| self.read_at(at)),
                )
            })
            .collect();
        let mut out = Vec::with_capacity(wanted.len());
        for (w, (first, second)) in wanted.iter().zip(reads) {
            let first = first.await.unwrap_or_else(|| Err("it was not read".to_owned()));
            let first = first.and_then(|block| self.judge(&block, w));
            let second = match second {
                Some(read) => {
                    let read = read.await.unwrap_or_else(|| Err("it was not read".to_owned()));
                    Some(read.and_then(|block| self.judge(&block, w)))
                }
                None => None,
            };
            out.push(self.choose(w, first, second));
        }
        out
    }
}

impl IndexNodes<'_> {
    fn read_at(&self, addr: CacheAddr) -> JoinHandle<Result<Buf, String>> {
        let offset = self.layout.contains(addr, 1).then(|| self.layout.offset_of(addr));
        let reader = self.src.clone();
        self.src.rt.spawn(async move {
            match offset {
                Some(offset) => reader.block(offset).await,
                None => Err("its address is outside of the cache".to_owned()),
            }
        })
    }

    /// The node of which these copies were read, the second if it has one. Reports a bad one.
    fn choose(
        &mut self,
        wanted: &WantedNode,
        first: Result<NodePage, String>,
        second: Option<Result<NodePage, String>>,
    ) -> Option<NodePage> {
        let at = node_addr(wanted.node.ptr.addr);
        let copy = self.twins.copy_of(self.layout, at).unwrap_or(at);
        let (page, bad, good, why) = match (first, second) {
            (Ok(page), None | Some(Ok(_))) => return Some(page),
            (Ok(page), Some(Err(why))) => (page, copy, at, why),
            (Err(why), Some(Ok(page))) => (page, at, copy, why),
            (Err(why), _) => {
                self.log.error(Subject::Node, place_of(&wanted.node), why, GIVE_UP);
                return None;
            }
        };
        let place = format!("{}, the copy at block {bad}", place_of(&wanted.node));
        self.log.copy(Subject::Node, &place, &self.src.path, why, WHOLE);
        let (bad, good) = (self.layout.offset_of(bad), self.layout.offset_of(good));
        self.plan.add(Fix::Node { bad, good, crc: wanted.node.ptr.crc });
        Some(page)
    }

    fn judge(&self, block: &[u8], wanted: &WantedNode) -> Result<NodePage, String> {
        let page = wanted.decode(block).map_err(|e| e.to_string())?;
        let generation = wanted.node.ptr.generation;
        if generation > self.sb.generation {
            return Err(format!("it is of generation {generation}, newer than the checkpoint"));
        }
        if !wanted.fits(&page) {
            return Err("its keys are not those that its parent expects".into());
        }
        Ok(page)
    }
}
