//! Pacing of a garbage collection, so that nothing waits for it and it ends in time.
//!
//! The kernel's bcache once looked at 100 nodes and slept for 100 ms, and foreground I/O stood
//! still for as long as 100 nodes take. What was proposed for it looks at 10 nodes, sleeps for 10
//! ms, and takes more nodes in one go where a run would not end in half of the time between two
//! runs. Here a slice never grows, as a request may wait for all of it: its length is a setting.
//! What follows the need is the pause after it.
//!
//! - With foreground I/O the pause is the setting `gc_pause`, or shorter, so that the pass ends
//!   within half of the average time between the beginnings of two passes. It is assumed that each
//!   node that is left takes as long as those before. The pause is never shorter than the slice was
//!   long: the foreground has at least half of the thread, however much there is to do.
//! - Without foreground I/O, and where a task waits for the pass or room is short, there is no
//!   pause: other tasks have their turn, and the pass goes on.
//!
//! The average says how long a pass may take, and nothing else. Where it is wrong, the pass takes
//! between a sixth and a half of the thread (with the default settings), and no request sees more
//! than one slice.

use std::time::Duration;

use base::Instant;

/// A new measurement counts as one part of this many in an average.
const WEIGHT: u32 = 8;

/// The settings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A slice ends after this time,
    pub slice: Duration,
    /// and not before it has looked at this many nodes.
    pub min_nodes: u64,
    /// The pause after a slice beside foreground I/O.
    pub pause: Duration,
}

impl Limits {
    /// True if a slice that has taken this time and looked at this many nodes is to end.
    pub fn ends_slice(&self, busy: Duration, nodes: u64) -> bool {
        busy >= self.slice && nodes >= self.min_nodes
    }
}

/// Other activity while a pass runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherActivity {
    /// Foreground I/O.
    Foreground,
    /// No foreground I/O.
    Nothing,
    /// A task that waits for the pass, or for the room that it makes.
    Need,
}

/// The passes so far: averages in which each new one counts an eighth.
#[derive(Clone, Copy, Default, Debug)]
pub struct Runs {
    duration: Option<Duration>,
    interval: Option<Duration>,
    began: Option<Instant>,
    ended: Option<Instant>,
    longest: Duration,
    count: u64,
}

impl Runs {
    /// Notes that a pass has ended. A pass that was asked for says nothing about when the next is
    /// due.
    pub fn note(&mut self, began: Instant, ended: Instant, was_asked: bool) {
        let took = ended.since(began);
        self.count += 1;
        self.longest = self.longest.max(took);
        self.duration = Some(average(self.duration, took));
        self.ended = Some(ended);
        if !was_asked {
            if let Some(last) = self.began {
                self.interval = Some(average(self.interval, began.since(last)));
            }
            self.began = Some(began);
        }
    }

    /// The number of passes so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The average duration.
    pub fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// The average time between the beginnings of two passes that no task had asked for.
    pub fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// The longest duration.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// When the last one ended.
    pub fn ended(&self) -> Option<Instant> {
        self.ended
    }
}

fn average(so_far: Option<Duration>, new: Duration) -> Duration {
    so_far.map_or(new, |old| (old * (WEIGHT - 1) + new) / WEIGHT)
}

/// One pass.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// When it should end, if the time between passes is known.
    due: Option<Instant>,
    /// Nodes that are left, about.
    left: u64,
    /// Nodes that were looked at, and the time that took, pauses aside.
    done: u64,
    worked: Duration,
    /// The slice before this pause.
    slice: (u64, Duration),
}

impl Pace {
    /// A pass over about `nodes` nodes begins.
    pub fn begin(now: Instant, nodes: u64, runs: &Runs) -> Pace {
        let due = runs.interval().map(|interval| now.after(interval / 2));
        let nothing = Duration::ZERO;
        Pace { due, left: nodes, done: 0, worked: nothing, slice: (0, nothing) }
    }

    /// Notes a slice that has looked at `nodes` nodes and took this long, waits included.
    pub fn worked(&mut self, nodes: u64, took: Duration) {
        self.left = self.left.saturating_sub(nodes);
        self.done += nodes;
        self.worked += took;
        self.slice = (nodes, took);
    }

