//! The plan of a read: where its blocks are, and their checksums. A plan is a plain value, which
//! may go to another thread. What belongs to the engine stands beside it ([`Holds`]).

use base::{BlockRange, Crc, ErrorKind, Lba, PoolAddr, StorageError, VolumeId};
use queue::Class;
use smallvec::SmallVec;

use crate::error::Step;
use crate::space::{FetchedData, Load, Part, Pin, Run};
use crate::state::State;

/// A part of a read: a hole, or blocks with their checksums.
pub(super) struct ReadPiece {
    pub len: u32,
    pub place: Option<BlocksPlace>,
}

/// The place of blocks.
pub(super) struct BlocksPlace {
    pub addr: PoolAddr,
    /// The place in the list of checksums where those of the blocks begin.
    pub crcs: usize,
    /// The read-ahead that has the blocks.
    pub ahead: Option<AheadPart>,
}

/// A part of what is read ahead.
#[derive(Clone, Copy)]
pub(super) struct AheadPart {
    /// The place of the read-ahead in [`Holds::loads`].
    pub load: usize,
    /// Blocks of the read-ahead before the part.
    pub skip: u32,
}

/// A block of a volume.
#[derive(Clone, Copy)]
pub(super) struct VolumeBlock {
    pub volume: VolumeId,
    pub lba: Lba,
}

pub(super) struct Plan {
    pub pieces: SmallVec<[ReadPiece; 1]>,
    pub crcs: SmallVec<[Crc; 8]>,
    /// The first block, of the volume in whose name the blocks are.
    pub of: VolumeBlock,
}

/// The pin and the read-aheads that a flow holds for a plan until it has read the blocks.
pub(super) struct Holds {
    /// Keeps the blocks from being given to others.
    pub pin: Pin,
    /// The read-aheads that have some of the blocks.
    pub loads: SmallVec<[Load; 1]>,
}

impl Plan {
    /// Blocks with their checksums from `crcs` on, in as many pieces as what was read ahead makes
    /// of them.
    fn push(&mut self, run: Run, mut crcs: usize, fetched: &FetchedData, holds: &mut Holds) {
        let Run { mut addr, mut len } = run;
        while len > 0 {
            let part = match fetched.is_empty() {
                true => Part { len, found: None },
                false => fetched.find(Run { addr, len }),
            };
            let ahead = part.found.map(|(load, skip)| holds.add(load, skip));
            let place = BlocksPlace { addr, crcs, ahead };
            self.pieces.push(ReadPiece { len: part.len, place: Some(place) });
            addr = addr.plus(u64::from(part.len));
            (len, crcs) = (len - part.len, crcs + part.len as usize);
        }
    }
}

impl Holds {
    fn add(&mut self, load: Load, skip: u32) -> AheadPart {
        self.loads.push(load);
        AheadPart { load: self.loads.len() - 1, skip }
    }
}

/// As [`plan_read`]. What a read of the background is about is pinned by itself.
pub(super) fn plan_for(
    st: &mut State,
    class: Class,
    from: VolumeId,
    lba: Lba,
    blocks: u64,
) -> Step<(Plan, Holds)> {
    let (plan, mut holds) = plan_read(st, from, lba, blocks)?;
    if class.is_background() {
        let run =
            |piece: &ReadPiece| Some(Run { addr: piece.place.as_ref()?.addr, len: piece.len });
        holds.pin = st.space.limbo().pin_blocks(plan.pieces.iter().filter_map(run), &holds.pin);
    }
    Ok((plan, holds))
}

/// Looks up where `[lba, lba + blocks)` is, and its checksums.
pub(super) fn plan_read(
    st: &mut State,
    volume: VolumeId,
    lba: Lba,
    blocks: u64,
) -> Step<(Plan, Holds)> {
    let end = lba.plus(blocks);
    let extents = st.forest.extents(volume, BlockRange::new(lba, end), usize::MAX)?;
    let owner = st.forest.volume(volume).map_or(volume, |v| v.record().owner());
    let geometry = st.space.geometry();
    let mut plan = Plan {
        pieces: SmallVec::new(),
        crcs: SmallVec::new(),
        of: VolumeBlock { volume: owner, lba },
    };
    let mut holds = Holds { pin: st.space.limbo().pin(), loads: SmallVec::new() };
    let mut at = lba.0;
    for e in extents {
        let (from, to) = (e.lba.0.max(lba.0), e.end().min(end.0));
        if from > at {
            plan.pieces.push(ReadPiece { len: (from - at) as u32, place: None });
        }
        let (addr, len) = (e.addr.plus(from - e.lba.0), (to - from) as u32);
        let (group, offset) = geometry.split(addr);
        if !st.space.groups().contains(group) {
            return Err(StorageError::new(
                ErrorKind::Damaged,
                format!("{addr:?} is outside of the pool"),
            )
            .into());
        }
        let start = plan.crcs.len();
        if !st.forest.checksums(group, offset, len, owner, Lba(from), &mut plan.crcs)? {
            let what = format!(
                "block {addr} of the pool has no checksum for volume {volume}; run forebay check"
            );
            return Err(StorageError::new(ErrorKind::Damaged, what).into());
        }
        plan.push(Run { addr, len }, start, st.space.fetched(), &mut holds);
        at = to;
    }
    if at < end.0 {
        plan.pieces.push(ReadPiece { len: (end.0 - at) as u32, place: None });
    }
    Ok((plan, holds))
}

#[cfg(test)]
mod tests {
    use btree::Fault;

    use super::*;
    use crate::space::ChunkChange;
    use crate::state::Copies;
    use crate::transfer::walk::ReadRun;

    /// Plans, which a step decides on, may go to another thread.
    #[test]
    fn plans_are_plain_values() {
        fn plain<T: Send>() {}
        plain::<Plan>();
        // The blocks that a write has taken; a move, and a run of it; a node; copies of a block.
        plain::<Run>();
        plain::<(ChunkChange, ReadRun)>();
        plain::<Fault>();
        plain::<Copies>();
    }
}
