//! Counts of what a walk over the index meets of each bucket, compared with the bucket's record.

use base::{Bitmap, BucketId, CacheAddr, Epoch};
use cache::raw::{Body, IndexKey, Layout};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::checker::{CacheLog, GIVE_UP};
use crate::report::Subject;

/// The nodes and blocks of a bucket that keys name.
#[derive(Clone, Copy, Default)]
struct NamedCounts {
    nodes: u16,
    blocks: u16,
    /// Of these, the blocks counted by the open epoch, and by sealed ones.
    open: u16,
    cut: u16,
}

/// All buckets.
pub(super) struct BucketTally {
    bucket_blocks: u64,
    met: Vec<NamedCounts>,
    referred: Bitmap,
    blocks: u64,
    /// Staged blocks, as `open` and `cut` of a bucket.
    staged: (u64, u64),
}

impl BucketTally {
    pub fn new(layout: &Layout) -> BucketTally {
        BucketTally {
            bucket_blocks: layout.bucket_blocks.into(),
            met: vec![NamedCounts::default(); layout.buckets as usize],
            referred: Bitmap::new(layout.data_blocks() as usize),
            blocks: 0,
            staged: (0, 0),
        }
    }

    /// Blocks that were met, nodes included.
    pub fn met_blocks(&self) -> u64 {
        self.blocks
    }

    /// A node or its copy, whose address is inside the cache; true if something else is at its
    /// place.
    pub fn node(&mut self, addr: CacheAddr) -> bool {
        let met = &mut self.met[(addr.0 / self.bucket_blocks) as usize];
        met.nodes = met.nodes.saturating_add(1);
        self.claim(addr.0, 1) > 0
    }

    /// Counts the blocks of a key that is inside a bucket and not stale. Returns how many of them
    /// something else has too. `split`: newest epoch that the open epoch's counter does not cover;
    /// `above`: newest epoch that no counter covers.
    pub fn extent(&mut self, e: &IndexKey, split: Epoch, above: Epoch) -> u64 {
        if let Body::Staged { crcs } = &e.body {
            match e.written {
                Some(written) if written > split => self.staged.0 += crcs.len() as u64,
                Some(written) if written > above => self.staged.1 += crcs.len() as u64,
                _ => {}
            }
        }
        let Body::Data { addr, crcs, .. } = &e.body else { return 0 };
        let met = &mut self.met[(addr.0 / self.bucket_blocks) as usize];
        let n = crcs.len() as u16;
        met.blocks = met.blocks.saturating_add(n);
        match e.written {
            Some(written) if written > split => met.open = met.open.saturating_add(n),
            Some(written) if written > above => met.cut = met.cut.saturating_add(n),
            _ => {}
        }
        self.claim(addr.0, crcs.len())
    }

    /// Reports it if `open` and `cut` are other numbers of staged blocks. `source`: where these
    /// are from.
    pub fn compare_staged(&self, source: &str, open: u64, cut: u64, log: &mut CacheLog) {
        for (of, found, says) in
            [("the open epoch", self.staged.0, open), ("the sealed epochs", self.staged.1, cut)]
        {
            if found != says {
                let what = format!(
                    "the index names {found} staged blocks of {of}, by {source} it names {says}"
                );
                log.error(Subject::Superblock, "staged blocks", what, GIVE_UP);
            }
        }
    }

    fn claim(&mut self, addr: u64, len: usize) -> u64 {
        self.blocks += len as u64;
        let changed = self.referred.assign(addr as usize, len, true);
        (len - changed) as u64
    }

    /// Reports buckets of which `records` say something else. `source`: where these are from.
    /// `kinds`: they tell nodes from data.
    pub fn compare(
        &self,
        source: &str,
        records: impl Fn(BucketId) -> BucketRecord,
        kinds: bool,
        log: &mut CacheLog,
    ) {
        for (i, met) in self.met.iter().enumerate() {
            let id = BucketId(i as u32);
            let f = records(id);
            let place = || format!("bucket {i}");
            let mut wrong = |field: &str, found: u32, says: u32| {
                if found != says {
                    let what =
                        format!("the index has {found} {field} in it, by {source} it has {says}");
                    log.error(Subject::Bucket, place(), what, GIVE_UP);
                }
            };
            wrong("blocks", u32::from(met.blocks) + u32::from(met.nodes), f.live.into());
            wrong("dirty blocks of the open epoch", met.open.into(), f.dirty_open.into());
            wrong("dirty blocks of the sealed epochs", met.cut.into(), f.dirty_cut.into());
            let misplaced = match f.kind {
                BucketKind::Free => met.blocks > 0 || met.nodes > 0,
                BucketKind::Data => met.nodes > 0,
                BucketKind::Nodes | BucketKind::Copies => met.blocks > 0,
            };
            if kinds && misplaced {
                let what = format!(
                    "it has {} nodes and {} blocks of volumes, and is for {:?}",
                    met.nodes, met.blocks, f.kind
                );
                log.error(Subject::Bucket, place(), what.to_lowercase(), GIVE_UP);
            }
        }
    }
}
