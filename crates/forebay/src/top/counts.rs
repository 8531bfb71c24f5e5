//! Counters of requests, and what lies between two of them.

use model::volume::Latencies;

use crate::units::{human_bytes, human_us};

/// The share of requests that the long latency is of.
const LONG: f64 = 0.99;

/// Counters of one kind of request, or of I/O.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counts {
    /// The number of requests that have ended.
    pub count: u64,
    /// The number of bytes of these requests.
    pub bytes: u64,
    sum_us: f64,
    /// The number of requests that took at most each of the bounds.
    at_most: Vec<u64>,
}

impl Counts {
    /// Counters as a status has them.
    pub fn of(counters: &Latencies) -> Counts {
        Counts {
            count: counters.count,
            bytes: counters.bytes,
            sum_us: counters.sum_us,
            at_most: counters.at_most.to_vec(),
        }
    }

    /// Counters of the requests after `before`. A server that was started anew counts from 0.
    pub fn since(&self, before: &Counts) -> Counts {
        if self.count < before.count || self.bytes < before.bytes {
            return self.clone();
        }
        let old = before.at_most.iter().copied().chain(std::iter::repeat(0));
        Counts {
            count: self.count - before.count,
            bytes: self.bytes - before.bytes,
            sum_us: (self.sum_us - before.sum_us).max(0.0),
            at_most: self.at_most.iter().zip(old).map(|(n, old)| n.saturating_sub(old)).collect(),
        }
    }

    /// The sum of both counters.
    pub fn and(&self, other: &Counts) -> Counts {
        let len = self.at_most.len().max(other.at_most.len());
        let at = |counts: &Counts, i: usize| counts.at_most.get(i).copied().unwrap_or(0);
        Counts {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            sum_us: self.sum_us + other.sum_us,
            at_most: (0..len).map(|i| at(self, i) + at(other, i)).collect(),
        }
    }

    /// The average latency of a request; `-` if there was none.
    pub fn mean(&self) -> String {
        match self.count {
            0 => "-".to_owned(),
            n => human_us(self.sum_us / n as f64),
        }
    }

    /// The bound that 99 of 100 requests kept, of the bounds in microseconds that the server counts
    /// by; `-` if there was no request.
    pub fn long(&self, bounds_us: &[f64]) -> String {
        if self.count == 0 {
            return "-".to_owned();
        }
        let wanted = (self.count as f64 * LONG).ceil() as u64;
        let kept = self.at_most.iter().zip(bounds_us).find(|(n, _)| **n >= wanted);
        match (kept, bounds_us.last()) {
            (Some((_, bound)), _) => human_us(*bound),
            (None, Some(last)) => format!(">{}", human_us(*last)),
            (None, None) => "?".to_owned(),
        }
    }

    /// The number of requests a second.
    pub fn per_second(&self, seconds: f64) -> String {
        rate(self.count as f64 / seconds)
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self, seconds: f64) -> String {
        human_bytes((self.bytes as f64 / seconds) as u64)
    }
}

/// A number of something a second, in few digits.
fn rate(per_second: f64) -> String {
    match per_second {
        none if none <= 0.0 => "0".to_owned(),
        few if few < 9.95 => format!("{few:.1}"),
        some if some < 99_999.5 => format!("{some:.0}"),
        many if many < 9_999_500.0 => format!("{:.0}k", many / 1e3),
        most => format!("{:.0}M", most / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(count: u64, bytes: u64, sum_us: f64, at_most: &[u64]) -> Counts {
        Counts { count, bytes, sum_us, at_most: at_most.to_vec() }
    }

    #[test]
    fn what_lies_between_two_is_what_happened() {
        let before = Latencies { count: 10, bytes: 4096, sum_us: 100.0, at_most: &[] };
        let now = Latencies {
            count: 210,
            bytes: 4096 + (4 << 20),
            sum_us: 20_100.0,
            at_most: &[0, 150, 208, 210],
        };
        let between = Counts::of(&now).since(&Counts::of(&before));
        assert_eq!(between, counts(200, 4 << 20, 20_000.0, &[0, 150, 208, 210]));
        assert_eq!((between.mean(), between.per_second(2.0)), ("100 us".into(), "100".into()));
        assert_eq!(between.bytes_per_second(2.0), "2 MiB");
        assert_eq!(between.long(&[10.0, 100.0, 250.0, 500.0]), "250 us");
    }

    #[test]
    fn a_server_started_anew_counts_from_nothing() {
        let now = counts(5, 10, 50.0, &[5]);
        assert_eq!(now.since(&counts(900, 9000, 9e9, &[900])), now);
    }

    #[test]
    fn nothing_has_no_latency_and_too_long_is_beyond_the_bounds() {
        let none = Counts::default();
        assert_eq!((none.mean(), none.long(&[10.0])), ("-".into(), "-".into()));
        assert_eq!(counts(10, 0, 1.0, &[2]).long(&[10.0]), ">10 us");
        assert_eq!(counts(10, 0, 1.0, &[]).long(&[]), "?");
    }

    #[test]
    fn sums_have_both() {
        let sum = counts(1, 2, 3.0, &[1]).and(&counts(10, 20, 30.0, &[4, 10]));
        assert_eq!(sum, counts(11, 22, 33.0, &[5, 10]));
    }

    #[test]
    fn rates_have_few_digits() {
        let rates = [0.0, 0.25, 9.94, 9.96, 1234.4, 99_999.4, 123_456.0, 12_345_678.0].map(rate);
        assert_eq!(rates, ["0", "0.2", "9.9", "10", "1234", "99999", "123k", "12M"]);
    }
}
