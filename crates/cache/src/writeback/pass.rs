//! Write-back in passes: each carries one cut of the cache to the pool, and the pool
//! publishes all of it at once, with the cuts before it.
//!
//! 1. *Cut*, in O(1): the open epoch is sealed, the next one opens; the index's tree is cloned; the
//!    clone costs nothing and never changes. What is overwritten from now on is a new key in the
//!    live tree; the clone still has the old one, and its bytes stay in their bucket. There may be
//!    several cuts ([`crate::writeback::cuts`]).
//! 2. The clone is walked in the order of addresses, without what is older than the cut that was
//!    published last ([`crate::writeback::walk`]); runs of dirty blocks are read, verified, and
//!    written into free space of the pool, in the pass's own transaction, at the pace that the
//!    controller sets.
//! 3. The journal is made durable up to the cut. Only then may the pool have what the cut has: if
//!    the cache lost a write that the pool has, an older write in the cache would hide it.
//! 4. The pool publishes the pass with the cut's epoch in its superblock. From that moment every
//!    key of this epoch and of older ones is clean.
//!
//! A crash before step 4 leaves nothing of the pass in the pool. After an error the cut is kept,
//! and is tried again before any other.
//!
//! A dirty block that is bad in the cache cannot be carried. It is entered again into the open
//! epoch, so that it stays dirty and reading it stays an error: if it became clean, reads would get
//! the pool's old block.

use base::{
    BLOCK_U64, BlockRange, ErrorKind, Lba, Result, SliceList, StorageError, VolumeId, worth_telling,
};
use pool::Pass;
use queue::Class;
use rt::sync::Semaphore;
use smallvec::SmallVec;
use std::collections::VecDeque;

use crate::Cache;
use crate::store::key::{Body, IndexKey};
use crate::writeback::cuts::Cut;
use crate::writeback::walk::{Carried, Content, Walk};

/// Runs under way at once. Many: runs of single blocks go to neighbouring places of the pool, and
/// the queue merges those that wait together into one request. A disk with too few requests at hand
/// loses revolutions.
const RUNS: usize = 512;
/// Blocks in them.
const BLOCKS: u64 = 4096;
/// The most runs that are read from the cache at once. Few: other work of the background on the
/// cache device (checkpoints, collection, promotion) waits behind them.
const READS: u64 = 128;

impl Cache {
    /// One pass, from the cut (or with the cut that an error left) to its publication. To be
    /// called by [`Cache::run_pass`] alone.
    pub(crate) async fn one_pass(&self) -> Result<()> {
        let left = self.writeback().passes().cuts().carried().cloned();
        if let Some(cut) = left.as_ref().filter(|cut| cut.handed_over) {
            // The pool has all of it, and publishes it with whichever commit ends well: perhaps one
            // of another task has.
            if self.pool().published() < cut.epoch {
                self.check_failed()?;
                self.pool().commit().await?;
                let published = self.pool().published();
                assert!(published >= cut.epoch, "a commit publishes what was handed over");
            }
            return self.conclude(cut).await;
        }
        self.check_failed()?;
        let cut = match left {
            Some(cut) => cut,
            None => self.choose_cut().await?,
        };
        let _passing = self.passing();
        self.carry_and_publish(&cut).await
    }

    async fn carry_and_publish(&self, cut: &Cut) -> Result<()> {
        let pass = self.begin_pass(cut)?;
        let mut outcome = self.carry(&pass, cut).await;
        if outcome.is_ok() {
            self.writeback().passes_mut().publishes();
            self.gate().wake();
            outcome = self.finish(&pass, cut).await;
        }
        self.writeback().passes_mut().ends();
        if outcome.is_err() {
            self.abort_pass(pass, cut).await;
        }
        outcome
    }

    /// Begins to write into the pool, within the room of the cut and of those before it.
    fn begin_pass(&self, cut: &Cut) -> Result<Pass> {
        let mut room = self.state_mut().empty_reservation();
        let mut passes = self.writeback().passes_mut();
        passes.begins(cut.epoch);
        let cuts = passes.cuts_mut();
        cuts.take_room(cut.epoch, &mut room);
        let pass = self.pool().begin_pass(&mut room);
        if pass.is_err() {
            cuts.put_room(cut.epoch, room);
        }
        pass
    }

    async fn abort_pass(&self, pass: Pass, cut: &Cut) {
        if let Some(room) = pass.abort().await {
            self.writeback().passes_mut().cuts_mut().put_room(cut.epoch, room);
        }
    }

    /// True if the pool has all of the carried cut: it publishes the cut with the next good commit,
    /// even if the cache device fails.
    pub(super) fn has_handed_over(&self) -> bool {
        self.writeback().passes().cuts().handed_over().is_some()
    }

