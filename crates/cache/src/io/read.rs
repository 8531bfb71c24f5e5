//! The way of a read. Plan: the index says where blocks are, and their buckets are pinned.
//! Transfer: they come from buckets, verified, or from the pool. Settle: blocks that are bad are
//! dropped, and what came from the pool may be kept.

use std::rc::Rc;

use base::{
    BLOCK, BLOCK_U64, BlockRange, CacheAddr, ErrorKind, Lba, Result, SliceList, StorageError,
    VolumeId, counted, worth_telling,
};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Step;
use queue::Class;
use smallvec::SmallVec;

use crate::core::Core;
use crate::core::pins::BucketPin;
use crate::error::malformed;
use crate::health::fail::Failures;
use crate::io::part_reader::{PartRead, PartReader};
use crate::io::promote::Promoter;
use crate::space::request_room::Room;
use crate::store::hit_ratio::Hits;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{JournalRoom, Share};
use crate::store::state::State;
use crate::transfer::block_part::FoundPart;
use crate::transfer::bucket_io::BucketIo;

/// Blocks that one step looks up.
const STEP_BLOCKS: u64 = 256;
/// Bad blocks that a line of the log names at most.
const NAMED: usize = 16;

/// The source of a piece of a read.
pub(crate) enum PieceSource {
    /// In a bucket, which is pinned.
    Bucket {
        addr: CacheAddr,
        crcs: Crcs,
        dirty: bool,
        /// The sectors that count: all, or some of a single block, of which the pool has the
        /// others.
        cover: Cover,
    },
    Zeros,
    Pool(CacheMiss),
}

/// Knowledge about blocks that the cache does not have.
#[derive(Clone, Copy, Default)]
pub(crate) struct CacheMiss {
    /// The number of these blocks that were in the cache not long ago, and are to enter the main
    /// queue.
    pub ghosts: u64,
}

/// A piece of the plan of a read. It is a plain value: what keeps its bucket stands beside it
/// ([`PinnedPiece`]).
pub(crate) struct Piece {
    pub lba: Lba,
    pub blocks: u64,
    pub part: PieceSource,
}

/// A piece, and the pin of the bucket that it is in.
pub(crate) type PinnedPiece = (Piece, Option<BucketPin>);

/// The present key of a block, compared with an earlier one that named a place in a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// The pool has the block.
    Clean,
    /// The pool lacks the block.
    Dirty,
    /// The key names another place, or there is none: the block was written again.
    Replaced,
}

/// Reads blocks of volumes.
pub(crate) struct Reader {
    core: Core,
    failures: Rc<Failures>,
    bucket_io: Rc<BucketIo>,
    room: Rc<Room>,
    promoter: Rc<Promoter>,
    part_reader: Rc<PartReader>,
}

