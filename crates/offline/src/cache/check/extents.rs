//! Keys of the index: each by itself, against the one before it, its bucket, and the volumes of the
//! pool.

use base::{BucketGen, Crc, Epoch, VolumeId};
use cache::raw::{Body, IndexKey, Layout};
use format::cache::index::{Cover, decode_key};

use super::checker::{CacheLog, GIVE_UP};
use super::tally::BucketTally;
use crate::pool::check::Image;
use crate::report::{Blocks, Subject};

/// An extent, or a part of one, as a report has it.
pub(super) fn blocks_of(image: &Image, volume: VolumeId, from: u64, end: u64) -> Blocks {
    let named = image.volumes.iter().flatten().find(|v| v.0 == volume);
    let name = named.map(|v| v.1.clone());
    Blocks { volume: volume.0, name, first: from, count: end - from }
}

/// The blocks of one volume that the cache has and that lie outside of the volume.
#[derive(Default)]
struct OutsideBlocks {
    volume: VolumeId,
    blocks: u64,
}

/// One time through all keys, in their order.
pub(super) struct Pass<'a> {
    layout: Layout,
    image: &'a Image,
    /// No key is younger.
    newest: Epoch,
    /// See [`BucketTally::extent`].
    split: Epoch,
    above: Epoch,
    /// True if the keys are as an open would find them: they are counted, and compared with the
    /// volumes.
    current: bool,
    before: Option<(VolumeId, u64)>,
    outside: OutsideBlocks,
}

