//! Which devices are good sources of reads. One that is slow beside another of its kind for a
//! while, or of which many blocks cannot be read, sits out: it is read only where no other has a
//! good copy. It still gets all that is written, so the pool is as redundant as before, and it is
//! read again after some time, as it may be well by then. Blocks that are read, and are not what
//! was written, are no reason: they cost little, and each that a read meets is healed.
//!
//! The time that reads take is looked at by periods. A few reads of a device say nothing; nor does
//! one slow period, as devices have pauses of their own.

use base::{Duration, Instant};
use model::device::{SitsOut, SitsOutWhy};

/// The time after which the reads of a device are judged.
const PERIOD: Duration = Duration::from_secs(10);
/// A device with fewer reads in a period is not judged by it.
const LEAST_READS: u64 = 32;
/// A device is slow if its reads take this many times as long as those of the fastest device of its
/// kind.
const SLOW: u64 = 4;
/// A read shorter than this is never slow.
const SLOW_LEAST: Duration = Duration::from_millis(2);
/// Periods in a row after which a slow device sits out.
const SLOW_PERIODS: u32 = 3;
/// A device errs often if this many of its blocks could not be read
const MANY_ERRORS: u64 = 32;
/// within this time.
const ERRORS_WITHIN: Duration = Duration::from_secs(600);

/// The record of a device as a source of reads.
#[derive(Default)]
pub(crate) struct Source {
    reads: u64,
    took_ns: u64,
    slow_periods: u32,
    errors: u64,
    /// Of the errors that are counted.
    first_error: Option<Instant>,
    out: Option<(SitsOutWhy, Instant)>,
}

impl Source {
    /// A read of it has ended, before which there were so many `others`: it has waited for them, so
    /// their number says nothing of the device.
    pub fn read(&mut self, took: Duration, others: usize) {
        self.reads += 1;
        self.took_ns += took.as_nanos() as u64 / (others as u64 + 1);
    }

    /// A block could not be read. True if it sits out from now on.
    pub fn erred(&mut self, now: Instant, out_for: Duration) -> bool {
        let since = self.first_error.filter(|&then| now.since(then) < ERRORS_WITHIN);
        self.errors = if since.is_some() { self.errors + 1 } else { 1 };
        self.first_error = since.or(Some(now));
        self.errors >= MANY_ERRORS && self.sit_out(SitsOutWhy::Errs, now, out_for)
    }

    /// True if the device is read only where no other has a good copy.
    pub fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// Why it sits out, and how much longer.
    pub fn sits_out(&self, now: Instant) -> Option<SitsOut> {
        let (why, until) = self.out.filter(|&(_, until)| now < until)?;
        Some(SitsOut { why, seconds_left: until.since(now).as_secs() + 1 })
    }

    fn sit_out(&mut self, why: SitsOutWhy, now: Instant, out_for: Duration) -> bool {
        let begins = self.out.is_none() && !out_for.is_zero();
        if begins {
            *self = Source { out: Some((why, now.after(out_for))), ..Source::default() };
        }
        begins
    }

    /// The average time of a read in nanoseconds, if there were enough reads to judge by.
    fn mean_ns(&self) -> Option<u64> {
        (self.reads >= LEAST_READS).then(|| self.took_ns / self.reads)
    }

    /// A period ends, in which the reads of the best device of the kind took `best_ns` on average.
    /// True if it sits out from now on.
    fn judge(&mut self, now: Instant, best_ns: u64, out_for: Duration) -> bool {
        let is_slow = |mean| mean > SLOW * best_ns && mean > SLOW_LEAST.as_nanos() as u64;
        let slow = self.mean_ns().is_some_and(is_slow);
        self.slow_periods = if slow { self.slow_periods + 1 } else { 0 };
        (self.reads, self.took_ns) = (0, 0);
        if self.out.is_some_and(|(_, until)| until <= now) {
            self.out = None;
        }
        self.slow_periods >= SLOW_PERIODS && self.sit_out(SitsOutWhy::Slow, now, out_for)
    }
}

/// When sources were last judged.
#[derive(Default)]
pub(crate) struct Period(Instant);

impl Period {
    /// True if the period has ended: then the next one begins.
    pub fn ends(&mut self, now: Instant) -> bool {
        let ends = now.since(self.0) >= PERIOD;
        if ends {
            self.0 = now;
        }
        ends
    }
}

