//! The answer to "why was this slow?", and "why is it?".

use std::collections::BTreeMap;

use base::{Instant, VolumeId};
use ledger::explain::{
    Answer, KindAnswer, PendingAnswer, Question, RequestReport, explain, firsts,
};
use ledger::{Cause, Layer, Ledger, Moment, Part, Reason, RequestClass};
use model::explain::{
    ExplainedCause, ExplainedClass, ExplainedHolder, ExplainedShare, Explanation, RequestStory,
    SlowRequest, Wait, WaitPart, WaitPartInWords,
};
use model::status::{SlowCause, SlowRequests};

/// The time in nanoseconds above which `status` calls a request slow, and the minutes that it looks
/// back.
const STATUS_SLOW_NS: u64 = 20_000_000;
const STATUS_MINUTES: u64 = 10;

/// All that the ledger says about a question. `name` is that of a volume, if it still exists.
pub fn explanation(
    ledger: &Ledger,
    moment: Moment,
    question: &Question,
    name: impl Fn(VolumeId) -> Option<String>,
) -> Explanation {
    let Answer { under_way, kinds, slowest } = explain(ledger, question, moment);
    let slowest = slowest.iter().map(|told| SlowRequest {
        story: story(ledger, told, &name),
        ended_seconds_ago: moment.now.since(told.slow.ended).as_secs(),
    });
    Explanation {
        slower_than_us: us(question.slower_than_ns),
        under_way: model::explain::UnderWay {
            requests: under_way.count,
            more: under_way.more,
            longest_us: us(under_way.longest_ns),
            text: text_of(&under_way).map(str::to_owned),
            oldest: under_way.oldest.iter().map(|told| story(ledger, told, &name)).collect(),
        },
        classes: kinds.iter().map(|kind| class(ledger, kind)).collect(),
        slowest: slowest.collect(),
    }
}

/// A request whole, as it ended or as it is.
fn story(
    ledger: &Ledger,
    told: &RequestReport,
    name: &impl Fn(VolumeId) -> Option<String>,
) -> RequestStory {
    let RequestReport { slow, parts } = told;
    let parts = parts
        .iter()
        .map(|(of, text)| WaitPartInWords { part: part(ledger, of, 1), text: text.to_string() });
    RequestStory {
        volume: slow.volume.and_then(name),
        volume_id: slow.volume.map(|id| id.0),
        class: slow.kind,
        offset: slow.range.0,
        length_bytes: slow.range.1,
        duration_us: us(slow.ns),
        parts: parts.collect(),
    }
}

