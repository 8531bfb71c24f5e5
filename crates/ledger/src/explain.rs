//! The answer to "why was this slow?", and "why is it?".

use std::collections::BTreeMap;

use base::{Instant, VolumeId};
use smallvec::SmallVec;

use crate::holder::Holder;
use crate::ledger::{Ledger, RequestKind};
use crate::story::{Cause, Moment, Part};
use crate::summary::{Band, Summary, band_of};
pub use crate::under_way::PendingAnswer;
pub use crate::words::{RequestReport, length};
use crate::words::{WHICH, in_words, say, says_whose, speed};
use model::wait::{Layer, Reason, RequestClass};

/// The shares of requests whose length is said.
const SHARES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];
/// Slow requests that are told whole.
const TOLD: usize = 10;

/// Which requests are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Requests of this volume only.
    pub volume: Option<VolumeId>,
    /// Requests of this kind only.
    pub kind: Option<RequestClass>,
    /// Requests that ended in the minutes since then.
    pub since: Instant,
    /// The length from which on requests are slow, in nanoseconds; told apart to an eighth.
    pub slower_than_ns: u64,
}

/// A length that a share of the requests does not exceed.
#[derive(Clone, Debug)]
pub struct Percentile {
    /// The share, 0 to 1.
    pub share: f64,
    /// In nanoseconds, to an eighth.
    pub ns: u64,
    /// The parts of the time of requests of that length: the sum over `count` of them.
    pub parts: SmallVec<[Part; 6]>,
    /// The number of these requests.
    pub count: u64,
}

/// A cause that kept slow requests longest.
#[derive(Clone, Debug)]
pub struct BlamedCause {
    /// The longest part of each of them.
    pub cause: Cause,
    /// The number of these requests.
    pub count: u64,
    /// The bytes a second that the device moved for those whose work the requests waited for, in
    /// the minutes in which some of them ended.
    pub rate: Option<u64>,
    /// Advice on what to do about the cause; empty if there is nothing to say.
    pub advice: &'static str,
    /// The device; empty if the cause is not on one.
    pub device: String,
    /// In words, after "they waited for".
    pub text: String,
}

/// The answer for one kind of request.
#[derive(Clone, Debug)]
pub struct KindAnswer {
    /// The kind of request that is counted here.
    pub kind: RequestClass,
    /// Requests that have ended in the time that was asked about.
    pub count: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// Lengths, with what they are made of.
    pub percentiles: Vec<Percentile>,
    /// Slow requests.
    pub slow: u64,
    /// Some of them may be shorter, by up to an eighth.
    pub about: bool,
    /// The time that slow requests took, all together, in nanoseconds.
    pub slow_ns: u64,
    /// Time of slow requests by whose work they waited for, in nanoseconds, the longest first.
    pub holders: Vec<(&'static str, u64)>,
    /// Causes of slow requests, the most frequent first.
    pub causes: Vec<BlamedCause>,
    /// All this in plain words.
    pub verdict: String,
}

/// The whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Requests that are slow and have not ended.
    pub under_way: PendingAnswer,
    /// By kind; kinds without a request are left out.
    pub kinds: Vec<KindAnswer>,
    /// The slowest requests, the longest first, with their parts in words.
    pub slowest: Vec<RequestReport>,
}

/// Answers a question that is asked at this moment.
pub fn explain(ledger: &Ledger, question: &Question, moment: Moment) -> Answer {
    let (of, slowest) = ledger.since(question.since);
    let asked = |volume: Option<VolumeId>, kind: RequestClass| {
        question.volume.is_none_or(|v| volume == Some(v)) && question.kind.is_none_or(|k| k == kind)
    };
    let mut by_kind: BTreeMap<RequestClass, Summary> = BTreeMap::new();
    for ((volume, kind), summary) in &of {
        if asked(*volume, *kind) {
            by_kind.entry(*kind).or_default().merge(summary);
        }
    }
    let rate = |kind, cause: &Cause| {
        let has = |(volume, of): &RequestKind, summary: &Summary| {
            kind == *of && asked(*volume, kind) && summary.blames(question.slower_than_ns, cause)
        };
        says_whose(cause).then(|| ledger.rate(cause.what, question.since, has)).flatten()
    };
    let limit = question.slower_than_ns;
    let under_way = |kind| PendingAnswer::of(ledger, moment, limit, kind, asked);
    let kinds = by_kind.iter().map(|(kind, s)| {
        let mut of = of_kind(ledger, *kind, limit, s, |cause| rate(*kind, cause));
        let now = under_way(Some(*kind));
        if now.longest_ns > of.max_ns {
            of.verdict = format!("{}. {}", now.text, of.verdict);
        }
        of
    });
    let told = slowest
        .into_iter()
        .filter(|s| asked(s.volume, s.kind) && s.ns > question.slower_than_ns)
        .take(TOLD);
    Answer {
        under_way: under_way(None),
        kinds: kinds.collect(),
        slowest: told.map(|slow| in_words(ledger, slow)).collect(),
    }
}