/// Judges the sources of one kind of device at the end of a period; which of them sit out from now
/// on. The last good one never does for being slow: it is the best.
pub(crate) fn judge<'a, K>(
    sources: impl Iterator<Item = (K, &'a mut Source)>,
    now: Instant,
    out_for: Duration,
) -> Vec<K> {
    let mut all: Vec<_> = sources.collect();
    let means = all.iter().filter_map(|(_, source)| source.mean_ns());
    let best = means.min().unwrap_or(u64::MAX / SLOW);
    let begins = all.iter_mut().map(|(_, source)| source.judge(now, best, out_for));
    let begins: Vec<bool> = begins.collect();
    all.into_iter().zip(begins).filter_map(|((key, _), begins)| begins.then_some(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT_FOR: Duration = Duration::from_secs(600);

    fn period(pair: &mut [Source; 2], now: &mut Instant, ms: [u64; 2], reads: u64) -> Vec<usize> {
        for (source, ms) in pair.iter_mut().zip(ms) {
            (0..reads).for_each(|_| source.read(Duration::from_millis(ms), 0));
        }
        *now = now.after(PERIOD);
        judge(pair.iter_mut().enumerate(), *now, OUT_FOR)
    }

    #[test]
    fn one_that_is_slow_for_long_sits_out_and_is_tried_again() {
        let (mut pair, mut now) = ([Source::default(), Source::default()], Instant(0));
        let mut next = |ms, reads| period(&mut pair, &mut now, ms, reads);
        for _ in 0..3 {
            assert!(next([10, 30], 100).is_empty(), "three times as slow is nothing");
            assert!(next([10, 60], 31).is_empty(), "a few reads say nothing");
        }
        assert!(next([10, 60], 100).is_empty());
        assert!(next([10, 60], 100).is_empty());
        assert!(next([10, 12], 100).is_empty(), "it has recovered");
        assert!(next([10, 60], 100).is_empty());
        assert!(next([10, 60], 100).is_empty());
        assert_eq!(next([10, 60], 100), [1], "the third period on end");
        let out = pair[1].sits_out(now).expect("it sits out");
        assert_eq!((out.why, out.seconds_left), (SitsOutWhy::Slow, 601));
        assert!(!pair[0].is_out());
        for _ in 0..60 {
            assert!(pair[1].is_out());
            period(&mut pair, &mut now, [10, 10], 0);
        }
        assert!(!pair[1].is_out(), "it is tried again");
    }

    #[test]
    fn a_busy_device_is_not_slow() {
        let (mut pair, mut now) = ([Source::default(), Source::default()], Instant(0));
        for _ in 0..10 {
            (0..99).for_each(|_| pair[0].read(Duration::from_millis(10), 0));
            (0..99).for_each(|_| pair[1].read(Duration::from_millis(160), 31));
            now = now.after(PERIOD);
            assert!(judge(pair.iter_mut().enumerate(), now, OUT_FOR).is_empty());
        }
    }

    #[test]
    fn fast_devices_that_differ_are_left_alone() {
        let (mut pair, mut now) = ([Source::default(), Source::default()], Instant(0));
        for _ in 0..10 {
            assert!(period(&mut pair, &mut now, [0, 1], 100).is_empty());
        }
    }

    #[test]
    fn many_errors_within_a_time_count_and_old_ones_do_not() {
        let mut source = Source::default();
        let mut now = Instant(0);
        for _ in 0..10 {
            for _ in 0..MANY_ERRORS - 1 {
                assert!(!source.erred(now, OUT_FOR));
            }
            now = now.after(ERRORS_WITHIN);
        }
        for _ in 0..MANY_ERRORS - 1 {
            source.erred(now, OUT_FOR);
        }
        assert!(source.erred(now, OUT_FOR) && source.is_out());
        assert!(!Source::default().erred(now, Duration::ZERO));
    }

    #[test]
    fn none_sits_out_if_the_setting_says_so() {
        let mut pair = [Source::default(), Source::default()];
        for _ in 0..10 {
            (0..99).for_each(|_| pair[0].read(Duration::from_millis(1), 0));
            (0..99).for_each(|_| pair[1].read(Duration::from_secs(1), 0));
            assert!(judge(pair.iter_mut().enumerate(), Instant(0), Duration::ZERO).is_empty());
        }
    }
}
