//! Devices are added, replaced and removed: chunks move between them.
//!
//! **What should be is durable, what is done is not.** The device table says which devices leave,
//! and which one is to take the chunks of another; the superblock says how many copies there are.
//! A background flow compares each block group with that, and makes the next one right that is not
//! ([`crate::space::Want`]). So whatever ends a move, a crash, an error, another command, the flow
//! goes on with what is left, and a command is the change of one field.
//!
//! **A move of a chunk** ([`run`]): the group is *closed*, so that nothing is allocated from it
//! ([`crate::space::Closing`]); what was allocated before is committed; the copy is made and
//! verified, from any good copy, and written in the order of addresses ([`copy`]); then the group's
//! record says the new chunk, by a commit that no earlier one overlaps. The old chunk is free when
//! that is durable and no read is about it any more. A crash before the commit leaves the old
//! chunk, and what was copied is free space.
//!
//! **A device that was away comes back** ([`back`]) with all that it has still; the chunks of
//! groups that have changed since are *behind*, and get what they lack ([`refresh`]).
//!
//! **A spare** ([`spares`]) is a device that has joined, and gets no chunks until it takes the
//! place of another one.
//!
//! **A device joins** ([`join`]) with all pages of the tables. While they are copied it gets those
//! that commits write.

mod back;
mod copy;
mod in_order;
mod join;
mod refresh;
mod run;
mod spares;

use base::{BLOCK_U64, ErrorKind, Result, StorageError};
use format::page::Chunk;
use format::superblock::MAX_COPIES;
use rt::FileId;

use crate::devices::{DeviceFile, PoolDevice};
use crate::findings::MovesStatus;
use crate::pool::Pool;

/// What a device that joins is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role<'a> {
    /// To be one like the others.
    Serves,
    /// To take the place of one that fails.
    Spare,
    /// To take the chunks of this one, which leaves.
    Replaces(&'a str),
}

fn invalid<T>(text: String) -> Result<T> {
    Err(StorageError::new(ErrorKind::Invalid, text))
}

/// A chunk that a move fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The device's file.
    pub file: FileId,
    /// The chunk's first byte there, and the first behind it.
    pub place: (u64, u64),
    /// Another one for each time that a chunk is filled, as long as the pool is open.
    pub number: u64,
}

impl Pool {
    /// Chunks that a move fills at the moment. Nothing else writes to them, and each of their
    /// blocks that is written for the first time is behind those that were written before.
    pub fn fills(&self) -> Vec<Fill> {
        let st = self.state();
        let (geometry, (chunks, number)) = (st.space.geometry(), st.moves.filling());
        let of = |c: &Chunk| {
            let file = st.devices.written(c.device.into())?.file();
            let from = geometry.chunk_offset(c.chunk, 0);
            Some(Fill { file, place: (from, from + geometry.group_bytes()), number })
        };
        chunks.iter().filter_map(of).collect()
    }

    /// Adds a device, on which nothing is kept of what it holds. It is durable that it belongs to
    /// the pool when this returns. `uuid`: from a source of true randomness.
    pub async fn add_device(&self, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        self.join(file, uuid, Role::Serves).await
    }

    /// Adds a device that takes the place of another one when that has been out of use for long;
    /// the rest as [`Pool::add_device`].
    pub async fn add_spare(&self, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        self.join(file, uuid, Role::Spare).await?;
        self.moves_changed().notify();
        Ok(())
    }

    /// A device has this size from now on, of which the pool may use all; it is durable that it
    /// does when this returns. Returns the bytes that the pool can use of the device.
    pub async fn grow_device(&self, name: &str, size_bytes: u64) -> Result<u64> {
        let bytes = {
            let mut st = self.state_mut();
            st.standing.permit()?;
            let row = st.row_named(name)?;
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
            st.txns.open_mut().need_superblock();
            chunks * geometry.group_bytes()
        };
        self.commit().await?;
        // There may be room for what could not be moved before.
        self.moves_changed().notify();
        Ok(bytes)
    }

    /// The path of the device that has this path or uuid.
    pub fn path_of_device(&self, name: &str) -> Result<String> {
        let st = self.state();
        Ok(st.devices.path(st.row_named(name)?).to_owned())
    }

