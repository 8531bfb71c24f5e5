//! A histogram of durations in the manner of HdrHistogram: fixed size, relative resolution 1/16.

use crate::time::Duration;

const SUB: usize = 16;
const SUB_BITS: u32 = 4;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// Bounds of the coarse histograms that monitoring gets, in nanoseconds: 10 microseconds to 10
/// seconds.
pub const BOUNDS_NS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Counts of values in nanoseconds. Each power of two is divided into 16 buckets of equal width.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0, max: 0 }
    }
}

fn bucket_of(v: u64) -> usize {
    if v < SUB as u64 {
        return v as usize;
    }
    let magnitude = 63 - v.leading_zeros();
    let sub = (v >> (magnitude - SUB_BITS)) as usize & (SUB - 1);
    (magnitude - SUB_BITS + 1) as usize * SUB + sub
}

/// The largest value that bucket `bucket` counts.
fn top_of(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let base = (SUB + bucket % SUB) as u64;
    ((u128::from(base + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, d: Duration) {
        self.record_ns(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts one value, in nanoseconds.
    pub fn record_ns(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
        self.max = self.max.max(ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the values counted, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum
    }

    /// The number of values that are at most each of [`BOUNDS_NS`], to a sixteenth of the bound.
    pub fn at_most_bounds(&self) -> [u64; BOUNDS_NS.len()] {
        let (mut seen, mut bucket) = (0, 0);
        BOUNDS_NS.map(|bound| {
            while bucket < BUCKETS && top_of(bucket) <= bound {
                seen += self.counts[bucket];
                bucket += 1;
            }
            seen
        })
    }

    /// The largest value counted, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// The quantile `q` (0 to 1) of the values, in nanoseconds; 0 if nothing was counted. The
    /// answer is at most 1/16 above the exact quantile, and never below it.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((self.count as f64 * q).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return top_of(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Counts of values by [`BOUNDS_NS`] alone: small enough for one of every volume.
#[derive(Clone, Default)]
pub struct CoarseHistogram {
    /// By the first bound that is not below the value; the last: all bounds are.
    counts: [u64; BOUNDS_NS.len() + 1],
    sum: u64,
}

impl CoarseHistogram {
    /// Counts one duration.
    pub fn record(&mut self, d: Duration) {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_NS.partition_point(|bound| *bound < ns)] += 1;
        self.sum = self.sum.saturating_add(ns);
    }

    /// The sum of the values counted, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum
    }

    /// The number of values that are at most each of [`BOUNDS_NS`].
    pub fn at_most_bounds(&self) -> [u64; BOUNDS_NS.len()] {
        let (mut seen, mut at_most) = (0, [0; BOUNDS_NS.len()]);
        for (at_most, count) in at_most.iter_mut().zip(&self.counts) {
            seen += count;
            *at_most = seen;
        }
        at_most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_counts_agree_with_fine_ones() {
        let (mut fine, mut coarse) = (Histogram::default(), CoarseHistogram::default());
        for us in (0..200_000u64).step_by(7) {
            fine.record(Duration::from_micros(us));
            coarse.record(Duration::from_micros(us));
        }
        coarse.record(Duration::from_secs(11));
        fine.record(Duration::from_secs(11));
        assert_eq!(fine.sum_ns(), coarse.sum_ns());
        let (fine, coarse) = (fine.at_most_bounds(), coarse.at_most_bounds());
        for (fine, exact) in fine.iter().zip(&coarse) {
            assert!(fine <= exact && *fine as f64 >= *exact as f64 * 0.9 - 1.0, "{fine} {exact}");
        }
        assert_eq!((fine[18], coarse[18]), (28572, 28572));
        assert_eq!(coarse[0], 2);
    }

    #[test]
    fn buckets_cover_all_values_in_order() {
        let mut last = 0;
        for b in 1..BUCKETS {
            assert!(top_of(b) > last);
            assert_eq!(bucket_of(top_of(b)), b);
            assert_eq!(bucket_of(last + 1), b);
            last = top_of(b);
        }
        assert_eq!(last, u64::MAX);
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut h = Histogram::default();
        for v in 1..=10_000u64 {
            h.record_ns(v * 1000);
        }
        for (q, want) in [(0.5, 5_000_000f64), (0.99, 9_900_000.), (0.999, 9_990_000.)] {
            let got = h.quantile_ns(q) as f64;
            assert!(got >= want && got <= want * 1.0626, "{q}: {got}");
        }
        assert_eq!((h.max_ns(), h.count()), (10_000_000, 10_000));
        assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    }
}
