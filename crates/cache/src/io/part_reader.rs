//! Reads of blocks of which the cache has some sectors, and the pool the others
//! ([`crate::io::parts`]).

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BlockRange, Lba, Result, Slice, StorageError, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Step;
use queue::Class;

use crate::core::Core;
use crate::core::pins::BucketPin;
use crate::io::promote::Promoter;
use crate::job;
use crate::space::request_room::Room;
use crate::store::buckets::census::Stream;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::state::State;
use crate::store::taken::extents;
use crate::transfer::block_part::{FoundPart, laid_over};
use crate::transfer::bucket_io::{BadBlockNumbers, BucketIo};

/// The outcome of the read of a part.
pub(crate) enum PartRead {
    /// The whole block.
    Whole(Slice),
    /// The block of the bucket is bad.
    Bad(BadBlockNumbers),
    /// The block was written meanwhile, or its part is published: it is to be looked up again.
    Changed,
}

/// Reads blocks of which the cache has some sectors.
pub(crate) struct PartReader {
    core: Core,
    bucket_io: Rc<BucketIo>,
    room: Rc<Room>,
    promoter: Rc<Promoter>,
}

impl PartReader {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        bucket_io: &Rc<BucketIo>,
        room: &Rc<Room>,
        promoter: &Rc<Promoter>,
    ) -> Rc<PartReader> {
        Rc::new(PartReader {
            core: core.clone(),
            bucket_io: bucket_io.clone(),
            room: room.clone(),
            promoter: promoter.clone(),
        })
    }

    /// Reads a block of which a pinned bucket has some sectors, and the pool the others.
    pub(crate) async fn read_part(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        part: FoundPart,
        pin: Option<BucketPin>,
    ) -> Result<PartRead> {
        let pool = self.core.pool().clone();
        let image = self.core.rt().spawn(async move { pool.read(volume, lba, 1).await });
        let mine = self.bucket_io.read_bucket(part.addr, &part.crcs, Class::Foreground).await;
        drop(pin);
        let image = image.await.unwrap_or_else(|| Err(StorageError::ended()));
        let mine = match mine {
            Ok(mine) => mine,
            Err(bad) => return Ok(PartRead::Bad(bad)),
        };
        let step = |st: &mut State| st.same_part(volume, lba, &part);
        if self.core.resident(Class::Foreground, step).await?.is_none() {
            return Ok(PartRead::Changed);
        }
        let whole = laid_over(self.core.rt().bufs(), &mine, part.cover.sectors, &image?)?;
        self.complete_part(volume, lba, part, whole.clone());
        Ok(PartRead::Whole(whole))
    }

    /// Has a block that was read entered as a whole, if there is time and room for it.
    fn complete_part(self: &Rc<Self>, volume: VolumeId, lba: Lba, part: FoundPart, whole: Slice) {
        if self.core.levels().is_low_on_buckets() {
            return;
        }
        let Some(running) = self.promoter.begin_running() else { return };
        let Some(room) = self.room.try_room(blocks_for(1, 1), nodes_for(1)) else { return };
        let this = self.clone();
        self.core.rt().detach_job(job::PROMOTION, async move {
            let _running = running;
            if let Err(e) = this.enter_whole(room, volume, lba, &part, whole).await {
                tracing::debug!("a block that was completed was not kept: {e}");
            }
        });
    }

    async fn enter_whole(
        &self,
        mut room: JournalRoom,
        volume: VolumeId,
        lba: Lba,
        part: &FoundPart,
        whole: Slice,
    ) -> Result<()> {
        let mut taken = self.room.take_some(Stream::Promoted, 1);
        if taken.is_empty() {
            return Ok(());
        }
        let mut outcome = self.bucket_io.write_taken(&mut taken, &whole, Class::Promotion).await;
        if outcome.is_ok() {
            let crcs: Crcs = block_crcs(&whole).collect();
            outcome = self
                .core
                .resident(Class::Promotion, |st| {
                    let open = st.buckets.epochs().open();
                    // A key that belongs to a cut stays as it is.
                    if st.same_part(volume, lba, part)?.is_some_and(|e| e.written == Some(open)) {
                        let new = extents(volume, lba, &taken, &crcs, Cover::ALL, Some(open));
                        st.change(&mut room, volume, BlockRange::of(lba, 1), &new)?;
                        st.completed_part();
                    }
                    Ok(())
                })
                .await;
        }
        outcome
    }
}

impl State {
    /// The extent of a block, if it is the part that was found before.
    pub(crate) fn same_part(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        part: &FoundPart,
    ) -> Step<Option<IndexKey>> {
        let found = self.index.overlapping(&self.buckets, volume, BlockRange::of(lba, 1), 1)?;
        let same = |e: &IndexKey| match &e.body {
            Body::Data { addr, crcs, cover, .. } => {
                (addr, crcs, cover) == (&part.addr, &part.crcs, &part.cover)
            }
            _ => false,
        };
        Ok(found
            .into_iter()
            .next()
            .filter(|e| e.is_part() && same(e) && !e.is_stale(&self.buckets)))
    }
}
