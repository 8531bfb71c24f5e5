//! The superblock of a pool. Every device has [`SLOTS`] slots for it, which are written in turn.
//!
//! A slot holds the superblock twice, in neighbouring blocks that are written by one request. So
//! one bad block does not destroy a superblock. If one of the two is bad and the other one is
//! older, the newer superblock was never written completely.
//!
//! Layout of the block (little-endian; offsets in bytes, asserted below):
//!
//! ```text
//!    0  magic "FOREBAY1"         8  version, shard count
//!   16  features: compatible, read-only compatible, incompatible
//!   40  pool uuid               56  device uuid
//!   72  sequence, generation, tables digest
//!   96  geometry (group blocks, group capacity, volume pages), next volume id
//!  112  device number, device count, copies, name length
//!  120  previous generation    128  published epoch (u32)
//!  132  time of the published cut (u32)
//!  136  cache uuid             152  entry of the cache's journal, flags of the cache (u32)
//!  164  flags of the pool (u32)
//!  168  more of scrubs: see [`scrub`]
//!  192  name (64 bytes)        256  device table: 64 records of 48 bytes
//! 3328  scrubs: see [`scrub`]  3824  the lineage: see [`lineage`]
//! 4088  the birth of the blocks that are written now (u32)
//! 4092  crc32c of all bytes before it
//! ```
//!
//! A superblock may be torn, lost or old. The crc32c detects a torn one, and the highest sequence
//! number marks the newest. No field can be wrong alone. The device table is the same on all
//! devices; `device` is the row of the device that holds this superblock.

pub mod lineage;
pub mod scrub;

use base::{BLOCK, Birth, EntrySeq, Epoch, Generation};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::FormatError;
use crate::seal::{check_seal, seal};
use lineage::Lineage;
use scrub::ScrubRecord;

/// Superblock slots on a device.
pub const SLOTS: u64 = 4;
/// Blocks in a slot. Each of them holds the superblock.
pub const SLOT_COPIES: usize = 2;
/// Distance between slots, and offset of the first one, in bytes. The bytes before the first slot
/// are never written.
pub const SLOT_STEP: u64 = 64 * 1024;
/// The largest number of devices in a pool.
pub const MAX_DEVICES: usize = 64;
/// The largest length of the name of a pool or a volume, in bytes of UTF-8.
pub const MAX_NAME: usize = 64;
/// The newest version of the format that this program reads and writes.
pub const VERSION: u32 = 1;
/// The largest number of blocks in a block group: 1 GiB.
pub const MAX_GROUP_BLOCKS: u32 = 262_144;
/// The largest number of copies of a block.
pub const MAX_COPIES: usize = 3;

const WHAT: &str = "superblock";
const MAGIC: [u8; 8] = *b"FOREBAY1";
/// Incompatible feature: the superblock says which history it belongs to. An older version would
/// go on without that, and the history would be lost.
pub const FEATURE_LINEAGE: u64 = 1;
/// Incompatible feature: blocks have births, as there is a snapshot, or there was one. An older
/// version would free what a snapshot has.
pub const FEATURE_SNAPSHOTS: u64 = 2;
const KNOWN_INCOMPAT: u64 = FEATURE_LINEAGE | FEATURE_SNAPSHOTS;
const KNOWN_RO_COMPAT: u64 = 0;
/// Flag of the cache: its clean keys do not count.
const CLEAN_VOID: u32 = 1;
/// Flag of a device: its chunks are to be moved to others.
const LEAVING: u8 = 1;
/// Flag of a device: the user took it out of use.
const OFFLINE: u8 = 2;
/// Flag of a device: it takes the place of one that fails.
const SPARE: u8 = 4;
const FLAGS: u8 = LEAVING | OFFLINE | SPARE;
/// Flag of the pool: chunks are being spread evenly over the devices.
const BALANCING: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawDevice {
    uuid: [u8; 16],
    chunks: U64,
    /// The sequence number of the first superblock that says its state; 0: from the beginning.
    since: U64,
    state: u8,
    flags: u8,
    /// The row of the device that takes its chunks, plus 1.
    successor: u8,
    reserved: [u8; 5],
    /// The newest generation of which it has everything, plus 1; 0: it lacks nothing, or all of it.
    lacks_since: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    shards: U32,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    pool_uuid: [u8; 16],
    device_uuid: [u8; 16],
    sequence: U64,
    generation: U64,
    tables_digest: U64,
    group_blocks: U32,
    group_capacity: U32,
    volume_pages: U32,
    next_volume: U32,
    device: U16,
    device_count: U16,
    copies: u8,
    name_len: u8,
    reserved_a: [u8; 2],
    previous: U64,
    published: U32,
    published_at: U32,
    cache_uuid: [u8; 16],
    cache_journal: U64,
    cache_flags: U32,
    pool_flags: U32,
    scrub_rest: [u8; scrub::REST_BYTES],
    name: [u8; MAX_NAME],
    devices: [RawDevice; MAX_DEVICES],
    scrub: [u8; scrub::BYTES],
    birth: U32,
    crc: U32,
}

