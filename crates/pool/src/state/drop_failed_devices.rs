//! Devices that fail are dropped from use.
//!
//! A device is dropped if a write to it fails after all tries (`transfer/write_copies.rs`,
//! `transfer/heal.rs`), if a flush or a superblock write fails (`commit/superblocks.rs`), or if the
//! user takes it out of use (`moves/reattach.rs`). The next commit records that in the superblocks
//! of the others. Reads that fail drop no device; it may sit out (`devices/sources.rs`).
//!
//! The pool goes on without a device if every block group has another live copy. While the pool
//! serves:
//!
//! | event | action of the pool |
//! | --- | --- |
//! | a read fails or is wrong | another copy is read, the bad one is written again, and both are counted (`transfer/heal.rs`) |
//! | a write fails, also when tried again | the device is dropped, or the request fails if the pool needs the device |
//! | a file system under a device is full | the write fails with ENOSPC, or a bad block stays bad; nothing is dropped, as space may come back |
//! | a flush or a superblock write fails, for want of space too | the device is dropped, or the standing of the pool ends (`commit/superblocks.rs`) |
//! | several devices fail one flush | all of them are dropped together, or none is |
//! | a device shows a superblock of another pool or device | the device is dropped, or the standing ends (`transfer/writer_watch.rs`) |
//! | another process writes to a device | the standing ends, and the cache is out of use |
//! | a bitmap of a block group cannot be read | nothing is taken from that group; a commit that has to change the bitmap fails (`space/bitmaps.rs`) |
//! | a node of a checksum tree is lost | writes go to other groups for a while; reads below the node fail (`transfer/load.rs`) |
//! | a node of a mapping tree is lost | reads and direct writes below the node fail; a pass leaves the blocks in the cache |
//!
//! `open/judge.rs` says what an open does with the devices that it finds.

use std::collections::BTreeSet;

use super::State;

impl State {
    /// Takes these devices out of use, which have failed, if every group goes on without all of
    /// them; false, and nothing is changed, if the pool needs one of them.
    pub fn fail_devices(&mut self, rows: &[usize]) -> bool {
        self.take_out_of_use(rows, |path| {
            tracing::error!(
                device = %path,
                "device dropped from the pool: the pool goes on without it, with less redundancy"
            );
        })
    }

    /// The same for a device that the user takes out of use.
    pub fn put_offline(&mut self, row: usize) -> bool {
        self.take_out_of_use(&[row], |path| {
            tracing::info!(
                device = %path,
                "device taken out of use by command: the pool goes on without it, with less \
                 redundancy, until forebay device online"
            );
        })
    }

    fn take_out_of_use(&mut self, rows: &[usize], tell: impl Fn(&str)) -> bool {
        let failing: BTreeSet<usize> =
            rows.iter().copied().filter(|&row| self.devices.is_live(row)).collect();
        if failing.is_empty() {
            return true;
        }
        let any_other = self.devices.live_rows().iter().any(|row| !failing.contains(row));
        if !any_other || !self.space.groups().goes_on_without(&self.devices, &failing) {
            return false;
        }
        failing.iter().for_each(|&row| tell(self.devices.path(row)));
        let sequence = self.txns.sequence() + 1;
        // A device lacks nothing of what came after the last change.
        let has = self.txns.everyone_has().min(self.histories.durable());
        self.devices.drop_from_use(failing, sequence, has);
        self.note_scrub_lacks();
        self.note_in_superblock();
        true
    }
}