/// `rate` says how fast the work was that a cause waited for.
fn of_kind(
    ledger: &Ledger,
    kind: RequestClass,
    slower_than_ns: u64,
    summary: &Summary,
    rate: impl Fn(&Cause) -> Option<u64>,
) -> KindAnswer {
    let percentiles = SHARES.map(|share| {
        let ns = if share < 1.0 { summary.quantile_ns(share) } else { summary.max_ns };
        let band = summary.bands.get(&band_of(ns));
        let (parts, count) = band.map_or_else(Default::default, |b| (b.parts.clone(), b.count));
        Percentile { share, ns, parts, count }
    });
    let slow = summary.above(slower_than_ns);
    let blamed = slow.causes.iter().map(|&(cause, count)| {
        let mut text = say(ledger, &cause);
        let rate = rate(&cause);
        if let Some(rate) = rate {
            text.push_str(&format!(" at {}", speed(rate)));
        }
        let device = ledger.name_of(cause.what.place);
        BlamedCause { cause, count, rate, advice: cause.advice(&device), device, text }
    });
    let mut causes: Vec<BlamedCause> = blamed.collect();
    causes.sort_by_key(|c| (std::cmp::Reverse(c.count), c.cause));
    let mut of = KindAnswer {
        kind,
        count: summary.count(),
        max_ns: summary.max_ns,
        percentiles: percentiles.into(),
        slow: slow.count,
        about: summary.is_about(slower_than_ns, &slow),
        slow_ns: slow.parts.iter().map(|part| part.ns).sum(),
        holders: holders(&slow),
        causes,
        verdict: String::new(),
    };
    of.verdict = verdict(&of, slower_than_ns);
    of
}

fn holders(slow: &Band) -> Vec<(&'static str, u64)> {
    let mut by: BTreeMap<&'static str, u64> = BTreeMap::new();
    for part in slow.parts.iter().filter(|p| p.cause.what.holder != Holder::NONE) {
        *by.entry(part.cause.what.holder.name()).or_default() += part.ns;
    }
    let mut by: Vec<_> = by.into_iter().collect();
    by.sort_by_key(|(name, ns)| (std::cmp::Reverse(*ns), *name));
    by
}

/// A reason for which many requests waited, whatever that came down to.
pub struct MainCause<'a> {
    /// The number of these requests.
    pub count: u64,
    /// The cause that it came down to most often.
    pub most: &'a BlamedCause,
    /// In words, after "they waited for".
    pub text: String,
}

/// Causes that are one, each with its requests.
type Members<'a> = BTreeMap<Cause, (u64, &'a BlamedCause)>;

/// The reasons for which the requests of these causes waited themselves, the most frequent first.
/// All devices are one: of a mirror each has its part of the requests.
pub fn firsts<'a>(causes: impl IntoIterator<Item = &'a BlamedCause>) -> Vec<MainCause<'a>> {
    let mut by: BTreeMap<(Layer, Option<Reason>), Members> = BTreeMap::new();
    for blamed in causes {
        let (stage, layer) = (blamed.cause.stage, blamed.cause.stage.layer());
        let of = by.entry((layer, Some(stage).filter(|_| layer != Layer::Device))).or_default();
        of.entry(blamed.cause).or_insert((0, blamed)).0 += blamed.count;
    }
    let first = |of: Members<'a>| {
        let count = of.values().map(|(count, _)| count).sum();
        // Of several that are as frequent it is the first.
        let (times, most) = of.values().copied().rev().max_by_key(|(count, _)| *count)?;
        let one = of.keys().all(|cause| cause.what.place == most.cause.what.place);
        let text = match times == count {
            true => most.text.clone(),
            false => with_most(times, most, if one { &most.device } else { "" }),
        };
        Some(MainCause { count, most, text })
    };
    let mut firsts: Vec<MainCause> = by.into_values().filter_map(first).collect();
    firsts.sort_by_key(|f| (std::cmp::Reverse(f.count), f.most.cause));
    firsts
}

/// Several causes in words, of which one is told; all are on `device`, unless that is empty.
fn with_most(times: u64, most: &BlamedCause, device: &str) -> String {
    let stage = most.cause.stage;
    if stage.layer() == Layer::Device {
        let devices = if device.is_empty() { "devices" } else { device };
        return format!("{devices}, {times} of them for {}", most.text);
    }
    let all = stage.text();
    match most.text.strip_prefix(all) {
        Some("") => all.to_owned(),
        Some(rest) if stage != most.cause.what.reason => {
            let rest = rest.strip_prefix(WHICH).unwrap_or(rest);
            format!("{all}; in {times} cases that waited for {rest}")
        }
        _ => format!("{all}; {times} of them for {}", most.text),
    }
}

fn verdict(of: &KindAnswer, slower_than_ns: u64) -> String {
    let Some(most) = of.percentiles.get(2) else { return String::new() };
    let (count, longest) = (of.count, length(of.max_ns));
    let mut text = match count {
        1 => format!("1 {} took {longest}.", of.kind.singular()),
        _ => {
            let (words, most) = (of.kind.plural(), length(most.ns));
            format!("99.9 % of {count} {words} took up to {most}, the longest {longest}.")
        }
    };
    let limit = length(slower_than_ns);
    let firsts = firsts(&of.causes);
    let Some(first) = firsts.first() else {
        text.push_str(&format!(" None was slower than {limit}."));
        return text;
    };
    text.push_str(&format!(
        " {} slower than {limit}; {} waited mostly for {}.",
        match of.slow {
            1 => "1 was".to_owned(),
            slow if of.about => format!("About {slow} were"),
            slow => format!("{slow} were"),
        },
        if of.slow == 1 { "it".to_owned() } else { format!("{} of these", first.count) },
        first.text
    ));
    if let Some(second) = firsts.get(1).filter(|s| s.count * 10 >= of.slow) {
        text.push_str(&format!(" {} waited mostly for {}.", second.count, second.text));
    }
    let advice = first.most.advice;
    // Of a device that is busy with nothing of ours there is nothing to say.
    if !advice.is_empty() {
        text.push_str(&format!(" What helps: {advice}."));
    }
    text
}
