//! A volume's limit: two token buckets, one of requests and one of bytes. A pure state machine, to
//! which time is passed.
//!
//! A full bucket has the tokens of one burst. It is known by one number: when it will be full if
//! nothing more is taken (the virtual scheduling algorithm of ATM's generic cell rate algorithm,
//! ITU-T I.371). So over any span of time no more is taken than a burst and what the rate brings in
//! that time. A request that is larger than a burst passes when the bucket is full, and leaves a
//! debt: those behind it wait until that is paid.

use base::{Duration, Instant};
use pool::VolumeLimit;

const SECOND_NS: u128 = 1_000_000_000;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    /// Tokens a second, not 0.
    rate: u64,
    /// In how many nanoseconds an empty bucket is full.
    burst_ns: u64,
    full_at: Instant,
}

impl Tokens {
    /// In how many nanoseconds so many tokens come, rounded up.
    fn time_of(&self, tokens: u128) -> u64 {
        let ns = (tokens * SECOND_NS).div_ceil(u128::from(self.rate));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// When so many can be taken.
    fn ready(&self, tokens: u64) -> Instant {
        let needed_ns = self.time_of(tokens.into()).min(self.burst_ns);
        Instant(self.full_at.0.saturating_sub(self.burst_ns - needed_ns))
    }

    fn take(&mut self, now: Instant, tokens: u64) {
        let ns = self.time_of(tokens.into());
        self.full_at = Instant(self.full_at.max(now).0.saturating_add(ns));
    }

    /// The number of tokens that are missing to a full bucket, rounded up.
    fn missing(&self, now: Instant) -> u128 {
        let ns = self.full_at.0.saturating_sub(now.0);
        (u128::from(ns) * u128::from(self.rate)).div_ceil(SECOND_NS)
    }
}

/// The limit of a volume, and what of it is used up.
pub(super) struct Limit {
    requests: Option<Tokens>,
    bytes: Option<Tokens>,
}

impl Limit {
    /// A limit of which nothing is used up.
    pub fn new(now: Instant, set: &VolumeLimit) -> Limit {
        let mut limit = Limit { requests: None, bytes: None };
        limit.change(now, set);
        limit
    }

    /// Another limit from now on. What was used up counts in requests and bytes: by a higher rate
    /// it is regained sooner, and no change gives more than the new burst.
    pub fn change(&mut self, now: Instant, set: &VolumeLimit) {
        let burst = Duration::from_millis(set.burst_ms.get().into());
        let burst_ns = u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX);
        let renewed = |old: Option<Tokens>, rate: Option<u64>| {
            let mut tokens = Tokens { rate: rate?, burst_ns, full_at: now };
            let missing = old.map_or(0, |old| old.missing(now));
            tokens.full_at = Instant(now.0.saturating_add(tokens.time_of(missing)));
            Some(tokens)
        };
        self.requests = renewed(self.requests, set.iops.map(|rate| rate.get().into()));
        self.bytes = renewed(self.bytes, set.bytes_per_second.map(|rate| rate.get()));
    }

    /// The time from which on a request that moves so many bytes may pass.
    pub fn ready(&self, bytes: u64) -> Instant {
        let requests = self.requests.map_or(Instant(0), |tokens| tokens.ready(1));
        // A request that moves nothing does not wait for bytes.
        let some = self.bytes.filter(|_| bytes > 0);
        requests.max(some.map_or(Instant(0), |tokens| tokens.ready(bytes)))
    }

