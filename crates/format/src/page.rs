//! Pages of the tables that are kept outside of the trees: volumes, block groups, bitmaps, and the
//! buckets of a cache.
//!
//! Every page has two slots of 4096 bytes, one after the other. A commit writes the slot that does
//! not hold the committed version. A page is sealed (see [`crate::seal`]) and names itself and its
//! slot. So a reader detects a torn write and a misdirected one, even into the other slot:
//!
//! ```text
//!    0  magic "FBPG", kind       5  slot + 1 (0: not recorded)   8  page number
//!   16  generation              24  pool uuid                   40  attempt
//!   44  reserved (zero)         56  payload (4032 bytes)      4088  reserved     4092 crc32c
//! ```
//!
//! A bitmap page counts if it has the generation that its group's record names. Of the two slots of
//! any other page, the newest one that is not above the superblock's generation counts; of one
//! generation, that of the last attempt.

use std::fmt;

use base::prng::mix64;
use base::{BLOCK, Generation, PoolAddr};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;
use crate::node::{NodePtr, RootPtr};
use crate::seal::{check_seal, seal};
use crate::superblock::{MAX_COPIES, MAX_GROUP_BLOCKS};

mod volumes;

pub use volumes::{
    CacheMode, SnapshotOrigin, VOLUMES_PER_PAGE, VolumeLimit, VolumeRecord, VolumeState,
    decode_volumes, encode_volumes,
};

/// Bytes of payload in a page.
pub const PAYLOAD: usize = 4032;
/// Bits in a bitmap page.
pub const BITS_PER_PAGE: u32 = PAYLOAD as u32 * 8;
/// Most bitmap pages of a block group.
pub const MAX_BITMAP_PAGES: usize = 9;
/// Group records in a page.
pub const GROUPS_PER_PAGE: u32 = (PAYLOAD / size_of::<RawGroup>()) as u32;

const MAGIC: [u8; 4] = *b"FBPG";
const WHAT: &str = "page";

/// The content of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageKind {
    /// Volume records.
    Volumes,
    /// Block group records.
    Groups,
    /// A part of a block group's bitmap.
    Bitmap,
    /// Records of a cache's buckets.
    Buckets,
}

impl PageKind {
    fn code(self) -> u8 {
        match self {
            PageKind::Volumes => 1,
            PageKind::Groups => 2,
            PageKind::Bitmap => 3,
            PageKind::Buckets => 4,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: u8,
    slot: u8,
    reserved_a: [u8; 2],
    page: U64,
    generation: U64,
    pool_uuid: [u8; 16],
    attempt: U32,
    reserved_b: [u8; 12],
}

const _: () = {
    assert!(size_of::<Header>() == 56);
    assert!(56 + PAYLOAD + 8 == BLOCK);
    assert!(size_of::<RawGroup>() == 160 && GROUPS_PER_PAGE == 25);
    assert!(MAX_GROUP_BLOCKS.div_ceil(BITS_PER_PAGE) as usize == MAX_BITMAP_PAGES);
};

/// The identity that a page is expected to have.
#[derive(Clone, Copy, Debug)]
pub struct PageId {
    /// The pool it belongs to.
    pub pool_uuid: [u8; 16],
    /// The kind of the page.
    pub kind: PageKind,
    /// The number of the page among all table pages of the device.
    pub page: u64,
    /// The slot that holds it, 0 or 1.
    pub slot: u8,
}

impl PageId {
    /// The same page in the given slot.
    pub fn in_slot(self, slot: u8) -> PageId {
        PageId { slot, ..self }
    }
}

/// Which version of a page it is. A commit that fails is tried again in the same generation, and
/// its table pages may say something else then: the last attempt counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct PageVersion {
    /// The transaction that wrote it.
    pub generation: Generation,
    /// Attempts of its commit before this one; 0 in pages other than those of the pool's tables.
    pub attempt: u32,
}

impl From<Generation> for PageVersion {
    fn from(generation: Generation) -> PageVersion {
        PageVersion { generation, attempt: 0 }
    }
}

impl fmt::Display for PageVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempt {
            0 => write!(f, "{}", self.generation),
            n => write!(f, "{} (attempt {})", self.generation, u64::from(n) + 1),
        }
    }
}

/// The contribution of this version of page `page` to the digest in a superblock. The digest is the
/// sum of the contributions of all pages, modulo 2^64.
pub fn page_digest(page: u32, version: impl Into<PageVersion>) -> u64 {
    let PageVersion { generation, attempt } = version.into();
    let digest = mix64(mix64(u64::from(page) + 1) ^ generation.0);
    if attempt == 0 { digest } else { mix64(digest ^ u64::from(attempt)) }
}

