//! The flow that gives one block group after the other the chunks that it should have.

use std::pin::pin;
use std::rc::Rc;

use base::{Duration, Generation, GroupId, Result};
use format::page::{Chunk, GroupKind};
use model::moves::MovesState;
use rt::sync::{either, within};

use super::copy::{CopyOutcome, CopyTarget};
use super::present::PresentChunks;
use super::unfilled::WriteErrors;
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::io::wait_for_room::PoolRoom;
use crate::moves::Moves;
use crate::moves::admit::MoveTerms;
use crate::moves::copy::ChunkCopier;
use crate::moves::join::Joiner;
use crate::moves::resync::Resyncer;
use crate::moves::rows::{may_go, targets};
use crate::space::{ChunkChange, CloseOutcome, Era, Fit, Purpose, Search};
use crate::state::State;
use crate::transfer::wait_for_reads::ReadDrain;

/// The job's name.
const JOB: &str = "move";
/// The wait before the next try, after an error or where nothing can be moved now.
const AGAIN: Duration = Duration::from_secs(5);

/// The outcome of a try to move a group.
#[derive(PartialEq, Eq)]
enum MoveOutcome {
    /// The group is as it should be.
    Done,
    /// Not now: its free blocks are needed.
    Needed,
    /// Not now: it waits for this.
    Later(String),
    /// The group was given up meanwhile. If it was formed again, it has the chunks that it should
    /// have.
    Gone,
    /// The move was given up, because the moves were changed, paused or ended meanwhile.
    Stopped,
}

/// The things that moves wait for.
#[derive(Default)]
struct MoveWaits {
    /// The groups that wait for room in other groups.
    room: Vec<GroupId>,
    /// The thing that the others wait for, in words.
    what: Option<String>,
}

impl MoveWaits {
    /// Notes how a try to move a group ended.
    fn note(&mut self, id: GroupId, moved: MoveOutcome) {
        match moved {
            MoveOutcome::Needed => self.room.push(id),
            MoveOutcome::Later(what) => self.what = Some(what),
            MoveOutcome::Done | MoveOutcome::Gone | MoveOutcome::Stopped => {}
        }
    }

    fn reason(&self) -> Option<&str> {
        if self.room.is_empty() { self.what.as_deref() } else { Some("room in other block groups") }
    }
}

/// The outcome of removing a device that may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowRemoval {
    Removed,
    /// The device may not go any more: a cancel lets it stay, and it takes chunks again at once.
    Stays,
}

/// The work that is left after all groups were looked at.
enum RemainingWork {
    Nothing,
    /// The rest is tried again after a while.
    Some,
    /// The rest is tried again when one of these groups can be closed.
    NeedsRoom(Vec<GroupId>),
}

/// A closed group; opened when this is dropped.
struct Closed(Core, GroupId);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state_mut().space.supply_mut().open_group(self.1);
    }
}

/// Moves chunks between devices in the background.
pub(crate) struct Mover {
    core: Core,
    reads: Rc<ReadDrain>,
    commits: Rc<Commits>,
    room: Rc<PoolRoom>,
    copier: Rc<ChunkCopier>,
    terms: Rc<MoveTerms>,
    joiner: Rc<Joiner>,
    resyncer: Rc<Resyncer>,
    moves: Rc<Moves>,
}

impl Mover {
    /// Makes the flow out of the core and the flows that it calls.
    #[allow(clippy::too_many_arguments, reason = "a flow names each flow that it calls")]
    pub(crate) fn new(
        core: &Core,
        reads: &Rc<ReadDrain>,
        commits: &Rc<Commits>,
        room: &Rc<PoolRoom>,
        copier: &Rc<ChunkCopier>,
        terms: &Rc<MoveTerms>,
        joiner: &Rc<Joiner>,
        resyncer: &Rc<Resyncer>,
        moves: &Rc<Moves>,
    ) -> Rc<Mover> {
        Rc::new(Mover {
            core: core.clone(),
            reads: reads.clone(),
            commits: commits.clone(),
            room: room.clone(),
            copier: copier.clone(),
            terms: terms.clone(),
            joiner: joiner.clone(),
            resyncer: resyncer.clone(),
            moves: moves.clone(),
        })
    }

