//! Garbage collection: a walk over the index in slices of bounded time, so that no request
//! waits for it.
//!
//! A pass drops dead keys: stale keys, and keys of staged blocks and discards that the pool has.
//! The pass merges thin nodes. It counts the blocks of each bucket and compares the counters. It
//! moves data blocks out of sparse buckets. It marks nodes in sparse buckets as changed, and the
//! next checkpoint writes these nodes to other buckets. The allocator never waits for a pass:
//! eviction alone gives buckets to the allocator.
//!
//! The drop of a dead key has no record in the journal. After a crash the key is back, and must be
//! dead again. So the record that made the key dead must be durable before a later direct write is:
//! that write finds no key to drop, and a key that came back alive would hide its blocks. So the
//! next commit of the pool waits for the journal.
//!
//! A pass is due in each of these cases:
//!
//! - The cache was opened more than a minute ago, and no pass has ended since.
//! - Buckets with nodes gave errors.
//! - Garbage without ghosts is more than an eighth of the data blocks.
//! - Nodes have more buckets than `node_reserve`, and these buckets have more than three times the
//!   blocks of their nodes. After a pass, nodes must also have a quarter more buckets than the
//!   fewest since that pass.
//! - Room for nodes is short, and nodes have more than one bucket.
//!
//! A pass that has changed the index asks for one checkpoint at its end, if buckets with nodes gave
//! errors or if nodes have more buckets than `node_reserve`. Without the checkpoint, a cache
//! without clients would keep the buckets of all nodes that the pass has emptied. One checkpoint is
//! enough: nodes that a cut holds become free when the cut is published, and by no checkpoint.
//!
//! **Ghosts.** A stale key that is young tells the adaptive policy that its blocks were in the
//! cache not long ago, and where. So it stays until it is too old for that, or until a task asks
//! for a collection or room for nodes is short.

use std::rc::Rc;
use std::time::Duration;

use base::{BlockRange, BucketId, CacheAddr, Instant, Lba, Result, StorageError, VolumeId};
use format::cache::journal::blocks_for;
use queue::Class;
use rt::Rt;
use rt::sync::oneshot;

use crate::core::Core;
use crate::core::pins::BucketPin;
use crate::health::fail::Failures;
use crate::job;
use crate::policy::gc_pace::{OtherActivity, Pace};
use crate::space::mover::{MoveOutcome, Mover, is_movable};
use crate::space::request_room::Room;
use crate::store::buckets::usage::Usage;
use crate::store::index_walk::IndexWalk;
use crate::store::key::{Body, IndexKey};
use crate::store::ring_room::Share;
use crate::store::taken::most_extents;
use crate::transfer::block_part::FoundPart;

/// The time between two looks whether a pass is due.
const EVERY: Duration = Duration::from_secs(1);
/// The first pass comes this long after an open: only it tells what the last incarnation has left.
const FIRST: Duration = Duration::from_secs(60);
/// No client is taken to be at work this long after the last request.
const QUIET: Duration = Duration::from_millis(100);
/// Nodes are moved together when their buckets have this many times their blocks.
const SPARSE: u64 = 3;
/// Buckets compared in one go.
const COMPARED: usize = 4096;

/// A running count of the blocks of all buckets. The count ends when this is dropped. Its result
/// counts only if `complete` is set.
struct AuditGuard<'c> {
    core: &'c Core,
    complete: bool,
}

impl<'c> AuditGuard<'c> {
    fn begin(core: &'c Core) -> AuditGuard<'c> {
        let mut st = core.state_mut();
        let buckets = st.buckets.geometry().count();
        st.index.begin_audit(buckets);
        AuditGuard { core, complete: false }
    }

    /// The count is complete, or was given up.
    fn end(mut self, complete: bool) {
        self.complete = complete;
    }
}

impl Drop for AuditGuard<'_> {
    fn drop(&mut self) {
        self.core.state_mut().index.end_audit(self.complete);
    }
}

/// Adds the time until its end.
struct Timer<'t> {
    rt: &'t Rt,
    from: Instant,
    sum: &'t mut Duration,
}

impl<'t> Timer<'t> {
    fn new(rt: &'t Rt, sum: &'t mut Duration) -> Timer<'t> {
        Timer { rt, from: rt.precise_now(), sum }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        *self.sum += self.rt.precise_now().since(self.from);
    }
}

