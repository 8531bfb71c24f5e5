//! The flow of a scrub: over everything in order, a bounded number of bytes in flight, at a rate.

use std::rc::Rc;

use base::{BLOCK_U64, Duration, GroupId};
use format::page::GroupKind;
use format::superblock::scrub::ScrubStage;
use queue::Class;
use rt::sync::either;

use super::window::{PartResult, Stop, Window};
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::scrub::Scrubs;
use crate::scrub::load::ScrubLoader;
use crate::scrub::lost_again::LostBlockPruner;
use crate::scrub::progress::pass_scrubbed;
use crate::scrub::tables::TableScrub;
use crate::scrub::trees::TreeScrub;
use crate::scrub::verify::Verifier;
use crate::transfer::load::NodeLoader;
use crate::transfer::walk::{Leaf, Walk, pinned, runs};

/// The job's name.
const JOB: &str = "scrub";
/// The time between two looks whether the next scrub is due.
const LOOK: Duration = Duration::from_secs(60);
/// The pause of a scrub after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs scrubs, one at a time, in the background.
pub(crate) struct Scrubber {
    pub(super) core: Core,
    loader: Rc<NodeLoader>,
    commits: Rc<Commits>,
    lost: Rc<LostBlockPruner>,
    pub(super) scrubs: Rc<Scrubs>,
    scrub_loader: Rc<ScrubLoader>,
    tables: Rc<TableScrub>,
    trees: Rc<TreeScrub>,
    verifier: Rc<Verifier>,
}

