//! A device joins the pool.
//!
//! 1. It is wiped, so that nothing takes it for the device that it was.
//! 2. It is entered as *joining*. From now on commits write their pages to it too. Superblocks do
//!    not name it yet.
//! 3. All committed pages are copied to it, some at a time, while no commit runs.
//! 4. An *invitation* is written to it, to each of its slots: the superblock of the last commit,
//!    whose device table has the new device. Then it is a device of the pool, and the next commit
//!    says so everywhere.
//!
//! | power fails | by the superblocks |
//! | --- | --- |
//! | before the invitation | it is no device of any pool |
//! | before the next commit | of the two newest superblocks one names it and one does not; either is right, as both states are complete |
//! | while that commit writes superblocks | its superblock may be older than that of another device, as for any device: see `open/superblock_sync.rs` |

use std::rc::Rc;

use base::{
    BLOCK, ErrorKind, Generation, GroupId, Instant, Result, Slice, SliceList, StorageError,
};
use format::edges::edges;
use format::page::{GroupKind, PageId, PageKind, PageVersion, open_page};
use format::superblock::{DeviceRecord, DeviceState, MAX_DEVICES, SLOT_COPIES, SLOTS, Superblock};
use queue::Class;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::devices::{DeviceFile, Disk, MissedReason, PoolDevice};
use crate::moves::rows::{can_be_replaced, invalid, leave, new_chunks, row_named};
use crate::state::State;
use crate::transfer::writer_watch::WriterWatch;

/// Pages that are copied each time that commits are held off. Few, as clients may wait for a
/// commit; each page takes a few reads and a write.
const PAGES: u64 = 4;
/// Pages that are looked at in one step.
const SCAN: u64 = 4096;
/// Bytes of one request that writes zeros.
const ZEROS: u64 = 1 << 20;

/// The purpose of a device that joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role<'a> {
    /// To hold chunks like the others.
    Serves,
    /// To take the place of a device that fails.
    Spare,
    /// To take the chunks of this one, which leaves.
    Replaces(&'a str),
}

/// The row of a device that joins. If this is dropped before the device has joined, the row is
/// given up.
struct JoiningRow {
    core: Core,
    row: usize,
    joined: bool,
}

impl Drop for JoiningRow {
    fn drop(&mut self) {
        if !self.joined {
            // The queue of the device stays: a commit may be under way that writes to it.
            drop(self.core.state_mut().devices.clear_row(self.row));
        }
    }
}

/// A device that was away, and may have an invitation: a superblock by which it is in use. If this
/// is dropped before it is in use, the next superblock is the first that calls it failed again, as
/// if it had been in use until then. So that invitation is no state that went apart from the
/// pool's, even if all devices that it names are replaced before the device is seen again.
struct InvitedDevice {
    core: Core,
    row: usize,
    accepted: bool,
}

impl Drop for InvitedDevice {
    fn drop(&mut self) {
        if !self.accepted {
            let mut st = self.core.state_mut();
            let next = st.txns.sequence() + 1;
            st.devices.row_mut(self.row).into_iter().for_each(|d| d.was_invited(next));
        }
    }
}

/// Takes devices into use.
pub(crate) struct Joiner {
    core: Core,
    watch: Rc<WriterWatch>,
    commits: Rc<Commits>,
}