const _: () = {
    assert!(size_of::<RawDevice>() == 48);
    assert!(size_of::<Raw>() == BLOCK);
    assert!(std::mem::offset_of!(Raw, pool_uuid) == 40);
    assert!(std::mem::offset_of!(Raw, sequence) == 72);
    assert!(std::mem::offset_of!(Raw, group_blocks) == 96);
    assert!(std::mem::offset_of!(Raw, device) == 112);
    assert!(std::mem::offset_of!(Raw, previous) == 120);
    assert!(
        std::mem::offset_of!(Raw, published) == 128 && std::mem::offset_of!(Raw, cache_uuid) == 136
    );
    assert!(
        std::mem::offset_of!(Raw, cache_journal) == 152
            && std::mem::offset_of!(Raw, cache_flags) == 160
    );
    assert!(std::mem::offset_of!(Raw, pool_flags) == 164);
    assert!(std::mem::offset_of!(Raw, scrub_rest) == 168);
    assert!(std::mem::offset_of!(Raw, name) == 192);
    assert!(std::mem::offset_of!(Raw, devices) == 256);
    assert!(std::mem::offset_of!(Raw, scrub) == 3328);
    assert!(std::mem::offset_of!(Raw, crc) == crate::seal::SEAL_AT);
};

/// Whether a device of the pool is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// The device is in use and has everything that it should have.
    Online,
    /// The device failed or was missing, and the pool went on without it. It is not read.
    Failed,
    /// No device: the one that had this row was removed. Its uuid is zero.
    Removed,
}

/// A row of the device table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceRecord {
    /// The device's own uuid.
    pub uuid: [u8; 16],
    /// Number of chunks on the device.
    pub chunks: u64,
    /// Whether it may be read.
    pub state: DeviceState,
    /// The sequence number of the first superblock that says this state; 0: from the beginning.
    pub since: u64,
    /// While it is failed: it has everything up to this generation, and `None` is not known. While
    /// it is online: what its chunks that are behind lack is of later ones; `None`: none is.
    pub lacks_since: Option<Generation>,
    /// The user took it out of use; it comes back when the user says so.
    pub offline: bool,
    /// The chunks of the device are to be moved to other devices; then it is removed.
    pub leaving: bool,
    /// The row of the device that is to take its chunks; `None`: any.
    pub successor: Option<u8>,
    /// The device has no chunks, until it takes the place of one that fails.
    pub spare: bool,
}

impl DeviceRecord {
    /// A device with so many chunks, which is in use.
    pub fn online(uuid: [u8; 16], chunks: u64) -> DeviceRecord {
        DeviceRecord {
            uuid,
            chunks,
            state: DeviceState::Online,
            since: 0,
            lacks_since: None,
            offline: false,
            leaving: false,
            successor: None,
            spare: false,
        }
    }

    /// The row of a device that was removed.
    pub fn removed() -> DeviceRecord {
        DeviceRecord { state: DeviceState::Removed, ..DeviceRecord::online([0; 16], 0) }
    }
}

