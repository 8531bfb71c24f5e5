//! Progress: a bar for what is counted, and the time that has passed for what is not.
//!
//! Progress is drawn on standard error, if that is a terminal, and once something has taken a
//! second. Anything quick leaves no trace, and neither pipes nor logs have anything of it.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::look::is_stderr_coloured;
use super::text::visible;
use crate::units::{human_bytes, human_seconds};

/// The time for which nothing is shown: anything quicker leaves no trace.
const DELAY: Duration = Duration::from_secs(1);
/// The least time between two drawings.
const REDRAW: Duration = Duration::from_millis(100);
/// The least time over which a rate is measured.
const MEASURED: Duration = Duration::from_secs(2);
/// The number of steps of a bar, whatever it counts.
const STEPS: u64 = 10_000;

/// The unit in which progress is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    #[default]
    Bytes,
    /// Another unit: only shares of the total say something.
    Share,
}

/// The progress of an action at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The name of the action.
    pub what: String,
    /// The amount that is done, in `unit`.
    pub done: u64,
    /// The amount in all, in `unit`.
    pub total: u64,
    /// The unit of `done` and `total`.
    pub unit: Unit,
    /// The amount a second, if it is known; else it is measured.
    pub rate: Option<u64>,
    /// The time left in seconds, if it is known; else it is reckoned.
    pub left_s: Option<u64>,
    /// Further words to be shown.
    pub note: String,
}

impl Step {
    fn share(&self) -> f64 {
        if self.total == 0 { 0.0 } else { (self.done as f64 / self.total as f64).min(1.0) }
    }

    /// The words behind the bar. `measured`: the amount that was done, and the time it took.
    fn words(&self, measured: Option<(u64, Duration)>) -> String {
        let mut parts = Vec::new();
        if self.unit == Unit::Bytes {
            parts.push(format!("{} of {}", human_bytes(self.done), human_bytes(self.total)));
        }
        let per_second = self.rate.map(|rate| rate as f64).or_else(|| {
            let (done, time) = measured.filter(|(_, time)| *time >= MEASURED)?;
            Some(done as f64 / time.as_secs_f64())
        });
        let per_second = per_second.filter(|rate| *rate > 0.0);
        if let Some(rate) = per_second.filter(|_| self.unit == Unit::Bytes) {
            parts.push(format!("{}/s", human_bytes(rate as u64)));
        }
        let reckoned = per_second.map(|rate| self.total.saturating_sub(self.done) as f64 / rate);
        if let Some(left) = self.left_s.or(reckoned.map(|left| left.ceil() as u64)) {
            parts.push(format!("{} left", human_seconds(left)));
        }
        if !self.note.is_empty() {
            parts.push(self.note.clone());
        }
        visible(&parts.join(", "))
    }
}

/// Whether progress is shown at all.
fn is_wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

#[allow(clippy::disallowed_methods, reason = "the command is no engine")]
fn now() -> Instant {
    Instant::now()
}

/// Shows how far something is, step by step.
pub struct Progress {
    wanted: bool,
    started: Instant,
    drawn: Option<(Instant, ProgressBar)>,
    /// The name of the action, the amount that was done when it was first shown, and that moment.
    first: Option<(String, u64, Instant)>,
}

impl Progress {
    /// Shows nothing yet; and nothing at all if the output is for a program.
    pub fn new(for_program: bool) -> Progress {
        let wanted = is_wanted() && !for_program;
        Progress { wanted, started: now(), drawn: None, first: None }
    }

