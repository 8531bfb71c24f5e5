//! Moves that do not get on: as something is in their way, or as they are paused.

use base::counted;
use model::moves::{MovesState, MovesStatus};

/// Returns what is wrong with moves, if something is: the page, the problem, and what to do.
pub fn problem(moves: &MovesStatus) -> Option<(&'static str, String, String)> {
    match moves.state {
        MovesState::Waiting => {
            let why = moves.trouble.as_deref().unwrap_or("it is not known for what");
            let what = format!("chunks that should move wait: {why}");
            Some(("moves-wait", what, todo(moves)))
        }
        MovesState::Paused => paused(moves),
        MovesState::None | MovesState::Running => None,
    }
}

/// A pause in which the pool has fewer copies than it should, or keeps a device that is to leave.
fn paused(moves: &MovesStatus) -> Option<(&'static str, String, String)> {
    let MovesStatus { behind, leaving, .. } = moves;
    let mut rests = Vec::new();
    if !behind.is_empty() {
        rests.push(format!("{} not brought up to date", are(behind)));
    }
    if !leaving.is_empty() {
        rests.push(format!("{} not emptied", are(leaving)));
    }
    if moves.fewest_copies.is_some() {
        rests.push("block groups get no more copies".into());
    }
    let what = format!("moves are paused: {}", rests.join(", "));
    let todo = "forebay device resume lets them go on".into();
    (!rests.is_empty()).then_some(("moves-paused", what, todo))
}

fn are(names: &[String]) -> String {
    names.join(", ") + if names.len() == 1 { " is" } else { " are" }
}

/// Returns what to do where moves wait: to remove the cause, or to give the moves up.
pub fn todo(moves: &MovesStatus) -> String {
    let why = moves.trouble.as_deref().unwrap_or_default();
    let help = match why.strip_prefix("waiting for ").unwrap_or(why) {
        // Paths come behind these words, so these words come first.
        what if what.starts_with("space under ") => "free some space there",
        what if what.starts_with("writes to ") => "see to that device, and to what the log says",
        _ if why.contains("room") => "add a device with room (forebay device add PATH)",
        _ if why.contains("went away") => "see to the device that went away",
        _ => "see to what the log says",
    };
    let mut ways = vec![help.to_owned()];
    if !moves.leaving.is_empty() {
        ways.push(format!("let {} stay (forebay device cancel)", moves.leaving.join(", ")));
    } else if moves.balancing {
        ways.push("end the rebalance (forebay device cancel)".into());
    }
    if let Some(n) = moves.fewest_copies {
        let copies = counted(n.into(), "copy", "copies");
        ways.push(format!("go back to {copies} (forebay pool set copies={n})"));
    }
    ways.join(", or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// A removal is given up by another command than a higher number of copies.
    #[test]
    fn moves_that_wait_are_given_up_by_the_right_command() {
        let waiting = |trouble: &str, leaving: &[&str]| MovesStatus {
            trouble: Some(trouble.to_owned()),
            leaving: names(leaving),
            ..Default::default()
        };
        let room = "waiting for a device with room";
        let removal = todo(&waiting(room, &["/a"]));
        let add = "add a device with room (forebay device add PATH)";
        assert_eq!(removal, format!("{add}, or let /a stay (forebay device cancel)"));
        let copies = todo(&MovesStatus { fewest_copies: Some(1), ..waiting(room, &[]) });
        assert_eq!(copies, format!("{add}, or go back to 1 copy (forebay pool set copies=1)"));
        let full = todo(&waiting("waiting for space under /room/b", &["/a"]));
        assert_eq!(full, "free some space there, or let /a stay (forebay device cancel)");
        let refused = todo(&waiting("waiting for writes to /b to succeed (see log)", &[]));
        assert_eq!(refused, "see to that device, and to what the log says");
        let both = todo(&MovesStatus { fewest_copies: Some(2), ..waiting(room, &["/a"]) });
        assert!(both.contains("device cancel") && both.contains("copies=2"), "{both}");
        let unreadable = waiting("waiting for a readable copy (see log)", &[]);
        let balance = todo(&MovesStatus { balancing: true, ..unreadable });
        assert_eq!(
            balance,
            "see to what the log says, or end the rebalance (forebay device cancel)"
        );
    }

    #[test]
    fn a_pause_is_told_where_copies_or_a_removal_rest() {
        let told = |moves: MovesStatus| problem(&moves).map(|(page, what, _)| (page, what));
        let rests = |what: &str| Some(("moves-paused", format!("moves are paused: {what}")));
        let of = |state, behind: &[&str]| MovesStatus {
            state,
            behind: names(behind),
            ..Default::default()
        };
        let behind = of(MovesState::Paused, &["/b"]);
        assert_eq!(told(behind), rests("/b is not brought up to date"));
        let all = MovesStatus {
            leaving: names(&["/c"]),
            fewest_copies: Some(1),
            ..of(MovesState::Paused, &["/a", "/b"])
        };
        let what = "/a, /b are not brought up to date, /c is not emptied, block groups get no more \
                    copies";
        assert_eq!(told(all), rests(what));
        let balance = MovesStatus { balancing: true, ..of(MovesState::Paused, &[]) };
        assert_eq!(told(balance), None);
        assert_eq!(told(of(MovesState::Running, &["/b"])), None);
    }
}