/// A verified superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The pool's uuid.
    pub pool_uuid: [u8; 16],
    /// Counts superblock writes. The superblock with the largest number is the newest.
    pub sequence: u64,
    /// The generation of the last committed transaction.
    pub generation: u64,
    /// The newest commit before this one of which every device in use had a superblock. A device
    /// whose newest superblock is older was left behind.
    pub previous: u64,
    /// The sum over all table pages of a hash of (page, generation), modulo 2^64. It reveals a
    /// table page that went back in time.
    pub tables_digest: u64,
    /// The newest epoch that write-back has published; 0: none.
    pub published: Epoch,
    /// The time when the published cut was taken, in seconds of Unix time. Before the first one,
    /// the time when the cache was attached. 0: not known.
    pub published_at: u32,
    /// The attached cache, which may hold data that the pool does not have.
    pub cache_uuid: Option<[u8; 16]>,
    /// The number of an entry of that cache's journal. This entry and all before it were durable
    /// when the superblock was written. 0: not known.
    pub cache_journal: EntrySeq,
    /// Set if the clean keys of that cache do not count: the cache failed, and the pool went on
    /// without telling it about later writes.
    pub clean_void: bool,
    /// Blocks in a block group.
    pub group_blocks: u32,
    /// Number of block groups that the tables have room for.
    pub group_capacity: u32,
    /// Pages of the volume table.
    pub volume_pages: u32,
    /// The number that the next volume will get.
    pub next_volume: u32,
    /// The row in `devices` of the device that holds this superblock.
    pub device: u16,
    /// Copies of every block.
    pub copies: u8,
    /// Chunks are being moved until all devices are filled to the same share.
    pub balancing: bool,
    /// Number of shards of the pool; 1 in this version.
    pub shards: u32,
    /// The pool's name.
    pub name: String,
    /// All devices of the pool.
    pub devices: Vec<DeviceRecord>,
    /// The record of scrubs.
    pub scrub: ScrubRecord,
    /// The open that wrote it, and the history it belongs to.
    pub lineage: Lineage,
    /// The birth of blocks that are written from now on.
    pub birth: Birth,
}

impl Superblock {
    /// The offset in bytes, from the start of the device, of the slot for `sequence`.
    pub fn offset_of(sequence: u64) -> u64 {
        SLOT_STEP * (1 + sequence % SLOTS)
    }

    /// The incompatible features of the pool.
    fn features(&self) -> u64 {
        let lineage = if self.lineage.is_known() { FEATURE_LINEAGE } else { 0 };
        let snapshots = if self.birth == Birth(0) { 0 } else { FEATURE_SNAPSHOTS };
        lineage | snapshots
    }

    /// Writes all copies of the superblock into `out`, which is a whole slot.
    pub fn encode_slot(&self, out: &mut [u8]) {
        assert_eq!(out.len(), SLOT_COPIES * BLOCK);
        out.chunks_exact_mut(BLOCK).for_each(|copy| self.encode(copy));
    }

