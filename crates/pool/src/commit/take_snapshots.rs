//! Taking the snapshots that are asked for, at the freeze of a commit.

use base::{Birth, ErrorKind, Result, StorageError, VolumeId};
use format::page::VolumeState;

use super::frozen::TakenSnapshot;
use crate::forest::{NewSnapshot, Volume, no_such_volume};
use crate::state::State;
use crate::txn::WantedSnapshot;

/// Takes the snapshots that are asked for and can be taken now, of what the open transaction
/// has, which is frozen next.
pub(crate) fn take_snapshots(st: &mut State, now: u64) -> Vec<TakenSnapshot> {
    let requests = st.snapshot_requests.take();
    let mut taken = Vec::new();
    let mut birth = None;
    let generation = st.txns.open().generation();
    for request in requests {
        // One commit takes one snapshot of a volume.
        let waits = |w: &WantedSnapshot| {
            let mut all = st.forest.snapshots_of(w.of).filter_map(|v| v.record().snapshot);
            is_in_pass(st, w.of) || all.any(|origin| origin.generation == generation)
        };
        if request.wanted.iter().any(waits) {
            st.snapshot_requests.add(request);
            // Another commit has to follow.
            continue;
        }
        let outcome = take_all(st, &request.wanted, now, &mut birth);
        if let Ok(all) = &outcome {
            let of = request.wanted.iter().map(|w| w.of);
            taken.extend(all.iter().zip(of).map(|(&id, of)| TakenSnapshot { id, of }));
        }
        *request.outcome.borrow_mut() = Some(outcome);
    }
    taken
}

/// Whether a volume is in two states, as an open pass has edited it.
pub(crate) fn is_in_pass(st: &State, id: VolumeId) -> bool {
    st.forest.volume(id).is_some_and(|v| v.mapping().is_in_pass())
}

/// Takes all of these snapshots, or none. `birth`: the birth that ends with them.
fn take_all(
    st: &mut State,
    wanted: &[WantedSnapshot],
    taken_at: u64,
    birth: &mut Option<Birth>,
) -> Result<Vec<VolumeId>> {
    let places = st.forest.free_places(wanted.len());
    if places.len() < wanted.len() {
        let text = format!(
            "the pool has room for {} volumes and snapshots, and not enough places are free: \
             delete some",
            st.forest.vacancy().places
        );
        return Err(StorageError::new(ErrorKind::Limit, text));
    }
    st.forest.has_numbers(wanted.len())?;
    for w in wanted {
        can_be_taken(st, w)?;
    }
    let ended = match *birth {
        Some(ended) => ended,
        None => st.txns.end_birth()?,
    };
    *birth = Some(ended);
    let generation = st.txns.open().generation();
    let mut ids = Vec::with_capacity(wanted.len());
    for (WantedSnapshot { of, name }, place) in wanted.iter().zip(places) {
        st.change_volume(*of, |_| ())?;
        let new = NewSnapshot { of: *of, place, name: name.clone(), taken_at };
        ids.push(st.forest.add_snapshot(new, ended, generation));
    }
    st.need_superblock();
    Ok(ids)
}

/// Error: a snapshot could not be taken now.
pub(crate) fn can_be_taken(st: &State, wanted: &WantedSnapshot) -> Result<()> {
    let WantedSnapshot { of, name } = wanted;
    if st.forest.served(*of).is_none() {
        return Err(no_such_volume(*of));
    }
    let mut others = st.forest.snapshots_of(*of).map(Volume::record);
    if others.any(|other| other.state == VolumeState::Live && other.name == *name) {
        let volume = st.volume_name(*of);
        let text = format!("there is a snapshot {volume}@{name} already");
        return Err(StorageError::new(ErrorKind::Exists, text));
    }
    Ok(())
}
