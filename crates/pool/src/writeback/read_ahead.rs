//! Reading ahead for a pass: the nodes that its writes will need are brought into memory before
//! they begin, so that a pass stays one sweep over a disk.

use base::{GroupId, Lba, VolumeId};
use queue::Class;

use super::pass_txn::Pass;
use crate::pool::Pool;
use crate::transfer::Nodes;

/// Nodes that are read ahead at once, few enough for others to get their turn at the device, and
/// how often.
const WARM_AT_ONCE: usize = 32;
const WARM_STEPS: usize = 32;

impl Pass {
    /// Brings into memory what a write of `[lba, end)` needs of the volume's mapping. Many writers
    /// that do so before they write have a slow disk read it in few sweeps, and then write in one;
    /// a writer that faults only after its write sends the head there and back. An error is left to
    /// the write.
    pub async fn warm(&self, volume: VolumeId, lba: Lba, end: Lba) {
        let step =
            |st: &mut crate::state::State| Ok(st.forest.ready_mapping(volume, (lba, end))?);
        let _ = self.pool().resident(Class::Commit, step).await;
    }
}

impl Pool {
    /// Brings the checksum tree of a group into memory that the pass has just begun to write to:
    /// nearly all of it will be needed.
    pub(crate) fn warm_checksums(&self, id: GroupId) {
        let pool = self.clone();
        self.rt().detach_job("write-back", async move {
            // Bounded, in case they are put out of memory again while others come.
            for _ in 0..WARM_STEPS {
                let (missing, pin) = {
                    let st = pool.state();
                    (st.forest.missing_sums(id, WARM_AT_ONCE), st.space.pin())
                };
                let Some(missing) = missing.filter(|m| !m.is_empty()) else { return };
                let mut loads = Vec::with_capacity(missing.len());
                for fault in missing {
                    let (from, pin) = (pool.clone(), pin.clone());
                    let load = async move {
                        btree::load(&mut Nodes(&from, Class::Commit), &fault, &pin).await
                    };
                    loads.push(pool.rt().spawn(load));
                }
                for load in loads {
                    // A node that cannot be read is told to the write that needs it.
                    let Some(Ok(())) = load.await else { return };
                }
            }
        });
    }
}