fn text_of(under_way: &PendingAnswer) -> Option<&str> {
    Some(under_way.text.as_str()).filter(|text| !text.is_empty())
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn wait(ledger: &Ledger, cause: &Cause) -> Wait {
    let what = cause.what;
    let known = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
    Wait {
        stage: cause.stage,
        reason: what.reason,
        layer: what.reason.layer(),
        device: known(&ledger.name_of(what.place)),
        holder: known(what.holder.name()),
    }
}

/// A part of the time of so many requests, on average.
fn part(ledger: &Ledger, part: &Part, requests: u64) -> WaitPart {
    WaitPart { wait: wait(ledger, &part.cause), us: us(part.ns) / requests.max(1) as f64 }
}

fn class(ledger: &Ledger, of: &KindAnswer) -> ExplainedClass {
    let percentiles = of.percentiles.iter().map(|p| {
        let mut parts: Vec<&Part> = p.parts.iter().collect();
        parts.sort_by_key(|part| (std::cmp::Reverse(part.ns), part.cause));
        let mean_parts = parts.iter().map(|of| part(ledger, of, p.count)).collect();
        ExplainedShare { share: p.share, us: us(p.ns), mean_parts }
    });
    let causes = of.causes.iter().map(|c| ExplainedCause {
        wait: wait(ledger, &c.cause),
        requests: c.count,
        text: c.text.clone(),
        bytes_per_second: c.rate,
    });
    let holders = of.holders.iter().map(|(name, ns)| ExplainedHolder {
        name: name.to_string(),
        us: us(*ns),
        share: *ns as f64 / of.slow_ns.max(1) as f64,
    });
    ExplainedClass {
        class: of.kind,
        requests: of.count,
        longest_us: us(of.max_ns),
        percentiles: percentiles.collect(),
        slow_requests: of.slow,
        causes: causes.collect(),
        holders: holders.collect(),
        verdict: of.verdict.clone(),
    }
}

/// For `status`: what slows requests down, and did in the last minutes.
pub struct Stalls {
    under_way: PendingAnswer,
    kinds: Vec<KindAnswer>,
}

impl Stalls {
    /// Returns the slow requests of this moment, and of the last minutes.
    pub fn of(ledger: &Ledger, moment: Moment) -> Stalls {
        let since = Instant(moment.now.0.saturating_sub(STATUS_MINUTES * 60_000_000_000));
        let question = Question { volume: None, kind: None, since, slower_than_ns: STATUS_SLOW_NS };
        let Answer { under_way, kinds, .. } = explain(ledger, &question, moment);
        Stalls { under_way, kinds }
    }

    fn slow(&self) -> u64 {
        self.kinds.iter().map(|k| k.slow).sum()
    }

    /// Returns the cause for which the slowest request of this moment waits, and the one for which
    /// most of those before waited, in one line; `None` if nothing is or was slow.
    pub fn first_cause(&self) -> Option<String> {
        match (text_of(&self.under_way), self.first_cause_of_ended()) {
            (Some(now), Some(before)) => Some(format!("{now}; {before}")),
            (now, before) => now.map(str::to_owned).or(before),
        }
    }

    fn first_cause_of_ended(&self) -> Option<String> {
        let firsts = firsts(self.kinds.iter().flat_map(|k| &k.causes));
        let first = firsts.first()?;
        Some(format!(
            "{} of the last {STATUS_MINUTES} minutes took more than {} ms; {} waited mostly for {}",
            match self.slow() {
                1 => "1 request".to_owned(),
                n if self.kinds.iter().any(|k| k.about) => format!("about {n} requests"),
                n => format!("{n} requests"),
            },
            STATUS_SLOW_NS / 1_000_000,
            if self.slow() == 1 { "it".to_owned() } else { first.count.to_string() },
            first.text
        ))
    }

    /// Slow requests by what they waited for longest.
    pub fn slow_requests(&self) -> SlowRequests {
        let mut by: BTreeMap<(Layer, Reason), u64> = BTreeMap::new();
        for blamed in self.kinds.iter().flat_map(|k| &k.causes) {
            let reason = blamed.cause.what.reason;
            *by.entry((reason.layer(), reason)).or_default() += blamed.count;
        }
        let causes = by.into_iter();
        SlowRequests {
            seconds: STATUS_MINUTES * 60,
            slower_than_us: us(STATUS_SLOW_NS),
            requests: self.slow(),
            under_way: self.under_way.count,
            longest_under_way_us: us(self.under_way.longest_ns),
            causes: causes
                .map(|((layer, reason), requests)| SlowCause { layer, reason, requests })
                .collect(),
        }
    }
}

/// The class of requests of this name. Errors: a text for people.
pub fn kind_of(word: &str) -> Result<RequestClass, String> {
    word.parse().map_err(|_| {
        let words = RequestClass::ALL.map(RequestClass::word).join(", ");
        format!("no class of requests is called {word:?}: it is one of {words}")
    })
}

#[cfg(test)]
mod tests {
    use ledger::WaitCause;

    use super::*;

    /// A request that waited for a transfer of this device, or for the client.
    fn slow(ledger: &Ledger, kind: RequestClass, device: Option<&str>) {
        let at = |ms: u64| Moment::at(Instant(ms * 1_000_000));
        let story = ledger.begin(kind, 0, 4096, at(0));
        let what = match device {
            Some(name) => {
                WaitCause { place: ledger.place(name), ..WaitCause::from(Reason::Transfer) }
            }
            None => Reason::Reply.into(),
        };
        let wait = story.enter(what, at(0));
        story.leave(wait, at(50));
        ledger.end(&story, at(50));
    }

    #[test]
    fn the_line_of_the_status_adds_up_what_requests_of_all_kinds_waited_for() {
        let ledger = Ledger::default();
        let now = Moment::at(Instant(1_000_000_000));
        let first_cause = || Stalls::of(&ledger, now).first_cause();
        assert_eq!(first_cause(), None);
        (0..40).for_each(|_| slow(&ledger, RequestClass::Write, None));
        for kind in [RequestClass::Read, RequestClass::Flush] {
            (0..30).for_each(|_| slow(&ledger, kind, Some("pool device b")));
        }
        let text = first_cause().unwrap_or_default();
        let said = "100 requests of the last 10 minutes took more than 20 ms; 60 waited mostly for \
                    a transfer of pool device b";
        assert_eq!(text, said);
        slow(&ledger, RequestClass::Read, Some("pool device a"));
        let text = first_cause().unwrap_or_default();
        let said = "; 61 waited mostly for devices, 60 of them for a transfer of pool device b";
        assert!(text.ends_with(said), "{text}");
        for _ in 0..2 {
            let story = ledger.begin(RequestClass::Other, 0, 0, Moment::at(Instant(0)));
            ledger.end(&story, Moment::at(Instant(20_500_000)));
        }
        let text = first_cause().unwrap_or_default();
        let before = "about 103 requests of the last 10 minutes took more";
        assert!(text.starts_with(before), "{text}");
        // What hangs is the first that is said.
        ledger.begin(RequestClass::Flush, 0, 0, Moment::at(Instant(0)));
        let text = first_cause().unwrap_or_default();
        let said = "under way now: 1 flush for 1.0 s; it waits mostly for a turn on the engine's \
                    thread; ";
        assert!(text.starts_with(said) && text.contains(before), "{text}");
        let shown = Stalls::of(&ledger, now).slow_requests();
        assert_eq!((shown.under_way, shown.longest_under_way_us), (1, 1e6));
    }
}
