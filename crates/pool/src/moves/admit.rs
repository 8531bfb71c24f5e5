//! Which moves are let in: those that can come to an end with the devices that there are.
//!
//! What is asked for is entered, and all that groups are to get then, also for moves that run, must
//! find room on devices that are in use and stay ([`crate::space::Shortage`]). If it does not, and
//! did before, the change is taken back, and the refusal says what is missing.

use base::{ErrorKind, Result, StorageError};
use format::superblock::MAX_COPIES;

use super::invalid;
use crate::devices::PoolDevice;
use crate::space::Shortage;
use crate::state::State;

impl State {
    /// Marks a device as leaving. Fails if the other devices cannot take what it holds.
    pub(super) fn leave_if_possible(&mut self, row: usize) -> Result<()> {
        let before = self.space.shortage(&self.devices);
        if self.devices.row(row).is_some_and(|d| d.takes_chunks()) {
            self.enough_devices_without(row)?;
        }
        let was = self.devices.row(row).map(|d| (d.is_leaving(), d.record().successor));
        self.leave(row, None);
        let Some(shortage) = self.new_shortage(before) else { return Ok(()) };
        let name = self.name_of(row);
        match was {
            Some((true, successor)) => self.leave(row, successor),
            _ => self.devices.row_mut(row).into_iter().for_each(PoolDevice::stay),
        }
        self.no_room(
            format!("without {name} "),
            &shortage,
            &format!("; or replace it (forebay device replace {name} NEW)"),
        )
    }

    fn enough_devices_without(&self, row: usize) -> Result<()> {
        let others = self.serving().filter(|&other| other != row).count();
        let (name, copies) = (self.name_of(row), self.identity.copies);
        if others < usize::from(copies) {
            return invalid(format!(
                "without {name} {others} devices would be left, and the pool keeps {copies} \
                 copies: add a device first (forebay device add PATH), or replace this one \
                 (forebay device replace {name} NEW)"
            ));
        }
        Ok(())
    }

    /// Sets the number of copies. Fails if there are too few devices in use, or too little room.
    /// Fewer copies than before are always possible: that is the way back.
    pub(super) fn change_copies(&mut self, copies: u8) -> Result<()> {
        let (before, devices) = (self.identity.copies, self.serving().count());
        let most = devices.min(MAX_COPIES);
        if copies == 0 || copies > before && usize::from(copies) > most {
            return invalid(format!(
                "{copies} copies on {devices} devices in use: 1 to {MAX_COPIES}, and not more than \
                 there are devices in use"
            ));
        }
        let shortage = self.space.shortage(&self.devices);
        self.space.set_copies(copies);
        let shortage = self.new_shortage(shortage);
        if shortage.is_none() && (copies <= before || self.reserved_fits()) {
            self.identity.copies = copies;
            return Ok(());
        }
        self.space.set_copies(before);
        match shortage {
            Some(shortage) => self.no_room(format!("for {copies} copies "), &shortage, ""),
            None => Err(StorageError::new(
                ErrorKind::NoSpace,
                format!(
                    "with {copies} copies there is no room for what the cache holds and the pool \
                     does not: add a device first (forebay device add PATH), or empty the cache \
                     (forebay cache flush)"
                ),
            )),
        }
    }

    /// What finds no room now, if that is more than before.
    fn new_shortage(&self, before: Option<Shortage>) -> Option<Shortage> {
        let had = before.map_or(0, |s| s.chunks);
        self.space.shortage(&self.devices).filter(|s| s.chunks > had)
    }

    /// The rows of devices that are in use and stay.
    fn serving(&self) -> impl Iterator<Item = usize> {
        let serves = |&row: &usize| {
            self.devices.is_live(row) && self.devices.row(row).is_some_and(|d| d.takes_chunks())
        };
        (0..self.devices.count()).filter(serves)
    }

    fn name_of(&self, row: usize) -> String {
        self.devices.row(row).map(|d| self.devices.name_of(row, d)).unwrap_or_default()
    }

    fn no_room(&self, begin: String, shortage: &Shortage, end: &str) -> Result<()> {
        let mib = (shortage.chunks * self.space.geometry().group_bytes()).div_ceil(1 << 20);
        let add = match shortage.devices {
            1 => format!("add a device that has room for {mib} MiB"),
            n => format!("add {n} devices that have room for {mib} MiB together"),
        };
        let small: Vec<String> = shortage.rows.iter().map(|&row| self.name_of(row)).collect();
        let grow = match small.is_empty() {
            true => String::new(),
            false => format!(", or make {} larger (forebay device resize)", small.join(" or ")),
        };
        Err(StorageError::new(
            ErrorKind::NoSpace,
            format!(
                "{begin}{mib} MiB of copies find no room, as the copies of a block are on \
                 different devices: first {add} (forebay device add PATH){grow}{end}"
            ),
        ))
    }
}
