//! The blocks in use that a scrub has passed, and those that it has before it.

use base::{BLOCK_U64, GroupId};

use super::Space;

impl Space {
    /// A scrub has passed the groups before this one, and no others.
    pub fn pass_to(&mut self, to: GroupId) {
        let groups = &self.groups;
        let to = GroupId(to.0.min(groups.len() as u32));
        self.sets.pass_to(to, |id| &groups[id.0 as usize].record);
    }

    /// Bytes in use of all copies on these devices, as of the last commit, that a scrub has before
    /// it which has passed the blocks before `block` of group `id` too. Groups are not gone over.
    pub fn unpassed_bytes(&self, id: GroupId, block: u32, counts: impl Fn(usize) -> bool) -> u64 {
        let rows = self.sets.rows().filter(|&row| counts(row));
        let left: u64 = rows.map(|row| self.sets.used_on(row) - self.sets.passed_on(row)).sum();
        let chunks = self.chunks(id).iter().filter(|c| counts(c.device.into())).count() as u64;
        let passed = if chunks > 0 { chunks * self.used_before(id, block) } else { 0 };
        left.saturating_sub(passed) * BLOCK_U64
    }

    /// Blocks of a group in use before this one: by its bitmap; about, if that is not in memory.
    fn used_before(&self, id: GroupId, block: u32) -> u64 {
        let group = self.group(id);
        let Some(maps) = &group.maps else {
            let all = u64::from(self.geometry.group_blocks);
            return u64::from(group.record.used) * u64::from(block) / all;
        };
        let (words, rest) = (block as usize / 64, block % 64);
        let words = maps.durable.words().iter().take(words + 1).enumerate().map(|(i, word)| {
            let mask = if i < words { u64::MAX } else { (1 << rest) - 1 };
            u64::from((word & mask).count_ones())
        });
        words.sum()
    }
}