    /// Begins to move chunks in the background whenever some are not where they should be. Moves
    /// that a close or a kill has interrupted go on.
    pub(crate) fn begin_moving(self: &Rc<Self>) {
        let this = self.clone();
        self.core.rt().detach_background(JOB, async move {
            while !this.core.is_closed() {
                let changed = this.core.state().moves.changed();
                let left = match this.move_all().await {
                    Ok(left) => left,
                    Err(e) => {
                        if this.core.permit().is_err() {
                            return;
                        }
                        tracing::error!("chunks are not moved now: {e}; it is tried again");
                        this.core.state_mut().moves.stopped_by(e.to_string());
                        RemainingWork::Some
                    }
                };
                match left {
                    RemainingWork::Nothing => {
                        this.note_end_of_moves();
                        changed.await;
                    }
                    RemainingWork::Some => either(changed, this.core.rt().sleep(AGAIN)).await,
                    RemainingWork::NeedsRoom(groups) => {
                        either(changed, this.room_beside(&groups)).await
                    }
                }
            }
        });
    }

    /// If nothing is left to be moved, moves that were under way have ended.
    fn note_end_of_moves(&self) {
        if self.moves.moves_status().state == MovesState::None {
            let now = self.core.unix_time(self.core.now());
            let ended = self.core.state_mut().moves.end(now);
            if let Some(end) = ended.filter(|end| end.copied_bytes > 0) {
                tracing::info!(
                    outcome = %end.outcome,
                    copied_bytes = end.copied_bytes,
                    "chunks have been moved"
                );
            }
        }
    }

    /// Goes over all groups.
    async fn move_all(self: &Rc<Self>) -> Result<RemainingWork> {
        // Devices that were away get what they lack first.
        let mut waits =
            MoveWaits { what: self.resyncer.resync_all().await?, ..MoveWaits::default() };
        // No group can be formed or closed where most devices are full, and a new one is empty:
        // chunks of other groups make room.
        while self.move_each(&mut waits).await? {
            if self.copier.moves_rest() {
                return Ok(RemainingWork::Nothing);
            }
            if waits.room.is_empty() || !self.spread_one().await? {
                break;
            }
            waits.room.clear();
        }
        if self.copier.moves_rest() {
            return Ok(RemainingWork::Nothing);
        }
        if waits.reason().is_none() && self.core.state().moves.is_balancing() {
            waits = self.balance().await?;
        }
        self.core.state_mut().moves.waits_for(waits.reason());
        let any = self.remove_empty().await?;
        // All groups are tried again after a while where one waits for something else too: room may
        // never come.
        if !waits.room.is_empty() && waits.what.is_none() && !any {
            return Ok(RemainingWork::NeedsRoom(waits.room));
        }
        let st = self.core.state();
        let some = waits.reason().is_some() || any || st.devices.iter().any(|d| d.is_leaving());
        Ok(if some { RemainingWork::Some } else { RemainingWork::Nothing })
    }

    /// Gives each group the chunks that it should have. Returns false if the moves have changed
    /// meanwhile.
    async fn move_each(self: &Rc<Self>, waits: &mut MoveWaits) -> Result<bool> {
        // First groups that no write-back pass has, as these need not wait.
        let (mut from, mut of_pass) = (GroupId(0), Vec::new());
        while let Some(want) = self.next_to_move(from).await {
            let id = want.group;
            from = GroupId(id.0 + 1);
            if self.core.state().space.takers().is_of_pass(id) {
                of_pass.push(id);
            } else {
                waits.note(id, self.move_group(want).await?);
            }
        }
        for id in of_pass {
            let Some(want) = self.to_move(id) else { continue };
            match self.move_group(want).await? {
                MoveOutcome::Stopped => return Ok(false),
                moved => waits.note(id, moved),
            }
        }
        Ok(true)
    }

    /// Moves one chunk as balancing would, if that may let more groups be formed. Returns false if
    /// nothing was moved.
    async fn spread_one(self: &Rc<Self>) -> Result<bool> {
        let mut from = GroupId(0);
        loop {
            let helps = |st: &State| st.space.placement().lies_unevenly(&st.devices);
            let Some(want) = self.next_to_balance(from, helps).await else { return Ok(false) };
            from = GroupId(want.group.0 + 1);
            if self.move_group(want).await? == MoveOutcome::Done {
                return Ok(true);
            }
        }
    }

