//! Recovery of the changes that the last incarnation had answered and not made durable. They are
//! entered again from its [host log](crate::host_log), in memory: the first commit makes them
//! durable.
//!
//! Only the last change of each block counts, so the records are read from the newest to the
//! oldest, and each gives what no newer one covers. Blocks are entered where they were written:
//! that place was free in the last commit, and is taken before anything else may be. They are
//! verified first, in all their copies. A copy that is not what the record says was lost by its
//! device, and is written from a good one before the first commit counts on it. Where no copy is
//! good, what was there before stands, as after a loss of power.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{
    BLOCK, BLOCK_U64, BlockRange, Crc, ErrorKind, Generation, HostMemoryId, Lba, PoolAddr, Result,
    SharedPlace, StorageError, VolumeId, counted,
};
use format::page::Chunk;
use queue::Class;
use smallvec::SmallVec;

use crate::core::Core;
use crate::forest::Change;
use crate::host_log::SurvivingRecords;
use crate::space::Run;
use crate::state::State;
use crate::transfer::copies::CopyReader;
use crate::transfer::heal::Healer;
use crate::transfer::load::{EntryError, NodeLoader};
use crate::txn::logged::LoggedChange;
use crate::writeback::cache_link::CacheLink;

/// Blocks that are verified by one read.
const READ_BLOCKS: usize = 256;
/// Reads and edits under way at once.
const AT_ONCE: usize = 32;
/// So often what a device does not give is asked for, before a start is refused for it.
const ROUNDS: u32 = 3;

/// Blocks that are to be entered: they are adjacent in their volume and in the pool.
struct LoggedPiece {
    volume: VolumeId,
    lba: Lba,
    addr: PoolAddr,
    crcs: Vec<Crc>,
    chunks: SmallVec<[Chunk; 3]>,
}

/// Blocks that read as zeros.
struct Hole {
    volume: VolumeId,
    lba: Lba,
    end: Lba,
}

/// A block that was entered, and of which a copy is not good.
pub(crate) struct IncompleteBlock {
    addr: PoolAddr,
    crc: Crc,
}

/// The outcome for blocks of the host log.
#[derive(Default)]
struct RecoveredBlocks {
    blocks: u64,
    lost: u64,
    incomplete: Vec<IncompleteBlock>,
}

impl RecoveredBlocks {
    fn add(&mut self, more: RecoveredBlocks) {
        self.blocks += more.blocks;
        self.lost += more.lost;
        self.incomplete.extend(more.incomplete);
    }
}

/// The outcome of reading a host log.
#[derive(Default)]
struct LogOutcome {
    pieces: Vec<LoggedPiece>,
    holes: Vec<Hole>,
    drops_cache: bool,
    records: usize,
    malformed: usize,
}

/// The blocks of which newer records have said something already.
#[derive(Default)]
struct CoveredBlocks(BTreeMap<VolumeId, BTreeMap<u64, u64>>);

impl CoveredBlocks {
    /// Covers `[lba, end)`; returns the parts of it that were not covered.
    fn cover(&mut self, volume: VolumeId, lba: Lba, end: Lba) -> Vec<(u64, u64)> {
        let spans = self.0.entry(volume).or_default();
        let (mut from, mut to) = (lba.0, end.0);
        let touching: Vec<(u64, u64)> = {
            let before = spans.range(..from).next_back().filter(|(_, e)| **e >= from);
            before.into_iter().chain(spans.range(from..=to)).map(|(s, e)| (*s, *e)).collect()
        };
        let (mut open, mut at) = (Vec::new(), from);
        for &(start, stop) in &touching {
            if start > at {
                open.push((at, start.min(to)));
            }
            at = at.max(stop);
            (from, to) = (from.min(start), to.max(stop));
            spans.remove(&start);
        }
        if at < end.0 {
            open.push((at, end.0));
        }
        spans.insert(from, to);
        open.retain(|(start, stop)| start < stop);
        open
    }
}

