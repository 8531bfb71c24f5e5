//! Opening a cache: the newest superblock, the bucket table, the journal's replay, and a
//! checkpoint; then it serves.
//!
//! The content of the device is found out by [`crate::lifecycle::replay`]. The checkpoint at the
//! end begins a new incarnation: entries that a crash left behind in the ring never count again.
//!
//! An open goes in two steps. All that can be wrong with a cache is found in the first one, before
//! its pool is open: to open a pool is a commit, which a start that is refused must not make. Only
//! the second step changes anything.
//!
//! A pool that is older than the cache is refused: the cache has seen a later cut published, or a
//! later entry of the journal named, than the pool says (`format/src/cache/pool_seen.rs`).

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use base::{
    EntrySeq, Epoch, ErrorKind, HostMemoryId, Instant, Lba, OpenId, Result, SharedPlace, SliceList,
    StorageError, counted,
};
use format::cache::pool_seen::{PoolOpens, PoolStatement};
use format::page::page_digest;
use pool::{CacheJournal, Link, Pool, SurvivingRecords};
use queue::{Class, Device};
use rt::Rt;

use crate::Cache;
use crate::cache::Flows;
use crate::checkpoint::table_slots::DurableState;
use crate::core::Core;
use crate::core::parts::FoundCache;
use crate::device::cache_device::CacheDevice;
use crate::device::file::CacheFile;
use crate::device::flush_barrier::Health;
use crate::device::layout::layout_of;
use crate::device::slots::read_superblocks;
use crate::device::superblock_origin::Writers;
use crate::device::table::read_page;
use crate::job;
use crate::latch::LatchGuard;
use crate::lifecycle::failed_dirty::drop_all_clean;
use crate::lifecycle::replay::{Checkpoint, Replay, ReplayOutcome, Replayer};
use crate::lifecycle::staged::{CommittedBlocks, PoolImage};
use crate::replacement::Eviction;
use crate::settings::Settings;
use crate::store::host_entries::UnwrittenEntry;
use crate::store::journal::{Identity, Journal, Place};
use crate::store::ring_room::RingRoom;
use crate::store::state::State;
use crate::wakes::WakeEvents;
use crate::writeback::staged::check_room_for_copies;

/// Pages of the bucket table that are read at once.
const TABLE_READS: usize = 32;

/// A cache that was found to be whole, and replayed in memory: it can be opened. Nothing was
/// changed yet, neither on its device nor in its pool.
pub struct ReadyCache {
    cache: Cache,
    replayed: ReplayOutcome,
    began: Instant,
    /// Entries of the journal that the last process had not written.
    unwritten: Vec<UnwrittenEntry>,
}

impl ReadyCache {
    /// Writes the entries of the journal that the last process had not written, durably. To be
    /// called before the pool is opened: its first commit must not get ahead of them.
    pub async fn finish_journal(&mut self) -> Result<()> {
        let unwritten = std::mem::take(&mut self.unwritten);
        if unwritten.is_empty() {
            return Ok(());
        }
        let path = self.cache.core().path().to_owned();
        let failed = |e: base::IoError| {
            StorageError::from_io(e, format_args!("{path}: finishing the cache's journal"))
        };
        let queue = self.cache.core().device().queue();
        for UnwrittenEntry { offsets, bytes } in &unwritten {
            for offset in offsets {
                let data = SliceList::from_iter([bytes.clone()]);
                queue.write(Class::Commit, *offset, data).await.map_err(failed)?;
            }
        }
        queue.flush(Class::Commit).await.map_err(failed)?;
        tracing::info!(
            cache = %path, entries = unwritten.len(),
            "wrote what the last process had answered to the cache's journal"
        );
        Ok(())
    }

    /// Opens it, and begins its background work. Its pool is open by now.
    pub async fn open(mut self) -> Result<Cache> {
        if let Err(e) = self.finish_journal().await {
            self.close();
            return Err(e);
        }
        let ReadyCache { cache, replayed, began, .. } = self;
        assert!(cache.pool().is_open(), "a cache serves an open pool");
        cache.flows().watch.begin_looking();
        let outcome = cache.serve(&replayed, began).await;
        if outcome.is_err() {
            cache.stop();
            cache.core().device().queue().close();
        }
        outcome.map(|()| cache)
    }

