//! What is wrong, and what to do: from a server's status to sentences for people.
//!
//! Each state has a page in docs/operations.md, which [`Problem::page`] names.

mod answers;
pub mod expiry;
pub mod moves;

use std::time::{Duration, UNIX_EPOCH};

use base::{counted, shell_word};
use serde::Serialize;
use serde_json::Value;

use crate::units::{human_bytes, human_seconds, utc};

/// A pool is nearly full from this share on.
const NEARLY_FULL: f64 = 0.9;

/// A device that does not answer a request for so long is told of, in milliseconds: others than
/// broken ones are done by then.
const SILENT_MS: f64 = 10_000.0;

/// So many blocks of a device that were not what was written are worth a line.
const MUCH_ROT: u64 = 10;

/// Something that somebody should know of.
#[derive(Serialize, Debug, PartialEq)]
pub struct Problem {
    /// The section of docs/operations.md.
    pub page: &'static str,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub todo: String,
}

/// All that is wrong, the worst first.
pub fn problems(status: &Value) -> Vec<Problem> {
    let mut all = Vec::new();
    let pool = &status["pool"];
    of_pool(pool, &status["commit"], &mut all);
    of_cache(&status["cache"], &mut all);
    let ends = expiry::problems(&status["tls"]).into_iter();
    all.extend(ends.map(|(what, todo)| Problem { page: "tls", what, todo }));
    for device in pool["devices"].as_array().into_iter().flatten() {
        all.extend(of_device(device, list(&pool["moves"]["leaving"])));
        all.extend(of_silence(device, true));
        all.extend(of_writes(device));
        all.extend(of_source(device));
        all.extend(of_rot(device));
    }
    all.extend(list(&pool["spares"]["taken"]).iter().map(|one| of_taken(one, &pool["spares"])));
    let rests = moves::problem(&pool["moves"]).into_iter();
    all.extend(rests.map(|(page, what, todo)| Problem { page, what, todo }));
    all
}