    /// Returns how long to rest after the slice, which has ended at `now`.
    pub fn pause(&self, now: Instant, limits: &Limits, beside: OtherActivity) -> Duration {
        if beside != OtherActivity::Foreground {
            return Duration::ZERO;
        }
        let Some(due) = self.due else { return limits.pause };
        let (nodes, took) = self.slice;
        if nodes == 0 || self.left == 0 {
            return limits.pause;
        }
        let work = self.worked.as_secs_f64() * self.left as f64 / self.done as f64;
        let free = (due.since(now).as_secs_f64() - work).max(0.0);
        let slices = self.left.div_ceil(nodes) as f64;
        limits.pause.min(took.max(Duration::from_secs_f64(free / slices)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const US: Duration = Duration::from_micros(1);
    const LIMITS: Limits = Limits { slice: Duration::from_micros(200), min_nodes: 1, pause: MS };

    fn runs(interval: Duration) -> Runs {
        let mut runs = Runs::default();
        let at = |n: u32| Instant::default().after(interval * n);
        for n in 0..4 {
            runs.note(at(n), at(n).after(MS), false);
        }
        runs
    }

    /// A pass over nodes that take `node` each, `slice` of them in a slice: how long it takes, and
    /// its longest and shortest pause.
    fn pass(
        (nodes, slice, node): (u64, u64, Duration),
        runs: &Runs,
        beside: impl Fn(u64) -> OtherActivity,
    ) -> (Duration, Duration, Duration) {
        let began = Instant::default().after(Duration::from_secs(1_000_000));
        let (mut now, mut pace) = (began, Pace::begin(began, nodes, runs));
        let (mut longest, mut shortest) = (Duration::ZERO, Duration::MAX);
        for at in (0..nodes).step_by(slice as usize) {
            let n = slice.min(nodes - at);
            now = now.after(node * n as u32);
            pace.worked(n, node * n as u32);
            if at + n == nodes {
                break;
            }
            let pause = pace.pause(now, &LIMITS, beside(at));
            (longest, shortest) = (longest.max(pause), shortest.min(pause));
            now = now.after(pause);
        }
        (now.since(began), longest, shortest)
    }

    #[test]
    fn a_pass_with_time_rests_as_long_as_is_set() {
        for known in [Runs::default(), runs(Duration::from_secs(3600))] {
            let (took, longest, shortest) =
                pass((1_000, 10, 20 * US), &known, |_| OtherActivity::Foreground);
            assert_eq!((longest, shortest), (MS, MS));
            assert_eq!(took, 99 * MS + 100 * 200 * US);
        }
    }

    #[test]
    fn a_pass_ends_in_half_of_the_time_between_passes() {
        // 1 s of work. At its ease it would take 6 s.
        for interval in [4_000, 6_000, 10_000] {
            let (took, _, shortest) =
                pass((50_000, 10, 20 * US), &runs(interval * MS), |_| OtherActivity::Foreground);
            let half = interval * MS / 2;
            assert!(took <= half + MS && took >= half - half / 50, "{took:?} of {half:?}");
            assert!(shortest >= 200 * US);
        }
    }

    #[test]
    fn it_never_takes_more_than_half_of_the_thread_from_foreground() {
        let (took, longest, _) =
            pass((50_000, 10, 20 * US), &runs(20 * MS), |_| OtherActivity::Foreground);
        assert_eq!((took, longest), (2_000 * MS - 200 * US, 200 * US));
    }

    #[test]
    fn without_foreground_or_with_need_it_goes_on_at_once() {
        for beside in [OtherActivity::Nothing, OtherActivity::Need] {
            let (took, longest, _) = pass((50_000, 10, 20 * US), &runs(3_600_000 * MS), |_| beside);
            assert_eq!((took, longest), (1_000 * MS, Duration::ZERO));
        }
    }

    #[test]
    fn time_that_was_saved_while_idle_is_given_back() {
        let known = runs(6_000 * MS);
        let idle =
            |at| if at < 25_000 { OtherActivity::Nothing } else { OtherActivity::Foreground };
        let (_, longest, _) = pass((50_000, 10, 20 * US), &known, idle);
        let (_, hurried, _) = pass((50_000, 10, 20 * US), &known, |_| OtherActivity::Foreground);
        assert!(longest > hurried + hurried / 2 && longest <= MS, "{longest:?} {hurried:?}");
    }

    #[test]
    fn a_wrong_number_of_nodes_is_no_fault() {
        let mut pace = Pace::begin(Instant::default(), 3, &runs(MS));
        for _ in 0..100 {
            pace.worked(10, 200 * US);
            let pause =
                pace.pause(Instant::default().after(MS), &LIMITS, OtherActivity::Foreground);
            assert!(pause >= 200 * US && pause <= MS);
        }
    }

    #[test]
    fn what_was_asked_for_says_nothing_of_the_time_between_passes() {
        let mut runs = runs(Duration::from_secs(60));
        let at = Instant::default().after(Duration::from_secs(240));
        runs.note(at, at.after(MS), true);
        runs.note(at.after(MS), at.after(2 * MS), true);
        assert_eq!(runs.interval(), Some(Duration::from_secs(60)));
        assert_eq!((runs.count(), runs.duration(), runs.longest()), (6, Some(MS), MS));
    }
}
