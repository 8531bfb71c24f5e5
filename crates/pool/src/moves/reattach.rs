//! A device that was away comes back: it was missing when the pool was opened, dropped because it
//! failed, or taken out of use by the user.
//!
//! 1. Its superblocks are read: it must be the device that it was, and must not have been written
//!    without the others. If they do not say that it is away, it gets its last word
//!    ([`last_word`](super::last_word)): what is written to it from now on comes before what it
//!    lacks, so it must not be served alone.
//! 2. It is entered as *joining*: from now on it gets all that is written, pages, nodes and data.
//! 3. The flow waits for writes that had begun before, and commits them. So all that the device
//!    lacks is committed.
//! 4. The pages that it lacks are copied to it, as to a new device ([`join`](super::join)).
//! 5. Its chunks of groups that have changed since are marked as *behind*, durably.
//! 6. It gets the pool's superblock, which says that it is away, and then its invitation, as a new
//!    device does. Now it is in use, with all chunks that are not behind. If it fails meanwhile, it
//!    counts as away from then on ([`join`](super::join)).
//! 7. The chunks that are behind get what they lack ([`resync`](super::resync)).
//!
//! After a failure the pool tries this by itself: 10 s later, a minute after that, and five minutes
//! after that. A device that has failed more than three times within an hour is left out until the
//! user acts.
//!
//! When a device goes away, the generation up to which it has everything is recorded
//! ([`everyone_has`](crate::txn::Progress::everyone_has)).
//!
//! | power fails | the device is |
//! | --- | --- |
//! | before the invitation | away still, by its own superblock too; what was written to it meanwhile is written again |
//! | before the next commit | in use by its own superblock, and away by those of the others; its own is right, as it lacks only what is marked |
//! | later | in use, with chunks that are behind |

use std::rc::Rc;

use base::{Duration, ErrorKind, GroupId, Result, StorageError};
use format::superblock::Superblock;
use queue::Class;
use rt::FileId;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::devices::slots::Slots;
use crate::devices::{AwayReason, DeviceFile, Disk, PoolDevice};
use crate::moves::Moves;
use crate::moves::join::Joiner;
use crate::moves::last_word::{RemovalNotifier, last_word};
use crate::moves::rows::{invalid, is_away, recognize, row_named};
use crate::transfer::wait_for_reads::ReadDrain;

/// The job's name.
const JOB: &str = "return";
/// For so long a user who takes a device into use waits until it has gone out of use: it may have
/// requests of before still, or be told.
const GOES: Duration = Duration::from_secs(10);
/// Waits between the tries to take a failed device into use again.
const TRIES: [Duration; 3] =
    [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(300)];
/// The same for a device that was stale when the pool was opened: the first try is at once.
const AT_OPEN: [Duration; 4] = [Duration::ZERO, TRIES[0], TRIES[1], TRIES[2]];
/// A device that fails more often than this within `WITHIN` stays out of use until the user acts.
const MOST: usize = 3;
/// The time over which failures are counted.
const WITHIN: Duration = Duration::from_secs(3600);

/// A device that is coming back. If this is dropped before the device is in use, the device is away
/// again. Its row stays its own: no device is removed while it joins.
struct ReturningDevice {
    core: Core,
    row: usize,
    /// The path and queue that it had before.
    had: Option<(String, Option<Disk>)>,
}

impl Drop for ReturningDevice {
    fn drop(&mut self) {
        if let Some((path, disk)) = self.had.take() {
            let mut st = self.core.state_mut();
            let Some(d) = st.devices.row_mut(self.row) else { return };
            if let Some(file) = d.end_joining(path, disk) {
                st.moves.removed(file);
            }
        }
    }
}

/// Takes devices out of use, and back into use.
pub struct Reattacher {
    core: Core,
    reads: Rc<ReadDrain>,
    commits: Rc<Commits>,
    joiner: Rc<Joiner>,
    last_words: Rc<RemovalNotifier>,
    moves: Rc<Moves>,
}

