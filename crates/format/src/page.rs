//! Pages of the tables that stand outside of the trees: volumes, block groups, bitmaps.
//!
//! Every page has two slots of 4096 bytes, one after the other; a commit writes the slot that does not hold the committed
//! version. A page is sealed ([`crate::seal`]) and names itself and its slot, so that a torn or misdirected write is found, one into the
//! other slot too:
//!
//! ```text
//!    0  magic "FBPG", kind    5  slot + 1 (0: not said)    8  page number    16  generation    24  pool uuid    40  reserved (zero)
//!   56  payload (4032 bytes)  4088 reserved     4092 crc32c
//! ```
//!
//! Which slot is right is told differently: a bitmap page by its exact generation, which stands in its group's record; a table page
//! (volumes, groups) is the newest one not above the superblock's generation.

use base::prng::mix64;
use base::{BLOCK, Epoch, Generation, PoolAddr, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;
use crate::node::{NodePtr, RootPtr};
use crate::seal::{check_seal, seal};
use crate::superblock::{MAX_COPIES, MAX_GROUP_BLOCKS, MAX_NAME, name_from, padded_name};

/// Bytes of payload.
pub const PAYLOAD: usize = 4032;
/// Bits of a bitmap page.
pub const BITS_PER_PAGE: u32 = PAYLOAD as u32 * 8;
/// Most bitmap pages of a block group.
pub const MAX_BITMAP_PAGES: usize = 9;
/// Group records in a page.
pub const GROUPS_PER_PAGE: u32 = (PAYLOAD / size_of::<RawGroup>()) as u32;
/// Volume records in a page.
pub const VOLUMES_PER_PAGE: u32 = (PAYLOAD / size_of::<RawVolume>()) as u32;

const MAGIC: [u8; 4] = *b"FBPG";
const WHAT: &str = "page";

/// What a page holds.
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
    reserved_b: [u8; 16],
}

const _: () = {
    assert!(size_of::<Header>() == 56);
    assert!(56 + PAYLOAD + 8 == BLOCK);
    assert!(size_of::<RawGroup>() == 160 && GROUPS_PER_PAGE == 25);
    assert!(size_of::<RawVolume>() == 192 && VOLUMES_PER_PAGE == 21);
    assert!(MAX_GROUP_BLOCKS.div_ceil(BITS_PER_PAGE) as usize == MAX_BITMAP_PAGES);
};

/// What a page is expected to be.
#[derive(Clone, Copy, Debug)]
pub struct PageId {
    /// The pool it belongs to.
    pub pool_uuid: [u8; 16],
    /// Its kind.
    pub kind: PageKind,
    /// Its number among all table pages of the device.
    pub page: u64,
    /// The slot it stands in, 0 or 1.
    pub slot: u8,
}

impl PageId {
    /// The same page in the given slot.
    pub fn in_slot(self, slot: u8) -> PageId {
        PageId { slot, ..self }
    }
}

/// What a page, as it was written by `generation`, contributes to the digest in a superblock: the sum of all of them, modulo 2^64.
pub fn page_digest(page: u32, generation: Generation) -> u64 {
    mix64(mix64(u64::from(page) + 1) ^ generation.0)
}

/// Puts a header before, and a seal behind, the payload that stands in `block[56..]`.
pub fn seal_page(id: &PageId, generation: Generation, block: &mut [u8]) {
    let header = Header {
        magic: MAGIC,
        kind: id.kind.code(),
        slot: id.slot + 1,
        reserved_a: [0; 2],
        page: id.page.into(),
        generation: generation.0.into(),
        pool_uuid: id.pool_uuid,
        reserved_b: [0; 16],
    };
    block[..56].copy_from_slice(header.as_bytes());
    block[56 + PAYLOAD..].fill(0);
    seal(block);
}