impl Reader {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        bucket_io: &Rc<BucketIo>,
        room: &Rc<Room>,
        promoter: &Rc<Promoter>,
        part_reader: &Rc<PartReader>,
    ) -> Rc<Reader> {
        Rc::new(Reader {
            core: core.clone(),
            failures: failures.clone(),
            bucket_io: bucket_io.clone(),
            room: room.clone(),
            promoter: promoter.clone(),
            part_reader: part_reader.clone(),
        })
    }

    /// See [`crate::Cache::read`].
    pub(crate) async fn read(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<SliceList> {
        self.core.clients().note_request(self.core.rt().now());
        let sequential = self.core.clients().follow_read(volume, lba, blocks);
        if blocks <= STEP_BLOCKS {
            return self.read_step(volume, lba, blocks, sequential).await;
        }
        let mut tasks = Vec::new();
        let mut at = 0;
        while at < blocks {
            let (n, this, from) = ((blocks - at).min(STEP_BLOCKS), self.clone(), lba.plus(at));
            tasks.push(
                self.core
                    .rt()
                    .spawn(async move { this.read_step(volume, from, n, sequential).await }),
            );
            at += n;
        }
        let mut all = SliceList::new();
        for t in tasks {
            all.extend(t.await.unwrap_or_else(|| Err(base::StorageError::ended()))?);
        }
        Ok(all)
    }

    pub(crate) async fn read_step(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        sequential: bool,
    ) -> Result<SliceList> {
        let mut pieces = self.plan(volume, lba, blocks).await?;
        if pieces.len() == 1
            && let Some((piece, pin)) = pieces.pop()
        {
            return self.read_piece(volume, piece, pin, sequential).await;
        }
        let mut tasks = Vec::with_capacity(pieces.len());
        for (piece, pin) in pieces {
            let this = self.clone();
            tasks.push(
                self.core
                    .rt()
                    .spawn(async move { this.read_piece(volume, piece, pin, sequential).await }),
            );
        }
        let mut all = Ok(SliceList::new());
        for t in tasks {
            let part = t.await.unwrap_or_else(|| Err(base::StorageError::ended()));
            all = all.and_then(|mut all: SliceList| {
                all.extend(part?);
                Ok(all)
            });
        }
        all
    }

    /// Finds where blocks are, and pins their buckets.
    pub(crate) async fn plan(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<SmallVec<[PinnedPiece; 1]>> {
        let pieces =
            self.core.resident(Class::Foreground, |st| plan(st, volume, lba, blocks)).await?;
        let pinned = |piece: Piece| match piece.part {
            PieceSource::Bucket { addr, .. } => (piece, Some(self.core.pinned(addr))),
            PieceSource::Zeros | PieceSource::Pool(_) => (piece, None),
        };
        Ok(pieces.into_iter().map(pinned).collect())
    }

    async fn read_piece(
        self: &Rc<Self>,
        volume: VolumeId,
        piece: Piece,
        pin: Option<BucketPin>,
        sequential: bool,
    ) -> Result<SliceList> {
        let Piece { lba, blocks, part } = piece;
        match part {
            PieceSource::Zeros => {
                let zeros = self.core.rt().bufs().zeroed(blocks as usize * BLOCK).freeze();
                Ok(SliceList::from_iter([zeros]))
            }
            PieceSource::Pool(missed) => {
                Box::pin(self.read_pool(volume, lba, blocks, missed, sequential)).await
            }
            PieceSource::Bucket { addr, crcs, cover, .. } if !cover.is_all() => {
                let part = FoundPart { addr, crcs, cover };
                let addr = part.addr;
                match Box::pin(self.part_reader.read_part(volume, lba, part, pin)).await? {
                    PartRead::Whole(whole) => {
                        self.count_read(volume, Hits { hits: 0, misses: 1 });
                        Ok(SliceList::from_iter([whole]))
                    }
                    PartRead::Bad(bad) => {
                        Box::pin(self.read_again(volume, lba, 1, addr, true, &bad)).await
                    }
                    PartRead::Changed => Box::pin(self.read_step(volume, lba, 1, sequential)).await,
                }
            }
            PieceSource::Bucket { addr, crcs, dirty, .. } => {
                let data = self.bucket_io.read_bucket(addr, &crcs, Class::Foreground).await;
                drop(pin);
                match data {
                    Ok(data) => {
                        self.count_read(volume, Hits { hits: blocks, misses: 0 });
                        Ok(SliceList::from_iter([data]))
                    }
                    Err(bad) => {
                        Box::pin(self.read_again(volume, lba, blocks, addr, dirty, &bad)).await
                    }
                }
            }
        }
    }

    /// Counts blocks that were read.
    pub(crate) fn count_read(&self, volume: VolumeId, read: Hits) {
        let now = self.core.rt().now();
        self.core.state_mut().count_read(volume, read, now);
    }

    /// Blocks of a bucket are bad, those of the numbers `bad` behind `lba`. Clean ones are dropped,
    /// and all `blocks` are read from the pool. Dirty ones are an error, and the first is named as
    /// lost, but not if the device has failed or answers nothing.
    pub(crate) async fn read_again(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        addr: CacheAddr,
        dirty: bool,
        bad: &[u64],
    ) -> Result<SliceList> {
        let first = bad.first().copied().unwrap_or_default();
        let name = self.core.pool().volume_name(volume);
        let place = CacheAddr(addr.0 + first);
        let look = || self.what_stands(Class::Foreground, volume, lba.plus(first), place);
        let mut stands = if dirty { look().await? } else { KeyState::Clean };
        if stands == KeyState::Dirty {
            let what = format!("block {} of volume {name}", lba.0 + first);
            self.failures.check_answers(Class::Foreground, what).await?;
            stands = look().await?;
        }
        self.core.state_mut().buckets.condemn(addr);
        if stands == KeyState::Replaced {
            return Box::pin(self.read_step(volume, lba, blocks, false)).await;
        }
        if stands == KeyState::Dirty {
            let known = self.core.state_mut().note_bad(volume, lba.plus(first));
            let text = format!(
                "block {} of volume {name} is bad in the cache ({}, bucket {}), and not yet in \
                 the pool: what was written there is lost",
                lba.0 + first,
                self.core.path(),
                self.core.state().buckets.geometry().of(addr)
            );
            if known.is_some_and(worth_telling) {
                tracing::error!("{text}");
            }
            return Err(StorageError::new(ErrorKind::Io, text));
        }
        // Of blocks that were dirty when they were looked up, only the first is known to be clean.
        let clean = if dirty { bad.get(..1).unwrap_or_default() } else { bad };
        self.drop_bad_blocks(volume, lba, addr, clean).await?;
        if dirty {
            // The pool has the first of them. Of the others it may have what was before.
            return Box::pin(self.read_step(volume, lba, blocks, false)).await;
        }
        self.core.pool().read(volume, lba, blocks).await
    }

    /// Drops clean blocks that are bad, those of these numbers behind `lba`, which is at `addr`.
    /// Returns how many were not dropped before.
    pub(crate) async fn drop_bad_blocks(
        &self,
        volume: VolumeId,
        lba: Lba,
        addr: CacheAddr,
        bad: &[u64],
    ) -> Result<u64> {
        let mut all = 0;
        for run in bad.chunk_by(|a, b| a + 1 == *b) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let range = BlockRange::new(lba.plus(*first), lba.plus(last + 1));
            // A cache that has failed gives no room for a record. Then the key stays.
            while let Ok(room) = self.room.ring_room(Share::Clients, blocks_for(1, 0)).await
                && let dropped = self.drop_bad(room, volume, range, addr).await?
                && dropped > 0
            {
                all += dropped;
            }
        }
        if all > 0 {
            self.core.state_mut().refetched(all);
            let name = self.core.pool().volume_name(volume);
            let which: Vec<String> =
                bad.iter().take(NAMED).map(|i| (lba.0 + i).to_string()).collect();
            let more = if bad.len() > NAMED { ", and more" } else { "" };
            tracing::warn!(
                cache = %self.core.path(),
                "{} of volume {name} bad in the cache, and dropped, as the pool has what was \
                 written: {}{more}",
                counted(all, "block", "blocks"),
                which.join(", ")
            );
        }
        Ok(all)
    }

    /// Compares the present key of a block with an earlier one that named `place`.
    pub(crate) async fn what_stands(
        &self,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        place: CacheAddr,
    ) -> Result<KeyState> {
        self.core
            .resident(class, |st| {
                let found = st.index.overlapping(&st.buckets, volume, BlockRange::of(lba, 1), 1)?;
                let at_place = |e: &&IndexKey| {
                    let block = e.slice(lba.0, lba.0 + 1);
                    matches!(&block.body, Body::Data { addr, .. } if *addr == place)
                };
                Ok(match found.iter().find(at_place) {
                    None => KeyState::Replaced,
                    Some(e) if st.index.unpublished(e).is_some() => KeyState::Dirty,
                    Some(_) => KeyState::Clean,
                })
            })
            .await
    }

    /// Drops a clean key that still points into a bucket where its blocks are bad. Returns how many
    /// blocks it had in the range; 0: there is no such key any more.
    async fn drop_bad(
        &self,
        mut room: JournalRoom,
        volume: VolumeId,
        range: BlockRange,
        addr: CacheAddr,
    ) -> Result<u64> {
        let dropped = self
            .core
            .resident(Class::Foreground, |st| {
                let found = st.index.overlapping(&st.buckets, volume, range, usize::MAX)?;
                let bad = |e: &&IndexKey| {
                    let there = matches!(&e.body, Body::Data { addr: a, .. }
                            if st.buckets.geometry().of(*a) == st.buckets.geometry().of(addr));
                    there && st.index.unpublished(e).is_none()
                };
                let Some(e) = found.iter().find(bad) else { return Ok(0) };
                let range = BlockRange::new(e.lba.max(range.from), Lba(e.end().min(range.end.0)));
                // Told to the journal, and durable before the next commit of the pool: what a
                // direct write puts there must not be hidden by this block after a crash.
                st.drop_keys(&mut room, volume, range)?;
                Ok(range.blocks())
            })
            .await?;
        Ok(dropped)
    }

    async fn read_pool(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        missed: CacheMiss,
        sequential: bool,
    ) -> Result<SliceList> {
        let promotion = if sequential {
            None
        } else {
            self.promoter.begin_promotion(volume, BlockRange::of(lba, blocks), missed.ghosts)
        };
        let outcome = self.core.pool().read_with_holes(volume, lba, blocks).await;
        let holes = outcome.as_ref().map_or(0, |found| found.holes.iter().map(|h| h.1).sum());
        // A block that was never written is not there to be had: it is no hit, and no miss.
        let misses = blocks.saturating_sub(holes);
        if misses > 0 {
            self.count_read(volume, Hits { hits: 0, misses });
        }
        if sequential {
            self.core.state_mut().bypassed(misses);
        }
        let found = outcome?;
        match promotion {
            Some(promotion) if misses == blocks => {
                self.promoter.keep(promotion, found.data.clone())
            }
            Some(promotion) if misses > 0 => self.promoter.keep_written(promotion, &found),
            _ => {}
        }
        Ok(found.data)
    }

    /// See [`crate::Cache::prefetch`].
    pub(crate) async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let upto = at.plus(STEP_BLOCKS).min(end);
            let range = BlockRange::new(at, upto);
            self.core
                .resident(Class::Foreground, |st| {
                    st.index.overlapping(&st.buckets, volume, range, usize::MAX)
                })
                .await?;
            at = upto;
            self.core.rt().yield_now().await;
        }
        self.core.pool().prefetch(volume, lba, end).await
    }

    /// Finds the extents in `range` that lie over the pool's image: begin, end, and whether it
    /// is data, for each. Also returns how far the answer goes, as no more than `max` extents are
    /// looked at.
    async fn unpublished_parts(
        &self,
        volume: VolumeId,
        range: BlockRange,
        max: usize,
    ) -> Result<(Vec<(u64, u64, bool)>, Lba)> {
        self.core
            .resident(Class::Foreground, |st| {
                let found =
                    st.index.overlapping(&st.buckets, volume, range, max.saturating_add(1))?;
                let complete = if found.len() > max { found[max].lba } else { range.end };
                let new = found.into_iter().filter(|e| st.index.unpublished(e).is_some());
                let parts = new.map(|e| (e.lba.0, e.end(), !matches!(e.body, Body::Zeros { .. })));
                Ok((parts.collect(), complete))
            })
            .await
    }

    /// See [`crate::Cache::allocated`].
    pub(crate) async fn allocated(
        &self,
        volume: VolumeId,
        lba: Lba,
        end: Lba,
        max: usize,
    ) -> Result<(Vec<(Lba, u64)>, Lba)> {
        let (below, over, complete) = loop {
            let published = self.core.state().index.published();
            let (below, upto) = self.core.pool().allocated(volume, lba, end, max).await?;
            let range = BlockRange::new(lba, upto);
            let (over, complete) = self.unpublished_parts(volume, range, max).await?;
            // Extents that were published meanwhile may be in neither list.
            if self.core.state().index.published() == published {
                break (below, over, complete);
            }
        };
        let mut out: Vec<(Lba, u64)> = Vec::new();
        let mut push = |from: u64, to: u64| match out.last_mut() {
            Some((start, len)) if start.0 + *len == from => *len += to - from,
            _ if from < to => out.push((Lba(from), to - from)),
            _ => {}
        };
        // The pool's blocks count, but for where something newer lies over them; there the newer
        // counts.
        let mut over = over.into_iter().peekable();
        let mut below = below.into_iter().map(|(l, n)| (l.0, l.0 + n)).peekable();
        let mut at = lba.0;
        while at < complete.0 {
            while over.peek().is_some_and(|o| o.1 <= at) {
                over.next();
            }
            while below.peek().is_some_and(|b| b.1 <= at) {
                below.next();
            }
            let next_over = over.peek().map_or(complete.0, |o| o.0.max(at).min(complete.0));
            if next_over == at
                && let Some(&(_, to, data)) = over.peek()
            {
                let to = to.min(complete.0);
                if data {
                    push(at, to);
                }
                at = to;
            } else if let Some(&(from, to)) = below.peek()
                && from < next_over
            {
                let to = to.min(next_over);
                push(from.max(at), to);
                at = to;
            } else {
                at = next_over;
            }
        }
        Ok((out, complete))
    }
}