/// Completes a page whose payload is in `block[56..]`: writes the header before it and the seal
/// behind it.
pub fn seal_page(id: &PageId, version: impl Into<PageVersion>, block: &mut [u8]) {
    let PageVersion { generation, attempt } = version.into();
    let header = Header {
        magic: MAGIC,
        kind: id.kind.code(),
        slot: id.slot + 1,
        reserved_a: [0; 2],
        page: id.page.into(),
        generation: generation.0.into(),
        pool_uuid: id.pool_uuid,
        attempt: attempt.into(),
        reserved_b: [0; 12],
    };
    block[..56].copy_from_slice(header.as_bytes());
    block[56 + PAYLOAD..].fill(0);
    seal(block);
}

/// Verifies a page. Returns its version and its payload of [`PAYLOAD`] bytes.
pub fn open_page<'a>(id: &PageId, block: &'a [u8]) -> Result<(PageVersion, &'a [u8]), FormatError> {
    check_seal(WHAT, block)?;
    let (h, rest) = Header::read_from_prefix(block).map_err(|_| FormatError::Length {
        what: WHAT,
        want: BLOCK,
        got: block.len(),
    })?;
    if h.magic != MAGIC {
        return Err(FormatError::Magic(WHAT));
    }
    let expect = |field, found: u64, want: u64| {
        if found == want {
            Ok(())
        } else {
            Err(FormatError::Unexpected { what: WHAT, field, found, want })
        }
    };
    expect("kind", h.kind.into(), id.kind.code().into())?;
    expect("number", h.page.get(), id.page)?;
    if h.slot != 0 {
        expect("slot", h.slot.into(), u64::from(id.slot) + 1)?;
    }
    let short = |u: &[u8; 16]| u64::from_le_bytes([u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7]]);
    if h.pool_uuid != id.pool_uuid {
        expect("pool", short(&h.pool_uuid), short(&id.pool_uuid))?;
        return Err(FormatError::Value { what: WHAT, field: "pool", found: short(&h.pool_uuid) });
    }
    let version =
        PageVersion { generation: Generation(h.generation.get()), attempt: h.attempt.get() };
    Ok((version, &rest[..PAYLOAD]))
}

/// The payload part of a page's block.
pub fn payload_mut(block: &mut [u8]) -> &mut [u8] {
    &mut block[56..56 + PAYLOAD]
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRoot {
    addr: U64,
    generation: U64,
    crc: U32,
    height: u8,
    reserved: [u8; 3],
}

impl RawRoot {
    fn encode(root: Option<RootPtr>) -> RawRoot {
        let r = root.unwrap_or(RootPtr {
            ptr: NodePtr { addr: PoolAddr(0), generation: Generation(0), crc: 0 },
            height: 0,
        });
        RawRoot {
            addr: r.ptr.addr.0.into(),
            generation: r.ptr.generation.0.into(),
            crc: r.ptr.crc.into(),
            height: r.height,
            reserved: [0; 3],
        }
    }

    fn decode(&self, what: &'static str) -> Result<Option<RootPtr>, FormatError> {
        if self.height > 16 {
            return Err(FormatError::Value {
                what,
                field: "tree height",
                found: self.height.into(),
            });
        }
        let ptr = NodePtr {
            addr: PoolAddr(self.addr.get()),
            generation: Generation(self.generation.get()),
            crc: self.crc.get(),
        };
        Ok((self.height > 0).then_some(RootPtr { ptr, height: self.height }))
    }
}

/// The use of a block group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupKind {
    /// Nothing: it has no chunks.
    Free,
    /// Blocks of volumes.
    Data,
    /// Nodes of trees.
    Metadata,
}

/// A piece of one device, of the size of a block group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Chunk {
    /// Row of the device table.
    pub device: u16,
    /// Number of the chunk on that device.
    pub chunk: u32,
    /// The chunk lacks some of what was written while its device was away. It is written like the
    /// others, but is no copy that counts.
    pub behind: bool,
}

impl Chunk {
    /// A chunk that lacks nothing.
    pub fn new(device: u16, chunk: u32) -> Chunk {
        Chunk { device, chunk, behind: false }
    }

    /// True if it is the same piece of the same device.
    pub fn is_at(&self, other: &Chunk) -> bool {
        (self.device, self.chunk) == (other.device, other.chunk)
    }
}

/// Flag of a chunk: it is behind.
const BEHIND: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawChunk {
    device: U16,
    flags: U16,
    chunk: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawGroup {
    kind: u8,
    copies: u8,
    shard: U16,
    used: U32,
    chunks: [RawChunk; MAX_COPIES],
    checksums: RawRoot,
    bitmap_generations: [U64; MAX_BITMAP_PAGES],
    reserved: [u8; 32],
}

/// The record of a block group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRecord {
    /// The use of the group.
    pub kind: GroupKind,
    /// Number of allocated blocks.
    pub used: u32,
    /// The chunks that hold its copies; empty if the group is free.
    pub chunks: Vec<Chunk>,
    /// The checksum tree of the group.
    pub checksums: Option<RootPtr>,
    /// The generation of each bitmap page. 0: this part of the bitmap is all clear, and no page is
    /// read for it.
    pub bitmap_generations: [Generation; MAX_BITMAP_PAGES],
}

