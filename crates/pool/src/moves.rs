//! Devices are added, replaced and removed: chunks move between them.
//!
//! **The goal is durable, the progress is not.** The device table says which devices leave, and
//! which device takes the chunks of another; the superblock says how many copies there are. A
//! background flow compares each block group with this goal, and corrects those that differ
//! ([`crate::space::ChunkChange`]). So after a crash, an error or another command the flow goes on
//! with what is left, and a command changes a field or two.
//!
//! **A move of a chunk** ([`run`]): the group is *closed*, so that nothing is allocated from it
//! ([`crate::space::CloseOutcome`]); what was allocated before is committed; the copy is made and
//! verified, from any good copy, and written in the order of addresses ([`copy`]); then a commit
//! enters the new chunk into the group's record. The old chunk is free when that commit is durable
//! and no read uses the chunk any more. After a crash before the commit the group still has the old
//! chunk, and the copy is free space.
//!
//! **A device that leaves** is read until its last chunk has moved. Then its row of the table is
//! cleared, its superblocks and its edges become zeros, and it is closed. A device that leaves may
//! be missing, or may fail on the way.
//!
//! **A device that was away comes back** ([`reattach`]) and keeps its content; its chunks of
//! groups that have changed since are *behind*, and get what they lack ([`resync`]).
//!
//! **A removal, or another number of copies,** is let in if everything will find room ([`admit`]).
//!
//! **A spare** ([`spares`]) is a device that has joined, and gets no chunks until it takes the
//! place of another one.
//!
//! **A device joins** ([`join`]) with all pages of the tables. While they are copied, commits write
//! their pages to it too.

use std::rc::Rc;

pub(crate) mod admit;
mod ask;
pub(crate) mod copy;
mod in_order;
pub(crate) mod join;
pub(crate) mod last_word;
pub(crate) mod mover;
pub mod place_keeper;
mod present;
pub(crate) mod reattach;
pub(crate) mod resync;
mod rows;
pub(crate) mod spares;
mod unfilled;

use base::{ByteRange, Result};
use format::page::Chunk;
use model::moves::MovesStatus;
use rt::FileId;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::devices::{DeviceFile, PoolDevice};
use crate::findings::MoveBacklog;
use crate::moves::admit::MoveTerms;
use crate::moves::join::{Joiner, Role};
use crate::moves::rows::{can_be_replaced, invalid, new_chunks, row_named};
use crate::state::State;

/// A chunk that a move fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The device's file.
    pub file: FileId,
    /// The chunk's bytes there.
    pub place: ByteRange,
    /// The number of the fill, counted since the pool was opened.
    pub number: u64,
}

/// Commands that add, change and remove devices, and the status of the moves that follow.
pub struct Moves {
    core: Core,
    commits: Rc<Commits>,
    terms: Rc<MoveTerms>,
    joiner: Rc<Joiner>,
}

