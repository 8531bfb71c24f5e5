//! Scrub of the cache: while its pool is scrubbed, every block that a key names is read and
//! verified too.
//!
//! It follows the scrub of the pool: it begins with it, rests with it, and ends by itself. It goes
//! over the index leaf by leaf, as collection does, and reads the extents of a leaf in the order of
//! their places. What is bad is read again alone. Then it is as a read would find it: a clean block
//! is dropped, as the pool has it; a dirty one is named, and stays dirty; the bucket is not used
//! again once it is empty.
//!
//! A cache that is opened while a scrub runs is scrubbed from its beginning. It has no other copy,
//! so there is no place to remember.

use base::{BLOCK_U64, CacheAddr, Duration, Lba, Result, VolumeId};
use btree::Cursor;
use pool::{ScrubState, Step};
use queue::Class;

use crate::Cache;
use crate::error::malformed;
use crate::job;
use crate::space::take::Pinned;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::scrubbed::CacheScrub;
use crate::store::state::State;

/// A look whether the pool is being scrubbed.
const LOOK: Duration = Duration::from_secs(1);
/// Extents that are read at once.
const AT_ONCE: usize = 64;

/// An extent to be verified.
struct Unverified {
    volume: VolumeId,
    lba: Lba,
    addr: CacheAddr,
    crcs: Crcs,
    dirty: bool,
    /// It needs nothing of the pool's.
    is_whole: bool,
    pin: Option<Pinned>,
}

impl Cache {
    /// Scrubs whenever the pool is scrubbed.
    pub(crate) async fn scrubber(&self) {
        let (turn, state) = self.pool().newest_scrub();
        let mut seen = (state != ScrubState::Running).then_some(turn);
        while !self.health().is_closed() {
            self.rt().sleep(LOOK).await;
            let (turn, _) = self.pool().newest_scrub();
            if seen == Some(turn) || self.check_failed().is_err() {
                continue;
            }
            match self.scrub_all(turn).await {
                Ok(true) => seen = Some(turn),
                Ok(false) => {}
                Err(e) => tracing::warn!(cache = %self.path(), "{}: {e}", job::SCRUB),
            }
        }
    }

    /// What scrubs have found.
    pub(crate) fn scrub_found(&self) -> CacheScrub {
        self.scrub_counts().found()
    }

    /// Goes over the index; false if that was cut short and has to begin anew.
    async fn scrub_all(&self, turn: u64) -> Result<bool> {
        let mut cursor = Cursor::new(&[0], None);
        let mut more = true;
        while more {
            if self.health().is_closed() || self.check_failed().is_err() {
                return Ok(false);
            }
            match self.pool().newest_scrub() {
                (now, _) if now != turn => return Ok(false),
                (_, ScrubState::Paused) => {
                    self.rt().sleep(LOOK).await;
                    continue;
                }
                // The pool may be done long before a large cache is.
                (_, ScrubState::Running | ScrubState::Done) => {}
                (_, ScrubState::Never | ScrubState::Cancelled) => return Ok(true),
            }
            let extents =
                self.resident(Class::Scrub, |st| next_extents(st, &mut cursor, &mut more)).await?;
            let mut tasks = Vec::with_capacity(extents.len().min(AT_ONCE));
            for mut e in extents {
                e.pin = Some(self.pinned(e.addr));
                let cache = self.clone();
                tasks.push(self.rt().spawn(async move { cache.verify_extent(e).await }));
            }
            for task in tasks {
                task.await.unwrap_or(Ok(()))?;
            }
            self.rt().yield_now().await;
        }
        self.scrub_counts().count(|s| s.completed += 1);
        Ok(true)
    }

    async fn verify_extent(&self, e: Unverified) -> Result<()> {
        let blocks = e.crcs.len() as u64;
        let read = self.read_bucket(e.addr, &e.crcs, Class::Scrub).await;
        drop(e.pin);
        self.scrub_counts().count(|s| s.verified_bytes += blocks * BLOCK_U64);
        let Err(bad) = read else {
            let range = (e.lba, e.lba.plus(blocks));
            return match e.dirty && e.is_whole {
                true => self.note_good(Class::Scrub, e.volume, range, e.addr).await,
                false => Ok(()),
            };
        };
        // Written again meanwhile: the bucket is bad, and nothing is lost.
        let place = CacheAddr(e.addr.0 + bad);
        let lba = e.lba.plus(bad);
        let now = self
            .resident(Class::Scrub, |st| {
                st.index.overlapping(&st.buckets, e.volume, (lba, lba.plus(1)), 1)
            })
            .await?;
        let is_there = now.iter().any(|k| {
            let k = k.slice(lba.0, lba.0 + 1);
            matches!(&k.body, Body::Data { addr, .. } if *addr == place)
        });
        if !is_there {
            self.state_mut().buckets.condemn(e.addr);
            return Ok(());
        }
        self.scrub_counts().count(|s| if e.dirty { s.lost += 1 } else { s.dropped += 1 });
        // It names what is lost; the data of what is clean is of no use here.
        let _ = self.read_again(e.volume, e.lba, blocks, e.addr, e.dirty, bad).await;
        Ok(())
    }
}

/// The extents of the next leaf, in the order of their places, their buckets pinned.
fn next_extents(st: &mut State, cursor: &mut Cursor, more: &mut bool) -> Step<Vec<Unverified>> {
    let (mut all, mut bad): (Vec<IndexKey>, bool) = (Vec::new(), false);
    *more = cursor.next_leaf(st.index.tree(), st.index.store(), |k, v| {
        match IndexKey::decode(&st.buckets, k, v) {
            Some(e) => all.push(e),
            None => bad = true,
        }
    })?;
    if bad {
        return Err(malformed().into());
    }
    let mut extents = Vec::with_capacity(all.len());
    for e in all {
        if e.is_stale(&st.buckets) || st.index.is_dead(&st.buckets, &e) {
            continue;
        }
        let dirty = st.index.unpublished(&e).is_some();
        if let Body::Data { addr, crcs, cover, .. } = e.body {
            st.buckets.pin(addr);
            let (volume, lba, is_whole) = (e.volume, e.lba, cover.is_all());
            extents.push(Unverified { volume, lba, addr, crcs, dirty, is_whole, pin: None });
        }
    }
    extents.sort_unstable_by_key(|e| e.addr.0);
    Ok(extents)
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;
