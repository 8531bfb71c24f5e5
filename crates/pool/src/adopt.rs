//! How a round takes over what stands in a staging volume: the mapping changes hands, blocks and checksums stay where they are.
//!
//! Both mappings are the round's private clones, so a crash or an abort leaves the staging volume as it was. The blocks are allocated before and after; only
//! what the volume had mapped there before is freed, by the commit that publishes the round. What is left in the staging volume, because it was not
//! asked for, is freed as any deleted volume's.

use base::{Lba, VolumeId};
use btree::{Edit, Fault};

use crate::error::{ErrorKind, PoolError, Result};
use crate::round::{Step, join, not_open};
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
) -> std::result::Result<Result<Step>, Fault> {
    let belongs = |v: &Volume| v.record.staged.is_some_and(|(of, _)| of == volume);
    if st.volumes.get(&staging).is_some_and(|v| !belongs(v)) {
        let text = format!("volume {staging} is no staging volume of volume {volume}");
        return Ok(Err(PoolError::new(ErrorKind::Invalid, text)));
    }
    for id in [volume, staging] {
        match join(st, id) {
            Ok(Step::Done) => {}
            other => return Ok(other),
        }
    }
    // Taken out while it is edited together with the other; every way out puts it back.
    let Some(mut from) = st.volumes.get_mut(&staging).and_then(|v| v.round.take()) else { return Ok(Err(not_open())) };
    let outcome = move_extents(st, &mut from, (staging, volume), (lba, end), next);
    if let Some(v) = st.volumes.get_mut(&staging) {
        v.round = Some(from);
    }
    outcome
}

fn move_extents(
    st: &mut State,
    from: &mut btree::Tree,
    (staging, volume): (VolumeId, VolumeId),
    (lba, end): (Lba, Lba),
    next: &mut Lba,
) -> std::result::Result<Result<Step>, Fault> {
    let State { cache, volumes, geometry, round, .. } = st;
    let (Some(v), Some(txn)) = (volumes.get_mut(&volume), round) else { return Ok(Err(not_open())) };
    let Some(to) = &mut v.round else { return Ok(Err(not_open())) };
    let mut found = match mapping::overlapping(from, cache, geometry, (lba, end), STEP_EXTENTS)? {
        Ok(found) => found,
        Err(e) => return Ok(Err(e)),
    };
    *next = end;
    let full = found.len() >= STEP_EXTENTS;
    let Some(first) = found.first().map(|e| e.lba.max(lba)) else { return Ok(Ok(Step::Done)) };
    let limit = Lba(end.0.min(first.0 + STEP_BLOCKS));
    found.retain(|e| e.lba < limit);
    let Some(upto) = found.last().map(|e| Lba(e.end()).min(limit)) else { return Ok(Ok(Step::Done)) };
    if full || limit < end {
        *next = upto;
    }
    mapping::prepare(from, cache, geometry, (first, upto))?;
    mapping::prepare(to, cache, geometry, (first, upto))?;
    // A malformed record is found now, before anything is changed.
    if let Err(e) = mapping::overlapping(to, cache, geometry, (first, upto), usize::MAX)? {
        return Ok(Err(e));
    }
    let (Some(a), Some(b)) = (txn.volumes.get(&staging), txn.volumes.get(&volume)) else { return Ok(Err(not_open())) };
    let (from_generation, to_generation) = (a.generation, b.generation);
    let mut edit =
        Edit { cache, generation: from_generation, freed: &mut txn.freed_nodes, dirty: &mut txn.dirty_nodes };
    let (mut moved, mut taken, mut replaced, mut freed) = (Vec::new(), 0u32, 0u32, Vec::new());
    for e in found {
        let range = (e.lba.max(first), Lba(e.end()).min(upto));
        let addr = e.addr.plus(range.0.0 - e.lba.0);
        edit.generation = from_generation;
        match mapping::replace(from, &mut edit, range, None, geometry, &mut moved)? {
            Ok(n) => taken += n,
            Err(e) => return Ok(Err(e)),
        }
        edit.generation = to_generation;
        match mapping::replace(to, &mut edit, range, Some(addr), geometry, &mut freed)? {
            Ok(n) => replaced += n,
            Err(e) => return Ok(Err(e)),
        }
    }
    for (id, grown) in [(staging, -i64::from(taken)), (volume, i64::from(taken) - i64::from(replaced))] {
        if let Some(joined) = txn.volumes.get_mut(&id) {
            joined.grown += grown;
        }
    }
    freed.into_iter().for_each(|r| push_run(&mut txn.frees, r, geometry.group_blocks));
    Ok(Ok(Step::Done))
}