/// The findings in one leaf.
#[derive(Default)]
struct Leaf {
    first: Option<(VolumeId, Lba)>,
    dead: Vec<(VolumeId, Lba)>,
    /// Blocks that are named by stale keys which stay.
    ghosts: u64,
    /// Extents in sparse buckets.
    sparse: Vec<IndexKey>,
}

/// Collects garbage.
pub(crate) struct Collector {
    core: Core,
    failures: Rc<Failures>,
    room: Rc<Room>,
    mover: Rc<Mover>,
}

impl Collector {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        room: &Rc<Room>,
        mover: &Rc<Mover>,
    ) -> Rc<Collector> {
        Rc::new(Collector {
            core: core.clone(),
            failures: failures.clone(),
            room: room.clone(),
            mover: mover.clone(),
        })
    }

    /// Drops the key of a part that is published, as the pool has the whole block. Its bucket
    /// counts the block, so the journal is told.
    async fn drop_published_part(&self, part: &IndexKey) -> Result<()> {
        let Body::Data { addr, crcs, cover, .. } = &part.body else { return Ok(()) };
        let found = FoundPart { addr: *addr, crcs: crcs.clone(), cover: *cover };
        let mut room = self.room.ring_room(Share::Clients, blocks_for(1, 0)).await?;
        self.core
            .resident(Class::Collection, |st| {
                let same = st.same_part(part.volume, part.lba, &found)?;
                if same.is_some_and(|e| st.index.unpublished(&e).is_none()) {
                    st.drop_keys(&mut room, part.volume, BlockRange::of(part.lba, 1))?;
                }
                Ok(())
            })
            .await
    }

    /// Runs passes when they are due.
    pub(crate) async fn collector(&self) {
        // Of a row of failures the first is logged.
        let mut fails = false;
        while !self.core.health().is_closed() {
            self.core.rt().sleep(EVERY).await;
            self.core.collections().note_held(self.core.state().buckets.census().metadata);
            if self.core.health().is_closed() || !self.gc_is_due() {
                continue;
            }
            let Err(e) = self.pass().await else {
                fails = false;
                continue;
            };
            if self.failures.check_failed().is_err() {
                return;
            }
            if !std::mem::replace(&mut fails, true) {
                tracing::warn!("garbage collection, tried again: {e}");
            }
        }
    }

    /// True if a pass would be of use.
    pub(crate) fn gc_is_due(&self) -> bool {
        let since = self.core.collections().none_since();
        if since.is_some_and(|since| self.core.rt().now().since(since) > FIRST)
            || self.core.collections().is_called_for()
        {
            return true;
        }
        let st = self.core.state();
        let garbage =
            st.buckets.counts().garbage().saturating_sub(self.core.collections().stats().ghosts);
        if garbage * 8 > self.core.layout().data_blocks() {
            return true;
        }
        // Nodes are written next to each other and replaced one by one, so in the end their buckets
        // are mostly empty.
        let census = st.buckets.census();
        let held = u64::from(census.metadata) * u64::from(self.core.layout().bucket_blocks);
        let much = census.metadata > self.core.layout().node_reserve()
            && held > SPARSE * st.buckets.nodes().node_blocks();
        drop(st);
        // A pass may give no bucket back, for example if a cut holds the nodes. The next pass waits
        // until nodes have a quarter more buckets than the fewest since the last pass.
        let least = self.core.collections().least_held();
        let more = least.is_none_or(|least| census.metadata > least + least / 4);
        much && more || census.metadata > 1 && self.core.levels().wants_node_room()
    }

    /// See [`crate::Cache::collect`].
    pub(crate) async fn collect(self: &Rc<Self>) -> Result<()> {
        self.failures.check_failed()?;
        let _awaited = self.core.collections().awaited();
        // A pass that sleeps in its pause wakes, sees that a task waits, and goes on.
        self.core.wakes().settings.notify();
        // The pass runs as a background task, even if the caller is a foreground task. The ledger
        // names the pass as what the caller waits for.
        let (this, (done, ended)) = (self.clone(), oneshot());
        self.core
            .rt()
            .detach_background(job::COLLECTION, async move { done.send(this.pass().await) });
        ended.await.unwrap_or_else(|| Err(StorageError::ended()))
    }

    async fn pass(&self) -> Result<()> {
        let _alone = self.core.collections().lock().await;
        let began = self.core.rt().precise_now();
        let before = self.core.collections().stats().changes();
        self.core.collections().count(|gc| gc.dead_last = 0);
        self.core.state_mut().buckets.forget_dead_zeros();
        let called_for = self.core.collections().note_begun();
        let audited = AuditGuard::begin(&self.core);
        let (outcome, whole) = match self.walk().await {
            Ok(true) => (self.compare().await, true),
            // The cache is closed: a part of the count says nothing.
            Ok(false) => (Ok(()), false),
            Err(e) => (Err(e), false),
        };
        audited.end(whole && outcome.is_ok());
        let ended = self.core.rt().precise_now();
        let held = self.core.state().buckets.census().metadata;
        self.core.collections().ended(began, ended, held);
        // Until the changes are written, the nodes that they replace keep their buckets.
        let much = called_for || held > self.core.layout().node_reserve();
        if self.core.collections().stats().changes() > before && much {
            self.core.checkpoints().call_for_one();
            self.core.wakes().checkpoint.notify();
        }
        outcome
    }

    /// Returns false if the cache was closed before the end of the walk.
    async fn walk(&self) -> Result<bool> {
        let mut walk = IndexWalk::over_all();
        let mut slice_began = self.core.rt().precise_now();
        let nodes = self.core.state().buckets.nodes().index_nodes();
        let mut pace = Pace::begin(slice_began, nodes, &self.core.collections().stats().runs);
        // The time since the last pause in which no other task had a turn.
        let mut busy = Duration::ZERO;
        // The leaves that were looked at since then.
        let mut leaves = 0;
        let mut ghosts = 0;
        while walk.goes_on() && !self.core.health().is_closed() {
            let leaf = self.next_gc_leaf(&mut walk, &mut busy).await?;
            ghosts += leaf.ghosts;
            self.core.collections().count(|gc| gc.dead_last += leaf.dead.len() as u64);
            for (volume, lba) in leaf.dead {
                let dropped = self
                    .core
                    .resident(Class::Collection, |st| {
                        let _timer = Timer::new(self.core.rt(), &mut busy);
                        st.drop_dead(volume, lba)
                    })
                    .await?;
                self.core.collections().count(|gc| gc.dropped_keys += u64::from(dropped));
            }
            if let Some((volume, lba)) = leaf.first {
                let merged = self
                    .core
                    .resident(Class::Collection, |st| {
                        let _timer = Timer::new(self.core.rt(), &mut busy);
                        st.index.merge_thin(volume, lba)
                    })
                    .await?;
                self.core.collections().count(|gc| gc.merged_nodes += u64::from(merged));
                let short = self.core.levels().wants_node_room();
                let moved = self
                    .core
                    .resident(Class::Collection, |st| {
                        let _timer = Timer::new(self.core.rt(), &mut busy);
                        // If room is short, only nodes are moved whose room comes back at once:
                        // nodes of the cut are held for it.
                        let held = st.limbo().cut().filter(|_| short);
                        st.index.leave_sparse(&st.buckets, volume, lba, held)
                    })
                    .await?;
                self.core.collections().count(|gc| gc.moved_nodes += moved);
            }
            self.room.crowd_of_upkeep().await?;
            for e in leaf.sparse {
                self.move_sparse(e).await?;
            }
            leaves += 1;
            if self.core.settings().gc().ends_slice(busy, leaves) || !walk.goes_on() {
                let ended = self.core.rt().precise_now();
                pace.worked(leaves, ended.since(slice_began));
                self.core.collections().count(|gc| gc.slices.record(std::mem::take(&mut busy)));
                leaves = 0;
                self.core.rt().yield_now().await;
                if walk.goes_on() {
                    self.core.sleep_by(|s| pace.pause(ended, &s.gc(), self.beside_gc())).await;
                }
                slice_began = self.core.rt().precise_now();
            }
        }
        self.core.collections().count(|gc| {
            gc.ghosts = ghosts;
            gc.key_bytes = Some(walk.bytes()).filter(|_| !walk.goes_on());
        });
        Ok(!walk.goes_on())
    }

    /// The activity that a pass gives way to, or has to hurry for.
    fn beside_gc(&self) -> OtherActivity {
        let quiet = self.core.clients().quiet_for(self.core.rt().now());
        if self.core.collections().is_awaited()
            || self.core.levels().wants_node_room()
            || self.core.turns().is_dry()
        {
            OtherActivity::Need
        } else if quiet > QUIET {
            OtherActivity::Nothing
        } else {
            OtherActivity::Foreground
        }
    }

    /// True if ghosts may stay. Ghosts make the index larger, and a larger index may begin
    /// checkpoints. So they stay only below three quarters of `dirty_nodes` changed nodes, and only
    /// if no task waits for a collection and room for nodes is not short.
    fn has_room_for_ghosts(&self) -> bool {
        let changed = self.core.state().index.dirty_nodes();
        !self.core.collections().is_awaited()
            && !self.core.levels().wants_node_room()
            && 4 * changed < 3 * self.core.settings().dirty_nodes
    }

    /// Counts the keys of the next leaf, and finds those that are dead or in sparse buckets.
    async fn next_gc_leaf(&self, walk: &mut IndexWalk, busy: &mut Duration) -> Result<Leaf> {
        let ghosts_stay = self.has_room_for_ghosts();
        self.core.resident(Class::Collection, |st| {
            let _timer = Timer::new(self.core.rt(), busy);
            let all = walk.next_leaf(&st.index, &st.buckets)?;
            st.index.audit_leaf(&st.buckets, &all, walk.passed());
            let first = all.first().map(|e| (e.volume, e.lba));
            let mut leaf = Leaf { first, ..Leaf::default() };
            for e in all {
                let is_ghost = ghosts_stay
                    && e.is_stale(&st.buckets)
                    && matches!(&e.body, Body::Data { generation, .. }
                        if st.buckets.usage().is_ghost(*generation));
                if is_ghost {
                    leaf.ghosts += e.len();
                } else if st.index.is_dead(&st.buckets, &e) {
                    leaf.dead.push((e.volume, e.lba));
                } else if matches!(&e.body, Body::Data { addr, .. } if st.buckets.is_sparse(*addr))
                {
                    leaf.sparse.push(e);
                }
            }
            Ok(leaf)
        })
        .await
    }

    /// Moves an extent out of a sparse bucket. The extent stays in each of these cases: it is dirty
    /// in a sealed epoch, it is stale or bad, its bucket is not sparse any more, or the main queue
    /// has too few free blocks. The key of a published part is dropped instead.
    async fn move_sparse(&self, e: IndexKey) -> Result<()> {
        let Body::Data { addr, .. } = &e.body else { return Ok(()) };
        if e.is_part() && self.core.state().index.unpublished(&e).is_none() {
            return self.drop_published_part(&e).await;
        }
        let mut room = self
            .room
            .ring_room(Share::Clients, blocks_for(most_extents(e.len()), e.len() as usize))
            .await?;
        let Some(_pin) = self.plan_move(&e, *addr) else { return Ok(()) };
        if self.mover.move_extent(&e, &mut room, Usage::hits).await? == MoveOutcome::Done {
            self.core.collections().count(|gc| gc.moved_blocks += e.len());
        }
        Ok(())
    }

    /// Pins the bucket of an extent that is to be moved.
    fn plan_move(&self, e: &IndexKey, addr: CacheAddr) -> Option<BucketPin> {
        let mut st = self.core.state_mut();
        if !is_movable(&st, e) || e.is_stale(&st.buckets) || !st.buckets.is_sparse(addr) {
            return None;
        }
        st.buckets.pin(addr);
        drop(st);
        Some(self.core.pinned(addr))
    }

    /// Compares the count with the buckets' counters, which are to be exact at all times.
    async fn compare(&self) -> Result<()> {
        let buckets = self.core.layout().buckets as usize;
        for from in (0..buckets).step_by(COMPARED) {
            {
                let st = self.core.state();
                let Some(audit) = st.index.audit() else { return Ok(()) };
                for i in from..buckets.min(from + COMPARED) {
                    let id = BucketId(i as u32);
                    let (record, counted) = (st.buckets.record(id), audit.blocks_of(id));
                    if !record.kind.is_of_index() && record.live != counted {
                        self.core.collections().count(|gc| gc.miscounted += 1);
                        tracing::error!(
                            cache = %self.core.path(), bucket = i, counter = record.live,
                            keys = counted,
                            "a bucket's counter is not what the index says; run forebay check"
                        );
                    }
                }
            }
            self.core.rt().yield_now().await;
        }
        let st = self.core.state();
        let Some(audit) = st.index.audit() else { return Ok(()) };
        let found = audit.staged_above(st.buckets.epochs().counted_above());
        let (open, cut) = st.buckets.counts().staged_named();
        if found != (open + cut) as i64 {
            self.core.collections().count(|gc| gc.miscounted += 1);
            tracing::error!(
                cache = %self.core.path(), counter = open + cut, keys = found,
                "the number of staged blocks is not what the index says; run forebay check"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;
