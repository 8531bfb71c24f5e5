//! The superblock of a cache device. The device has [`SLOTS`] slots for it, which are written in
//! turn.
//!
//! Layout of the block (little-endian; offsets in bytes, asserted below):
//!
//! ```text
//!    0  magic "FBCACHE1"        8  version, shard
//!   16  features: compatible, read-only compatible, incompatible
//!   40  cache uuid             56  pool uuid                 72  sequence, generation
//!   88  incarnation, state     96  bucket blocks, buckets, journal blocks, replay position
//!  112  table start           120  journal start            128  replay sequence
//!  136  epoch, cut            144  root: address, generation, crc32c, height
//!  168  digest of the bucket table (0: not recorded)
//!  176  staged blocks of the open epoch, of the sealed epochs
//!  192  the oldest epoch that is counted as dirty (0: not recorded)
//!  196  the journal's entry that the pool names u64 (0: not recorded)
//!  204  the last epoch that is published u32 (0: not recorded)
//!  208  the open of the pool in which the cache was opened last u64 (0: never, or not recorded)
//!  216  the open that the pool named for it when that was written u64
//! 4064  slots of table pages that stand in spare blocks, 7 x u32 (0: none)
//! 4092  crc32c of all bytes before it
//! ```
//!
//! A superblock may be torn, lost or old. The crc32c detects a torn one, and the highest sequence
//! number marks the newest.

use base::{BLOCK, EntrySeq, Epoch, Generation, OpenId, PoolAddr};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::bucket::RECORDS_PER_PAGE;
use super::moved::{MovedPages, SPARES};
use super::pool_seen::{PoolOpens, PoolSeen};
use crate::FormatError;
use crate::node::{NodePtr, RootPtr};
use crate::seal::{check_seal, seal};

/// Superblock slots on a cache device.
pub const SLOTS: u64 = 4;
/// Distance between slots, and offset of the first one, in bytes.
pub const SLOT_STEP: u64 = 16 * 1024;
/// The newest version of the format that this program reads and writes.
pub const VERSION: u32 = 1;

/// Incompatible feature: keys may name blocks of the pool's staging volumes.
pub const FEATURE_STAGED: u64 = 1;
/// Incompatible feature: keys may stand for parts of blocks.
pub const FEATURE_PARTS: u64 = 2;
/// Incompatible feature: the journal has two rings, which are copies of each other. A cache without
/// this feature is refused. It was made before the format was released, and its buckets begin
/// elsewhere.
pub const FEATURE_TWO_RINGS: u64 = 4;
/// Incompatible feature: the superblock says which open of the pool the cache is of. An older
/// version would go on without that.
pub const FEATURE_OPENS: u64 = 8;
/// Incompatible feature: nodes of the index may have second copies, and pages of the bucket table
/// may stand in spare blocks.
pub const FEATURE_NODES_TWICE: u64 = 16;
/// The names of the incompatible features that this program knows.
pub const FEATURES: &[&str] = &["staged", "parts", "two-rings", "opens", "nodes-twice"];
const KNOWN: u64 =
    FEATURE_STAGED | FEATURE_PARTS | FEATURE_TWO_RINGS | FEATURE_OPENS | FEATURE_NODES_TWICE;

const WHAT: &str = "cache superblock";
const MAGIC: [u8; 8] = *b"FBCACHE1";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    shard: U32,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    uuid: [u8; 16],
    pool_uuid: [u8; 16],
    sequence: U64,
    generation: U64,
    incarnation: U32,
    state: U32,
    bucket_blocks: U32,
    bucket_count: U32,
    journal_blocks: U32,
    replay_position: U32,
    table_start: U64,
    journal_start: U64,
    replay_sequence: U64,
    epoch: U32,
    cut: U32,
    root_addr: U64,
    root_generation: U64,
    root_crc: U32,
    root_height: U32,
    table_digest: U64,
    staged_open: U64,
    staged_cut: U64,
    counted_from: U32,
    pool_entry: U64,
    published: U32,
    opened: U64,
    named: U64,
    reserved: [u8; 3840],
    moved: [U32; SPARES],
    crc: U32,
}

