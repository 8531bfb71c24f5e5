//! The record of scrubs in a superblock: how far the one that runs has come, how the last one
//! ended, and blocks of which no good copy is left.
//!
//! Layout (little-endian; offsets in bytes from the start of the part, of which there are two):
//!
//! ```text
//!  0  state, stage, row of the one device that it reads, plus 1 (0: all of them), number of lost
//!     extents (u8)
//!  4  time of the start, of the end, of the end of the last complete one (u32, Unix time)
//! 16  place: number of the volume or block group (u32), block in it (u32)
//! 24  bytes verified, bad blocks, healed blocks, lost blocks (u64)
//! 56  bytes to verify, about (u64)
//! 64  lost extents: 18 records of 24 bytes: address, block of the volume (u64), volume, blocks
//!     (u32); 29 in a superblock without a lineage
//!
//!  0  parts of the pool that were passed over (u32)
//!  4  flags (u8): 1, a scrub before it passed over parts; 2, more is lost than the list has room
//!     for; 4, that was found since the newest one began; 8, a device was out of use while it ran
//!  5  reserved (zero)
//!  8  time from which the next one counts, if none was complete; since when it is paused (u32)
//! 16  bytes a second of each copy at most, as it was told, plus 1; 0: it was not told (u64)
//! ```
//!
//! All zeros: no scrub ever ran, and nothing is lost.

use base::{Lba, PoolAddr, VolumeId};
pub use model::scrub::ScrubState;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;

/// Bytes of the first part.
pub(super) const BYTES: usize = 760;
/// Bytes of the second part.
pub(super) const REST_BYTES: usize = 24;
/// Flag: a scrub before the newest one passed over parts of the pool.
const PASSED_BEFORE: u8 = 1;
/// Flag: more is lost than the list names.
const MORE_LOST: u8 = 2;
/// Flag: that was found since the newest scrub began.
const MORE_LOST_NOW: u8 = 4;
/// Flag: a device of the pool was out of use while the newest scrub ran.
const AWAY: u8 = 8;
const FLAGS: u8 = PASSED_BEFORE | MORE_LOST | MORE_LOST_NOW | AWAY;
/// The largest number of lost extents that a superblock names.
pub const MAX_LOST: usize = 18;
/// The largest number of lost extents in a superblock that does not say which history it belongs
/// to.
pub(super) const MAX_LOST_ALONE: usize = 29;
/// The end of the first part in a superblock that does say which history it belongs to, in bytes.
pub(super) const END: usize = BYTES - super::lineage::BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawLost {
    addr: U64,
    lba: U64,
    volume: U32,
    blocks: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    state: u8,
    stage: u8,
    device: u8,
    lost_count: u8,
    started_at: U32,
    ended_at: U32,
    completed_at: U32,
    index: U32,
    block: U32,
    verified: U64,
    bad: U64,
    healed: U64,
    lost: U64,
    all: U64,
    extents: [RawLost; MAX_LOST_ALONE],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRest {
    passed: U32,
    flags: u8,
    reserved: [u8; 3],
    counts_from: U32,
    paused_at: U32,
    rate: U64,
}

const _: () = {
    assert!(size_of::<RawLost>() == 24);
    assert!(size_of::<RawRest>() == REST_BYTES);
    assert!(size_of::<Raw>() == BYTES);
    assert!(std::mem::offset_of!(Raw, extents) + MAX_LOST * size_of::<RawLost>() == END);
    assert!(std::mem::offset_of!(Raw, index) == 16 && std::mem::offset_of!(Raw, verified) == 24);
    assert!(std::mem::offset_of!(Raw, extents) == 64);
};

/// The states of a scrub; the place in this list is the code on the device.
const STATES: [ScrubState; 5] = [
    ScrubState::Never,
    ScrubState::Running,
    ScrubState::Paused,
    ScrubState::Done,
    ScrubState::Cancelled,
];

/// The parts of a pool that a scrub goes over, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum ScrubStage {
    /// Pages of the volume and group tables.
    #[default]
    Tables,
    /// Mapping trees, by the number of the volume.
    Volumes,
    /// Block groups: bitmaps, checksum tree and data of each.
    Groups,
}

impl ScrubStage {
    const ALL: [ScrubStage; 3] = [ScrubStage::Tables, ScrubStage::Volumes, ScrubStage::Groups];
}

/// The place at which a scrub goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ScrubPlace {
    /// The part of the pool that it goes over.
    pub stage: ScrubStage,
    /// The number of the volume or the block group.
    pub index: u32,
    /// The block in the group.
    pub block: u32,
}

/// Blocks of which no good copy is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostExtent {
    /// The first of them in the pool.
    pub addr: PoolAddr,
    /// The volume that they belong to.
    pub volume: VolumeId,
    /// The first of them in the volume.
    pub lba: Lba,
    /// The number of blocks.
    pub blocks: u32,
}

