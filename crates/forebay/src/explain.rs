//! The answer to "why was this slow?", and "why is it?", as JSON.

use std::collections::BTreeMap;

use base::{Instant, VolumeId};
use ledger::explain::{Answer, OfKind, Question, Told, UnderWay, explain, firsts};
use ledger::{Kind, Ledger, Moment, Part};
use serde_json::{Value, json};

/// What `status` says about: slow is what took longer, in the last minutes.
const STATUS_SLOW_NS: u64 = 20_000_000;
const STATUS_MINUTES: u64 = 10;

/// All that the ledger says about a question. `name` is that of a volume, if it still exists.
pub fn answer(
    (ledger, moment): (&Ledger, Moment),
    question: &Question,
    name: impl Fn(VolumeId) -> Option<String>,
) -> Value {
    let Answer { under_way, kinds, slowest } = explain(ledger, question, moment);
    let request = |told: &Told| request_json(ledger, told, &name);
    let slowest = slowest.iter().map(|told| {
        let mut shown = request(told);
        shown["ended_seconds_ago"] = json!(moment.now.since(told.0.ended).as_secs());
        shown
    });
    json!({
        "slower_than_us": us(question.slower_than_ns),
        "under_way": {
            "requests": under_way.count,
            "more": under_way.more,
            "longest_us": us(under_way.longest_ns),
            "text": text_of(&under_way),
            "oldest": under_way.oldest.iter().map(request).collect::<Vec<_>>(),
        },
        "classes": kinds.iter().map(|k| kind_json(ledger, k)).collect::<Vec<_>>(),
        "slowest": slowest.collect::<Vec<_>>(),
    })
}

/// A request whole, as it ended or as it is.
fn request_json(
    ledger: &Ledger,
    (slow, parts): &Told,
    name: &impl Fn(VolumeId) -> Option<String>,
) -> Value {
    let parts = parts.iter().map(|(part, text)| {
        let mut shown = part_json(ledger, part, 1);
        shown["text"] = json!(text);
        shown
    });
    json!({
        "volume": slow.volume.and_then(name),
        "volume_id": slow.volume.map(|id| id.0),
        "class": slow.kind.word(),
        "offset": slow.range.0,
        "length_bytes": slow.range.1,
        "duration_us": us(slow.ns),
        "parts": parts.collect::<Vec<_>>(),
    })
}

