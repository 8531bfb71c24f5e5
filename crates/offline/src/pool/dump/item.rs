//! The items of a dump, ready to be written as JSON: one object a structure.

use base::{BLOCK, crc32c};
use format::node::{NodePtr, NodeRef, decode};
use format::page::{
    CacheMode, Chunk, GroupKind, GroupRecord, VolumeLimit, VolumeRecord, VolumeState,
};
use format::records::{DeadAge, DeadRun};
use format::superblock::lineage::{History, Lineage};
use format::superblock::scrub::{LostExtent, ScrubRecord, ScrubStage, ScrubState};
use format::superblock::{DeviceState, Superblock};
use serde::Serialize;

use crate::items::{NodeItem, RootItem, SlotItem, hex, root};

/// A structure.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub enum PoolItem {
    /// A superblock slot of a device.
    Superblock(Box<SlotItem<PoolSuperblockItem>>),
    /// A volume's record.
    Volume {
        id: u32,
        name: String,
        state: VolumeState,
        sector_bytes: u32,
        size_bytes: u64,
        allocated_blocks: u64,
        mapping: Option<RootItem>,
        /// Of a staging volume: the volume it is for, and the epoch.
        #[serde(skip_serializing_if = "Option::is_none")]
        staged: Option<(u32, u32)>,
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<VolumeLimit>,
        cache_mode: CacheMode,
        read_only: bool,
        /// Of a snapshot: the state that it keeps.
        #[serde(skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotItem>,
        #[serde(skip_serializing_if = "Option::is_none")]
        deadlist: Option<RootItem>,
    },
    /// A block group's record.
    Group {
        group: u32,
        #[serde(rename = "use")]
        use_: GroupKind,
        used_blocks: u32,
        chunks: Vec<Chunk>,
        bitmap_generations: Vec<u64>,
        checksums: Option<RootItem>,
    },
    /// Groups that are free and have no checksum tree, of which nothing else is to be said.
    Free { groups: u64 },
    /// A block group's bitmap: runs (first block, blocks) of what is allocated.
    Bitmap { group: u32, used_blocks: u32, allocated: Vec<(u32, u32)> },
    /// An extent of a volume.
    Extent { lba: u64, blocks: u32, address: u64, group: u32, offset: u32, birth: u32 },
    /// A record of a deadlist. Of data it says the birth, of a node its generation.
    Dead {
        address: u64,
        blocks: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        birth: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
        died: u64,
    },
    /// A checksum record of a group; `allocated` has an entry for each checksum.
    Checksums { offset: u32, volume: u32, lba: u64, crcs: Vec<String>, allocated: Vec<bool> },
    /// A node of a tree.
    Node(NodeItem),
    /// A copy of a block.
    Copy {
        address: u64,
        device: String,
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        crc: Option<String>,
        /// Hexadecimal digits of its first bytes.
        begins: String,
    },
    /// Something on the way could not be read; what stands below it is missing.
    Unreadable { what: String },
}

/// What a snapshot is of.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct SnapshotItem {
    pub volume: u32,
    pub birth: u32,
    pub generation: u64,
    pub taken_at: u64,
}

/// The content of a superblock.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct PoolSuperblockItem {
    pub pool: String,
    pub pool_uuid: String,
    pub device: u16,
    pub sequence: u64,
    pub generation: u64,
    pub previous: u64,
    pub tables_digest: String,
    pub published: u32,
    pub published_at: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_uuid: Option<String>,
    pub cache_journal: u64,
    pub lineage: Option<LineageItem>,
    pub clean_void: bool,
    pub group_blocks: u32,
    pub group_capacity: u32,
    pub volume_pages: u32,
    pub next_volume: u32,
    pub birth: u32,
    pub copies: u8,
    pub balancing: bool,
    pub shards: u32,
    pub devices: Vec<DeviceItem>,
    pub scrub: ScrubItem,
}

/// The state of scrubs in a superblock.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct ScrubItem {
    pub state: ScrubState,
    /// `tables`, `volumes` or `groups`.
    pub stage: &'static str,
    pub index: u32,
    pub block: u32,
    /// The row of the one device that it reads.
    pub device: Option<u8>,
    pub started_at: u32,
    pub ended_at: u32,
    pub completed_at: u32,
    pub counts_from: u32,
    pub paused_at: u32,
    pub rate: Option<u64>,
    pub verified_bytes: u64,
    pub all_bytes: u64,
    pub bad_blocks: u64,
    pub healed_blocks: u64,
    pub lost_blocks: u64,
    pub passed_over: u32,
    pub passed_over_before: bool,
    pub more_lost: bool,
    pub more_lost_now: bool,
    pub away: bool,
    pub lost: Vec<LostItem>,
}

/// Blocks of which no good copy is left.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct LostItem {
    pub address: u64,
    pub volume: u32,
    pub lba: u64,
    pub blocks: u32,
}

