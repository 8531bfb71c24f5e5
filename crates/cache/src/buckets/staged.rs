//! How many blocks staged keys name that no published image has. They are in no bucket, so no bucket counts them; this does, in the same way.

use std::collections::VecDeque;

use base::Epoch;

use crate::buckets::Buckets;

/// Blocks of staged keys of a sealed epoch.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    epoch: Epoch,
    blocks: u64,
    /// Of these, overwritten since it was sealed.
    retained: u64,
}

/// Blocks of staged keys, of the open epoch and of the sealed ones.
#[derive(Clone, Default, Debug)]
pub(crate) struct StagedBlocks {
    open: u64,
    /// The oldest first.
    sealed: VecDeque<Sealed>,
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

    /// Keys that count for `class` name `blocks` less; what is sealed still has to be published.
    pub fn remove(&mut self, blocks: u64, class: Epoch) {
        match self.sealed.iter_mut().find(|s| s.epoch == class) {
            Some(s) => s.retained += blocks,
            // A wrong number in a superblock is for the offline check to find.
            None => self.open = self.open.saturating_sub(blocks),
        }
    }

    /// What is of the open epoch belongs to the cut that seals it.
    pub fn seal(&mut self, epoch: Epoch) {
        self.sealed.push_back(Sealed { epoch, blocks: std::mem::take(&mut self.open), retained: 0 });
    }

    /// Everything up to `epoch` is published; returns how many blocks keys still name of it, to no
    /// use.
    pub fn publish(&mut self, epoch: Epoch) -> u64 {
        let mut dead = 0;
        while let Some(first) = self.sealed.front().filter(|s| s.epoch <= epoch) {
            dead += first.blocks.saturating_sub(first.retained);
            self.sealed.pop_front();
        }
        dead
    }

    /// What has to be published, of the open epoch and of the sealed ones.
    pub fn dirty(&self) -> (u64, u64) {
        (self.open, self.sealed.iter().map(|s| s.blocks).sum())
    }

    /// What keys name.
    pub fn named(&self) -> (u64, u64) {
        (self.open, self.sealed.iter().map(|s| s.blocks.saturating_sub(s.retained)).sum())
    }
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

    /// Staged keys name `len` blocks less; `written`: their epoch, if it was
    /// [counted](Buckets::counted).
    pub fn remove_staged(&mut self, len: u64, written: Option<Epoch>) {
        match written.map(|w| self.class_of(w)) {
            Some(class) => self.staged.remove(len, class),
            None => self.forget_stale(len),
        }
    }

    /// Blocks of staged keys, counted as [`Buckets::dirty_blocks`] are.
    pub fn staged_blocks(&self) -> (u64, u64) {
        self.staged.dirty()
    }

    /// Blocks that staged keys name, of the open epoch and of the sealed ones: what was overwritten
    /// is left out.
    pub fn staged_named(&self) -> (u64, u64) {
        self.staged.named()
    }

    /// All that no published image has, here or in staging volumes, of the open epoch and of the
    /// sealed ones.
    pub fn unpublished_blocks(&self) -> (u64, u64) {
        let (cached, staged) = (self.dirty_blocks(), self.staged_blocks());
        (cached.0 + staged.0, cached.1 + staged.1)
    }
}
