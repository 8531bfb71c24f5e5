//! How a round takes over what stands in a staging volume: the mapping changes hands, blocks and checksums stay where they are.
//!
//! Both mappings are the round's private clones, so a crash or an abort leaves the staging volume as it was. The blocks are allocated before and after; only
//! what the volume had mapped there before is freed, by the commit that publishes the round. What is left in the staging volume, because it was not
//! asked for, is freed as any deleted volume's.

use base::{Lba, VolumeId};
use btree::Tree;

use crate::error::{ErrorKind, PoolError, Result, Step};
use crate::round::{Entered, join, not_open};
use crate::state::State;
use crate::txn::Volume;
use crate::{Round, extents::push_run, mapping};

/// Blocks of the volume that one step goes over: so many leaves of its mapping may be touched, at worst, as these have extents.
const STEP_BLOCKS: u64 = 2048;
/// Extents that one step takes over.
const STEP_EXTENTS: usize = 128;

impl Round {
    /// What `staging` maps in `[lba, end)` becomes what `volume` has there, and is not `staging`'s any more, when the round is published. What it does not map
    /// is not touched. [`NotFound`](ErrorKind::NotFound): the volume was deleted, or an earlier round has published this already.
    pub async fn adopt(&self, staging: VolumeId, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut next = end;
            self.enter(|st| adopt(st, (staging, volume), (at, end), &mut next)).await?;
            at = next;
            self.pool().rt().yield_now().await;
        }
        Ok(())
    }
}

/// Takes over a bounded part of `[lba, end)`, all or nothing; says in `next` where it stopped.
fn adopt(
    st: &mut State,
    (staging, volume): (VolumeId, VolumeId),
    (lba, end): (Lba, Lba),
    next: &mut Lba,
) -> Step<Entered> {
    let belongs = |v: &Volume| v.record.staged.is_some_and(|(of, _)| of == volume);
    if st.volumes.get(&staging).is_some_and(|v| !belongs(v)) {
        let text = format!("volume {staging} is no staging volume of volume {volume}");
        return Err(PoolError::new(ErrorKind::Invalid, text).into());
    }
    for id in [volume, staging] {
        if let Entered::Busy = join(st, id)? {
            return Ok(Entered::Busy);
        }
    }
    // Taken out while it is edited together with the other; every way out puts it back.
    let mut from = st.volumes.get_mut(&staging).and_then(|v| v.round.take()).ok_or_else(not_open)?;
    let outcome = move_extents(st, &mut from, (staging, volume), (lba, end), next);
    if let Some(v) = st.volumes.get_mut(&staging) {
        v.round = Some(from);
    }
    outcome
}

fn move_extents(
    st: &mut State,
    from: &mut Tree,
    (staging, volume): (VolumeId, VolumeId),
    (lba, end): (Lba, Lba),
    next: &mut Lba,
) -> Step<Entered> {
    let State { store, volumes, geometry, round, .. } = st;
    let to = volumes.get_mut(&volume).and_then(|v| v.round.as_mut()).ok_or_else(not_open)?;
    let txn = round.as_mut().ok_or_else(not_open)?;
    let generation = |id| txn.volumes.get(&id).map(|joined| joined.generation).ok_or_else(not_open);
    let (from_generation, to_generation) = (generation(staging)?, generation(volume)?);
    let mut found = mapping::overlapping(from, store, geometry, (lba, end), STEP_EXTENTS)?;
    *next = end;
    let full = found.len() >= STEP_EXTENTS;
    let Some(first) = found.first().map(|e| e.lba.max(lba)) else { return Ok(Entered::Done) };
    let limit = Lba(end.0.min(first.0 + STEP_BLOCKS));
    found.retain(|e| e.lba < limit);
    let Some(upto) = found.last().map(|e| Lba(e.end()).min(limit)) else { return Ok(Entered::Done) };
    if full || limit < end {
        *next = upto;
    }
    // A malformed record is found now, before anything is changed.
    mapping::overlapping(to, store, geometry, (first, upto), usize::MAX)?;
    let ranges = [&*from, &*to].map(|tree| mapping::range(tree, (first, upto)));
    let mut ready = store.ready(ranges)?;
    let (mut moved, mut taken, mut replaced, mut freed) = (Vec::new(), 0u32, 0u32, Vec::new());
    for e in found {
        let range = (e.lba.max(first), Lba(e.end()).min(upto));
        let addr = e.addr.plus(range.0.0 - e.lba.0);
        let mut edit = ready.edit(from, txn.nodes.at(from_generation));
        taken += mapping::replace(&mut edit, range, None, geometry, &mut moved);
        let mut edit = ready.edit(to, txn.nodes.at(to_generation));
        replaced += mapping::replace(&mut edit, range, Some(addr), geometry, &mut freed);
    }
    for (id, grown) in [(staging, -i64::from(taken)), (volume, i64::from(taken) - i64::from(replaced))] {
        if let Some(joined) = txn.volumes.get_mut(&id) {
            joined.grown += grown;
        }
    }
    freed.into_iter().for_each(|r| push_run(&mut txn.frees, r, geometry.group_blocks));
    Ok(Entered::Done)
}