    /// Such a request passes.
    pub fn take(&mut self, now: Instant, bytes: u64) {
        if let Some(tokens) = &mut self.requests {
            tokens.take(now, 1);
        }
        if let Some(tokens) = &mut self.bytes {
            tokens.take(now, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use base::Prng;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn set(iops: u32, bytes: u64, burst_ms: u32) -> VolumeLimit {
        VolumeLimit {
            iops: NonZeroU32::new(iops),
            bytes_per_second: NonZeroU64::new(bytes),
            burst_ms: NonZeroU32::new(burst_ms).unwrap(),
        }
    }

    /// What is taken by a client that always has a request: when, and bytes.
    fn greedy(
        limit: &mut Limit,
        from: Instant,
        n: usize,
        len: impl Fn() -> u64,
    ) -> Vec<(u64, u64)> {
        let mut now = from;
        let mut taken = Vec::new();
        for _ in 0..n {
            let bytes = len();
            now = now.max(limit.ready(bytes));
            limit.take(now, bytes);
            taken.push((now.0, bytes));
        }
        taken
    }

    /// No span of time has more than a burst and what the rate brings.
    fn check(taken: &[(u64, u64)], set: &VolumeLimit) {
        let burst_ns = u128::from(set.burst_ms.get()) * 1_000_000;
        let allowed =
            |rate: u64, ns: u64| u128::from(rate) * (burst_ns + u128::from(ns)) / SECOND_NS;
        for (i, first) in taken.iter().enumerate() {
            let mut bytes = 0;
            for (j, last) in taken.iter().enumerate().skip(i) {
                bytes += u128::from(last.1);
                let (ns, n) = (last.0 - first.0, (j - i + 1) as u128);
                assert!(set.iops.is_none_or(|rate| n <= allowed(rate.get().into(), ns)));
                assert!(set.bytes_per_second.is_none_or(|rate| bytes <= allowed(rate.get(), ns)));
            }
        }
    }

    #[test]
    fn no_span_has_more_than_a_burst_and_the_rate() {
        let r = std::cell::RefCell::new(Prng::new(7));
        for set in
            [set(100, 0, 1000), set(0, 1 << 20, 500), set(333, 777_777, 100), set(7, 0, 3000)]
        {
            let mut limit = Limit::new(Instant(5 * S), &set);
            // None is larger than a burst.
            let len = || 512 + r.borrow_mut().below(32 << 10);
            let taken = greedy(&mut limit, Instant(5 * S), 200, len);
            check(&taken, &set);
            // And no less: the rate is used up.
            let (first, last) = (taken[0].0, taken[199].0);
            let bytes: u64 = taken.iter().map(|t| t.1).sum();
            let by_iops = set.iops.map_or(0, |rate| 199 * S / u64::from(rate.get()));
            let by_bytes =
                set.bytes_per_second.map_or(0, |rate| bytes * 1000 / rate.get() * S / 1000);
            let least = by_iops.max(by_bytes) + S;
            assert!(last - first <= least, "{set:?}: {} of {least} ns", last - first);
            // After a rest it has a burst, however long that was.
            let taken = greedy(&mut limit, Instant(last + 3600 * S), 100, len);
            check(&taken, &set);
        }
    }

    #[test]
    fn what_is_larger_than_a_burst_passes_and_leaves_a_debt() {
        let mut limit = Limit::new(Instant(0), &set(0, 1000, 100));
        assert_eq!(limit.ready(50_000), Instant(0));
        limit.take(Instant(0), 50_000);
        // 50 seconds of the rate are used up; the burst may be used again as they come.
        assert_eq!(limit.ready(1), Instant(50 * S - 99_000_000));
        assert_eq!(limit.ready(50_000), Instant(50 * S));
        assert_eq!(limit.ready(0), Instant(0), "what moves nothing does not wait for bytes");
        let mut limit = Limit::new(Instant(0), &set(1, 0, 10));
        limit.take(Instant(0), 4096);
        assert_eq!(limit.ready(4096), Instant(S), "a burst may be less than one request");
    }

    #[test]
    fn a_change_keeps_what_was_used_up() {
        let now = Instant(9 * S);
        let mut limit = Limit::new(now, &set(1, 0, 1000));
        (0..100).for_each(|_| limit.take(now, 0));
        assert_eq!(limit.ready(0), Instant(now.0 + 100 * S));
        limit.change(now, &set(1000, 0, 1000));
        // The bucket is larger now by 999 tokens, and 100 were taken.
        assert_eq!(limit.ready(0), Instant(now.0 - 899 * S / 1000));
        limit.change(now, &set(1, 0, 1000));
        assert_eq!(limit.ready(0), Instant(now.0 + 100 * S), "there and back gives nothing");
        limit.change(now, &set(0, 500, 1000));
        assert_eq!(limit.ready(500), now, "what is limited anew is full");
    }
}
