//! Scrub of the cache: while its pool is scrubbed, every block that a key names is read and
//! verified too.
//!
//! This scrub is a part of the scrub of the pool: it begins, rests, goes on and is cancelled with
//! that one, at its rate. The cache's part may outlast the pool's; then it is paused, resumed and
//! cancelled by itself. A scrub of a single device of the pool has no such part. The part goes over
//! the index leaf by leaf, as collection does, and reads the extents of a leaf in the order of
//! their places. Before that it reads both copies of each node of the index, and has bad ones
//! written again. A bad block of data is read again alone. If it is still bad, the same is done as
//! when a client reads it: a clean block is dropped, as the pool has it; a dirty one is named, and
//! stays dirty; the bucket is not used again once it is empty.
//!
//! A cache that is opened while a scrub runs is scrubbed from its beginning. It has no other copy,
//! so there is no place to remember.

use std::rc::Rc;

use base::{
    BLOCK_U64, BlockRange, CacheAddr, Duration, Generation, Instant, Lba, Result, VolumeId,
};
use btree::Key;
use model::scrub::{CacheScrub, CacheScrubPart};
use pool::{ScrubState, Step};
use queue::Class;

use crate::core::Core;
use crate::core::pins::BucketPin;
use crate::health::fail::Failures;
use crate::io::read::{KeyState, Reader};
use crate::job;
use crate::store::index_walk::IndexWalk;
use crate::store::key::{Body, Crcs};
use crate::store::scrubbed::ScrubPart;
use crate::store::state::State;
use crate::transfer::bucket_io::BucketIo;

/// A look whether the pool is being scrubbed.
const LOOK: Duration = Duration::from_secs(1);
/// After an error it begins anew after this time, which doubles with each, up to the other.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_AT_LAST: Duration = Duration::from_secs(3600);
/// Extents that are read at once.
const AT_ONCE: usize = 64;

/// An extent to be verified. It is a plain value: the pin of its bucket stands beside it.
struct UnverifiedExtent {
    volume: VolumeId,
    lba: Lba,
    addr: CacheAddr,
    crcs: Crcs,
    dirty: bool,
    /// True if all sectors count: nothing of the pool's is needed.
    is_whole: bool,
}

/// Scrubs the cache's part of a pool.
pub(crate) struct Scrubber {
    core: Core,
    failures: Rc<Failures>,
    bucket_io: Rc<BucketIo>,
    reader: Rc<Reader>,
}