/// Verifies a page; returns its generation and its payload of [`PAYLOAD`] bytes.
pub fn open_page<'a>(id: &PageId, block: &'a [u8]) -> Result<(Generation, &'a [u8]), FormatError> {
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
    Ok((Generation(h.generation.get()), &rest[..PAYLOAD]))
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

/// What a block group is used for.
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

/// A piece of one device, as large as a block group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Chunk {
    /// Row of the device table.
    pub device: u16,
    /// Number of the chunk on that device.
    pub chunk: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawChunk {
    device: U16,
    reserved: U16,
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
    /// Its use.
    pub kind: GroupKind,
    /// Allocated blocks.
    pub used: u32,
    /// Where its copies are; empty if it is free.
    pub chunks: Vec<Chunk>,
    /// Its checksum tree.
    pub checksums: Option<RootPtr>,
    /// The generation of each bitmap page; 0: that part of the bitmap is all clear and no page is read for it.
    pub bitmap_generations: [Generation; MAX_BITMAP_PAGES],
}

impl GroupRecord {
    /// The record of a group that nothing uses.
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

/// Writes a page's group records into `payload`.
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
            chunks: [RawChunk { device: 0.into(), reserved: 0.into(), chunk: 0.into() };
                MAX_COPIES],
            checksums: RawRoot::encode(r.checksums),
            bitmap_generations: r.bitmap_generations.map(|g| g.0.into()),
            reserved: [0; 32],
        };
        for (slot, c) in raw.chunks.iter_mut().zip(&r.chunks) {
            slot.device = c.device.into();
            slot.chunk = c.chunk.into();
        }
        out.copy_from_slice(raw.as_bytes());
    }
}

/// Reads the [`GROUPS_PER_PAGE`] records of a group page.
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
        let chunks = raw.chunks[..copies]
            .iter()
            .map(|c| Chunk { device: c.device.get(), chunk: c.chunk.get() });
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

/// Whether a volume is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// It may be served.
    Live,
    /// It was deleted; its blocks are being freed.
    Deleting,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawVolume {
    id: U32,
    state: u8,
    sector_shift: u8,
    name_len: u8,
    cache_mode: u8,
    size_bytes: U64,
    allocated_blocks: U64,
    mapping: RawRoot,
    name: [u8; MAX_NAME],
    staged_volume: U32,
    staged_epoch: U32,
    reserved_b: [u8; 72],
}

/// What a cache does for a volume: each mode asks less of it than the one before.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    /// Writes are durable in the cache, and come to the pool later.
    #[default]
    WriteBack,
    /// Writes go to the pool; what was written is kept in the cache too.
    WriteThrough,
    /// Writes go to the pool; only what is read is kept.
    WriteAround,
    /// The cache is not used.
    None,
}

impl CacheMode {
    fn code(self) -> u8 {
        match self {
            CacheMode::WriteBack => 0,
            CacheMode::WriteThrough => 1,
            CacheMode::WriteAround => 2,
            CacheMode::None => 3,
        }
    }

    fn from_code(code: u8) -> Option<CacheMode> {
        [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None]
            .into_iter()
            .find(|m| m.code() == code)
    }

    /// Its name: `writeback`, `writethrough`, `writearound`, `none`.
    pub fn name(self) -> &'static str {
        match self {
            CacheMode::WriteBack => "writeback",
            CacheMode::WriteThrough => "writethrough",
            CacheMode::WriteAround => "writearound",
            CacheMode::None => "none",
        }
    }
}

impl std::fmt::Display for CacheMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CacheMode {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheMode, String> {
        [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None]
            .into_iter()
            .find(|m| m.name() == text)
            .ok_or_else(|| {
                format!(
                    "{text:?} is no mode of a cache: writeback, writethrough, writearound or none"
                )
            })
    }
}

/// The record of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRecord {
    /// Its number.
    pub id: VolumeId,
    /// Its state.
    pub state: VolumeState,
    /// Bytes in a logical sector: 512 or 4096.
    pub sector: u32,
    /// Its size, a multiple of the sector.
    pub size_bytes: u64,
    /// Blocks that its mapping holds.
    pub allocated_blocks: u64,
    /// What a cache does for it, where there is one.
    pub cache_mode: CacheMode,
    /// Its mapping tree.
    pub mapping: Option<RootPtr>,
    /// Its name; a staging volume has none.
    pub name: String,
    /// Of a staging volume: whose writes it holds, and the epoch of the cut that they belong to.
    pub staged: Option<(VolumeId, Epoch)>,
}