    async fn carry(&self, pass: &Pass, cut: &Cut) -> Result<()> {
        let walk = Walk::over(cut, self.state().limbo().published_before());
        let mut ahead = Some(self.find_batch(pass, walk));
        let (mut tasks, reading) = (VecDeque::new(), Semaphore::new(READS));
        let mut in_flight = 0;
        let mut outcome = Ok(());
        while let Some(batch) = ahead.take() {
            let batch = match join_task(batch).await {
                Ok((batch, walk)) => {
                    if walk.goes_on() && outcome.is_ok() {
                        ahead = Some(self.find_batch(pass, walk));
                    }
                    batch
                }
                Err(e) => {
                    outcome = outcome.and(Err(e));
                    break;
                }
            };
            for run in batch {
                // Zeros take no memory.
                let n = run.carried();
                while (tasks.len() >= RUNS || in_flight + n > BLOCKS)
                    && let Some((done, t)) = tasks.pop_front()
                {
                    in_flight -= done;
                    outcome = outcome.and(join_task(t).await);
                }
                if self.health().is_closed() {
                    let text = "the cache is closed: the next start carries the rest";
                    outcome = outcome.and(Err(StorageError::new(ErrorKind::Io, text)));
                }
                if outcome.is_err() {
                    break;
                }
                // Zeros write no data, so no rate holds them up.
                let end = run.lba.plus(run.blocks);
                if n > 0 && pass.unreachable(run.volume, run.lba, end).is_none() {
                    self.pace(n * BLOCK_U64).await;
                }
                let (cache, pass, cut) = (self.clone(), pass.clone(), cut.clone());
                let reading = reading.clone();
                in_flight += n;
                tasks.push_back((
                    n,
                    self.rt().spawn(async move {
                        let outcome = cache.carry_run(&pass, run, &cut, reading).await;
                        cache.writeback().passes_mut().came(n);
                        cache.gate().wake();
                        outcome
                    }),
                ));
            }
        }
        for (_, t) in tasks {
            outcome = outcome.and(join_task(t).await);
        }
        outcome
    }

    /// Reads one run from the cache and writes it into the pass.
    async fn carry_run(
        &self,
        pass: &Pass,
        mut run: Carried,
        cut: &Cut,
        reading: Semaphore,
    ) -> Result<()> {
        // A cut that a failed pass has left may have blocks behind the volume's end by now. The
        // size changes between passes only.
        let end = self.pool().volume_size(run.volume).unwrap_or(0).div_ceil(BLOCK_U64);
        if run.lba.0 + run.blocks > end {
            run.blocks = end.saturating_sub(run.lba.0);
            if let Content::Data(parts) = &mut run.content {
                parts.retain(|p| p.lba.0 < end);
                parts.iter_mut().for_each(|p| *p = p.slice(p.lba.0, end));
            }
            if run.blocks == 0 {
                return Ok(());
            }
        }
        let end = run.lba.plus(run.blocks);
        let entered = match &run.content {
            Content::Data(_) => pass.reach(run.volume, run.lba, end).await,
            Content::Zeros => gone_is_fine(pass.discard(run.volume, run.lba, end).await),
            Content::Staged(epoch) => {
                let range = BlockRange::new(run.lba, end);
                self.copy_staged(pass, run.volume, *epoch, range).await
            }
        };
        match entered {
            Err(e) if e.kind == ErrorKind::Unreachable => return self.keep_run(&run, e, cut).await,
            other => other?,
        }
        let Content::Data(parts) = run.content else { return Ok(()) };
        let turn = reading.acquire(1).await;
        let mut reads = Vec::with_capacity(parts.len());
        for part in parts {
            let cache = self.clone();
            reads.push(self.rt().spawn(async move {
                let Body::Data { addr, crcs, .. } = &part.body else {
                    unreachable!("a run of data")
                };
                let data = cache.read_bucket(*addr, crcs, Class::WriteBack).await;
                let data = match data {
                    Ok(data) => Some(cache.carried(&part, data).await),
                    Err(_) => None,
                };
                (data, part)
            }));
        }
        let mut good: SmallVec<[(SliceList, Vec<base::Crc>, Lba); 1]> = SmallVec::new();
        for r in reads {
            let Some((data, part)) = r.await else {
                return Err(StorageError::new(ErrorKind::Io, "the runtime has ended"));
            };
            let Some(Ok((data, crcs))) = data else {
                self.carry_bad(part, pass, cut).await?;
                continue;
            };
            self.note_carried(&part).await?;
            match good.last_mut() {
                Some((list, sums, lba)) if lba.0 + sums.len() as u64 == part.lba.0 => {
                    list.push(data);
                    sums.extend(crcs);
                }
                _ => good.push((SliceList::from_iter([data]), crcs, part.lba)),
            }
        }
        drop(turn);
        for (data, crcs, lba) in good {
            self.write_in(pass, run.volume, lba, data, &crcs).await?;
        }
        Ok(())
    }

    /// Writes blocks into the pass. A volume that was deleted meanwhile needs nothing.
    pub(super) async fn write_in(
        &self,
        pass: &Pass,
        volume: VolumeId,
        lba: Lba,
        data: SliceList,
        crcs: &[base::Crc],
    ) -> Result<()> {
        gone_is_fine(pass.write(volume, lba, data, crcs).await)
    }