    /// Waits until one of these groups can be closed. Room comes by commits, and by reads that end.
    async fn room_beside(&self, ids: &[GroupId]) {
        loop {
            let (ended, reads) =
                (self.core.commit_ended(), self.core.state().space.limbo().reads_ended());
            self.room.empty_limbo().await;
            let does = {
                let mut st = self.core.state_mut();
                let demand = st.demand();
                let st = &mut *st;
                st.space.does_without_one(&st.devices, ids, &demand)
            };
            if does || self.core.is_closed() {
                return;
            }
            either(ended, reads).await;
        }
    }

    /// The change that a group needs, if the group is to be moved now.
    fn to_move(&self, id: GroupId) -> Option<ChunkChange> {
        let st = self.core.state();
        (!self.copier.moves_rest()).then(|| st.space.placement().to_move(id, &st.devices)).flatten()
    }

    /// The next group, from this number on, that is to be moved now.
    async fn next_to_move(&self, from: GroupId) -> Option<ChunkChange> {
        self.search(from, |st, from| st.space.placement().next_to_move(from, &st.devices)).await
    }

    /// The next group, from this number on, of which a chunk is to be moved now to fill all devices
    /// to the same share, as long as that `helps`.
    async fn next_to_balance(
        &self,
        from: GroupId,
        helps: impl Fn(&State) -> bool,
    ) -> Option<ChunkChange> {
        let step = |st: &State, from| match helps(st) {
            true => st.space.placement().next_to_balance(from, &st.devices),
            false => Search::Over,
        };
        self.search(from, step).await
    }

    /// Searches for a group from this number on, in steps, until moves are to rest. What is found
    /// is as of the step in which this returns.
    async fn search(
        &self,
        mut from: GroupId,
        step: impl Fn(&State, GroupId) -> Search,
    ) -> Option<ChunkChange> {
        while !self.copier.moves_rest() {
            let outcome = step(&self.core.state(), from);
            match outcome {
                Search::Found(want) => return Some(want),
                Search::GoesOn(next) => from = next,
                Search::Over => return None,
            }
            self.core.rt().yield_now().await;
        }
        None
    }

    /// Moves chunks until all devices are filled to the same share. Returns what that waits for.
    async fn balance(self: &Rc<Self>) -> Result<MoveWaits> {
        let (mut from, mut waits, mut any) = (GroupId(0), MoveWaits::default(), false);
        loop {
            let goes_on = |st: &State| st.moves.is_balancing();
            let want = self.next_to_balance(from, goes_on).await;
            if self.copier.moves_rest() || !goes_on(&self.core.state()) {
                return Ok(MoveWaits::default());
            }
            match want {
                Some(want) => {
                    let id = want.group;
                    from = GroupId(id.0 + 1);
                    match self.move_group(want).await? {
                        MoveOutcome::Done => any = true,
                        MoveOutcome::Stopped => return Ok(MoveWaits::default()),
                        moved => waits.note(id, moved),
                    }
                }
                // A later move may leave something for groups that were looked at before.
                None if any => (from, any) = (GroupId(0), false),
                None => break,
            }
        }
        if waits.reason().is_none() {
            {
                let mut st = self.core.state_mut();
                st.moves.set_balancing(false);
                st.need_superblock();
            }
            self.commits.commit().await?;
            tracing::info!("all devices are filled to the same share");
        }
        Ok(waits)
    }