impl VolumeRecord {
    /// The volume that the checksums of its blocks name: itself, or the one that it is the staging volume of.
    pub fn owner(&self) -> VolumeId {
        self.staged.map_or(self.id, |(volume, _)| volume)
    }
}

/// Writes a page's volume records into `payload`; `None` is an empty place.
pub fn encode_volumes(records: &[Option<VolumeRecord>], payload: &mut [u8]) {
    payload.fill(0);
    for (r, out) in records.iter().zip(payload.chunks_exact_mut(size_of::<RawVolume>())) {
        let Some(r) = r else { continue };
        let raw = RawVolume {
            id: r.id.0.into(),
            state: match r.state {
                VolumeState::Live => 1,
                VolumeState::Deleting => 2,
            },
            sector_shift: r.sector.trailing_zeros() as u8,
            name_len: r.name.len() as u8,
            cache_mode: r.cache_mode.code(),
            size_bytes: r.size_bytes.into(),
            allocated_blocks: r.allocated_blocks.into(),
            mapping: RawRoot::encode(r.mapping),
            name: padded_name(&r.name),
            staged_volume: r.staged.map_or(0, |s| s.0.0).into(),
            staged_epoch: r.staged.map_or(0, |s| s.1.0).into(),
            reserved_b: [0; 72],
        };
        out.copy_from_slice(raw.as_bytes());
    }
}

/// Reads the [`VOLUMES_PER_PAGE`] places of a volume page.
pub fn decode_volumes(payload: &[u8]) -> Result<Vec<Option<VolumeRecord>>, FormatError> {
    const WHAT: &str = "volume record";
    let value = |field, found: u64| FormatError::Value { what: WHAT, field, found };
    let mut out = Vec::with_capacity(VOLUMES_PER_PAGE as usize);
    for bytes in payload.chunks_exact(size_of::<RawVolume>()) {
        let raw =
            RawVolume::read_from_bytes(bytes).map_err(|_| value("length", bytes.len() as u64))?;
        let state = match raw.state {
            0 => {
                out.push(None);
                continue;
            }
            1 => VolumeState::Live,
            2 => VolumeState::Deleting,
            other => return Err(value("state", other.into())),
        };
        if raw.sector_shift != 9 && raw.sector_shift != 12 {
            return Err(value("sector shift", raw.sector_shift.into()));
        }
        let sector = 1u32 << raw.sector_shift;
        if raw.id.get() == 0 {
            return Err(value("id", 0));
        }
        if raw.size_bytes.get() % u64::from(sector) != 0
            || raw.size_bytes.get() > crate::MAX_VOLUME_BYTES
        {
            return Err(value("size", raw.size_bytes.get()));
        }
        let cache_mode = CacheMode::from_code(raw.cache_mode)
            .ok_or_else(|| value("cache mode", raw.cache_mode.into()))?;
        if raw.reserved_b != [0; 72] {
            return Err(value("reserved bytes", 1));
        }
        let staged = match (raw.staged_volume.get(), raw.staged_epoch.get()) {
            (0, 0) => None,
            (0, epoch) => return Err(value("epoch of no volume", epoch.into())),
            (volume, 0) => return Err(value("staged volume without an epoch", volume.into())),
            (volume, _) if volume == raw.id.get() => {
                return Err(value("staged volume", volume.into()));
            }
            (volume, epoch) => Some((VolumeId(volume), Epoch(epoch))),
        };
        out.push(Some(VolumeRecord {
            id: VolumeId(raw.id.get()),
            state,
            sector,
            size_bytes: raw.size_bytes.get(),
            allocated_blocks: raw.allocated_blocks.get(),
            cache_mode,
            mapping: raw.mapping.decode(WHAT)?,
            name: name_from(WHAT, &raw.name, raw.name_len)?,
            staged,
        }));
    }
    Ok(out)
}

/// Writes the words of a part of a bitmap, least significant bit first, into `payload`.
pub fn encode_bitmap(words: &[u64], payload: &mut [u8]) {
    payload.fill(0);
    for (w, out) in words.iter().zip(payload.chunks_exact_mut(8)) {
        out.copy_from_slice(&w.to_le_bytes());
    }
}

/// Reads the words of `bits` bits; bits past them must be clear.
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
