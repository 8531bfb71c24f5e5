//! A binary heap that counts its steps, after `include/linux/min_heap.h`.

/// The way in which an entry finds its place downwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sift {
    /// To a leaf first, by the better one of two children; then back up.
    BottomUp,
    /// Level by level, until both children are no better.
    TopDown,
}

/// An entry: the priority and the number of a bucket.
pub(super) type Entry = (u32, u32);

/// A heap with room for a fixed number of entries. On top is the entry that is `before` all others.
pub(super) struct Heap {
    entries: Vec<Entry>,
    room: usize,
    sift: Sift,
    pub comparisons: u64,
    pub swaps: u64,
}

/// True if the first one belongs above the second.
pub(super) type HeapOrder = fn(u32, u32) -> bool;

impl Heap {
    pub fn new(room: usize, sift: Sift) -> Heap {
        Heap { entries: Vec::with_capacity(room), room, sift, comparisons: 0, swaps: 0 }
    }

    pub fn is_full(&self) -> bool {
        self.entries.len() == self.room
    }

    pub fn top(&self) -> Option<Entry> {
        self.entries.first().copied()
    }

    fn before(&mut self, a: usize, b: usize, before: HeapOrder) -> bool {
        self.comparisons += 1;
        before(self.entries[a].0, self.entries[b].0)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.swaps += 1;
        self.entries.swap(a, b);
    }

    pub fn push(&mut self, entry: Entry, before: HeapOrder) {
        let mut at = self.entries.len();
        self.entries.push(entry);
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.before(parent, at, before) {
                break;
            }
            self.swap(parent, at);
            at = parent;
        }
    }

    /// Puts an entry in the place of the top.
    pub fn replace_top(&mut self, entry: Entry, before: HeapOrder) {
        self.entries[0] = entry;
        self.sift_down(0, before);
    }

    /// Makes it a heap by another order.
    pub fn reorder(&mut self, before: HeapOrder) {
        for at in (0..self.entries.len() / 2).rev() {
            self.sift_down(at, before);
        }
    }

    pub fn pop(&mut self, before: HeapOrder) -> Option<Entry> {
        let last = self.entries.pop()?;
        let Some(top) = self.top() else { return Some(last) };
        self.replace_top(last, before);
        Some(top)
    }

    fn sift_down(&mut self, at: usize, before: HeapOrder) {
        match self.sift {
            Sift::BottomUp => self.bottom_up(at, before),
            Sift::TopDown => self.top_down(at, before),
        }
    }

    fn bottom_up(&mut self, top: usize, before: HeapOrder) {
        let all = self.entries.len();
        let mut at = top;
        while 2 * at + 2 < all {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            at = if self.before(left, right, before) { left } else { right };
        }
        if 2 * at + 2 == all {
            at = 2 * at + 1;
        }
        while at != top && self.before(top, at, before) {
            at = (at - 1) / 2;
        }
        // The entries on the way move up, and the entry goes to the end of the way.
        let end = at;
        while at != top {
            at = (at - 1) / 2;
            self.swap(at, end);
        }
    }

    fn top_down(&mut self, top: usize, before: HeapOrder) {
        let all = self.entries.len();
        let mut at = top;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut best = at;
            if left < all && self.before(left, best, before) {
                best = left;
            }
            if right < all && self.before(right, best, before) {
                best = right;
            }
            if best == at {
                return;
            }
            self.swap(best, at);
            at = best;
        }
    }
}
