//! Contents of a bucket: the blocks that it was filled with, and those of them that the index still
//! has there.

use std::rc::Rc;

use base::{BlockRange, BucketGen, BucketId, CacheAddr, Lba, Result};
use format::cache::summary::{SummaryKey, SummaryOwner, decode_summary};
use queue::Class;

use crate::core::Core;
use crate::store::key::{Body, IndexKey};
use crate::store::state::State;

/// Blocks looked up before others get a turn.
const SLICE: usize = 16;

/// Finds out which blocks are in a bucket.
pub(crate) struct BucketContents {
    core: Core,
}

impl BucketContents {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<BucketContents> {
        Rc::new(BucketContents { core: core.clone() })
    }

    /// The first block of a bucket.
    pub(crate) fn first_of(&self, id: BucketId) -> CacheAddr {
        CacheAddr(u64::from(id.0) * u64::from(self.core.layout().bucket_blocks))
    }

    /// The identity that the summary of a bucket carries.
    pub(crate) fn summary_of(&self, bucket: BucketId, generation: BucketGen) -> SummaryOwner {
        SummaryOwner { uuid: self.core.device().uuid(), bucket, generation }
    }

    /// The volume and block of each block of a bucket, as they were written, if that is known. Read
    /// by requests of `class`.
    pub(crate) async fn keys_of(
        &self,
        id: BucketId,
        generation: BucketGen,
        class: Class,
    ) -> Option<Vec<SummaryKey>> {
        let unwritten =
            self.core.state().buckets.summaries().keys_of(id).map(<[SummaryKey]>::to_vec);
        if unwritten.is_some() {
            return unwritten;
        }
        let (addr, blocks) = {
            let st = self.core.state();
            (st.buckets.summaries().place(id), st.buckets.summaries().blocks())
        };
        let read = self
            .core
            .device()
            .queue()
            .read_blocks(class, self.core.offset_of(addr), blocks as usize)
            .await;
        decode_summary(&self.summary_of(id, generation), &read.buf).ok()
    }

    /// Of a pinned bucket's blocks at `places`, those that the index still has there, and that are
    /// `wanted`, neighbours of one key together. `keys` says what they were written as.
    pub(crate) async fn still_there(
        &self,
        id: BucketId,
        generation: BucketGen,
        keys: &[SummaryKey],
        places: impl IntoIterator<Item = u32>,
        wanted: fn(&State, &IndexKey) -> bool,
        class: Class,
    ) -> Result<Vec<IndexKey>> {
        // Each with where its key begins: a part of one key can be moved by itself.
        let mut found: Vec<(IndexKey, Lba)> = Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            let Some(&Some((volume, lba))) = keys.get(place as usize) else { continue };
            let there = CacheAddr(self.first_of(id).0 + u64::from(place));
            let block = self
                .core
                .resident(class, |st| {
                    let range = BlockRange::of(lba, 1);
                    let all = st.index.overlapping(&st.buckets, volume, range, 1)?;
                    let first = all.into_iter().next();
                    let block = first.map(|e| (e.slice(lba.0, lba.0 + 1), e.lba));
                    let is_there = |e: &IndexKey| {
                        matches!(&e.body, Body::Data { addr, generation: g, .. }
                            if (*addr, *g) == (there, generation))
                    };
                    Ok(block.filter(|(e, _)| is_there(e) && wanted(st, e)))
                })
                .await?;
            if let Some((e, key)) = block {
                let blocks = self.core.layout().bucket_blocks;
                let goes_on =
                    |last: &&mut (IndexKey, Lba)| last.1 == key && last.0.continued_by(&e, blocks);
                match found.last_mut().filter(goes_on) {
                    Some(last) => last.0.extend(&e),
                    None => found.push((e, key)),
                }
            }
            if i % SLICE == SLICE - 1 {
                self.core.rt().yield_now().await;
            }
        }
        Ok(found.into_iter().map(|(e, _)| e).collect())
    }
}
