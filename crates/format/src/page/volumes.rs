//! Records of volumes, of which each page of the volume table has [`VOLUMES_PER_PAGE`].

use std::num::{NonZeroU32, NonZeroU64};

use base::{Birth, Epoch, Generation, VolumeId};
pub use model::volume::{CacheMode, VolumeLimit};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{PAYLOAD, RawRoot};
use crate::FormatError;
use crate::node::RootPtr;
use crate::superblock::{MAX_NAME, name_from, padded_name};

/// Volume records in a page.
pub const VOLUMES_PER_PAGE: u32 = (PAYLOAD / size_of::<RawVolume>()) as u32;

const _: () = {
    assert!(size_of::<RawVolume>() == 192 && VOLUMES_PER_PAGE == 21);
    assert!(std::mem::offset_of!(RawVolume, staged_volume) == 112);
    assert!(std::mem::offset_of!(RawVolume, limit_bytes) == 120);
    assert!(std::mem::offset_of!(RawVolume, limit_requests) == 128);
    assert!(std::mem::offset_of!(RawVolume, flags) == 136);
    assert!(std::mem::offset_of!(RawVolume, snapshot_of) == 140);
    assert!(std::mem::offset_of!(RawVolume, snapshot_generation) == 148);
    assert!(std::mem::offset_of!(RawVolume, deadlist) == 168);
};

/// Whether a volume is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// The volume may be served.
    Live,
    /// The volume was deleted; its blocks are being freed.
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
    limit_bytes: U64,
    limit_requests: U32,
    limit_burst_ms: U32,
    flags: U32,
    snapshot_of: U32,
    snapshot_birth: U32,
    snapshot_generation: U64,
    taken_at: U64,
    reserved_b: [u8; 4],
    deadlist: RawRoot,
}

/// Clients may change nothing.
const FLAG_READ_ONLY: u32 = 1;

/// The code of a mode, as it stands in a volume record.
fn code_of(mode: CacheMode) -> u8 {
    match mode {
        CacheMode::WriteBack => 0,
        CacheMode::WriteThrough => 1,
        CacheMode::WriteAround => 2,
        CacheMode::None => 3,
    }
}

fn mode_of(code: u8) -> Option<CacheMode> {
    CacheMode::ALL.into_iter().find(|mode| code_of(*mode) == code)
}

/// The past state of a volume that the record of a snapshot is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotOrigin {
    /// The volume.
    pub volume: VolumeId,
    /// The snapshot may have blocks of this birth and older ones.
    pub birth: Birth,
    /// The commit that took the snapshot, which may have nodes of this generation and older ones.
    pub generation: Generation,
    /// When the snapshot was taken, in seconds of Unix time; 0: not known.
    pub taken_at: u64,
}

/// The record of a volume or of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeRecord {
    /// The number of the volume.
    pub id: VolumeId,
    /// The state of the volume.
    pub state: VolumeState,
    /// Bytes in a logical sector: 512 or 4096.
    pub sector: u32,
    /// The size of the volume in bytes, a multiple of the sector.
    pub size_bytes: u64,
    /// Number of blocks that its mapping tree maps.
    pub allocated_blocks: u64,
    /// The mode of the cache for the volume, if the pool has a cache.
    pub cache_mode: CacheMode,
    /// The mapping tree of the volume.
    pub mapping: Option<RootPtr>,
    /// The name of the volume. A staging volume has none.
    pub name: String,
    /// Set for a staging volume: the volume whose writes it holds, and the epoch that they belong
    /// to.
    pub staged: Option<(VolumeId, Epoch)>,
    /// The limit on what clients may ask of the volume; `None`: as much as they like.
    pub limit: Option<VolumeLimit>,
    /// Clients may change nothing.
    pub read_only: bool,
    /// Set for a snapshot: the state that it keeps.
    pub snapshot: Option<SnapshotOrigin>,
    /// The deadlist: blocks that the volume has lost since its newest snapshot. Of a snapshot:
    /// those that the volume had lost by then, since the snapshot before.
    pub deadlist: Option<RootPtr>,
}

