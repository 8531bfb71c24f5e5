//! Which moves are let in: those that can come to an end with the devices that there are.
//!
//! All that groups would be to get then, also for moves that run, must find room on devices that
//! are in use and stay ([`crate::space::Fit`]). If it would not, and less finds no room now, the
//! refusal says what is missing. What is asked for is entered in the step in which the answer is
//! found, so what is let in finds room by the state in which it is entered.

use std::rc::Rc;

use base::{ErrorKind, Result, StorageError, counted, shell_word};
use format::superblock::MAX_COPIES;

use crate::core::Core;
use crate::moves::rows::{invalid, leave, name_of, row_named};
use crate::space::{Fit, Shortage, Terms};
use crate::state::State;

/// Decides whether a change of the devices leaves room for all that is there.
pub(crate) struct MoveTerms {
    pub(super) core: Core,
}

impl MoveTerms {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<MoveTerms> {
        Rc::new(MoveTerms { core: core.clone() })
    }

    /// Marks a device, named by its path or its uuid, as leaving. Fails if the other devices cannot
    /// take what it holds.
    pub(crate) async fn leave_if_possible(&self, device: &str) -> Result<()> {
        self.ask(
            |st| ask_to_leave(st, device),
            |st, fit| {
                let row = row_named(st, device)?;
                let name = name_of(st, row);
                if let Some(shortage) = fit.new_shortage() {
                    return no_room(
                        st,
                        format!("without {name} "),
                        &shortage,
                        &format!(
                            "; or replace it (forebay device replace {} NEW)",
                            shell_word(&name)
                        ),
                    );
                }
                if takes_room(st, row, &fit) {
                    return no_room_for_reserved(st, format!("without {name}"));
                }
                leave(st, row, None);
                Ok(())
            },
        )
        .await
    }

    /// Sets the number of copies. Fails if there are too few devices in use, or too little room.
    /// Fewer copies than before are always possible: that is the way back.
    pub(crate) async fn change_copies(&self, copies: u8) -> Result<()> {
        self.ask(|st| ask_for_copies(st, copies), |st, fit| change_copies(st, copies, &fit)).await
    }
}

fn ask_to_leave(st: &State, device: &str) -> Result<Vec<Terms>> {
    st.standing.permit()?;
    let row = row_named(st, device)?;
    if st.devices.row(row).is_some_and(|d| d.takes_chunks()) {
        enough_devices_without(st, row)?;
    }
    Ok(st.space.placement().terms(&st.devices).before_and_after(|now| now.without(row)))
}

fn enough_devices_without(st: &State, row: usize) -> Result<()> {
    let others = serving(st).filter(|&other| other != row).count();
    let (name, copies) = (name_of(st, row), st.identity.copies);
    if others < usize::from(copies) {
        let left = match others {
            0 => "no device in use".to_owned(),
            n => format!("{} in use", devices(n as u64)),
        };
        let out = out_of_use(st, row);
        let (noted, online) = match out.as_slice() {
            [] => (String::new(), ""),
            [one] => (format!(" ({one} is out of use)"), "take that one into use again, or "),
            all => {
                (format!(" ({} are out of use)", all.join(", ")), "take these into use again, or ")
            }
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

fn ask_for_copies(st: &State, copies: u8) -> Result<Vec<Terms>> {
    st.standing.permit()?;
    let (before, serving) = (st.identity.copies, serving(st).count());
    let most = serving.min(MAX_COPIES);
    if copies == 0 || copies > before && usize::from(copies) > most {
        return invalid(format!(
            "{} on {} in use: 1 to {MAX_COPIES}, and not more than there are devices in use",
            copies_of(copies),
            devices(serving as u64)
        ));
    }
    Ok(st.space.placement().terms(&st.devices).before_and_after(|now| now.with_copies(copies)))
}

fn change_copies(st: &mut State, copies: u8, fit: &Fit) -> Result<()> {
    if let Some(shortage) = fit.new_shortage() {
        return no_room(st, format!("for {} ", copies_of(copies)), &shortage, "");
    }
    if copies > st.identity.copies && !room_for_reserved(st, fit).1 {
        return no_room_for_reserved(st, format!("with {}", copies_of(copies)));
    }
    st.space.groups_mut().set_copies(copies);
    st.identity.copies = copies;
    Ok(())
}

/// True if what was let in, such as what the cache holds, has room when all groups have got
/// what they are to get, and would have none without this device. Of one that is not in use
/// groups get their copies back, as far as there is room. One that holds nothing has gone at
/// once.
fn takes_room(st: &State, row: usize, fit: &Fit) -> bool {
    let (before, after) = room_for_reserved(st, fit);
    let goes_at_once = st.space.claims().reserved() == 0 && !st.space.groups().uses_device(row);
    before && !after && st.devices.is_live(row) && !goes_at_once
}

/// Whether what was let in has room then: as it is, and as it would be.
fn room_for_reserved(st: &State, fit: &Fit) -> (bool, bool) {
    let Some((before, after)) = fit.formable(st.space.groups()) else { return (true, true) };
    let fits = |formable| st.space.room().lasting_fits(formable, &st.demand());
    (fits(before), fits(after))
}

fn no_room_for_reserved(st: &State, begin: String) -> Result<()> {
    let (what, or) = match st.space.claims().reserved() {
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
fn serving(st: &State) -> impl Iterator<Item = usize> {
    let serves = |&row: &usize| {
        st.devices.is_live(row) && st.devices.row(row).is_some_and(|d| d.takes_chunks())
    };
    (0..st.devices.count()).filter(serves)
}

/// The names of the other devices that would stay, but are out of use.
fn out_of_use(st: &State, row: usize) -> Vec<String> {
    let is_out = |&other: &usize| {
        let stays = st.devices.row(other).is_some_and(|d| d.takes_chunks());
        other != row && stays && !st.devices.is_live(other)
    };
    (0..st.devices.count()).filter(is_out).map(|row| name_of(st, row)).collect()
}

fn no_room(st: &State, begin: String, shortage: &Shortage, end: &str) -> Result<()> {
    let mib = (shortage.chunks * st.space.geometry().group_bytes()).div_ceil(1 << 20);
    let add = match shortage.devices {
        1 => format!("add a device that has room for {mib} MiB"),
        n => format!("add {n} devices that have room for {mib} MiB together"),
    };
    // A row may have no device any more, or one that is away.
    let small = serving(st).filter(|row| shortage.rows.contains(row));
    let small: Vec<String> = small.map(|row| name_of(st, row)).collect();
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

fn copies_of(n: u8) -> String {
    counted(n.into(), "copy", "copies")
}

fn devices(n: u64) -> String {
    counted(n, "device", "devices")
}
