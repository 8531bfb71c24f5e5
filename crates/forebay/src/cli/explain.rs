//! `forebay explain`: why requests were slow.

use std::time::Duration;

use clap::Args;
use model::explain::{ExplainedClass, Explanation, RequestStory, UnderWay, WaitPart};
use model::request;
use model::wait::RequestClass;

use crate::cli::options::ClientOptions;
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::serve::explain::kind_of;
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::{human_seconds, human_us, parse_duration};

/// Explain why requests are slow, and were in the last minutes
///
/// Shows what is under way for long, how long requests took that have ended, what that time was
/// made of, whose work they waited for, and the slowest requests with their whole story. A request
/// counts from the moment at which the server reads its header until its reply is sent. The server
/// reads none while a connection has as many in flight as it may, or its volume waits for its
/// share: what waits in the socket meanwhile is not counted.
#[derive(Args, Debug)]
pub struct Explain {
    /// Requests of this volume only; of one that was deleted, the number that is said of it
    #[arg(long, add = crate::cli::candidates::volumes())]
    volume: Option<String>,
    /// Requests of this class only: read, write, flush, discard, other
    #[arg(long, value_parser = kind_of)]
    class: Option<RequestClass>,
    /// Time to look back, at most 1h; whole minutes are counted, also the one it begins in
    #[arg(long, default_value = "10m", value_parser = since)]
    since: Duration,
    /// Slow is what took longer; told apart to an eighth of that
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    slower_than: Duration,
    #[command(flatten)]
    client: ClientOptions,
}

/// The time below which the text says that whole minutes are counted: a minute is a large part of
/// it.
const FEW_MINUTES: Duration = Duration::from_secs(300);
/// The time for which requests are kept.
const KEPT: Duration = Duration::from_secs(3600);

fn since(text: &str) -> std::result::Result<Duration, String> {
    match parse_duration(text)? {
        time if time > KEPT => Err("the server keeps the requests of one hour: at most 1h".into()),
        time => Ok(time),
    }
}

impl Explain {
    pub fn run(self) -> Result<()> {
        let Explain { volume, class, since, slower_than, client } = self;
        let request = request::Explain {
            volume,
            class,
            since_seconds: since.as_secs().max(1),
            slower_than_us: slower_than.as_micros() as u64,
        };
        let answer = client.ask(request)?;
        if is_json() {
            print_json(&answer)
        } else {
            print(&text(&answer, since, &Look::of_stdout()))
        }
    }
}

fn text(answer: &Explanation, since: Duration, look: &Look) -> String {
    let classes = &answer.classes;
    let mut out = under_way(&answer.under_way, look);
    if classes.is_empty() {
        return out + "no request has ended in that time\n";
    }
    if since < FEW_MINUTES {
        let text = format!(
            "Whole minutes are counted: these are requests of the last {}, and of up to a minute \
             before.",
            human_seconds(since.as_secs().max(1))
        );
        out += &format!("{}\n", paragraph(Tone::Plain, "", &text, look));
    }
    for class in classes {
        let verdict = format!("{}: {}", class.class, class.verdict);
        out += &paragraph(Tone::Plain, "", &verdict, look);
        out += &format!("\n{}", percentiles(class, look));
        let holders: Vec<String> = class
            .holders
            .iter()
            .map(|h| {
                let share = h.share * 100.0;
                format!("{} {share:.1} % ({})", h.name, human_us(h.us))
            })
            .collect();
        if !holders.is_empty() {
            let text = format!(
                "of the time that slow ones took they waited for the work of: {}",
                holders.join(", ")
            );
            out += &paragraph(Tone::Plain, "  ", &text, look);
        }
        out.push('\n');
    }
    if !answer.slowest.is_empty() {
        out += "the slowest requests:\n";
        for slow in &answer.slowest {
            let ago = human_seconds(slow.ended_seconds_ago);
            out += &story(&slow.story, &format!("{ago} ago"), look);
        }
    } else if classes.iter().any(|class| class.slow_requests > 0) {
        let text = "of these slow requests no story is told: they ended before the time that was \
                    asked for, in the minute in which it begins";
        out += &paragraph(Tone::Plain, "", text, look);
    }
    out
}

/// The parts that matter: at least a fiftieth of the whole.
fn parts(of: &[WaitPart]) -> String {
    let mut by: Vec<(String, f64)> = Vec::new();
    for WaitPart { wait, us } in of {
        let (stage, reason) = (wait.stage, wait.reason);
        let what = if stage == reason { stage.to_string() } else { format!("{stage}/{reason}") };
        match by.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += us,
            None => by.push((what, *us)),
        }
    }
    by.sort_by(|a, b| b.1.total_cmp(&a.1));
    let all: f64 = by.iter().map(|(_, us)| us).sum();
    let told = by.iter().filter(|(_, us)| us * 50.0 >= all);
    told.map(|(what, us)| format!("{what} {}", human_us(*us))).collect::<Vec<_>>().join(", ")
}