impl Reattacher {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        reads: &Rc<ReadDrain>,
        commits: &Rc<Commits>,
        joiner: &Rc<Joiner>,
        last_words: &Rc<RemovalNotifier>,
        moves: &Rc<Moves>,
    ) -> Rc<Reattacher> {
        Rc::new(Reattacher {
            core: core.clone(),
            reads: reads.clone(),
            commits: commits.clone(),
            joiner: joiner.clone(),
            last_words: last_words.clone(),
            moves: moves.clone(),
        })
    }

    /// Takes a device out of use until the user says otherwise, also one that just comes into use.
    /// Fails if the pool cannot do without it.
    pub async fn offline_device(&self, name: &str) -> Result<()> {
        let row = {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let row = row_named(&st, name)?;
            if !st.put_offline(row) {
                return invalid(format!(
                    "the pool cannot do without {name}: no other device has all that it holds"
                ));
            }
            if let Some(d) = st.devices.row_mut(row) {
                if d.is_joining() {
                    d.stop_joining();
                }
                d.set_offline(true);
                d.did_not_fail();
            }
            row
        };
        self.moves.note_moves().await?;
        self.last_words.tell_for_a_while(row).await;
        Ok(())
    }

    /// Takes a device that was away into use again, by its path or uuid, if its file is still open.
    /// Returns false if the file is not open; then [`Reattacher::return_device`] is to be called.
    pub async fn online_device(&self, name: &str) -> Result<bool> {
        let (row, path, disk) = {
            let st = self.core.state();
            let row = row_named(&st, name)?;
            let disk = st.devices.row(row).and_then(PoolDevice::disk).cloned();
            (row, st.devices.path(row).to_owned(), disk)
        };
        let Some(disk) = disk else { return Ok(false) };
        self.reattach(row, path, disk, true).await.map(|()| true)
    }

    /// Fails unless a device, by its path or uuid, is out of use, does not come back just now, and
    /// has no requests any more: then another may have its place.
    pub fn check_out_of_use(&self, name: &str) -> Result<()> {
        let st = self.core.state();
        let row = row_named(&st, name)?;
        is_away(&st, row, st.devices.path(row))
    }

    /// Records that another device is now at the place of a device that is out of use. From now on
    /// that device counts as missing, and goes by its uuid. Returns the file that it had, which the
    /// caller closes.
    pub fn give_up_place(&self, name: &str) -> Result<Option<FileId>> {
        let mut st = self.core.state_mut();
        st.standing.permit()?;
        let row = row_named(&st, name)?;
        is_away(&st, row, name)?;
        let Some(d) = st.devices.row_mut(row) else { return Ok(None) };
        let file = d.disk().map(Disk::file);
        d.lose_place();
        Ok(file)
    }

    /// Takes a device that was away into use again; what it lacks is written to it in the
    /// background. If it had another file before, [`Moves::removed_device`] returns that file.
    pub async fn return_device(&self, file: DeviceFile) -> Result<()> {
        let settings = self.core.current_settings();
        let disk = file.disk(self.core.rt(), settings.device);
        disk.set_targets(settings.targets);
        let own = self.newest_on(&disk, &file.path).await?;
        let row = {
            let st = self.core.state();
            let uuid = own.devices[usize::from(own.device)].uuid;
            let is_it = |d: &PoolDevice| !d.is_removed() && d.record().uuid == uuid;
            let row = st.devices.iter().position(is_it);
            let foreign = format!("{}: is no device of the pool {:?}", file.path, st.identity.name);
            let row = row.ok_or_else(|| StorageError::new(ErrorKind::Foreign, foreign))?;
            let chunks = st.devices.row(row).map_or(0, |d| d.record().chunks);
            let need = st.space.geometry().chunk_offset(chunks as u32, 0);
            if file.size_bytes < need {
                let text = format!(
                    "{}: has {} bytes, the pool needs {need}; it was truncated",
                    file.path, file.size_bytes
                );
                return Err(StorageError::new(ErrorKind::Damaged, text));
            }
            row
        };
        self.reattach(row, file.path, disk, true).await
    }

    /// Tries to bring back the devices that were left out as stale when the pool was opened, and
    /// from now on those that fail.
    pub(crate) fn begin_returning(self: &Rc<Self>) {
        let stale = |d: &PoolDevice| d.may_return();
        let rows: Vec<usize> = {
            let st = self.core.state();
            (0..st.devices.count()).filter(|&row| st.devices.row(row).is_some_and(stale)).collect()
        };
        rows.into_iter().for_each(|row| self.try_to_return(row, &AT_OPEN));
        let this = self.clone();
        self.core.rt().detach(async move {
            while !this.core.is_closed() {
                let dropped = this.core.dropped();
                this.see_to_dropped();
                dropped.await;
            }
        });
    }

    /// Begins to bring back the devices that have failed since the last call, but leaves out those
    /// that fail too often. Wakes the flow of moves.
    fn see_to_dropped(self: &Rc<Self>) {
        let now = self.core.now();
        let dropped: Vec<(usize, usize)> = {
            let mut st = self.core.state_mut();
            let rows = 0..st.devices.count();
            let recent = |row| Some((row, st.devices.row_mut(row)?.take_dropped(now, WITHIN)?));
            rows.filter_map(recent).collect()
        };
        for &(row, failures) in &dropped {
            self.last_words.tell_later_it_is_away(row);
            if failures <= MOST {
                self.try_to_return(row, &TRIES);
            } else {
                self.note_flapping(row);
            }
        }
        if !dropped.is_empty() {
            self.core.state().moves.look_again();
        }
    }

    fn note_flapping(&self, row: usize) {
        let mut st = self.core.state_mut();
        tracing::error!(
            device = %st.devices.path(row),
            "the device has failed more than {MOST} times within an hour: it is left out; see to \
             it, then take it into use with forebay device online, or replace it"
        );
        st.devices.row_mut(row).into_iter().for_each(|d| d.say(AwayReason::Flapping));
    }

    /// Tries to bring a device back after each of these waits, until it is in use or may not return
    /// by itself any more.
    fn try_to_return(self: &Rc<Self>, row: usize, after: &'static [Duration]) {
        let this = self.clone();
        self.core.state_mut().devices.row_mut(row).into_iter().for_each(PoolDevice::begin_tries);
        self.core.rt().detach_background(JOB, async move {
            this.tries(row, after).await;
            this.core.state_mut().devices.row_mut(row).into_iter().for_each(PoolDevice::end_tries);
        });
    }

    async fn tries(&self, row: usize, after: &[Duration]) {
        for (i, &time) in after.iter().enumerate() {
            self.core.rt().sleep(time).await;
            let there = {
                let st = self.core.state();
                let d = st.devices.row(row).filter(|d| d.may_return());
                d.and_then(|d| Some((d.path().to_owned(), d.disk()?.clone())))
            };
            let Some((path, disk)) = there else { return };
            // The device may still have requests of the time when it was in use.
            disk.until_idle().await;
            if self.core.is_closed() {
                return;
            }
            let outcome = self.reattach(row, path.clone(), disk, false).await;
            let may_return =
                || self.core.state().devices.row(row).is_some_and(PoolDevice::may_return);
            match outcome {
                Ok(()) => return,
                Err(_) if self.core.is_closed() || !may_return() => return,
                Err(e) => {
                    let next = match after.get(i + 1) {
                        Some(time) => format!("it is tried again in {} s", time.as_secs()),
                        None => "it stays out until forebay device online".to_owned(),
                    };
                    tracing::error!(
                        device = %path,
                        "the device cannot be used yet: {e}; {next}"
                    );
                }
            }
        }
    }

    /// Waits a while for the end of what a device has yet to do that has gone out of use.
    async fn wait_until_gone(&self, row: usize) {
        let end = self.core.now().after(GOES);
        while self.core.now() < end
            && self.core.state().devices.row(row).is_some_and(PoolDevice::is_going)
        {
            self.core.rt().sleep(Duration::from_millis(10)).await;
        }
    }

    async fn newest_on(&self, disk: &Disk, path: &str) -> Result<Superblock> {
        let what = |e| StorageError::from_io(e, format!("{path}: flush"));
        disk.flush(self.core.permit()?, Class::Move).await.map_err(what)?;
        let slots = Slots::read(self.core.rt(), disk, path).await?;
        let none = || match slots.trouble() {
            Some(why) => {
                let text = format!("{path}: no superblock can be read ({why})");
                StorageError::new(ErrorKind::Io, text)
            }
            None => {
                let text = format!("{path}: not a device of a Forebay pool");
                StorageError::new(ErrorKind::Foreign, text)
            }
        };
        slots.newest().cloned().ok_or_else(none)
    }

    /// The newest superblock of a device that is out of use. One that was removed or taken into use
    /// meanwhile is called that, whatever was read: a removal overwrites its superblocks.
    async fn newest_of_away(&self, row: usize, disk: &Disk, path: &str) -> Result<Superblock> {
        let own = self.newest_on(disk, path).await;
        is_away(&self.core.state(), row, path)?;
        own
    }

    /// Whether a device whose newest superblock is `own` is one that may come back, but does not
    /// know that it is out of use.
    fn is_to_be_told(&self, row: usize, own: &Superblock, path: &str) -> Result<bool> {
        let st = self.core.state();
        recognize(&st, row, own, path)?;
        Ok(last_word(&st, row, own).is_some())
    }

    /// Brings a device back by the steps at the head of this file. `asked`: the user has asked for
    /// it.
    async fn reattach(&self, row: usize, path: String, disk: Disk, asked: bool) -> Result<()> {
        if asked {
            self.wait_until_gone(row).await;
        }
        is_away(&self.core.state(), row, &path)?;
        let disk = disk.anew();
        let mut own = self.newest_of_away(row, &disk, &path).await?;
        if self.is_to_be_told(row, &own, &path)? {
            self.last_words.tell_before_it_returns(row, &disk, &path).await?;
            own = self.newest_of_away(row, &disk, &path).await?;
        }
        let (since, mut returning, before) = {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            // The device may have been removed or taken into use meanwhile.
            is_away(&st, row, &path)?;
            if !asked && !st.devices.row(row).is_some_and(PoolDevice::may_return) {
                return invalid(format!("{path}: is not to come back by itself any more"));
            }
            let since = recognize(&st, row, &own, &path)?;
            let had = st.devices.row_mut(row).and_then(|d| d.reattach(path.clone(), disk.clone()));
            let before = (st.space.limbo_mut().reads_until_now(), st.txns.pass_ended());
            (since, ReturningDevice { core: self.core.clone(), row, had }, before)
        };
        let failed = |e| self.joiner.why_not_joined(row, &path, e);
        let (writes, pass_ended) = before;
        self.reads.wait_for_reads(writes).await;
        if self.core.state().txns.pass().is_some() {
            pass_ended.await;
        }
        self.commits.commit_direct().await?;
        self.joiner.copy_pages(row, &disk, since).await.map_err(failed)?;
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            st.devices.row_mut(row).into_iter().for_each(|d| d.set_lacks_since(Some(since)));
        }
        let mut next = Some(GroupId(0));
        while let Some(from) = next {
            next = self.core.state_mut().space.groups_mut().mark_behind(row, since, from);
            if next.is_some() {
                self.core.rt().yield_now().await;
            }
        }
        self.commits.commit_direct().await?;
        self.joiner.invite(row, &disk, None).await.map_err(failed)?;
        let old = returning.had.take().and_then(|(_, disk)| disk);
        if let Some(old) = old.filter(|old| old.file() != disk.file()) {
            self.core.state_mut().moves.removed(old.file());
        }
        tracing::info!(device = %path, "the device is back; it gets what it lacks");
        self.moves.note_moves().await
    }
}
