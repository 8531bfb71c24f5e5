//! Waiting for room: for the nodes that a change will add, and for the blocks that it writes.
//!
//! A change that holds room for its nodes ([`NodeRoom`]) waits for no other room: so what it holds
//! becomes free soon, and another change may wait for that.

use std::rc::Rc;

use base::{GroupId, Result};
use format::page::GroupKind;
use rt::Reason;
use rt::sync::either;

use super::taken_runs::TakenRuns;
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::space::{Alloc, Era, NodeRoom, Purpose, Reservation};
use crate::transfer::load::NodeLoader;
use crate::transfer::sums_ahead::SumReadAhead;
use crate::transfer::wait_for_reads::{PinnedWait, ReadDrain};
use crate::txn::Kind;

/// Commits of the direct transaction that a write-back pass asks for before the pool is full.
const PASS_COMMITS: u32 = 3;
/// Freed runs that become available before other tasks get a turn.
const DRAIN: usize = 256;
/// Groups that are looked at, to be dissolved, before other tasks get a turn.
const DISSOLVE: usize = 256;

/// Whether a change may go ahead.
enum Admission {
    Admitted(NodeRoom),
    /// The host log is crowded, or the open transaction has at least twice `dirty_nodes` changed
    /// nodes.
    Crowded,
    /// There is room when changes that are under way have ended.
    Later,
    /// There is no room for its nodes.
    Full,
}

/// The outcome of taking blocks.
enum TakeOutcome {
    All,
    /// The bitmaps of this group have to be loaded first.
    NeedMaps(GroupId),
    /// The pass has joined a group and has taken no block of that group yet. The caller reads the
    /// group's checksum nodes ahead, then takes the missing blocks.
    Joined,
    /// Some or none: there are no more now.
    Some,
}

/// A step that may make room.
#[derive(Clone, Copy)]
enum RoomStep {
    /// A commit frees blocks.
    Commit,
    /// Blocks that commits have freed become available when the reads of clients that use them have
    /// ended, and empty groups are dissolved.
    Freed,
    /// Background reads that pin freed blocks end. One wait ends when at least one freed run has
    /// become available, or when no such read is left.
    Pinned,
}

/// The steps, in the order in which they are tried. A change fails if all six steps have run and
/// there is still no room. Each step comes twice, for two reasons: other changes take blocks that
/// become available, and no group is dissolved while a commit runs.
const TRIES: [RoomStep; 6] = [
    RoomStep::Commit,
    RoomStep::Freed,
    RoomStep::Pinned,
    RoomStep::Commit,
    RoomStep::Freed,
    RoomStep::Pinned,
];

/// The steps that are left to be tried.
struct RoomSteps {
    left: std::array::IntoIter<RoomStep, 6>,
    /// Set while [`RoomStep::Pinned`] is under way. The step ends when all reads and direct writes
    /// of this era and of earlier eras have ended, or when no freed block is pinned.
    pinned_until: Option<Era>,
}

impl RoomSteps {
    fn new() -> RoomSteps {
        RoomSteps { left: TRIES.into_iter(), pinned_until: None }
    }
}

/// While this lives direct writes take no blocks.
struct TakeHold<'a>(&'a Core);

impl<'a> TakeHold<'a> {
    fn new(core: &'a Core) -> TakeHold<'a> {
        core.state_mut().space.supply_mut().hold_direct();
        TakeHold(core)
    }
}

impl Drop for TakeHold<'_> {
    fn drop(&mut self) {
        self.0.state_mut().space.supply_mut().let_direct_go();
    }
}

/// Room for what changes the pool: nodes and blocks.
pub(crate) struct PoolRoom {
    core: Core,
    loader: Rc<NodeLoader>,
    reads: Rc<ReadDrain>,
    commits: Rc<Commits>,
    sums: Rc<SumReadAhead>,
}