impl Moves {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        commits: &Rc<Commits>,
        terms: &Rc<MoveTerms>,
        joiner: &Rc<Joiner>,
    ) -> Rc<Moves> {
        Rc::new(Moves {
            core: core.clone(),
            commits: commits.clone(),
            terms: terms.clone(),
            joiner: joiner.clone(),
        })
    }

    /// The chunks that a move is filling. Nothing else writes to them, and their blocks are written
    /// for the first time in ascending order.
    pub fn fills(&self) -> Vec<Fill> {
        let st = self.core.state();
        let (geometry, (chunks, number)) = (st.space.geometry(), st.moves.filling());
        let of = |c: &Chunk| {
            let file = st.devices.written(c.device.into())?.file();
            let from = geometry.chunk_offset(c.chunk, 0);
            let place = ByteRange::new(from, from + geometry.group_bytes());
            Some(Fill { file, place, number })
        };
        chunks.iter().filter_map(of).collect()
    }

    /// Adds a device to the pool; its old content is not kept. Its membership is durable when this
    /// returns. `uuid`: from a source of true randomness.
    pub async fn add_device(&self, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        self.joiner.join(file, uuid, Role::Serves).await
    }

    /// As [`Moves::add_device`], but adds a spare: it takes the place of a device that has been out
    /// of use for long.
    pub async fn add_spare(&self, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        self.joiner.join(file, uuid, Role::Spare).await
    }

    /// Sets the size of a device, all of which the pool may use. The new size is durable when this
    /// returns. Returns the bytes that the pool can use of the device. Fails if the device is not
    /// in use or would shrink.
    pub async fn grow_device(&self, name: &str, size_bytes: u64) -> Result<u64> {
        let bytes = {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let row = row_named(&st, name)?;
            let geometry = st.space.geometry();
            let chunks = geometry.chunks_of(size_bytes).min(geometry.group_capacity.into());
            let Some(d) = st.devices.row_mut(row).filter(|d| d.live().is_some()) else {
                return invalid(format!("{name} is not in use now"));
            };
            let had = d.record().chunks;
            if chunks < had {
                let need = geometry.chunk_offset(had as u32, 0);
                return invalid(format!(
                    "{name} has {size_bytes} bytes, and the pool uses {need} of them: a device \
                     does not shrink; replace it with a smaller one"
                ));
            }
            d.grow(chunks);
            st.need_superblock();
            chunks * geometry.group_bytes()
        };
        self.commits.commit().await?;
        // There may be room for what could not be moved before.
        self.core.state().moves.look_again();
        Ok(bytes)
    }

    /// The path and the open file of a device that is in use, by its path or uuid.
    pub fn file_of_device(&self, name: &str) -> Result<(String, FileId)> {
        let st = self.core.state();
        let row = row_named(&st, name)?;
        match st.devices.live(row) {
            Some(disk) => Ok((st.devices.path(row).to_owned(), disk.file())),
            None => invalid(format!("{name} is not in use now")),
        }
    }

    /// Begins to move chunks until all devices are filled to the same share, as far as that is
    /// possible with the copies of a group on different devices.
    pub async fn balance_devices(&self) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            st.moves.set_balancing(true);
        }
        self.note_moves().await
    }

    /// Begins to move everything from a device, named by its path or its uuid, to others. Then the
    /// device is removed from the pool. It may be missing.
    pub async fn remove_device(&self, name: &str) -> Result<()> {
        self.terms.leave_if_possible(name).await?;
        self.note_moves().await
    }

    /// Fails where a device of this size cannot be added now, in the place of `old` if that is
    /// given, as far as that is known without touching it. `path` is what the user calls it.
    pub fn check_new_device(&self, path: &str, size_bytes: u64, old: Option<&str>) -> Result<()> {
        let st = self.core.state();
        st.standing.permit()?;
        new_chunks(&st, path, size_bytes)?;
        let Some(old) = old else { return Ok(()) };
        let row = row_named(&st, old)?;
        can_be_replaced(&st, row, old)?;
        let used = st.space.groups().sets().chunks_on(row);
        if st.space.geometry().chunks_of(size_bytes) < used {
            let need = st.space.geometry().chunk_offset(used as u32, 0);
            return invalid(format!(
                "{path}: has {size_bytes} bytes, and what {old} holds needs {need}"
            ));
        }
        Ok(())
    }

    /// Adds a device and begins to move everything to it from the device `old`, named by its path
    /// or its uuid. Then `old` is removed from the pool; it may be missing.
    pub async fn replace_device(&self, old: &str, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        self.check_new_device(&file.path, file.size_bytes, Some(old))?;
        self.joiner.join(file, uuid, Role::Replaces(old)).await?;
        self.note_moves().await
    }

    /// Cancels moves: devices that leave stay, and balancing ends. Chunks that have moved stay
    /// where they are. Another number of copies is not cancelled so, but by setting the old one.
    /// Fails if there is nothing to cancel.
    pub async fn cancel_moves(&self) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let balanced = st.moves.is_balancing();
            st.moves.set_balancing(false);
            if !stay_all(&mut st) && !balanced {
                return invalid(nothing_to_cancel(&st));
            }
            st.need_superblock();
            st.moves.cancel();
        }
        self.commits.commit().await
    }

    /// Sets the number of copies of every block. Existing block groups get copies, or lose them, in
    /// the background. Fails if there are too few devices or too little space; fewer copies than
    /// before are always possible.
    pub async fn set_copies(&self, copies: u8) -> Result<()> {
        self.terms.change_copies(copies).await?;
        self.note_moves().await
    }

    /// Stops all moves of chunks, or lets them go on. A pause ends when the pool is opened again.
    pub fn pause_moves(&self, paused: bool) {
        self.core.state_mut().moves.set_paused(paused);
    }

    /// Waits until the pool has stopped using files of devices, as when a device was removed.
    /// Returns these files.
    pub async fn removed_device(&self) -> Vec<FileId> {
        loop {
            let changed = self.core.state().moves.changed();
            let files = self.core.state_mut().moves.take_removed();
            if !files.is_empty() {
                return files;
            }
            changed.await;
        }
    }

    /// True if a device of the pool is in this file.
    pub fn uses_file(&self, file: FileId) -> bool {
        self.core.state().devices.iter().any(|d| d.disk().is_some_and(|disk| disk.file() == file))
    }

    /// The state of the moves: what is being moved, and how far that is.
    pub fn moves_status(&self) -> MovesStatus {
        let mut st = self.core.state_mut();
        let State { space, devices, moves, .. } = &mut *st;
        let mut left = space.placement().bytes_to_move(devices);
        if moves.is_balancing() {
            left += space.placement().bytes_to_balance(devices);
        }
        let leaving = devices.iter().enumerate().filter(|(_, d)| d.is_leaving());
        let leaving = leaving.map(|(row, d)| devices.name_of(row, d)).collect();
        let lacks = |d: &PoolDevice| {
            let returns = d.is_joining() && !d.is_new();
            returns || d.live().is_some() && d.record().lacks_since.is_some()
        };
        let behind = || devices.iter().enumerate().filter(|(_, d)| lacks(d));
        for (row, d) in behind() {
            left +=
                space.groups_mut().lacked_bytes(row, d.record().lacks_since.unwrap_or_default());
        }
        let what = MoveBacklog {
            any: space.placement().any_to_move(devices),
            left_bytes: left,
            leaving,
            behind_groups: behind().map(|(row, _)| space.groups().sets().behind_on(row)).sum(),
            behind: behind().map(|(row, d)| devices.name_of(row, d)).collect(),
            fewest_copies: space.groups().fewest_copies(),
        };
        moves.status(self.core.now(), what)
    }

    /// After a change of the device table: wakes the flow of moves, and makes the change durable.
    pub(crate) async fn note_moves(&self) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            st.need_superblock();
            st.moves.begin();
        }
        self.commits.commit().await
    }
}

fn nothing_to_cancel(st: &State) -> String {
    let text = "no device leaves the pool, and nothing is balanced";
    match st.space.groups().fewest_copies() {
        Some(n) => format!(
            "{text}; block groups are to get copies, and forebay pool set copies={n} ends that"
        ),
        None => text.to_owned(),
    }
}

/// Keeps all devices that were to leave. Returns true if there was one.
fn stay_all(st: &mut State) -> bool {
    let leaving: Vec<usize> = (0..st.devices.count())
        .filter(|&row| st.devices.row(row).is_some_and(|d| d.is_leaving()))
        .collect();
    for &row in &leaving {
        st.devices.row_mut(row).into_iter().for_each(|d| d.stay());
    }
    !leaving.is_empty()
}
