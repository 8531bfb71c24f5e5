//! Chunks that are behind: their device was away while something was written to their group.
//!
//! A chunk lacks nothing if the bitmaps of its group have not changed since: a block is written
//! once between its allocation and its release, and both are in the bitmap. So only chunks of
//! groups with a newer bitmap page are marked, and only what newer nodes refer to is copied to
//! them.

use base::{Generation, GroupId};
use format::page::Chunk;

use super::Groups;
use crate::devices::Devices;

/// Groups that are looked at in a step, to mark their chunks. Few, as for searches.
const MARKS: usize = 32;

impl Groups {
    /// Marks the chunks on this device as behind whose groups have changed since this generation:
    /// of a bounded number of groups, from this number on. Returns where to go on; `None`: all were
    /// looked at. The device gets all that is written, so groups that change between two steps need
    /// not be looked at again.
    pub fn mark_behind(&mut self, row: usize, since: Generation, from: GroupId) -> Option<GroupId> {
        if from == GroupId(0) {
            // Chunks that are marked from now on are summed by this generation: few are marked
            // already.
            self.lacked_bytes(row, since);
        }
        let mark = |chunks: &mut [Chunk]| {
            let on = chunks.iter_mut().filter(|c| usize::from(c.device) == row);
            on.map(|c| c.behind = true).count()
        };
        let all = (0..).map(GroupId).zip(&mut self.records).skip(from.0 as usize);
        for (id, record) in all.take(MARKS) {
            if record.bitmap_generations.iter().all(|&g| g <= since) {
                continue;
            }
            let now = self.sets.change(record, |record| mark(&mut record.chunks));
            let before = self.before.get_mut(&id).map_or(0, |(_, chunks)| mark(chunks));
            if now + before > 0 {
                self.changed.insert(id);
            }
        }
        let next = GroupId(from.0 + MARKS as u32);
        self.contains(next).then_some(next)
    }

    /// The next group, from this number on, with chunks that are behind and on devices in use; and
    /// these chunks.
    pub fn next_behind(&self, from: GroupId, devices: &Devices) -> Option<(GroupId, Vec<Chunk>)> {
        let next = |row: usize| self.sets.behind(row).range(from..).next().copied();
        let live = (0..devices.count()).filter(|&row| devices.is_live(row));
        let id = live.filter_map(next).min()?;
        let is_it = |c: &&Chunk| c.behind && devices.is_live(c.device.into());
        Some((id, self.chunks(id).iter().filter(is_it).copied().collect()))
    }

    /// Bytes that the chunks on this device lack at most: what is in use of all parts of their
    /// groups that have changed since this generation.
    pub fn lacked_bytes(&mut self, row: usize, since: Generation) -> u64 {
        let records = &self.records;
        let lacked = self.sets.lacked(row, since, |id| &records[id.0 as usize]);
        lacked * base::BLOCK_U64
    }

    /// Records that these chunks of a group are not behind any more. What they lacked must be
    /// durable.
    pub fn caught_up(&mut self, id: GroupId, chunks: &[Chunk]) {
        self.change(id, |record| {
            for c in &mut record.chunks {
                c.behind &= !chunks.iter().any(|other| other.is_at(c));
            }
        });
        self.changed.insert(id);
    }
}