fn percentiles(class: &ExplainedClass, look: &Look) -> String {
    let mut table =
        Table::new(&[Column::new("  OF ALL"), Column::new("UP TO"), Column::wrapped("MADE OF")]);
    for p in &class.percentiles {
        let share = format!("  {} %", p.share * 100.0);
        table.add([share, human_us(p.us), parts(&p.mean_parts)].map(Cell::from));
    }
    table.text(look)
}

/// The requests that hang now.
fn under_way(now: &UnderWay, look: &Look) -> String {
    let Some(text) = &now.text else { return String::new() };
    let mut out = paragraph(Tone::Warn, "", text, look);
    now.oldest.iter().for_each(|one| out += &story(one, "not ended yet", look));
    out + "\n"
}

/// One request; `when`: when it ended.
fn story(of: &RequestStory, when: &str, look: &Look) -> String {
    let volume = match (&of.volume, of.volume_id) {
        (Some(name), _) => format!(" of {name}"),
        (None, Some(id)) => format!(" of a deleted volume ({id})"),
        (None, None) => String::new(),
    };
    let text = format!(
        "{} {}{volume}, {} bytes at {}, {when}:",
        human_us(of.duration_us),
        of.class,
        of.length_bytes,
        of.offset,
    );
    let mut out = paragraph(Tone::Plain, "  ", &text, look);
    for part in of.parts.iter().take(6) {
        let head = format!("    {:>10}  ", human_us(part.part.us));
        out += &paragraph(Tone::Plain, &head, &part.text, look);
    }
    out
}

#[cfg(test)]
mod tests {
    use model::explain::{ExplainedHolder, ExplainedShare, SlowRequest, Wait, WaitPartInWords};
    use model::wait::Reason;

    use super::*;

    const LOOK: Look = Look { columns: 100, colour: false };

    #[test]
    fn no_more_than_an_hour_is_kept() {
        assert_eq!(since("60m"), Ok(KEPT));
        assert!(since("2h").unwrap_err().contains("at most 1h"));
    }

    #[test]
    fn people_read_it() {
        let part =
            |stage, reason, us| WaitPart { wait: Wait { stage, reason, ..Wait::default() }, us };
        let commit = part(Reason::Commit, Reason::DeviceFlush, 30_000.0);
        let turn = part(Reason::Turn, Reason::Turn, 12.0);
        let told = WaitPartInWords {
            part: commit.clone(),
            text: "a commit of the pool, which waited for a flush of pool device sda".into(),
        };
        let class = ExplainedClass {
            class: RequestClass::Flush,
            verdict: "All is said.".into(),
            requests: 3,
            percentiles: vec![ExplainedShare {
                share: 0.999,
                us: 31_000.0,
                mean_parts: vec![commit, turn],
            }],
            holders: vec![ExplainedHolder { name: "commit".into(), us: 27_900.0, share: 0.9 }],
            ..ExplainedClass::default()
        };
        let slowest = SlowRequest {
            story: RequestStory {
                volume: Some("a".into()),
                class: RequestClass::Flush,
                duration_us: 31_000.0,
                parts: vec![told.clone()],
                ..RequestStory::default()
            },
            ended_seconds_ago: 61,
        };
        let answer =
            Explanation { classes: vec![class], slowest: vec![slowest], ..Explanation::default() };
        let text = text(&answer, KEPT, &LOOK);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "flush: All is said.");
        assert!(lines[3].contains("99.9 %") && lines[3].contains("pool_commit/device_flush"));
        assert!(!text.contains("engine_turn"), "{text}");
        assert!(text.contains("they waited for the work of: commit 90.0 % (27.9 ms)"), "{text}");
        assert!(text.contains("which waited for a flush of pool device sda"), "{text}");
        assert_eq!(
            super::text(&Explanation::default(), KEPT, &LOOK),
            "no request has ended in that time\n"
        );
        let oldest = RequestStory {
            volume_id: Some(3),
            class: RequestClass::Write,
            offset: 8,
            length_bytes: 4096,
            duration_us: 36e6,
            parts: vec![told],
            ..RequestStory::default()
        };
        let under_way = UnderWay {
            text: Some("under way now: 1 write".into()),
            oldest: vec![oldest],
            ..UnderWay::default()
        };
        let now = Explanation { under_way, ..Explanation::default() };
        let now = super::text(&now, KEPT, &LOOK);
        let said = "under way now: 1 write\n  36.0 s write of a deleted volume (3), 4096 bytes at \
                    8, not ended yet:\n";
        assert!(now.starts_with(said) && now.ends_with("\n\nno request has ended in that time\n"));
        let short = super::text(&answer, Duration::from_secs(1), &LOOK);
        let minutes = "these are requests of the last 1 s, and of up to a minute before.\n\nflush:";
        assert!(short.contains(minutes) && short.ends_with(&text), "{short}");
    }
}