impl LogOutcome {
    /// Of the records that no commit up to `committed` has.
    fn of(survived: &SurvivingRecords, committed: Generation) -> LogOutcome {
        let mut out = LogOutcome::default();
        let mut covered = CoveredBlocks::default();
        for frame in survived.frames.iter().rev().filter(|f| f.stamp > committed.0) {
            out.records += 1;
            match LoggedChange::decode(frame.kind, &frame.payload) {
                Some(LoggedChange::Map { volume, lba, runs, crcs }) => {
                    let mut first = 0;
                    for placed in runs {
                        let (from, len) = (lba.plus(first as u64), u64::from(placed.run.len));
                        let its = &crcs[first..first + placed.run.len as usize];
                        first += placed.run.len as usize;
                        for (start, stop) in covered.cover(volume, from, from.plus(len)) {
                            let (at, n) = (start - from.0, (stop - start) as usize);
                            out.pieces.push(LoggedPiece {
                                volume,
                                lba: Lba(start),
                                addr: placed.run.addr.plus(at),
                                crcs: its[at as usize..at as usize + n].to_vec(),
                                chunks: placed.chunks.clone(),
                            });
                        }
                    }
                }
                Some(LoggedChange::Unmap { volume, lba, end }) => {
                    let holes = covered.cover(volume, lba, end);
                    let hole = |(start, stop)| Hole { volume, lba: Lba(start), end: Lba(stop) };
                    out.holes.extend(holes.into_iter().map(hole));
                }
                Some(LoggedChange::DropCache) => out.drops_cache = true,
                None => out.malformed += 1,
            }
        }
        out.pieces.sort_by_key(|piece| piece.addr);
        out
    }
}

/// Enters what the last incarnation had answered.
pub(crate) struct Recovery {
    core: Core,
    healer: Rc<Healer>,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
    cache_link: Rc<CacheLink>,
}

