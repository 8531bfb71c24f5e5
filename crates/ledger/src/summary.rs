//! Summaries of many ended stories.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::story::{Cause, Part, add};

/// Lengths are told apart to an eighth.
const SUB_BITS: u32 = 3;

/// The band of a length.
pub(crate) fn band_of(ns: u64) -> u16 {
    if ns < 1 << SUB_BITS {
        return ns as u16;
    }
    let magnitude = 63 - ns.leading_zeros();
    let sub = (ns >> (magnitude - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((magnitude - SUB_BITS + 1) << SUB_BITS) as u64 + sub) as u16
}

/// The longest length in a band.
pub(crate) fn top_of(band: u16) -> u64 {
    let (shift, sub) = (u32::from(band) >> SUB_BITS, u128::from(band) & ((1 << SUB_BITS) - 1));
    match shift {
        0 => sub as u64,
        _ => ((((1 << SUB_BITS) + sub + 1) << (shift - 1)) - 1).min(u128::from(u64::MAX)) as u64,
    }
}

/// Requests of about the same length.
#[derive(Clone, Default)]
pub struct Band {
    /// The number of requests.
    pub count: u64,
    /// The parts of the time of the requests.
    pub parts: SmallVec<[Part; 6]>,
    /// The cause of the longest part of each request, with the number of requests.
    pub causes: SmallVec<[(Cause, u64); 2]>,
}

impl Band {
    fn blame(&mut self, cause: Cause, count: u64) {
        match self.causes.iter_mut().find(|(c, _)| *c == cause) {
            Some((_, n)) => *n += count,
            None => self.causes.push((cause, count)),
        }
    }

    pub(crate) fn merge(&mut self, other: &Band) {
        self.count += other.count;
        other.parts.iter().for_each(|p| add(&mut self.parts, p.cause, p.ns));
        other.causes.iter().for_each(|&(cause, n)| self.blame(cause, n));
    }
}

/// Requests of one kind, by length.
#[derive(Clone, Default)]
pub struct Summary {
    /// By band, in the order of length.
    pub(crate) bands: BTreeMap<u16, Band>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

impl Summary {
    /// Counts a request of this length; its parts are in order of length.
    pub(crate) fn count_one(&mut self, ns: u64, parts: &[Part]) {
        let band = self.bands.entry(band_of(ns)).or_default();
        band.count += 1;
        parts.iter().for_each(|p| add(&mut band.parts, p.cause, p.ns));
        if let Some(longest) = parts.first() {
            band.blame(longest.cause, 1);
        }
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) fn merge(&mut self, other: &Summary) {
        for (band, of) in &other.bands {
            self.bands.entry(*band).or_default().merge(of);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Requests.
    pub fn count(&self) -> u64 {
        self.bands.values().map(|b| b.count).sum()
    }

    /// The length that a share `q` (0 to 1) of the requests does not exceed, in nanoseconds, to an
    /// eighth; 0 if there are none.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((self.count() as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (band, of) in &self.bands {
            seen += of.count;
            if seen >= rank {
                return top_of(*band).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The requests that took longer than `ns`, to an eighth; none if the longest did not.
    pub fn above(&self, ns: u64) -> Band {
        let mut all = Band::default();
        if self.max_ns > ns {
            let above = self.bands.iter().filter(|(band, _)| top_of(**band) > ns);
            above.for_each(|(_, b)| all.merge(b));
        }
        all
    }

    /// True if any of the requests [`Summary::above`] `ns` waited longest for this.
    pub(crate) fn blames(&self, ns: u64, cause: &Cause) -> bool {
        let mut above = self.bands.iter().filter(|(band, _)| top_of(**band) > ns);
        self.max_ns > ns && above.any(|(_, b)| b.causes.iter().any(|(c, _)| c == cause))
    }

    /// True if some of the requests [`Summary::above`] may be shorter: they are in one band with
    /// `ns`. If it is a single one, it is the longest.
    pub(crate) fn is_about(&self, ns: u64, above: &Band) -> bool {
        let band = band_of(ns);
        above.count > 1 && top_of(band) > ns && self.bands.contains_key(&band)
    }
}