    /// Carries an extent with a bad block, block by block: good blocks go into the pass, bad ones
    /// stay dirty.
    async fn carry_bad(&self, part: IndexKey, pass: &Pass, cut: &Cut) -> Result<()> {
        for i in 0..part.len() {
            let one = part.slice(part.lba.0 + i, part.lba.0 + i + 1);
            let Body::Data { addr, crcs, .. } = &one.body else { continue };
            let read = self.read_bucket(*addr, crcs, Class::WriteBack).await;
            let mine = read.is_err();
            let why = match read {
                Ok(data) => match self.carried(&one, data).await {
                    Ok((data, crcs)) => {
                        let data = SliceList::from_iter([data]);
                        self.write_in(pass, one.volume, one.lba, data, &crcs).await?;
                        self.note_carried(&one).await?;
                        continue;
                    }
                    // Gone with its volume.
                    Err(e) if e.kind == ErrorKind::NotFound => continue,
                    Err(e) => {
                        format!("is written in part, and the pool cannot read the rest ({e}): it")
                    }
                },
                Err(_) => {
                    let volume = self.pool().volume_name(one.volume);
                    let what = format!("block {} of volume {volume}", one.lba);
                    self.check_answers(Class::WriteBack, what).await?;
                    "is bad in the cache and".to_owned()
                }
            };
            self.copy_below(pass, &one).await?;
            self.writeback().passes_mut().leaves_bad();
            let (bad, addr, mut room) = (one.clone(), *addr, self.upkeep_room().await?);
            // The cut keeps its own room: a later try may read the block well.
            let mut reserved = self.pool().take_over(1);
            let known = self
                .resident(Class::WriteBack, |st| {
                    let range = bad.range();
                    let now = st.index.overlapping(&st.buckets, bad.volume, range, 1)?;
                    let now = now.first().map(|e| e.slice(range.from.0, range.end.0));
                    let same =
                        now.filter(|e| matches!(e.body, Body::Data { addr: a, .. } if a == addr));
                    match same.map(|e| e.written.is_some_and(|w| w <= cut.epoch)) {
                        Some(true) => {}
                        // Entered again by an earlier try.
                        Some(false) => return Ok(None),
                        None => {
                            // Overwritten since: the pool's image will lack what the cut has there,
                            // until the next one.
                            if mine {
                                st.buckets.condemn(addr);
                            }
                            st.lost_in_cut();
                            return Ok(None);
                        }
                    }
                    // The block is entered again, and is as bad as before.
                    let was_known = st.bad_blocks().has(bad.volume, bad.lba);
                    let again = IndexKey { written: Some(st.buckets.epoch()), ..bad.clone() };
                    st.change_dirty(&mut room, &mut reserved, bad.volume, range, &[again])?;
                    let known = if mine {
                        st.buckets.condemn(addr);
                        st.note_bad(bad.volume, bad.lba)
                    } else {
                        st.note_stuck(bad.volume, bad.lba)
                    };
                    Ok(known.filter(|_| !was_known))
                })
                .await?;
            if known.is_some_and(worth_telling) {
                tracing::error!(cache = %self.path(), "block {} of volume {} {why} cannot be \
                    written back; forebay cache status names all such blocks", one.lba,
                    self.pool().volume_name(one.volume));
            }
        }
        Ok(())
    }

    /// Blocks that a pass has carried are bad no more, unless they were replaced since.
    async fn note_carried(&self, e: &IndexKey) -> Result<()> {
        match e.body {
            Body::Data { addr, .. } => {
                self.note_good(Class::WriteBack, e.volume, e.range(), addr).await
            }
            Body::Zeros { .. } | Body::Staged { .. } => Ok(()),
        }
    }

    async fn finish(&self, pass: &Pass, cut: &Cut) -> Result<()> {
        let target = self.state().journal().pushed();
        self.durable(target, Class::Commit).await?;
        let handed_over = pass.hand_over(cut.epoch, cut.taken_at).await?;
        self.writeback().passes_mut().cuts_mut().hand_over(&handed_over);
        handed_over.commit().await?;
        self.conclude(cut).await
    }

    /// The cut is published: everything of it and of those before is clean.
    async fn conclude(&self, cut: &Cut) -> Result<()> {
        let (kept, well) = {
            // Nothing is woken before both are settled.
            let mut st = self.state_mut();
            st.publish(cut.epoch);
            let (open, dirty) = (st.buckets.epoch(), st.buckets.is_dirty());
            self.writeback().passes_mut().conclude(cut, open, dirty)
        };
        self.tell_kept(&kept, &well);
        while self.state_mut().buckets.tidy(256) {
            self.rt().yield_now().await;
        }
        // The device of the cache may have failed since the pool had all of the cut.
        self.set_aside_if_failed();
        self.give_back_nodes().await;
        Ok(())
    }
}

/// A volume that was deleted meanwhile needs nothing.
pub(super) fn gone_is_fine(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

async fn join_task<T>(t: rt::JoinHandle<Result<T>>) -> Result<T> {
    t.await.unwrap_or_else(|| Err(StorageError::new(ErrorKind::Io, "the runtime has ended")))
}

#[cfg(test)]
#[path = "pass_tests.rs"]
mod tests;