const _: () = {
    assert!(size_of::<Raw>() == BLOCK);
    assert!(std::mem::offset_of!(Raw, uuid) == 40);
    assert!(std::mem::offset_of!(Raw, sequence) == 72);
    assert!(std::mem::offset_of!(Raw, bucket_blocks) == 96);
    assert!(std::mem::offset_of!(Raw, table_start) == 112);
    assert!(std::mem::offset_of!(Raw, epoch) == 136);
    assert!(std::mem::offset_of!(Raw, root_addr) == 144);
    assert!(std::mem::offset_of!(Raw, table_digest) == 168);
    assert!(std::mem::offset_of!(Raw, staged_open) == 176);
    assert!(std::mem::offset_of!(Raw, counted_from) == 192);
    assert!(std::mem::offset_of!(Raw, pool_entry) == 196);
    assert!(std::mem::offset_of!(Raw, opened) == 208);
    assert!(std::mem::offset_of!(Raw, moved) == 4064);
    assert!(std::mem::offset_of!(Raw, crc) == crate::seal::SEAL_AT);
};

/// Whether the cache still belongs to its pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheState {
    /// The cache may hold data that the pool does not have.
    Attached,
    /// The pool does not use the cache any more, and nothing in it counts.
    Detached,
}

/// A verified superblock of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSuperblock {
    /// The cache's uuid.
    pub uuid: [u8; 16],
    /// The uuid of the pool that the cache belongs to.
    pub pool_uuid: [u8; 16],
    /// Grows by one with every superblock written.
    pub sequence: u64,
    /// Counts the opens of this cache.
    pub incarnation: u32,
    /// The generation of the checkpoint.
    pub generation: Generation,
    /// The root of the index as of the checkpoint.
    pub root: Option<RootPtr>,
    /// Blocks in a bucket.
    pub bucket_blocks: u32,
    /// Number of buckets.
    pub bucket_count: u32,
    /// First block of the bucket table, on the device.
    pub table_start: u64,
    /// First block of the journal's first ring, on the device.
    pub journal_start: u64,
    /// Number of blocks in each ring of the journal.
    pub journal_blocks: u32,
    /// The block of a ring at which replay begins, counted from its start.
    pub replay_position: u32,
    /// The sequence number of the entry with which replay begins.
    pub replay_sequence: EntrySeq,
    /// The epoch that was open when the checkpoint froze the index.
    pub epoch: Epoch,
    /// The newest epoch that was sealed by a cut and not published then; 0: none.
    pub cut: Epoch,
    /// The sum of [`crate::page::page_digest`] over the pages of the bucket table, modulo 2^64.
    /// Superblocks from before this field existed have 0.
    pub table_digest: u64,
    /// Number of staged blocks that are not published: those of the open epoch, and those of the
    /// sealed epochs.
    pub staged: (u64, u64),
    /// The oldest epoch whose blocks are counted as dirty, here and in the bucket table.
    /// Superblocks from before this field existed have 0.
    pub counted_from: Epoch,
    /// The state of the pool that the cache had seen at the checkpoint.
    pub pool_seen: PoolSeen,
    /// The open of its pool that it is of.
    pub opens: PoolOpens,
    /// Pages of the bucket table that stand in spare blocks.
    pub moved: MovedPages,
    /// Whether the cache is attached.
    pub state: CacheState,
    /// The shard that the cache belongs to; always 0 in this version.
    pub shard: u32,
}

impl CacheSuperblock {
    /// The offset in bytes, from the start of the device, of the slot for `sequence`.
    pub fn offset_of(sequence: u64) -> u64 {
        SLOT_STEP * (1 + sequence % SLOTS)
    }

