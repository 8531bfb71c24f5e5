//! Waiting for room: for the nodes that a change will add, and for the blocks that it writes.

use format::page::GroupKind;
use rt::Reason;
use smallvec::SmallVec;

use crate::pool::Pool;
use crate::space::{Alloc, Purpose, Run};
use crate::txn::Kind;
use base::Result;

/// Freed runs that become available before other tasks get a turn.
const DRAIN: usize = 256;
/// Before the pool is full, reads that are still about freed blocks are looked at so often, and so
/// many times.
const AFTER_READ: base::Duration = base::Duration::from_millis(10);
const READ_LOOKS: u32 = 5;
/// Commits of the direct transaction that a write-back pass asks for before the pool is full.
const PASS_COMMITS: u32 = 3;

impl Pool {
    /// Waits until a change may go ahead: its nodes will find room, and not too much is dirty.
    pub(super) async fn admit(&self, purpose: Purpose) -> Result<()> {
        match self.admits(purpose)? {
            (true, false) => Ok(()),
            _ => self.rt().waits(Reason::PoolRoom, Box::pin(self.make_room(purpose))).await,
        }
    }

    /// Whether there is room for a change's nodes, and whether too much is dirty.
    fn admits(&self, purpose: Purpose) -> Result<(bool, bool)> {
        let st = self.state();
        st.standing.permit()?;
        Ok((st.admits(purpose), st.txns.open().dirty_nodes() >= 2 * self.settings().dirty_nodes))
    }

    async fn make_room(&self, purpose: Purpose) -> Result<()> {
        let mut tries = 0;
        loop {
            let (fits, crowded) = self.admits(purpose)?;
            if fits && !crowded {
                return Ok(());
            }
            if tries == 2 {
                return Err(self.state().space.no_room("the pool is full: no room for metadata"));
            }
            tries += u32::from(!fits);
            self.commit().await?;
            if !fits {
                self.empty_limbo().await;
            }
        }
    }

    /// Frees, in slices, what commits have freed, waits for reads that are still about it, but not
    /// for long, and gives up groups that are empty then.
    async fn empty_limbo(&self) {
        for _ in 0..READ_LOOKS {
            while self.state_mut().space.drain(DRAIN) {
                self.rt().yield_now().await;
            }
            if !self.state().space.has_limbo() {
                break;
            }
            self.rt().sleep(AFTER_READ).await;
        }
        loop {
            {
                let mut st = self.state_mut();
                // What a commit writes of groups must not know of chunks that it does not say are
                // free.
                if st.txns.committing().is_some() || !st.space.may_dissolve() {
                    return;
                }
                let st = &mut *st;
                st.space.dissolve_empty(&mut st.devices, DRAIN);
            }
            self.rt().yield_now().await;
        }
    }

    /// Allocates `blocks` data blocks for a transaction of this kind, in as few runs as there are,
    /// or none at all.
    pub(crate) async fn take_blocks(&self, kind: Kind, blocks: u32) -> Result<SmallVec<[Run; 1]>> {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        let mut missing = blocks;
        // What was tried already: commits, and whether reads were waited for.
        let mut tried = (0, false);
        while missing > 0 {
            let got = self.try_take(kind, missing);
            let outcome = match got {
                Ok(Alloc::Got(run)) => {
                    missing -= run.len;
                    runs.push(run);
                    Ok(())
                }
                Ok(Alloc::NeedMaps(id)) => {
                    self.load_maps_to_take(id).await;
                    Ok(())
                }
                Ok(Alloc::Joined(_)) => {
                    self.warm_checksums();
                    Ok(())
                }
                Ok(Alloc::Full) if kind == Kind::Direct && self.open_waiting() => Ok(()),
                // A closed group is open again soon. What was taken is given back: it may be from
                // that group, whose move waits for it.
                Ok(Alloc::Full) if kind == Kind::Direct && self.state().space.any_closed() => {
                    let given = self.give_back(kind, &runs, Ok(()));
                    (runs, missing) = (SmallVec::new(), blocks);
                    self.rt().waits(Reason::PoolRoom, self.rt().sleep(AFTER_READ)).await;
                    given
                }
                Ok(Alloc::Full) => {
                    self.rt().waits(Reason::PoolRoom, self.find_room(kind, &mut tried)).await
                }
                Err(e) => Err(e),
            };
            if outcome.is_err() {
                return self.give_back(kind, &runs, outcome.map(|()| SmallVec::new()));
            }
        }
        Ok(runs)
    }

    fn try_take(&self, kind: Kind, blocks: u32) -> Result<Alloc> {
        let mut st = self.state_mut();
        if kind == Kind::Pass {
            return st.alloc_for_pass(blocks);
        }
        let got = if st.leaves_reserved(blocks.into()) {
            st.alloc(GroupKind::Data, blocks)
        } else {
            Alloc::Full
        };
        if let Alloc::Got(run) = got {
            st.space.begin_writing(run);
        }
        Ok(got)
    }

    /// Nothing could be allocated: waits for what may free something.
    async fn find_room(&self, kind: Kind, (commits, waited): &mut (u32, bool)) -> Result<()> {
        match kind {
            Kind::Direct if *commits == 0 && self.state().gives_back() => {
                *commits = 1;
                self.commit().await
            }
            Kind::Direct if !*waited => {
                *waited = true;
                self.empty_limbo().await;
                Ok(())
            }
            Kind::Direct => Err(self.state().space.no_room("the pool is full")),
            Kind::Pass if *commits < PASS_COMMITS => {
                *commits += 1;
                self.commit_direct().await
            }
            Kind::Pass if self.open_waiting() => Ok(()),
            Kind::Pass => Err(self.state().space.no_room("write-back: the pool is full")),
        }
    }

    /// A move that waits for the open write-back pass gives its group's room back; true if there
    /// was one.
    fn open_waiting(&self) -> bool {
        self.state_mut().space.open_waiting()
    }

    /// Blocks that were taken are not needed: makes them free again. Returns the outcome that it
    /// was given.
    pub(crate) fn give_back<T>(&self, kind: Kind, runs: &[Run], outcome: Result<T>) -> Result<T> {
        let mut st = self.state_mut();
        if kind == Kind::Direct {
            st.space.end_writing(runs);
            self.writes_ended().notify();
        }
        runs.iter().for_each(|&run| st.space.release(run));
        outcome
    }
}