    /// Lets go of its device, as it was found.
    pub fn close(self) {
        self.cache.core().device().queue().close();
    }
}

impl Cache {
    /// Finds the cache on `file`, reads all that an open needs, and sees that the device takes
    /// writes. Changes nothing, so the pool need not be open. Errors: no cache, another pool's, of
    /// a newer version, too small a device, damage that the structures cannot do without.
    pub async fn ready(
        rt: &Rt,
        file: &CacheFile,
        pool: &pool::ReadyPool,
        settings: Settings,
    ) -> Result<ReadyCache> {
        Cache::ready_for(rt, file, pool.pool(), settings).await
    }

    /// Opens the cache on `file` for a pool that is open: [`Cache::ready`], and
    /// [`ReadyCache::open`].
    pub async fn open(rt: &Rt, file: &CacheFile, pool: &Pool, settings: Settings) -> Result<Cache> {
        Cache::ready_for(rt, file, pool, settings).await?.open().await
    }

    async fn ready_for(
        rt: &Rt,
        file: &CacheFile,
        pool: &Pool,
        settings: Settings,
    ) -> Result<ReadyCache> {
        let device = Device::new(rt, file.file, settings.device);
        device.set_targets(settings.targets);
        device.set_name(&format!("cache device {}", file.path));
        let ready = Cache::ready_on(rt, file, &device, pool, settings).await;
        if ready.is_err() {
            device.close();
        }
        ready
    }