/// Looks up where blocks are, and sets a pin on each bucket.
fn plan(st: &mut State, volume: VolumeId, lba: Lba, blocks: u64) -> Step<SmallVec<[Piece; 1]>> {
    let range = BlockRange::of(lba, blocks);
    let mut pieces: SmallVec<[Piece; 1]> = SmallVec::new();
    if let Some(e) = st.index.within(&st.buckets, volume, range)?
        && !e.is_stale(&st.buckets)
    {
        let dirty = st.index.unpublished(&e).is_some();
        if let Body::Data { addr, crcs, cover, .. } = e.body {
            st.buckets.pin(addr);
            st.buckets.usage_mut().touch(addr, blocks as u32);
            pieces.push(Piece {
                lba,
                blocks,
                part: PieceSource::Bucket { addr, crcs, dirty, cover },
            });
            return Ok(pieces);
        }
    }
    let found = st.index.overlapping(&st.buckets, volume, range, usize::MAX)?;
    let published = st.index.published();
    // Knowledge about the gap that begins at `at`.
    let mut missed = CacheMiss::default();
    let gap = |pieces: &mut SmallVec<[Piece; 1]>, missed: &mut CacheMiss, from: u64, to: u64| {
        let part = PieceSource::Pool(std::mem::take(missed));
        if to > from {
            pieces.push(Piece { lba: Lba(from), blocks: to - from, part });
        }
    };
    let mut at = lba.0;
    for e in found {
        if e.is_stale(&st.buckets) {
            let e = e.slice(lba.0, range.end.0);
            if let Body::Data { addr, generation, .. } = e.body
                && st.buckets.usage_mut().missed(addr, generation, e.len())
            {
                missed.ghosts += e.len();
            }
            continue;
        }
        let dirty = st.index.unpublished(&e).is_some();
        if !dirty && (e.is_part() || matches!(e.body, Body::Staged { .. } | Body::Zeros { .. })) {
            continue;
        }
        let e = e.slice(lba.0, range.end.0);
        gap(&mut pieces, &mut missed, at, e.lba.0);
        at = e.end();
        let (from, blocks) = (e.lba, e.len());
        let part = match e.body {
            Body::Zeros { .. } => PieceSource::Zeros,
            // The open has carried all of them ([`crate::writeback::staged`]).
            Body::Staged { .. } => return Err(malformed().into()),
            Body::Data { cover, .. } if cover.below.is_some_and(|b| b.epoch > published) => {
                return Err(malformed().into());
            }
            Body::Data { addr, crcs, cover, .. } => {
                st.buckets.pin(addr);
                st.buckets.usage_mut().touch(addr, blocks as u32);
                PieceSource::Bucket { addr, crcs, dirty, cover }
            }
        };
        pieces.push(Piece { lba: from, blocks, part });
    }
    gap(&mut pieces, &mut missed, at, range.end.0);
    debug_assert_eq!(pieces.iter().map(|p| p.blocks).sum::<u64>(), blocks);
    Ok(pieces)
}

const _: () = assert!(STEP_BLOCKS * BLOCK_U64 <= 1 << 20);

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