/// The record of scrubs in a superblock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubRecord {
    /// The state of the newest scrub.
    pub state: ScrubState,
    /// The place at which the scrub goes on.
    pub place: ScrubPlace,
    /// The row of the only device that it reads; `None`: it reads all of them.
    pub device: Option<u8>,
    /// When it was started, in seconds of Unix time; 0: not known.
    pub started_at: u32,
    /// When it ended; 0: it has not, or it is not known.
    pub ended_at: u32,
    /// When the last one ended that went over all devices to its end.
    pub completed_at: u32,
    /// From when the time to the next one counts, while none was complete; 0: not known.
    pub counts_from: u32,
    /// Since when it is paused; 0: it is not, or that is not known.
    pub paused_at: u32,
    /// Bytes a second that it may read of each copy, if it was told so; 0: as many as it can.
    pub rate: Option<u64>,
    /// Bytes it has verified, all copies counted.
    pub verified: u64,
    /// Bytes that it will have verified in the end, about.
    pub all: u64,
    /// Blocks that were bad in a copy, that were healed, and of which no copy was good.
    pub bad: u64,
    /// See `bad`.
    pub healed: u64,
    /// See `bad`. Parts that were passed over count too.
    pub lost: u64,
    /// Parts of the pool that it passed over, as what they are read by has no good copy.
    pub passed: u32,
    /// A scrub before it passed over parts, and none has gone over everything since.
    pub passed_before: bool,
    /// More is lost than `extents` has room for: no complete scrub of all devices has found less
    /// since.
    pub more_lost: bool,
    /// That was found since this scrub began.
    pub more_lost_now: bool,
    /// A device of the pool was out of use while it ran, so it has not read all that there is.
    pub away: bool,
    /// Lost extents, of this scrub and of those before it; at most [`MAX_LOST`], or 29 as an older
    /// version wrote them.
    pub extents: Vec<LostExtent>,
}

