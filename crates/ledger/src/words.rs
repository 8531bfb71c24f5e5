//! Causes, rates and lengths in words.

use crate::holder::Holder;
use crate::ledger::Ledger;
use crate::slowest::SlowRequest;
use crate::story::{Cause, Part};
use model::wait::{Layer, Reason};

/// A request with its parts in words.
#[derive(Clone, Debug)]
pub struct RequestReport {
    /// The request.
    pub slow: SlowRequest,
    /// The parts of its time, each with what it was spent on.
    pub parts: Vec<(Part, String)>,
}

/// A request, with its parts put in words.
pub(crate) fn in_words(ledger: &Ledger, slow: SlowRequest) -> RequestReport {
    let parts = slow.parts.iter().map(|p| (*p, say(ledger, &p.cause))).collect();
    RequestReport { slow, parts }
}

/// Between what a request waited for and what that came down to.
pub(crate) const WHICH: &str = ", which waited for ";

/// A cause in words, after "waited for".
pub(crate) fn say(ledger: &Ledger, cause: &Cause) -> String {
    let mut text = String::new();
    let what = cause.what;
    // Of transfers side by side, each waits for itself.
    if cause.stage != what.reason && cause.stage.layer() != Layer::Device {
        text.push_str(cause.stage.text());
        text.push_str(WHICH);
    }
    text.push_str(what.reason.text());
    let place = ledger.name_of(what.place);
    if !place.is_empty() {
        text.push(' ');
        text.push_str(&place);
    }
    if says_whose(cause) {
        let link = if what.reason == Reason::Engine { " with " } else { ", beside " };
        text.push_str(link);
        text.push_str(what.holder.name());
    }
    text
}

/// True if the words of a cause say whose work it is.
pub(crate) fn says_whose(cause: &Cause) -> bool {
    let busy = [Reason::Engine, Reason::DeviceQueue, Reason::Transfer];
    busy.contains(&cause.what.reason) && cause.what.holder != Holder::NONE
}

/// Bytes a second in the unit that fits.
pub(crate) fn speed(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 10.0 => format!("{mib:.1} MiB/s"),
        mib => format!("{mib:.0} MiB/s"),
    }
}

/// A length in the unit that fits.
pub fn length(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..10_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
