//! `forebay scrub`: every copy of every block is read and verified, and what is bad is healed.

use std::thread::sleep;
use std::time::Duration;

use base::counted;
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::options::{ClientOptions, positive_size};
use crate::control::Request;
use crate::control::client::ask_patiently;
use crate::error::{DAMAGED, LOST, PARTIAL, Result};
use crate::output::{print, print_json};
use crate::terminal::interrupted::GoesOn;
use crate::terminal::progress::{Progress, Step};
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone, summary};
use crate::units::{human_bytes, human_seconds, unix_time};

/// How often `--wait` looks.
const LOOK: Duration = Duration::from_millis(500);

/// Verify every copy of everything in the pool, and heal what is bad
#[derive(Args, Debug)]
pub struct ScrubCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Start a scrub; it runs in the background and goes on after a restart
    Start {
        /// Read this device only
        #[arg(long)]
        device: Option<String>,
        /// Bytes a second to read of each copy at most, such as 100M
        #[arg(long, value_parser = positive_size)]
        rate: Option<u64>,
        /// Show how far it is until it has ended; exit with 3 if something is lost,
        /// with 5 if a device of the pool was not there
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Have the scrub rest until it is resumed
    Pause {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Let a paused scrub go on
    Resume {
        /// Bytes a second to read of each copy at most, such as 100M
        #[arg(long, value_parser = positive_size)]
        rate: Option<u64>,
        /// Show how far it is until it has ended; exit with 3 if something is lost,
        /// with 5 if a device of the pool was not there
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// End the scrub; what it has healed stays healed
    Cancel {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Show how far the scrub is, or how the last one ended
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
}

impl ScrubCommand {
    pub fn run(self) -> Result<u8> {
        let (client, request, wait) = match self.action {
            Action::Start { device, rate, wait, client } => {
                (client, Request::ScrubStart { device, rate }, wait)
            }
            Action::Pause { client } => (client, Request::ScrubPause {}, false),
            Action::Resume { rate, wait, client } => (client, Request::ScrubResume { rate }, wait),
            Action::Cancel { client } => (client, Request::ScrubCancel {}, false),
            Action::Status { json, client } => {
                let status = client.ask(&Request::ScrubStatus {})?;
                if json {
                    print_json(&status)?
                } else {
                    print(&text(&status, &Look::of_stdout()))?
                }
                return Ok(0);
            }
        };
        let mut status = client.ask(&request)?;
        if wait {
            let _told = GoesOn::without_us(
                "forebay scrub status shows how far it is, and forebay scrub cancel ends it",
            );
            let mut shown = Progress::new(false);
            while runs(&status) {
                shown.show(&step(&status));
                #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
                sleep(LOOK);
                status = ask_patiently(&client.socket(), &Request::ScrubStatus {})?;
            }
        }
        print(&text(&status, &Look::of_stdout()))?;
        Ok(if wait { exit_status(&status) } else { 0 })
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// True if it runs, in the pool or in the cache.
fn runs(s: &Value) -> bool {
    s["state"] == "running" || s["cache"]["state"] == "running"
}

/// True if blocks are lost, or parts of the pool could not be verified.
fn has_lost(s: &Value) -> bool {
    let lost =
        number(&s["lost"]) + number(&s["cache"]["lost"]) > 0 || !list(&s["lost_blocks"]).is_empty();
    lost || s["more_lost"] == true || s["incomplete"] == true
}

/// The exit status of `--wait`.
fn exit_status(s: &Value) -> u8 {
    // A scrub of one device has no part of the cache's: that is of one before.
    let cache = Some(&s["cache"]["state"]).filter(|_| s["device"].is_null());
    let of_cache = matches!(cache.and_then(Value::as_str), Some("done" | "never") | None);
    let whole = s["away"] != true && s["state"] == "done" && of_cache;
    match whole {
        _ if has_lost(s) => LOST,
        _ if number(&s["bad"]) > number(&s["healed"]) => DAMAGED,
        true => 0,
        // It was paused or cancelled, or something was not there.
        false => PARTIAL,
    }
}

/// How far it is. What of the cache outlasts the pool is shown by itself.
fn step(s: &Value) -> Step {
    if s["state"] != "running" && runs(s) {
        return Step {
            what: "scrub of the cache".into(),
            done: number(&s["cache"]["verified_bytes"]),
            total: number(&s["cache"]["all_bytes"]),
            ..Step::default()
        };
    }
    Step {
        what: "scrub".into(),
        done: number(&s["verified_bytes"]),
        total: number(&s["all_bytes"]),
        rate: Some(number(&s["rate"])).filter(|rate| *rate > 0),
        left_s: s["left_s"].as_u64(),
        note: errors(s).trim_start_matches([',', ';', ' ']).to_owned(),
        ..Step::default()
    }
}

/// Which share of the bytes is verified.
fn share(s: &Value) -> String {
    let (done, all) = (number(&s["verified_bytes"]), number(&s["all_bytes"]));
    // Where there is nothing to verify, all of it is.
    let percent = if all == 0 { 100.0 } else { (done as f64 * 100.0 / all as f64).min(100.0) };
    format!("{percent:.1}%, {} of {}", human_bytes(done), human_bytes(all))
}

/// What the cache's part does, and what it has found; `None`: there was none.
fn of_cache(part: &Value) -> Option<String> {
    let state = part["state"].as_str().filter(|state| *state != "never")?;
    let mut text = format!("{state}, {}", share(part));
    if number(&part["dropped"]) > 0 {
        let dropped = number(&part["dropped"]);
        text += &format!("; {dropped} bad and dropped, the pool has them");
    }
    if number(&part["lost"]) > 0 {
        let lost = number(&part["lost"]);
        text += &format!("; {lost} LOST, forebay cache status names them");
    }
    Some(text)
}

/// How far it is, in a line.
fn progress(s: &Value) -> String {
    let mut text = share(s);
    if number(&s["rate"]) > 0 {
        text += &format!(", {}/s", human_bytes(number(&s["rate"])));
    }
    if let Some(left) = s["left_s"].as_u64() {
        text += &format!(", {} left", human_seconds(left));
    }
    text + &errors(s)
}

/// What was bad, behind a comma or a semicolon.
fn errors(s: &Value) -> String {
    let names = ["bad", "healed", "lost", "passed_over"];
    let [bad, healed, lost, passed] = names.map(|name| number(&s[name]));
    if bad + lost == 0 {
        return ", no errors".into();
    }
    let mut text = format!(
        "; {}, {healed} healed",
        counted(bad, "bad copy of a block", "bad copies of blocks")
    );
    if lost > passed {
        text += &format!(", {} LOST", counted(lost - passed, "block", "blocks"));
    }
    match passed {
        0 => {}
        1 => text += ", 1 part of the pool PASSED OVER",
        _ => text += &format!(", {passed} parts of the pool PASSED OVER"),
    }
    text
}

/// What `forebay status` says of it and of the cache's part; `None`: nothing.
pub fn line(s: &Value, part: &Value) -> Option<String> {
    let is_under_way = part["state"] == "running" || part["state"] == "paused";
    let cache = of_cache(part).filter(|_| is_under_way);
    let cache = cache.map(|text| format!("the cache: {text}"));
    let all: Vec<String> = of_pool(s).into_iter().chain(cache).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn of_pool(s: &Value) -> Option<String> {
    let known = !list(&s["lost_blocks"]).is_empty() || s["more_lost"] == true;
    let lost = match (known, &s["incomplete"]) {
        (false, Value::Bool(true)) => {
            "; NOT\u{a0}ALL\u{a0}WAS\u{a0}VERIFIED, see forebay scrub status"
        }
        (false, _) => "",
        _ => "; BLOCKS\u{a0}ARE\u{a0}LOST, see forebay scrub status",
    };
    match s["state"].as_str()? {
        "never" if lost.is_empty() => None,
        "running" => Some(format!("{}{lost}", progress(s))),
        "paused" => Some(format!("paused at {}{lost}", progress(s))),
        state => {
            let away = if s["away"] == true { "; a device of the pool was not there" } else { "" };
            Some(format!("{state} {}{}{away}{lost}", at(&s["ended_at"]), errors(s)))
        }
    }
}

fn at(v: &Value) -> String {
    unix_time(number(v))
}

fn text(s: &Value, look: &Look) -> String {
    let state = s["state"].as_str().unwrap_or("?");
    let mut rows = vec![("scrub", state.to_owned())];
    if let Some(device) = s["device"].as_str() {
        rows.push(("device", format!("{device} alone")));
    }
    if state != "never" {
        rows.push(("started", at(&s["started_at"])));
        if number(&s["ended_at"]) > 0 {
            rows.push(("ended", at(&s["ended_at"])));
        }
        rows.push(("verified", progress(s)));
    }
    if s["away"] == true {
        let said = "what a device holds that was out of use: this scrub does not count as \
                    complete; start one when all devices are back";
        rows.push(("not verified", said.to_owned()));
    }
    rows.extend(of_cache(&s["cache"]).map(|text| ("cache", text)));
    if number(&s["completed_at"]) > 0 {
        rows.push(("last complete", at(&s["completed_at"])));
    }
    if let Some(rate) = s["rate_limit"].as_u64().filter(|rate| *rate > 0) {
        rows.push(("limit", format!("{}/s of each copy", human_bytes(rate))));
    }
    let mut out = summary(rows, look);
    out += &bad_copies(list(&s["found"]), look);
    out += &found_earlier(s, look);
    out += &passed_over(s, look);
    out += &lost_blocks(list(&s["lost_blocks"]), look);
    out + &more_lost(s, look)
}

fn bad_copies(found: &[Value], look: &Look) -> String {
    if found.is_empty() {
        return String::new();
    }
    let device = Column::shortened("DEVICE", 20);
    let mut table =
        Table::new(&[device, Column::new("WHAT"), Column::new("BAD"), Column::new("HEALED")]);
    for f in found {
        let word = |name: &str| Cell::from(f[name].as_str().unwrap_or("?"));
        let count = |name: &str| Cell::from(number(&f[name]).to_string());
        table.add([word("device"), word("kind"), count("bad"), count("healed")]);
    }
    format!("\n{}", table.text(look))
}

/// That it is not known of all bad copies where they were, as the server has started since.
fn found_earlier(s: &Value, look: &Look) -> String {
    let known: u64 = list(&s["found"]).iter().map(|f| number(&f["bad"])).sum();
    let more = number(&s["bad"]).saturating_sub(known);
    if more == 0 {
        return String::new();
    }
    let said = format!(
        "{} found before the server started: on which device is not known any more.",
        counted(more, "bad copy was", "bad copies were")
    );
    format!("\n{}", paragraph((Tone::Plain, ""), &said, look))
}

/// What it means that parts were passed over, and what to type.
fn passed_over(s: &Value, look: &Look) -> String {
    if s["incomplete"] != true {
        return String::new();
    }
    let which = match number(&s["passed_over"]) {
        0 => "an earlier scrub passed over parts of the pool",
        _ => "it passed over parts of the pool",
    };
    let said = format!(
        "{which}: what says where their blocks are has no good copy, so these blocks are not \
         verified. The log names the parts. Stop the server, and forebay check says what is \
         damaged."
    );
    format!("\n{}", paragraph((Tone::Bad, ""), &said, look))
}

fn lost_blocks(lost: &[Value], look: &Look) -> String {
    if lost.is_empty() {
        return String::new();
    }
    let volume = Column::shortened("VOLUME", 20);
    let mut table = Table::new(&[volume, Column::new("OFFSET"), Column::new("BYTES")]);
    for l in lost {
        let count = |name: &str| Cell::from(number(&l[name]).to_string());
        let volume = Cell::new(Tone::Bad, l["volume"].as_str().unwrap_or("?"));
        table.add([volume, count("offset"), count("length")]);
    }
    let said = "no copy of these is good; reads of them fail until they are written again:";
    format!("\n{said}\n{}", table.text(look))
}

/// What it means that more is lost than the list names, and what to type.
fn more_lost(s: &Value, look: &Look) -> String {
    if s["more_lost"] != true {
        return String::new();
    }
    let said = match list(&s["lost_blocks"]) {
        [] => "More blocks are lost than were listed here: forebay scrub start --wait finds which.",
        _ => {
            "And more, for which the list has no room: run a scrub when these are mended (forebay \
             scrub start --wait)."
        }
    };
    format!("\n{}", paragraph((Tone::Bad, ""), said, look))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = Look { columns: 120, colour: false };

    #[test]
    fn parts_that_were_passed_over_are_no_success() {
        let mut s = serde_json::json!({
            "state": "done", "ended_at": 86_400, "bad": 4, "healed": 0, "lost": 3,
            "passed_over": 2, "incomplete": true, "lost_blocks": [],
        });
        assert!(has_lost(&s));
        assert_eq!(
            errors(&s),
            "; 4 bad copies of blocks, 0 healed, 1 block LOST, 2 parts of the pool PASSED OVER"
        );
        assert!(line(&s, &Value::Null).is_some_and(|l| l.contains("see forebay scrub status")));
        let shown = text(&s, &LOOK);
        assert!(
            shown.contains("it passed over parts") && shown.contains("forebay check"),
            "{shown}"
        );
        for name in ["bad", "lost", "passed_over"] {
            s[name] = 0.into();
        }
        assert!(has_lost(&s) && text(&s, &LOOK).contains("an earlier scrub passed over"));
        s["incomplete"] = false.into();
        assert!(!has_lost(&s) && !text(&s, &LOOK).contains("passed over"));
    }

    #[test]
    fn a_scrub_without_a_device_says_so() {
        let mut s = serde_json::json!({ "state": "done", "ended_at": 9, "away": true });
        assert_eq!((has_lost(&s), exit_status(&s)), (false, PARTIAL));
        assert!(text(&s, &LOOK).contains("does not count as complete"));
        assert!(line(&s, &Value::Null).is_some_and(|l| l.contains("was not there")));
        s["lost"] = 1.into();
        assert_eq!(exit_status(&s), LOST);
        s["away"] = false.into();
        s["lost"] = 0.into();
        assert_eq!(exit_status(&s), 0);
        for (part, state) in [("pool", "paused"), ("pool", "cancelled"), ("cache", "cancelled")] {
            let mut s = s.clone();
            match part {
                "pool" => s["state"] = state.into(),
                _ => s["cache"] = serde_json::json!({ "state": state }),
            }
            assert_eq!(exit_status(&s), PARTIAL, "{part} {state}");
        }
        let alone = serde_json::json!({
            "state": "done", "device": "/a", "cache": { "state": "cancelled" },
        });
        assert_eq!(exit_status(&alone), 0);
        let bad = serde_json::json!({ "state": "done", "bad": 3, "healed": 2 });
        assert_eq!(exit_status(&bad), DAMAGED);
        assert!(!text(&s, &LOOK).contains("complete"));
    }

    #[test]
    fn what_was_found_before_a_start_says_so() {
        let mut s = serde_json::json!({ "state": "done", "bad": 3, "healed": 3, "found": [] });
        let said = "3 bad copies were found before the server started: on which device is not";
        assert!(text(&s, &LOOK).contains(said), "{}", text(&s, &LOOK));
        let found = serde_json::json!({ "device": "/a", "kind": "data", "bad": 2, "healed": 2 });
        s["found"] = serde_json::json!([found.clone()]);
        assert!(text(&s, &LOOK).contains("1 bad copy was found before the server started"));
        s["found"] = serde_json::json!([found.clone(), found]);
        assert!(!text(&s, &LOOK).contains("before the server started"));
    }

    #[test]
    fn a_list_that_is_cut_says_so() {
        let mut s = serde_json::json!({
            "state": "done", "more_lost": true,
            "lost_blocks": [{ "volume": "v", "offset": 8192, "length": 4096 }],
        });
        assert!(text(&s, &LOOK).contains("And more, for which the list has no room"));
        s["lost_blocks"] = serde_json::json!([]);
        assert!(has_lost(&s) && line(&s, &Value::Null).is_some_and(|l| l.contains("LOST")));
        assert!(text(&s, &LOOK).contains("forebay scrub start --wait"));
        s["more_lost"] = false.into();
        assert!(!has_lost(&s) && !text(&s, &LOOK).contains("More"));
    }

    #[test]
    fn the_part_of_the_cache_is_shown_and_waited_for() {
        let part = |state: &str| {
            serde_json::json!({ "state": state, "verified_bytes": 1u64 << 30,
                "all_bytes": 2u64 << 30, "dropped": 3, "lost": 1 })
        };
        let mut s = serde_json::json!({ "state": "done", "ended_at": 9, "cache": part("running") });
        assert!(runs(&s) && has_lost(&s));
        assert_eq!((step(&s).what, step(&s).done), ("scrub of the cache".into(), 1 << 30));
        let shown = text(&s, &LOOK);
        for part in ["running, 50.0%, 1 GiB of 2 GiB", "3 bad and dropped", "1 LOST"] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(line(&s, &part("running")).is_some_and(|l| l.contains("the cache: running")));
        assert!(line(&s, &part("done")).is_some_and(|l| !l.contains("the cache")));
        s["cache"] = serde_json::json!({ "state": "done", "verified_bytes": 0, "all_bytes": 0 });
        assert!(text(&s, &LOOK).contains("done, 100.0%, 0 B of 0 B"));
        s["cache"] = part("paused");
        assert!(!runs(&s));
        s["cache"] = Value::Null;
        assert!(!runs(&s) && !has_lost(&s) && !text(&s, &LOOK).contains("cache"));
    }

    #[test]
    fn it_reads_as_a_person_would_expect() {
        let running = serde_json::json!({
            "state": "running", "device": "/a", "started_at": 86_400, "ended_at": 0,
            "verified_bytes": 1u64 << 30, "all_bytes": 4u64 << 30, "rate": 256 << 20, "left_s": 12,
            "rate_limit": 1 << 20, "bad": 3, "healed": 2, "lost": 1, "completed_at": 60,
            "found": [{ "device": "/a", "kind": "data", "bad": 3, "healed": 2 }],
            "lost_blocks": [{ "volume": "v", "offset": 8192, "length": 4096 }],
        });
        let shown = text(&running, &LOOK);
        for part in [
            "running",
            "/a alone",
            "1970-01-02",
            "25.0%, 1 GiB of 4 GiB, 256 MiB/s",
            "12 s left",
            "3 bad copies of blocks, 2 healed, 1 block LOST",
            "1 MiB/s of each copy",
            "data",
            "v       8192    4096",
            "no copy of these is good",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        let step = step(&running);
        assert_eq!((step.done, step.total, step.left_s), (1 << 30, 4 << 30, Some(12)));
        assert_eq!(step.note, "3 bad copies of blocks, 2 healed, 1 block LOST");
        assert!(line(&running, &Value::Null).is_some_and(|l| l.contains("LOST")));
        let done = serde_json::json!({ "state": "done", "ended_at": 86_400 });
        assert!(
            line(&done, &Value::Null)
                .is_some_and(|l| l.contains("done 1970-01-02") && l.contains("no errors"))
        );
        assert_eq!(line(&serde_json::json!({ "state": "never" }), &Value::Null), None);
        assert!(
            text(&Value::Null, &LOOK).contains("scrub")
                && line(&Value::Null, &Value::Null).is_none()
        );
    }
}
