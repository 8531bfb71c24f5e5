//! One block of a volume: what it may hold.
//!
//! A block is atomic: its changes (whole or of some of its sectors) happen in some order that
//! agrees with when they were asked for and answered, and a reader or a crash sees the block
//! between two of them. [`Block::allows`] asks whether such an order exists for what was seen. It
//! goes through the changes from the last to the first: the last one that happened gives its
//! sectors, the next one those that are left, and the base the rest.
//!
//! | a change that | has it happened? |
//! | --- | --- |
//! | was flushed | yes |
//! | completed before the read began, in this boot | yes |
//! | completed, in this boot | yes or no; yes if one after it has |
//! | completed, not flushed, in an earlier boot that ended in a crash | yes or no; yes if one after it in that boot has |
//! | failed, or was in flight at a crash, or is in flight | yes or no |

use smallvec::SmallVec;

use crate::content::SectorContent;

/// Sectors in a block.
pub(crate) const SECTORS: u64 = 8;
/// A change of the whole block.
pub(crate) const WHOLE: u8 = 0xFF;
/// The end of a change that is in flight.
pub(crate) const FLYING: u64 = u64::MAX;

/// The value that a change puts into a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Zeros that need no space.
    Hole,
    /// Zeros that may take space.
    Zero,
    /// A write's content.
    Write(u64),
}

impl Value {
    fn shows_as(self, found: &SectorContent) -> bool {
        match (self, found) {
            (Value::Hole | Value::Zero, SectorContent::Zero) => true,
            (Value::Write(a), SectorContent::Write(b)) => a == *b,
            _ => false,
        }
    }
}

/// A change of a block. Times are ticks of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub op: u64,
    pub mask: u8,
    pub value: Value,
    pub start: u64,
    /// [`FLYING`] until it is known that nothing more comes of it.
    pub end: u64,
    /// True if the change was reported as done.
    pub ok: bool,
    /// A flush covers it: whether it happened is decided for good.
    pub durable: bool,
    /// The boot it was asked for in.
    pub era: u32,
}

/// When something was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The boot.
    pub era: u32,
    /// The tick at which the read began.
    pub from: u64,
}

/// The content of each sector of a block as it was seen, if the sector was read.
pub(crate) type SeenSectors = [Option<SectorContent>; SECTORS as usize];

/// Whether a sight can be explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Explained,
    Impossible,
    /// Too many possibilities to try.
    TooHard,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub base: [Value; SECTORS as usize],
    pub changes: Vec<Change>,
}

/// Steps of a search before it is given up.
const MOST_STEPS: u32 = 20_000;
/// Changes that a search can hold.
const MOST_CHANGES: usize = 128;

impl Block {
    /// A block that was never written.
    pub fn new() -> Block {
        Block { base: [Value::Hole; SECTORS as usize], changes: Vec::new() }
    }

    /// Whether `seen` is what a reader may see.
    pub fn allows(&self, seen: &SeenSectors, view: View) -> Verdict {
        if self.changes.len() > MOST_CHANGES {
            return Verdict::TooHard;
        }
        let covered = (0..8).filter(|&s| seen[s].is_none()).fold(0u8, |mask, s| mask | 1 << s);
        let left = (0..self.changes.len()).fold(0u128, |mask, i| mask | 1 << i);
        let mut search = Search { block: self, seen, view, steps: 0 };
        let explained = search.explain(left, covered, SmallVec::new());
        match (explained, search.steps > MOST_STEPS) {
            (true, _) => Verdict::Explained,
            (false, true) => Verdict::TooHard,
            (false, false) => Verdict::Impossible,
        }
    }

    /// After a read of the whole block that was explained: pins what was open, if nothing can
    /// change it any more and no reader is under way that began before `oldest_reader`.
    pub fn pin(&mut self, seen: &SeenSectors, view: View, oldest_reader: u64) {
        let decided =
            |c: &Change| c.era < view.era || (c.durable && c.end < view.from.min(oldest_reader));
        if !self.changes.iter().all(decided) {
            return;
        }
        let mut base = self.base;
        for (s, found) in seen.iter().enumerate() {
            let spacious = self.base[s] == Value::Zero
                || self.changes.iter().any(|c| c.mask >> s & 1 == 1 && c.value == Value::Zero);
            base[s] = match found {
                Some(SectorContent::Write(w)) => Value::Write(*w),
                Some(SectorContent::Zero) if spacious => Value::Zero,
                Some(SectorContent::Zero) => Value::Hole,
                _ => return,
            };
        }
        self.base = base;
        self.changes.clear();
    }

