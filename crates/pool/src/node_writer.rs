//! Writing the nodes of a commit: gathered into runs of neighbouring blocks, each run by one request.

use base::{BLOCK, Buf, PoolAddr, SliceList};
use btree::WriteOut;
use format::page::GroupKind;
use queue::Class;

use crate::Pool;
use crate::alloc::Alloc;

use crate::error::Result;
use crate::extents::{Run, push_run};
use crate::writes::Writes;

/// Nodes that are serialised before other tasks get a turn.
const SLICE: usize = 64;
/// Nodes written by one request.
const NODES_PER_WRITE: u32 = 64;

/// Gathers nodes into runs of neighbouring blocks and writes each run by one request.
pub(crate) struct NodeWriter<'w> {
    pool: Pool,
    run: Option<NodeRun>,
    writes: &'w mut Writes,
}

/// Blocks taken for nodes, and how many of them have one.
struct NodeRun {
    at: Run,
    filled: u32,
    buf: Buf,
}

impl<'w> NodeWriter<'w> {
    pub fn new(pool: &Pool, writes: &'w mut Writes) -> NodeWriter<'w> {
        NodeWriter { pool: pool.clone(), run: None, writes }
    }

    /// Serialises up to a slice of nodes; false after the last.
    pub async fn slice(&mut self, out: &mut WriteOut, blocks: &mut Vec<Run>) -> Result<bool> {
        for _ in 0..SLICE {
            if self.run.as_ref().is_none_or(|r| r.filled == r.at.len) {
                self.send(blocks).await;
                let at = self.take_run().await?;
                let buf = self.pool.rt().bufs().take(at.len as usize * BLOCK);
                self.run = Some(NodeRun { at, filled: 0, buf });
            }
            let Some(run) = &mut self.run else { unreachable!("it was just made") };
            let next = run.at.addr.plus(u64::from(run.filled));
            let from = run.filled as usize * BLOCK;
            let place = &mut run.buf[from..from + BLOCK];
            let written = out.next(&mut self.pool.state_mut().store, &mut || Some(next), place);
            match written {
                Ok(None) => return Ok(false),
                Ok(Some(addr)) if addr == next => {
                    run.filled += 1;
                    let mut st = self.pool.state_mut();
                    st.committing_nodes = st.committing_nodes.saturating_sub(1);
                }
                Ok(Some(addr)) => {
                    // It has its address from an earlier try.
                    let again = self.pool.rt().bufs().copy_of(place);
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
            let want = (self.pool.state().committing_nodes as u32).clamp(1, NODES_PER_WRITE);
            let got = self.pool.state_mut().alloc(GroupKind::Metadata, want);
            match got {
                Alloc::Got(run) => return Ok(run),
                Alloc::NeedMaps(id) => self.pool.load_maps_to_take(id).await,
                Alloc::Full => return Err(self.pool.state().no_room("no room for metadata")),
            }
        }
    }

    /// Writes what the current run holds and gives back the blocks that got no node.
    async fn send(&mut self, blocks: &mut Vec<Run>) {
        let Some(NodeRun { at, filled, mut buf }) = self.run.take() else { return };
        if filled < at.len {
            self.pool.state_mut().unalloc(at.addr.plus(u64::from(filled)), at.len - filled);
        }
        if filled == 0 {
            return;
        }
        self.pool.metrics_mut().nodes += u64::from(filled);
        let group_blocks = self.pool.state().geometry.group_blocks;
        push_run(blocks, Run { addr: at.addr, len: filled }, group_blocks);
        buf.truncate(filled as usize * BLOCK);
        self.write(at.addr, buf).await;
    }

    async fn write(&mut self, addr: PoolAddr, buf: Buf) {
        let (pool, data) = (self.pool.clone(), SliceList::from_iter([buf.freeze()]));
        let task = self.pool.rt().spawn(async move { pool.write_copies(addr, data, Class::Commit).await });
        self.writes.add(task).await;
    }

    /// Sends what is gathered, without waiting for it.
    pub async fn finish(mut self, blocks: &mut Vec<Run>) {
        self.send(blocks).await;
    }
}
