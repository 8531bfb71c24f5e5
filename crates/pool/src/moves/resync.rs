//! Resync: chunks that are behind get what was written while their device was away.
//!
//! Since a device began to come back it gets all that is written. So its groups need not be closed:
//! all that a chunk lacks was committed before, and a block is not used anew while a read of it is
//! under way. Parts of a tree that are older than the absence are passed over without being read.
//! A group that becomes empty may be given up meanwhile, and its chunks go to others: each step
//! looks whether they are still the group's.

use std::rc::Rc;

use base::{Generation, GroupId, Result};
use format::page::Chunk;

use super::copy::{CopyOutcome, CopyTarget};
use super::present::PresentChunks;
use super::unfilled::WriteErrors;
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::moves::copy::ChunkCopier;
use crate::state::State;
use crate::transfer::wait_for_reads::ReadDrain;

/// The most groups whose copies one commit makes durable.
const TOGETHER: usize = 16;

/// Brings devices up to date that were away.
pub(crate) struct Resyncer {
    core: Core,
    reads: Rc<ReadDrain>,
    commits: Rc<Commits>,
    copier: Rc<ChunkCopier>,
}

impl Resyncer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        reads: &Rc<ReadDrain>,
        commits: &Rc<Commits>,
        copier: &Rc<ChunkCopier>,
    ) -> Rc<Resyncer> {
        Rc::new(Resyncer {
            core: core.clone(),
            reads: reads.clone(),
            commits: commits.clone(),
            copier: copier.clone(),
        })
    }

    /// Copies to all chunks that are behind what they lack. Returns what some of them still wait
    /// for, if any do.
    pub(crate) async fn resync_all(&self) -> Result<Option<String>> {
        let (mut from, mut later) = (GroupId(0), None);
        loop {
            let mut copied: Vec<(GroupId, Vec<Chunk>, PresentChunks)> = Vec::new();
            let mut end = false;
            while copied.len() < TOGETHER && !end {
                let next = {
                    let st = self.core.state();
                    if st.moves.is_paused() || self.core.is_closed() {
                        None
                    } else {
                        st.space.groups().next_behind(from, &st.devices)
                    }
                };
                let Some((id, chunks)) = next else {
                    end = true;
                    continue;
                };
                from = GroupId(id.0 + 1);
                let present = PresentChunks::of(&self.core.state(), chunks.clone());
                let (to, since) = (CopyTarget::Behind(chunks.clone()), self.lacks_since(&chunks));
                let (before, rows) = (WriteErrors::of(&self.core.state()), to.rows());
                match self.copier.copy_group(id, to, since, None).await {
                    Ok(CopyOutcome::Complete) => copied.push((id, chunks, present)),
                    // Moves are to rest: what was copied is copied again later.
                    Ok(CopyOutcome::Interrupted) => end = true,
                    Err(e) => {
                        self.core.permit()?;
                        tracing::error!(group = id.0, "a block group cannot be refreshed now: {e}");
                        later = Some(before.what_failed(&self.core.state(), &rows, &e));
                    }
                }
            }
            if !copied.is_empty() {
                self.note_resynced(copied).await?;
            }
            if end {
                self.note_whole().await?;
                return Ok(later);
            }
        }
    }

    /// The first generation of which these chunks may lack something.
    fn lacks_since(&self, chunks: &[Chunk]) -> Generation {
        let st = self.core.state();
        let of = |c: &Chunk| st.devices.row(c.device.into())?.record().lacks_since;
        let has = chunks.iter().map(|c| of(c).unwrap_or_default()).min().unwrap_or_default();
        Generation(has.0 + 1)
    }

    /// Makes the copies durable; then these chunks are not behind any more.
    async fn note_resynced(&self, copied: Vec<(GroupId, Vec<Chunk>, PresentChunks)>) -> Result<()> {
        self.commits.commit_direct().await?;
        // Reads that began before may be about blocks that were freed, and not copied.
        let before = self.core.state_mut().space.limbo_mut().reads_until_now();
        self.reads.wait_for_reads(before).await;
        // A superblock says what devices are as of now. If one of another device's end, which these
        // chunks allow, were that of a commit that began before, its tables would say that they are
        // behind, and the pool would have no whole copy.
        let _alone = self.commits.between_commits().await?;
        let mut st = self.core.state_mut();
        for (id, chunks, present) in copied {
            if present.is_still_so(&st) {
                st.space.groups_mut().caught_up(id, &chunks);
            }
        }
        st.need_superblock();
        Ok(())
    }

    /// Records that devices without a chunk that is behind lack nothing any more.
    async fn note_whole(&self) -> Result<()> {
        if whole_again(&self.core.state()).is_empty() {
            return Ok(());
        }
        // A superblock says what devices are as of now, also where its commit began before. So that
        // no chunk is behind is durable first.
        self.commits.commit_direct().await?;
        let mut whole = Vec::new();
        {
            let mut st = self.core.state_mut();
            for row in whole_again(&st) {
                st.devices.row_mut(row).into_iter().for_each(|d| d.set_lacks_since(None));
                whole.push(st.devices.path(row).to_owned());
            }
            st.need_superblock();
        }
        self.commits.commit_direct().await?;
        for device in whole {
            tracing::info!(device = %device, "the device is up to date again");
        }
        Ok(())
    }
}

/// Devices in use that lack something by their records, and have no chunk that is behind.
fn whole_again(st: &State) -> Vec<usize> {
    let lacks = |row: usize| st.devices.row(row).is_some_and(|d| d.record().lacks_since.is_some());
    let rows = st.devices.live_rows().into_iter();
    rows.filter(|&row| lacks(row) && st.space.groups().sets().behind_on(row) == 0).collect()
}
