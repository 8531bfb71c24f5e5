//! Which epochs are not published, and how many blocks of each are dirty in every bucket.
//!
//! `published < e1 < e2 < ... < en < open`: the epochs from `e1` to `en` are *sealed*, each by a
//! cut of its own; the newest is open. A key counts for the oldest of these that is not before the
//! epoch in which it was written ([`Epochs::class_of`]): after a restart all of them count for the
//! open one, though they carry older numbers.
//!
//! A block of a sealed epoch that is overwritten stays dirty, for its bytes are needed until that
//! epoch is published; it is *retained*. Publishing an epoch makes what buckets say of it and of
//! older ones void, without touching them.

use std::collections::VecDeque;

use base::{BucketId, Epoch};
use smallvec::SmallVec;

/// Dirty blocks of one bucket, of one epoch.
#[derive(Clone, Copy)]
struct EpochDirt {
    epoch: Epoch,
    dirty: u16,
    /// Of these, overwritten since the epoch was sealed.
    retained: u16,
}

/// Dirty blocks of one bucket, in the order of their epochs; those of published epochs say nothing
/// any more, and go when the bucket becomes dirty again.
#[derive(Clone, Default)]
pub(super) struct Dirt {
    counts: SmallVec<[EpochDirt; 2]>,
    /// The newest epoch in whose list of buckets this one is. A bucket may be filled, overwritten
    /// and filled again many times in an epoch that is not published.
    listed: Epoch,
}

impl Dirt {
    /// Blocks of epochs above `published`.
    pub fn above(&self, published: Epoch) -> u32 {
        self.counts.iter().filter(|s| s.epoch > published).map(|s| u32::from(s.dirty)).sum()
    }

    /// Blocks of `epoch`, if no other epoch above `published` has any.
    pub fn only_of(&self, epoch: Epoch, published: Epoch) -> Option<u32> {
        let mut counts = self.counts.iter().filter(|s| s.epoch > published && s.dirty > 0);
        let only = counts.next().filter(|s| s.epoch == epoch)?;
        counts.next().is_none().then_some(only.dirty.into())
    }

    /// Blocks of epochs above `after` and up to `upto` that keys name.
    pub fn named(&self, after: Epoch, upto: Epoch) -> u16 {
        self.counts
            .iter()
            .filter(|s| s.epoch > after && s.epoch <= upto)
            .map(|s| s.dirty - s.retained)
            .sum()
    }

    /// `len` blocks more of `epoch`, the newest there is. True if the bucket is not in its list.
    pub fn add(&mut self, epoch: Epoch, len: u16, published: Epoch) -> bool {
        match self.counts.last_mut().filter(|s| s.epoch == epoch) {
            Some(s) => s.dirty += len,
            None => {
                self.counts.retain(|s| s.epoch > published && s.dirty > 0);
                self.counts.push(EpochDirt { epoch, dirty: len, retained: 0 });
            }
        }
        std::mem::replace(&mut self.listed, epoch) != epoch
    }

    /// `len` blocks of `epoch` are overwritten; `sealed`: they stay until it is published. False if
    /// there are not so many.
    pub fn remove(&mut self, epoch: Epoch, len: u16, sealed: bool) -> bool {
        let Some(s) = self.counts.iter_mut().find(|s| s.epoch == epoch) else { return false };
        let enough = s.dirty - s.retained >= len;
        if enough && sealed {
            s.retained += len;
        } else if enough {
            s.dirty -= len;
        }
        enough
    }

    /// Gives the newest epoch that is counted the number `epoch`.
    pub fn renumber(&mut self, epoch: Epoch) {
        if let Some(s) = self.counts.last_mut() {
            s.epoch = epoch;
            self.listed = epoch;
        }
    }

    /// Nothing of it counts.
    pub fn clear(&mut self) {
        self.counts.clear();
    }
}

/// The epochs whose dirty blocks are told apart when records are frozen.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    above: Epoch,
    cut: Option<Epoch>,
    open: Epoch,
}

impl Moment {
    /// Blocks of a bucket that keys name, of the open epoch and of the sealed ones.
    pub fn named(&self, dirt: &Dirt) -> (u16, u16) {
        let split = self.cut.unwrap_or(self.above);
        (dirt.named(split, self.open), dirt.named(self.above, split))
    }
}

/// All epochs that are not published, and the buckets that have or had blocks of each, once. After
/// publishing these are gone through, in slices.
pub struct Epochs {
    /// The epoch up to which writes are not counted as dirty: see [`Epochs::counted_above`].
    above: Epoch,
    /// The oldest first.
    sealed: VecDeque<(Epoch, VecDeque<BucketId>)>,
    open: Epoch,
    open_buckets: VecDeque<BucketId>,
    /// Buckets of published epochs, to be gone through.
    published: VecDeque<VecDeque<BucketId>>,
}

