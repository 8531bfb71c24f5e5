//! Which moves are let in: those that can come to an end with the devices that there are.
//!
//! All that groups would be to get then, also for moves that run, must find room on devices that
//! are in use and stay ([`crate::space::Fit`]). If it would not, and less finds no room now, the
//! refusal says what is missing. What is asked for is entered in the step in which the answer is
//! found, so what is let in finds room by the state in which it is entered.

use base::{ErrorKind, Result, StorageError, counted, shell_word};
use format::superblock::MAX_COPIES;

use super::invalid;
use crate::pool::Pool;
use crate::space::{Fit, Shortage, Terms};
use crate::state::State;

impl Pool {
    /// Marks a device, named by its path or its uuid, as leaving. Fails if the other devices cannot
    /// take what it holds.
    pub(super) async fn leave_if_possible(&self, device: &str) -> Result<()> {
        self.ask(
            |st| st.ask_to_leave(device),
            |st, fit| {
                let row = st.row_named(device)?;
                let name = st.name_of(row);
                if let Some(shortage) = fit.new_shortage() {
                    return st.no_room(
                        format!("without {name} "),
                        &shortage,
                        &format!(
                            "; or replace it (forebay device replace {} NEW)",
                            shell_word(&name)
                        ),
                    );
                }
                if st.takes_room(row, &fit) {
                    return st.no_room_for_reserved(format!("without {name}"));
                }
                st.leave(row, None);
                Ok(())
            },
        )
        .await
    }

    /// Sets the number of copies. Fails if there are too few devices in use, or too little room.
    /// Fewer copies than before are always possible: that is the way back.
    pub(super) async fn change_copies(&self, copies: u8) -> Result<()> {
        self.ask(|st| st.ask_for_copies(copies), |st, fit| st.change_copies(copies, &fit)).await
    }
}

impl State {
    fn ask_to_leave(&self, device: &str) -> Result<Vec<Terms>> {
        self.standing.permit()?;
        let row = self.row_named(device)?;
        if self.devices.row(row).is_some_and(|d| d.takes_chunks()) {
            self.enough_devices_without(row)?;
        }
        Ok(self.space.terms(&self.devices).before_and_after(|now| now.without(row)))
    }

    fn enough_devices_without(&self, row: usize) -> Result<()> {
        let others = self.serving().filter(|&other| other != row).count();
        let (name, copies) = (self.name_of(row), self.identity.copies);
        if others < usize::from(copies) {
            let left = match others {
                0 => "no device in use".to_owned(),
                n => format!("{} in use", devices(n as u64)),
            };
            let out = self.out_of_use(row);
            let (noted, online) = match out.as_slice() {
                [] => (String::new(), ""),
                [one] => (format!(" ({one} is out of use)"), "take that one into use again, or "),
                all => (
                    format!(" ({} are out of use)", all.join(", ")),
                    "take these into use again, or ",
                ),
            };
            return invalid(format!(
                "without {name} {left} would be left{noted}, and the pool keeps {}: {online}add a \
                 device first (forebay device add PATH), or replace this one (forebay device \
                 replace {} NEW)",
                copies_of(copies),
                shell_word(&name)
            ));
        }
        Ok(())
    }

    fn ask_for_copies(&self, copies: u8) -> Result<Vec<Terms>> {
        self.standing.permit()?;
        let (before, serving) = (self.identity.copies, self.serving().count());
        let most = serving.min(MAX_COPIES);
        if copies == 0 || copies > before && usize::from(copies) > most {
            return invalid(format!(
                "{} on {} in use: 1 to {MAX_COPIES}, and not more than there are devices in use",
                copies_of(copies),
                devices(serving as u64)
            ));
        }
        Ok(self.space.terms(&self.devices).before_and_after(|now| now.with_copies(copies)))
    }

    fn change_copies(&mut self, copies: u8, fit: &Fit) -> Result<()> {
        if let Some(shortage) = fit.new_shortage() {
            return self.no_room(format!("for {} ", copies_of(copies)), &shortage, "");
        }
        if copies > self.identity.copies && !self.room_for_reserved(fit).1 {
            return self.no_room_for_reserved(format!("with {}", copies_of(copies)));
        }
        self.space.set_copies(copies);
        self.identity.copies = copies;
        Ok(())
    }

    /// True if what was let in, such as what the cache holds, has room when all groups have got
    /// what they are to get, and would have none without this device. Of one that is not in use
    /// groups get their copies back, as far as there is room. One that holds nothing has gone at
    /// once.
    fn takes_room(&self, row: usize, fit: &Fit) -> bool {
        let (before, after) = self.room_for_reserved(fit);
        let goes_at_once = self.space.reserved() == 0 && !self.space.uses_device(row);
        before && !after && self.devices.is_live(row) && !goes_at_once
    }

    /// Whether what was let in has room then: as it is, and as it would be.
    fn room_for_reserved(&self, fit: &Fit) -> (bool, bool) {
        let Some((before, after)) = fit.formable(&self.space) else { return (true, true) };
        let fits = |formable| self.space.lasting_fits(formable, &self.demand());
        (fits(before), fits(after))
    }

    fn no_room_for_reserved(&self, begin: String) -> Result<()> {
        let (what, or) = match self.space.reserved() {
            0 => ("changes of metadata", ""),
            _ => (
                "what the cache holds and the pool does not",
                ", or empty the cache (forebay cache flush)",
            ),
        };
        Err(StorageError::new(
            ErrorKind::NoSpace,
            format!(
                "{begin} there is no room for {what}: add a device first (forebay device add \
                 PATH){or}"
            ),
        ))
    }

    /// The rows of devices that are in use and stay.
    fn serving(&self) -> impl Iterator<Item = usize> {
        let serves = |&row: &usize| {
            self.devices.is_live(row) && self.devices.row(row).is_some_and(|d| d.takes_chunks())
        };
        (0..self.devices.count()).filter(serves)
    }

    /// The names of the other devices that would stay, but are out of use.
    fn out_of_use(&self, row: usize) -> Vec<String> {
        let is_out = |&other: &usize| {
            let stays = self.devices.row(other).is_some_and(|d| d.takes_chunks());
            other != row && stays && !self.devices.is_live(other)
        };
        (0..self.devices.count()).filter(is_out).map(|row| self.name_of(row)).collect()
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
        // A row may have no device any more, or one that is away.
        let small = self.serving().filter(|row| shortage.rows.contains(row));
        let small: Vec<String> = small.map(|row| self.name_of(row)).collect();
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

fn copies_of(n: u8) -> String {
    counted(n.into(), "copy", "copies")
}

fn devices(n: u64) -> String {
    counted(n, "device", "devices")
}
