//! Reading ahead of a client that reads in order.
//!
//! *Nodes*: the leaves of the mapping that come next, and those of the checksums of what they map,
//! many at once. *Data*, where a disk rotates and requests are small: such a disk brings half a
//! megabyte in the time that its head needs to come to another reader's place and back. It is read
//! and verified like everything else, and kept in memory
//! ([`FetchedData`](crate::space::FetchedData)). A request that comes while its data is under
//! way waits for that.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, BLOCK_U64, BlockRange, Crc, Lba, Slice, VolumeId};
use queue::Class;
use rt::Reason;
use rt::sync::Worker;

use super::STEP_BLOCKS;
use super::plan::{Plan, plan_read};
use crate::core::Core;
use crate::forest::{MissingNodes, UpcomingReads};
use crate::space::{Load, Pin, Run};
use crate::transfer::copies::CopyReader;
use crate::transfer::load::NodeLoader;

/// The name of read-ahead in the stories of requests.
const JOB: &str = "read-ahead";

/// A node that was read may lead to others. This is the most rounds in which they are looked for.
const ROUNDS: usize = 8;
/// Nodes that are read in one round.
const NODES: usize = 1024;
/// Extents that are looked at before other tasks get a turn.
const SLICE: usize = 512;

/// Reads ahead of a client that reads in order.
pub(crate) struct ReadAhead {
    core: Core,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
}

impl ReadAhead {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
    ) -> Rc<ReadAhead> {
        Rc::new(ReadAhead { core: core.clone(), copies: copies.clone(), loader: loader.clone() })
    }

    /// Notes a client's read, and has read what the client will need soon.
    pub(crate) fn follow_reader(self: &Rc<Self>, volume: VolumeId, lba: Lba, blocks: u64) {
        let UpcomingReads { nodes, data } = {
            let most = self.core.settings().read_ahead / BLOCK_U64;
            let mut st = self.core.state_mut();
            let most = if st.devices.any_rotates() { most } else { 0 };
            st.forest.follow(volume, lba, blocks, most)
        };
        if let Some(range) = nodes {
            let this = self.clone();
            let load = async move { this.read_nodes_ahead(volume, range).await };
            self.core.rt().detach_job(JOB, load);
        }
        if let Some(range) = data {
            self.read_data_ahead(volume, range.from, range.blocks().min(STEP_BLOCKS));
        }
    }

    /// Begins to read data, now if its nodes are in memory: the client's next requests should find
    /// it under way. What goes wrong is left to the reads.
    fn read_data_ahead(self: &Rc<Self>, volume: VolumeId, lba: Lba, blocks: u64) {
        let plan = plan_read(&mut self.core.state_mut(), volume, lba, blocks);
        match plan {
            Ok((plan, holds)) => self.fetch(&plan, &holds.pin),
            Err(_) => {
                let this = self.clone();
                self.core.rt().detach_job(JOB, async move {
                    let plan = |st: &mut _| plan_read(st, volume, lba, blocks);
                    let planned = this.loader.resident(Class::Foreground, plan).await;
                    if let Ok((plan, holds)) = planned {
                        this.fetch(&plan, &holds.pin);
                    }
                });
            }
        }
    }

    fn fetch(self: &Rc<Self>, plan: &Plan, pin: &Pin) {
        for piece in &plan.pieces {
            let Some(place) = &piece.place else { continue };
            let begun = self
                .core
                .state_mut()
                .space
                .fetched_mut()
                .begin(Run { addr: place.addr, len: piece.len });
            for (run, worker) in begun {
                let first = place.crcs + (run.addr.0 - place.addr.0) as usize;
                let crcs = plan.crcs[first..first + run.len as usize].to_vec();
                self.detach_fetch(run, crcs, pin.clone(), worker);
            }
        }
    }

    fn detach_fetch(
        self: &Rc<Self>,
        run: Run,
        crcs: Vec<Crc>,
        pin: Pin,
        worker: Worker<Option<Slice>>,
    ) {
        let this = self.clone();
        self.core.rt().detach_job(JOB, async move {
            let data = this.copies.read_verified(run.addr, &crcs, Class::Foreground, &pin).await;
            if data.is_err() {
                this.core.state_mut().space.fetched_mut().forget(run);
            }
            worker.end(data.ok());
        });
    }

    /// Blocks with these checksums, of what is read ahead; `None` if it could not be read.
    pub(crate) async fn take_fetched(&self, load: Load, skip: u32, crcs: &[Crc]) -> Option<Slice> {
        let whole = self.core.rt().waits_for_job(Reason::ReadAhead, JOB, load.wait()).await??;
        let data = whole.slice(skip as usize * BLOCK, crcs.len() * BLOCK);
        let is_good = block_crcs(&data).eq(crcs.iter().copied());
        debug_assert!(is_good, "what was read ahead has another checksum than its mapping");
        if !is_good {
            return None;
        }
        self.core.state_mut().space.fetched_mut().used(crcs.len() as u32);
        // A small part would hold the memory of the whole, of which those that limit memory by the
        // lengths of replies know nothing.
        let is_small = data.len() * 2 < whole.len();
        Some(if is_small { self.core.bufs().copy_of(&data).freeze() } else { data })
    }

    /// Brings the nodes into memory that reads of a range need. What goes wrong is left to the
    /// reads.
    async fn read_nodes_ahead(&self, volume: VolumeId, range: BlockRange) {
        for _ in 0..ROUNDS {
            let pin = self.core.state().space.limbo().pin();
            let mut missing = MissingNodes::default();
            missing.add(self.core.state().forest.missing_mapping(volume, range, NODES));
            if !self.load_missing(missing, pin).await {
                break;
            }
        }
        for _ in 0..ROUNDS {
            let pin = self.core.state().space.limbo().pin();
            let Some(missing) = self.missing_checksums(volume, range).await else { return };
            if !self.load_missing(missing, pin).await {
                return;
            }
        }
    }

    /// Nodes of checksums that are not resident. `None`: the mapping is not resident any more.
    async fn missing_checksums(&self, volume: VolumeId, range: BlockRange) -> Option<MissingNodes> {
        let (mut missing, mut at) = (MissingNodes::default(), range.from);
        while at < range.end && missing.len() < NODES {
            let left = BlockRange::new(at, range.end);
            let upto =
                self.core.state().forest.missing_checksums(volume, left, SLICE, &mut missing);
            at = upto.ok()?;
            self.core.rt().yield_now().await;
        }
        Some(missing)
    }

    /// Reads nodes; true if there were some, and all could be read. They are for a client, but no
    /// request of it waits for them yet: so they do not count as foreground.
    async fn load_missing(&self, missing: MissingNodes, pin: Pin) -> bool {
        let nodes = self.loader.pin_nodes(missing.into_faults(), pin);
        !nodes.is_empty() && self.loader.load_nodes(Class::Commit, nodes, false).await.is_empty()
    }
}
