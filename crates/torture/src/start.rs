//! Faults of starts: data that a start reads cannot be read, for some tries, or until the boot
//! ends.
//!
//! A start may refuse then, and the next one has all. It must not take what it can read for all
//! that there is. Of what stands in two places one may be lost, and the start is not refused over
//! that: a superblock of the cache, a page of its bucket table, an entry of its journal.

use base::BLOCK_U64;
use format::cache::superblock::{CacheSuperblock, SLOTS as CACHE_SLOTS};
use format::cache::watermark::{WATERMARK_SLOTS, Watermark};
use format::superblock::{SLOT_COPIES, SLOTS, Superblock};
use rt::FileId;
use sim::Fault;

use crate::faults::Devices;

/// Bytes of a device.
type DeviceRange = (u64, u64);

impl Devices {
    /// Makes some of what a start reads unreadable for the next start.
    pub fn spoil_start(&self) {
        let env = &self.env;
        env.spared.set(false);
        if !env.settings.failures.start || env.one_in(4) {
            return;
        }
        let cache =
            self.cache().map(|c| c.file).filter(|_| env.settings.cache.is_some() && !env.one_in(4));
        let ranges = match (cache, env.below(5)) {
            (Some(cache), 0) => self.superblocks_of_cache(cache),
            (Some(cache), 1) => self.marks_of_cache(cache),
            (Some(cache), 2) => self.page_of_cache(cache),
            (Some(cache), _) => self.entries_of_cache(cache),
            (None, _) => self.superblocks_of_pool(),
        };
        let times = [1, 3, 8, u32::MAX, u32::MAX][env.below(5) as usize];
        for (file, (offset, len)) in &ranges {
            env.note(format!("{len} bytes at {offset} of {file:?} cannot be read {times} times"));
            env.world.inject(*file, Fault::FailReads { offset: *offset, len: *len, times });
            self.failed.borrow_mut().push(*file);
        }
        if !ranges.is_empty() {
            env.count("starts that cannot read what they need", 1);
            env.count(
                "starts that can do without what they cannot read",
                u64::from(env.spared.get()),
            );
            env.device_failed.set(true);
            env.model.borrow_mut().excuse_lag();
        }
    }

    /// The newest superblocks of the pool: on one device, or on all.
    fn superblocks_of_pool(&self) -> Vec<(FileId, DeviceRange)> {
        let env = &self.env;
        let newest = |file: FileId| {
            let slots = (0..SLOTS).map(Superblock::offset_of);
            let whole =
                |at: u64| Superblock::decode(&env.world.contents(file, at, base::BLOCK)).ok();
            slots
                .filter_map(|at| Some((at, whole(at)?)))
                .max_by_key(|(_, sb)| sb.sequence)
                .map(|(at, _)| at)
        };
        let only = env.one_in(3).then(|| env.below(self.files.len() as u64) as usize);
        let files = self
            .files
            .iter()
            .enumerate()
            .filter(|(i, _)| only.is_none_or(|d| d == *i))
            .map(|(_, f)| f.file);
        let copies = SLOT_COPIES as u64 * BLOCK_U64;
        files.filter_map(|file| Some((file, (newest(file)?, copies)))).collect()
    }

    /// One or two of the newest superblocks of the cache.
    fn superblocks_of_cache(&self, file: FileId) -> Vec<(FileId, DeviceRange)> {
        let newest = 1 + self.env.below(2) as usize;
        self.env.spared.set(newest == 1);
        let found = self.cache_superblocks(file);
        found.into_iter().rev().take(newest).map(|(at, _)| (file, (at, BLOCK_U64))).collect()
    }

    /// Returns the whole superblocks of the cache with their offsets, by their sequence numbers.
    fn cache_superblocks(&self, file: FileId) -> Vec<(u64, CacheSuperblock)> {
        let slots = (0..CACHE_SLOTS).map(CacheSuperblock::offset_of);
        let whole =
            |at: u64| CacheSuperblock::decode(&self.env.world.contents(file, at, base::BLOCK)).ok();
        let mut found: Vec<_> = slots.filter_map(|at| Some((at, whole(at)?))).collect();
        found.sort_by_key(|(_, sb)| sb.sequence);
        found
    }

    /// One of the two places of a page of the bucket table.
    fn page_of_cache(&self, file: FileId) -> Vec<(FileId, DeviceRange)> {
        let Some((_, sb)) = self.cache_superblocks(file).pop() else { return Vec::new() };
        let block = sb.table_start + self.env.below(sb.journal_start - sb.table_start);
        // A crash may have come before the second place was written, and then they differ: in their
        // records, which stand between a head and a sum.
        let records = |block: u64| self.env.world.contents(file, block * BLOCK_U64 + 64, 4000);
        let other = sb.table_start + ((block - sb.table_start) ^ 1);
        self.env.spared.set(records(block) == records(other));
        vec![(file, (block * BLOCK_U64, BLOCK_U64))]
    }

    /// The blocks that say how far the journal is durable.
    fn marks_of_cache(&self, file: FileId) -> Vec<(FileId, DeviceRange)> {
        (0..WATERMARK_SLOTS).map(|slot| (file, (Watermark::offset_of(slot), BLOCK_U64))).collect()
    }

    /// The last entries of the journal, in both their places, or in one.
    fn entries_of_cache(&self, file: FileId) -> Vec<(FileId, DeviceRange)> {
        let env = &self.env;
        let Some((_, sb)) = self.cache_superblocks(file).pop() else { return Vec::new() };
        let (start, ring) =
            (sb.journal_start * BLOCK_U64, u64::from(sb.journal_blocks) * BLOCK_U64);
        let mut entries: Vec<DeviceRange> = env.world.recent_writes(file);
        entries.retain(|(at, _)| (start..start + ring).contains(at));
        let last = 1 + env.below(3) as usize;
        let places =
            [vec![0], vec![ring], vec![0, ring], vec![0, ring]][env.below(4) as usize].clone();
        env.spared.set(places.len() == 1);
        let struck = entries.iter().rev().take(last);
        struck.flat_map(|(at, len)| places.iter().map(move |by| (file, (at + by, *len)))).collect()
    }
}
