//! Queues of buckets, linked through flat arrays: a bucket stands in one queue at most.

/// Buckets that one call of `victim` looks at.
pub(super) const MAX_STEPS: usize = 64;

/// No bucket.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of every bucket.
#[derive(Debug)]
pub(super) struct Links {
    older: Vec<u32>,
    newer: Vec<u32>,
}

impl Links {
    pub fn new(buckets: usize) -> Links {
        Links { older: vec![NONE; buckets], newer: vec![NONE; buckets] }
    }
}

/// The ends of one queue.
#[derive(Debug)]
pub(super) struct QueueEnds {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl QueueEnds {
    pub const fn new() -> QueueEnds {
        QueueEnds { oldest: NONE, newest: NONE, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The one that came first, or [`NONE`].
    pub fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Appends a bucket that stands in no queue.
    pub fn push(&mut self, links: &mut Links, id: u32) {
        links.older[id as usize] = self.newest;
        links.newer[id as usize] = NONE;
        match self.newest {
            NONE => self.oldest = id,
            before => links.newer[before as usize] = id,
        }
        self.newest = id;
        self.len += 1;
    }

    /// Adds a bucket that stands in no queue as the oldest.
    pub fn push_oldest(&mut self, links: &mut Links, id: u32) {
        links.newer[id as usize] = self.oldest;
        links.older[id as usize] = NONE;
        match self.oldest {
            NONE => self.newest = id,
            behind => links.older[behind as usize] = id,
        }
        self.oldest = id;
        self.len += 1;
    }

    /// Takes out a bucket that stands in this queue.
    pub fn unlink(&mut self, links: &mut Links, id: u32) {
        let (older, newer) = (links.older[id as usize], links.newer[id as usize]);
        match older {
            NONE => self.oldest = newer,
            older => links.newer[older as usize] = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => links.older[newer as usize] = older,
        }
        self.len -= 1;
    }
}
