//! Superblocks and pages. Commits write them in place, to their slots in turn. So a block that
//! seems to be bad may just be written: the scrub reads it again, and heals it, while no commit
//! runs. Commits are held up only where something seems to be bad.

use std::rc::Rc;

use base::{BLOCK_U64, Generation, GroupId, Result};
use format::page::{GroupKind, PageId, PageKind, PageVersion, open_page};
use format::superblock::{SLOT_COPIES, Superblock};
use model::scrub::BlockKind;
use queue::Class;

use super::verify::{MendOutcome, Places};
use super::window::{PartResult, Stop, Window};
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::devices::CopyPlace;
use crate::scrub::load::ScrubLoader;
use crate::scrub::verify::Verifier;
use crate::space::BitmapPage;
use crate::state::State;
use crate::transfer::load::NodeLoader;

/// A page, and the version that it must be.
#[derive(Clone, Copy)]
struct ScrubbedPage {
    id: PageId,
    version: PageVersion,
}

/// The outcome of scrubbing a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PageScrub {
    Done,
    /// The page as of the last commit is to be loaded first.
    NotInMemory,
}

/// Scrubs superblocks, table pages and bitmaps.
pub(crate) struct TableScrub {
    core: Core,
    loader: Rc<NodeLoader>,
    commits: Rc<Commits>,
    verifier: Rc<Verifier>,
    scrub_loader: Rc<ScrubLoader>,
}