    /// Writes the superblock into `out`, which has [`BLOCK`] bytes.
    pub fn encode(&self, out: &mut [u8]) {
        let told = self.lineage.is_known();
        let most_lost = most_lost(told);
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            shards: self.shards.into(),
            compat: 0.into(),
            ro_compat: 0.into(),
            incompat: self.features().into(),
            pool_uuid: self.pool_uuid,
            device_uuid: self.devices[usize::from(self.device)].uuid,
            sequence: self.sequence.into(),
            generation: self.generation.into(),
            tables_digest: self.tables_digest.into(),
            group_blocks: self.group_blocks.into(),
            group_capacity: self.group_capacity.into(),
            volume_pages: self.volume_pages.into(),
            next_volume: self.next_volume.into(),
            device: self.device.into(),
            device_count: (self.devices.len() as u16).into(),
            copies: self.copies,
            name_len: self.name.len() as u8,
            reserved_a: [0; 2],
            previous: self.previous.into(),
            published: self.published.0.into(),
            published_at: self.published_at.into(),
            cache_uuid: self.cache_uuid.unwrap_or_default(),
            cache_journal: self.cache_journal.0.into(),
            cache_flags: if self.clean_void { CLEAN_VOID } else { 0 }.into(),
            pool_flags: if self.balancing { BALANCING } else { 0 }.into(),
            scrub_rest: self.scrub.encode_rest(most_lost),
            name: padded_name(&self.name),
            devices: [RawDevice {
                uuid: [0; 16],
                chunks: 0.into(),
                since: 0.into(),
                state: 0,
                flags: 0,
                successor: 0,
                reserved: [0; 5],
                lacks_since: 0.into(),
            }; MAX_DEVICES],
            scrub: self.scrub.encode(most_lost),
            birth: self.birth.0.into(),
            crc: 0.into(),
        };
        if told {
            raw.scrub[scrub::END..].copy_from_slice(&self.lineage.encode());
        }
        for (row, d) in raw.devices.iter_mut().zip(&self.devices) {
            row.uuid = d.uuid;
            row.chunks = d.chunks.into();
            row.since = d.since.into();
            row.lacks_since = d.lacks_since.map_or(0, |g| g.0 + 1).into();
            row.state = match d.state {
                DeviceState::Online => 1,
                DeviceState::Failed => 2,
                DeviceState::Removed => 3,
            };
            let flags = [(d.leaving, LEAVING), (d.offline, OFFLINE), (d.spare, SPARE)];
            row.flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
            row.successor = d.successor.map_or(0, |row| row + 1);
        }
        out.copy_from_slice(raw.as_bytes());
        seal(out);
    }

    /// Decodes and verifies a superblock. The magic is checked before the crc32c, so that a foreign
    /// block is told apart from a damaged one. The crc32c is checked before the version, so that a
    /// damaged block is told apart from a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
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
        let unknown =
            (raw.incompat.get() & !KNOWN_INCOMPAT) | (raw.ro_compat.get() & !KNOWN_RO_COMPAT);
        if unknown != 0 {
            return Err(FormatError::Features { what: WHAT, bits: unknown });
        }
        let value = |field, found: u64, ok: bool| {
            if ok { Ok(()) } else { Err(FormatError::Value { what: WHAT, field, found }) }
        };
        let n = usize::from(raw.device_count.get());
        value("device count", n as u64, (1..=MAX_DEVICES).contains(&n))?;
        value("device number", raw.device.get().into(), usize::from(raw.device.get()) < n)?;
        value(
            "copies",
            raw.copies.into(),
            (1..=MAX_COPIES.min(n)).contains(&usize::from(raw.copies)),
        )?;
        value("shards", raw.shards.get().into(), raw.shards.get() == 1)?;
        let blocks = raw.group_blocks.get();
        value(
            "group blocks",
            blocks.into(),
            (64..=MAX_GROUP_BLOCKS).contains(&blocks) && blocks % 64 == 0,
        )?;
        let capacity = raw.group_capacity.get();
        value("group capacity", capacity.into(), (1..=1 << 24).contains(&capacity))?;
        value(
            "volume pages",
            raw.volume_pages.get().into(),
            (1..=4096).contains(&raw.volume_pages.get()),
        )?;
        let flags = raw.cache_flags.get();
        value("flags of the cache", flags.into(), flags & !CLEAN_VOID == 0)?;
        let pool_flags = raw.pool_flags.get();
        value("flags of the pool", pool_flags.into(), pool_flags & !BALANCING == 0)?;
        value("reserved bytes", 1, raw.reserved_a == [0; 2])?;
        let has_births = raw.incompat.get() & FEATURE_SNAPSHOTS != 0;
        value("birth", raw.birth.get().into(), has_births == (raw.birth.get() != 0))?;
        let (lineage, scrub) = split_lineage(&raw)?;
        let scrub = ScrubRecord::decode(&scrub, &raw.scrub_rest, most_lost(lineage.is_known()))?;
        let row = scrub.device.map_or(0, u64::from);
        value("device of the scrub", row, row < n as u64)?;
        let mut devices = Vec::with_capacity(n);
        for d in &raw.devices[..n] {
            let state = match d.state {
                1 => DeviceState::Online,
                2 => DeviceState::Failed,
                3 => DeviceState::Removed,
                other => {
                    return Err(FormatError::Value {
                        what: WHAT,
                        field: "device state",
                        found: other.into(),
                    });
                }
            };
            value("chunks", d.chunks.get(), d.chunks.get() <= u64::from(u32::MAX))?;
            value("flags of a device", d.flags.into(), d.flags & !FLAGS == 0)?;
            value("reserved bytes of a device", 1, d.reserved == [0; 5])?;
            let successor = d.successor.checked_sub(1);
            let row = successor.map_or(0, usize::from);
            value("successor of a device", d.successor.into(), row < n)?;
            let record = DeviceRecord {
                uuid: d.uuid,
                chunks: d.chunks.get(),
                state,
                since: d.since.get(),
                lacks_since: d.lacks_since.get().checked_sub(1).map(Generation),
                offline: d.flags & OFFLINE != 0,
                leaving: d.flags & LEAVING != 0,
                successor,
                spare: d.flags & SPARE != 0,
            };
            let removed = state == DeviceState::Removed;
            value("removed device", 1, !removed || record == DeviceRecord::removed())?;
            devices.push(record);
        }
        value("device uuid", 0, devices[usize::from(raw.device.get())].uuid == raw.device_uuid)?;
        Ok(Superblock {
            pool_uuid: raw.pool_uuid,
            sequence: raw.sequence.get(),
            generation: raw.generation.get(),
            previous: raw.previous.get(),
            tables_digest: raw.tables_digest.get(),
            published: Epoch(raw.published.get()),
            published_at: raw.published_at.get(),
            cache_uuid: (raw.cache_uuid != [0; 16]).then_some(raw.cache_uuid),
            cache_journal: EntrySeq(raw.cache_journal.get()),
            clean_void: flags & CLEAN_VOID != 0,
            balancing: pool_flags & BALANCING != 0,
            group_blocks: blocks,
            group_capacity: capacity,
            volume_pages: raw.volume_pages.get(),
            next_volume: raw.next_volume.get(),
            device: raw.device.get(),
            copies: raw.copies,
            shards: raw.shards.get(),
            name: name_from(WHAT, &raw.name, raw.name_len)?,
            devices,
            scrub,
            lineage,
            birth: Birth(raw.birth.get()),
        })
    }
}