impl Scrubber {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        bucket_io: &Rc<BucketIo>,
        reader: &Rc<Reader>,
    ) -> Rc<Scrubber> {
        Rc::new(Scrubber {
            core: core.clone(),
            failures: failures.clone(),
            bucket_io: bucket_io.clone(),
            reader: reader.clone(),
        })
    }

    /// Scrubs whenever the pool is scrubbed.
    pub(crate) async fn scrubber(self: &Rc<Self>) {
        self.follow_scrub();
        while !self.core.health().is_closed() {
            self.core.rt().sleep(LOOK).await;
            let part = self.follow_scrub();
            if part.state != ScrubState::Running {
                continue;
            }
            // The part begins anew after an error. The pause before that grows, as the next try may
            // meet the same error.
            let mut pause = AGAIN;
            while let Err(e) = self.scrub_all(part.number).await {
                tracing::warn!(
                    cache = %self.core.path(), again_in_s = pause.as_secs(), "{}: {e}", job::SCRUB
                );
                let until = self.core.rt().now().after(pause);
                pause = (pause * 2).min(AGAIN_AT_LAST);
                while self.core.rt().now() < until {
                    self.core.rt().sleep(LOOK).await;
                }
                if !self.scrub_goes_on(part.number).await {
                    break;
                }
            }
        }
    }

    /// Counts of what scrubs have found.
    pub(crate) fn scrub_found(&self) -> CacheScrub {
        self.core.scrub_counts().found()
    }

    /// See [`crate::Cache::scrub_part`].
    pub(crate) fn scrub_part(&self) -> CacheScrubPart {
        self.follow_scrub();
        self.core.scrub_counts().status()
    }

    /// See [`crate::Cache::pause_scrub`].
    pub(crate) fn pause_scrub(&self) -> Result<()> {
        self.follow_scrub();
        self.core.scrub_counts().turn_to(&[ScrubState::Running], ScrubState::Paused, None)
    }

    /// See [`crate::Cache::resume_scrub`].
    pub(crate) fn resume_scrub(&self, rate: Option<u64>) -> Result<()> {
        self.follow_scrub();
        self.core.scrub_counts().turn_to(&[ScrubState::Paused], ScrubState::Running, rate)
    }

    /// See [`crate::Cache::cancel_scrub`].
    pub(crate) fn cancel_scrub(&self) -> Result<()> {
        self.follow_scrub();
        let from = [ScrubState::Running, ScrubState::Paused];
        self.core.scrub_counts().turn_to(&from, ScrubState::Cancelled, None)
    }

    /// The part, after what the pool's scrub did. A cache that has failed is scrubbed no more.
    fn follow_scrub(&self) -> ScrubPart {
        let counts = self.core.scrub_counts();
        let part = counts.follow(self.core.pool().scrubs().newest_scrub(), self.bytes_to_scrub());
        match part.is_under_way() && self.failures.check_failed().is_err() {
            true => counts.give_up(),
            false => part,
        }
    }

    /// Bytes in the cache that the scrub has before it.
    fn bytes_to_scrub(&self) -> u64 {
        let st = self.core.state();
        st.index.unscrubbed_blocks(&st.buckets) * BLOCK_U64
    }

    /// Waits while the part is paused. False if it is over, or another one has begun.
    async fn scrub_goes_on(&self, number: u64) -> bool {
        loop {
            let part = self.follow_scrub();
            if part.number != number || self.core.health().is_closed() {
                return false;
            }
            match part.state {
                ScrubState::Running => return true,
                ScrubState::Paused => self.core.rt().sleep(LOOK).await,
                ScrubState::Never | ScrubState::Done | ScrubState::Cancelled => return false,
            }
        }
    }

    /// Waits until so many bytes that were read since `from` keep the rate. False if the part is
    /// over meanwhile.
    async fn scrub_keeps_rate(&self, number: u64, from: Instant, bytes: u64) -> bool {
        while self.scrub_goes_on(number).await {
            let rate = self
                .follow_scrub()
                .rate
                .unwrap_or_else(|| self.core.pool().scrubs().newest_scrub().rate);
            if rate == 0 {
                return true;
            }
            let due = from.after(Duration::from_secs_f64(bytes as f64 / rate as f64));
            let now = self.core.rt().now();
            if due <= now {
                return true;
            }
            self.core.rt().sleep(due.since(now).min(LOOK)).await;
        }
        false
    }

    /// Goes over the index, until it is done or the part is over.
    async fn scrub_all(self: &Rc<Self>, number: u64) -> Result<()> {
        self.core.scrub_counts().begin();
        {
            let mut st = self.core.state_mut();
            let buckets = st.buckets.geometry().count();
            st.index.begin_scrub(buckets);
        }
        let done = match self.scrub_nodes(number).await {
            Ok(true) => self.scrub_leaves(number).await,
            outcome => outcome,
        };
        self.core.state_mut().index.end_scrub();
        if done? {
            self.core.scrub_counts().complete();
        }
        Ok(())
    }

    /// Verifies both copies of each node of the index. False: the part is over before that.
    async fn scrub_nodes(self: &Rc<Self>, number: u64) -> Result<bool> {
        let mut next = Some(Key::EMPTY);
        while let Some(from) = next {
            if !self.scrub_goes_on(number).await {
                return Ok(false);
            }
            let began = self.core.rt().now();
            let step = |st: &mut State| {
                let (tree, store) = (st.index.tree(), st.index.store());
                let (nodes, next) = tree.pointers(store, &from, Generation(0), AT_ONCE)?;
                Ok((nodes, next, st.limbo().pin()))
            };
            let (nodes, goes_on, pin) = self.core.resident(Class::Scrub, step).await?;
            let bytes = 2 * nodes.len() as u64 * BLOCK_U64;
            let verify = |node| {
                let this = self.clone();
                self.core.rt().spawn(async move { this.core.verify_copies(&node).await })
            };
            for task in nodes.into_iter().map(verify).collect::<Vec<_>>() {
                task.await;
            }
            drop(pin);
            next = goes_on;
            if !self.scrub_keeps_rate(number, began, bytes).await {
                return Ok(false);
            }
            self.core.rt().yield_now().await;
        }
        Ok(true)
    }

    /// False: the part is over before all leaves were verified.
    async fn scrub_leaves(self: &Rc<Self>, number: u64) -> Result<bool> {
        let mut walk = IndexWalk::over_all();
        while walk.goes_on() {
            if !self.scrub_goes_on(number).await {
                return Ok(false);
            }
            let from = self.core.rt().now();
            let extents =
                self.core.resident(Class::Scrub, |st| next_extents(st, &mut walk)).await?;
            let bytes: u64 = extents.iter().map(|e| e.crcs.len() as u64 * BLOCK_U64).sum();
            let mut tasks = Vec::with_capacity(extents.len().min(AT_ONCE));
            for e in extents {
                let (this, pin) = (self.clone(), self.core.pinned(e.addr));
                tasks.push(self.core.rt().spawn(async move { this.verify_extent(e, pin).await }));
            }
            for task in tasks {
                task.await.unwrap_or(Ok(()))?;
            }
            // Nothing is pinned while it waits.
            if !self.scrub_keeps_rate(number, from, bytes).await {
                return Ok(false);
            }
            self.core.rt().yield_now().await;
        }
        Ok(true)
    }

    async fn verify_extent(&self, e: UnverifiedExtent, pin: BucketPin) -> Result<()> {
        let blocks = e.crcs.len() as u64;
        let read = self.bucket_io.read_bucket(e.addr, &e.crcs, Class::Scrub).await;
        self.core.scrub_counts().count(|s| s.verified_bytes += blocks * BLOCK_U64);
        let Err(bad) = read else {
            drop(pin);
            let range = BlockRange::of(e.lba, blocks);
            return match e.dirty && e.is_whole {
                true => self.core.note_good(Class::Scrub, e.volume, range, e.addr).await,
                false => Ok(()),
            };
        };
        // A block that was written again meanwhile is not lost. The bucket is bad all the same.
        self.core.state_mut().buckets.condemn(e.addr);
        if e.dirty {
            return self.find_lost(&e, &bad).await;
        }
        drop(pin);
        self.drop_bad_clean(&e, &bad).await
    }

    /// Drops and counts blocks of an extent that are bad, and that the pool has.
    async fn drop_bad_clean(&self, e: &UnverifiedExtent, bad: &[u64]) -> Result<()> {
        let dropped = self.reader.drop_bad_blocks(e.volume, e.lba, e.addr, bad).await?;
        self.core.scrub_counts().count(|s| s.dropped += dropped);
        Ok(())
    }

    /// Names each bad block of an extent that was dirty.
    async fn find_lost(&self, e: &UnverifiedExtent, bad: &[u64]) -> Result<()> {
        for &i in bad {
            let (addr, lba) = (CacheAddr(e.addr.0 + i), e.lba.plus(i));
            match self.stands(e, i).await? {
                KeyState::Replaced => {}
                // A pass has published it meanwhile.
                KeyState::Clean => self.drop_bad_clean(e, &[i]).await?,
                KeyState::Dirty => {
                    let volume = self.core.pool().volume_name(e.volume);
                    let what = format!("block {lba} of volume {volume}");
                    self.failures.check_answers(Class::Scrub, what).await?;
                    self.core.scrub_counts().count(|s| s.lost += 1);
                    // An error, which names it.
                    let _ = self.reader.read_again(e.volume, lba, 1, addr, true, &[0]).await;
                }
            }
        }
        Ok(())
    }

    /// The present state of the key of a block of an extent.
    async fn stands(&self, e: &UnverifiedExtent, block: u64) -> Result<KeyState> {
        let place = CacheAddr(e.addr.0 + block);
        self.reader.what_stands(Class::Scrub, e.volume, e.lba.plus(block), place).await
    }
}

/// The extents of the next leaf, in the order of their places, their buckets pinned.
fn next_extents(st: &mut State, walk: &mut IndexWalk) -> Step<Vec<UnverifiedExtent>> {
    let all = walk.next_leaf(&st.index, &st.buckets)?;
    st.index.scrub_leaf(&st.buckets, &all, walk.passed());
    let mut extents = Vec::with_capacity(all.len());
    for e in all {
        if e.is_stale(&st.buckets) || st.index.is_dead(&st.buckets, &e) {
            continue;
        }
        let dirty = st.index.unpublished(&e).is_some();
        if let Body::Data { addr, crcs, cover, .. } = e.body {
            st.buckets.pin(addr);
            let (volume, lba, is_whole) = (e.volume, e.lba, cover.is_all());
            extents.push(UnverifiedExtent { volume, lba, addr, crcs, dirty, is_whole });
        }
    }
    extents.sort_unstable_by_key(|e| e.addr.0);
    Ok(extents)
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;
