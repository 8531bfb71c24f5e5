//! How long the engine's thread works between two looks at the world.
//!
//! Whatever comes meanwhile has to wait for so long. It is measured in time of the processor, which
//! other programs do not change, and without the work of the backend itself. The time that the
//! engine sees goes on meanwhile, as work is cut into slices by it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use base::{Duration, Instant};
use posix::sys::processor_time;
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId};

/// The longest step of a phase may be so many times as long where all is large: caches of the
/// processor are missed more often.
const TIMES: u32 = 6;

/// So many of the longest steps of a phase are kept.
const KEPT: usize = 16;

/// The longest steps of a phase, the longest first.
#[derive(Clone, Copy, Debug)]
pub struct LongestSteps {
    /// The name by which the test calls the phase.
    pub phase: &'static str,
    /// The real time that each of them took.
    pub steps: [Duration; KEPT],
}

/// Runs are repeated so often where steps seem to grow: an interrupt may be counted for a step.
const TRIES: usize = 4;

/// Fails if the longest step of a phase is longer by far where all is large than where it is small.
pub fn compare_steps(small: impl Fn() -> Vec<LongestSteps>, large: impl Fn() -> Vec<LongestSteps>) {
    compare(0, small, large);
}

/// The same for a run that takes so long that something else is counted for some steps, however
/// often it is repeated: of each phase the last of the longest steps that are kept. So a step is
/// passed over that a phase has only a few times, as when it begins or ends.
pub fn compare_repeated_steps(
    small: impl Fn() -> Vec<LongestSteps>,
    large: impl Fn() -> Vec<LongestSteps>,
) {
    compare(KEPT - 1, small, large);
}

fn compare(
    nth: usize,
    small: impl Fn() -> Vec<LongestSteps>,
    large: impl Fn() -> Vec<LongestSteps>,
) {
    // The kernel clears 2 MiB at once where memory is used for the first time.
    nix::sys::prctl::set_thp_disable(true).expect("prctl");
    let mut shortest = (small(), large());
    for _ in 1..TRIES {
        if grown(nth, &shortest).is_empty() {
            break;
        }
        shortest = (shorter(shortest.0, small()), shorter(shortest.1, large()));
    }
    for (small, large) in shortest.0.iter().zip(&shortest.1) {
        let (of, small, large) = (small.phase, small.steps[0], large.steps[nth]);
        println!("{of}: {small:?}, where all is large {large:?}");
    }
    let grown = grown(nth, &shortest);
    assert!(grown.is_empty(), "these steps have grown: {grown:?}");
}

/// Of each phase the shorter steps of two runs.
fn shorter(one: Vec<LongestSteps>, other: Vec<LongestSteps>) -> Vec<LongestSteps> {
    let shorter = |(one, other): (LongestSteps, LongestSteps)| {
        let steps = std::array::from_fn(|i| one.steps[i].min(other.steps[i]));
        LongestSteps { steps, ..one }
    };
    one.into_iter().zip(other).map(shorter).collect()
}

/// Phases of which the `nth` of the longest steps is longer by far than the longest where all is
/// small, with these steps.
fn grown(
    nth: usize,
    (small, large): &(Vec<LongestSteps>, Vec<LongestSteps>),
) -> Vec<(LongestSteps, LongestSteps)> {
    // What is short anyway may grow.
    let least = small.iter().map(|phase| phase.steps[0]).max().unwrap_or_default() / 2;
    let both = small.iter().copied().zip(large.iter().copied());
    both.filter(|(small, large)| large.steps[nth] > small.steps[0].max(least) * TIMES).collect()
}

/// The longest steps of phases. Clones are the same.
#[derive(Clone, Default)]
pub struct Steps(Rc<LongestFound>);

#[derive(Default)]
struct LongestFound {
    /// Of the phase that is under way.
    longest: Cell<[Duration; KEPT]>,
    phases: RefCell<Vec<LongestSteps>>,
}

impl Steps {
    /// Does the work of a phase.
    pub async fn phase(&self, phase: &'static str, work: impl Future<Output = ()>) {
        self.0.longest.take();
        work.await;
        let steps = self.0.longest.take();
        let last = steps[KEPT - 1];
        println!("{phase}: the longest step took {:?}, the {KEPT}th longest {last:?}", steps[0]);
        self.0.phases.borrow_mut().push(LongestSteps { phase, steps });
    }

    /// The phases so far.
    pub fn take_phases(&self) -> Vec<LongestSteps> {
        self.0.phases.take()
    }

    fn note(&self, took: Duration) {
        let mut longest = self.0.longest.get();
        let at = longest.partition_point(|&other| other > took);
        if at < KEPT {
            longest[at..].rotate_right(1);
            longest[at] = took;
            self.0.longest.set(longest);
        }
    }

    /// A backend over `inner` that measures the steps of the engine above it.
    pub fn over(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        let now = processor_time();
        let (below, ran) = (Duration::ZERO, Duration::ZERO);
        Box::new(MeasuredBackend { inner, steps: self.clone(), began: now, below, ran })
    }
}

struct MeasuredBackend {
    inner: Box<dyn Backend>,
    steps: Steps,
    /// When the step began that is under way, in time of the processor.
    began: Duration,
    /// How long the backend below has worked in it.
    below: Duration,
    /// The steps before it, together.
    ran: Duration,
}

impl MeasuredBackend {
    /// How long the step has taken so far.
    fn took(&self) -> Duration {
        (processor_time() - self.began).saturating_sub(self.below)
    }
}

impl Backend for MeasuredBackend {
    fn submit(&mut self, id: OpId, op: Op) {
        let before = processor_time();
        self.inner.submit(id, op);
        self.below += processor_time() - before;
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let took = self.took();
        self.steps.note(took);
        self.ran += took;
        let until = until.map(|until| Instant(until.0.saturating_sub(self.ran.as_nanos() as u64)));
        let now = self.inner.wait(until, done).after(self.ran);
        (self.began, self.below) = (processor_time(), Duration::ZERO);
        now
    }

    fn kind(&self, file: FileId) -> DeviceKind {
        self.inner.kind(file)
    }

    fn now(&self) -> Instant {
        self.inner.now().after(self.ran + self.took())
    }
}