fn add(all: &mut Vec<Problem>, page: &'static str, what: impl Into<String>, todo: &str) {
    all.push(Problem { page, what: what.into(), todo: todo.to_owned() });
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

const TWO_WRITERS: &str = "stop this server and the other one; see that one machine alone, by one \
    name alone, can reach each disk; then forebay check --data, and start one";

fn of_pool(pool: &Value, commit: &Value, all: &mut Vec<Problem>) {
    if let Some(trouble) = pool["trouble"].as_str() {
        let what = format!("the pool takes no more writes, reads go on: {trouble}");
        let (page, todo) = match pool["other_writer"] == true {
            true => ("two-writers", TWO_WRITERS),
            false => ("pool-failed", "see to the device, then restart forebay"),
        };
        add(all, page, what, todo);
    } else if number(&commit["failed"]) > 0 {
        let what = match number(&commit["failed"]) {
            1 => "a commit of the pool has failed".to_owned(),
            n => format!("{n} commits of the pool have failed"),
        };
        add(all, "commits-fail", what, "see the log for why; each was tried again");
    }
    all.extend(answers::problem(pool).map(at_risk));
    all.extend(of_lost(&pool["scrub"]));
    if pool["scrub"]["incomplete"] == true {
        let what = match number(&pool["scrub"]["passed_over"]) {
            0 => "an earlier scrub passed over parts of the pool".to_owned(),
            1 => "a scrub passed over a part of the pool".to_owned(),
            n => format!("a scrub passed over {n} parts of the pool"),
        };
        let what = what + ": what says where their blocks are has no good copy";
        let todo = "the log names them; stop the server and see what is damaged by forebay check; \
                    the line goes when forebay scrub start --wait passes over nothing";
        add(all, "scrub-incomplete", what, todo);
    }
    if let Some(seconds) = pool["scrub"]["paused_long_s"].as_u64() {
        let what = format!(
            "a scrub has been paused for {}; none begins by itself meanwhile",
            human_seconds(seconds)
        );
        add(all, "scrub-paused", what, "forebay scrub resume, or forebay scrub cancel");
    }
    let (used, reserved) = (number(&pool["used_bytes"]), number(&pool["reserved_bytes"]));
    let capacity = number(&pool["capacity_bytes"]);
    let share = (used + reserved) as f64 / capacity.max(1) as f64;
    let left = pool["available_bytes"].as_u64();
    if capacity > 0 && (share >= NEARLY_FULL || left == Some(0)) {
        let left = left.unwrap_or_else(|| capacity.saturating_sub(used + reserved));
        let what = format!(
            "the pool is {:.0} % full, {} are left for data",
            share * 100.0,
            human_bytes(left)
        );
        let todo = match number(&pool["capacity_limit_bytes"]) {
            most if most > 0 && capacity >= most => format!(
                "delete or trim volumes; devices give no more room, as the pool was made for {} at \
                 most: a new pool can have more",
                human_bytes(most)
            ),
            _ => "add a device (forebay device add), or delete or trim volumes".into(),
        };
        add(all, "pool-full", what, &todo);
    }
}

fn at_risk((what, todo): (String, String)) -> Problem {
    Problem { page: "answers-at-risk", what, todo }
}

/// Blocks without a good copy, those too that the list has no room for.
fn of_lost(scrub: &Value) -> Option<Problem> {
    let (listed, more) = (!list(&scrub["lost_blocks"]).is_empty(), scrub["more_lost"] == true);
    let mut todo = String::new();
    if listed {
        todo += "see which by forebay scrub status; restore them from a backup, or write them anew";
    }
    if listed && more {
        todo += "; and more: run a scrub when these are mended (forebay scrub start --wait)";
    } else if more {
        todo += "more are lost than were listed: forebay scrub start --wait finds which";
    }
    let what = "blocks of volumes have no good copy".to_owned();
    (listed || more).then_some(Problem { page: "blocks-lost", what, todo })
}

/// What is wrong with a volume, and what to do.
pub fn of_volume(volume: &Value, status: &Value) -> Option<&'static str> {
    let (name, id) = (&volume["name"], &volume["id"]);
    if list(&status["pool"]["scrub"]["lost_blocks"]).iter().any(|lost| lost["volume"] == *name) {
        return Some("has blocks without a good copy: forebay scrub status names them");
    }
    if list(&status["cache"]["kept"]).iter().any(|kept| kept["volume"] == *name) {
        return Some("is not written back: its mapping cannot be read, see forebay cache status");
    }
    let bad = list(&status["cache"]["bad_blocks"]);
    if !id.is_null() && bad.iter().any(|block| block[0] == *id) {
        return Some("has blocks that were lost in the cache: forebay cache status names them");
    }
    None
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// `leaving`: the devices that leave.
fn of_device(device: &Value, leaving: &[Value]) -> Option<Problem> {
    let id = device["id"].as_str().unwrap_or("?");
    let name = device["path"].as_str().filter(|path| !path.is_empty()).unwrap_or(id);
    let leaves = leaving.iter().any(|one| one == name);
    let (page, what, todo) = out_of_use(device["state"].as_str()?, &device["tried_again"])?;
    let (more, todo) = match leaves {
        true => ("; it leaves the pool when the others have what it held", LEAVES),
        false => ("", todo),
    };
    let spare = spare(&device["spare"]);
    let what = format!("{name} {what}{more}{spare}");
    Some(Problem { page, what, todo: todo.replace("NAME", &shell_word(name)) })
}

const LEAVES: &str = "wait, forebay device list shows how far that is; forebay device cancel lets \
                      it stay, then it can be replaced or taken into use again";

/// The page of a state, what it is, and what to do.
fn out_of_use(
    state: &str,
    tried_again: &Value,
) -> Option<(&'static str, &'static str, &'static str)> {
    let one = match (state, tried_again == false) {
        ("missing", _) => (
            "device-missing",
            "is missing",
            "plug it in, then forebay device online PATH; or forebay device replace NAME NEW",
        ),
        ("failed", false) => (
            "device-failed",
            "has failed and is out of use; it is tried again by itself within five minutes",
            "see to it; forebay device online NAME tries it at once; if it stays out: forebay \
             device replace NAME NEW",
        ),
        ("failed", true) => (
            "device-failed",
            "has failed and is out of use; it is not tried again by itself",
            "see to it, then forebay device online NAME; or forebay device replace NAME NEW",
        ),
        ("flapping", _) => (
            "device-flapping",
            "has failed again and again, and is left out",
            "forebay device replace NAME NEW; or see to it, then forebay device online NAME",
        ),
        ("stale", false) => (
            "device-stale",
            "was away while the pool was written; it is brought up to date by itself",
            "wait; if it stays out, the log says why",
        ),
        ("stale", true) => (
            "device-stale",
            "was away while the pool was written; it is not tried again by itself",
            "see in the log why, then forebay device online NAME; or forebay device replace NAME \
             NEW",
        ),
        ("offline", _) => (
            "device-offline",
            "was taken out of use",
            "forebay device online NAME, when it may be used again",
        ),
        _ => return None,
    };
    Some(one)
}

/// What is to be said of a spare for a device that is out of use.
fn spare(spare: &Value) -> String {
    match (spare.is_object(), spare["path"].as_str()) {
        (false, _) => String::new(),
        (true, None) => "; no spare in use has room for what it holds".into(),
        (true, Some(path)) => {
            let time = human_seconds(number(&spare["in_s"]));
            format!("; the spare {path} takes its place in {time}")
        }
    }
}

/// A spare has taken the place of a device.
fn of_taken(taken: &Value, spares: &Value) -> Problem {
    let text = |key: &str| taken[key].as_str().unwrap_or("?");
    let when = match number(&taken["at"]) {
        0 => String::new(),
        at => format!(" on {}", utc(UNIX_EPOCH + Duration::from_secs(at))),
    };
    let left = match number(&spares["left"]) {
        0 => "no spare is left".to_owned(),
        n => counted(n, "spare is left", "spares are left"),
    };
    let what =
        format!("the spare {} took the place of {}{when}; {left}", text("spare"), text("device"));
    let todo = "see to the old device; add another spare (forebay device add --spare PATH), and \
                the line goes, as it does with a restart";
    Problem { page: "spare-taken", what, todo: todo.into() }
}

/// A device that does not answer.
pub fn is_silent(device: &Value) -> bool {
    device["queue"]["silent_ms"].as_f64().unwrap_or(0.0) >= SILENT_MS
}

/// `in_pool`: others may have copies of what it has.
fn of_silence(device: &Value, in_pool: bool) -> Option<Problem> {
    let name = device["path"].as_str().filter(|_| is_silent(device))?;
    let ms = device["queue"]["silent_ms"].as_f64().unwrap_or(0.0);
    let what = format!(
        "{name} has not answered for {}; what needs it waits",
        human_seconds((ms / 1e3) as u64)
    );
    let mut todo =
        "see to it, its cable and its power, or the server that has it; what waits goes \
                    on when it answers; forebay explain says what waits"
            .to_owned();
    if in_pool {
        let offline = "; where other devices have all copies: forebay device offline ";
        todo += &format!("{offline}{} lets what comes later go on without it", shell_word(name));
    }
    Some(Problem { page: "device-silent", what, todo })
}

fn of_writes(device: &Value) -> Option<Problem> {
    let (why, name) = (device["write_trouble"].as_str()?, device["path"].as_str()?);
    let what = format!(
        "writes to {name} fail: {why}; clients get errors, unless a cache takes their writes"
    );
    let todo = format!(
        "free some space where it is, or see to the device; where other devices have all copies: \
         forebay device offline {}; the line goes when writes succeed again",
        shell_word(name)
    );
    Some(Problem { page: "writes-fail", what, todo })
}

fn of_source(device: &Value) -> Option<Problem> {
    let out = device["sits_out"].as_object()?;
    let name = device["path"].as_str()?;
    let left = human_seconds(number(&out["seconds_left"]));
    let todo = format!(
        "nothing at once, it is read again in {left}; if it comes again: forebay device replace \
         {} NEW",
        shell_word(name)
    );
    let (page, why) = match out["why"].as_str()? {
        "slow" => ("device-slow", "reads slowly beside the others"),
        _ => ("device-errs", "has many blocks that cannot be read"),
    };
    let what = format!("{name} {why}: it is read only where no other device has a good copy");
    Some(Problem { page, what, todo })
}

fn of_rot(device: &Value) -> Option<Problem> {
    let rot = &device["rot"];
    let (blocks, name) = (number(&rot["blocks"]), device["path"].as_str()?);
    let since = match number(&rot["since_s"]) {
        0 => "just now".to_owned(),
        seconds => format!("in the last {}", human_seconds(seconds)),
    };
    let what = format!("{name}: {blocks} blocks were not what was written, {since}");
    let todo = format!(
        "forebay scrub start --wait mends what can be; the line goes when a scrub finds none; if \
         it comes again, see to cables and memory, or: forebay device replace {} NEW",
        shell_word(name)
    );
    (blocks >= MUCH_ROT).then_some(Problem { page: "device-rots", what, todo })
}

fn of_cache(cache: &Value, all: &mut Vec<Problem>) {
    let Some(path) = cache["path"].as_str() else { return };
    let why = cache["error"].as_str();
    match cache["state"].as_str() {
        Some("failed") => add(
            all,
            "cache-failed",
            format!(
                "the cache {path} has failed with writes in it that are not in the pool{}",
                why.map(|e| format!(": {e}")).unwrap_or_default()
            ),
            "see to the device, then restart forebay: what was flushed is in the cache; if the \
             device is gone for good: forebay serve --forget-cache",
        ),
        Some("aside") => add(
            all,
            "cache-aside",
            format!(
                "the cache {path} is out of use; the pool has everything and goes on{}",
                why.map(|e| format!(": {e}")).unwrap_or_default()
            ),
            "see to the device, then forebay cache attach, or go on without",
        ),
        Some("serving") if why.is_some() => add(
            all,
            "cache-without-space",
            format!("the file system under the cache {path} is full: writes get errors"),
            "free space there; what clients write is taken again then",
        ),
        _ => {}
    }
    all.extend(answers::problem(cache).map(at_risk));
    all.extend(of_silence(cache, false));
    if cache["bad_blocks"].as_array().is_some_and(|bad| !bad.is_empty()) {
        let what = format!("blocks in the cache {path} were damaged before they came to the pool");
        let todo = "forebay status names them; restore them from a backup, or write them anew, and \
                    replace the cache's device";
        add(all, "cache-blocks-lost", what, todo);
    }
    for kept in list(&cache["kept"]) {
        let text = |key: &str| kept[key].as_str().unwrap_or("?");
        let name = text("volume");
        let what = format!(
            "{} of volume {name} in the cache cannot come to the pool: {}",
            counted(number(&kept["blocks"]), "block", "blocks"),
            text("why")
        );
        let todo = format!(
            "see to the devices; if what it says is lost for good: restore the volume from a \
             backup under another name, then forebay volume delete {}",
            shell_word(name)
        );
        add(all, "volume-unreachable", what, &todo);
    }
    let w = &cache["writeback"];
    if let Some(error) = w["error"].as_str() {
        let what = format!("write-back fails: {error}");
        add(all, "writeback-fails", what, "see to what it says; it is tried again by itself");
    }
    let seconds = |name: &str| w[name].as_f64().unwrap_or(0.0);
    let (lag, most) = (seconds("lag_seconds"), seconds("max_lag_seconds"));
    if most > 0.0 && lag > 2.0 * most {
        let what = format!(
            "the pool's image is {} old, it should be {} at most",
            human_seconds(lag as u64),
            human_seconds(most as u64)
        );
        let todo = "nothing if the load is a burst; else the pool is too slow for what is written: \
                    see forebay explain";
        add(all, "writeback-behind", what, todo);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn pages(status: &Value) -> Vec<&'static str> {
        problems(status).into_iter().map(|p| p.page).collect()
    }

    #[test]
    fn a_healthy_server_has_no_problem() {
        let status = json!({
            "pool": {
                "capacity_bytes": 100, "used_bytes": 80,
                "devices": [{ "path": "/a", "state": "online", "sits_out": null,
                    "rot": { "blocks": 9, "since_s": 5 } }],
                "scrub": { "state": "never", "lost_blocks": [], "incomplete": false,
                    "paused_long_s": null },
                "moves": { "state": "none" },
            },
            "commit": { "failed": 0 },
            "cache": { "path": "/c", "state": "serving", "bad_blocks": [],
                "writeback": { "lag_seconds": 30.0, "max_lag_seconds": 30.0, "error": null } },
        });
        assert_eq!(problems(&status), []);
        for strange in [Value::Null, json!([]), json!({ "pool": 5, "cache": { "path": "/c" } })] {
            assert_eq!(problems(&strange), []);
        }
    }

    #[test]
    fn a_pool_is_full_where_nothing_is_left_for_data() {
        let of = |used: u64, left: u64| {
            problems(&json!({ "pool": {
                "capacity_bytes": 100 << 20, "used_bytes": used << 20,
                "available_bytes": left << 20,
            } }))
        };
        assert_eq!(of(80, 1), []);
        let told = |used, left| of(used, left).into_iter().map(|p| p.what).collect::<Vec<_>>();
        assert_eq!(told(80, 0), ["the pool is 80 % full, 0 B are left for data"]);
        assert_eq!(told(95, 2), ["the pool is 95 % full, 2 MiB are left for data"]);
        let todo = |most: u64| {
            let pool = json!({ "capacity_bytes": 4u64 << 30, "used_bytes": 4u64 << 30,
                "capacity_limit_bytes": most });
            problems(&json!({ "pool": pool })).remove(0).todo
        };
        assert!(todo(5 << 30).starts_with("add a device"), "{}", todo(5 << 30));
        let most = "devices give no more room, as the pool was made for 4 GiB at most";
        assert!(todo(4 << 30).contains(most), "{}", todo(4 << 30));
    }

    #[test]
    fn lost_blocks_that_are_not_listed_are_told_too() {
        let todo = |lost_blocks: Value, more: bool| {
            let scrub = json!({ "lost_blocks": lost_blocks, "more_lost": more });
            problems(&json!({ "pool": { "scrub": scrub } })).into_iter().next().map(|p| p.todo)
        };
        assert_eq!(todo(json!([]), false), None);
        assert!(todo(json!([{}]), false).is_some_and(|t| !t.contains("and more")));
        assert!(todo(json!([{}]), true).is_some_and(|t| t.contains("and more: run a scrub")));
        assert!(todo(json!([]), true).is_some_and(|t| t.contains("forebay scrub start --wait")));
    }

    #[test]
    fn a_spare_is_promised() {
        let missing = |spare: Value| {
            let device = json!({ "path": "", "id": "x", "state": "missing", "spare": spare });
            problems(&json!({ "pool": { "devices": [device] } }))[0].what.clone()
        };
        assert_eq!(missing(Value::Null), "x is missing");
        let promise = missing(json!({ "path": "/s", "in_s": 300 }));
        assert_eq!(promise, "x is missing; the spare /s takes its place in 5 min");
        assert!(missing(json!({ "path": null, "in_s": 0 })).contains("no spare in use has room"));
    }

    #[test]
    fn a_spare_that_was_taken_is_told() {
        let told = |left: u64| {
            let taken = [json!({ "spare": "/s", "device": "x", "at": 86_400 })];
            let spares = json!({ "left": left, "taken_total": 1, "taken": taken });
            problems(&json!({ "pool": { "spares": spares } })).remove(0).what
        };
        let taken = "the spare /s took the place of x on 1970-01-02";
        assert!(told(0).starts_with(taken), "{}", told(0));
        assert!(told(0).ends_with("; no spare is left") && told(2).ends_with("2 spares are left"));
    }

    #[test]
    fn what_is_said_of_a_device_fits_what_will_happen() {
        let of = |state: &str, tried: bool, leaving: &[&str]| {
            let device = json!({ "path": "/a", "id": "x", "state": state, "tried_again": tried });
            let moves = json!({ "leaving": leaving });
            problems(&json!({ "pool": { "devices": [device], "moves": moves } })).remove(0)
        };
        for state in ["failed", "stale"] {
            assert!(of(state, true, &[]).what.contains("by itself"));
            let given_up = of(state, false, &[]);
            assert!(given_up.what.contains("not tried again by itself"), "{given_up:?}");
            assert!(given_up.todo.contains("forebay device online /a"), "{given_up:?}");
        }
        assert!(of("failed", true, &[]).todo.contains("forebay device online /a"));
        let blank = json!({ "path": "/a b", "state": "failed", "tried_again": false,
            "rot": { "blocks": MUCH_ROT, "since_s": 1 }, "write_trouble": "full",
            "sits_out": { "seconds_left": 1, "why": "slow" } });
        for one in [of_device(&blank, &[]), of_rot(&blank), of_writes(&blank), of_source(&blank)] {
            let Some(one) = one else { panic!("{blank}") };
            assert!(one.todo.contains("'/a b'") && one.what.contains("/a b"), "{one:?}");
        }
        let replaced = of("missing", false, &["/a"]);
        assert!(replaced.what.contains("leaves the pool"), "{replaced:?}");
        assert!(replaced.todo.contains("forebay device cancel"), "{replaced:?}");
        assert!(!replaced.todo.contains("NEW"), "{replaced:?}");
    }

    #[test]
    fn a_device_that_does_not_answer_is_told_of() {
        let of = |ms: f64| {
            let silent = |path: &str| json!({ "path": path, "queue": { "silent_ms": ms } });
            let mut cache = silent("/c");
            cache["state"] = json!("serving");
            problems(&json!({ "pool": { "devices": [silent("/a b")] }, "cache": cache }))
        };
        assert_eq!(of(9_999.0), []);
        let all = of(36_400.0);
        assert!(all.iter().all(|p| p.page == "device-silent"), "{all:?}");
        let told: Vec<&str> = all.iter().map(|p| p.what.as_str()).collect();
        let said =
            ["/c", "/a b"].map(|at| format!("{at} has not answered for 36 s; what needs it waits"));
        assert_eq!(told, said);
        let others = all.iter().map(|p| p.todo.contains("forebay device offline '/a b'"));
        assert_eq!(others.collect::<Vec<_>>(), [false, true], "a cache is no device of the pool");
    }

    /// Every state that can be shown has a page in docs/operations.md, and says what to type.
    #[test]
    fn every_problem_has_a_page() {
        let device = |state: &str, why: &str| {
            let out = (!why.is_empty()).then(|| json!({ "why": why, "seconds_left": 90 }));
            json!({ "path": "/a", "id": "x", "state": state, "sits_out": out })
        };
        let mut rots = device("online", "");
        rots["rot"] = json!({ "blocks": 10, "since_s": 7200 });
        let mut refuses = device("online", "");
        refuses["write_trouble"] = json!("no space");
        let mut silent = device("online", "");
        silent["queue"] = json!({ "silent_ms": 20_000.0 });
        let status = json!({
            "tls": { "refused": "it is gone", "files": [] },
            "pool": {
                "trouble": "flush: EIO", "capacity_bytes": 100, "used_bytes": 90,
                "devices": [
                    device("missing", ""), device("failed", ""), device("flapping", ""),
                    device("stale", ""), device("offline", ""), device("online", "slow"),
                    device("online", "errs"), rots, refuses, silent,
                ],
                "scrub": { "lost_blocks": [{}], "passed_over": 2, "incomplete": true,
                    "paused_long_s": 86_400 },
                "moves": { "state": "waiting", "trouble": "waiting for room" },
                "spares": { "left": 1, "taken": [{ "spare": "/s", "device": "x", "at": 9 }] },
            },
            "cache": { "path": "/c", "state": "failed", "bad_blocks": [[1, 2]],
                "kept": [{ "volume": "a b", "blocks": 1, "why": "lost" }],
                "writeback": { "lag_seconds": 90.0, "max_lag_seconds": 30.0, "error": "full" } },
        });
        let mut found = pages(&status);
        found.extend(pages(&json!({
            "pool": { "moves": { "state": "paused", "leaving": ["/a"] } },
            "commit": { "failed": 2 }, "cache": { "path": "/c", "state": "aside" }
        })));
        found.extend(pages(&json!({
            "cache": { "path": "/c", "state": "serving", "error": "write: full" },
            "pool": { "state": "online", "answers_at_risk": "/dev/shm: full" }
        })));
        let other = json!({ "pool": { "trouble": "another process", "other_writer": true } });
        found.extend(pages(&other));
        let lines = include_str!("../../../docs/operations.md").lines();
        let sections: BTreeSet<&str> =
            lines.filter_map(|l| l.strip_prefix("## `")?.strip_suffix('`')).collect();
        assert_eq!(found.len(), 29);
        let kept = problems(&status).into_iter().find(|p| p.page == "volume-unreachable").unwrap();
        assert_eq!(kept.what, "1 block of volume a b in the cache cannot come to the pool: lost");
        assert!(kept.todo.ends_with("forebay volume delete 'a b'"), "{}", kept.todo);
        let rots = problems(&status).into_iter().find(|p| p.page == "device-rots").unwrap().what;
        assert_eq!(rots, "/a: 10 blocks were not what was written, in the last 2 h 0 min");
        let now = json!({ "path": "/a", "rot": { "blocks": 10, "since_s": 0 } });
        assert!(of_rot(&now).unwrap().what.ends_with("what was written, just now"));
        let shown: BTreeSet<&str> = found.into_iter().collect();
        assert_eq!(shown, sections, "what is shown, and the sections of docs/operations.md");
    }
}
