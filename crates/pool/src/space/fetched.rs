//! Data that was read ahead of clients, and is kept for them in memory.
//!
//! The data is kept by its pool address. The content of a block does not change from the write that
//! filled it until the block is free. So what is kept is right for each read that finds this
//! address in a mapping. [`super::Space::release`], which makes every block free, drops what is
//! kept of it.

use std::collections::BTreeMap;

use base::{PoolAddr, Slice};
use model::status::ReadAhead;
use rt::sync::{Shared, Worker};

use super::block_run::Run;

/// The most memory for what is kept, in blocks. What was asked for first is dropped first.
const MOST: u64 = (16 << 20) / base::BLOCK_U64;

/// The data of a run that is being read, or was; `None` if it could not be read.
pub(crate) type Load = Shared<Option<Slice>>;

struct FetchedRun {
    len: u32,
    /// Tells it from another one that begins where it did.
    number: u64,
    load: Load,
}

impl FetchedRun {
    /// Blocks of memory: a buffer is as long as a power of two.
    fn taken(&self) -> u64 {
        u64::from(self.len.next_power_of_two())
    }
}

/// A part of a range: its length, and where it is kept, if it is.
pub(crate) struct Part {
    pub len: u32,
    /// The read that has this part, and the number of its blocks before the part.
    pub found: Option<(Load, u32)>,
}

/// The data that was read ahead.
#[derive(Default)]
pub(crate) struct FetchedData {
    runs: BTreeMap<u64, FetchedRun>,
    /// First blocks by number, which is the order in which they were asked for.
    order: BTreeMap<u64, u64>,
    next: u64,
    /// Blocks of memory that the runs take.
    taken: u64,
    counts: ReadAhead,
}

impl FetchedData {
    /// True if nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The counts since the pool was opened.
    pub fn counts(&self) -> ReadAhead {
        self.counts
    }

    /// The first part of `run`: found in one piece, or not at all.
    pub fn find(&self, run: Run) -> Part {
        let (from, end) = (run.addr.0, run.addr.0 + u64::from(run.len));
        if let Some((&at, kept)) = self.runs.range(..=from).next_back() {
            let upto = at + u64::from(kept.len);
            if upto > from {
                let len = (upto.min(end) - from) as u32;
                return Part { len, found: Some((kept.load.clone(), (from - at) as u32)) };
            }
        }
        let next = self.runs.range(from..end).next().map_or(end, |(&at, _)| at);
        Part { len: (next - from) as u32, found: None }
    }

    /// Begins to keep those parts of `run` that are not kept yet. The caller reads the parts that
    /// are returned.
    pub fn begin(&mut self, mut run: Run) -> Vec<(Run, Worker<Option<Slice>>)> {
        let mut out = Vec::new();
        while run.len > 0 {
            let part = self.find(run);
            if part.found.is_none() {
                let (load, worker) = Shared::begin();
                self.keep(run.addr, FetchedRun { len: part.len, number: self.next, load });
                out.push((Run { addr: run.addr, len: part.len }, worker));
            }
            run = Run { addr: run.addr.plus(u64::from(part.len)), len: run.len - part.len };
        }
        out
    }

    fn keep(&mut self, addr: PoolAddr, kept: FetchedRun) {
        self.taken += kept.taken();
        self.counts.read += u64::from(kept.len);
        self.order.insert(self.next, addr.0);
        self.next += 1;
        self.runs.insert(addr.0, kept);
        while self.taken > MOST
            && let Some((_, &at)) = self.order.first_key_value()
        {
            self.drop_run(at);
        }
    }

    fn drop_run(&mut self, at: u64) {
        if let Some(kept) = self.runs.remove(&at) {
            self.order.remove(&kept.number);
            self.taken -= kept.taken();
        }
    }

    /// A client took this number of blocks.
    pub fn used(&mut self, blocks: u32) {
        self.counts.used += u64::from(blocks);
    }

    /// Drops what is kept of these blocks, which are free now, and what was read together with
    /// them.
    pub fn forget(&mut self, run: Run) {
        let (from, end) = (run.addr.0, run.addr.0 + u64::from(run.len));
        while let Some((&at, kept)) = self.runs.range(..end).next_back()
            && at + u64::from(kept.len) > from
        {
            self.drop_run(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    fn run(from: u64, len: u64) -> Run {
        Run { addr: PoolAddr(from), len: len as u32 }
    }

    /// Which blocks of a run are found, by what the parts say.
    fn found(fetched: &FetchedData, from: u64, len: u64) -> Vec<bool> {
        let (mut out, mut at) = (Vec::new(), from);
        while at < from + len {
            let part = fetched.find(run(at, from + len - at));
            assert!(part.len > 0);
            out.extend(vec![part.found.is_some(); part.len as usize]);
            at += u64::from(part.len);
        }
        out
    }

    /// A naive set of blocks beside it. What is forgotten may be more than what was freed, as whole
    /// runs go: never less.
    #[test]
    fn what_is_kept_is_what_was_read_and_is_not_free() {
        let mut r = Prng::new(11);
        for _ in 0..200 {
            let (mut fetched, mut read) = (FetchedData::default(), vec![false; 600]);
            let mut workers = Vec::new();
            for _ in 0..100 {
                let from = r.below(500);
                let len = 1 + r.below(99);
                let blocks = from as usize..(from + len) as usize;
                let before = found(&fetched, from, len);
                if r.one_in(3) {
                    fetched.forget(run(from, len));
                    read[blocks].fill(false);
                    assert!(found(&fetched, from, len).iter().all(|f| !f));
                } else {
                    let begun = fetched.begin(run(from, len));
                    let news: u32 = begun.iter().map(|(run, _)| run.len).sum();
                    assert_eq!(news as usize, before.iter().filter(|f| !**f).count());
                    read[blocks].fill(true);
                    assert!(found(&fetched, from, len).iter().all(|&f| f));
                    workers.extend(begun);
                }
                let kept = found(&fetched, 0, 600);
                assert!(kept.iter().zip(&read).all(|(kept, read)| *read || !kept));
                let blocks: u32 = fetched.runs.values().map(|kept| kept.len).sum();
                assert_eq!(blocks as usize, kept.iter().filter(|f| **f).count());
                assert_eq!(
                    fetched.taken,
                    fetched.runs.values().map(FetchedRun::taken).sum::<u64>()
                );
                assert_eq!(fetched.order.len(), fetched.runs.len());
            }
        }
    }

    #[test]
    fn the_first_go_where_there_are_too_many() {
        let mut fetched = FetchedData::default();
        for i in 0..100 {
            drop(fetched.begin(run(i * 256, 128)));
            assert!(fetched.taken <= MOST);
        }
        assert!(found(&fetched, 0, 128).iter().all(|f| !f));
        assert!(found(&fetched, 99 * 256, 128).iter().all(|&f| f));
        assert_eq!(fetched.counts(), ReadAhead { read: 12_800, used: 0 });
    }
}