    /// Begins to move chunks until all devices are filled to the same share, as far as a group's
    /// copies are on different ones.
    pub async fn balance_devices(&self) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            st.moves.set_balancing(true);
        }
        self.note_moves().await
    }

    /// Begins to move everything from a device, named by its path or its uuid, to others; then it
    /// is removed from the pool. It may be missing.
    pub async fn remove_device(&self, name: &str) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            let row = st.row_named(name)?;
            st.can_do_without(row)?;
            st.leave(row, None);
        }
        self.note_moves().await
    }

    /// Adds a device and begins to move everything to it from another one, named by its path or
    /// its uuid, which then is removed from the pool. It may be missing.
    pub async fn replace_device(&self, old: &str, file: DeviceFile, uuid: [u8; 16]) -> Result<()> {
        {
            let st = self.state();
            let row = st.row_named(old)?;
            st.can_be_replaced(row, old)?;
            let used = st.space.chunks_on(row);
            let chunks = st.space.geometry().chunks_of(file.size_bytes);
            if chunks < used {
                let need = st.space.geometry().chunk_offset(used as u32, 0);
                return invalid(format!(
                    "{}: has {} bytes, and what {old} holds needs {need}",
                    file.path, file.size_bytes
                ));
            }
        }
        self.join(file, uuid, Role::Replaces(old)).await?;
        self.note_moves().await
    }

    /// Devices that leave stay, after all, and nothing is balanced any more; what was moved already
    /// stays where it is.
    pub async fn cancel_moves(&self) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            let balanced = st.moves.is_balancing();
            st.moves.set_balancing(false);
            if !st.stay_all() && !balanced {
                return invalid("no device leaves the pool, and nothing is balanced".into());
            }
        }
        self.note_moves().await
    }

    /// From now on there are so many copies of every block. Those that exist get copies, or lose
    /// them, in the background.
    pub async fn set_copies(&self, copies: u8) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.standing.permit()?;
            st.change_copies(copies)?;
        }
        self.note_moves().await
    }

    /// From now on no chunk is moved, until this is called again or the pool is opened anew; or
    /// they are again.
    pub fn pause_moves(&self, paused: bool) {
        self.state_mut().moves.set_paused(paused);
        self.moves_changed().notify();
    }

    /// Waits until a device was removed from the pool; returns the files that it does not use any
    /// more.
    pub async fn removed_device(&self) -> Vec<FileId> {
        loop {
            let changed = self.moves_changed().wait();
            let files = self.state_mut().moves.take_removed();
            if !files.is_empty() {
                return files;
            }
            changed.await;
        }
    }

    /// True if a device of the pool is in this file.
    pub fn uses_file(&self, file: FileId) -> bool {
        self.state().devices.iter().any(|d| d.disk().is_some_and(|disk| disk.file() == file))
    }

    /// What is being moved, and how far that is.
    pub fn moves_status(&self) -> MovesStatus {
        let st = self.state();
        let mut left = st.space.bytes_to_move(&st.devices);
        if st.moves.is_balancing() {
            left += st.space.bytes_to_balance(&st.devices);
        }
        let any = st.space.next_to_move(base::GroupId(0), &st.devices).is_some();
        let leaving = st.devices.iter().enumerate().filter(|(_, d)| d.is_leaving());
        let leaving = leaving.map(|(row, d)| st.devices.name_of(row, d)).collect();
        let lacks = |d: &PoolDevice| {
            let returns = d.is_joining() && !d.is_new();
            returns || d.live().is_some() && d.record().lacks_since.is_some()
        };
        let behind = || st.devices.iter().enumerate().filter(|(_, d)| lacks(d));
        let groups = behind().map(|(row, _)| st.space.behind_on(row)).sum();
        let behind = behind().map(|(row, d)| st.devices.name_of(row, d)).collect();
        st.moves.status(self.now(), (any, left), leaving, (behind, groups))
    }

    /// The table says something else of the devices: durably, and the flow looks again.
    async fn note_moves(&self) -> Result<()> {
        {
            let mut st = self.state_mut();
            st.txns.open_mut().need_superblock();
            st.moves.begin();
        }
        self.moves_changed().notify();
        self.commit().await
    }
}

