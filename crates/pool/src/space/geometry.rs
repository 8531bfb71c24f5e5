//! The layout of a device: its arithmetic, and its choice at creation.
//!
//! ```text
//! 0       64 KiB, never written: room for a boot sector or a label
//! 64 KiB  superblock slots, 64 KiB apart
//! 1 MiB   tables: pages of two 4 KiB slots: volumes, block groups, bitmaps (on every device)
//! then    chunks, each as large as a block group, from the next MiB on
//! ```

use base::{BLOCK_U64, GroupId, PoolAddr};
use format::page::{BITS_PER_PAGE, GROUPS_PER_PAGE, PageKind};
use format::superblock::Superblock;

const MIB: u64 = 1 << 20;
const TABLES_AT: u64 = MIB;
/// Bytes of a page: two slots.
const PAGE_BYTES: u64 = 2 * BLOCK_U64;
/// Pages of the volume table of a new pool: room for 1008 volumes.
const VOLUME_PAGES: u32 = 48;

/// The arithmetic of a pool's layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Blocks in a block group.
    pub group_blocks: u32,
    /// Most block groups.
    pub group_capacity: u32,
    /// Pages of the volume table.
    pub volume_pages: u32,
}

impl Geometry {
    /// The geometry of a new pool over devices of these sizes: block groups of 16 MiB to 1 GiB by
    /// the pool's size, or of `group_bytes`; tables with room for four times the space, so that
    /// devices can be added.
    pub fn choose(device_bytes: &[u64], group_bytes: Option<u64>) -> Geometry {
        let total: u64 = device_bytes.iter().sum();
        let by_size = match total >> 30 {
            0..=3 => 16 * MIB,
            4..=63 => 64 * MIB,
            64..=1023 => 256 * MIB,
            _ => 1024 * MIB,
        };
        let bytes = group_bytes.unwrap_or(by_size);
        let groups = (total / bytes).saturating_mul(4).clamp(64, 1 << 24);
        Geometry {
            group_blocks: (bytes / BLOCK_U64) as u32,
            group_capacity: groups as u32,
            volume_pages: if group_bytes.is_some_and(|b| b < 16 * MIB) { 2 } else { VOLUME_PAGES },
        }
    }

    /// The geometry that a superblock says.
    pub fn of(sb: &Superblock) -> Geometry {
        Geometry {
            group_blocks: sb.group_blocks,
            group_capacity: sb.group_capacity,
            volume_pages: sb.volume_pages,
        }
    }

    /// Bytes of a block group or chunk.
    pub fn group_bytes(&self) -> u64 {
        u64::from(self.group_blocks) * BLOCK_U64
    }

    /// Pages of the group table.
    pub fn group_pages(&self) -> u32 {
        self.group_capacity.div_ceil(GROUPS_PER_PAGE)
    }

    /// Pages of the volume and the group table, which stand before the bitmaps.
    pub fn table_pages(&self) -> u32 {
        self.volume_pages + self.group_pages()
    }

    /// Pages of the tables and of all bitmaps.
    pub fn pages(&self) -> u64 {
        u64::from(self.table_pages())
            + u64::from(self.group_capacity) * u64::from(self.pages_per_group())
    }

    /// The table page with a group's record.
    pub fn page_of_group(&self, group: GroupId) -> u32 {
        self.volume_pages + group.0 / GROUPS_PER_PAGE
    }

    /// Bitmap pages of a group.
    pub fn pages_per_group(&self) -> u32 {
        self.group_blocks.div_ceil(BITS_PER_PAGE)
    }

    /// The number of a group's bitmap page `i`.
    pub fn bitmap_page(&self, group: GroupId, i: u32) -> u64 {
        u64::from(self.table_pages())
            + u64::from(group.0) * u64::from(self.pages_per_group())
            + u64::from(i)
    }

    /// Bits of a group's bitmap page `i`.
    pub fn bits_of_page(&self, i: u32) -> u32 {
        (self.group_blocks - i * BITS_PER_PAGE).min(BITS_PER_PAGE)
    }

    /// The kind of records that a table page holds.
    pub fn kind_of_table_page(&self, page: u32) -> PageKind {
        if page < self.volume_pages { PageKind::Volumes } else { PageKind::Groups }
    }

    /// Bytes from the start of a device to a slot (0 or 1) of a page.
    pub fn page_offset(&self, page: u64, slot: u8) -> u64 {
        TABLES_AT + page * PAGE_BYTES + u64::from(slot) * BLOCK_U64
    }

    /// Bytes from the start of a device to its first chunk.
    pub fn data_start(&self) -> u64 {
        let pages = self.pages();
        (TABLES_AT + pages * PAGE_BYTES).next_multiple_of(MIB)
    }

    /// Bytes from the start of a device to a block of a chunk.
    pub fn chunk_offset(&self, chunk: u32, block: u32) -> u64 {
        self.data_start() + u64::from(chunk) * self.group_bytes() + u64::from(block) * BLOCK_U64
    }

    /// Chunks that fit on a device of `size` bytes.
    pub fn chunks_of(&self, size: u64) -> u64 {
        size.saturating_sub(self.data_start()) / self.group_bytes()
    }

    /// The group of an address and the block inside it.
    pub fn split(&self, addr: PoolAddr) -> (GroupId, u32) {
        let blocks = u64::from(self.group_blocks);
        (GroupId((addr.0 / blocks) as u32), (addr.0 % blocks) as u32)
    }

    /// The address of a block of a group.
    pub fn join(&self, group: GroupId, block: u32) -> PoolAddr {
        PoolAddr(u64::from(group.0) * u64::from(self.group_blocks) + u64::from(block))
    }

    /// True if `addr` is inside the address space of this pool.
    pub fn contains(&self, addr: PoolAddr) -> bool {
        addr.0 / u64::from(self.group_blocks) < u64::from(self.group_capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for sizes in [vec![64 * MIB], vec![16 << 30, 16 << 30], vec![4 << 40; 12]] {
            let g = Geometry::choose(&sizes, None);
            let last = g.bitmap_page(GroupId(g.group_capacity - 1), g.pages_per_group() - 1);
            assert!(g.page_offset(last, 1) + BLOCK_U64 <= g.data_start());
            assert!(g.page_offset(0, 0) >= 5 * 64 * 1024, "behind the superblocks");
            assert!(g.chunks_of(sizes[0]) > 0, "{g:?}");
            assert_eq!(g.chunk_offset(1, 0) - g.chunk_offset(0, 0), g.group_bytes());
            let a = g.join(GroupId(3), 7);
            assert_eq!(g.split(a), (GroupId(3), 7));
            let tables = g.data_start() as f64 / sizes[0] as f64;
            assert!(tables < 0.05, "tables take {tables} of {sizes:?}");
        }
    }
}
