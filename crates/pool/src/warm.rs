//! Reading ahead for a round: what its writes will need of trees is brought into memory before they begin, so that a round stays one sweep over a disk.

use base::{GroupId, Lba, VolumeId};
use format::records::checksum_key;
use queue::Class;

use crate::mapping;
use crate::nodes::Nodes;
use crate::round::Round;
use crate::state::State;

/// Nodes that are read ahead at once, few enough for others to get their turn at the device, and how often.
const WARM_AT_ONCE: usize = 32;
const WARM_STEPS: usize = 32;

impl Round {
    /// Brings into memory what a write of `[lba, end)` needs of the volume's mapping. Many writers that do so before they write have a slow disk read it
    /// in few sweeps, and then write in one; who faults only after its write sends the head there and back. An error is left to the write.
    pub async fn warm(&self, volume: VolumeId, lba: Lba, end: Lba) {
        let step = |st: &mut State| {
            let State { store, volumes, .. } = st;
            if let Some(v) = volumes.get(&volume) {
                let tree = v.round.as_ref().unwrap_or(&v.mapping.tree);
                store.ready([mapping::range(tree, (lba, end))])?;
            }
            Ok(())
        };
        let _ = self.pool().resident(Class::Commit, step).await;
    }

    /// Brings the checksum tree of a group into memory that the round has just begun to write to: nearly all of it will be needed.
    pub(crate) fn warm_checksums(&self, id: GroupId) {
        let pool = self.pool().clone();
        self.pool().rt().detach(async move {
            // Bounded, in case they are put out of memory again while others come.
            for _ in 0..WARM_STEPS {
                let (missing, pin) = {
                    let st = pool.state();
                    let Some(tree) = &st.group(id).round else { return };
                    let (from, to) = (checksum_key(0), checksum_key(st.geometry.group_blocks));
                    (tree.missing(&st.store, &from, &to, WARM_AT_ONCE), st.pin.clone())
                };
                if missing.is_empty() {
                    return;
                }
                let mut loads = Vec::with_capacity(missing.len());
                for fault in missing {
                    let (from, pin) = (pool.clone(), pin.clone());
                    loads.push(
                        pool.rt()
                            .spawn(async move { btree::load(&mut Nodes(&from, Class::Commit), &fault, &pin).await }),
                    );
                }
                for load in loads {
                    // What cannot be read is told to whoever needs it.
                    let Some(Ok(())) = load.await else { return };
                }
            }
        });
    }
}
