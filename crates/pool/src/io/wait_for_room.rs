//! Waiting for room: for the nodes that a change will add, and for the blocks that it writes.
//!
//! A change that holds room for its nodes ([`NodeRoom`]) waits for no other room: so what it holds
//! becomes free soon, and another change may wait for that.

use std::pin::pin;

use base::{Duration, GroupId, Result};
use format::page::GroupKind;
use rt::Reason;
use rt::sync::{either, within};

use super::taken::TakenRuns;
use crate::pool::Pool;
use crate::space::{Alloc, NodeRoom, Purpose};
use crate::txn::Kind;

/// A write that finds no room waits for reads of freed blocks, for this long at most: a move may
/// read for minutes.
const READS: Duration = Duration::from_secs(2);
/// Commits of the direct transaction that a write-back pass asks for before the pool is full.
const PASS_COMMITS: u32 = 3;
/// Groups that are looked at, to be dissolved, before other tasks get a turn.
const DISSOLVE: usize = 256;

/// Whether a change may go ahead.
enum Admission {
    Admitted(NodeRoom),
    /// Too much is dirty.
    Crowded,
    /// There is room when changes that are under way have ended.
    Later,
    /// There is no room for its nodes.
    Full,
}

/// What came of taking blocks.
enum Took {
    All,
    /// The bitmaps of this group have to be loaded first.
    NeedMaps(GroupId),
    /// The pass begins to take blocks of another group.
    Joined,
    /// Some or none: there are no more now.
    Some,
}

/// What was tried to find blocks: commits, and whether reads were waited for.
#[derive(Default)]
struct Tried {
    commits: u32,
    waited: bool,
}

/// While this lives direct writes take no blocks.
struct Alone<'a>(&'a Pool);

impl<'a> Alone<'a> {
    fn new(pool: &'a Pool) -> Alone<'a> {
        pool.state_mut().space.set_pass_waits(true);
        Alone(pool)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state_mut().space.set_pass_waits(false);
    }
}

impl Pool {
    /// Waits until a change may go ahead: its nodes will find room, and not too much is dirty.
    /// While it holds that room it must not wait for other room.
    pub(super) async fn admit(&self, purpose: Purpose) -> Result<NodeRoom> {
        match self.try_admit(purpose)? {
            Admission::Admitted(room) => Ok(room),
            _ => self.rt().waits(Reason::PoolRoom, Box::pin(self.make_room(purpose))).await,
        }
    }

    fn try_admit(&self, purpose: Purpose) -> Result<Admission> {
        let st = self.state();
        st.standing.permit()?;
        if !st.admits(purpose) {
            return Ok(if st.admits_later(purpose) { Admission::Later } else { Admission::Full });
        }
        if st.txns.open().dirty_nodes() >= 2 * self.settings().dirty_nodes {
            return Ok(Admission::Crowded);
        }
        Ok(Admission::Admitted(st.space.reserve_nodes()))
    }

    async fn make_room(&self, purpose: Purpose) -> Result<NodeRoom> {
        let mut tries = 0;
        loop {
            let ended = self.state().space.changes_ended();
            match self.try_admit(purpose)? {
                Admission::Admitted(room) => return Ok(room),
                Admission::Later => ended.await,
                Admission::Crowded => self.commit().await?,
                Admission::Full if tries == 2 => {
                    let text = "the pool is full: no room for metadata";
                    return Err(self.state().space.no_room(text));
                }
                Admission::Full => {
                    tries += 1;
                    self.commit().await?;
                    self.empty_limbo().await;
                }
            }
        }
    }

    /// Makes blocks that commits have freed available, in slices. Waits a limited time for reads of
    /// them. Then dissolves empty groups.
    pub(crate) async fn empty_limbo(&self) {
        let freed_in = self.state().space.newest_in_limbo();
        if let Some(era) = freed_in {
            let mut reads = pin!(self.wait_for_reads(era));
            within(&mut reads, self.rt().sleep(READS)).await;
        }
        loop {
            {
                let mut st = self.state_mut();
                // What a commit writes of groups must not know of chunks that it does not say are
                // free.
                if st.txns.committing().is_some() || !st.space.may_dissolve() {
                    return;
                }
                let st = &mut *st;
                st.space.dissolve_empty(&mut st.devices, DISSOLVE);
            }
            self.rt().yield_now().await;
        }
    }