fn text_of(under_way: &UnderWay) -> Option<&str> {
    Some(under_way.text.as_str()).filter(|text| !text.is_empty())
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn part_json(ledger: &Ledger, part: &Part, of: u64) -> Value {
    let what = part.cause.what;
    json!({
        "stage": part.cause.stage.word(),
        "reason": what.reason.word(),
        "layer": what.reason.layer().word(),
        "device": Some(ledger.name_of(what.place)).filter(|name| !name.is_empty()),
        "holder": Some(what.holder.name()).filter(|name| !name.is_empty()),
        "us": us(part.ns) / of.max(1) as f64,
    })
}

fn kind_json(ledger: &Ledger, of: &OfKind) -> Value {
    let percentiles = of.percentiles.iter().map(|p| {
        let mut parts: Vec<&Part> = p.parts.iter().collect();
        parts.sort_by_key(|part| (std::cmp::Reverse(part.ns), part.cause));
        let parts = parts.iter().map(|part| part_json(ledger, part, p.count));
        json!({ "share": p.share, "us": us(p.ns), "mean_parts": parts.collect::<Vec<_>>() })
    });
    let causes = of.causes.iter().map(|c| {
        let part = Part { cause: c.cause, ns: 0 };
        let mut shown = part_json(ledger, &part, 1);
        shown["requests"] = json!(c.count);
        shown["text"] = json!(c.text);
        shown["bytes_per_second"] = json!(c.rate);
        if let Some(fields) = shown.as_object_mut() {
            fields.remove("us");
        }
        shown
    });
    let holders = of.holders.iter().map(|(name, ns)| {
        let share = *ns as f64 / of.slow_ns.max(1) as f64;
        json!({ "name": name, "us": us(*ns), "share": share })
    });
    json!({
        "class": of.kind.word(),
        "requests": of.count,
        "longest_us": us(of.max_ns),
        "percentiles": percentiles.collect::<Vec<_>>(),
        "slow_requests": of.slow,
        "causes": causes.collect::<Vec<_>>(),
        "holders": holders.collect::<Vec<_>>(),
        "verdict": of.verdict,
    })
}

/// For `status`: what slows requests down, and did in the last minutes.
pub struct Stalls {
    under_way: UnderWay,
    kinds: Vec<OfKind>,
}

impl Stalls {
    /// Those of this moment, and of the last minutes.
    pub fn of(ledger: &Ledger, moment: Moment) -> Stalls {
        let since = Instant(moment.now.0.saturating_sub(STATUS_MINUTES * 60_000_000_000));
        let question = Question { volume: None, kind: None, since, slower_than_ns: STATUS_SLOW_NS };
        let Answer { under_way, kinds, .. } = explain(ledger, &question, moment);
        Stalls { under_way, kinds }
    }

    fn slow(&self) -> u64 {
        self.kinds.iter().map(|k| k.slow).sum()
    }

    /// What the slowest of this moment waits for, and what most of those before waited for, in one
    /// line; `None` if nothing is or was slow.
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
    pub fn to_json(&self) -> Value {
        let mut by: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for blamed in self.kinds.iter().flat_map(|k| &k.causes) {
            let reason = blamed.cause.what.reason;
            *by.entry((reason.layer().word(), reason.word())).or_default() += blamed.count;
        }
        let cause = |(what, requests): (&(&str, &str), &u64)| {
            let (layer, reason) = what;
            json!({ "layer": layer, "reason": reason, "requests": requests })
        };
        json!({
            "seconds": STATUS_MINUTES * 60,
            "slower_than_us": us(STATUS_SLOW_NS),
            "requests": self.slow(),
            "under_way": self.under_way.count,
            "longest_under_way_us": us(self.under_way.longest_ns),
            "causes": by.iter().map(cause).collect::<Vec<_>>(),
        })
    }
}

/// The kind of this name. Errors: a text for people.
pub fn kind_of(word: &str) -> Result<Kind, String> {
    let words = || Kind::ALL.map(Kind::word).join(", ");
    Kind::of_word(word)
        .ok_or_else(|| format!("no class of requests is called {word:?}: it is one of {}", words()))
}

#[cfg(test)]
mod tests {
    use ledger::{Moment, Reason, What};

    use super::*;

    /// A request that waited for a transfer of this device, or for the client.
    fn slow(ledger: &Ledger, kind: Kind, device: Option<&str>) {
        let at = |ms: u64| Moment::at(Instant(ms * 1_000_000));
        let story = ledger.begin(kind, 0, 4096, at(0));
        let what = match device {
            Some(name) => What { place: ledger.place(name), ..What::from(Reason::Transfer) },
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
        (0..40).for_each(|_| slow(&ledger, Kind::Write, None));
        for kind in [Kind::Read, Kind::Flush] {
            (0..30).for_each(|_| slow(&ledger, kind, Some("pool device b")));
        }
        let text = first_cause().unwrap_or_default();
        let said = "100 requests of the last 10 minutes took more than 20 ms; 60 waited mostly for \
                    a transfer of pool device b";
        assert_eq!(text, said);
        slow(&ledger, Kind::Read, Some("pool device a"));
        let text = first_cause().unwrap_or_default();
        let said = "; 61 waited mostly for devices, 60 of them for a transfer of pool device b";
        assert!(text.ends_with(said), "{text}");
        for _ in 0..2 {
            let story = ledger.begin(Kind::Other, 0, 0, Moment::at(Instant(0)));
            ledger.end(&story, Moment::at(Instant(20_500_000)));
        }
        let text = first_cause().unwrap_or_default();
        let before = "about 103 requests of the last 10 minutes took more";
        assert!(text.starts_with(before), "{text}");
        // What hangs is the first that is said.
        ledger.begin(Kind::Flush, 0, 0, Moment::at(Instant(0)));
        let text = first_cause().unwrap_or_default();
        let said = "under way now: 1 flush for 1.0 s; it waits mostly for a turn on the engine's \
                    thread; ";
        assert!(text.starts_with(said) && text.contains(before), "{text}");
        let shown = Stalls::of(&ledger, now).to_json();
        assert_eq!((&shown["under_way"], &shown["longest_under_way_us"]), (&json!(1), &json!(1e6)));
    }
}