impl<'a> Pass<'a> {
    /// Over a checkpoint with this open epoch, this one as the newest that is sealed, and counters
    /// of what was written after `above`.
    pub fn over_checkpoint(
        layout: &Layout,
        image: &'a Image,
        above: Epoch,
        cut: Epoch,
        open: Epoch,
    ) -> Pass<'a> {
        let (before, outside) = (None, OutsideBlocks::default());
        Pass {
            layout: *layout,
            image,
            newest: open,
            split: above.max(cut),
            above,
            current: false,
            before,
            outside,
        }
    }

    /// Over an index that the journal was applied to, with this open epoch, and counters of what
    /// was written after `above`: all of it counts for the open epoch.
    pub fn over_replayed(layout: &Layout, image: &'a Image, above: Epoch, open: Epoch) -> Pass<'a> {
        Pass { current: true, ..Pass::over_checkpoint(layout, image, above, Epoch(0), open) }
    }

    /// Looks at one key, and tells the tally of it. `generation` says that of a bucket. Returns the
    /// extent if it counts; `Err` if it is no record.
    pub fn key(
        &mut self,
        key: &[u8],
        value: &[u8],
        generation: impl Fn(usize) -> Option<BucketGen>,
        tally: &mut BucketTally,
        log: &mut CacheLog,
    ) -> Result<Option<IndexKey>, ()> {
        let Some(e) =
            IndexKey::decode_within(|addr, len| self.layout.contains(addr, len), key, value)
        else {
            let (volume, lba) = decode_key(key).unwrap_or_default();
            let place = format!("volume {volume}, block {lba}");
            log.error(
                Subject::Extent,
                place,
                "its key or value makes no sense, or is not inside one bucket",
                GIVE_UP,
            );
            return Err(());
        };
        let place = || blocks_of(self.image, e.volume, e.lba.0, e.end()).place();
        if self.before.is_some_and(|(volume, end)| volume == e.volume && end > e.lba.0) {
            log.error(Subject::Extent, place(), "it begins inside the one before", GIVE_UP);
        }
        let end = self.before.filter(|b| b.0 == e.volume).map_or(0, |b| b.1).max(e.end());
        self.before = Some((e.volume, end));
        if let Some(written) = e.written.filter(|&w| w > self.newest) {
            let what =
                format!("it is of epoch {written}, newer than the open one, {}", self.newest);
            log.error(Subject::Extent, place(), what, GIVE_UP);
        }
        let dirty = e.written.is_some_and(|w| w > self.image.published);
        if let Body::Staged { .. } = &e.body {
            tally.extent(&e, self.split, self.above);
        }
        if let Body::Data { addr, generation: of, .. } = &e.body {
            let bucket = addr.0 / u64::from(self.layout.bucket_blocks);
            let stale = generation(bucket as usize).is_some_and(|g| g != *of);
            if stale {
                if dirty {
                    let what = "it is dirty, and its bucket was given to something else: the \
                                blocks are lost";
                    log.error(Subject::Extent, place(), what, GIVE_UP);
                }
                log.counts.keys += u64::from(self.current);
                log.counts.stale_keys += u64::from(self.current);
                return Ok(None);
            }
            let twice = tally.extent(&e, self.split, self.above);
            if twice > 0 {
                let what = format!("{twice} of its blocks in the cache are something else's too");
                log.error(Subject::Extent, place(), what, GIVE_UP);
            }
        }
        if self.current {
            self.count(&e, dirty, log);
            if dirty {
                self.compare_staged(&e, log);
            }
        }
        Ok(Some(e))
    }

    fn count(&mut self, e: &IndexKey, dirty: bool, log: &mut CacheLog) {
        let c = &mut log.counts;
        c.keys += 1;
        let blocks = e.end() - e.lba.0;
        let dirty_blocks = if dirty { blocks } else { 0 };
        match &e.body {
            Body::Data { .. } => {
                c.live_blocks += blocks;
                c.dirty_blocks += dirty_blocks;
            }
            Body::Staged { .. } => c.staged_blocks += dirty_blocks,
            Body::Zeros { .. } => c.dirty_zeros += dirty_blocks,
        }
        if self.outside.volume != e.volume {
            self.end(log);
            self.outside.volume = e.volume;
        }
        let Some(volumes) = &self.image.volumes else { return };
        let size = volumes.iter().find(|v| v.0 == e.volume).map_or(0, |v| v.2);
        self.outside.blocks += e.end().saturating_sub(size.div_ceil(base::BLOCK_U64).max(e.lba.0));
    }

    /// Reports blocks that a staged key names and that are not in the pool. Blocks behind the end
    /// of the volume, or of a volume that is gone, need not be there.
    fn compare_staged(&self, e: &IndexKey, log: &mut CacheLog) {
        let one;
        let (crcs, epoch) = match (&e.body, e.written) {
            (Body::Staged { crcs }, Some(epoch)) => (&crcs[..], epoch),
            // A part that was written over a staged block.
            (Body::Data { cover: Cover { below: Some(below), .. }, .. }, _)
                if below.epoch > self.image.published =>
            {
                one = [below.crc];
                (&one[..], below.epoch)
            }
            _ => return,
        };
        let (Some(staged), Some(volumes)) = (&self.image.staged, &self.image.volumes) else {
            return;
        };
        let blocks =
            volumes.iter().find(|v| v.0 == e.volume).map_or(0, |v| v.2.div_ceil(base::BLOCK_U64));
        let lost = |&(lba, crc): &(u64, &Crc)| staged.get(&(e.volume, epoch, lba)) != Some(crc);
        let mut lost = (e.lba.0..blocks.min(e.end())).zip(crcs).filter(lost).map(|(lba, _)| lba);
        if let Some(first) = lost.next() {
            let what = format!(
                "{} of its blocks are not in the pool as it says, where they were written past \
                 the cache in epoch {epoch}; the first is {first}",
                1 + lost.count()
            );
            log.error(
                Subject::Extent,
                blocks_of(self.image, e.volume, e.lba.0, e.end()).place(),
                what,
                GIVE_UP,
            );
        }
    }

    /// After the last key, and the last of each volume: reports what is outside of it.
    pub fn end(&mut self, log: &mut CacheLog) {
        let OutsideBlocks { volume, blocks } = std::mem::take(&mut self.outside);
        if blocks == 0 {
            return;
        }
        let there = self.image.volumes.iter().flatten().find(|v| v.0 == volume);
        let place = match there {
            Some((_, name, _)) => format!("volume {volume} ({name:?})"),
            None => format!("volume {volume}"),
        };
        if there.is_some() {
            let what = format!(
                "{blocks} blocks behind its end: a crash cut a shrink short; opening the cache \
                 drops them"
            );
            log.note(Subject::Volume, place, what);
        } else if volume.0 < self.image.next_volume && volume.0 > 0 {
            let what = format!(
                "{blocks} blocks of a volume that was deleted: a crash cut that short; nothing \
                 needs them"
            );
            log.note(Subject::Volume, place, what);
        } else {
            let what = format!("{blocks} blocks of a volume that the pool never had");
            log.error(Subject::Volume, place, what, GIVE_UP);
        }
    }
}
