//! Numbers of blocks of each kind.

use base::Epoch;

use super::counts::EpochCounts;

/// Numbers of blocks and of discards in all buckets, and in keys that name none. All of them are
/// exact at all times, and O(1): who changes a bucket or a key tells the change here in the same
/// step.
#[derive(Default)]
pub struct BlockCounts {
    /// Blocks that the index refers to: the sum over all buckets of data.
    live: u64,
    /// Dirty blocks in buckets: the sum over all buckets, of each epoch.
    dirty: EpochCounts,
    /// Blocks of staged keys, which are in no bucket.
    staged: EpochCounts,
    /// Discards.
    zeros: EpochCounts,
    /// Keys of discards that are published.
    dead_zeros: u64,
    /// Blocks that dead keys name. Keys that were stale when the cache was opened are not counted.
    stale: u64,
}

impl BlockCounts {
    /// Blocks that the index refers to.
    pub fn live_blocks(&self) -> u64 {
        self.live
    }

    /// Blocks in buckets that no published image has, of the open epoch and of all that are sealed.
    pub fn dirty_blocks(&self) -> (u64, u64) {
        self.dirty.all()
    }

    /// Of the sealed epochs' blocks, those up to `epoch`.
    pub fn dirty_blocks_upto(&self, epoch: Epoch) -> u64 {
        self.dirty.upto(epoch)
    }

    /// Dirty blocks of the open epoch that are in no cut.
    pub fn fresh_blocks(&self) -> u64 {
        self.dirty.fresh()
    }

    /// Blocks that staged keys name, of the open epoch and of the sealed ones: what was overwritten
    /// is left out.
    pub fn staged_named(&self) -> (u64, u64) {
        self.staged.named()
    }

    /// Discards that no published image has, of the open epoch and of the sealed ones.
    pub fn zeros(&self) -> (u64, u64) {
        self.zeros.all()
    }

    /// All blocks that no published image has, here or in staging volumes, of the open epoch and of
    /// the sealed ones.
    pub fn unpublished_blocks(&self) -> (u64, u64) {
        let (cached, staged) = (self.dirty.all(), self.staged.all());
        (cached.0 + staged.0, cached.1 + staged.1)
    }

    /// True if the pool's image lacks something.
    pub fn is_dirty(&self) -> bool {
        self.unpublished_blocks() != (0, 0) || self.zeros() != (0, 0)
    }

    /// Blocks that stale keys, and staged ones that are published, still name.
    pub fn stale_blocks(&self) -> u64 {
        self.stale
    }

    /// Dead keys that garbage collection would drop, about: those of published discards too.
    pub fn garbage(&self) -> u64 {
        self.stale + self.dead_zeros
    }

    /// Buckets have `n` blocks more that the index refers to.
    pub(super) fn add_live(&mut self, n: u64) {
        self.live += n;
    }

    /// The index refers to `n` blocks less.
    pub(super) fn remove_live(&mut self, n: u64) {
        self.live -= n;
    }

    /// Buckets have `n` dirty blocks more, of the open epoch.
    pub(super) fn add_dirty(&mut self, n: u64) {
        self.dirty.add(n);
    }

    /// `n` dirty blocks that count for `class` are overwritten. False if there are not as many.
    #[must_use]
    pub(super) fn remove_dirty(&mut self, n: u64, class: Epoch) -> bool {
        self.dirty.remove(n, class)
    }

    /// As a checkpoint left them: so many blocks of staged keys are not published.
    pub(in crate::store) fn restore_staged(&mut self, n: u64) {
        self.staged = EpochCounts::restore(n);
    }

    /// Staged keys of the open epoch name `n` blocks more.
    pub(in crate::store) fn add_staged(&mut self, n: u64) {
        self.staged.add(n);
    }

    /// Staged keys that count for `class`, or that are dead, name `n` blocks less. False if they
    /// do not name as many.
    #[must_use]
    pub(super) fn remove_staged(&mut self, n: u64, class: Option<Epoch>) -> bool {
        match class {
            Some(class) => self.staged.remove(n, class),
            None => {
                self.forget_stale(n);
                true
            }
        }
    }

    /// `n` discards were entered.
    pub(in crate::store) fn add_zeros(&mut self, n: u64) {
        self.zeros.add(n);
    }

    /// Garbage collection begins, and drops the keys of published discards.
    pub(super) fn forget_dead_zeros(&mut self) {
        self.dead_zeros = 0;
    }

    /// A bucket with `n` live blocks was evicted: the keys that name them are stale.
    pub(super) fn evicted(&mut self, n: u64) {
        self.live -= n;
        self.stale += n;
    }

    /// A stale key was dropped that named `n` blocks. Keys that were stale when the cache was
    /// opened are not counted, so there may be fewer.
    pub(in crate::store) fn forget_stale(&mut self, n: u64) {
        self.stale = self.stale.saturating_sub(n);
    }

    /// Seals the open epoch, which is `epoch`, and opens the next.
    pub(super) fn seal(&mut self, epoch: Epoch) {
        self.dirty.seal(epoch);
        self.staged.seal(epoch);
        self.zeros.seal(epoch);
    }

    /// Everything up to `epoch` is published: staged keys and discards of these epochs are dead.
    pub(super) fn publish(&mut self, epoch: Epoch) {
        self.stale += self.staged.publish(epoch).named;
        self.dead_zeros += self.zeros.publish(epoch).all;
        self.dirty.publish(epoch);
    }
}