impl Joiner {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, watch: &Rc<WriterWatch>, commits: &Rc<Commits>) -> Rc<Joiner> {
        Rc::new(Joiner { core: core.clone(), watch: watch.clone(), commits: commits.clone() })
    }

    /// Makes a device one of the pool. With [`Role::Replaces`] the named device leaves from the
    /// same moment on, and its chunks are to be moved to the new one.
    pub(super) async fn join(
        &self,
        file: DeviceFile,
        uuid: [u8; 16],
        role: Role<'_>,
    ) -> Result<()> {
        let settings = self.core.current_settings();
        let path = file.path.clone();
        let mut joining = {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            if st.devices.iter().any(|d| d.path() == path) {
                return invalid(format!("{path} is a device of this pool already"));
            }
            let chunks = new_chunks(&st, &path, file.size_bytes)?;
            let disk = file.disk(self.core.rt(), settings.device);
            disk.set_targets(settings.targets);
            let spare = role == Role::Spare;
            let record = DeviceRecord { spare, ..DeviceRecord::online(uuid, chunks) };
            let device = PoolDevice::new_joining(record, path.clone(), disk);
            let Some(row) = st.devices.enter(device) else {
                return invalid(format!("a pool has at most {MAX_DEVICES} devices"));
            };
            JoiningRow { core: self.core.clone(), row, joined: false }
        };
        let Some(disk) = self.core.disk(joining.row) else { unreachable!("it was just entered") };
        let row = joining.row;
        let failed = |e| self.why_not_joined(row, &path, e);
        self.wipe(&disk).await.map_err(failed)?;
        self.copy_pages(joining.row, &disk, Generation(0)).await.map_err(failed)?;
        let replaces = match role {
            Role::Replaces(old) => Some(old),
            Role::Serves | Role::Spare => None,
        };
        self.invite(joining.row, &disk, replaces).await.map_err(failed)?;
        joining.joined = true;
        tracing::info!(device = %path, "device added to the pool{}",
            if role == Role::Spare { " as a spare" } else { "" });
        // Bytes that were copied before are of older commands.
        self.core.state_mut().moves.begin();
        if role == Role::Spare {
            self.core.state_mut().moves.taken.spare_added();
        }
        let outcome = self.commits.commit().await;
        // There may be room for what could not be moved before.
        self.core.state().moves.look_again();
        outcome
    }

    /// Overwrites the edges of a device with zeros that leaves the pool, and had so many chunks: it
    /// counts as empty then. Its superblocks go first. Beyond the last chunk nothing was written.
    pub(crate) async fn empty(&self, disk: &Disk, chunks: u32) -> Result<()> {
        self.wipe(disk).await?;
        let what = |e| StorageError::from_io(e, "write of zeros over a device that leaves");
        let end = self.core.state().space.geometry().chunk_offset(chunks, 0);
        for edge in edges(end) {
            let mut at = edge.start;
            while at < edge.end {
                let len = (edge.end - at).min(ZEROS) as usize;
                let zeros = SliceList::from_iter([self.core.bufs().zeroed(len).freeze()]);
                disk.write(self.watch.permit_to_write().await?, Class::Move, at, zeros)
                    .await
                    .map_err(what)?;
                at += len as u64;
            }
        }
        disk.flush(self.core.permit()?, Class::Move).await.map_err(what)
    }

    /// Overwrites the first block of a device and all of its superblocks with zeros.
    async fn wipe(&self, disk: &Disk) -> Result<()> {
        let what = |e| StorageError::from_io(e, "write of zeros over old superblocks");
        let zeros = |len| SliceList::from_iter([self.core.bufs().zeroed(len).freeze()]);
        disk.write(self.watch.permit_to_write().await?, Class::Move, 0, zeros(BLOCK))
            .await
            .map_err(what)?;
        for slot in 0..SLOTS {
            let (at, zeros) = (Superblock::offset_of(slot), zeros(SLOT_COPIES * BLOCK));
            disk.write(self.watch.permit_to_write().await?, Class::Move, at, zeros)
                .await
                .map_err(what)?;
        }
        disk.flush(self.core.permit()?, Class::Move).await.map_err(what)
    }

    /// Copies the pages as of the last commit: all tables, and of the bitmaps those that are newer
    /// than `since`.
    pub(crate) async fn copy_pages(
        &self,
        row: usize,
        disk: &Disk,
        since: Generation,
    ) -> Result<()> {
        let (mut page, end) = (0, self.core.state().space.geometry().pages());
        while page < end {
            let scanned = end.min(page + SCAN);
            let wanted = {
                let st = self.core.state();
                (page..scanned).find(|&page| page_to_copy(&st, page, since).is_some())
            };
            let Some(first) = wanted else {
                page = scanned;
                self.core.rt().yield_now().await;
                continue;
            };
            page = end.min(first + PAGES);
            {
                let _alone = self.commits.between_commits().await?;
                for page in first..page {
                    self.copy_page(page, disk, since).await?;
                }
            }
            self.has_all(row)?;
        }
        Ok(())
    }

    /// Fails if a device that joins did not get something that was written meanwhile.
    fn has_all(&self, row: usize) -> Result<()> {
        match self.core.state().devices.row(row) {
            Some(d) if d.is_joining() => match d.missed() {
                None => Ok(()),
                Some(MissedReason::Write(e)) => {
                    Err(StorageError::from_io(e, "a write to it failed"))
                }
                Some(MissedReason::TakenOut) => invalid("it was taken out of use".to_owned()),
            },
            _ => Err(StorageError::new(ErrorKind::Io, "it went out of use")),
        }
    }

    /// Why a device has not joined: `e`, or that the user took it out of use meanwhile.
    pub(crate) fn why_not_joined(&self, row: usize, path: &str, e: StorageError) -> StorageError {
        let missed = self.core.state().devices.row(row).and_then(PoolDevice::missed);
        let e = match missed {
            Some(MissedReason::TakenOut) => self.has_all(row).err().unwrap_or(e),
            Some(MissedReason::Write(_)) | None => e,
        };
        StorageError { context: format!("{path}: {e}"), ..e }
    }

    /// Copies the committed version of a page, if it is to be copied. No commit runs meanwhile, so
    /// these requests are of a commit's class: FLUSHes of clients wait for them.
    async fn copy_page(&self, page: u64, disk: &Disk, since: Generation) -> Result<()> {
        let wanted = page_to_copy(&self.core.state(), page, since);
        let Some((id, want)) = wanted else { return Ok(()) };
        let rows = self.core.state().devices.live_rows();
        for row in rows {
            let Some(from) = self.core.disk(row) else { continue };
            for slot in 0..2 {
                let at = self.core.state().space.geometry().page_offset(page, slot);
                let (outcome, block) = from.read_new(Class::Commit, at, BLOCK).await;
                let is_it = outcome.is_ok()
                    && open_page(&id.in_slot(slot), &block).is_ok_and(|(found, _)| found == want);
                if is_it {
                    return self.write_page(disk, page, slot, block.freeze()).await;
                }
            }
        }
        let what = format!("page {page} of the tables: no device has its generation {want}");
        Err(StorageError::new(ErrorKind::Damaged, what))
    }

    /// Writes a page into its slot and zeros into the other slot, so that no crash brings back the
    /// version that stands there.
    async fn write_page(&self, disk: &Disk, page: u64, slot: u8, block: Slice) -> Result<()> {
        let what = |e| StorageError::from_io(e, format!("write of page {page} of the tables"));
        let zeros = self.core.bufs().zeroed(BLOCK).freeze();
        let both = if slot == 0 { [block, zeros] } else { [zeros, block] };
        let at = self.core.state().space.geometry().page_offset(page, 0);
        let both = SliceList::from_iter(both);
        disk.write(self.watch.permit_to_write().await?, Class::Commit, at, both).await.map_err(what)
    }

    /// Writes the invitation, and makes the device one of the pool. One that was away gets the
    /// pool's superblock before, by which it is away still. So whatever it has if this fails, it is
    /// known that it was never in use: see [`InvitedDevice`].
    pub(crate) async fn invite(
        &self,
        row: usize,
        disk: &Disk,
        replaces: Option<&str>,
    ) -> Result<()> {
        let what = |e| StorageError::from_io(e, "write of its first superblock");
        // Data that was written over a long time is durable before commits are held up.
        disk.flush(self.core.permit()?, Class::Move).await.map_err(what)?;
        let _alone = self.commits.between_commits().await?;
        self.has_all(row)?;
        disk.flush(self.core.permit()?, Class::Commit).await.map_err(what)?;
        let (slots, leaving, away) = {
            let st = self.core.state();
            let leaving = replaces.map(|old| row_named(&st, old)).transpose()?;
            // Another device may have taken its place meanwhile.
            if let (Some(row), Some(old)) = (leaving, replaces) {
                can_be_replaced(&st, row, old)?;
            }
            let (generation, digest) = (st.txns.committed(), st.tables.digest());
            let mut sb = st.superblock_for(row, generation, digest);
            let was_away = sb.devices.get(row).is_some_and(|d| d.state == DeviceState::Failed);
            let away = was_away.then(|| self.encode_slot(&sb));
            sb.devices = st.devices.records_with(row, sb.sequence);
            if let Some(old) = leaving {
                (sb.devices[old].leaving, sb.devices[old].successor) = (true, Some(row as u8));
            }
            let newest = sb.sequence;
            let slots: Vec<_> = (newest.saturating_sub(SLOTS - 1).max(1)..=newest)
                .map(|sequence| {
                    sb.sequence = sequence;
                    self.encode_slot(&sb)
                })
                .collect();
            (slots, leaving, away)
        };
        let write = async |(at, slot)| {
            let data = SliceList::from_iter([slot]);
            disk.write_durable(self.watch.permit_to_write().await?, Class::Commit, at, data)
                .await
                .map_err(what)
        };
        let mut invited = None;
        if let Some(away) = away {
            write(away).await?;
            invited = Some(InvitedDevice { core: self.core.clone(), row, accepted: false });
        }
        for slot in slots {
            write(slot).await?;
        }
        self.has_all(row)?;
        invited.iter_mut().for_each(|invited| invited.accepted = true);
        let mut st = self.core.state_mut();
        let sequence = st.txns.sequence();
        st.devices.row_mut(row).into_iter().for_each(|d| d.joined(sequence));
        st.space.supply_mut().use_again(Instant(u64::MAX));
        if let Some(old) = leaving {
            leave(&mut st, old, Some(row as u8));
        }
        st.need_superblock();
        Ok(())
    }

    /// A superblock for the slot of its sequence number, and where that is.
    fn encode_slot(&self, sb: &Superblock) -> (u64, Slice) {
        let mut slot = self.core.bufs().take(SLOT_COPIES * BLOCK);
        sb.encode_slot(&mut slot);
        (Superblock::offset_of(sb.sequence), slot.freeze())
    }
}

/// The id of a page and its committed version; `None` if a device that has everything up to
/// `since` does not need the page. Every page of a table is needed, as an open takes the newest
/// version that it finds.
fn page_to_copy(st: &State, page: u64, since: Generation) -> Option<(PageId, PageVersion)> {
    let (geometry, pool_uuid) = (st.space.geometry(), st.identity.uuid);
    let Some(n) = page.checked_sub(geometry.table_pages().into()) else {
        let kind = geometry.kind_of_table_page(page as u32);
        let id = PageId { pool_uuid, kind, page, slot: 0 };
        return Some((id, st.tables.committed(page as u32).1));
    };
    let of_group = u64::from(geometry.pages_per_group());
    let (group, i) = (GroupId((n / of_group) as u32), (n % of_group) as usize);
    let want = st.space.groups().bitmap_generations(group)[i];
    if want <= since || st.space.groups().kind(group) == GroupKind::Free {
        return None;
    }
    Some((PageId { pool_uuid, kind: PageKind::Bitmap, page, slot: 0 }, want.into()))
}