impl ScrubRecord {
    /// The first part, with at most so many lost extents.
    pub(super) fn encode(&self, most: usize) -> [u8; BYTES] {
        let position = |found: Option<usize>| found.unwrap_or_default() as u8;
        let none = RawLost { addr: 0.into(), lba: 0.into(), volume: 0.into(), blocks: 0.into() };
        let mut raw = Raw {
            state: position(STATES.iter().position(|s| *s == self.state)),
            stage: position(ScrubStage::ALL.iter().position(|s| *s == self.place.stage)),
            device: self.device.map_or(0, |row| row + 1),
            lost_count: self.extents.len().min(most) as u8,
            started_at: self.started_at.into(),
            ended_at: self.ended_at.into(),
            completed_at: self.completed_at.into(),
            index: self.place.index.into(),
            block: self.place.block.into(),
            verified: self.verified.into(),
            bad: self.bad.into(),
            healed: self.healed.into(),
            lost: self.lost.into(),
            all: self.all.into(),
            extents: [none; MAX_LOST_ALONE],
        };
        for (row, e) in raw.extents[..most].iter_mut().zip(&self.extents) {
            *row = RawLost {
                addr: e.addr.0.into(),
                lba: e.lba.0.into(),
                volume: e.volume.0.into(),
                blocks: e.blocks.into(),
            };
        }
        let mut out = [0; BYTES];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    /// The second part, beside a first one with at most so many lost extents.
    pub(super) fn encode_rest(&self, most: usize) -> [u8; REST_BYTES] {
        let flags = [
            (self.passed_before, PASSED_BEFORE),
            (self.more_lost || self.extents.len() > most, MORE_LOST),
            (self.more_lost_now, MORE_LOST_NOW),
            (self.away, AWAY),
        ];
        let raw = RawRest {
            passed: self.passed.into(),
            flags: flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
            reserved: [0; 3],
            counts_from: self.counts_from.into(),
            paused_at: self.paused_at.into(),
            rate: self.rate.map_or(0, |rate| rate.saturating_add(1)).into(),
        };
        let mut out = [0; REST_BYTES];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    /// Decodes both parts. A record with more than `most` lost extents is refused: the bytes of
    /// those belong to something else.
    pub(super) fn decode(
        bytes: &[u8; BYTES],
        rest: &[u8; REST_BYTES],
        most: usize,
    ) -> Result<ScrubRecord, FormatError> {
        let more = RawRest::read_from_bytes(rest).map_err(|_| unfit("scrub", 0))?;
        if more.reserved != [0; 3] {
            return Err(unfit("reserved bytes of the scrub", 1));
        }
        if more.flags & !FLAGS != 0 {
            return Err(unfit("flags of the scrub", more.flags.into()));
        }
        Ok(ScrubRecord {
            passed: more.passed.get(),
            passed_before: more.flags & PASSED_BEFORE != 0,
            more_lost: more.flags & MORE_LOST != 0,
            more_lost_now: more.flags & MORE_LOST_NOW != 0,
            away: more.flags & AWAY != 0,
            counts_from: more.counts_from.get(),
            paused_at: more.paused_at.get(),
            rate: more.rate.get().checked_sub(1),
            ..ScrubRecord::decode_first(bytes, most)?
        })
    }

    fn decode_first(bytes: &[u8; BYTES], most: usize) -> Result<ScrubRecord, FormatError> {
        let bad = unfit;
        let raw = Raw::read_from_bytes(bytes).map_err(|_| bad("scrub", 0))?;
        let state = STATES.get(usize::from(raw.state)).copied();
        let stage = ScrubStage::ALL.get(usize::from(raw.stage)).copied();
        let count = usize::from(raw.lost_count);
        if count > most {
            return Err(bad("lost extents", count as u64));
        }
        let (named, rest) = raw.extents.split_at(count);
        let is_zero = |e: &RawLost| e.as_bytes().iter().all(|&b| b == 0);
        if !rest.iter().all(is_zero) {
            return Err(bad("reserved bytes of the scrub", 1));
        }
        let extent = |e: &RawLost| LostExtent {
            addr: PoolAddr(e.addr.get()),
            volume: VolumeId(e.volume.get()),
            lba: Lba(e.lba.get()),
            blocks: e.blocks.get(),
        };
        Ok(ScrubRecord {
            state: state.ok_or_else(|| bad("state of the scrub", raw.state.into()))?,
            place: ScrubPlace {
                stage: stage.ok_or_else(|| bad("stage of the scrub", raw.stage.into()))?,
                index: raw.index.get(),
                block: raw.block.get(),
            },
            device: raw.device.checked_sub(1),
            started_at: raw.started_at.get(),
            ended_at: raw.ended_at.get(),
            completed_at: raw.completed_at.get(),
            verified: raw.verified.get(),
            all: raw.all.get(),
            bad: raw.bad.get(),
            healed: raw.healed.get(),
            lost: raw.lost.get(),
            extents: named.iter().map(extent).collect(),
            ..ScrubRecord::default()
        })
    }
}

fn unfit(field: &'static str, found: u64) -> FormatError {
    FormatError::Value { what: "superblock", field, found }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent() -> impl Strategy<Value = LostExtent> {
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(addr, lba, v, blocks)| LostExtent {
                addr: PoolAddr(addr),
                volume: VolumeId(v),
                lba: Lba(lba),
                blocks,
            },
        )
    }

    proptest! {
        #[test]
        fn round_trip(
            (state, stage, index, block) in (0..5usize, 0..3usize, any::<u32>(), any::<u32>()),
            device in prop::option::of(0..64u8),
            times in any::<[u32; 5]>(),
            numbers in any::<[u64; 5]>(),
            rate in prop::option::of(0..u64::MAX),
            (passed, flags) in any::<(u32, [bool; 4])>(),
            extents in prop::collection::vec(extent(), 0..=MAX_LOST_ALONE),
        ) {
            let record = ScrubRecord {
                state: STATES[state],
                place: ScrubPlace { stage: ScrubStage::ALL[stage], index, block },
                device,
                started_at: times[0],
                ended_at: times[1],
                completed_at: times[2],
                counts_from: times[3],
                paused_at: times[4],
                rate,
                verified: numbers[0],
                all: numbers[1],
                bad: numbers[2],
                healed: numbers[3],
                lost: numbers[4],
                passed,
                passed_before: flags[0],
                more_lost: flags[1],
                more_lost_now: flags[2],
                away: flags[3],
                extents,
            };
            let bytes = (record.encode(MAX_LOST_ALONE), record.encode_rest(MAX_LOST_ALONE));
            prop_assert_eq!(ScrubRecord::decode(&bytes.0, &bytes.1, MAX_LOST_ALONE), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), BYTES),
            rest in any::<[u8; REST_BYTES]>(),
        ) {
            let bytes: [u8; BYTES] = bytes.try_into().expect("so many");
            if let Ok(record) = ScrubRecord::decode(&bytes, &rest, MAX_LOST_ALONE) {
                let again = (record.encode(MAX_LOST_ALONE), record.encode_rest(MAX_LOST_ALONE));
                prop_assert_eq!(again, (bytes, rest));
            }
        }
    }

    #[test]
    fn zeros_are_no_scrub() {
        let decode = |bytes: &[u8; BYTES], rest: &[u8; REST_BYTES]| {
            ScrubRecord::decode(bytes, rest, MAX_LOST_ALONE)
        };
        let none = [0; REST_BYTES];
        assert_eq!(decode(&[0; BYTES], &none), Ok(ScrubRecord::default()));
        for (at, value) in [(0, 9), (3, 30)] {
            let mut bytes = [0; BYTES];
            bytes[at] = value;
            assert!(decode(&bytes, &none).is_err());
        }
        for (at, value) in [(4, 1 << 7), (5, 1)] {
            let mut rest = none;
            rest[at] = value;
            assert!(decode(&[0; BYTES], &rest).is_err());
        }
    }
}
