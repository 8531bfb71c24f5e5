//! Levels of the state: how much room there is, how much is dirty, and how old the pool's image is.
//! Nothing here waits, and nothing changes.

use std::time::Duration;

use base::{ErrorKind, Instant, Result, StorageError, VolumeId, counted};

use super::parts::Parts;
use crate::policy::writer_delay::{Load, PATIENCE};
use crate::settings::LagPolicy;
use crate::space::writer_line::WaitStart;
use crate::store::buckets::census::Stream;
use crate::writeback::all_kept::KeptBlocks;

/// Entries of the journal that may wait in memory before writers do.
pub(crate) const JOURNAL_WAITING: usize = 64;
/// Parts of the share of the room at which writers begin to be slowed. From the first on write-back
/// goes faster than the controller says, from the second on as fast as it can.
const HURRIES: (f64, f64) = (0.6, 0.9);

/// One part in so many of the cache that may be kept of a volume before its writes are refused.
const SHARE: u64 = 8;

/// The levels now, of these parts.
#[derive(Clone, Copy)]
pub(crate) struct Levels<'p> {
    parts: &'p Parts,
}

impl Parts {
    /// The levels of the state now.
    pub(crate) fn levels(&self) -> Levels<'_> {
        Levels { parts: self }
    }
}

impl Levels<'_> {
    /// True if the pool has all of a volume.
    pub(crate) fn is_written_back(&self, volume: VolumeId) -> bool {
        let st = self.parts.state();
        st.dirty_volumes().last(Some(volume)) <= st.index.published()
    }

    /// True if the pool has everything.
    pub(crate) fn all_written_back(&self) -> bool {
        let st = self.parts.state();
        st.dirty_volumes().last(None) <= st.index.published()
    }

    /// True if the pool has everything, and no pass has yet to be told of what came to nothing: of
    /// blocks of a volume that was deleted, say.
    pub(crate) fn holds_nothing(&self) -> bool {
        let (open, cut) = self.parts.state().buckets.counts().unpublished_blocks();
        open + cut == 0 && self.all_written_back()
    }

    /// A wait for room that begins now.
    pub(crate) fn begin_waiting(&self) -> WaitStart {
        WaitStart { since: self.parts.rt().now(), passes: self.passes() }
    }

    /// Fails if write-back has failed for too long.
    pub(crate) fn check_carried(&self) -> Result<()> {
        let passes = self.parts.writeback().passes();
        if let Some((since, e)) = passes.failing()
            && self.parts.rt().now().since(*since) > PATIENCE
        {
            let text = format!("the cache is full, and write-back fails: {e}");
            return Err(StorageError::new(e.kind, text));
        }
        Ok(())
    }

    /// True if fewer buckets are free, or will be soon, than should be.
    pub(crate) fn is_short(&self) -> bool {
        let st = self.parts.state();
        st.buckets.reuse().free_soon() < self.free_target()
    }

    /// True if buckets are short; or if, of those that writers may take, fewer than half are free
    /// now.
    pub(crate) fn is_low_on_buckets(&self) -> bool {
        self.is_short()
            || self.parts.state().buckets.reuse().free()
                < self.node_reserve() + self.parts.layout().free_band() / 2
    }

    /// True if room is so short that no bucket waits until its survivors have moved: they are
    /// dropped.
    pub(crate) fn must_evict_now(&self) -> bool {
        self.parts.state().buckets.reuse().free()
            <= self.node_reserve() + self.parts.layout().free_band() / 4
            || self.parts.admission().has_line()
            || self.parts.turns().is_dry()
            || self.wants_node_room()
    }

    /// Nodes that checkpoints have yet to write: the running one, and the next.
    pub(crate) fn nodes_due(&self) -> u64 {
        self.parts.state().nodes_due()
    }

    /// Nodes that find room, each twice.
    pub(crate) fn node_room(&self) -> u64 {
        self.parts.state().buckets.room_for_nodes()
    }

    /// True if the nodes that are due would not find room if each were written once.
    pub(crate) fn lacks_room_for_one_copy(&self) -> bool {
        self.nodes_due() > self.parts.state().buckets.room_for_nodes_once()
    }

    /// Nodes that are reserved for requests under way.
    pub(crate) fn nodes_reserved(&self) -> u64 {
        self.parts.state().journal().room().nodes()
    }

    /// True if a request that may change `nodes` nodes finds room for them beside all other
    /// requests.
    pub(crate) fn has_nodes_for(&self, nodes: u64) -> bool {
        !self.lacks_node_room(self.nodes_reserved() + nodes + self.parts.layout().node_margin())
    }

    /// True if steps of a pass may change `nodes` nodes together, which they take of the margin.
    pub(crate) fn margin_has(&self, nodes: u64) -> bool {
        !self.lacks_node_room(self.nodes_reserved() + nodes)
    }

    /// Buckets that only nodes may take: a share of the cache, or more if nodes will need more
    /// soon.
    pub(crate) fn node_reserve(&self) -> u32 {
        let due = self.nodes_due() + self.nodes_reserved() + self.parts.layout().node_margin();
        let needed = 2 * due.div_ceil(u64::from(self.parts.layout().bucket_blocks)) as u32;
        self.parts.layout().node_reserve().max(needed)
    }

    /// Buckets that are to be free.
    pub(crate) fn free_target(&self) -> u32 {
        self.node_reserve() + self.parts.layout().free_band()
    }

    /// True if nodes would not find room if `spare` more had to be written than are due.
    pub(crate) fn lacks_node_room(&self, spare: u64) -> bool {
        self.nodes_due() + spare > self.node_room()
    }

    /// True if clients have to wait until there is room for nodes.
    pub(crate) fn wants_node_room(&self) -> bool {
        self.lacks_node_room(self.parts.layout().node_margin())
    }

    /// True if more has changed than checkpoints and the journal keep up with.
    pub(crate) fn is_crowded(&self) -> bool {
        self.has_many_changed_nodes() || self.parts.state().journal().waiting() > JOURNAL_WAITING
    }

    /// True if so many nodes have changed that a checkpoint has to write them first.
    pub(crate) fn has_many_changed_nodes(&self) -> bool {
        self.parts.state().index.dirty_nodes() >= 2 * self.parts.settings().dirty_nodes
    }

    /// The present load: how much can be written before anything has to be published, and the age
    /// of the pool's image.
    pub(crate) fn load(&self, now: Instant) -> Load {
        let reserve = self.node_reserve();
        let st = self.parts.state();
        let census = st.buckets.census();
        let bucket = u64::from(st.buckets.filling().capacity(Stream::Writes));
        let usable = (census.free + census.clean).saturating_sub(reserve);
        let room = u64::from(usable) * bucket + u64::from(st.buckets.left_open(Stream::Writes));
        let all = u64::from(st.buckets.geometry().count().saturating_sub(reserve)) * bucket;
        let (lump, soon) = {
            let passes = self.parts.writeback().passes();
            (passes.cuts().lump(), passes.carried())
        };
        let age = match self.parts.settings().max_lag_policy {
            LagPolicy::Aim => None,
            LagPolicy::Strict => {
                let age = self.parts.writeback().passes().age(now).unwrap_or_default();
                Some(age.as_secs_f64() / self.parts.settings().max_lag.as_secs_f64())
            }
        };
        Load { room, all, lump, soon, reserved: self.parts.admission().reserved(), age }
    }

    /// The need of write-back: 0 where there is much room, 1 well before writers are slowed.
    pub(crate) fn pressure(&self) -> f64 {
        if self.parts.admission().has_line() {
            return 1.0;
        }
        let begin = self.parts.admission().begin();
        let gone = self.load(self.parts.rt().now()).gone() / begin;
        ((gone - HURRIES.0) / (HURRIES.1 - HURRIES.0)).clamp(0.0, 1.0)
    }

    /// The time by which the pool's image is older than the volumes, at most.
    pub(crate) fn age(&self) -> Duration {
        self.parts.writeback().passes().age(self.parts.rt().now()).unwrap_or_default()
    }

    /// How old the pool's image is, at most, if it is that of before the start.
    pub(crate) fn image_of_before(&self) -> Option<Duration> {
        self.parts.writeback().passes().image_of_before(self.parts.rt().now())
    }

    /// True if the pool's image is older than it should be: a pass is to be as fast as it can.
    pub(crate) fn is_late(&self) -> bool {
        self.age() > self.parts.settings().max_lag
    }

    /// The blocks that are kept of each volume that is there.
    pub(crate) fn kept(&self) -> Vec<(VolumeId, KeptBlocks)> {
        let is_there = |volume| self.parts.pool().volume_size(volume).is_some();
        let passes = self.parts.writeback().passes();
        let all = passes.kept().all().filter(|&(volume, _)| is_there(volume));
        all.map(|(volume, kept)| (volume, kept.clone())).collect()
    }

    /// The number of blocks that are kept.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.parts.writeback().passes().kept().all().map(|(_, kept)| kept.blocks).sum()
    }

    /// Fails if something is kept, of one volume or of all.
    pub(crate) fn check_kept(&self, volume: Option<VolumeId>) -> Result<()> {
        let kept = self.kept();
        let mut kept = kept.iter().filter(|(id, _)| volume.is_none_or(|v| v == *id));
        let Some((id, first)) = kept.next() else { return Ok(()) };
        let more = match kept.count() {
            0 => String::new(),
            more => format!(
                " ({} more: see forebay cache status)",
                counted(more as u64, "volume", "volumes")
            ),
        };
        let what = format!(
            "{} of volume {} in the cache cannot come to the pool: {}{more}. Everything else that \
             was written before is in the pool",
            counted(first.blocks, "block", "blocks"),
            self.parts.pool().volume_name(*id),
            first.why
        );
        Err(StorageError::new(ErrorKind::Io, what))
    }

    /// True if the pool has all of the carried cut: it publishes the cut with the next good commit,
    /// even if the cache device fails.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.parts.writeback().passes().cuts().handed_over().is_some()
    }

    /// The number of times that all that was dirty has been published: several passes each time
    /// while there are several cuts.
    pub(crate) fn passes(&self) -> u64 {
        self.parts.writeback().passes().turns()
    }

    /// The number of dirty blocks that the pass leaves, and of those that it publishes.
    pub(crate) fn split_by_pass(&self) -> (u64, u64) {
        let carried = self.parts.writeback().passes().cuts().carried().map(|cut| cut.epoch);
        let st = self.parts.state();
        let (open, sealed) = st.buckets.counts().dirty_blocks();
        let cut = carried.map_or(0, |epoch| st.buckets.counts().dirty_blocks_upto(epoch));
        (open + sealed - cut, cut)
    }

    /// Fails if so much of a volume is kept that it is not written to any more.
    pub(crate) fn check_writable(&self, volume: VolumeId) -> Result<()> {
        let passes = self.parts.writeback().passes();
        let Some(kept) = passes.kept().of(volume) else { return Ok(()) };
        if kept.blocks <= self.parts.layout().data_blocks() / SHARE {
            return Ok(());
        }
        let what = format!(
            "volume {} takes no more writes, as an eighth of the cache has blocks of it that \
             cannot come to the pool: {}",
            self.parts.pool().volume_name(volume),
            kept.why
        );
        Err(StorageError::new(ErrorKind::Io, what))
    }
}