impl Epochs {
    /// `open` is the open one.
    pub(super) fn new(open: Epoch, above: Epoch) -> Epochs {
        Epochs {
            above,
            sealed: VecDeque::new(),
            open,
            open_buckets: VecDeque::new(),
            published: VecDeque::new(),
        }
    }

    /// The open one: new dirty blocks belong to it.
    pub fn open(&self) -> Epoch {
        self.open
    }

    /// The newest that is sealed and not published.
    pub fn cut(&self) -> Option<Epoch> {
        self.sealed.back().map(|s| s.0)
    }

    /// The counters of dirty blocks, and of staged ones, are exactly about the keys that were
    /// written after this epoch. It is the published one; but from an open to the first publication
    /// after it, it may be older: the one that was published as of the checkpoint. Which of the
    /// keys that this had counted were published before the end of that life, only a walk over all
    /// keys would tell.
    pub fn counted_above(&self) -> Epoch {
        self.above
    }

    /// The epoch in which a key was written, if the counters are about it.
    pub fn counted(&self, written: Option<Epoch>) -> Option<Epoch> {
        written.filter(|&w| w > self.above)
    }

    /// The epochs that a checkpoint is to tell apart.
    pub(super) fn moment(&self) -> Moment {
        Moment { above: self.above, cut: self.cut(), open: self.open }
    }

    /// The epoch that a dirty key of epoch `written` counts for.
    pub fn class_of(&self, written: Epoch) -> Epoch {
        let at = self.sealed.partition_point(|s| s.0 < written);
        self.sealed.get(at).map_or(self.open, |s| s.0)
    }

    /// The bucket `id` has `len` blocks more of the open epoch.
    pub(super) fn add(&mut self, id: BucketId, dirt: &mut Dirt, len: u32) {
        if dirt.add(self.open, len as u16, self.above) {
            self.open_buckets.push_back(id);
        }
    }

    /// `len` blocks of a bucket that count for `class` are overwritten. False if it does not have
    /// them.
    pub(super) fn remove(&mut self, dirt: &mut Dirt, class: Epoch, len: u32) -> bool {
        dirt.remove(class, len as u16, class != self.open)
    }

    /// Makes `epoch` the open epoch: what was of the open one before is of this one.
    pub(super) fn renumber(&mut self, epoch: Epoch) {
        self.open = epoch;
    }

    /// Seals the open epoch, and opens the next.
    pub(super) fn seal(&mut self) -> Epoch {
        let epoch = self.open;
        self.sealed.push_back((epoch, std::mem::take(&mut self.open_buckets)));
        self.open = Epoch(epoch.0 + 1);
        epoch
    }

    /// Everything up to `epoch`, which is sealed, is published.
    pub(super) fn publish(&mut self, epoch: Epoch) {
        while self.sealed.front().is_some_and(|s| s.0 <= epoch)
            && let Some((_, buckets)) = self.sealed.pop_front()
        {
            self.published.push_back(buckets);
        }
        self.above = epoch;
    }

    /// The next bucket of a published epoch, in the order in which they were written.
    pub(super) fn next_published(&mut self) -> Option<BucketId> {
        loop {
            let list = self.published.front_mut()?;
            if let Some(id) = list.pop_front() {
                return Some(id);
            }
            self.published.pop_front();
        }
    }

    /// There is none.
    pub(super) fn is_tidy(&self) -> bool {
        self.published.iter().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While nothing can be published, clients may write the same blocks again and again.
    #[test]
    fn a_bucket_that_is_filled_again_and_again_is_listed_once() {
        let mut epochs = Epochs::new(Epoch(5), Epoch(4));
        let mut dirt = Dirt::default();
        for round in 0..1000 {
            epochs.add(BucketId(1), &mut dirt, 2);
            if round % 2 == 0 {
                assert!(epochs.remove(&mut dirt, Epoch(5), 2));
            } else {
                dirt.clear();
            }
        }
        epochs.add(BucketId(1), &mut dirt, 2);
        epochs.seal();
        epochs.add(BucketId(1), &mut dirt, 1);
        epochs.seal();
        epochs.publish(Epoch(6));
        let all: Vec<_> = std::iter::from_fn(|| epochs.next_published()).collect();
        assert_eq!(all, [BucketId(1), BucketId(1)], "once for each epoch");
    }

    #[test]
    fn buckets_of_published_epochs_come_in_the_order_in_which_they_were_written() {
        let mut epochs = Epochs::new(Epoch(5), Epoch(4));
        for (epoch, buckets) in [(5, 0..3), (6, 3..5)] {
            buckets.for_each(|id| epochs.add(BucketId(id), &mut Dirt::default(), 1));
            assert_eq!(epochs.seal(), Epoch(epoch));
        }
        epochs.publish(Epoch(6));
        let all = std::iter::from_fn(|| epochs.next_published());
        assert!(all.eq((0..5).map(BucketId)));
        assert!(epochs.is_tidy());
    }
}
