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
//!    key of this epoch and of older ones is clean. No key of data is dropped: collection drops
//!    those of zeros and of staged blocks.
//!
//! A crash before step 4 leaves nothing of the pass in the pool. After an error the cut is kept,
//! and is tried again before any other.
//!
//! A dirty block that is bad in the cache cannot be carried. It is entered again into the open
//! epoch, so that it stays dirty and reading it stays an error: if it became clean, reads would get
//! the pool's old block.

use std::rc::Rc;

use base::{BLOCK_U64, ErrorKind, Result, StorageError};
use pool::Pass;
use queue::Class;
use rt::sync::Semaphore;
use std::collections::VecDeque;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::space::pacer::Pacer;
use crate::transfer::journal_writer::JournalWriter;
use crate::writeback::cuts::Cut;
use crate::writeback::kept::Keeper;
use crate::writeback::run_carrier::RunCarrier;
use crate::writeback::take_cut::CutTaker;
use crate::writeback::walk::Walk;

/// Runs under way at once. Many: runs of single blocks go to neighbouring places of the pool, and
/// the queue merges those that wait together into one request. A disk with too few requests at hand
/// loses revolutions.
const RUNS: usize = 512;
/// Blocks in them.
const BLOCKS: u64 = 4096;
/// The most runs that are read from the cache at once. Few: other work of the background on the
/// cache device (checkpoints, collection, promotion) waits behind them.
const READS: u64 = 128;

/// Carries one cut to the pool.
pub(crate) struct Carrier {
    pub(super) core: Core,
    failures: Rc<Failures>,
    journal: Rc<JournalWriter>,
    pacer: Rc<Pacer>,
    pub(super) keeper: Rc<Keeper>,
    cut_taker: Rc<CutTaker>,
    runs: Rc<RunCarrier>,
}

