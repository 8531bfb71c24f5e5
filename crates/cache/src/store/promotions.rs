//! Promotions: blocks that were read from the pool, or written to it, and are to be kept.

use std::collections::{BTreeMap, VecDeque};

use base::{BlockRange, Epoch, Generation, Lba, SliceList, VolumeId};

use crate::store::buckets::census::Stream;

/// No promotion is of more blocks.
pub(crate) const MAX_BLOCKS: u64 = 256;
/// Promotions that are being written into buckets at once.
const AT_ONCE: usize = 32;
/// Bytes that may wait for a commit of the pool; what comes on top of it is not kept.
const MAX_WAITING: usize = 16 << 20;

/// The block of a volume at which a promotion begins, and the number of the promotion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PromotionKey {
    pub volume: VolumeId,
    pub from: Lba,
    pub number: u64,
}

/// A range that is read for a promotion.
struct PromotedRange {
    end: Lba,
    spoiled: bool,
    /// The pool's image had everything up to this epoch when the promotion began.
    published: Epoch,
    /// The stream whose buckets the promotion fills.
    stream: Stream,
}

struct WaitingInsert {
    key: PromotionKey,
    needs: Generation,
    data: SliceList,
    bytes: usize,
}

/// The promotions that are under way.
#[derive(Default)]
pub(crate) struct Promotions {
    all: BTreeMap<PromotionKey, PromotedRange>,
    next: u64,
    /// The number of promotions that are being written into buckets.
    running: usize,
    waiting: VecDeque<WaitingInsert>,
    waiting_bytes: usize,
    /// Ranges that a direct write is changing in the pool.
    direct: Vec<(VolumeId, BlockRange)>,
}

impl Promotions {
    /// Begins to watch a range; `None` if it is being changed.
    pub(super) fn begin(
        &mut self,
        volume: VolumeId,
        range: BlockRange,
        published: Epoch,
        stream: Stream,
    ) -> Option<PromotionKey> {
        let overlaps = |other: BlockRange| other.from < range.end && range.from < other.end;
        if self.direct.iter().any(|&(v, other)| v == volume && overlaps(other)) {
            return None;
        }
        self.next += 1;
        let key = PromotionKey { volume, from: range.from, number: self.next };
        self.all.insert(key, PromotedRange { end: range.end, spoiled: false, published, stream });
        Some(key)
    }

    /// Watches a part of what a promotion that is still good watches, by itself.
    pub fn part_of(&mut self, key: &PromotionKey, range: BlockRange) -> Option<PromotionKey> {
        let whole = self.all.get(key).filter(|p| !p.spoiled)?;
        let part = PromotedRange {
            end: range.end,
            spoiled: false,
            published: whole.published,
            stream: whole.stream,
        };
        self.next += 1;
        let key = PromotionKey { volume: key.volume, from: range.from, number: self.next };
        self.all.insert(key, part);
        Some(key)
    }

    /// The blocks of a range are changed: what is under way of them is not to be kept.
    pub fn spoil(&mut self, volume: VolumeId, range: BlockRange) {
        if self.all.is_empty() {
            return;
        }
        let first = |from| PromotionKey { volume, from, number: 0 };
        let from = first(Lba(range.from.0.saturating_sub(MAX_BLOCKS)));
        for (_, p) in self.all.range_mut(from..first(range.end)) {
            p.spoiled |= p.end > range.from;
        }
    }

    /// A direct write begins to change a range.
    pub fn begin_direct(&mut self, volume: VolumeId, range: BlockRange) {
        self.spoil(volume, range);
        self.direct.push((volume, range));
    }

    /// A direct write of a range has ended.
    pub fn end_direct(&mut self, volume: VolumeId, range: BlockRange) {
        if let Some(i) = self.direct.iter().position(|&d| d == (volume, range)) {
            self.direct.swap_remove(i);
        }
    }

    /// The volume and the range of a promotion that is still good.
    pub fn good(&self, key: &PromotionKey) -> Option<(VolumeId, BlockRange)> {
        let watched = self.all.get(key).filter(|p| !p.spoiled)?;
        Some((key.volume, BlockRange::new(key.from, watched.end)))
    }

    /// The stream whose buckets a promotion fills.
    pub fn stream(&self, key: &PromotionKey) -> Stream {
        self.all.get(key).map_or(Stream::Promoted, |p| p.stream)
    }

    /// The epoch up to which the pool's image had everything when a promotion began.
    pub fn published(&self, key: &PromotionKey) -> Epoch {
        self.all.get(key).map_or(Epoch(0), |p| p.published)
    }

    /// True if one more may be written into buckets now.
    pub fn may_run(&self) -> bool {
        self.running < AT_ONCE
    }

    /// One more is written into buckets, until [`Promotions::ran`].
    pub fn run(&mut self) {
        self.running += 1;
    }

    pub fn ran(&mut self) {
        self.running -= 1;
    }

    /// The data of a promotion, which the commit `needs` of the pool has. Returns it if it is to be
    /// written into buckets now; it waits for the commit, or is given up, otherwise.
    pub fn keep(
        &mut self,
        key: PromotionKey,
        data: SliceList,
        needs: Generation,
        committed: Generation,
    ) -> Option<SliceList> {
        if needs <= committed && self.may_run() {
            self.run();
            return Some(data);
        }
        let bytes = data.iter().map(|s| s.len()).sum();
        if self.waiting_bytes + bytes <= MAX_WAITING {
            self.waiting_bytes += bytes;
            self.waiting.push_back(WaitingInsert { key, needs, data, bytes });
        } else {
            self.end(&key);
        }
        None
    }

    /// Ends a promotion, which is kept or given up.
    pub fn end(&mut self, key: &PromotionKey) {
        self.all.remove(key);
    }

    /// The next that waited for a commit up to `committed`, to be written into buckets.
    pub fn take_ready(&mut self, committed: Generation) -> Option<(PromotionKey, SliceList)> {
        let i = self.waiting.iter().position(|w| w.needs <= committed)?;
        let w = self.waiting.remove(i)?;
        self.waiting_bytes -= w.bytes;
        self.run();
        Some((w.key, w.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: VolumeId = VolumeId(1);

    fn range(from: u64, end: u64) -> BlockRange {
        BlockRange::new(Lba(from), Lba(end))
    }

    #[test]
    fn writes_spoil_what_they_overlap() {
        let mut p = Promotions::default();
        let a = p.begin(V, range(10, 20), Epoch(0), Stream::Promoted).unwrap();
        let b = p.begin(V, range(20, 30), Epoch(0), Stream::Promoted).unwrap();
        let other = p.begin(VolumeId(2), range(10, 20), Epoch(0), Stream::Promoted).unwrap();
        p.spoil(V, range(19, 20));
        assert!(p.good(&a).is_none() && p.good(&b).is_some() && p.good(&other).is_some());
        p.spoil(V, range(0, 21));
        assert!(p.good(&b).is_none() && p.good(&other).is_some());
    }

    #[test]
    fn nothing_is_kept_of_what_is_being_changed() {
        let mut p = Promotions::default();
        let a = p.begin(V, range(10, 20), Epoch(0), Stream::Promoted).unwrap();
        p.begin_direct(V, range(15, 16));
        assert!(p.good(&a).is_none());
        assert!(
            p.begin(V, range(15, 18), Epoch(0), Stream::Promoted).is_none()
                && p.begin(V, range(16, 18), Epoch(0), Stream::Promoted).is_some()
        );
        p.end_direct(V, range(15, 16));
        assert!(p.begin(V, range(15, 18), Epoch(0), Stream::Promoted).is_some());
    }
}
