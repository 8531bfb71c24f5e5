//! Writes of a volume that writes back, past the buckets: long streams, and large requests while the cache is congested.
//!
//! Their data goes to the pool at once, into the staging volume of the volume and the open epoch, and a *staged* key into the index; from there on they are
//! writes like all others: dirty until a round publishes their epoch, replaced by what comes later.
//!
//! **Order.** A pool that is written to may commit at any time, and a commit must not know of staged blocks of which the journal does not: had the journal only
//! an older record of them, with other checksums, replay would take what was flushed for lost. So the record is *announced*: it enters the journal before the
//! pool is written to, and every commit that freezes after that waits for it ([`Cache::records_durable`]). When the pool has the data, the key enters
//! the index, with a record in its own place among the others. A record whose data never arrived is void at replay.
//!
//! **Room.** The journal's ring is freed by checkpoints, a checkpoint waits for the pool to commit the staged blocks in it, and that commit waits for the
//! announced records. So none is announced that might not find room in the ring as it is; what would go past the buckets then goes into them.
//!
//! **What was before.** As long as the pool may lose staged blocks, replay may need what they replaced: its buckets are neither evicted nor used anew before the
//! pool has committed.
//!
//! **Cuts.** A staging volume is not written to any more when its epoch is closed: a cut waits for the writes under way here, and none begins meanwhile.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::checksum::block_crcs;
use base::{BLOCK, BLOCK_U64, CacheAddr, Crc, Epoch, Generation, Instant, Lba, Slice, VolumeId};
use format::cache::index::MAX_EXTENT_BLOCKS;
use format::cache::journal::Record;
use pool::Result;
use queue::Class;
use rt::sync::Event;
use smallvec::SmallVec;

use crate::Cache;
use crate::index::{Body, Extent, Step};
use crate::state::State;

/// Blocks of one write to a staging volume.
pub(crate) const STEP_BLOCKS: u64 = 256;
/// Requests of fewer blocks go through the cache: a disk behind it is slow with them, whether they are a stream or not.
const LEAST_BLOCKS: u64 = (64 << 10) / BLOCK_U64;
/// For each block of the buckets so many staged ones may wait for their round: their keys take room in the cache too.
const STAGED_PER_BLOCK: u64 = 16;
/// The longest time for which one late answer of the cache device counts.
const LONGEST: Duration = Duration::from_secs(1);

/// What is under way past the buckets.
#[derive(Default)]
pub(crate) struct Bypass {
    under_way: RefCell<Vec<(VolumeId, Lba, Lba)>>,
    ended: Event,
    /// A cut waits: none begins.
    held: Cell<bool>,
    /// The cache device is late, or writers are held up; until then.
    late_until: Cell<Instant>,
    /// Writers that wait for buckets.
    pub waiting: Cell<u32>,
}

/// A write past the buckets that is under way.
struct UnderWay {
    cache: Cache,
    range: (VolumeId, Lba, Lba),
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let bypass = &self.cache.0.bypass;
        let mut all = bypass.under_way.borrow_mut();
        if let Some(i) = all.iter().position(|r| *r == self.range) {
            all.swap_remove(i);
        }
        drop(all);
        bypass.ended.notify();
    }
}

impl Bypass {
    /// Waits for the writes under way; none begins until [`Bypass::release`].
    pub async fn hold(&self) {
        self.held.set(true);
        loop {
            let ended = self.ended.wait();
            if self.under_way.borrow().is_empty() {
                return;
            }
            ended.await;
        }
    }

    /// A writer is held up for so long: the next ones will be.
    pub fn note_held(&self, now: Instant, delay: Duration) {
        self.late_until.set(self.late_until.get().max(now.after(delay * 2)));
    }

    /// A cut was taken.
    pub fn release(&self) {
        self.held.set(false);
    }
}

impl Cache {
    /// The cache device answered a client's request after `took`; by `limit` it should have. For as long as it was late, it counts as congested.
    pub(crate) fn note_latency(&self, took: Duration, limit: Duration) {
        if limit > Duration::ZERO && took > limit {
            let until = self.0.rt.now().after((took - limit).min(LONGEST));
            let late = &self.0.bypass.late_until;
            late.set(late.get().max(until));
        }
    }