impl Carrier {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        journal: &Rc<JournalWriter>,
        pacer: &Rc<Pacer>,
        keeper: &Rc<Keeper>,
        cut_taker: &Rc<CutTaker>,
        runs: &Rc<RunCarrier>,
    ) -> Rc<Carrier> {
        Rc::new(Carrier {
            core: core.clone(),
            failures: failures.clone(),
            journal: journal.clone(),
            pacer: pacer.clone(),
            keeper: keeper.clone(),
            cut_taker: cut_taker.clone(),
            runs: runs.clone(),
        })
    }

    /// One pass, from the cut (or with the cut that an error left) to its publication. To be
    /// called by [`crate::writeback::pass_runner::PassRunner`] alone.
    pub(crate) async fn one_pass(self: &Rc<Self>) -> Result<()> {
        let left = self.core.writeback().passes().cuts().carried().cloned();
        if let Some(cut) = left.as_ref().filter(|cut| cut.handed_over) {
            // The pool has all of it, and publishes it with whichever commit ends well: perhaps one
            // of another task has.
            if self.core.pool().cache_link().published() < cut.epoch {
                self.failures.check_failed()?;
                self.core.pool().commit().await?;
                let published = self.core.pool().cache_link().published();
                assert!(published >= cut.epoch, "a commit publishes what was handed over");
            }
            return self.conclude(cut).await;
        }
        self.failures.check_failed()?;
        let cut = match left {
            Some(cut) => cut,
            None => self.cut_taker.choose_cut().await?,
        };
        let _passing = self.cut_taker.passing();
        self.carry_and_publish(&cut).await
    }

    async fn carry_and_publish(self: &Rc<Self>, cut: &Cut) -> Result<()> {
        let pass = self.begin_pass(cut)?;
        let mut outcome = self.carry(&pass, cut).await;
        if outcome.is_ok() {
            self.core.writeback().passes_mut().publishes();
            self.core.gate().wake();
            outcome = self.finish(&pass, cut).await;
        }
        self.core.writeback().passes_mut().ends();
        if outcome.is_err() {
            self.abort_pass(pass, cut).await;
        }
        outcome
    }

    /// Begins to write into the pool, within the room of the cut and of those before it.
    fn begin_pass(&self, cut: &Cut) -> Result<Pass> {
        let mut room = self.core.state_mut().empty_reservation();
        let mut passes = self.core.writeback().passes_mut();
        passes.begins(cut.epoch);
        let cuts = passes.cuts_mut();
        cuts.take_room(cut.epoch, &mut room);
        let pass = self.core.pool().begin_pass(&mut room);
        if pass.is_err() {
            cuts.put_room(cut.epoch, room);
        }
        pass
    }

    async fn abort_pass(&self, pass: Pass, cut: &Cut) {
        if let Some(room) = pass.abort().await {
            self.core.writeback().passes_mut().cuts_mut().put_room(cut.epoch, room);
        }
    }

    async fn carry(self: &Rc<Self>, pass: &Pass, cut: &Cut) -> Result<()> {
        let walk = Walk::over(cut, self.core.state().limbo().published_before());
        let mut ahead = Some(walk.find_batch(&self.core, pass));
        let (mut tasks, reading) = (VecDeque::new(), Semaphore::new(READS));
        let mut in_flight = 0;
        let mut outcome = Ok(());
        while let Some(batch) = ahead.take() {
            let batch = match join_task(batch).await {
                Ok((batch, walk)) => {
                    if walk.goes_on() && outcome.is_ok() {
                        ahead = Some(walk.find_batch(&self.core, pass));
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
                if self.core.health().is_closed() {
                    let text = "the cache is closed: the next start carries the rest";
                    outcome = outcome.and(Err(StorageError::new(ErrorKind::Io, text)));
                }
                if outcome.is_err() {
                    break;
                }
                // Zeros write no data, so no rate holds them up.
                let end = run.lba.plus(run.blocks);
                if n > 0 && pass.unreachable(run.volume, run.lba, end).is_none() {
                    self.pacer.pace(n * BLOCK_U64).await;
                }
                let (this, pass, cut) = (self.clone(), pass.clone(), cut.clone());
                let reading = reading.clone();
                in_flight += n;
                tasks.push_back((
                    n,
                    self.core.rt().spawn(async move {
                        let outcome = this.runs.carry_run(&pass, run, &cut, reading).await;
                        this.core.writeback().passes_mut().came(n);
                        this.core.gate().wake();
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

    async fn finish(&self, pass: &Pass, cut: &Cut) -> Result<()> {
        let target = self.core.state().journal().pushed();
        self.journal.durable(target, Class::Commit).await?;
        let handed_over = pass.hand_over(cut.epoch, cut.taken_at).await?;
        self.core.writeback().passes_mut().cuts_mut().hand_over(&handed_over);
        handed_over.commit().await?;
        self.conclude(cut).await
    }

    /// The cut is published: everything of it and of those before is clean.
    async fn conclude(&self, cut: &Cut) -> Result<()> {
        let (kept, well) = {
            // Nothing is woken before both are settled.
            let mut st = self.core.state_mut();
            st.publish(cut.epoch);
            let (open, dirty) = (st.buckets.epochs().open(), st.buckets.counts().is_dirty());
            self.core.writeback().passes_mut().conclude(cut, open, dirty)
        };
        self.keeper.tell_kept(&kept, &well);
        while self.core.state_mut().buckets.tidy(256) {
            self.core.rt().yield_now().await;
        }
        // The device of the cache may have failed since the pool had all of the cut.
        self.failures.set_aside_if_failed();
        self.core.give_back_nodes().await;
        Ok(())
    }
}

async fn join_task<T>(t: rt::JoinHandle<Result<T>>) -> Result<T> {
    t.await.unwrap_or_else(|| Err(StorageError::new(ErrorKind::Io, "the runtime has ended")))
}

#[cfg(test)]
#[path = "pass_tests.rs"]
mod tests;
