//! A drain: all that is dirty comes to the pool, while clients go on, until so little is left that
//! the rest takes a moment. A detach needs it, and a volume that ceases to write back.
//!
//! A pass carries what was dirty when it began. If clients make as much dirty meanwhile, the next
//! one takes as long, and so on. Therefore a drain goes in *rounds*, each of which publishes all
//! that is dirty. During the first, clients are not held up. In each that follows they may begin at
//! most half of the *work* that it carries, and a little more. So each round carries about half of
//! what the one before did, whatever the clients and the pool can do: no speed is estimated.
//!
//! The work that clients may begin is let in bit by bit, or they would stop and go: an eighth when
//! the round begins, a quarter as its pass carries, and an eighth while that is published. Clients
//! that make less dirty than half of what the pool takes do not wait.
//!
//! When little is left the gate shuts. Changes that are under way end, and one pass carries the
//! rest, which is bounded by a count. From then on nothing is dirty, and nothing becomes so, until
//! the drain is dropped. Reads and flushes never wait for it.
//!
//! Work is counted in what it costs to carry it: each request changes places of its own in the
//! pool's trees, and a long one more of them. The count says how long a drain goes on, and nothing
//! else: the caller has to look whether the pool has everything.

use std::rc::Rc;

use base::{Result, VolumeId};
use rt::Reason;

use super::drain_gate::{Change, LITTLE, Limit, Progress};
use crate::core::Core;
use crate::job;
use crate::writeback::pass_runner::PassRunner;

/// After so many rounds what is left is what single requests do, each of which is more than little.
const MOST_ROUNDS: u32 = 24;

/// A drain, until it is dropped.
pub struct Drain {
    core: Core,
}

impl Drop for Drain {
    fn drop(&mut self) {
        let gate = self.core.gate();
        gate.limit.set(Limit::None);
        gate.moved.notify();
    }
}

/// Holds changes of clients up while a drain goes on.
pub(crate) struct Drainer {
    core: Core,
    passes: Rc<PassRunner>,
}

impl Drainer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, passes: &Rc<PassRunner>) -> Rc<Drainer> {
        Rc::new(Drainer { core: core.clone(), passes: passes.clone() })
    }

    /// See [`crate::Cache::begin_change`].
    pub(crate) async fn begin_change(&self, work: u64) -> Change {
        let gate = self.core.gate();
        if gate.door.free() > 0 && gate.lets_in(self.pass_progress()) {
            return gate.enter(work);
        }
        let wait = Box::pin(self.wait_at_gate(work));
        self.core.rt().waits_for_job(Reason::Drain, job::WRITE_BACK, wait).await
    }

    async fn wait_at_gate(&self, work: u64) -> Change {
        let gate = self.core.gate();
        let _first = gate.door.acquire(1).await;
        loop {
            let moved = gate.moved.wait();
            if gate.lets_in(self.pass_progress()) {
                return gate.enter(work);
            }
            moved.await;
        }
    }

    fn pass_progress(&self) -> Progress {
        self.core.writeback().passes().progress()
    }

    /// True if the pool has all of a volume, or of all.
    fn is_drained(&self, volume: Option<VolumeId>) -> bool {
        match volume {
            Some(volume) => self.core.levels().is_written_back(volume),
            None => self.core.levels().all_written_back(),
        }
    }

    /// See [`crate::Cache::drain`].
    pub(crate) async fn drain<T>(
        self: &Rc<Self>,
        volume: Option<VolumeId>,
        last: impl Future<Output = T>,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<(Drain, T)> {
        let (drain, gate) = (Drain { core: self.core.clone() }, self.core.gate());
        let (mut last, mut had) = (Some(last), None);
        for round in 0.. {
            gate.begin_round(round == 0);
            // A cache that holds nothing is not asked for anything: its device may hang.
            if volume.is_some() || !self.core.levels().holds_nothing() {
                self.passes.publish_all().await?;
            }
            go_on()?;
            if round == 0 && volume.is_none() {
                // A commit now leaves little to do for the commit without the cache. If it fails,
                // the later one tells why.
                let _ = self.core.pool().commit().await;
                go_on()?;
            }
            let little = || gate.next.get() <= LITTLE || round >= MOST_ROUNDS;
            if !little() && !self.is_drained(volume) {
                continue;
            }
            if let Some(last) = last.take() {
                // The future `last` may wait for what waits at the gate.
                gate.limit.set(Limit::None);
                gate.moved.notify();
                had = Some(last.await);
            }
            gate.limit.set(Limit::Nothing);
            while gate.under_way.get() > 0 {
                gate.moved.wait().await;
            }
            if !self.is_drained(volume) {
                if !little() {
                    continue;
                }
                self.passes.publish_all().await?;
                go_on()?;
            }
            if let Some(had) = had {
                return Ok((drain, had));
            }
            break;
        }
        unreachable!("it was waited for before the gate shut")
    }
}
