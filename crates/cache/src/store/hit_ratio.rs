//! The share of the blocks read that the cache had: of all volumes and of each, in total, over the
//! last hour and over the last minute.

use std::collections::BTreeMap;

use base::{Instant, VolumeId};

/// Parts of a minute and of an hour, which are forgotten one by one.
const PARTS: usize = 60;
const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

/// Blocks that were read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Hits {
    /// Found in the cache.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
}

impl Hits {
    fn add(&mut self, other: Hits) {
        self.hits += other.hits;
        self.misses += other.misses;
    }

    /// The share that was found; `None` where nothing was read.
    pub fn ratio(self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// Counts of reads during the last 60 parts of time, the running one among them.
struct Window {
    part_ns: u64,
    parts: [Hits; PARTS],
    /// The part that runs, counted from the beginning of time.
    newest: u64,
}

impl Window {
    fn new(part_ns: u64) -> Window {
        Window { part_ns, parts: [Hits::default(); PARTS], newest: 0 }
    }

    fn number(&self, now: Instant) -> u64 {
        now.0 / self.part_ns
    }

    fn add(&mut self, hits: Hits, now: Instant) {
        let number = self.number(now);
        let passed = number.saturating_sub(self.newest).min(PARTS as u64);
        for i in 1..=passed {
            self.parts[((self.newest + i) % PARTS as u64) as usize] = Hits::default();
        }
        self.newest = self.newest.max(number);
        self.parts[(self.newest % PARTS as u64) as usize].add(hits);
    }

    fn sum(&self, now: Instant) -> Hits {
        let oldest = (self.number(now) + 1).saturating_sub(PARTS as u64);
        let mut sum = Hits::default();
        for number in oldest..=self.newest {
            sum.add(self.parts[(number % PARTS as u64) as usize]);
        }
        sum
    }
}

/// Counts of reads, by age.
struct RecentHits {
    total: Hits,
    hour: Window,
    minute: Window,
}

/// Sums at one time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Sums {
    pub total: Hits,
    pub hour: Hits,
    pub minute: Hits,
}

impl RecentHits {
    fn new() -> RecentHits {
        RecentHits {
            total: Hits::default(),
            hour: Window::new(MINUTE_NS),
            minute: Window::new(SECOND_NS),
        }
    }

    fn add(&mut self, hits: Hits, now: Instant) {
        self.total.add(hits);
        self.hour.add(hits, now);
        self.minute.add(hits, now);
    }

    fn sums(&self, now: Instant) -> Sums {
        Sums { total: self.total, hour: self.hour.sum(now), minute: self.minute.sum(now) }
    }
}

/// Counts of reads of all volumes, and of each: 2 KiB for a volume.
pub(crate) struct HitRatios {
    all: RecentHits,
    volumes: BTreeMap<VolumeId, Box<RecentHits>>,
}

impl HitRatios {
    pub fn new() -> HitRatios {
        HitRatios { all: RecentHits::new(), volumes: BTreeMap::new() }
    }

    /// Blocks of a volume were read.
    pub fn add(&mut self, volume: VolumeId, hits: Hits, now: Instant) {
        self.all.add(hits, now);
        self.volumes.entry(volume).or_insert_with(|| Box::new(RecentHits::new())).add(hits, now);
    }

    /// A volume was deleted.
    pub fn forget(&mut self, volume: VolumeId) {
        self.volumes.remove(&volume);
    }

    pub fn all(&self, now: Instant) -> Sums {
        self.all.sums(now)
    }

    pub fn by_volume(&self, now: Instant) -> impl Iterator<Item = (VolumeId, Sums)> + '_ {
        self.volumes.iter().map(move |(volume, recent)| (*volume, recent.sums(now)))
    }
}

#[cfg(test)]
mod tests {
    use base::{Duration, Prng};

    use super::*;

    #[test]
    fn sums_are_those_of_a_list_of_all_reads() {
        let (mut prng, mut ratios) = (Prng::new(1), HitRatios::new());
        let (mut list, mut now) = (Vec::new(), Instant::default());
        for _ in 0..1000 {
            let pause = [0, 300, 900, 20_000, 400_000][prng.below(5) as usize];
            now = now.after(Duration::from_millis(prng.below(pause + 1)));
            let volume = VolumeId(prng.below(3) as u32);
            let hits = Hits { hits: prng.below(9), misses: prng.below(3) };
            ratios.add(volume, hits, now);
            list.push((volume, hits, now));
            let sum = |of: Option<VolumeId>, part_ns: u64| {
                let number = |at: Instant| at.0 / part_ns;
                let mut sum = Hits::default();
                for (volume, hits, at) in &list {
                    if of.is_none_or(|of| of == *volume) && number(*at) + 60 > number(now) {
                        sum.add(*hits);
                    }
                }
                sum
            };
            let sums = |of| Sums {
                total: sum(of, u64::MAX),
                hour: sum(of, MINUTE_NS),
                minute: sum(of, SECOND_NS),
            };
            assert_eq!(ratios.all(now), sums(None));
            for (volume, found) in ratios.by_volume(now) {
                assert_eq!(found, sums(Some(volume)));
            }
        }
        // When nothing is read any more, it is forgotten.
        let late = now.after(Duration::from_secs(4000));
        assert_eq!(ratios.all(late).hour, Hits::default());
        assert_eq!(ratios.all(late).minute.ratio(), None);
        assert!(ratios.all(late).total.ratio().is_some());
        ratios.forget(VolumeId(1));
        assert_eq!(ratios.by_volume(late).count(), 2);
    }
}