impl crate::state::State {
    /// The row of the device that has this path or uuid.
    pub(super) fn row_named(&self, name: &str) -> Result<usize> {
        let is_it = |(row, d): &(usize, &PoolDevice)| {
            let id = uuid::Uuid::from_bytes(d.record().uuid);
            let named = !name.is_empty() && self.devices.path(*row) == name;
            !d.is_removed() && (named || id.to_string() == name)
        };
        let all = || self.devices.iter().enumerate();
        if let Some((row, _)) = all().find(is_it) {
            return Ok(row);
        }
        let known = all().filter(|(_, d)| !d.is_removed());
        let known: Vec<String> = known.map(|(row, d)| self.devices.name_of(row, d)).collect();
        let text = format!("{name} is no device of this pool; these are: {}", known.join(", "));
        Err(StorageError::new(ErrorKind::NotFound, text))
    }

    /// Fails if no other device can take the place of this one.
    pub(super) fn can_be_replaced(&self, row: usize, name: &str) -> Result<()> {
        match self.devices.row(row) {
            Some(d) if d.is_leaving() => invalid(format!("{name} leaves the pool already")),
            Some(d) if d.is_spare() => invalid(format!(
                "{name} is a spare and holds nothing: remove it, and add another one"
            )),
            _ => Ok(()),
        }
    }

    /// Fails if the other devices cannot take what a device holds.
    fn can_do_without(&self, row: usize) -> Result<()> {
        let others: Vec<usize> = (0..self.devices.count())
            .filter(|&d| d != row && self.devices.row(d).is_some_and(|d| d.takes_chunks()))
            .filter(|&d| self.devices.is_live(d))
            .collect();
        let (name, copies) = (self.devices.path(row).to_owned(), usize::from(self.identity.copies));
        if others.len() < copies {
            return invalid(format!(
                "without {name} {} devices would be left, and the pool keeps {copies} copies: add \
                 a device first, or replace this one",
                others.len()
            ));
        }
        let spare: u64 = others.iter().map(|&d| self.devices.spare_chunks(d)).sum();
        let need = self.space.chunks_on(row);
        if spare < need {
            let chunk = self.space.geometry().group_bytes();
            return Err(StorageError::new(
                ErrorKind::NoSpace,
                format!(
                    "{name} holds {} MiB, and the other devices have room for {} MiB: add a device \
                     first, or replace this one",
                    (need * chunk) >> 20,
                    (spare * chunk) >> 20
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, row: usize, successor: Option<u8>) {
        if let Some(d) = self.devices.row_mut(row) {
            d.leave(successor);
        }
    }

    /// True if there was a device that leaves.
    fn stay_all(&mut self) -> bool {
        let leaving: Vec<usize> = (0..self.devices.count())
            .filter(|&row| self.devices.row(row).is_some_and(|d| d.is_leaving()))
            .collect();
        for &row in &leaving {
            self.devices.row_mut(row).into_iter().for_each(|d| d.stay());
        }
        !leaving.is_empty()
    }

    fn change_copies(&mut self, copies: u8) -> Result<()> {
        let devices = self.devices.iter().filter(|d| d.takes_chunks()).count();
        let most = devices.min(MAX_COPIES);
        if copies == 0 || usize::from(copies) > most {
            return invalid(format!(
                "{copies} copies on {devices} devices: 1 to {MAX_COPIES}, and not more than there \
                 are devices"
            ));
        }
        let before = self.identity.copies;
        let need = self.space.used_groups_count() * u64::from(copies.saturating_sub(before));
        let spare: u64 = (0..self.devices.count()).map(|d| self.devices.spare_chunks(d)).sum();
        self.space.set_copies(copies);
        if need > spare || !self.reserved_fits() {
            self.space.set_copies(before);
            let text = format!(
                "{copies} copies of what there is need {} MiB more than the devices have: add one",
                (need.saturating_sub(spare) * self.space.geometry().group_bytes()).max(BLOCK_U64)
                    >> 20
            );
            return Err(StorageError::new(ErrorKind::NoSpace, text));
        }
        self.identity.copies = copies;
        Ok(())
    }
}