    /// Gives a group the chunks that it should have. What it needs must be as of this step.
    async fn move_group(self: &Rc<Self>, want: ChunkChange) -> Result<MoveOutcome> {
        let (id, commands) = (want.group, self.core.state().moves.commands());
        let closed = match self.close_for_move(&want).await {
            Ok(closed) => closed,
            Err(moved) => return Ok(moved),
        };
        self.settle_group(id).await?;
        let Some(targets) = self.take_targets(&want).await? else {
            return Ok(MoveOutcome::Later("a device with room".into()));
        };
        // The chunks in `whole` must have everything before a chunk is given up.
        let (to, whole) = {
            let st = self.core.state();
            let whole: Vec<Chunk> = match targets.is_empty() {
                true => want.keeps.iter().filter(|c| st.devices.is_whole(c)).copied().collect(),
                false => targets.clone(),
            };
            let to = if targets.is_empty() { CopyTarget::Kept } else { CopyTarget::New };
            (to(whole.clone()), PresentChunks::of(&st, whole))
        };
        // Copied data is durable before anything counts on it: a device that fails later, and comes
        // back, has it.
        self.core.state_mut().moves.begin_fill(targets.clone());
        let before = WriteErrors::of(&self.core.state());
        let rows = to.rows();
        let (durable, rows) =
            match self.copier.copy_group(id, to, Generation(0), Some(commands)).await {
                Ok(CopyOutcome::Complete) => {
                    let durable = self.commits.commit_direct().await;
                    (durable.map(|()| CopyOutcome::Complete), before.rows())
                }
                ended => (ended, rows),
            };
        self.core.state_mut().moves.end_fill();
        match durable {
            Ok(CopyOutcome::Complete) => {}
            Ok(CopyOutcome::Interrupted) => {
                self.give_back(targets);
                return Ok(MoveOutcome::Stopped);
            }
            Err(e) => {
                self.give_back(targets);
                self.core.permit()?;
                tracing::error!(group = id.0, "a block group cannot be moved now: {e}");
                return Ok(MoveOutcome::Later(before.what_failed(&self.core.state(), &rows, &e)));
            }
        }
        let Some(reads) = self.switch(&want, &targets, &whole).await? else {
            self.give_back(targets);
            return Ok(MoveOutcome::Later("a device that went away".into()));
        };
        self.let_go(&want, reads).await;
        drop(closed);
        Ok(MoveOutcome::Done)
    }

    /// Gives back chunks that a group was to get. What was copied to them was copied in vain.
    fn give_back(&self, chunks: Vec<Chunk>) {
        let mut st = self.core.state_mut();
        st.devices.give_chunks(chunks);
        st.moves.give_up_group();
    }

    /// Closes a group, and waits for the end of the open write-back pass if that has the group.
    /// Passes that begin later cannot take it, so this waits for one pass; for another one only
    /// where the first has opened the group again for want of room. A group that is open meanwhile
    /// may be given up. Error: it is not moved now.
    async fn close_for_move(
        self: &Rc<Self>,
        want: &ChunkChange,
    ) -> std::result::Result<Closed, MoveOutcome> {
        let closed = Closed(self.core.clone(), want.group);
        loop {
            let (changed, mut ended) =
                (self.core.state().moves.changed(), pin!(self.core.state().txns.pass_ended()));
            let closing = {
                let mut st = self.core.state_mut();
                let demand = st.demand();
                let st = &mut *st;
                st.space.close_group(&st.devices, want, &demand)
            };
            match closing {
                CloseOutcome::Closed => return Ok(closed),
                CloseOutcome::Needed => return Err(MoveOutcome::Needed),
                CloseOutcome::Changed => return Err(MoveOutcome::Gone),
                CloseOutcome::OfPass => {}
            }
            // The status stays `running`: this is one pass, and the user has nothing to do.
            if within(&mut ended, changed).await.is_none() || self.copier.moves_rest() {
                return Err(MoveOutcome::Stopped);
            }
        }
    }

    /// Waits until all that was taken of a closed group is written and committed. The open
    /// write-back pass may have taken blocks for nodes; those that begin later do not.
    async fn settle_group(&self, id: GroupId) -> Result<()> {
        let ended = self.core.state().txns.pass_ended();
        let nodes = self.core.state().space.groups().kind(id) == GroupKind::Metadata;
        if nodes && self.core.state().txns.pass().is_some() {
            ended.await;
        }
        loop {
            let ended = self.core.state().space.takers().writes_ended();
            if self.core.state().space.takers().is_settled(id) {
                break;
            }
            ended.await;
        }
        self.commits.commit_direct().await
    }

    /// Takes the chunks that a group is to get; `None`, and none is taken, if there are not enough,
    /// or if what was let in needs them.
    async fn take_targets(&self, want: &ChunkChange) -> Result<Option<Vec<Chunk>>> {
        self.terms
            .ask(
                |st| {
                    Ok(st.space.placement().terms_of_choice(&st.devices, want, &targets(st, want)))
                },
                |st, fit| Ok(take_targets(st, want, fit)),
            )
            .await
    }