impl TableScrub {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        commits: &Rc<Commits>,
        verifier: &Rc<Verifier>,
        scrub_loader: &Rc<ScrubLoader>,
    ) -> Rc<TableScrub> {
        Rc::new(TableScrub {
            core: core.clone(),
            loader: loader.clone(),
            commits: commits.clone(),
            verifier: verifier.clone(),
            scrub_loader: scrub_loader.clone(),
        })
    }

    /// Scrubs the superblocks of all devices. They come last: the start of the scrub has just
    /// written new ones.
    pub(crate) async fn scrub_superblocks(&self) -> Result<()> {
        let rows = self.core.state().devices.live_rows();
        for row in self.scrubbed(rows) {
            self.scrub_superblock(row).await?;
        }
        Ok(())
    }

    /// Scrubs the pages of the volume table and of the group table.
    pub(super) async fn scrub_tables(&self, window: &mut Window) -> PartResult {
        let pages = self.core.state().space.geometry().table_pages();
        for page in 0..pages {
            window.rest().await?;
            window.owes(BLOCK_U64);
            let force = |st: &mut State| st.tables.force(page);
            self.scrub_page(|st| Some(Some(table_page(st, page))), force).await?;
        }
        Ok(())
    }

    /// A device has the newest superblock twice. Where one of them is bad it is written again from
    /// the other; where both are, the next commit writes them all.
    async fn scrub_superblock(&self, row: usize) -> Result<()> {
        let copies = |sequence: u64| -> [CopyPlace; SLOT_COPIES] {
            let at = Superblock::offset_of(sequence);
            std::array::from_fn(|i| CopyPlace { row, offset: at + i as u64 * BLOCK_U64 })
        };
        let is_good = |sequence: u64| {
            move |block: &[u8]| {
                Superblock::decode(block)
                    .is_ok_and(|sb| sb.sequence == sequence && usize::from(sb.device) == row)
            }
        };
        let sequence = self.core.state().txns.sequence();
        let now = self.core.now();
        self.core.state_mut().scrub.verified(now, SLOT_COPIES as u64 * BLOCK_U64);
        if self.verifier.are_good(&copies(sequence), is_good(sequence)).await {
            return Ok(());
        }
        let outcome = {
            let _alone = self.commits.between_commits().await?;
            let sequence = self.core.state().txns.sequence();
            let copies = copies(sequence);
            let places = Places::of(&copies);
            self.verifier
                .mend(places, Class::Commit, BlockKind::Superblock, is_good(sequence))
                .await?
        };
        if outcome == MendOutcome::Lost {
            tracing::error!(
                device = %self.core.state().devices.path(row),
                "scrub: both copies of the newest superblock are bad here; a commit writes the next"
            );
            self.core.state_mut().note_in_superblock();
            self.commits.commit().await?;
        }
        Ok(())
    }

    /// Scrubs the bitmap pages of a group. The inner error: its bitmaps cannot be read.
    pub(super) async fn scrub_bitmaps(
        &self,
        group: GroupId,
    ) -> std::result::Result<Result<()>, Stop> {
        let pages = self.core.state().space.geometry().pages_per_group();
        for i in 0..pages {
            loop {
                if self.core.state().space.groups().kind(group) == GroupKind::Free {
                    return Ok(Ok(()));
                }
                // A group that rests may be dropped from memory whenever others are needed.
                if let Err(e) =
                    self.scrub_loader.surely(async || self.loader.load_maps(group).await).await?
                {
                    return Ok(Err(e));
                }
                let force = |st: &mut State| {
                    st.space.bitmaps_mut().force_page(BitmapPage { group, page: i })
                };
                let which =
                    |st: &State| st.space.bitmaps().has(group).then(|| bitmap_page(st, group, i));
                if self.scrub_page(which, force).await? == PageScrub::Done {
                    break;
                }
            }
        }
        Ok(Ok(()))
    }

    /// Scrubs a page, of which every device has a copy. `which` is the page as of the last commit,
    /// if there is one; `None`: that is not in memory. `force` has the next commit write it from
    /// memory, which is done if no copy is good.
    async fn scrub_page(
        &self,
        which: impl Fn(&State) -> Option<Option<ScrubbedPage>>,
        force: impl FnOnce(&mut State),
    ) -> Result<PageScrub> {
        let copies = |st: &State, id: &PageId, rows: Vec<usize>| -> Vec<CopyPlace> {
            let offset = st.space.geometry().page_offset(id.page, id.slot);
            rows.into_iter().map(|row| CopyPlace { row, offset }).collect()
        };
        let is_good = |page: ScrubbedPage| {
            move |block: &[u8]| {
                open_page(&page.id, block).is_ok_and(|(found, _)| found == page.version)
            }
        };
        let (page, scrubbed) = {
            let st = self.core.state();
            let Some(page) = which(&st) else { return Ok(PageScrub::NotInMemory) };
            let Some(page) = page else { return Ok(PageScrub::Done) };
            let rows = st.devices.live_rows();
            drop(st);
            let rows = self.scrubbed(rows);
            let scrubbed = copies(&self.core.state(), &page.id, rows);
            (page, scrubbed)
        };
        let (now, bytes) = (self.core.now(), scrubbed.len() as u64 * BLOCK_U64);
        self.core.state_mut().scrub.verified(now, bytes);
        if self.verifier.are_good(&scrubbed, is_good(page)).await {
            return Ok(PageScrub::Done);
        }
        let _alone = self.commits.between_commits().await?;
        let (page, all) = {
            let st = self.core.state();
            let Some(page) = which(&st) else { return Ok(PageScrub::NotInMemory) };
            let Some(page) = page else { return Ok(PageScrub::Done) };
            (page, copies(&st, &page.id, st.devices.live_rows()))
        };
        let places = Places::of(&all);
        let outcome =
            self.verifier.mend(places, Class::Commit, BlockKind::Page, is_good(page)).await?;
        if outcome == MendOutcome::Lost {
            tracing::error!(
                page = page.id.page,
                "scrub: no copy of a page is good; a commit writes it again from memory"
            );
            let mut st = self.core.state_mut();
            force(&mut st);
            st.note_in_superblock();
        }
        Ok(PageScrub::Done)
    }

    /// The devices among `rows` that are scrubbed.
    fn scrubbed(&self, rows: Vec<usize>) -> Vec<usize> {
        let only = self.core.state().scrub.device();
        rows.into_iter().filter(|row| only.is_none_or(|only| only == *row)).collect()
    }
}

/// A page of the volume or group table, as of the last commit.
fn table_page(st: &State, page: u32) -> ScrubbedPage {
    let kind = st.space.geometry().kind_of_table_page(page);
    let (slot, version) = st.tables.committed(page);
    let id = PageId { pool_uuid: st.identity.uuid, kind, page: u64::from(page), slot };
    ScrubbedPage { id, version }
}

/// A bitmap page, as of the last commit; `None`: it has no bit and was not written, or is not in
/// memory.
fn bitmap_page(st: &State, group: GroupId, i: u32) -> Option<ScrubbedPage> {
    let slots = st.space.bitmaps().slots(group)?;
    let generation = st.space.groups().bitmap_generations(group)[i as usize];
    let page = st.space.geometry().bitmap_page(group, i);
    let (kind, slot) = (PageKind::Bitmap, slots[i as usize]);
    let id = PageId { pool_uuid: st.identity.uuid, kind, page, slot };
    (generation != Generation(0)).then_some(ScrubbedPage { id, version: generation.into() })
}
