//! A histogram of durations in the manner of HdrHistogram: fixed size, relative resolution 1/16.

use crate::time::Duration;

const SUB: usize = 16;
const SUB_BITS: u32 = 4;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// Counts of values in nanoseconds. Each power of two is divided into 16 buckets of equal width.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, max: 0 }
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
        self.max = self.max.max(ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Number of values counted.
    pub fn count(&self) -> u64 {
        self.count
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

#[cfg(test)]
mod tests {
    use super::*;

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