    /// Enters the new chunks into the record of a group, durably. No commit may be under way that
    /// began before the copy: it would name the new chunks beside trees with blocks that were not
    /// copied. Returns the era of the reads that use the old chunks. Returns `None` and changes
    /// nothing if a device of the chunks in `whole` has gone out of use since. From this step on
    /// the pool does not drop the last device of them.
    async fn switch(
        &self,
        want: &ChunkChange,
        targets: &[Chunk],
        whole: &PresentChunks,
    ) -> Result<Option<Era>> {
        let reads = loop {
            let alone = self.core.commits().acquire(1).await;
            if self.core.requests().retry() {
                drop(alone);
                self.commits.commit().await?;
                continue;
            }
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            if !whole.is_still_so(&st) {
                return Ok(None);
            }
            let chunks = want.keeps.iter().chain(targets).copied().collect();
            let reads = st.space.set_chunks(want.group, chunks);
            st.need_superblock();
            break reads;
        };
        self.commit_for_sure().await?;
        Ok(Some(reads))
    }

    /// Frees the old chunks when no read uses them any more.
    async fn let_go(&self, want: &ChunkChange, reads: Era) {
        self.reads.wait_for_reads(reads).await;
        let mut st = self.core.state_mut();
        st.space.groups_mut().forget_chunks(want.group);
        st.devices.give_chunks(want.loses.clone());
    }

    /// Removes the devices that leave and hold nothing any more. Returns true if one was removed.
    async fn remove_empty(&self) -> Result<bool> {
        let (mut any, mut row) = (false, 0);
        while row < self.core.state().devices.count() {
            let goes = may_go(&self.core.state(), row);
            any |= goes && self.remove_row(row).await? == RowRemoval::Removed;
            row += 1;
        }
        Ok(any)
    }

    /// Removes a device that may go, once its turn between commits has come.
    async fn remove_row(&self, row: usize) -> Result<RowRemoval> {
        let (name, chunks, disk) = {
            let _alone = self.core.commits().acquire(1).await;
            let now = self.core.unix_time(self.core.now());
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            if !may_go(&st, row) {
                return Ok(RowRemoval::Stays);
            }
            let name = st.devices.row(row).map(|d| st.devices.name_of(row, d)).unwrap_or_default();
            let chunks = st.devices.row(row).map(|d| d.record().chunks).unwrap_or_default();
            let disk = st.remove_device(row, &name, now);
            st.need_superblock();
            (name, chunks, disk)
        };
        self.commit_for_sure().await?;
        tracing::info!(device = %name, "device removed: it holds no chunks");
        if let Some(disk) = disk {
            if let Err(e) = self.joiner.empty(&disk.anew(), chunks as u32).await {
                tracing::warn!(
                    device = %name,
                    "the removed device is not empty, and may say that it belongs to the pool: {e}"
                );
            }
            // The queue of the device stays, as requests may be under way; without its file they
            // end soon.
            self.core.state_mut().moves.removed(disk.file());
        }
        Ok(RowRemoval::Removed)
    }

    /// Commits what has been changed in memory already. It is tried again until it is durable, or
    /// the pool has failed or is closed.
    async fn commit_for_sure(&self) -> Result<()> {
        while let Err(e) = self.commits.commit().await {
            self.core.permit()?;
            if self.core.is_closed() {
                return Err(e);
            }
            self.core.rt().sleep(AGAIN).await;
        }
        Ok(())
    }
}

fn take_targets(st: &mut State, want: &ChunkChange, fit: Fit) -> Option<Vec<Chunk>> {
    let order = targets(st, want);
    if order.len() < want.gets {
        return None;
    }
    let rows = fit.choose(want.gets, &order);
    let (demand, before) = (st.demand(), st.reserved_fits());
    let take = |&d: &usize| st.devices.take_chunk_of(d);
    let taken: Vec<Chunk> = rows.iter().filter_map(take).collect();
    // Everything that was admitted counts on chunks of which groups can still be formed.
    let commits = st.space.room().admits(&st.devices, Purpose::Free, demand.dirty_nodes);
    if !commits || !st.reserved_fits().as_before(before) {
        st.devices.give_chunks(taken);
        return None;
    }
    Some(taken)
}