impl GroupRecord {
    /// The record of a free group.
    pub fn free() -> GroupRecord {
        GroupRecord {
            kind: GroupKind::Free,
            used: 0,
            chunks: Vec::new(),
            checksums: None,
            bitmap_generations: [Generation(0); MAX_BITMAP_PAGES],
        }
    }
}

/// Encodes the records of a group page into `payload`.
pub fn encode_groups(records: &[GroupRecord], payload: &mut [u8]) {
    payload.fill(0);
    for (r, out) in records.iter().zip(payload.chunks_exact_mut(size_of::<RawGroup>())) {
        let mut raw = RawGroup {
            kind: match r.kind {
                GroupKind::Free => 0,
                GroupKind::Data => 1,
                GroupKind::Metadata => 2,
            },
            copies: r.chunks.len() as u8,
            shard: 0.into(),
            used: r.used.into(),
            chunks: [RawChunk { device: 0.into(), flags: 0.into(), chunk: 0.into() }; MAX_COPIES],
            checksums: RawRoot::encode(r.checksums),
            bitmap_generations: r.bitmap_generations.map(|g| g.0.into()),
            reserved: [0; 32],
        };
        for (slot, c) in raw.chunks.iter_mut().zip(&r.chunks) {
            slot.device = c.device.into();
            slot.chunk = c.chunk.into();
            slot.flags = if c.behind { BEHIND } else { 0 }.into();
        }
        out.copy_from_slice(raw.as_bytes());
    }
}

/// Decodes the [`GROUPS_PER_PAGE`] records of a group page.
pub fn decode_groups(payload: &[u8]) -> Result<Vec<GroupRecord>, FormatError> {
    const WHAT: &str = "block group record";
    let value = |field, found: u64| FormatError::Value { what: WHAT, field, found };
    let mut out = Vec::with_capacity(GROUPS_PER_PAGE as usize);
    for bytes in payload.chunks_exact(size_of::<RawGroup>()) {
        let raw =
            RawGroup::read_from_bytes(bytes).map_err(|_| value("length", bytes.len() as u64))?;
        let kind = match raw.kind {
            0 => GroupKind::Free,
            1 => GroupKind::Data,
            2 => GroupKind::Metadata,
            other => return Err(value("kind", other.into())),
        };
        let copies = usize::from(raw.copies);
        if copies > MAX_COPIES || (kind == GroupKind::Free) != (copies == 0) {
            return Err(value("copies", copies as u64));
        }
        if raw.used.get() > MAX_GROUP_BLOCKS {
            return Err(value("used", raw.used.get().into()));
        }
        if raw.shard.get() != 0 || raw.reserved != [0; 32] {
            return Err(value("reserved bytes", 1));
        }
        if let Some(c) = raw.chunks.iter().find(|c| c.flags.get() & !BEHIND != 0) {
            return Err(value("flags of a chunk", c.flags.get().into()));
        }
        let chunks = raw.chunks[..copies].iter().map(|c| Chunk {
            device: c.device.get(),
            chunk: c.chunk.get(),
            behind: c.flags.get() & BEHIND != 0,
        });
        out.push(GroupRecord {
            kind,
            used: raw.used.get(),
            chunks: chunks.collect(),
            checksums: raw.checksums.decode(WHAT)?,
            bitmap_generations: raw.bitmap_generations.map(|g| Generation(g.get())),
        });
    }
    Ok(out)
}

/// Encodes a part of a bitmap into `payload`: 64-bit words, least significant bit first.
pub fn encode_bitmap(words: &[u64], payload: &mut [u8]) {
    payload.fill(0);
    for (w, out) in words.iter().zip(payload.chunks_exact_mut(8)) {
        out.copy_from_slice(&w.to_le_bytes());
    }
}

/// Decodes a part of a bitmap that has `bits` bits. Bits past the end must be clear.
pub fn decode_bitmap(payload: &[u8], bits: usize) -> Result<Vec<u64>, FormatError> {
    let bad =
        FormatError::Value { what: "bitmap page", field: "bits past the end", found: bits as u64 };
    let mut words = Vec::with_capacity(bits.div_ceil(64));
    for (i, c) in payload.chunks_exact(8).enumerate() {
        let w = u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]);
        if i < bits.div_ceil(64) {
            words.push(w);
        } else if w != 0 {
            return Err(bad);
        }
    }
    let spare = bits % 64;
    if words.len() != bits.div_ceil(64)
        || (spare != 0 && words.last().is_some_and(|w| w >> spare != 0))
    {
        return Err(bad);
    }
    Ok(words)
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
