//! The whole engine under simulation, against a model.
//!
//! # What it explores
//!
//! One seed is one run. It draws its [`Settings`] (a swarm: devices, copies, sizes, speeds, which
//! operations and faults there are at all), then goes through several boots: the pool is opened (or
//! made), volumes come and go and change their size, clients write and read them directly and by
//! NBD over a simulated wire, and at some moment, also in the middle of opening, power fails or the
//! process is killed. In between devices rot, vanish, or come back as they were long before; in
//! some runs one is slow at times. Half of the runs have a cache ([`cached`]), which may be lost
//! between two boots; meanwhile modes of volumes are switched, and the cache is detached and
//! another attached ([`changer`]). In half of these, settings change at any time ([`tuner`]). In
//! two runs of three volumes get limits, which change as often ([`limiter`]), and in as many the
//! pool is scrubbed ([`scrubber`]), and devices come and go ([`mover`]).
//!
//! # What it checks
//!
//! * Every sector that is read is what the model ([`model`]) allows: the last completed write, or
//!   one that was concurrent; after a crash anything from the last flushed to the last issued,
//!   whole blocks old or new, the same from then on.
//! * Faults that lose data strike at most `copies - 1` devices: then no client sees an error but
//!   ENOSPC where there is none left. In runs *beyond* that budget errors are allowed, wrong bytes
//!   never.
//! * Volumes: what was acknowledged (create, resize, delete) is there after a crash; what was not
//!   may be.
//! * After every crash the offline check finds nothing but damage on devices that were struck.
//! * Without its cache the pool holds, of volumes that write back, one of the cuts that were taken,
//!   exactly, and no older one than was seen published; of others all that was flushed. A switch,
//!   an attach, a detach that returned is durable; cut short, it is done or not ([`model`]: cuts).
//! * What was written is missing in the pool's image no longer than `max_lag`, and what a pass
//!   needs that cannot go faster ([`model`]: lag). The rate of write-back is within its bounds.
//! * Where no copy of a node of a tree can be read ([`unreachable`]), only that volume sees errors;
//!   when it can be read again, nothing is missing.
//! * A scrub calls nothing lost that the budget has left, and nothing bad where nothing was struck.
//! * The limit of a volume is there after a crash as it was acknowledged.
//! * Everything comes to rest: no deadlock, no operation that takes for ever; after the last volume
//!   is deleted all space is back.
//! * At rest, with all data still there, nothing is bad in the end ([`rest`]): all devices are in
//!   use, each block group is on as many different devices as the pool keeps copies, a scrub heals
//!   all that is bad, and then the offline check finds nothing. In runs beyond the budget none of
//!   this is required.
//! * The number of copies is, after a crash, what was acknowledged.
//! * One seed is one history: a run can be repeated and gives the same hash.
//!
//! # How to replay
//!
//! `make torture SEEDS=1 SEED=n`; with `--verbose` the log of the engine, with `--trace` every
//! operation at the seam.

mod admin;
pub mod aims;
mod cached;
mod changer;
mod client;
pub mod content;
mod ending;
mod env;
pub mod failures;
mod faults;
mod fill_order;
mod filled;
mod front;
mod limiter;
mod members;
mod model;
mod mover;
mod rest;
mod run;
mod scrubber;
pub mod settings;
mod snapshots;
mod spoilt;
mod start;
mod story;
mod stream;
mod subsets;
mod swarm;
mod told;
mod trouble;
mod tuner;
mod unreachable;
mod verdict;
mod verify;

use std::backtrace::BacktraceStatus;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

pub use run::Summary;
pub use settings::{Aim, Settings};
pub use story::Coverage;

thread_local! {
    /// The place and text of this thread's last panic.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics of runs from being printed where they happen: [`run_seed`] reports them, with their
/// place.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place =
            info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let text = match info.payload().downcast_ref::<&str>() {
            Some(text) => (*text).to_owned(),
            None => info.payload().downcast_ref::<String>().cloned().unwrap_or_default(),
        };
        // Empty unless RUST_BACKTRACE asks for it.
        let backtrace = std::backtrace::Backtrace::capture();
        let backtrace = if backtrace.status() == BacktraceStatus::Captured {
            backtrace.to_string()
        } else {
            String::new()
        };
        PANIC.with_borrow_mut(|p| *p = Some(format!("{text}\n({place})\n{backtrace}")));
    }));
}

/// The settings of run `seed`, aimed at `aim` if that is given.
pub fn draw(seed: u64, aim: Option<Aim>) -> Settings {
    let mut settings = swarm::without_failures(seed);
    settings::Failures::draw(&mut settings);
    Aim::draw(&mut settings, aim);
    swarm::spare_the_moved(&mut settings);
    settings
}

/// Runs one seed, aimed at `aim` if that is given. An error is the whole story of the failure.
pub fn run_seed(seed: u64, aim: Option<Aim>, trace: bool) -> Result<Summary, String> {
    let settings = draw(seed, aim);
    let story = Rc::new(RefCell::new(story::Story::default()));
    PANIC.with_borrow_mut(|p| *p = None);
    let s = story.clone();
    let run = match settings.aim {
        Some(Aim::Subsets | Aim::Copies) => subsets::run,
        _ => run::run,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(settings.clone(), s, trace)));
    outcome.map_err(|payload| {
        let text = PANIC.with_borrow_mut(Option::take).unwrap_or_else(|| {
            let string = payload.downcast_ref::<String>().cloned();
            string
                .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default()
        });
        let tale = story.try_borrow().map(|s| s.tell()).unwrap_or_default();
        format!(
            "seed {seed} failed: {text}\n\nsettings: {settings:?}\n\n{tale}\n{}",
            replay(seed, aim)
        )
    })
}

/// Returns a line that tells how a seed is run again.
pub fn replay(seed: u64, aim: Option<Aim>) -> String {
    let aim = aim.map_or(String::new(), |aim| format!(" AIM={}", aim.name()));
    format!("replay: make torture SEEDS=1 SEED={seed}{aim}")
}