impl Recovery {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        healer: &Rc<Healer>,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
        cache_link: &Rc<CacheLink>,
    ) -> Rc<Recovery> {
        Rc::new(Recovery {
            core: core.clone(),
            healer: healer.clone(),
            copies: copies.clone(),
            loader: loader.clone(),
            cache_link: cache_link.clone(),
        })
    }

    /// Enters what the last incarnation had answered and not made durable, from what the host has
    /// of it in `place`. Nothing is written to a device. Returns the blocks of which a copy is not
    /// good.
    pub(crate) async fn recover_from(
        self: &Rc<Self>,
        place: &SharedPlace,
    ) -> Result<Vec<IncompleteBlock>> {
        let committed = self.core.state().txns.committed();
        let id =
            HostMemoryId { incarnation: incarnation_of(committed), open: self.core.last_opened() };
        let Some(mut survived) = SurvivingRecords::find(place, self.core.uuid(), id) else {
            return Ok(Vec::new());
        };
        if survived.durable > committed.0 {
            survived = SurvivingRecords {
                lacking: Some(
                    "the devices were put back to an older state than it goes on from".into(),
                ),
                ..SurvivingRecords::default()
            };
        }
        if let Some(why) = &survived.lacking {
            tracing::warn!(
                "writes that were answered and not flushed before the last process ended may be \
                 lost, as what the host kept of them does not count: {why}"
            );
        }
        let outcome = LogOutcome::of(&survived, committed);
        if outcome.malformed > 0 {
            let records = counted(outcome.malformed as u64, "record", "records");
            tracing::error!("{records} of the host log make no sense, and were left out");
        }
        if outcome.records == 0 {
            return Ok(Vec::new());
        }
        self.enter_outcome(outcome).await
    }

    /// Writes the copies that are not good of what was entered.
    pub(crate) async fn write_lacking_copies(self: &Rc<Self>, incomplete: Vec<IncompleteBlock>) {
        if incomplete.is_empty() {
            return;
        }
        tracing::warn!(
            "a device has lost {} answered before the last process ended: they are written to it \
             from another copy",
            counted(incomplete.len() as u64, "block that was", "blocks that were")
        );
        let mut under_way: std::collections::VecDeque<rt::JoinHandle<()>> = Default::default();
        for IncompleteBlock { addr, crc } in incomplete {
            if under_way.len() == AT_ONCE
                && let Some(first) = under_way.pop_front()
            {
                first.await;
            }
            let this = self.clone();
            let heal = async move { this.healer.heal_copies(addr, crc, Class::Commit).await };
            under_way.push_back(self.core.rt().spawn(heal));
        }
        for heal in under_way {
            heal.await;
        }
    }

    async fn enter_outcome(self: &Rc<Self>, outcome: LogOutcome) -> Result<Vec<IncompleteBlock>> {
        let LogOutcome { pieces, holes, drops_cache, records, .. } = outcome;
        self.core.set_recovered();
        {
            // Groups that are empty by the last commit may have been given up since, and their
            // chunks taken for others.
            let mut st = self.core.state_mut();
            let st = &mut *st;
            st.space.dissolve_empty(&mut st.devices, usize::MAX);
        }
        let RecoveredBlocks { blocks, lost, incomplete } = self.enter_pieces(pieces).await?;
        for Hole { volume, lba, end } in holes {
            if !self.is_live(volume) {
                continue;
            }
            let mut at = lba;
            while at < end {
                let change = Change::Unmap { volume, range: BlockRange::new(at, end) };
                let Some(upto) = self.enter_again(&change).await? else { break };
                at = upto;
            }
        }
        if drops_cache {
            self.cache_link.drop_cache();
        }
        if lost > 0 {
            tracing::error!(
                "{} answered and not flushed before the last process ended are lost: a device \
                 does not have them any more, and what was there before them stands",
                counted(lost, "block that was", "blocks that were")
            );
        }
        tracing::info!(records, blocks, "entered what was answered before the last process ended");
        Ok(incomplete)
    }

    /// Enters blocks, in the order of their addresses.
    async fn enter_pieces(self: &Rc<Self>, pieces: Vec<LoggedPiece>) -> Result<RecoveredBlocks> {
        let mut reads: Vec<Vec<LoggedPiece>> = Vec::new();
        for piece in pieces {
            let fits = reads.last().is_some_and(|read| {
                let blocks: usize = read.iter().map(|p| p.crcs.len()).sum();
                let last = &read[read.len() - 1];
                last.addr.plus(last.crcs.len() as u64) == piece.addr
                    && last.chunks == piece.chunks
                    && blocks + piece.crcs.len() <= READ_BLOCKS
            });
            match reads.last_mut().filter(|_| fits) {
                Some(read) => read.push(piece),
                None => reads.push(vec![piece]),
            }
        }
        let mut entered = RecoveredBlocks::default();
        // All places are taken before a read gives others a turn.
        let mut taken = Vec::with_capacity(reads.len());
        for read in reads {
            match self.take_again(&read).await? {
                true => taken.push(read),
                false => entered.lost += read.iter().map(|p| p.crcs.len() as u64).sum::<u64>(),
            }
        }
        let mut under_way = std::collections::VecDeque::new();
        let mut left = taken.into_iter();
        loop {
            while under_way.len() < AT_ONCE
                && let Some(read) = left.next()
            {
                let this = self.clone();
                under_way.push_back(
                    self.core.rt().spawn(async move { this.verify_and_enter(read).await }),
                );
            }
            let Some(next) = under_way.pop_front() else { return Ok(entered) };
            entered.add(next.await.unwrap_or_else(|| Err(StorageError::ended()))?);
        }
    }

    /// Takes the blocks of adjacent pieces; false, and none is taken, if they are not free. Error:
    /// a device answers nothing, and may have the bitmap that says it.
    async fn take_again(&self, read: &[LoggedPiece]) -> Result<bool> {
        let run = run_of(read);
        let formed = {
            let mut st = self.core.state_mut();
            let st = &mut *st;
            st.space.form_again(&mut st.devices, run, &read[0].chunks)
        };
        if !formed {
            tracing::error!(
                addr = run.addr.0,
                blocks = run.len,
                "the pool has another block group \
                where blocks were written before the last process ended"
            );
            return Ok(false);
        }
        let group = self.core.state().space.geometry().split(run.addr).0;
        for _ in 0..ROUNDS {
            if self.loader.load_maps(group).await.is_ok() {
                break;
            }
            // A bitmap that a device did not give for a moment is not lost.
            self.copies.all_answer(Class::Commit).await?;
        }
        self.loader.load_maps_to_take(group).await;
        let took = self.core.state_mut().space.take_exactly(run);
        if !took {
            tracing::error!(
                addr = run.addr.0,
                blocks = run.len,
                "blocks that were written before \
                the last process ended are not free"
            );
        }
        Ok(took)
    }

    /// Reads and verifies adjacent pieces, and enters what is as it was written.
    async fn verify_and_enter(&self, read: Vec<LoggedPiece>) -> Result<RecoveredBlocks> {
        let run = run_of(&read);
        let crcs: Vec<Crc> = read.iter().flat_map(|p| p.crcs.iter().copied()).collect();
        let (mut good, mut all_good) =
            self.healer.good_copies(run.addr, &crcs, Class::Commit).await;
        for i in (0..crcs.len()).filter(|i| !good[*i]).collect::<Vec<_>>() {
            let again = self.read_again(run.addr.plus(i as u64), crcs[i]).await?;
            (good[i], all_good[i]) = again.map_or((false, false), |all| (true, all));
        }
        let of = |i| IncompleteBlock { addr: run.addr.plus(i as u64), crc: crcs[i] };
        let incomplete = (0..crcs.len()).filter(|i| good[*i] && !all_good[*i]).map(of).collect();
        let mut entered = RecoveredBlocks { incomplete, ..RecoveredBlocks::default() };
        let mut first = 0;
        for piece in read {
            let good = &good[first..first + piece.crcs.len()];
            first += piece.crcs.len();
            let is_there = self.is_live(piece.volume);
            let mut at = 0;
            while at < good.len() {
                let n = good[at..].iter().take_while(|g| **g == good[at]).count();
                let run = Run { addr: piece.addr.plus(at as u64), len: n as u32 };
                let crcs = &piece.crcs[at..at + n];
                let (volume, lba, runs) = (piece.volume, piece.lba.plus(at as u64), &[run][..]);
                let change = Change::Map { volume, lba, runs, crcs, size: None };
                let is_wanted = is_there && good[at];
                if is_wanted && self.enter_again(&change).await?.is_some() {
                    entered.blocks += n as u64;
                } else {
                    self.core.state_mut().space.release(run);
                    // Blocks of a volume that was deleted are not lost.
                    entered.lost += if is_wanted || !good[at] { n as u64 } else { 0 };
                }
                at += n;
            }
        }
        Ok(entered)
    }

    /// Reads a block again of which no copy was good. A device that answers nothing for a moment
    /// has not said that its copy is bad, and what is dropped now is lost: the first commit ends
    /// the records of it. Returns whether all copies are good; `None`: none is, for sure. Error: it
    /// cannot be told. Nothing was written then, and the next start has the records still.
    async fn read_again(&self, addr: PoolAddr, crc: Crc) -> Result<Option<bool>> {
        for _ in 0..ROUNDS {
            let pin = self.core.state().space.limbo().pin();
            if self.copies.is_surely_bad(addr, crc, Class::Commit, &pin).await {
                return Ok(None);
            }
            let (good, all_good) = self.healer.good_copies(addr, &[crc], Class::Commit).await;
            if good[0] {
                return Ok(Some(all_good[0]));
            }
        }
        let text = format!(
            "block {} of the pool, which was answered before the last process ended, cannot be \
             read now, and may be good: see to the devices' paths, cables and power, then start \
             again",
            addr.0
        );
        Err(StorageError::new(ErrorKind::Io, text))
    }

    /// Enters a change; returns how far it came. `None`: a node of a tree that it needs has no good
    /// copy. Error: a device answers nothing, and may have that node.
    async fn enter_again(&self, change: &Change<'_>) -> Result<Option<Lba>> {
        let mut rounds = 0;
        loop {
            let step = |st: &mut State| st.edit_direct(change);
            let entered = self.loader.resident_or_lost(Class::Commit, |_| None, step).await;
            let EntryError { why, node } = match entered {
                Ok(upto) => return Ok(Some(upto)),
                Err(failed) => failed,
            };
            rounds += 1;
            // A node that is damaged was read: only one that was not given may be good.
            if let Some(node) = node.filter(|_| why.kind == ErrorKind::Io && rounds < ROUNDS)
                && self.read_again(node.ptr.addr, node.ptr.crc).await?.is_some()
            {
                continue;
            }
            self.copies.all_answer(Class::Commit).await?;
            let volume = self.core.state().volume_name(change.volume());
            tracing::error!(
                volume,
                "what was answered before the last process ended, and not flushed, cannot be \
                 entered, and is lost: {why}"
            );
            return Ok(None);
        }
    }

    /// True if the volume that records are about was not deleted.
    fn is_live(&self, volume: VolumeId) -> bool {
        self.core.state().forest.volume(volume).is_some_and(|v| v.is_live())
    }
}

