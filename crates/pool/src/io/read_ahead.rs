//! Reading nodes ahead of a client that reads in order: the leaves of the mapping that come next,
//! and those of the checksums of what they map, many at once. No data is read ahead: that is the
//! client's choice, and the disk's.

use base::{Lba, VolumeId};
use queue::Class;

use crate::forest::Missing;
use crate::pool::Pool;
use crate::space::Pin;

/// A node that was read may lead to others. They are looked for in so many rounds at most.
const ROUNDS: usize = 8;
/// Nodes that are read in one round.
const NODES: usize = 1024;
/// Extents that are looked at before other tasks get a turn.
const SLICE: usize = 512;

impl Pool {
    /// Notes a client's read, and has nodes read if the client will need them soon.
    pub(super) fn follow_reader(&self, volume: VolumeId, lba: Lba, blocks: u64) {
        let ahead = self.state_mut().forest.follow(volume, lba, blocks);
        if let Some(range) = ahead {
            let pool = self.clone();
            let load = async move { pool.read_nodes_ahead(volume, range).await };
            self.rt().detach_job("read-ahead", load);
        }
    }

    /// Brings the nodes into memory that reads of a range need. What goes wrong is left to the
    /// reads.
    async fn read_nodes_ahead(&self, volume: VolumeId, range: (Lba, Lba)) {
        for _ in 0..ROUNDS {
            let pin = self.state().space.pin();
            let mut missing = Missing::default();
            missing.add(self.state().forest.missing_mapping(volume, range, NODES));
            if !self.load_missing(missing, &pin).await {
                break;
            }
        }
        for _ in 0..ROUNDS {
            let pin = self.state().space.pin();
            let Some(missing) = self.missing_checksums(volume, range).await else { return };
            if !self.load_missing(missing, &pin).await {
                return;
            }
        }
    }

    /// Nodes of checksums that are not resident. `None`: the mapping is not resident any more.
    async fn missing_checksums(&self, volume: VolumeId, (lba, end): (Lba, Lba)) -> Option<Missing> {
        let (mut missing, mut at) = (Missing::default(), lba);
        while at < end && missing.len() < NODES {
            let range = (at, end);
            let upto = self.state().forest.missing_checksums(volume, range, SLICE, &mut missing);
            at = upto.ok()?;
            self.rt().yield_now().await;
        }
        Some(missing)
    }

    /// Reads nodes; true if there were some, and all could be read. They are for a client, but no
    /// request of it waits for them yet: so they do not count as foreground.
    async fn load_missing(&self, missing: Missing, pin: &Pin) -> bool {
        !missing.is_empty()
            && self.load_nodes(Class::Commit, missing.into_faults(), pin, false).await
    }
}