    /// Forgets what no reader that began at `oldest_reader` or later, and no crash, can show any
    /// more.
    pub fn settle(&mut self, oldest_reader: u64) {
        let sure = |c: &Change| c.ok && c.durable && c.end < oldest_reader;
        let cover =
            self.changes.iter().filter(|c| sure(c) && c.mask == WHOLE).map(|c| c.start).max();
        if let Some(start) = cover {
            self.changes.retain(|c| c.end >= start);
        }
        while let Some(i) = (0..self.changes.len()).min_by_key(|&i| self.changes[i].start) {
            let c = self.changes[i];
            if !sure(&c) || self.changes.iter().any(|o| o.op != c.op && o.start <= c.end) {
                return;
            }
            for s in (0..8).filter(|s| c.mask >> s & 1 == 1) {
                self.base[s] = c.value;
            }
            self.changes.swap_remove(i);
        }
    }

    /// True if it reads as zeros and takes no space, for sure.
    pub fn is_hole(&self) -> bool {
        self.changes.is_empty() && self.base == [Value::Hole; 8]
    }

    /// Whether it takes space: at least, at most.
    pub fn takes(&self) -> (bool, bool) {
        let sure =
            self.changes.is_empty() && self.base.iter().any(|v| matches!(v, Value::Write(_)));
        let perhaps = self.base.iter().any(|v| *v != Value::Hole)
            || self.changes.iter().any(|c| c.value != Value::Hole);
        (sure, perhaps)
    }
}

/// Of every boot the latest start of a change that has happened.
type LatestStarts = SmallVec<[(u32, u64); 2]>;

struct Search<'a> {
    block: &'a Block,
    seen: &'a SeenSectors,
    view: View,
    steps: u32,
}

impl Search<'_> {
    /// True if the changes in `left`, the latest first, and the base explain the sectors that are
    /// not `covered`.
    fn explain(&mut self, mut left: u128, mut covered: u8, mut happened: LatestStarts) -> bool {
        loop {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return false;
            }
            if covered == WHOLE {
                return true;
            }
            if left == 0 {
                let base = &self.block.base;
                return (0..8)
                    .filter(|s| covered >> s & 1 == 0)
                    .all(|s| self.seen[s].as_ref().is_some_and(|f| base[s].shows_as(f)));
            }
            let Some((newest, latest)) =
                self.changes(left).map(|(i, c)| (i, c.start)).max_by_key(|n| n.1)
            else {
                unreachable!("some are left")
            };
            let mut choice = None;
            let mut progress = false;
            for (i, c) in
                self.changes(left).filter(|(_, c)| c.end >= latest).collect::<SmallVec<[_; 8]>>()
            {
                let optional = self.optional(&c, &happened);
                let covers = c.mask & !covered != 0;
                if covers && !self.fits(&c, covered) {
                    // Another one may have come after it.
                    continue;
                }
                if covers && optional {
                    choice = Some((i, c));
                    continue;
                }
                left &= !(1 << i);
                progress = true;
                if !optional {
                    covered |= c.mask;
                    note(&mut happened, &c);
                }
                break;
            }
            if progress {
                continue;
            }
            let Some((i, c)) = choice else {
                // None that may be next is what was seen. The newest keeps those before it from
                // being next.
                if !self.optional(&self.block.changes[newest], &happened) {
                    return false;
                }
                left &= !(1 << newest);
                continue;
            };
            left &= !(1 << i);
            let mut then = happened.clone();
            note(&mut then, &c);
            if self.explain(left, covered | c.mask, then) {
                return true;
            }
        }
    }

    fn changes(&self, left: u128) -> impl Iterator<Item = (usize, Change)> + '_ {
        let all = self.block.changes.iter().copied().enumerate();
        all.filter(move |(i, _)| left >> i & 1 == 1)
    }

    /// True if all of it that is still to be explained is what was seen.
    fn fits(&self, c: &Change, covered: u8) -> bool {
        let open = c.mask & !covered;
        (0..8)
            .filter(|s| open >> s & 1 == 1)
            .all(|s| self.seen[s].as_ref().is_some_and(|f| c.value.shows_as(f)))
    }

    /// True if it may not have happened: see the table at the top.
    fn optional(&self, c: &Change, happened: &LatestStarts) -> bool {
        if !c.ok {
            return true;
        }
        if c.era == self.view.era {
            if c.end < self.view.from {
                return false;
            }
        } else if c.durable {
            return false;
        }
        !happened.iter().any(|&(era, start)| era == c.era && start > c.end)
    }
}

fn note(happened: &mut LatestStarts, c: &Change) {
    match happened.iter_mut().find(|h| h.0 == c.era) {
        Some(h) => h.1 = h.1.max(c.start),
        None => happened.push((c.era, c.start)),
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
