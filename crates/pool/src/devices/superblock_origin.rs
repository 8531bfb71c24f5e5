//! Whether this process alone writes to the pool's devices, as far as their superblocks tell.
//!
//! Locks keep two processes of one machine off one disk, mostly. They do not reach another machine,
//! and not every name of a disk. So superblocks are looked at while the pool is served
//! (`transfer/writer_watch.rs`): what stands there was found when the pool was opened, or this
//! process has written it. Any other superblock is another writer's.
//!
//! | superblock | whose |
//! | --- | --- |
//! | no newer than the newest that was found when the pool was opened, or found there | that of an earlier open |
//! | in a slot that could not be read then, of no later incarnation | the same |
//! | of this open, by the random name that it has drawn, and of a number that was given out | our own |
//! | of a number that was given out since, and otherwise as it was found | our own, by a sync of superblocks |
//! | of this pool and this device, otherwise | another writer's |
//! | of another pool or device | another one's, which is at this path now |

use base::OpenId;
use format::superblock::{SLOTS, Superblock};

/// The identity of a superblock among all that were ever written to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    sequence: u64,
    generation: u64,
    /// The open that wrote it.
    opened: OpenId,
}

impl Mark {
    pub fn of(sb: &Superblock) -> Mark {
        let opened = sb.lineage.opened;
        Mark { sequence: sb.sequence, generation: sb.generation, opened }
    }
}

/// Superblocks that stood on a device when the pool was opened.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct FoundSuperblocks {
    pub marks: Vec<Mark>,
    /// Slots that were not read.
    pub unread: Vec<u64>,
}

/// The pool and device that a superblock names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundIdentity {
    pub mark: Mark,
    pub pool: [u8; 16],
    pub device: [u8; 16],
}

impl FoundIdentity {
    pub fn of(sb: &Superblock) -> FoundIdentity {
        let device = sb.devices[usize::from(sb.device)].uuid;
        FoundIdentity { mark: Mark::of(sb), pool: sb.pool_uuid, device }
    }
}

/// The origin of a superblock that stands on a device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuperblockOrigin {
    /// Of this open, or of one before it.
    Known,
    /// Of another process, which has opened this pool too.
    OtherWriter,
    /// The device is not the one that it was.
    OtherDevice,
}

/// Knowledge of the superblocks on the devices of an open pool.
pub(crate) struct Writers {
    /// The newest superblock that was found.
    found: Mark,
    /// The current open.
    drawn: OpenId,
    /// The slot of this sequence number was looked at last, before it was to be written.
    may_write: u64,
    /// Another process has opened the pool too.
    other: bool,
}

impl Writers {
    /// After an open that found `newest`, and has drawn this name.
    pub fn new(newest: Mark, drawn: OpenId) -> Writers {
        Writers { found: newest, drawn, may_write: 0, other: false }
    }

    /// True if this process may have written that, and `newest` is the last number that it gave
    /// out.
    fn is_own(&self, mark: Mark, newest: u64) -> bool {
        let is_given_out = mark.sequence > self.found.sequence && mark.sequence <= newest;
        let synced = Mark { sequence: self.found.sequence, ..mark } == self.found;
        let drawn = mark.opened == self.drawn && mark.sequence <= newest;
        drawn || is_given_out && synced
    }

    /// True if it is of an open before this one: `there` is what stood on its device then.
    fn is_old(&self, mark: Mark, there: &FoundSuperblocks) -> bool {
        let is_older =
            mark.sequence <= self.found.sequence && mark.generation <= self.found.generation;
        // Of the commit that was being made, perhaps.
        let unseen = there.unread.contains(&(mark.sequence % SLOTS))
            && mark.generation >> 32 <= self.found.generation >> 32;
        is_older || unseen || there.marks.contains(&mark)
    }

    /// The origin of a superblock, on a device of the pool `pool` which is called `device`, and on
    /// which `found` was found when the pool was opened. `newest`: the last sequence number that
    /// was given out.
    pub fn judge(
        &self,
        seen: FoundIdentity,
        pool: [u8; 16],
        device: [u8; 16],
        found: &FoundSuperblocks,
        newest: u64,
    ) -> SuperblockOrigin {
        if (seen.pool, seen.device) != (pool, device) {
            SuperblockOrigin::OtherDevice
        } else if self.is_old(seen.mark, found) || self.is_own(seen.mark, newest) {
            SuperblockOrigin::Known
        } else {
            SuperblockOrigin::OtherWriter
        }
    }

    /// The slot of this superblock was looked at, which may be written now.
    pub fn note_may_write(&mut self, sequence: u64) {
        self.may_write = sequence;
    }

    /// True if the slot of this superblock was looked at.
    pub fn may_write(&self, sequence: u64) -> bool {
        self.may_write == sequence
    }

    /// Another process writes to the pool.
    pub fn note_other(&mut self) {
        self.other = true;
    }

    /// True if another process was found to write to the pool.
    pub fn has_other(&self) -> bool {
        self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ([u8; 16], [u8; 16]) = ([1; 16], [2; 16]);

    /// The open of each incarnation has this name.
    fn mark(sequence: u64, incarnation: u64, commits: u64) -> Mark {
        let opened = OpenId(100 + incarnation);
        Mark { sequence, generation: (incarnation << 32) + commits, opened }
    }

    #[test]
    fn what_neither_stood_there_nor_was_written_here_is_another_writers() {
        let newest = mark(8, 3, 5);
        let found =
            FoundSuperblocks { marks: vec![newest, mark(9, 2, 7)], unread: vec![10 % SLOTS] };
        let writers = Writers::new(newest, OpenId(105));
        let is = |mark, (pool, device), upto| {
            writers.judge(FoundIdentity { mark, pool, device }, HERE.0, HERE.1, &found, upto)
        };
        for (mark, upto, whose) in [
            // Superblocks that were found, or are older.
            (newest, 8, SuperblockOrigin::Known),
            (mark(5, 3, 2), 20, SuperblockOrigin::Known),
            (mark(9, 2, 7), 8, SuperblockOrigin::Known),
            // A superblock that may have stood in the slot that was not read.
            (mark(10, 3, 6), 8, SuperblockOrigin::Known),
            (mark(10, 4, 1), 8, SuperblockOrigin::OtherWriter),
            // Our own; another one that began from the same superblock counts alike.
            (mark(9, 5, 1), 9, SuperblockOrigin::Known),
            (Mark { opened: OpenId(7), ..mark(9, 5, 1) }, 9, SuperblockOrigin::OtherWriter),
            // By a sync of superblocks, and not before we have written it.
            (Mark { sequence: 9, ..newest }, 12, SuperblockOrigin::Known),
            (Mark { sequence: 13, ..newest }, 12, SuperblockOrigin::OtherWriter),
            // The process before, which is alive.
            (mark(9, 3, 6), 12, SuperblockOrigin::OtherWriter),
            // A process that has opened the pool before us, or after us.
            (mark(11, 4, 1), 12, SuperblockOrigin::OtherWriter),
            (mark(13, 6, 1), 12, SuperblockOrigin::OtherWriter),
            (mark(11, 6, 1), 12, SuperblockOrigin::OtherWriter),
        ] {
            assert_eq!(is(mark, HERE, upto), whose, "{mark:?}, up to {upto}");
        }
        assert_eq!(is(newest, (HERE.0, [3; 16]), 8), SuperblockOrigin::OtherDevice);
        assert_eq!(is(newest, ([3; 16], HERE.1), 8), SuperblockOrigin::OtherDevice);
    }
}