    async fn ready_on(
        rt: &Rt,
        file: &CacheFile,
        device: &Device,
        pool: &Pool,
        mut settings: Settings,
    ) -> Result<ReadyCache> {
        let began = rt.precise_now();
        // Writes of a process that was killed may still be in the device's own cache, which may yet
        // lose them. Nothing is believed before it is durable: the next steps overwrite what it has
        // replaced.
        device.flush(Class::Commit).await.map_err(|e| {
            let text = format!(
                "{}: the cache device cannot be flushed ({e}): what stands on it may yet be lost, \
                 so nothing is done with it; try again, or replace it",
                file.path
            );
            StorageError::new(ErrorKind::Io, text)
        })?;
        let (sb, found) = read_superblocks(file, device).await?;
        if sb.pool_uuid != pool.uuid() {
            let text = format!("{} is the cache of another pool", file.path);
            return Err(StorageError::new(ErrorKind::Foreign, text));
        }
        if pool.cache_link().cache_uuid() != Some(sb.uuid) {
            let text = format!("{} is not the cache that is attached to the pool", file.path);
            return Err(StorageError::new(ErrorKind::Foreign, text));
        }
        let layout = layout_of(&sb, file)?;
        settings.dirty_nodes = layout.dirty_nodes(settings.dirty_nodes);
        let published = pool.cache_link().published();
        let mut records = Vec::with_capacity(layout.buckets as usize);
        let mut pages = Vec::with_capacity(layout.pages() as usize);
        let mut digest = 0u64;
        let mut reads = VecDeque::new();
        let mut next = 0;
        for page in 0..layout.pages() {
            while next < layout.pages() && reads.len() < TABLE_READS {
                let (device, number, uuid, generation) =
                    (device.clone(), next, sb.uuid, sb.generation);
                reads.push_back(rt.spawn(async move {
                    read_page(&device, &layout, uuid, number, generation).await
                }));
                next += 1;
            }
            let found = reads.pop_front().unwrap_or_else(|| unreachable!("it was begun"));
            let found = found.await.unwrap_or_else(|| Err(base::StorageError::ended()))?;
            records.extend_from_slice(&found.records);
            digest = digest.wrapping_add(page_digest(page, found.generation));
            pages.push(found);
        }
        if sb.table_digest != 0 && digest != sb.table_digest {
            let text = format!(
                "{}: the cache's bucket table is not that of its newest checkpoint: a page of it \
                 is lost in both slots; run forebay check",
                file.path
            );
            return Err(StorageError::new(ErrorKind::Damaged, text));
        }
        let mut replayer = Replayer::new(
            rt,
            device,
            &file.path,
            Checkpoint { sb: &sb, layout, records },
            PoolImage { published, committed: CommittedBlocks::Open(pool.clone()) },
            settings.resident_nodes,
            Eviction { policy: settings.policy, seed: rt.random() },
        );
        if let Some(place) = pool.host_place() {
            let id = HostMemoryId { incarnation: sb.incarnation, open: sb.opens.opened };
            let survived = SurvivingRecords::find(&place, sb.uuid, id);
            let lacking = survived.as_ref().is_none_or(|s| s.lacking.is_some());
            if lacking && pool.has_recovered() {
                // Keys that were dropped from the index for direct writes are there again.
                pool.void_clean_keys();
            }
            if let Some(survived) = survived {
                if let Some(why) = &survived.lacking {
                    tracing::warn!(
                        cache = %file.path,
                        "writes that were answered and not flushed before the last process ended \
                         may be lost, as what the host kept of them does not count: {why}"
                    );
                }
                replayer.add_survived(survived);
            }
        }
        let says = PoolStatement {
            entry: pool.cache_link().cache_journal(),
            opened: pool.cache_link().cache_opened(),
        };
        let replayed = replayer.run(&sb, says).await?;
        let unwritten = replayer.take_unwritten();
        let empty = sb.root.is_none() && replayed.records == 0;
        let (index, buckets) = replayer.into_restored().settle(replayed.epoch, empty);
        let incarnation = sb.incarnation + 1;
        // An older entry may stand where the journal begins; it is of another incarnation.
        let identity = Identity { uuid: sb.uuid, incarnation };
        let place = Place { position: 0, sequence: replayed.end.sequence };
        let wakes = WakeEvents::default();
        let ring_room =
            RingRoom::new(layout.ring().blocks, wakes.checkpoint.clone(), wakes.room.clone());
        let reserved = pool.take_over(buckets.counts().dirty_blocks().0);
        check_room_for_copies(pool, &file.path, sb.opens.opened != OpenId(0))?;
        let health = Health::new(&file.path);
        let ring = layout.ring();
        let journal = Journal::new(ring, ring_room, identity, place, settings.journal_entry_blocks)
            .with_host_log(health.host_log().clone());
        let dirty_at_open = if empty { Epoch(0) } else { replayed.epoch };
        let state = State::new(index, buckets, journal, dirty_at_open, reserved, health.clone());
        let opens = PoolOpens { opened: pool.opened(), named: says.opened };
        let writers = Writers::new(&sb, found, pool.opened());
        let mut durable_state = DurableState::new(sb, incarnation, opens);
        pages.into_iter().for_each(|page| durable_state.add_page(page));
        let device = CacheDevice::new(file, device, identity.uuid, layout, writers, &health);
        let newest = EntrySeq(replayed.end.sequence.0 - 1);
        let found = FoundCache { device, state, wakes, durable: durable_state, newest };
        let cache = Cache::over(Core::over(rt, pool, settings, found));
        cache.flows().room.make_room_for_nodes()?;
        cache.flows().checkpointer.write_twin().await?;
        Ok(ReadyCache { cache, replayed, began, unwritten })
    }

    /// Writes the recovered state, and begins to serve.
    async fn serve(&self, replayed: &ReplayOutcome, began: Instant) -> Result<()> {
        let log = self.begin_host_log();
        self.recover(replayed, began).await?;
        if let Some((place, uuid, id)) = log {
            // The checkpoint has begun this incarnation: what is left of others does not count.
            place.remove_others(uuid, id);
        }
        let no_pass = self.flows().passes.between_passes().await;
        self.start();
        let outcome = self.prepare_to_serve().await;
        drop(no_pass);
        outcome.inspect_err(|_| {
            self.core().pool().cache_link().link_journal(Link::None);
            self.stop();
        })
    }

    /// Does all that comes before the first client. No pass runs but that of staged blocks.
    async fn prepare_to_serve(&self) -> Result<()> {
        self.forget_behind_ends().await?;
        self.be_named().await?;
        self.flows().passes.carry_staged().await
    }