/// The largest number of lost extents, with a lineage or without one.
fn most_lost(told: bool) -> usize {
    if told { scrub::MAX_LOST } else { scrub::MAX_LOST_ALONE }
}

/// The lineage, and the part of scrubs without it.
fn split_lineage(raw: &Raw) -> Result<(Lineage, [u8; scrub::BYTES]), FormatError> {
    let mut scrub = raw.scrub;
    if raw.incompat.get() & FEATURE_LINEAGE == 0 {
        return Ok((Lineage::default(), scrub));
    }
    let mut bytes = [0; lineage::BYTES];
    bytes.copy_from_slice(&scrub[scrub::END..]);
    scrub[scrub::END..].fill(0);
    Ok((Lineage::decode(&bytes)?, scrub))
}

/// A name in its fixed field. A name that is too long is cut; callers check the length before.
pub(crate) fn padded_name(name: &str) -> [u8; MAX_NAME] {
    let mut out = [0; MAX_NAME];
    let n = name.len().min(MAX_NAME);
    out[..n].copy_from_slice(&name.as_bytes()[..n]);
    out
}

pub(crate) fn name_from(
    what: &'static str,
    field: &[u8; MAX_NAME],
    len: u8,
) -> Result<String, FormatError> {
    let bad = FormatError::Value { what, field: "name", found: len.into() };
    let bytes = field.get(..usize::from(len)).ok_or(bad.clone())?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad)
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
