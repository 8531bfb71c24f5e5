//! The history of the pool to which a superblock belongs.
//!
//! Counters alone do not tell a pool from its copy: both go on with the same numbers. So each open
//! of a pool draws a random number, an [`OpenId`]. The first commit of an open that changes what
//! the pool holds begins a *history* of that name. The history goes on from the one before, from
//! the last commit that changed anything: its *end*. The superblock has the newest histories with
//! their ends, and so proves of an older superblock that the pool went on from there.
//!
//! Layout (little-endian; offsets in bytes from the start of the part):
//!
//! ```text
//!   0  the open that wrote the superblock, the open before it (u64)
//!  16  the open in which the attached cache was opened last (u64; 0: not said)
//!  24  the last change of what the pool holds that all devices in use knew of (generation, u64)
//!  32  14 histories of 16 bytes, the newest first: name, generation of the end (u64; 0: none)
//! 256  reserved (zero)
//! ```

use base::{Generation, OpenId};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;

/// Bytes of the part.
pub(super) const BYTES: usize = 264;
const WHAT: &str = "superblock";
/// The largest number of histories that a superblock names.
pub const MAX_HISTORIES: usize = 14;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHistory {
    name: U64,
    end: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    opened: U64,
    opened_before: U64,
    cache_opened: U64,
    settled: U64,
    histories: [RawHistory; MAX_HISTORIES],
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<Raw>() == BYTES);

/// A point in the life of a pool: the last change of what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct History {
    /// The open that made the change; 0: one of before opens had names.
    pub name: OpenId,
    /// The generation of the commit that made it.
    pub end: Generation,
}

/// The opens and the histories of a pool, as a superblock records them. All zeros in superblocks
/// from before this was recorded.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Lineage {
    /// The open that wrote the superblock.
    pub opened: OpenId,
    /// The open whose superblocks that one found.
    pub opened_before: OpenId,
    /// The open in which the attached cache was opened last; 0: not known, or there is none.
    pub cache_opened: OpenId,
    /// The last change of what the pool holds of which every device in use had a superblock. The
    /// end of the newest history may be a change that was never complete.
    pub settled: Generation,
    /// The histories, the newest first; at most [`MAX_HISTORIES`].
    pub histories: Vec<History>,
}

impl Lineage {
    /// True if the superblock says anything of this.
    pub fn is_known(&self) -> bool {
        *self != Lineage::default()
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let none = RawHistory { name: 0.into(), end: 0.into() };
        let mut raw = Raw {
            opened: self.opened.0.into(),
            opened_before: self.opened_before.0.into(),
            cache_opened: self.cache_opened.0.into(),
            settled: self.settled.0.into(),
            reserved: [0; 8],
            histories: [none; MAX_HISTORIES],
        };
        for (row, h) in raw.histories.iter_mut().zip(&self.histories) {
            *row = RawHistory { name: h.name.0.into(), end: h.end.0.into() };
        }
        let mut out = [0; BYTES];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> Result<Lineage, FormatError> {
        let bad = |field, found| FormatError::Value { what: WHAT, field, found };
        let raw = Raw::read_from_bytes(bytes).map_err(|_| bad("lineage", 0))?;
        if raw.opened.get() == 0 {
            return Err(bad("open", 0));
        }
        if raw.reserved != [0; 8] {
            return Err(bad("reserved bytes of the lineage", 1));
        }
        let ends = raw.histories.iter().map(|h| h.end.get());
        let count = ends.clone().take_while(|&end| end > 0).count();
        let falls = ends.clone().zip(ends.clone().skip(1)).take(count).all(|(a, b)| a > b);
        let rest = &raw.histories[count..];
        if !falls || rest.iter().any(|h| h.as_bytes().iter().any(|&b| b != 0)) {
            return Err(bad("histories", count as u64));
        }
        let history =
            |h: &RawHistory| History { name: OpenId(h.name.get()), end: Generation(h.end.get()) };
        Ok(Lineage {
            opened: OpenId(raw.opened.get()),
            opened_before: OpenId(raw.opened_before.get()),
            cache_opened: OpenId(raw.cache_opened.get()),
            settled: Generation(raw.settled.get()),
            histories: raw.histories[..count].iter().map(history).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(histories: usize) -> Lineage {
        let history = |n| History { name: OpenId(n ^ 0xABCD), end: Generation(1000 - n) };
        Lineage {
            opened: OpenId(u64::MAX),
            opened_before: OpenId(4),
            cache_opened: OpenId(0),
            settled: Generation(999),
            histories: (0..histories as u64).map(history).collect(),
        }
    }

    #[test]
    fn round_trip_of_none_to_most() {
        for n in [0, 1, MAX_HISTORIES - 1, MAX_HISTORIES] {
            assert_eq!(Lineage::decode(&sample(n).encode()), Ok(sample(n)), "{n}");
        }
    }

    #[test]
    fn histories_that_do_not_fall_are_refused() {
        let mut wrong = sample(3);
        wrong.histories.swap(0, 2);
        assert!(Lineage::decode(&wrong.encode()).is_err());
        let mut hole = sample(3).encode();
        hole[32 + 24..32 + 32].fill(0);
        assert!(Lineage::decode(&hole).is_err());
        assert!(Lineage::decode(&[0; BYTES]).is_err());
    }
}