    /// Begins to record what is answered from now on in memory of the host, too.
    fn begin_host_log(&self) -> Option<(SharedPlace, [u8; 16], Option<HostMemoryId>)> {
        let place = self.core().pool().host_place()?;
        let (Identity { uuid, incarnation }, durable) = {
            let st = self.core().state();
            (st.journal().identity(), st.journal().durable_entry().0)
        };
        if !place.keeps() {
            return Some((place, uuid, None));
        }
        let id = HostMemoryId { incarnation, open: self.core().pool().opened() };
        if let Err(e) = self.core().health().host_log().begin(&place, uuid, id, durable) {
            tracing::error!(
                cache = %self.core().path(),
                "what is answered does not outlive this process before it is flushed: the host has \
                 no memory for it in {} ({e})",
                place.name()
            );
        }
        Some((place, uuid, Some(id)))
    }

    /// The pool says that the cache was opened in this open of it, and the cache knows that the
    /// pool says so. From then on neither goes with a copy of the other. This is before any client.
    async fn be_named(&self) -> Result<()> {
        self.core().pool().cache_link().name_cache().await?;
        self.flows().checkpointer.renew_superblock(self.core().pool().opened()).await
    }

    /// A crash may have come between a shrink in the pool and here. Where the index is damaged,
    /// what is behind an end stays for now: no client can read it, and before a volume grows this
    /// is done again, or it does not grow.
    async fn forget_behind_ends(&self) -> Result<()> {
        for v in self.core().pool().volumes() {
            let end = Lba(v.size_bytes.div_ceil(base::BLOCK_U64));
            match self.flows().ends.forget_from(v.id, end).await {
                Err(e) if e.kind == ErrorKind::Damaged => {
                    tracing::error!(cache = %self.core().path(), volume = %v.name, "{e}");
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn recover(&self, replayed: &ReplayOutcome, began: Instant) -> Result<()> {
        self.flows().checkpointer.checkpoint_now().await?;
        if self.core().pool().cache_link().clean_void() {
            let Flows { core, room, checkpointer, .. } = self.flows();
            drop_all_clean(core, room, checkpointer).await?;
        }
        let ReplayOutcome { entries, records, dropped, healed, .. } = *replayed;
        if healed > 0 {
            tracing::warn!(cache = %self.core().path(), entries = healed, "entries of the journal \
                were bad in their first place, and read from the second");
        }
        let replay =
            Replay { entries, records, dropped, took: self.core().rt().precise_now().since(began) };
        let (dirty_blocks, _) = self.core().state().buckets.counts().unpublished_blocks();
        tracing::info!(
            cache = %self.core().path(), entries, records, dropped, dirty_blocks, "cache opened"
        );
        self.core().note_replayed(replay);
        Ok(())
    }

    fn start(&self) {
        let flows = self.flows();
        flows.core.note_dirty();
        let image_age = flows.core.pool().cache_link().published_ago();
        flows.core.writeback().passes_mut().open_with(image_age);
        let rt = flows.core.rt();
        let flow = flows.journal_clock.clone();
        rt.detach(Box::pin(async move { flow.journal_clock().await }));
        let flow = flows.evictor.clone();
        rt.detach_job(job::RECLAIM, async move { flow.reclaimer().await });
        let flow = flows.checkpointer.clone();
        rt.detach_job(job::CHECKPOINT, async move { flow.checkpointer().await });
        let flow = flows.passes.clone();
        rt.detach_background(job::WRITE_BACK, async move { flow.write_back().await });
        let flow = flows.cut_taker.clone();
        rt.detach(Box::pin(async move { flow.sealer().await }));
        let flow = flows.promoter.clone();
        rt.detach(Box::pin(async move { flow.keeper().await }));
        let flow = flows.collector.clone();
        rt.detach_background(job::COLLECTION, async move { flow.collector().await });
        let flow = flows.compactor.clone();
        rt.detach_job(job::COMPACTION, async move { flow.compactor().await });
        let flow = flows.scrubber.clone();
        rt.detach_background(job::SCRUB, async move { flow.scrubber().await });
        let flow = flows.survivors.clone();
        rt.detach_background(job::SURVIVORS, async move { flow.summarizer().await });
        let flow = flows.throttle.clone();
        rt.detach(Box::pin(async move { flow.admitter().await }));
        let asked: Weak<dyn CacheJournal> = Rc::downgrade(&self.flows().commits) as _;
        self.core().pool().cache_link().link_journal(Link::Live(asked));
    }

    /// Writes everything back and detaches the cache from its pool: it holds nothing that counts
    /// from then on. No client may ask for anything meanwhile.
    pub async fn detach(&self) -> Result<()> {
        self.empty().await?;
        self.flows().failures.leave();
        let left = self.core().pool().cache_link().set_cache_uuid(None).await;
        self.end().await;
        left
    }

    /// Writes everything back for a detach; fails if something cannot be. Nothing is done where
    /// the pool has everything.
    pub async fn empty(&self) -> Result<()> {
        if self.core().is_aside() {
            return Ok(());
        }
        let stays =
            |e: StorageError| StorageError::new(e.kind, format!("{e}. The cache stays attached"));
        if !self.core().levels().holds_nothing() {
            self.flows().passes.publish_all().await.map_err(stays)?;
        }
        self.flows().passes.check_all_came().map_err(stays)?;
        let (open, cut) = self.core().state().buckets.counts().unpublished_blocks();
        if open + cut > 0 {
            let blocks = counted(open + cut, "block", "blocks");
            let text = format!("{blocks} could not be written back: the cache stays attached");
            return Err(StorageError::new(ErrorKind::Io, text));
        }
        Ok(())
    }

    /// Ends the background work of a cache that has [left](Cache::leave), and its use of the
    /// device, which may take as long as that likes.
    pub async fn end(&self) {
        assert!(self.core().is_aside(), "the pool does not need it");
        // No write can be made any more, and none needs to be.
        let _ = self.close().await;
    }

    /// Takes a cache that was never used out of the pool, whatever fails: the next commit says so.
    pub async fn abandon(&self) {
        self.flows().failures.leave();
        self.end().await;
    }

    /// Makes everything durable, writes a checkpoint, so that the next open has nothing to replay,
    /// and ends the background work.
    pub async fn close(&self) -> Result<()> {
        if self.core().health().is_closed() {
            // A detach that failed at the pool is tried again: the device takes no requests any
            // more.
            return Ok(());
        }
        let mut outcome = self.settle().await;
        if outcome.is_err() && self.flows().failures.check_failed().is_ok() {
            // The first try may have waited for a commit that failed for a reason that is gone.
            outcome = self.settle().await;
        }
        self.stop();
        let _collected = self.core().collections().lock().await;
        let _alone = self.core().writeback().lock().await;
        let _told = self.tell_the_journal().await;
        self.core().device().queue().close();
        let link = if self.core().is_aside() {
            Link::None
        } else {
            Link::Closed(Ok(Some(self.flows().commits.last_word())))
        };
        // An older copy of this cache lacks the newest entry, and the pool is to know.
        self.core().pool().cache_link().note_cache_closed(&link);
        self.core().pool().cache_link().link_journal(link);
        if outcome.is_ok() {
            self.core().health().host_log().end();
            if let Some(place) = self.core().pool().host_place() {
                place.remove_others(self.core().state().journal().identity().uuid, None);
            }
        }
        outcome
    }

    /// Makes durable what commits of the pool wait for: a collection may have dropped keys since
    /// the last checkpoint. No group commit runs while the guard is held, and nothing is lacking in
    /// the step in which it is returned. `None`: the cache has failed.
    async fn tell_the_journal(&self) -> Option<LatchGuard<'_>> {
        loop {
            let needs = self.core().state().dropped();
            if self.core().state().journal().durable() < needs {
                self.flows().journal.durable(needs, Class::Commit).await.ok()?;
            } else if let Some(turn) = self.core().group_commits().begin() {
                return Some(turn);
            } else {
                self.core().group_commits().moved().await;
            }
        }
    }

    /// Ends the background work.
    fn stop(&self) {
        self.core().health().close();
        self.flows().watch.end_looking();
        self.core().state().journal().room().wake_all();
        self.core().wakes().all();
        self.core().admission().wake();
    }

    /// Makes everything durable, and writes a checkpoint.
    async fn settle(&self) -> Result<()> {
        self.flows().journal.flush().await?;
        self.flows().checkpointer.checkpoint_now().await
    }
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;