    /// Writes the superblock into `out`, which has [`BLOCK`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let root = self.root.unwrap_or(RootPtr { ptr: NodePtr::default(), height: 0 });
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            shard: self.shard.into(),
            compat: 0.into(),
            ro_compat: 0.into(),
            incompat: KNOWN.into(),
            uuid: self.uuid,
            pool_uuid: self.pool_uuid,
            sequence: self.sequence.into(),
            generation: self.generation.0.into(),
            incarnation: self.incarnation.into(),
            state: match self.state {
                CacheState::Attached => 1.into(),
                CacheState::Detached => 2.into(),
            },
            bucket_blocks: self.bucket_blocks.into(),
            bucket_count: self.bucket_count.into(),
            journal_blocks: self.journal_blocks.into(),
            replay_position: self.replay_position.into(),
            table_start: self.table_start.into(),
            journal_start: self.journal_start.into(),
            replay_sequence: self.replay_sequence.0.into(),
            epoch: self.epoch.0.into(),
            cut: self.cut.0.into(),
            root_addr: root.ptr.addr.0.into(),
            root_generation: root.ptr.generation.0.into(),
            root_crc: root.ptr.crc.into(),
            root_height: u32::from(root.height).into(),
            table_digest: self.table_digest.into(),
            staged_open: self.staged.0.into(),
            staged_cut: self.staged.1.into(),
            counted_from: self.counted_from.0.into(),
            pool_entry: self.pool_seen.entry.0.into(),
            published: self.pool_seen.published.0.into(),
            opened: self.opens.opened.0.into(),
            named: self.opens.named.0.into(),
            reserved: [0; 3840],
            moved: self.moved.0.map(U32::from),
            crc: 0.into(),
        };
        out.copy_from_slice(raw.as_bytes());
        seal(out);
    }

    /// Decodes and verifies a superblock.
    pub fn decode(bytes: &[u8]) -> Result<CacheSuperblock, FormatError> {
        let raw = Raw::read_from_bytes(bytes).map_err(|_| FormatError::Length {
            what: WHAT,
            want: BLOCK,
            got: bytes.len(),
        })?;
        if raw.magic != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        check_seal(WHAT, bytes)?;
        if raw.version.get() > VERSION || raw.version.get() == 0 {
            return Err(FormatError::Version {
                what: WHAT,
                found: raw.version.get(),
                known: VERSION,
            });
        }
        let unknown = raw.incompat.get() & !KNOWN | raw.ro_compat.get();
        if unknown != 0 {
            return Err(FormatError::Features { what: WHAT, bits: unknown });
        }
        if raw.incompat.get() & FEATURE_TWO_RINGS == 0 {
            return Err(FormatError::Older(WHAT));
        }
        let value = |field, found: u64, ok: bool| {
            if ok { Ok(()) } else { Err(FormatError::Value { what: WHAT, field, found }) }
        };
        let blocks = raw.bucket_blocks.get();
        value(
            "bucket blocks",
            blocks.into(),
            blocks.is_power_of_two() && (16..=2048).contains(&blocks),
        )?;
        let buckets = raw.bucket_count.get();
        value("buckets", buckets.into(), (1..u32::MAX).contains(&buckets))?;
        let journal = raw.journal_blocks.get();
        value("journal blocks", journal.into(), (256..=1 << 18).contains(&journal))?;
        let position = raw.replay_position.get();
        value("replay position", position.into(), position < journal)?;
        let table = raw.table_start.get();
        value(
            "table start",
            table,
            table >= SLOT_STEP * (1 + SLOTS) / BLOCK as u64 && table < 1 << 20,
        )?;
        value(
            "journal start",
            raw.journal_start.get(),
            raw.journal_start.get() > table && raw.journal_start.get() < 1 << 40,
        )?;
        value("replay sequence", raw.replay_sequence.get(), raw.replay_sequence.get() > 0)?;
        value("epoch", raw.epoch.get().into(), raw.epoch.get() > raw.cut.get())?;
        value(
            "counted from",
            raw.counted_from.get().into(),
            raw.counted_from.get() <= raw.epoch.get(),
        )?;
        value("shard", raw.shard.get().into(), raw.shard.get() == 0)?;
        let tells = raw.incompat.get() & FEATURE_OPENS != 0;
        value("open", raw.opened.get(), tells || raw.opened.get() == 0)?;
        value("named open", raw.named.get(), tells || raw.named.get() == 0)?;
        value("reserved bytes", 1, raw.reserved.iter().all(|&b| b == 0))?;
        let moved = MovedPages(raw.moved.map(U32::get));
        let pages = buckets.div_ceil(RECORDS_PER_PAGE as u32);
        value("moved pages", 1, moved.is_sound(pages))?;
        let height = raw.root_height.get();
        value("root height", height.into(), height as usize <= crate::node::MAX_HEIGHT)?;
        let ptr = NodePtr {
            addr: PoolAddr(raw.root_addr.get()),
            generation: Generation(raw.root_generation.get()),
            crc: raw.root_crc.get(),
        };
        let state = match raw.state.get() {
            1 => CacheState::Attached,
            2 => CacheState::Detached,
            other => {
                return Err(FormatError::Value { what: WHAT, field: "state", found: other.into() });
            }
        };
        Ok(CacheSuperblock {
            uuid: raw.uuid,
            pool_uuid: raw.pool_uuid,
            sequence: raw.sequence.get(),
            incarnation: raw.incarnation.get(),
            generation: Generation(raw.generation.get()),
            root: (height > 0).then_some(RootPtr { ptr, height: height as u8 }),
            bucket_blocks: blocks,
            bucket_count: buckets,
            table_start: table,
            journal_start: raw.journal_start.get(),
            journal_blocks: journal,
            replay_position: position,
            replay_sequence: EntrySeq(raw.replay_sequence.get()),
            epoch: Epoch(raw.epoch.get()),
            cut: Epoch(raw.cut.get()),
            table_digest: raw.table_digest.get(),
            staged: (raw.staged_open.get(), raw.staged_cut.get()),
            counted_from: Epoch(raw.counted_from.get()),
            pool_seen: PoolSeen {
                entry: EntrySeq(raw.pool_entry.get()),
                published: Epoch(raw.published.get()),
            },
            opens: PoolOpens { opened: OpenId(raw.opened.get()), named: OpenId(raw.named.get()) },
            moved,
            state,
            shard: raw.shard.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> CacheSuperblock {
        CacheSuperblock {
            uuid: [1; 16],
            pool_uuid: [2; 16],
            sequence: 7,
            incarnation: 3,
            generation: Generation(3 << 32 | 9),
            root: Some(RootPtr {
                ptr: NodePtr { addr: PoolAddr(5), generation: Generation(8), crc: 9 },
                height: 2,
            }),
            bucket_blocks: 128,
            bucket_count: 4000,
            table_start: 32,
            journal_start: 64,
            journal_blocks: 8192,
            replay_position: 100,
            replay_sequence: EntrySeq(12),
            epoch: Epoch(5),
            cut: Epoch(4),
            table_digest: 77,
            staged: (6, 5),
            counted_from: Epoch(3),
            pool_seen: PoolSeen { entry: EntrySeq(21), published: base::Epoch(21) },
            opens: PoolOpens { opened: OpenId(1 << 60), named: OpenId(5) },
            moved: MovedPages([0, 31, 0, 0, 0, 0, 32]),
            state: CacheState::Attached,
            shard: 0,
        }
    }

    #[test]
    fn round_trip_and_every_flipped_bit() {
        let mut block = vec![0; BLOCK];
        for sb in [
            sample(),
            CacheSuperblock { root: None, state: CacheState::Detached, cut: Epoch(0), ..sample() },
        ] {
            sb.encode(&mut block);
            assert_eq!(CacheSuperblock::decode(&block), Ok(sb));
        }
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(CacheSuperblock::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(at in 0usize..200, byte: u8, cut in 0usize..BLOCK) {
            let mut block = vec![0; BLOCK];
            sample().encode(&mut block);
            block[at] = byte;
            seal(&mut block);
            let _ = CacheSuperblock::decode(&block);
            prop_assert!(CacheSuperblock::decode(&block[..cut]).is_err());
        }
    }
}
