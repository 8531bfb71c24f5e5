//! The superblock slots of a device: which superblock is the newest on it, and whether there was
//! none after that.
//!
//! Going back by one commit is right only if the one after it was never complete: what it freed may
//! be in use otherwise. Superblocks are written in turn, so the one after `q` is in one slot and in
//! no other. The table says what follows from the two copies in that slot, which one request
//! writes:
//!
//! | copies of that slot | the superblock after `q` |
//! | --- | --- |
//! | one of them is of before | was never complete: it would be in both |
//! | neither is any superblock, as its crc32c does not match | was being written when power failed: never complete. (Two blocks that rotted look the same; that is told.) |
//! | one cannot be read, and the other is no superblock | may have been complete. Unreadable is not absent |
//!
//! Other devices tell what one device cannot: a commit is complete when every device in use has its
//! superblock.

use base::{BLOCK, ErrorKind, Result, StorageError};
use format::FormatError;
use format::superblock::{SLOT_COPIES, SLOTS, Superblock};
use queue::Class;
use rt::Rt;

use super::disk::Disk;
use super::superblock_origin::{FoundSuperblocks, Mark};

/// The most reads of a copy by itself, after a read of its slot has failed.
const READS: u32 = 3;

/// A copy in a slot.
#[derive(Clone, Debug)]
pub enum Copy {
    /// A superblock that is whole.
    Superblock(Box<Superblock>),
    /// Zeros: no superblock was written there.
    Empty,
    /// Something that does not begin as a superblock does.
    Foreign,
    /// A superblock that is damaged, torn, or another slot's.
    Damaged(String),
    /// The device did not give it, however often it was asked.
    Unreadable(String),
}

/// The state of the superblock after a certain one, as far as it is known.
#[derive(PartialEq, Debug)]
pub(crate) enum SuccessorState {
    /// The superblock was never complete.
    Never,
    /// A crash seems to have torn it.
    Torn(String),
    /// The superblock may have been complete.
    Unknown(String),
}

/// All slots of a device.
pub struct Slots([[Copy; SLOT_COPIES]; SLOTS as usize]);

impl Slots {
    /// Reads them. Fails if there is a superblock of a newer format; what cannot be read is no
    /// failure.
    pub async fn read(rt: &Rt, disk: &Disk, path: &str) -> Result<Slots> {
        let mut slots = Vec::with_capacity(SLOTS as usize);
        for slot in 0..SLOTS {
            let at = Superblock::offset_of(slot);
            let [first, second] =
                match disk.read(Class::Commit, at, rt.bufs().take(SLOT_COPIES * BLOCK)).await {
                    (Ok(()), both) => [copy(&both[..BLOCK], slot), copy(&both[BLOCK..], slot)],
                    (Err(_), _) => [
                        alone(rt, disk, at, slot).await,
                        alone(rt, disk, at + BLOCK as u64, slot).await,
                    ],
                };
            let newer =
                |e: FormatError| StorageError::new(ErrorKind::Newer, format!("{path}: {e}"));
            slots.push([first.map_err(newer)?, second.map_err(newer)?]);
        }
        match slots.try_into() {
            Ok(slots) => Ok(Slots(slots)),
            Err(_) => unreachable!("all slots were read"),
        }
    }

    /// Superblocks of the device, all of them.
    fn superblocks(&self) -> impl Iterator<Item = &Superblock> {
        let all = self.0.iter().flatten();
        all.filter_map(|c| if let Copy::Superblock(sb) = c { Some(&**sb) } else { None })
    }

    /// The newest superblock of the device.
    pub fn newest(&self) -> Option<&Superblock> {
        self.superblocks().max_by_key(|sb| sb.sequence)
    }

    /// The superblocks on the device, and the slots that could not be read.
    pub(crate) fn found(&self) -> FoundSuperblocks {
        let is_unread = |copy: &Copy| matches!(copy, Copy::Unreadable(_));
        let unread = self.copies().filter(|(_, copies)| copies.iter().any(is_unread));
        FoundSuperblocks {
            marks: self.superblocks().map(Mark::of).collect(),
            unread: unread.map(|(slot, _)| slot as u64).collect(),
        }
    }

    /// The number of each slot, and its copies.
    pub fn copies(&self) -> impl Iterator<Item = (usize, &[Copy; SLOT_COPIES])> {
        self.0.iter().enumerate()
    }

    /// Something that is or may be a superblock, and cannot be used.
    pub fn trouble(&self) -> Option<String> {
        let bad = |(slot, copies): (usize, &[Copy; SLOT_COPIES])| {
            let why = copies.iter().find_map(|c| match c {
                Copy::Damaged(why) | Copy::Unreadable(why) => Some(why),
                _ => None,
            });
            why.map(|why| format!("superblock slot {slot}: {why}"))
        };
        self.copies().find_map(bad)
    }

    /// The state of the superblock after the one of `sequence`, which is the newest of all devices.
    pub(crate) fn after(&self, sequence: u64) -> SuccessorState {
        let slot = (sequence + 1) % SLOTS;
        let [a, b] = &self.0[slot as usize];
        let text = |why: &str| format!("slot {slot}: {why}");
        match (a, b) {
            (Copy::Superblock(_), _) | (_, Copy::Superblock(_)) => SuccessorState::Never,
            (Copy::Unreadable(why), _) | (_, Copy::Unreadable(why)) => {
                SuccessorState::Unknown(text(why))
            }
            (Copy::Damaged(why), _) | (_, Copy::Damaged(why)) => SuccessorState::Torn(text(why)),
            // The first superblocks of a pool are written to slots that were empty.
            _ if sequence < SLOTS => SuccessorState::Never,
            _ => SuccessorState::Torn(text("no superblock")),
        }
    }
}

/// Reads one copy by itself, again and again.
async fn alone(rt: &Rt, disk: &Disk, at: u64, slot: u64) -> std::result::Result<Copy, FormatError> {
    let mut why = String::new();
    for _ in 0..READS {
        match disk.read(Class::Commit, at, rt.bufs().take(BLOCK)).await {
            (Ok(()), block) => return copy(&block, slot),
            (Err(e), _) => why = e.to_string(),
        }
    }
    Ok(Copy::Unreadable(why))
}

/// Decodes a block of `slot`; fails if the block is of a newer format.
fn copy(block: &[u8], slot: u64) -> std::result::Result<Copy, FormatError> {
    Ok(match Superblock::decode(block) {
        Ok(sb) if sb.sequence % SLOTS != slot => {
            Copy::Damaged(format!("sequence {}: one of another slot", sb.sequence))
        }
        Ok(sb) => Copy::Superblock(Box::new(sb)),
        Err(e @ (FormatError::Version { .. } | FormatError::Features { .. })) => return Err(e),
        Err(FormatError::Magic(_)) if block.iter().all(|&b| b == 0) => Copy::Empty,
        Err(FormatError::Magic(_)) => Copy::Foreign,
        Err(e) => Copy::Damaged(e.to_string()),
    })
}
