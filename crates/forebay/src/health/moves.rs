//! Moves that do not get on: as something is in their way, or as they are paused.

use base::counted;
use serde_json::Value;

/// What is wrong with moves, if something is: the page, what it is, and what to do.
pub fn problem(moves: &Value) -> Option<(&'static str, String, String)> {
    match moves["state"].as_str()? {
        "waiting" => {
            let why = moves["trouble"].as_str().unwrap_or("it is not known for what");
            let what = format!("chunks that should move wait: {why}");
            Some(("moves-wait", what, todo(moves)))
        }
        "paused" => paused(moves),
        _ => None,
    }
}

/// A pause in which the pool has fewer copies than it should, or keeps a device that is to leave.
fn paused(moves: &Value) -> Option<(&'static str, String, String)> {
    let (behind, leaving) = (names(&moves["behind"]), names(&moves["leaving"]));
    let mut rests = Vec::new();
    if !behind.is_empty() {
        rests.push(format!("{} not brought up to date", are(&behind)));
    }
    if !leaving.is_empty() {
        rests.push(format!("{} not emptied", are(&leaving)));
    }
    if !moves["fewest_copies"].is_null() {
        rests.push("block groups get no more copies".into());
    }
    let what = format!("moves are paused: {}", rests.join(", "));
    let todo = "forebay device resume lets them go on".into();
    (!rests.is_empty()).then_some(("moves-paused", what, todo))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn are(names: &[&str]) -> String {
    names.join(", ") + if names.len() == 1 { " is" } else { " are" }
}

/// What to do where moves wait: for what is in their way, or to give them up.
pub fn todo(moves: &Value) -> String {
    let why = moves["trouble"].as_str().unwrap_or_default();
    let help = match why.strip_prefix("waiting for ").unwrap_or(why) {
        // Paths come behind these words, so these words come first.
        what if what.starts_with("space under ") => "free some space there",
        what if what.starts_with("writes to ") => "see to that device, and to what the log says",
        _ if why.contains("room") => "add a device with room (forebay device add PATH)",
        _ if why.contains("went away") => "see to the device that went away",
        _ => "see to what the log says",
    };
    let mut ways = vec![help.to_owned()];
    let leaving = names(&moves["leaving"]);
    if !leaving.is_empty() {
        ways.push(format!("let {} stay (forebay device cancel)", leaving.join(", ")));
    } else if moves["balancing"] == true {
        ways.push("end the rebalance (forebay device cancel)".into());
    }
    if let Some(n) = moves["fewest_copies"].as_u64() {
        let copies = counted(n, "copy", "copies");
        ways.push(format!("go back to {copies} (forebay pool set copies={n})"));
    }
    ways.join(", or ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A removal is given up by another command than a higher number of copies.
    #[test]
    fn moves_that_wait_are_given_up_by_the_right_command() {
        let todo = |moves: Value| super::todo(&moves);
        let room = "waiting for a device with room";
        let removal = todo(json!({ "trouble": room, "leaving": ["/a"], "fewest_copies": null }));
        let add = "add a device with room (forebay device add PATH)";
        assert_eq!(removal, format!("{add}, or let /a stay (forebay device cancel)"));
        let copies = todo(json!({ "trouble": room, "leaving": [], "fewest_copies": 1 }));
        assert_eq!(copies, format!("{add}, or go back to 1 copy (forebay pool set copies=1)"));
        let full = todo(json!({ "trouble": "waiting for space under /room/b", "leaving": ["/a"] }));
        assert_eq!(full, "free some space there, or let /a stay (forebay device cancel)");
        let refused = todo(json!({ "trouble": "waiting for writes to /b to succeed (see log)" }));
        assert_eq!(refused, "see to that device, and to what the log says");
        let both = todo(json!({ "trouble": room, "leaving": ["/a"], "fewest_copies": 2 }));
        assert!(both.contains("device cancel") && both.contains("copies=2"), "{both}");
        let balance = todo(json!({ "trouble": "waiting for a readable copy (see log)",
            "balancing": true }));
        assert_eq!(
            balance,
            "see to what the log says, or end the rebalance (forebay device cancel)"
        );
    }

    #[test]
    fn a_pause_is_told_where_copies_or_a_removal_rest() {
        let told = |moves: Value| problem(&moves).map(|(page, what, _)| (page, what));
        let rests = |what: &str| Some(("moves-paused", format!("moves are paused: {what}")));
        let behind = json!({ "state": "paused", "behind": ["/b"], "leaving": [] });
        assert_eq!(told(behind), rests("/b is not brought up to date"));
        let all = json!({ "state": "paused", "behind": ["/a", "/b"], "leaving": ["/c"],
            "fewest_copies": 1 });
        let what = "/a, /b are not brought up to date, /c is not emptied, block groups get no more \
                    copies";
        assert_eq!(told(all), rests(what));
        assert_eq!(told(json!({ "state": "paused", "balancing": true })), None);
        assert_eq!(told(json!({ "state": "running", "behind": ["/b"] })), None);
    }
}