    /// More is asked of the cache than it can do: its device is late, or writers are held up.
    pub(crate) fn is_congested(&self) -> bool {
        let s = &self.0.settings;
        let watched = s.congested_read > Duration::ZERO || s.congested_write > Duration::ZERO;
        let late = self.0.rt.now() < self.0.bypass.late_until.get();
        watched && (late || self.0.bypass.waiting.get() > 0)
    }

    /// Whether a client's write goes past the buckets.
    pub(crate) fn goes_past(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        let sequential = self.0.written.is_sequential(volume, lba, blocks);
        blocks >= LEAST_BLOCKS && (sequential || self.is_congested())
    }

    /// More staged blocks wait for a round than should; half as many make a round begin.
    fn has_many_staged(&self) -> bool {
        let (open, cut) = self.state().buckets.staged_blocks();
        open + cut > STAGED_PER_BLOCK * self.0.layout.data_blocks()
    }

    /// So many blocks are staged that a round should publish them.
    pub(crate) fn round_wanted_by_staged(&self) -> bool {
        let (open, _) = self.state().buckets.staged_blocks();
        open * 2 > STAGED_PER_BLOCK * self.0.layout.data_blocks()
    }

    /// Writes up to [`STEP_BLOCKS`] blocks past the buckets. False: they have to go through the cache, now as ever.
    pub(crate) async fn write_past(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<bool> {
        self.room_for_records().await?;
        self.0.last_request.set(self.0.rt.now());
        let blocks = (data.len() / BLOCK) as u64;
        let end = lba.plus(blocks);
        let Some(_under_way) = self.begin_past((volume, lba, end)).await else { return Ok(false) };
        // It stays open while this is under way.
        let epoch = self.epoch();
        let crcs: SmallVec<[Crc; 64]> = block_crcs(data).collect();
        let new = staged_extents(volume, lba, &crcs, epoch);
        if self.has_many_staged() {
            return Ok(false);
        }
        let staging = match self.0.pool.staging(volume, epoch).await {
            Ok(staging) => staging,
            Err(e) => {
                tracing::debug!("volume {volume}: not written past the cache: {e}");
                return Ok(false);
            }
        };
        if !self.announce(&new) {
            return Ok(false);
        }
        if let Err(e) = self.0.pool.write(staging, lba, data).await {
            tracing::debug!("volume {volume}: not written past the cache: {e}");
            return Ok(false);
        }
        let over = self
            .resident(Class::Foreground, |st| {
                let over = st.enter_staged(&new, (volume, lba, end), epoch, self.0.pool.edited(staging));
                if matches!(over, Ok(Ok(_))) {
                    st.stats.bypassed += blocks;
                }
                over
            })
            .await??;
        self.0.pool.unreserve(over);
        self.after_write();
        Ok(true)
    }

    /// Waits for those under way that it overlaps: of two, the last key must be of the last data. `None`: a cut waits.
    async fn begin_past(&self, range: (VolumeId, Lba, Lba)) -> Option<UnderWay> {
        let bypass = &self.0.bypass;
        let (volume, lba, end) = range;
        loop {
            let ended = bypass.ended.wait();
            if bypass.held.get() {
                return None;
            }
            let overlaps = bypass.under_way.borrow().iter().any(|&(v, a, b)| v == volume && a < end && lba < b);
            if !overlaps {
                bypass.under_way.borrow_mut().push(range);
                return Some(UnderWay { cache: self.clone(), range });
            }
            ended.await;
        }
    }

    /// Enters records into the journal that the pool may not be ahead of; false if there might be no room for them, or they can never be durable.
    pub(crate) fn announce(&self, new: &[Extent]) -> bool {
        let mut st = self.state_mut();
        let st = &mut *st;
        if st.failed.is_some() || !st.journal.has_room_for(new.len() as u32) {
            return false;
        }
        for e in new {
            e.encode(&mut st.value);
            st.journal.push(&Record::Insert { volume: e.volume, lba: e.lba, value: &st.value });
        }
        st.journal.keep_small();
        st.announced = st.journal.newest();
        true
    }

    /// The pool's commit that has the staged blocks of a volume, or of all; `None` if it is durable.
    pub(crate) fn staged_in(&self, volume: Option<VolumeId>) -> Option<Generation> {
        let st = self.state();
        let needs = match volume {
            Some(v) => st.staged_in.get(&v).copied(),
            None => st.staged_in.values().copied().max(),
        };
        needs.filter(|&g| g > self.0.pool.committed())
    }

    /// Reads staged blocks.
    pub(crate) async fn read_staged(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        lba: Lba,
        blocks: u64,
    ) -> Result<base::SliceList> {
        let data = self.0.pool.read_staged(volume, epoch, lba, blocks).await?;
        if self.0.pool.find_staging(volume, epoch).is_none() && !self.is_publishing(epoch) {
            return Err(self.staging_is_lost(volume, epoch));
        }
        Ok(data)
    }

    /// The pool lacks what a key names; or the volume was deleted, and all of it is gone.
    pub(crate) fn staging_is_lost(&self, volume: VolumeId, epoch: Epoch) -> pool::PoolError {
        if self.0.pool.volume(volume).is_none() {
            return pool::PoolError::new(pool::ErrorKind::NotFound, format!("there is no volume with the id {volume}"));
        }
        let text = format!(
            "the pool has lost what volume {volume} was written past the cache in epoch {epoch}; run forebay check"
        );
        pool::PoolError::new(pool::ErrorKind::Damaged, text)
    }
}

impl State {
    /// Makes `[lba, end)` staged; `commit` of the pool has the data.
    fn enter_staged(
        &mut self,
        new: &[Extent],
        (volume, lba, end): (VolumeId, Lba, Lba),
        epoch: Epoch,
        commit: Generation,
    ) -> Step<Result<u64>> {
        assert_eq!(self.buckets.epoch(), epoch, "a cut waits for what is under way");
        let old = match self.index.overlapping(&self.buckets, volume, (lba, end), usize::MAX)? {
            Ok(old) => old,
            Err(e) => return Ok(Err(e)),
        };
        let current = old.iter().filter(|e| !e.is_stale(&self.buckets));
        let replaced: Vec<CacheAddr> = current
            .filter_map(|e| match &e.body {
                Body::Data { addr, .. } => Some(*addr),
                Body::Staged { .. } | Body::Zeros { .. } => None,
            })
            .collect();
        replaced.iter().for_each(|&addr| self.buckets.pin(addr));
        let outcome = self.change(volume, (lba, end), new, false);
        if !matches!(outcome, Ok(Ok(_))) {
            self.unpin_all(&replaced);
            return outcome;
        }
        if !replaced.is_empty() {
            self.replaced.push_back((commit, replaced));
        }
        // Whoever asks for it to be durable from now on needs the pool's commit too.
        self.staged_in.insert(volume, commit);
        outcome
    }

    fn unpin_all(&mut self, addrs: &[CacheAddr]) {
        let journal = self.journal.pushed();
        addrs.iter().for_each(|&addr| self.buckets.unpin(addr, journal));
    }

    /// Lets go of what staged blocks have replaced, where the pool has committed these; true if anything was.
    pub fn release_replaced(&mut self, committed: Generation) -> bool {
        let mut any = false;
        while self.replaced.front().is_some_and(|(needs, _)| *needs <= committed)
            && let Some((_, addrs)) = self.replaced.pop_front()
        {
            self.unpin_all(&addrs);
            any = true;
        }
        any
    }
}

/// The extents that staged blocks make.
pub(crate) fn staged_extents(volume: VolumeId, lba: Lba, crcs: &[Crc], epoch: Epoch) -> SmallVec<[Extent; 4]> {
    let parts = crcs.chunks(MAX_EXTENT_BLOCKS).zip((lba.0..).step_by(MAX_EXTENT_BLOCKS));
    parts
        .map(|(crcs, at)| {
            let body = Body::Staged { crcs: SmallVec::from_slice(crcs) };
            Extent { volume, lba: Lba(at), written: Some(epoch), body }
        })
        .collect()
}
