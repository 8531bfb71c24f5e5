//! How many blocks staged keys name that no published image has. They are in no bucket, so no bucket counts them; this does, in the same way.

use base::Epoch;

use crate::buckets::Buckets;

/// Blocks of staged keys, of the open epoch and of the cut.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StagedBlocks {
    open: u64,
    cut: u64,
    /// Of the cut: overwritten since it was taken.
    retained: u64,
}

impl StagedBlocks {
    /// As a checkpoint left them: all of them count as of the open epoch.
    pub fn restore(blocks: u64) -> StagedBlocks {
        StagedBlocks { open: blocks, ..StagedBlocks::default() }
    }

    /// Keys of the open epoch name `blocks` more.
    pub fn add(&mut self, blocks: u64) {
        self.open += blocks;
    }

    /// Keys name `blocks` less; `of_cut`: these were the cut's, and still have to be published with it.
    pub fn remove(&mut self, blocks: u64, of_cut: bool) {
        if of_cut {
            self.retained += blocks;
        } else {
            // A wrong number in a superblock is for the offline check to find.
            self.open = self.open.saturating_sub(blocks);
        }
    }

    /// What is of the open epoch belongs to a cut now.
    pub fn take_cut(&mut self) {
        *self = StagedBlocks { open: 0, cut: self.open, retained: 0 };
    }

    /// The cut is published; returns how many blocks keys still name of it, to no use.
    pub fn publish(&mut self) -> u64 {
        let dead = self.cut.saturating_sub(self.retained);
        *self = StagedBlocks { open: self.open, ..StagedBlocks::default() };
        dead
    }

    /// What a round has to publish, of the open epoch and of the cut.
    pub fn dirty(&self) -> (u64, u64) {
        (self.open, self.cut)
    }

    /// What keys name.
    pub fn named(&self) -> (u64, u64) {
        (self.open, self.cut.saturating_sub(self.retained))
    }
}

/// What superblock numbers of staged blocks say now that the pool's image has everything up to `published`: those of the open epoch, and of the cut.
pub(crate) fn staged_now((open, cut): (u64, u64), epochs: (Epoch, Epoch), published: Epoch) -> u64 {
    let open = if published >= epochs.0 { 0 } else { open };
    let cut = if published >= epochs.1 { 0 } else { cut };
    open.saturating_add(cut)
}

impl Buckets {
    /// As [`Buckets::restore`]: so many blocks of staged keys are not published.
    pub fn restore_staged(&mut self, blocks: u64) {
        self.staged = StagedBlocks::restore(blocks);
    }

    /// Staged keys of the open epoch name `len` blocks more.
    pub fn add_staged(&mut self, len: u64) {
        self.staged.add(len);
    }

    /// Staged keys name `len` blocks less; `written`: their epoch, if it is not published.
    pub fn remove_staged(&mut self, len: u64, written: Option<Epoch>) {
        match written.map(|w| self.class_of(w)) {
            Some(class) => self.staged.remove(len, self.cut() == Some(class)),
            None => self.forget_stale(len),
        }
    }

    /// Blocks of staged keys, counted as [`Buckets::dirty_blocks`] are.
    pub fn staged_blocks(&self) -> (u64, u64) {
        self.staged.dirty()
    }

    /// Blocks that staged keys name, of the open epoch and of the cut: what was overwritten is left out.
    pub fn staged_named(&self) -> (u64, u64) {
        self.staged.named()
    }

    /// All that no published image has, here or in staging volumes, of the open epoch and of the cut.
    pub fn unpublished_blocks(&self) -> (u64, u64) {
        let (cached, staged) = (self.dirty_blocks(), self.staged_blocks());
        (cached.0 + staged.0, cached.1 + staged.1)
    }
}
