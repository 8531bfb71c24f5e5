//! A spare takes the place of a device that has been out of use for long.
//!
//! A spare is a device of the pool with all tables and without chunks. When another device has been
//! missing or failed for `spare_after` without a break, one change of the device table marks that
//! device as leaving, with the spare as its successor, and the spare as a device like the others. A
//! command would make the same change. The flow of moves does the rest. So after a crash at any
//! time the device is a spare, or one that is being filled.
//!
//! No spare takes the place of a device that the user took out of use. If the user cancels the
//! moves of a device that is away, `spare_after` begins anew.

use std::rc::Rc;

use base::{Duration, Instant, Result};
use model::device::SpareTaken;
use rt::sync::either;

use crate::core::Core;
use crate::devices::PoolDevice;
use crate::moves::Moves;
use crate::moves::rows::{can_be_replaced, invalid, leave, row_named};
use crate::state::State;

/// The job's name.
const JOB: &str = "spare";
/// The time between two looks while a device is away.
const LOOK: Duration = Duration::from_secs(5);

/// The outcome of a look for devices that need spares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpareRound {
    NoneAway,
    /// A device is away whose place a spare may take.
    DeviceAway,
}

/// Puts spares in the place of devices that stay away.
pub struct Spares {
    core: Core,
    moves: Rc<Moves>,
}

impl Spares {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, moves: &Rc<Moves>) -> Rc<Spares> {
        Rc::new(Spares { core: core.clone(), moves: moves.clone() })
    }

    /// Gives spares the places of devices that stay away, for as long as the pool is open.
    pub(crate) fn begin_sparing(self: &Rc<Self>) {
        let this = self.clone();
        self.core.rt().detach_background(JOB, async move {
            let mut told = false;
            while !this.core.is_closed() && this.core.permit().is_ok() {
                let (changed, set) = (this.core.state().moves.changed(), this.core.was_set());
                match this.give_spares(&mut told).await {
                    Ok(SpareRound::NoneAway) => {
                        either(changed, set).await;
                    }
                    Ok(SpareRound::DeviceAway) => {
                        either(changed, this.core.rt().sleep(LOOK)).await;
                    }
                    Err(e) => {
                        tracing::error!(
                            "a spare cannot take its place now: {e}; it is tried again in 5 s"
                        );
                        this.core.rt().sleep(LOOK).await;
                    }
                }
            }
        });
    }

    /// Gives spares the places of devices that have been away for long enough. `told`: it is in the
    /// log that no spare is large enough.
    async fn give_spares(&self, told: &mut bool) -> Result<SpareRound> {
        let (after, at) = (self.core.settings().spare_after, self.core.unix_time(self.core.now()));
        let (given, any) = {
            let mut st = self.core.state_mut();
            look_who_is_away(&mut st, self.core.now());
            let (due, any) = due_for_spares(&st, self.core.now(), after);
            let mut given = false;
            for row in due {
                let name = st.devices.row(row).map(|d| st.devices.name_of(row, d));
                let name = name.unwrap_or_default();
                match spare_for(&st, row) {
                    Some(spare) => {
                        let path = st.devices.path(spare).to_owned();
                        tracing::error!(
                            device = %name, spare = %path,
                            "the device was out of use for too long: a spare takes its place"
                        );
                        take_place(&mut st, row, spare);
                        st.moves.taken.count(SpareTaken { spare: path, device: name, at });
                        given = true;
                    }
                    None if !*told && st.devices.iter().any(PoolDevice::is_spare) => {
                        *told = true;
                        tracing::error!(device = %name, "no spare is as large as what it holds");
                    }
                    None => {}
                }
            }
            *told &= any;
            (given, any)
        };
        if given {
            self.moves.note_moves().await?;
        }
        Ok(if any { SpareRound::DeviceAway } else { SpareRound::NoneAway })
    }

    /// A spare, named by its path or uuid, becomes a device like the others, or takes the place of
    /// the device `replaces` at once. Returns false if there is no such spare.
    pub async fn use_spare(&self, name: &str, replaces: Option<&str>) -> Result<bool> {
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let Ok(spare) = row_named(&st, name) else { return Ok(false) };
            if !st.devices.row(spare).is_some_and(PoolDevice::is_spare) {
                return Ok(false);
            }
            if st.devices.live(spare).is_none() {
                return invalid(format!("{name} is not in use now"));
            }
            if st.devices.row(spare).is_some_and(PoolDevice::is_leaving) {
                return invalid(format!(
                    "{name} leaves the pool already: forebay device cancel lets it stay, and then \
                     it can be used"
                ));
            }
            match replaces {
                None => st.devices.row_mut(spare).into_iter().for_each(PoolDevice::serve),
                Some(old) => {
                    let row = row_named(&st, old)?;
                    can_be_replaced(&st, row, old)?;
                    if !fits(&st, spare, row) {
                        return invalid(format!("{name} is smaller than what {old} holds"));
                    }
                    take_place(&mut st, row, spare);
                }
            }
        }
        self.moves.note_moves().await?;
        Ok(true)
    }
}

fn look_who_is_away(st: &mut State, now: Instant) {
    let rows = st.devices.iter().enumerate().filter(|(_, d)| d.wants_spare());
    st.moves.away_mut().look(now, rows.map(|(row, d)| (row, d.absences())));
}

/// The devices that have been away for `after`, and whether any device is away whose place a
/// spare may take at some time.
fn due_for_spares(st: &State, now: Instant, after: Duration) -> (Vec<usize>, bool) {
    let rows = || (0..st.devices.count()).filter_map(|row| time_of_spare(st, row, after));
    let away = rows().count() > 0;
    let due = (0..st.devices.count())
        .filter(|&row| time_of_spare(st, row, after).is_some_and(|then| then <= now));
    (due.collect(), away)
}

/// When a spare is to take the place of a device, if it stays away and there is one.
pub(crate) fn time_of_spare(st: &State, row: usize, after: Duration) -> Option<Instant> {
    let since = st.moves.away().since(row)?;
    (!after.is_zero()).then(|| since.after(after))
}

/// True if a spare has room for what a device holds.
fn fits(st: &State, spare: usize, row: usize) -> bool {
    let chunks = st.devices.row(spare).map_or(0, |d| d.record().chunks);
    chunks >= st.space.groups().sets().chunks_on(row)
}

/// Spares that could take a place now.
pub(crate) fn spares_left(st: &State) -> usize {
    st.devices.iter().filter(|d| is_ready(d)).count()
}

/// The smallest spare in use that has room for what a device holds.
pub(crate) fn spare_for(st: &State, row: usize) -> Option<usize> {
    let spares = st.devices.iter().enumerate().filter(|(_, d)| is_ready(d));
    let fit = spares.filter(|(spare, _)| fits(st, *spare, row));
    fit.min_by_key(|(_, d)| d.record().chunks).map(|(spare, _)| spare)
}

/// Makes a spare a device like the others, to which the chunks of another one are to move.
fn take_place(st: &mut State, row: usize, spare: usize) {
    st.devices.row_mut(spare).into_iter().for_each(PoolDevice::serve);
    leave(st, row, Some(spare as u8));
}

/// A spare that is in use and stays.
fn is_ready(d: &PoolDevice) -> bool {
    d.is_spare() && !d.is_leaving() && d.live().is_some()
}
