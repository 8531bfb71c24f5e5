//! The story of a run: what happened last, to be told when a run fails; and what was counted, to
//! see that runs go where it hurts.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use model::cache::CacheStatus;

/// Events that are kept.
const KEPT: usize = 30_000;
/// Of these, the last that are told whatever they are about.
const LAST: usize = 40;
/// Events about the place in question that are told.
const MOST_ABOUT: usize = 60;

/// One line of the story.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Virtual time in nanoseconds.
    pub at: u64,
    pub what: StoryEvent,
}

#[derive(Clone, Debug)]
pub(crate) enum StoryEvent {
    /// An operation on a volume begins: its number, the volume's, what, first byte, bytes.
    Begins { op: u64, volume: u32, what: &'static str, offset: u64, len: u64 },
    /// The operation ends.
    Ends { op: u64, how: String },
    /// Anything else.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.3} ms  ", self.at as f64 / 1e6)?;
        match &self.what {
            StoryEvent::Begins { op, volume, what, offset, len } => {
                write!(
                    f,
                    "op {op}: {what} {len} at {offset} (block {}) of volume {volume}",
                    offset / 4096
                )
            }
            StoryEvent::Ends { op, how, .. } => write!(f, "op {op}: {how}"),
            StoryEvent::Note(text) => f.write_str(text),
        }
    }
}

/// The place that a failure is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailurePlace {
    pub volume: u32,
    pub block: u64,
}

#[derive(Default)]
pub(crate) struct Story {
    events: VecDeque<Event>,
    pub about: Option<FailurePlace>,
}

impl Story {
    pub fn add(&mut self, at: u64, what: StoryEvent) {
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.events.push_back(Event { at, what });
    }

    /// The story: what is about the place in question, then what came last.
    pub fn tell(&self) -> String {
        let mut out = String::new();
        if let Some(place) = self.about {
            out.push_str(&format!(
                "what befell block {} of volume {}:\n",
                place.block, place.volume
            ));
            let mut ops = std::collections::BTreeSet::new();
            let mut lines = VecDeque::new();
            for e in &self.events {
                let tell = match &e.what {
                    StoryEvent::Begins { op, volume, offset, len, .. } => {
                        let touches = place.block >= offset / 4096
                            && place.block < (offset + len).div_ceil(4096);
                        let told = *volume == place.volume && (*len == 0 || touches);
                        if told {
                            ops.insert(*op);
                        }
                        told
                    }
                    StoryEvent::Ends { op, .. } => ops.contains(op),
                    StoryEvent::Note(_) => true,
                };
                if tell {
                    if lines.len() == MOST_ABOUT {
                        lines.pop_front();
                    }
                    lines.push_back(e);
                }
            }
            lines.into_iter().for_each(|e| out.push_str(&format!("{e}\n")));
        }
        out.push_str("what befell pool, volumes and devices, and the last that happened:\n");
        let skip = self.events.len().saturating_sub(LAST);
        let notes = self.events.iter().take(skip).filter(|e| matches!(e.what, StoryEvent::Note(_)));
        notes.chain(self.events.iter().skip(skip)).for_each(|e| out.push_str(&format!("{e}\n")));
        out
    }
}

/// Counters by name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Coverage(pub BTreeMap<&'static str, u64>);

impl Coverage {
    /// Adds what an open cache has counted.
    pub fn add_cache(&mut self, s: &CacheStatus) {
        self.add("cache: blocks hit", s.hits);
        self.add("cache: blocks missed", s.misses);
        self.add("cache: blocks promoted", s.promoted);
        self.add("cache: buckets evicted", s.evicted);
        self.add("cache: survivors moved", s.replacement.moved_blocks);
        self.add("cache: blocks compacted", s.gc.compacted_blocks);
        self.add("cache: survivors dropped", s.replacement.lost_survivors);
        self.add("cache: survivors that were bad", s.replacement.bad_survivors);
        self.add("cache: ghosts that came back", s.replacement.ghost_hits);
        self.add("cache: bad clean blocks read from the pool", s.refetched);
        self.add("cache: bad dirty blocks met", s.lost);
        self.add("cache: checkpoints", s.index.checkpoints);
        self.add("cache: group commits", s.journal.commits);
        self.add("cache: passes published", s.writeback.passes);
        self.add("cache: records replayed", s.replay.records);
        self.add("cache: blocks that had not arrived", s.replay.dropped_blocks);
        self.add("cache: boots that ended with dirty blocks", u64::from(s.dirty_bytes > 0));
        self.add(
            "cache: boots that ended with several cuts",
            u64::from(s.writeback.sealed_cuts > 1),
        );
        self.add(
            "cache: boots that ended more than half dirty",
            u64::from(s.dirty_bytes * 2 > s.size_bytes),
        );
    }

    /// Adds `n` to a counter.
    pub fn add(&mut self, name: &'static str, n: u64) {
        if n > 0 {
            *self.0.entry(name).or_default() += n;
        }
    }

    /// Adds all counters of `other`.
    pub fn merge(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(name, n)| self.add(name, *n));
    }

    /// A counter.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}