impl PoolRoom {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        reads: &Rc<ReadDrain>,
        commits: &Rc<Commits>,
        sums: &Rc<SumReadAhead>,
    ) -> Rc<PoolRoom> {
        Rc::new(PoolRoom {
            core: core.clone(),
            loader: loader.clone(),
            reads: reads.clone(),
            commits: commits.clone(),
            sums: sums.clone(),
        })
    }

    /// Waits until a change may go ahead: its nodes will find room, and not too much is dirty.
    /// While it holds that room it must not wait for other room.
    pub(crate) async fn admit(&self, purpose: Purpose) -> Result<NodeRoom> {
        match self.try_admit(purpose)? {
            Admission::Admitted(room) => Ok(room),
            _ => self.core.rt().waits(Reason::PoolRoom, Box::pin(self.make_room(purpose))).await,
        }
    }

    fn try_admit(&self, purpose: Purpose) -> Result<Admission> {
        let st = self.core.state();
        st.standing.permit()?;
        if !st.admits(purpose) {
            return Ok(if st.admits_later(purpose) { Admission::Later } else { Admission::Full });
        }
        let crowded = st.host_log.is_crowded();
        if crowded || st.txns.open().dirty_nodes() >= 2 * self.core.settings().dirty_nodes {
            return Ok(Admission::Crowded);
        }
        Ok(Admission::Admitted(st.space.claims().reserve_nodes()))
    }

    async fn make_room(&self, purpose: Purpose) -> Result<NodeRoom> {
        let mut tries = RoomSteps::new();
        loop {
            let ended = self.core.state().space.claims().changes_ended();
            match self.try_admit(purpose)? {
                Admission::Admitted(room) => return Ok(room),
                Admission::Later => ended.await,
                Admission::Crowded => self.commits.commit().await?,
                Admission::Full => {
                    if !self.make_some_free(&mut tries).await? {
                        let text = "the pool is full: no room for metadata";
                        return Err(self.core.state().space.supply().no_room(text));
                    }
                }
            }
        }
    }

    /// Runs the next step. Returns true if a step has run: the caller looks for room again. Returns
    /// false if no step is left. Then each block that had been freed before the first step has been
    /// available at some moment since.
    async fn make_some_free(&self, tries: &mut RoomSteps) -> Result<bool> {
        loop {
            if let Some(until) = tries.pinned_until {
                if self.reads.wait_for_pinned(until).await == PinnedWait::NoneLeft {
                    tries.pinned_until = None;
                }
                self.empty_limbo().await;
                return Ok(true);
            }
            let Some(next) = tries.left.next() else { return Ok(false) };
            match next {
                RoomStep::Commit => {
                    let frees = {
                        let st = self.core.state();
                        st.gives_back() || st.dirty_nodes() > 0
                    };
                    if !frees {
                        continue;
                    }
                    self.commits.commit().await?;
                }
                RoomStep::Freed => self.empty_limbo().await,
                RoomStep::Pinned => {
                    let any = self.core.state().space.limbo().any_pinned();
                    if any {
                        let until = self.core.state_mut().space.limbo_mut().reads_until_now();
                        tries.pinned_until = Some(until);
                    }
                    continue;
                }
            }
            return Ok(true);
        }
    }

    /// Waits for the reads of clients that use freed blocks, and makes these blocks available. Then
    /// dissolves empty groups, `DISSOLVE` at a time, until none is left or a commit runs.
    pub(crate) async fn empty_limbo(&self) {
        self.reads.wait_for_freed().await;
        loop {
            {
                let mut st = self.core.state_mut();
                // A new group may get the chunks of a dissolved group. A running commit could write
                // the record of the new group and not that of the dissolved one. Then two records
                // would name one chunk.
                if st.txns.committing().is_some() || !st.space.supply().may_dissolve() {
                    return;
                }
                let st = &mut *st;
                st.space.dissolve_empty(&mut st.devices, DISSOLVE);
            }
            self.core.rt().yield_now().await;
        }
    }

    /// Takes `blocks` data blocks for a direct write, in as few runs as there are, and room for the
    /// nodes that it will change.
    pub(crate) async fn take_for_write(&self, blocks: u32) -> Result<(NodeRoom, TakenRuns)> {
        let mut taken = TakenRuns::none(&self.core, Kind::Direct);
        let mut tries = RoomSteps::new();
        loop {
            let room = self.admit(Purpose::Write).await?;
            match take_now(blocks, &mut taken, |n| Ok(self.try_take(n)))? {
                TakeOutcome::All => return Ok((room, taken)),
                TakeOutcome::NeedMaps(id) => {
                    room.forgo();
                    self.loader.load_maps_to_take(id).await;
                }
                TakeOutcome::Joined => unreachable!("only a pass joins a group"),
                TakeOutcome::Some => {
                    room.forgo();
                    let wait = self.wait_for_blocks(blocks, &mut taken, &mut tries);
                    self.core.rt().waits(Reason::PoolRoom, Box::pin(wait)).await?;
                }
            }
        }
    }

    /// Takes `blocks` data blocks for the write-back pass, in as few runs as possible. One write of
    /// the pass takes blocks at a time. The write that joins a group reads the group's checksum
    /// nodes, and the writes behind it find these nodes in memory.
    pub(crate) async fn take_for_pass(&self, blocks: u32) -> Result<TakenRuns> {
        let _turn = self.core.pass_takes().acquire(1).await;
        let mut taken = TakenRuns::none(&self.core, Kind::Pass);
        let mut commits = 0;
        loop {
            // After `PASS_COMMITS` commits the pass may form a group out of the room that is kept
            // for metadata: its data was admitted before, and must find room.
            let keeps = commits < PASS_COMMITS;
            let take = |n| self.core.state_mut().alloc_for_pass(n, keeps);
            match take_now(blocks, &mut taken, take)? {
                TakeOutcome::All => return Ok(taken),
                TakeOutcome::NeedMaps(id) => self.loader.load_maps_to_take(id).await,
                TakeOutcome::Joined => self.sums.warm_checksums().await,
                TakeOutcome::Some if commits == PASS_COMMITS && self.open_waiting() => {}
                TakeOutcome::Some if commits == PASS_COMMITS => {
                    return Err(self
                        .core
                        .state()
                        .space
                        .supply()
                        .no_room("write-back: the pool is full"));
                }
                TakeOutcome::Some => {
                    commits += 1;
                    // A group that direct writes have just changed can be joined after a commit,
                    // unless they change it again.
                    let _alone = TakeHold::new(&self.core);
                    self.core.rt().waits(Reason::PoolRoom, self.commits.commit_direct()).await?;
                }
            }
        }
    }

    /// See [`crate::Pool::reserve_beside_changes`].
    pub(crate) async fn reserve_beside_changes(&self, blocks: u64) -> Result<Reservation> {
        let (mut alone, mut emptied) = (None, false);
        loop {
            let ended = {
                let st = self.core.state();
                match st.reserve(blocks) {
                    Err(_) if st.may_reserve_later(blocks) => {
                        Some(st.space.claims().changes_ended())
                    }
                    Err(_) if !emptied && st.space.limbo().has_any() => None,
                    outcome => return outcome,
                }
            };
            let Some(ended) = ended else {
                emptied = true;
                self.core.rt().waits(Reason::PoolRoom, Box::pin(self.empty_limbo())).await;
                continue;
            };
            alone.get_or_insert_with(|| TakeHold::new(&self.core));
            self.core.rt().waits(Reason::PoolRoom, ended).await;
        }
    }

    /// Takes blocks for a direct write.
    fn try_take(&self, blocks: u32) -> Alloc {
        let mut st = self.core.state_mut();
        match !st.space.supply().holds_direct() && st.leaves_reserved(blocks.into()) {
            true => st.alloc(GroupKind::Data, blocks),
            false => Alloc::Full,
        }
    }

    /// A move that waits for the open write-back pass gives its group's room back; true if there
    /// was one.
    fn open_waiting(&self) -> bool {
        self.core.state_mut().space.open_waiting()
    }

    /// A direct write has found too few blocks: waits for what may free some.
    async fn wait_for_blocks(
        &self,
        blocks: u32,
        taken: &mut TakenRuns,
        tries: &mut RoomSteps,
    ) -> Result<()> {
        if self.open_waiting() {
            return Ok(());
        }
        let (opened, ended, any_closed) = {
            let st = self.core.state();
            let any_closed = st.space.supply().any_closed() || st.space.supply().holds_direct();
            (st.space.supply().opened(), st.space.claims().changes_ended(), any_closed)
        };
        if any_closed {
            // The wait is short: a closed group is open again soon. Blocks that were taken are
            // given back: they may be from that group, whose move, or the pass, waits for them.
            *taken = TakenRuns::none(&self.core, Kind::Direct);
            // A freed block can be taken only after `drain` has returned it from limbo. So `drain`
            // comes first, and the wait for reads only if `drain` has freed nothing.
            let (reads, any_freed) = {
                let mut st = self.core.state_mut();
                let (reads, before) = (st.space.limbo().reads_ended(), st.space.limbo().freed());
                (reads, st.space.drain(DRAIN) || st.space.limbo().freed() > before)
            };
            if any_freed {
                self.core.rt().yield_now().await;
            } else {
                either(reads, either(opened, self.core.commit_ended())).await;
            }
            return Ok(());
        }
        let missing = u64::from(blocks - taken.blocks());
        if self.core.state().may_take_later(missing) {
            ended.await;
        } else if !self.make_some_free(tries).await? {
            // Commits take groups into use again whose time out of use is over. Nothing is written
            // now, so no commit comes, and these groups are taken into use here.
            let now = self.core.now();
            let mut st = self.core.state_mut();
            if !st.space.supply_mut().use_again(now) {
                return Err(st.space.supply().no_room("the pool is full"));
            }
        }
        Ok(())
    }
}

/// Takes blocks until there are as many as `blocks`, or no more can be taken now.
fn take_now(
    blocks: u32,
    taken: &mut TakenRuns,
    take: impl Fn(u32) -> Result<Alloc>,
) -> Result<TakeOutcome> {
    while taken.blocks() < blocks {
        match take(blocks - taken.blocks())? {
            Alloc::Got(run) => taken.push(run),
            Alloc::NeedMaps(id) => return Ok(TakeOutcome::NeedMaps(id)),
            Alloc::Joined(_) => return Ok(TakeOutcome::Joined),
            Alloc::Full => return Ok(TakeOutcome::Some),
        }
    }
    Ok(TakeOutcome::All)
}

#[cfg(test)]
#[path = "wait_for_room_tests.rs"]
mod tests;
