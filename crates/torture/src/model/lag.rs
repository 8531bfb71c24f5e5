//! Lag: how much older than the volumes the pool's image may be.
//!
//! Writes that went through the cache are in the pool's image no later than `max_lag` after they
//! were answered, while the cache is open: so much is lost at most if its device dies at that
//! moment. A pass cannot be faster than what it works with, so the clock stops for that, and for
//! nothing else:
//!
//! * while a pool device has something in flight: a slow device is busy for long. Time is counted
//!   in which all of them are idle;
//! * for what the cache's device may need, and was stuck; for the most that write-back is allowed
//!   to carry in a second: a sum, the *allowance*.
//!
//! The promise is not judged where write-back may fail: after a fault of the cache's device, beyond
//! the budget, where the host was full.
//!
//! Judged are writes that are surely missing: begun and answered while the volume wrote back, begun
//! in an epoch that is not published (none that was cut before can have them), and not given up
//! since, wholly or in part, by a discard, a shrink, a deletion: what was given up needs no pass.
//! What a boot before left dirty counts from the moment the cache was opened, and what is missing
//! when settings change counts from then on.

use std::collections::BTreeMap;

use base::{BlockRange, Lba};

/// The state of the engine, and of the world, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineView {
    /// The open epoch, and the published one.
    pub open: u32,
    pub published: u32,
    pub now_ns: u64,
    /// For how long the pool's devices were idle so far.
    pub idle_ns: u64,
    /// The sum, which grows, of other times that delay a pass: those for which the cache's device
    /// was stuck.
    pub stuck_ns: u64,
    /// Of that, without the time that is not over.
    pub unstuck_ns: u64,
}

/// Blocks of a volume.
#[derive(Clone, Copy)]
pub(crate) struct LaggingBlocks {
    pub volume: u32,
    pub blocks: BlockRange,
}

impl LaggingBlocks {
    fn overlaps(&self, other: &LaggingBlocks) -> bool {
        let (a, b) = (&self.blocks, &other.blocks);
        self.volume == other.volume && a.from < b.end && b.from < a.end
    }
}

/// Something that the pool's image lacks.
struct MissingChange {
    /// `None`: what a boot before left.
    place: Option<LaggingBlocks>,
    epoch: u32,
    since: EngineView,
}

#[derive(Default)]
pub(crate) struct Lag {
    /// `max_lag` and the allowance, in nanoseconds; `None`: not judged.
    limit: Option<u64>,
    /// Writes under way, and the epoch in which they began.
    begun: BTreeMap<u64, (LaggingBlocks, u32)>,
    missing: Vec<MissingChange>,
    pub judged: u64,
    /// The longest that something was missing, in thousandths of what was allowed.
    pub most: u64,
}

impl Lag {
    /// A cache is open from now on. What is `dirty` in it was left by a boot before.
    pub fn open(&mut self, limit: u64, dirty: bool, now: EngineView) {
        self.close();
        self.limit = Some(limit);
        if dirty {
            self.missing.push(MissingChange { place: None, epoch: now.open, since: now });
        }
    }

    /// Settings have changed: what is missing counts from now on, by another limit.
    pub fn change(&mut self, limit: u64, now: EngineView) {
        if self.limit.is_some() {
            self.limit = Some(limit);
            self.missing.iter_mut().for_each(|m| m.since = now);
        }
    }

    pub fn close(&mut self) {
        self.limit = None;
        self.begun.clear();
        self.missing.clear();
    }

    pub fn begin(&mut self, op: u64, place: LaggingBlocks, now: Option<EngineView>) {
        if let (Some(_), Some(now)) = (self.limit, now) {
            self.begun.insert(op, (place, now.open));
        }
    }

    /// The write was answered; well, if `ok`, and so that nothing that gives up its blocks was
    /// under way.
    pub fn end(&mut self, op: u64, ok: bool, now: Option<EngineView>) {
        let Some((place, epoch)) = self.begun.remove(&op) else { return };
        if let Some(since) = now.filter(|_| ok) {
            self.missing.push(MissingChange { place: Some(place), epoch, since });
        }
    }

    /// Blocks of a volume may be given up from now on, or need no cache any more.
    pub fn give_up(&mut self, volume: u32, first: u64, end: u64) {
        let given = LaggingBlocks { volume, blocks: BlockRange::new(Lba(first), Lba(end)) };
        self.begun.retain(|_, (place, _)| !place.overlaps(&given));
        self.missing.retain(|m| m.place.is_some_and(|place| !place.overlaps(&given)));
    }

    /// Judges what is missing.
    pub fn look(&mut self, now: EngineView) -> Result<(), String> {
        let Some(limit) = self.limit else { return Ok(()) };
        let missing = self.missing.len();
        self.missing.retain(|m| m.epoch > now.published);
        self.judged += (missing - self.missing.len()) as u64;
        let Some(oldest) = self.missing.first() else { return Ok(()) };
        let stuck = now.stuck_ns - oldest.since.unstuck_ns;
        let waited = (now.idle_ns - oldest.since.idle_ns).saturating_sub(stuck);
        self.most = self.most.max(waited.saturating_mul(1000) / limit);
        if waited > limit {
            return Err(format!(
                "the pool's image is too old: what was written at {} ns to {:?} (volume, blocks), \
                 in epoch {}, is missing at {} ns, of epoch {}, open {}: \
                 for {} ms, in {waited} ns of which no pool device had anything to do; allowed \
                 are {limit} ns",
                oldest.since.now_ns,
                oldest.place.map(|p| (p.volume, p.blocks.from.0, p.blocks.end.0)),
                oldest.epoch,
                now.now_ns,
                now.published,
                now.open,
                (now.now_ns - oldest.since.now_ns) / 1_000_000,
            ));
        }
        Ok(())
    }
}
