//! The nodes of a checkpoint's index, for a walk over them.
//!
//! Each node is checked by itself and against the keys that its parent gives it ([`btree::Walk`]),
//! and against the checkpoint: none is younger.

use btree::{Nodes, Walk, Wanted};
use cache::raw::{Layout, node_addr};
use format::cache::superblock::CacheSuperblock;
use format::node::{NodePage, NodeRef};
use format::tree::INDEX_TREE;

use super::checker::{Checker, GIVE_UP, Log, Source};
use crate::report::Subject;

/// How a node is called in a report.
pub(super) fn place_of(r: &NodeRef) -> String {
    format!("node of the index at block {}", r.ptr.addr)
}

/// A walk over the index of this checkpoint.
pub(crate) fn over(sb: &CacheSuperblock) -> Walk {
    Walk::new(INDEX_TREE, sb.root)
}

/// Where its nodes are read, and what is wrong with them is reported.
pub(crate) struct IndexNodes<'a> {
    pub src: &'a Source,
    pub log: &'a mut Log,
    pub sb: &'a CacheSuperblock,
    pub layout: &'a Layout,
}

impl Checker<'_> {
    pub(super) fn nodes<'a>(
        &'a mut self,
        sb: &'a CacheSuperblock,
        layout: &'a Layout,
    ) -> IndexNodes<'a> {
        IndexNodes { src: &self.src, log: &mut self.log, sb, layout }
    }
}

impl Nodes for IndexNodes<'_> {
    async fn read(&mut self, wanted: &[Wanted]) -> Vec<Option<NodePage>> {
        let reads = wanted.iter().map(|w| {
            let addr = node_addr(w.node.ptr.addr);
            let offset = self.layout.contains(addr, 1).then(|| self.layout.offset_of(addr));
            let reader = self.src.clone();
            self.src.rt.spawn(async move {
                match offset {
                    Some(offset) => reader.block(offset).await,
                    None => Err("its address is outside of the cache".to_owned()),
                }
            })
        });
        let reads: Vec<_> = reads.collect();
        let mut out = Vec::with_capacity(wanted.len());
        for (w, read) in wanted.iter().zip(reads) {
            let read = read.await.unwrap_or_else(|| Err("it was not read".to_owned()));
            let page = read.and_then(|block| self.judge(&block, w));
            out.push(
                page.map_err(|why| self.log.error(Subject::Node, place_of(&w.node), why, GIVE_UP))
                    .ok(),
            );
        }
        out
    }
}

impl IndexNodes<'_> {
    fn judge(&self, block: &[u8], wanted: &Wanted) -> Result<NodePage, String> {
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