impl Scrubber {
    /// Makes the flow out of the core and the flows that it calls.
    #[allow(clippy::too_many_arguments, reason = "a flow names each flow that it calls")]
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        commits: &Rc<Commits>,
        lost: &Rc<LostBlockPruner>,
        scrubs: &Rc<Scrubs>,
        scrub_loader: &Rc<ScrubLoader>,
        tables: &Rc<TableScrub>,
        trees: &Rc<TreeScrub>,
        verifier: &Rc<Verifier>,
    ) -> Rc<Scrubber> {
        Rc::new(Scrubber {
            core: core.clone(),
            loader: loader.clone(),
            commits: commits.clone(),
            lost: lost.clone(),
            scrubs: scrubs.clone(),
            scrub_loader: scrub_loader.clone(),
            tables: tables.clone(),
            trees: trees.clone(),
            verifier: verifier.clone(),
        })
    }

    /// Begins to scrub in the background whenever a scrub runs; one that ran when the pool was
    /// closed or killed goes on.
    pub(crate) fn begin_scrubbing(self: &Rc<Self>) {
        let this = self.clone();
        pass_scrubbed(&mut self.core.state_mut());
        self.core.rt().detach_background(JOB, async move {
            while !this.core.is_closed() {
                let changed = this.core.state().scrub.changed();
                let turn = this.core.state().scrub.turn();
                let Some(turn) = turn else {
                    this.start_when_due().await;
                    either(changed, this.core.rt().sleep(LOOK)).await;
                    continue;
                };
                this.core.state_mut().scrub.set_at_work(true);
                let went = this.scrub(turn).await;
                this.core.state_mut().scrub.set_at_work(false);
                match went {
                    Ok(()) | Err(Stop::Ended) => {}
                    Err(Stop::Failed(e)) => {
                        tracing::error!("scrub error: {e}; retrying in 5 s");
                        this.core.rt().sleep(AGAIN).await;
                    }
                }
            }
        });
    }

    /// Goes on from where the scrub is. Nothing of it is in flight afterwards.
    async fn scrub(&self, turn: u64) -> PartResult {
        self.core.state_mut().note_scrub_lacks();
        let mut window = Window::new(&self.verifier, turn);
        let went = self.scrub_all(&mut window).await;
        window.drain().await;
        went
    }

    async fn scrub_all(&self, window: &mut Window) -> PartResult {
        let place = self.core.state().scrub.place();
        if place.stage == ScrubStage::Tables {
            self.tables.scrub_tables(window).await?;
            window.reach(ScrubStage::Volumes, 0, 0).await?;
        }
        if place.stage <= ScrubStage::Volumes {
            self.trees.scrub_volumes(window, place.index).await?;
            window.reach(ScrubStage::Groups, 0, 0).await?;
        }
        let (mut at, mut block) = match place.stage {
            ScrubStage::Groups => (place.index, place.block),
            _ => (0, 0),
        };
        while at < self.core.state().space.geometry().group_capacity {
            self.scrub_group(window, GroupId(at), block).await?;
            (at, block) = (at + 1, 0);
            window.reach(ScrubStage::Groups, at, 0).await?;
        }
        self.tables.scrub_superblocks().await?;
        self.core.state_mut().note_scrub_lacks();
        let now = self.core.unix_time(self.core.now());
        if !self.core.state_mut().scrub.complete(window.turn, now) {
            return Err(Stop::Ended);
        }
        self.core.state_mut().note_in_superblock();
        {
            let mut st = self.core.state_mut();
            let only = st.scrub.device();
            st.devices.end_scrub(only);
        }
        self.lost.read_lost_again().await;
        let status = self.scrubs.scrub_status().await;
        tracing::info!(
            bytes = status.verified_bytes,
            bad = status.bad,
            healed = status.healed,
            lost = status.lost,
            away = status.away,
            "a scrub has ended"
        );
        self.commits.commit().await?;
        Ok(())
    }

    /// Bitmap pages, checksum tree and data of a group.
    async fn scrub_group(&self, window: &mut Window, id: GroupId, from: u32) -> PartResult {
        let kind = self.core.state().space.groups().kind(id);
        // A group that holds no data any more keeps the nodes of its tree, for its next use.
        if from == 0 && kind != GroupKind::Data {
            self.trees.scrub_sums(window, id).await?;
        }
        if kind == GroupKind::Free {
            return Ok(());
        }
        window.check()?;
        if let Err(e) = self.scrub_loader.surely(async || self.loader.load_maps(id).await).await? {
            tracing::error!(group = id.0, "scrub: a block group is passed over: {e}");
            self.core.state_mut().scrub.lost(None);
            return Ok(());
        }
        if from == 0 {
            if let Err(e) = self.tables.scrub_bitmaps(id).await? {
                tracing::error!(group = id.0, "scrub: a block group is passed over: {e}");
                self.core.state_mut().scrub.lost(None);
                return Ok(());
            }
            if kind == GroupKind::Data {
                self.trees.scrub_sums(window, id).await?;
            }
        }
        if kind != GroupKind::Data {
            return Ok(());
        }
        let group_blocks = self.core.state().space.geometry().group_blocks;
        let gap = (self.core.settings().scrub_gap / BLOCK_U64) as u32;
        let (mut walk, mut at) = (Walk::new(id, from, group_blocks), from);
        loop {
            window.rest().await?;
            self.scrub_loader.read_leaves(&walk).await;
            let mut step = |st: &mut crate::state::State| {
                let pin = st.space.limbo().pin();
                Ok((walk.next_leaf(st, at)?, pin))
            };
            let found = self
                .scrub_loader
                .surely(async || self.loader.resident(Class::Scrub, &mut step).await)
                .await?;
            let (leaf, pin) = match found {
                Ok(found) => found,
                Err(e) => {
                    tracing::error!(
                        group = id.0,
                        block = at,
                        "scrub: the rest of a block group is passed over, its checksums cannot be \
                         read: {e}"
                    );
                    self.core.state_mut().scrub.lost(None);
                    return Ok(());
                }
            };
            match leaf {
                Leaf::End => return Ok(()),
                Leaf::NoMaps => {
                    drop(pin);
                    if let Err(e) =
                        self.scrub_loader.surely(async || self.loader.load_maps(id).await).await?
                    {
                        tracing::error!(
                            group = id.0,
                            "scrub: the rest of a block group is passed over: {e}"
                        );
                        self.core.state_mut().scrub.lost(None);
                        return Ok(());
                    }
                }
                Leaf::Blocks(mut blocks, mut upto) => {
                    match blocks.get(window.at_once()).map(|next| next.addr) {
                        Some(next) => {
                            blocks.truncate(window.at_once());
                            upto = self.core.state().space.geometry().split(next).1;
                            walk = Walk::new(id, upto, group_blocks);
                        }
                        None => self.core.state_mut().scrub.count_leaf(),
                    }
                    let runs = pinned(&self.core.state(), runs(blocks, group_blocks, gap), pin);
                    window.verify(runs).await?;
                    at = upto;
                    if window.lags() {
                        window.reach(ScrubStage::Groups, id.0, at).await?;
                    }
                    self.core.rt().yield_now().await;
                }
            }
        }
    }
}
