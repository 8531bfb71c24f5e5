//! Promotions: blocks that were read from the pool, or written to it, and are to be kept.

use std::collections::{BTreeMap, VecDeque};

use base::{Epoch, Generation, Lba, SliceList, VolumeId};

use crate::store::buckets::census::Stream;

/// No promotion is of more blocks.
pub(crate) const MAX_BLOCKS: u64 = 256;
/// Promotions that are being written into buckets at once.
const AT_ONCE: usize = 32;
/// Bytes that may wait for a commit of the pool; what comes on top of it is not kept.
const MAX_WAITING: usize = 16 << 20;

/// The block of a volume at which a promotion begins, and the number of the promotion.
pub(crate) type Key = (VolumeId, Lba, u64);

/// A range that is read for a promotion.
struct Watched {
    end: Lba,
    spoiled: bool,
    /// The pool's image had everything up to this epoch when the promotion began.
    published: Epoch,
    /// The stream whose buckets the promotion fills.
    stream: Stream,
}

struct Waiting {
    key: Key,
    needs: Generation,
    data: SliceList,
    bytes: usize,
}

/// The promotions that are under way.
#[derive(Default)]
pub(crate) struct Promotions {
    all: BTreeMap<Key, Watched>,
    next: u64,
    /// The number of promotions that are being written into buckets.
    running: usize,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Ranges that a direct write is changing in the pool.
    direct: Vec<(VolumeId, Lba, Lba)>,
}

impl Promotions {
    /// Begins to watch a range; `None` if it is being changed.
    pub(super) fn begin(
        &mut self,
        volume: VolumeId,
        (from, end): (Lba, Lba),
        published: Epoch,
        stream: Stream,
    ) -> Option<Key> {
        if self.direct.iter().any(|&(v, a, b)| v == volume && a < end && from < b) {
            return None;
        }
        self.next += 1;
        let key = (volume, from, self.next);
        self.all.insert(key, Watched { end, spoiled: false, published, stream });
        Some(key)
    }

    /// Watches a part of what a promotion that is still good watches, by itself.
    pub fn part_of(&mut self, key: &Key, (from, end): (Lba, Lba)) -> Option<Key> {
        let whole = self.all.get(key).filter(|p| !p.spoiled)?;
        let part =
            Watched { end, spoiled: false, published: whole.published, stream: whole.stream };
        self.next += 1;
        let key = (key.0, from, self.next);
        self.all.insert(key, part);
        Some(key)
    }

    /// The blocks of `[lba, end)` are changed: what is under way of them is not to be kept.
    pub fn spoil(&mut self, volume: VolumeId, lba: Lba, end: Lba) {
        if self.all.is_empty() {
            return;
        }
        let from = (volume, Lba(lba.0.saturating_sub(MAX_BLOCKS)), 0);
        for (_, p) in self.all.range_mut(from..(volume, end, 0)) {
            p.spoiled |= p.end > lba;
        }
    }

    /// A direct write begins to change `[lba, end)`.
    pub fn begin_direct(&mut self, volume: VolumeId, lba: Lba, end: Lba) {
        self.spoil(volume, lba, end);
        self.direct.push((volume, lba, end));
    }

    /// A direct write of `[lba, end)` has ended.
    pub fn end_direct(&mut self, volume: VolumeId, lba: Lba, end: Lba) {
        if let Some(i) = self.direct.iter().position(|&d| d == (volume, lba, end)) {
            self.direct.swap_remove(i);
        }
    }

    /// The range of a promotion that is still good.
    pub fn good(&self, key: &Key) -> Option<(VolumeId, Lba, Lba)> {
        self.all.get(key).filter(|p| !p.spoiled).map(|p| (key.0, key.1, p.end))
    }

    /// The stream whose buckets a promotion fills.
    pub fn stream(&self, key: &Key) -> Stream {
        self.all.get(key).map_or(Stream::Promoted, |p| p.stream)
    }

    /// The epoch up to which the pool's image had everything when a promotion began.
    pub fn published(&self, key: &Key) -> Epoch {
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
        key: Key,
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
            self.waiting.push_back(Waiting { key, needs, data, bytes });
        } else {
            self.end(&key);
        }
        None
    }

    /// Ends a promotion, which is kept or given up.
    pub fn end(&mut self, key: &Key) {
        self.all.remove(key);
    }

    /// The next that waited for a commit up to `committed`, to be written into buckets.
    pub fn take_ready(&mut self, committed: Generation) -> Option<(Key, SliceList)> {
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

    #[test]
    fn writes_spoil_what_they_overlap() {
        let mut p = Promotions::default();
        let a = p.begin(V, (Lba(10), Lba(20)), Epoch(0), Stream::Promoted).unwrap();
        let b = p.begin(V, (Lba(20), Lba(30)), Epoch(0), Stream::Promoted).unwrap();
        let other = p.begin(VolumeId(2), (Lba(10), Lba(20)), Epoch(0), Stream::Promoted).unwrap();
        p.spoil(V, Lba(19), Lba(20));
        assert!(p.good(&a).is_none() && p.good(&b).is_some() && p.good(&other).is_some());
        p.spoil(V, Lba(0), Lba(21));
        assert!(p.good(&b).is_none() && p.good(&other).is_some());
    }

    #[test]
    fn nothing_is_kept_of_what_is_being_changed() {
        let mut p = Promotions::default();
        let a = p.begin(V, (Lba(10), Lba(20)), Epoch(0), Stream::Promoted).unwrap();
        p.begin_direct(V, Lba(15), Lba(16));
        assert!(p.good(&a).is_none());
        assert!(
            p.begin(V, (Lba(15), Lba(18)), Epoch(0), Stream::Promoted).is_none()
                && p.begin(V, (Lba(16), Lba(18)), Epoch(0), Stream::Promoted).is_some()
        );
        p.end_direct(V, Lba(15), Lba(16));
        assert!(p.begin(V, (Lba(15), Lba(18)), Epoch(0), Stream::Promoted).is_some());
    }
}