impl From<&ScrubRecord> for ScrubItem {
    fn from(s: &ScrubRecord) -> Self {
        let stage = match s.place.stage {
            ScrubStage::Tables => "tables",
            ScrubStage::Volumes => "volumes",
            ScrubStage::Groups => "groups",
        };
        let lost = |e: &LostExtent| LostItem {
            address: e.addr.0,
            volume: e.volume.0,
            lba: e.lba.0,
            blocks: e.blocks,
        };
        ScrubItem {
            state: s.state,
            stage,
            index: s.place.index,
            block: s.place.block,
            device: s.device,
            started_at: s.started_at,
            ended_at: s.ended_at,
            completed_at: s.completed_at,
            counts_from: s.counts_from,
            paused_at: s.paused_at,
            rate: s.rate,
            verified_bytes: s.verified,
            all_bytes: s.all,
            bad_blocks: s.bad,
            healed_blocks: s.healed,
            lost_blocks: s.lost,
            passed_over: s.passed,
            passed_over_before: s.passed_before,
            more_lost: s.more_lost,
            more_lost_now: s.more_lost_now,
            away: s.away,
            lost: s.extents.iter().map(lost).collect(),
        }
    }
}

/// The opens and histories of the pool, by their names.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct LineageItem {
    pub opened: String,
    pub opened_before: String,
    pub cache_opened: String,
    pub settled: u64,
    pub histories: Vec<HistoryItem>,
}

/// A history.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct HistoryItem {
    pub name: String,
    pub end: u64,
}

impl From<&Lineage> for LineageItem {
    fn from(l: &Lineage) -> Self {
        let history = |h: &History| HistoryItem { name: h.name.to_string(), end: h.end.0 };
        LineageItem {
            opened: l.opened.to_string(),
            opened_before: l.opened_before.to_string(),
            cache_opened: l.cache_opened.to_string(),
            settled: l.settled.0,
            histories: l.histories.iter().map(history).collect(),
        }
    }
}

/// A row of the device table.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct DeviceItem {
    pub uuid: String,
    pub chunks: u64,
    pub state: DeviceState,
    pub since: u64,
    pub lacks_since: Option<u64>,
    pub offline: bool,
    pub leaving: bool,
    pub successor: Option<u8>,
    pub spare: bool,
}

impl From<&Superblock> for PoolSuperblockItem {
    fn from(sb: &Superblock) -> Self {
        let device = |d: &format::superblock::DeviceRecord| DeviceItem {
            uuid: hex(&d.uuid),
            chunks: d.chunks,
            state: d.state,
            since: d.since,
            lacks_since: d.lacks_since.map(|g| g.0),
            offline: d.offline,
            leaving: d.leaving,
            successor: d.successor,
            spare: d.spare,
        };
        PoolSuperblockItem {
            pool: sb.name.clone(),
            pool_uuid: hex(&sb.pool_uuid),
            device: sb.device,
            sequence: sb.sequence,
            generation: sb.generation,
            previous: sb.previous,
            tables_digest: format!("{:016x}", sb.tables_digest),
            published: sb.published.0,
            published_at: sb.published_at,
            cache_uuid: sb.cache_uuid.map(|uuid| hex(&uuid)),
            cache_journal: sb.cache_journal.0,
            lineage: sb.lineage.is_known().then(|| LineageItem::from(&sb.lineage)),
            clean_void: sb.clean_void,
            group_blocks: sb.group_blocks,
            group_capacity: sb.group_capacity,
            volume_pages: sb.volume_pages,
            next_volume: sb.next_volume,
            birth: sb.birth.0,
            copies: sb.copies,
            balancing: sb.balancing,
            shards: sb.shards,
            devices: sb.devices.iter().map(device).collect(),
            scrub: ScrubItem::from(&sb.scrub),
        }
    }
}

impl From<&VolumeRecord> for PoolItem {
    fn from(v: &VolumeRecord) -> Self {
        PoolItem::Volume {
            id: v.id.0,
            name: v.name.clone(),
            state: v.state,
            sector_bytes: v.sector,
            size_bytes: v.size_bytes,
            allocated_blocks: v.allocated_blocks,
            mapping: root(v.mapping),
            staged: v.staged.map(|(volume, epoch)| (volume.0, epoch.0)),
            limit: v.limit,
            cache_mode: v.cache_mode,
            read_only: v.read_only,
            snapshot: v.snapshot.map(|origin| SnapshotItem {
                volume: origin.volume.0,
                birth: origin.birth.0,
                generation: origin.generation.0,
                taken_at: origin.taken_at,
            }),
            deadlist: root(v.deadlist),
        }
    }
}

impl From<DeadRun> for PoolItem {
    fn from(run: DeadRun) -> PoolItem {
        let (birth, generation) = match run.age {
            DeadAge::Data(birth) => (Some(birth.0), None),
            DeadAge::Node(generation) => (None, Some(generation.0)),
        };
        let (address, blocks, died) = (run.addr.0, run.len, run.died.0);
        PoolItem::Dead { address, blocks, birth, generation, died }
    }
}

pub(super) fn group(number: u32, r: &GroupRecord, pages: usize) -> PoolItem {
    PoolItem::Group {
        group: number,
        use_: r.kind,
        used_blocks: r.used,
        chunks: r.chunks.clone(),
        bitmap_generations: r.bitmap_generations.iter().take(pages).map(|g| g.0).collect(),
        checksums: root(r.checksums),
    }
}

/// The node that a block holds by its own account.
pub(super) fn node_in(bytes: &[u8]) -> Option<PoolItem> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let crc = crc32c(bytes.get(..BLOCK)?);
    let (tree, generation, addr) =
        (word(16)?, base::Generation(word(24)?), base::PoolAddr(word(32)?));
    let r = NodeRef { ptr: NodePtr { addr, generation, crc }, level: *bytes.get(4)?, tree };
    decode(bytes, &r).ok().map(|page| PoolItem::Node(NodeItem::new(&r, &page)))
}