impl VolumeRecord {
    /// The volume that owns the blocks in their checksum records, and whose number stands in nodes:
    /// this one, or for a staging volume the one whose writes it holds, or for a snapshot the one
    /// whose state it keeps.
    pub fn owner(&self) -> VolumeId {
        let staged_for = self.staged.map(|(volume, _)| volume);
        self.snapshot.map(|origin| origin.volume).or(staged_for).unwrap_or(self.id)
    }
}

/// Encodes the records of a volume page into `payload`. `None` is an empty place.
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
            cache_mode: code_of(r.cache_mode),
            size_bytes: r.size_bytes.into(),
            allocated_blocks: r.allocated_blocks.into(),
            mapping: RawRoot::encode(r.mapping),
            name: padded_name(&r.name),
            staged_volume: r.staged.map_or(0, |s| s.0.0).into(),
            staged_epoch: r.staged.map_or(0, |s| s.1.0).into(),
            limit_bytes: r.limit.and_then(|l| l.bytes_per_second).map_or(0, NonZeroU64::get).into(),
            limit_requests: r.limit.and_then(|l| l.iops).map_or(0, NonZeroU32::get).into(),
            limit_burst_ms: r.limit.map_or(0, |l| l.burst_ms.get()).into(),
            flags: if r.read_only { FLAG_READ_ONLY } else { 0 }.into(),
            snapshot_of: r.snapshot.map_or(0, |s| s.volume.0).into(),
            snapshot_birth: r.snapshot.map_or(0, |s| s.birth.0).into(),
            snapshot_generation: r.snapshot.map_or(0, |s| s.generation.0).into(),
            taken_at: r.snapshot.map_or(0, |s| s.taken_at).into(),
            reserved_b: [0; 4],
            deadlist: RawRoot::encode(r.deadlist),
        };
        out.copy_from_slice(raw.as_bytes());
    }
}

/// Decodes the [`VOLUMES_PER_PAGE`] places of a volume page.
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
        let cache_mode =
            mode_of(raw.cache_mode).ok_or_else(|| value("cache mode", raw.cache_mode.into()))?;
        if raw.flags.get() & !FLAG_READ_ONLY != 0 {
            return Err(value("flags", raw.flags.get().into()));
        }
        if raw.reserved_b != [0; 4] {
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
        let iops = NonZeroU32::new(raw.limit_requests.get());
        let bytes_per_second = NonZeroU64::new(raw.limit_bytes.get());
        let limit = match (NonZeroU32::new(raw.limit_burst_ms.get()), iops, bytes_per_second) {
            (None, None, None) => None,
            (None, ..) => return Err(value("burst of a limit", 0)),
            (Some(burst_ms), None, None) => {
                return Err(value("burst without a limit", burst_ms.get().into()));
            }
            (Some(burst_ms), ..) => Some(VolumeLimit { iops, bytes_per_second, burst_ms }),
        };
        let snapshot = snapshot_of(&raw).map_err(|(field, found)| value(field, found))?;
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
            limit,
            read_only: raw.flags.get() & FLAG_READ_ONLY != 0,
            snapshot,
            deadlist: raw.deadlist.decode(WHAT)?,
        }));
    }
    Ok(out)
}

/// What a record says of the snapshot that it is of. Error: the field that makes no sense.
fn snapshot_of(raw: &RawVolume) -> Result<Option<SnapshotOrigin>, (&'static str, u64)> {
    let origin = SnapshotOrigin {
        volume: VolumeId(raw.snapshot_of.get()),
        birth: Birth(raw.snapshot_birth.get()),
        generation: Generation(raw.snapshot_generation.get()),
        taken_at: raw.taken_at.get(),
    };
    match origin.volume.0 {
        0 if (origin.birth.0, origin.generation.0, origin.taken_at) == (0, 0, 0) => Ok(None),
        0 => Err(("snapshot of no volume", origin.generation.0)),
        own if own == raw.id.get() => Err(("volume of a snapshot", own.into())),
        _ if raw.staged_volume.get() != 0 => Err(("staged volume of a snapshot", 1)),
        _ => Ok(Some(origin)),
    }
}