    /// Takes `blocks` data blocks for a direct write, in as few runs as there are, and room for the
    /// nodes that it will change.
    pub(super) async fn take_for_write(&self, blocks: u32) -> Result<(NodeRoom, TakenRuns)> {
        let mut taken = TakenRuns::none(self, Kind::Direct);
        let mut tried = Tried::default();
        loop {
            let room = self.admit(Purpose::Write).await?;
            match take_now(blocks, &mut taken, |n| Ok(self.try_take(n)))? {
                Took::All => return Ok((room, taken)),
                Took::NeedMaps(id) => {
                    room.forgo();
                    self.load_maps_to_take(id).await;
                }
                Took::Joined => unreachable!("only a pass joins a group"),
                Took::Some => {
                    room.forgo();
                    let wait = self.wait_for_blocks(blocks, &mut taken, &mut tried);
                    self.rt().waits(Reason::PoolRoom, Box::pin(wait)).await?;
                }
            }
        }
    }

    /// Takes `blocks` data blocks for the write-back pass, in as few runs as there are. Writes of
    /// the pass take blocks one after the other: where it begins to take those of another group,
    /// all of them need the same nodes, which are read once for all.
    pub(crate) async fn take_for_pass(&self, blocks: u32) -> Result<TakenRuns> {
        let _turn = self.pass_takes().acquire(1).await;
        let mut taken = TakenRuns::none(self, Kind::Pass);
        let mut commits = 0;
        loop {
            // What was let in goes before what is kept for metadata.
            let keeps = commits < PASS_COMMITS;
            let take = |n| self.state_mut().alloc_for_pass(n, keeps);
            match take_now(blocks, &mut taken, take)? {
                Took::All => return Ok(taken),
                Took::NeedMaps(id) => self.load_maps_to_take(id).await,
                Took::Joined => self.warm_checksums().await,
                Took::Some if commits == PASS_COMMITS && self.open_waiting() => {}
                Took::Some if commits == PASS_COMMITS => {
                    return Err(self.state().space.no_room("write-back: the pool is full"));
                }
                Took::Some => {
                    commits += 1;
                    // A group that direct writes have just changed can be joined after a commit,
                    // unless they change it again.
                    let _alone = Alone::new(self);
                    self.rt().waits(Reason::PoolRoom, self.commit_direct()).await?;
                }
            }
        }
    }

    /// Takes blocks for a direct write.
    fn try_take(&self, blocks: u32) -> Alloc {
        let mut st = self.state_mut();
        match !st.space.pass_waits() && st.leaves_reserved(blocks.into()) {
            true => st.alloc(GroupKind::Data, blocks),
            false => Alloc::Full,
        }
    }

    /// A move that waits for the open write-back pass gives its group's room back; true if there
    /// was one.
    fn open_waiting(&self) -> bool {
        self.state_mut().space.open_waiting()
    }

    /// A direct write has found too few blocks: waits for what may free some.
    async fn wait_for_blocks(
        &self,
        blocks: u32,
        taken: &mut TakenRuns,
        tried: &mut Tried,
    ) -> Result<()> {
        if self.open_waiting() {
            return Ok(());
        }
        let (opened, ended, any_closed) = {
            let st = self.state();
            let any_closed = st.space.any_closed() || st.space.pass_waits();
            (st.space.opened(), st.space.changes_ended(), any_closed)
        };
        if any_closed {
            // It is open again soon. What was taken is given back: it may be from that group, whose
            // move, or the pass, waits for it.
            *taken = TakenRuns::none(self, Kind::Direct);
            either(opened, self.commit_ended()).await;
            return Ok(());
        }
        let missing = u64::from(blocks - taken.blocks());
        if self.state().may_take_later(missing) {
            ended.await;
        } else if tried.commits == 0 && self.state().gives_back() {
            tried.commits = 1;
            self.commit().await?;
        } else if !tried.waited {
            tried.waited = true;
            self.empty_limbo().await;
        } else {
            return Err(self.state().space.no_room("the pool is full"));
        }
        Ok(())
    }
}

/// Takes blocks until there are as many as `blocks`, or no more can be taken now.
fn take_now(
    blocks: u32,
    taken: &mut TakenRuns,
    take: impl Fn(u32) -> Result<Alloc>,
) -> Result<Took> {
    while taken.blocks() < blocks {
        match take(blocks - taken.blocks())? {
            Alloc::Got(run) => taken.push(run),
            Alloc::NeedMaps(id) => return Ok(Took::NeedMaps(id)),
            Alloc::Joined(_) => return Ok(Took::Joined),
            Alloc::Full => return Ok(Took::Some),
        }
    }
    Ok(Took::All)
}
