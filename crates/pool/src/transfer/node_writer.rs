//! Writing the changed nodes of trees, of a commit or of a write-back pass: gathered into runs of
//! neighbouring blocks, each run by one request.

use std::rc::Rc;

use base::{BLOCK, Buf, Generation, PoolAddr, Result, SliceList};
use btree::{Tree, WriteOut};
use format::node::RootPtr;
use format::page::GroupKind;
use queue::Class;

use super::commit_writes::Writes;
use crate::core::Core;
use crate::space::{Alloc, Run, push_run};
use crate::transfer::load::NodeLoader;
use crate::transfer::write_copies::CopyWriter;
use crate::txn::Kind;

/// Nodes that are serialised before other tasks get a turn.
const SLICE: usize = 64;
/// Nodes written by one request.
const NODES_PER_WRITE: u64 = 64;
/// The same of nodes of which it is not known how many there are.
const UNCOUNTED_PER_WRITE: u64 = 8;

/// Gathers nodes into runs of neighbouring blocks and writes each run by one request.
pub(crate) struct NodeWriter<'w> {
    flow: Rc<NodeWrites>,
    kind: Kind,
    /// The nodes were counted when their trees were edited.
    is_counted: bool,
    run: Option<NodeRun>,
    /// Nodes of this slice, of all trees: thousands may have a node each.
    done: usize,
    /// The blocks that nodes got.
    blocks: &'w mut Vec<Run>,
    writes: &'w mut Writes,
}

/// Blocks taken for nodes, and how many of them have one.
struct NodeRun {
    at: Run,
    filled: u32,
    buf: Buf,
}

impl<'w> NodeWriter<'w> {
    /// Writes what `generation` has changed in a tree; returns the root. If it fails,
    /// [`NodeWriter::finish`] is called all the same.
    pub async fn tree(&mut self, tree: &Tree, generation: Generation) -> Result<Option<RootPtr>> {
        let mut out = WriteOut::new(tree, generation);
        while self.next_slice(&mut out).await? {
            self.done = 0;
            self.flow.core.rt().yield_now().await;
        }
        Ok(out.root())
    }

    /// Serialises the rest of a slice of nodes; false after the last.
    async fn next_slice(&mut self, out: &mut WriteOut) -> Result<bool> {
        while self.done < SLICE {
            self.done += 1;
            // No block is taken for a node that is not there: a volume whose record alone has
            // changed has none, and a full pool has no block for it.
            if out.is_over() {
                return Ok(false);
            }
            if self.run.as_ref().is_none_or(|r| r.filled == r.at.len) {
                self.send().await;
                let at = self.take_run().await?;
                let buf = self.flow.core.rt().bufs().take(at.len as usize * BLOCK);
                self.run = Some(NodeRun { at, filled: 0, buf });
            }
            let Some(run) = &mut self.run else { unreachable!("it was just made") };
            let next = run.at.addr.plus(u64::from(run.filled));
            let from = run.filled as usize * BLOCK;
            let place = &mut run.buf[from..from + BLOCK];
            let written =
                out.next(self.flow.core.state_mut().forest.store_mut(), &mut || Some(next), place);
            match written {
                Ok(None) => return Ok(false),
                Ok(Some(addr)) if addr == next => {
                    run.filled += 1;
                    if self.kind == Kind::Direct && self.is_counted {
                        self.flow.core.state_mut().txns.nodes_placed(1);
                    }
                }
                Ok(Some(addr)) => {
                    // The node has its address from an earlier try.
                    let again = self.flow.core.rt().bufs().copy_of(place);
                    self.write(addr, again).await;
                }
                Err(btree::OutOfSpace) => unreachable!("an address was offered"),
            }
        }
        Ok(true)
    }

    /// Takes blocks for the next nodes.
    async fn take_run(&self) -> Result<Run> {
        loop {
            let want = match self.kind {
                Kind::Direct if !self.is_counted => UNCOUNTED_PER_WRITE,
                Kind::Direct => self.flow.core.state().txns.nodes_left().clamp(1, NODES_PER_WRITE),
                Kind::Pass => NODES_PER_WRITE,
            };
            let got = self.flow.core.state_mut().alloc(GroupKind::Metadata, want as u32);
            match got {
                Alloc::Got(run) => return Ok(run),
                Alloc::NeedMaps(id) => self.flow.loader.load_maps_to_take(id).await,
                Alloc::Joined(_) | Alloc::Full => {
                    return Err(self
                        .flow
                        .core
                        .state()
                        .space
                        .supply()
                        .no_room("no room for metadata in the pool"));
                }
            }
        }
    }

    /// Writes what the current run holds and gives back the blocks that got no node.
    async fn send(&mut self) {
        let Some(NodeRun { at, filled, mut buf }) = self.run.take() else { return };
        let group_blocks = {
            let mut st = self.flow.core.state_mut();
            if filled < at.len {
                st.space
                    .release(Run { addr: at.addr.plus(u64::from(filled)), len: at.len - filled });
            }
            st.space.geometry().group_blocks
        };
        if filled == 0 {
            return;
        }
        if self.kind == Kind::Direct {
            self.flow.core.metrics_mut().note_nodes(u64::from(filled));
        }
        push_run(self.blocks, Run { addr: at.addr, len: filled }, group_blocks);
        buf.truncate(filled as usize * BLOCK);
        self.write(at.addr, buf).await;
    }

    async fn write(&mut self, addr: PoolAddr, buf: Buf) {
        let data = SliceList::from_iter([buf.freeze()]);
        let writer = self.flow.copy_writer.clone();
        let class = match self.kind {
            Kind::Direct => Class::Commit,
            Kind::Pass => self.flow.core.pass_class(),
        };
        let task =
            self.flow.core.rt().spawn(async move { writer.write_copies(addr, data, class).await });
        self.writes.add(task).await;
    }

    /// Sends what is gathered, without waiting for it.
    pub async fn finish(mut self) {
        self.send().await;
    }
}

/// Writes the changed nodes of trees.
pub(crate) struct NodeWrites {
    core: Core,
    copy_writer: Rc<CopyWriter>,
    loader: Rc<NodeLoader>,
}

impl NodeWrites {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copy_writer: &Rc<CopyWriter>,
        loader: &Rc<NodeLoader>,
    ) -> Rc<NodeWrites> {
        Rc::new(NodeWrites {
            core: core.clone(),
            copy_writer: copy_writer.clone(),
            loader: loader.clone(),
        })
    }

    /// A writer for a transaction of this kind. The blocks of its nodes are appended to `blocks`.
    pub fn writer<'w>(
        self: &Rc<Self>,
        kind: Kind,
        blocks: &'w mut Vec<Run>,
        writes: &'w mut Writes,
    ) -> NodeWriter<'w> {
        let flow = self.clone();
        NodeWriter { flow, kind, is_counted: true, run: None, done: 0, blocks, writes }
    }

    /// A writer for trees that only the running commit edits: no transaction has counted their
    /// nodes.
    pub fn uncounted_writer<'w>(
        self: &Rc<Self>,
        blocks: &'w mut Vec<Run>,
        writes: &'w mut Writes,
    ) -> NodeWriter<'w> {
        NodeWriter { is_counted: false, ..self.writer(Kind::Direct, blocks, writes) }
    }
}