/// The incarnation that a generation is of.
pub(crate) fn incarnation_of(generation: Generation) -> u32 {
    (generation.0 >> 32) as u32
}

/// The blocks of adjacent pieces.
fn run_of(read: &[LoggedPiece]) -> Run {
    let len = read.iter().map(|p| p.crcs.len() as u32).sum();
    Run { addr: read[0].addr, len }
}

const _: () = assert!(READ_BLOCKS * BLOCK == 1 << 20 && BLOCK_U64 == BLOCK as u64);

#[cfg(test)]
mod tests {
    use super::*;

    const V: VolumeId = VolumeId(1);

    #[test]
    fn only_what_no_newer_record_covers_is_open() {
        let mut covered = CoveredBlocks::default();
        let mut cover = |from, to| covered.cover(V, Lba(from), Lba(to));
        assert_eq!(cover(10, 20), [(10, 20)]);
        assert_eq!(cover(10, 20), []);
        assert_eq!(cover(5, 12), [(5, 10)]);
        assert_eq!(cover(30, 40), [(30, 40)]);
        assert_eq!(cover(0, 50), [(0, 5), (20, 30), (40, 50)]);
        assert_eq!(cover(0, 50), []);
        assert_eq!(cover(50, 51), [(50, 51)]);
        assert_eq!(covered.cover(VolumeId(2), Lba(0), Lba(1)), [(0, 1)]);
        assert_eq!(covered.0[&V], BTreeMap::from([(0, 51)]));
    }
}