    /// Whether anything will be shown.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Shows this step instead of the one before.
    pub fn show(&mut self, step: &Step) {
        if !self.wanted {
            return;
        }
        let at = now();
        let is_new = self.first.as_ref().is_none_or(|(what, ..)| *what != step.what);
        if is_new {
            self.first = Some((step.what.clone(), step.done, at));
        }
        let is_early = at.duration_since(self.started) < DELAY;
        let is_fresh =
            self.drawn.as_ref().is_some_and(|(last, _)| at.duration_since(*last) < REDRAW);
        if is_early || (is_fresh && !is_new) {
            return;
        }
        let measured = self
            .first
            .as_ref()
            .map(|(_, done, since)| (step.done.saturating_sub(*done), at.duration_since(*since)));
        let (last, bar) = self.drawn.get_or_insert_with(|| (at, bar()));
        *last = at;
        if is_new || bar.prefix().is_empty() {
            bar.set_prefix(visible(&step.what));
        }
        bar.set_position((step.share() * STEPS as f64) as u64);
        // The message is set last, so what is drawn last has prefix and position, too.
        bar.set_message(step.words(measured));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((_, bar)) = &self.drawn {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
    // The bar takes what the words leave: a line of 80 columns has room for all of them.
    let filled = if is_stderr_coloured() { "{wide_bar:.cyan}" } else { "{wide_bar}" };
    let template = format!("{{prefix}} [{filled}] {{percent:>3}} %  {{msg}}");
    styled(bar, &template)
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        // The templates are ours, and a test reads them; the usual style would do as well.
        Err(_) => bar,
    }
}

/// Says something on standard error, also while something is drawn there.
pub fn note(text: &str) {
    let over = if is_wanted() { "\r\x1b[K" } else { "" };
    let _ = std::io::stderr().write_all(format!("{over}{}\n", visible(text)).as_bytes());
}

const SPINNER: &str = "{spinner} {prefix}, {elapsed}";

/// Runs an action whose progress is not known. On a terminal it shows the name of the action, and
/// for how long it has run.
pub fn waiting<T>(what: &str, act: impl FnOnce() -> T) -> T {
    if !is_wanted() {
        return act();
    }
    let (end, ended) = channel::<()>();
    std::thread::scope(|threads| {
        threads.spawn(move || spin(what, &ended));
        // Goes also where the act panics, so the thread ends in any case.
        let end = end;
        let outcome = act();
        drop(end);
        outcome
    })
}

fn spin(what: &str, ended: &Receiver<()>) {
    let waits = |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    if !waits(DELAY) {
        return;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let bar = styled(bar, SPINNER).with_prefix(visible(what)).with_elapsed(DELAY);
    bar.tick();
    while waits(REDRAW) {
        bar.tick();
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrub() -> Step {
        Step { what: "scrub".into(), done: 1 << 30, total: 4 << 30, ..Step::default() }
    }

    #[test]
    fn what_is_known_is_told() {
        assert_eq!(scrub().words(None), "1 GiB of 4 GiB");
        let step =
            Step { rate: Some(1 << 20), left_s: Some(90), note: "no errors".into(), ..scrub() };
        let told = "1 GiB of 4 GiB, 1 MiB/s, 90 s left, no errors";
        assert_eq!(step.words(Some((7, MEASURED))), told);
        let hostile = Step { note: "\u{1b}[2J".into(), ..scrub() };
        assert!(!hostile.words(None).contains('\u{1b}'));
    }

    #[test]
    fn what_is_not_known_is_measured_where_that_says_something() {
        let measured = |done, ms| scrub().words(Some((done, Duration::from_millis(ms))));
        assert_eq!(measured(512 << 20, 2000), "1 GiB of 4 GiB, 256 MiB/s, 12 s left");
        assert_eq!(measured(512 << 20, 100), "1 GiB of 4 GiB");
        assert_eq!(measured(0, 9000), "1 GiB of 4 GiB");
        let share = Step { unit: Unit::Share, done: 25, total: 100, ..scrub() };
        assert_eq!(share.words(Some((25, Duration::from_secs(5)))), "15 s left");
    }

    #[test]
    fn shares_are_between_nothing_and_all() {
        let share = |done, total| Step { done, total, ..Step::default() }.share();
        assert_eq!((share(0, 0), share(5, 10), share(20, 10)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn templates_are_right() {
        for template in [SPINNER, "{prefix} [{wide_bar:.cyan}] {percent:>3} %  {msg}"] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn a_wait_gives_what_was_waited_for() {
        assert_eq!(waiting("something", || 7), 7);
    }
}
