//! `forebay device`: devices are added to a pool, replaced and removed while it serves.

use std::thread::sleep;
use std::time::Duration;

use base::{counted, shell_word};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::control::client::ask;
use crate::error::{CommandError, Result};
use crate::health::moves_todo;
use crate::output::{print, print_json};
use crate::terminal::interrupted::GoesOn;
use crate::terminal::progress::{Progress, Step};
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::{human_bytes, human_seconds};

/// How often `--wait` looks.
const LOOK: Duration = Duration::from_millis(500);
/// It looks so often at moves that wait, all in all for ten seconds, before it gives up.
const MOST_LOOKS: u32 = 20;

/// Add, replace and remove devices of the pool while it serves
#[derive(Args, Debug)]
pub struct DeviceCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the devices, and what is moved between them
    List {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Add a device; what it holds is lost. A spare is used from now on as the others are
    Add {
        /// A file or block device, as the server sees it: PATH[,emulate=hdd|ssd]
        device: String,
        /// It is kept empty, and takes the place of one that is missing or failed for long
        #[arg(long)]
        spare: bool,
        /// Overwrite what it holds
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Add a device and move to it all that another one holds, which then is removed
    Replace {
        /// Path, last part of the path or id of the device to be replaced; it may be missing
        old: String,
        /// A file or block device, as the server sees it: PATH[,emulate=hdd|ssd]; or a spare of the
        /// pool
        new: String,
        /// Overwrite what the new one holds
        #[arg(long)]
        force: bool,
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Move all that a device holds to the others, and remove it
    Remove {
        /// Its path, the last part of that, or its id; it may be missing
        device: String,
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Use all of a device that has grown
    Resize {
        /// Its path, the last part of that, or its id
        device: String,
        /// The size that its file is to have; a block device is made larger before, and this is
        /// left out
        #[arg(value_parser = crate::units::parse_size)]
        size: Option<u64>,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Move data until all devices are filled to the same share
    Rebalance {
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Take a device out of use until it is taken into use again; no data is moved
    Offline {
        /// Its path, the last part of that, or its id
        device: String,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Take a device into use again that was missing, failed or offline; only what changed
    /// meanwhile is written to it
    Online {
        /// Its path or id; of one that was missing, the path where the server finds it
        device: String,
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Let devices stay that are about to be removed, and end a rebalance
    Cancel {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Move nothing until it is resumed, or the server is started again
    Pause {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Go on after a pause
    Resume {
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
}

impl DeviceCommand {
    pub fn run(self) -> Result<()> {
        let (client, request, wait, what) = match self.action {
            Action::List { json, client } => {
                let status = client.ask(&Request::Status {})?;
                let pool = &status["pool"];
                return match json {
                    true => print_json(&serde_json::json!({
                        "devices": pool["devices"], "moves": pool["moves"],
                    })),
                    false => print(&list(pool, &Look::of_stdout())),
                };
            }
            Action::Add { device, spare, force, client } => {
                let request = Request::DeviceAdd { device, replaces: None, force, spare };
                (client, request, false, if spare { Change::Spare } else { Change::Added })
            }
            Action::Replace { old, new, force, wait, client } => {
                let replaces = Some(old);
                let request = Request::DeviceAdd { device: new, replaces, force, spare: false };
                (client, request, wait, Change::Replaced)
            }
            Action::Resize { device, size, client } => {
                let request = Request::DeviceResize { device, size_bytes: size };
                let grown = client.ask(&request)?;
                return print(&format!(
                    "{}: {}, of which the pool can use {} for data\n",
                    grown["device"].as_str().unwrap_or("?"),
                    human_bytes(number(&grown["size_bytes"])),
                    human_bytes(number(&grown["usable_bytes"])),
                ));
            }
            Action::Rebalance { wait, client } => {
                (client, Request::DevicesBalance {}, wait, Change::None)
            }
            Action::Remove { device, wait, client } => {
                (client, Request::DeviceRemove { device }, wait, Change::Removed)
            }
            Action::Offline { device, client } => {
                let done = client.ask(&Request::DeviceOffline { device })?;
                let device = done["device"].as_str().unwrap_or("?");
                return print(&format!(
                    "{device} is out of use; forebay device online {} takes it into use again\n",
                    shell_word(device)
                ));
            }
            Action::Online { device, wait, client } => {
                (client, Request::DeviceOnline { device }, wait, Change::Online)
            }
            Action::Cancel { client } => (client, Request::MovesCancel {}, false, Change::None),
            Action::Pause { client } => {
                (client, Request::MovesPause { paused: true }, false, Change::None)
            }
            Action::Resume { wait, client } => {
                (client, Request::MovesPause { paused: false }, wait, Change::None)
            }
        };
        let begun = client.ask(&request)?;
        let mut moves = begun.clone();
        if wait {
            moves = wait_for(&client, moves, what.ends())?;
        } else if !matches!(what, Change::None) {
            moves = client.ask(&Request::MovesStatus {})?;
        }
        let waited = if wait { ended(&moves) } else { Ok(()) };
        if waited.is_ok() {
            print(&format!("{}\n", progress(&moves)))?;
        }
        if !matches!(what, Change::None) {
            let status = client.ask(&Request::Status {})?;
            let (done, next) = (what.told(&begun, &status["pool"]), what.next(&status["pool"]));
            print(&format!("{done}\n{}", next.unwrap_or_default()))?;
        }
        if let Some(text) = moves["next_start"].as_str() {
            print(&format!("{text}\n"))?;
        }
        waited
    }
}

/// What becomes of a device.
enum Change {
    None,
    Added,
    Spare,
    Replaced,
    Removed,
    Online,
}

impl Change {
    /// What shows its moves and ends them, where Ctrl-C ends the wait for them.
    fn ends(&self) -> &'static str {
        match self {
            Change::Online => {
                "forebay device list shows how far it is, and forebay device pause has it rest"
            }
            _ => "forebay device list shows how far it is, and forebay device cancel ends it",
        }
    }

    /// What has come of it in the pool: in a line.
    fn told(&self, begun: &Value, pool: &Value) -> String {
        let name = |field: &str| begun[field].as_str().unwrap_or("?");
        let devices = pool["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_in = |name: &str| devices.iter().any(|d| d["path"] == name || d["id"] == name);
        let device = name("device");
        let old = if matches!(self, Change::Replaced) { name("replaces") } else { device };
        // A device that is not there goes by its id.
        let is_gone = uuid::Uuid::parse_str(old).is_ok();
        let left = match is_in(old) {
            false if is_gone => format!("{old} is out of the pool"),
            false => format!("{old} is out of the pool, and can be used for something else"),
            true => format!(
                "{old} is in use until it is out of the pool: forebay device list shows when"
            ),
        };
        let what = match self {
            Change::None => String::new(),
            Change::Added => format!("{device} is in the pool"),
            Change::Spare => format!("{device} is in the pool, as a spare"),
            Change::Replaced => format!("{device} is in the pool; {left}"),
            Change::Removed => left,
            Change::Online => format!("{device} is in use"),
        };
        format!(
            "{what} ({}, {})",
            counted(devices.len() as u64, "device", "devices"),
            counted(number(&pool["copies"]), "copy", "copies")
        )
    }
}

impl Change {
    /// What can be done next: a line, if there is something.
    fn next(&self, pool: &Value) -> Option<&'static str> {
        let mut devices = pool["devices"].as_array().into_iter().flatten();
        let stays = devices.any(|d| number(&d["allocated_bytes"]) > 0);
        let rests = pool["moves"]["state"] == "none";
        (matches!(self, Change::Added) && stays && rests).then_some(
            "what is stored stays where it is; to spread it over all devices: forebay device \
             rebalance\n",
        )
    }
}

/// Shows how far moves are until they have ended, are paused, or have waited without any progress
/// for ten seconds. After Ctrl-C they go on: `how` shows them, and ends them.
pub fn wait_for(client: &ClientOptions, mut moves: Value, how: &'static str) -> Result<Value> {
    let _told = GoesOn::without_us(how);
    let (mut shown, mut waited_for) = (Progress::new(false), Waited::default());
    while matches!(moves["state"].as_str(), Some("running" | "waiting")) {
        if waited_for.is_over(&moves) {
            break;
        }
        shown.show(&step(&moves));
        #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
        sleep(LOOK);
        moves = ask(&client.socket, &Request::MovesStatus {})?;
    }
    Ok(moves)
}

/// For how long moves have waited without any progress.
#[derive(Default)]
struct Waited {
    looks: u32,
    /// How far they were then.
    at: (u64, u64),
}

impl Waited {
    /// Looks once more. Returns true if they have waited for too long.
    fn is_over(&mut self, moves: &Value) -> bool {
        let at = (number(&moves["copied_bytes"]), number(&moves["behind_groups"]));
        let waits = moves["state"] == "waiting" && at == self.at;
        (self.looks, self.at) = (if waits { self.looks + 1 } else { 0 }, at);
        self.looks >= MOST_LOOKS
    }
}

/// Fails if moves that were waited for have not ended.
pub fn ended(moves: &Value) -> Result<()> {
    let text = match moves["state"].as_str() {
        Some("paused") => {
            "moves are paused, so nothing is moved: forebay device resume --wait".to_owned()
        }
        Some("waiting") => format!(
            "the moves do not get on: {}; {}; they go on by themselves when they can, and forebay \
             device list shows how far they are",
            moves["trouble"].as_str().unwrap_or("it is not known why"),
            moves_todo(moves)
        ),
        _ => return Ok(()),
    };
    Err(CommandError::Failed(text))
}

/// How far moves are.
fn step(moves: &Value) -> Step {
    let (copied, left) = (number(&moves["copied_bytes"]), number(&moves["left_bytes"]));
    let groups = number(&moves["behind_groups"]);
    let what = match (moves["state"].as_str(), groups) {
        (Some("waiting"), _) => "waiting",
        (_, 0) => "copying",
        _ => "catching up",
    };
    let behind = (groups > 0).then(|| groups_left(groups));
    let trouble = moves["trouble"].as_str().map(str::to_owned);
    Step {
        what: what.to_owned(),
        done: copied,
        total: copied.saturating_add(left),
        rate: Some(number(&moves["rate"])).filter(|rate| *rate > 0),
        left_s: moves["left_s"].as_u64(),
        note: behind.into_iter().chain(trouble).collect::<Vec<_>>().join(", "),
        ..Step::default()
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

/// What is moved, in a line.
pub fn progress(moves: &Value) -> String {
    let state = moves["state"].as_str().unwrap_or("?");
    if state == "none" {
        return match number(&moves["copied_bytes"]) {
            0 => "nothing to move".into(),
            n => format!("nothing left to move, {} copied", human_bytes(n)),
        };
    }
    let behind = names(&moves["behind"]);
    let most = if behind.is_empty() { "" } else { "at most " };
    let left = human_bytes(number(&moves["left_bytes"]));
    let mut text = format!("{state}: {most}{left} left to copy");
    let leaving = names(&moves["leaving"]);
    if !leaving.is_empty() {
        text += &format!(", {leaving} will be removed");
    }
    if moves["balancing"] == true {
        text += ", devices are filled to the same share";
    }
    if !behind.is_empty() {
        let groups = groups_left(number(&moves["behind_groups"]));
        text += &format!(", {behind} is brought up to date ({groups})");
    }
    if number(&moves["rate"]) > 0 {
        text += &format!(", {}/s", human_bytes(number(&moves["rate"])));
    }
    if let Some(left) = moves["left_s"].as_u64() {
        text += &format!(", {} left", human_seconds(left));
    }
    if let Some(trouble) = moves["trouble"].as_str() {
        text += &format!("; {trouble}");
    }
    if state == "paused" {
        text += "; forebay device resume lets them go on";
    }
    text
}

fn groups_left(n: u64) -> String {
    counted(n, "block group", "block groups") + " left"
}

fn names(list: &Value) -> String {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// What `forebay status` says of it; `None`: nothing.
pub fn line(moves: &Value) -> Option<String> {
    matches!(moves["state"].as_str()?, "running" | "waiting" | "paused").then(|| progress(moves))
}

/// Devices, each with its id: behind it where a line has room, else below it.
fn list(pool: &Value, look: &Look) -> String {
    let devices = pool["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let whole = table(devices, true);
    let copies = number(&pool["copies"]);
    let end = format!("\ncopies of every block: {copies}\n");
    let end = end + &paragraph((Tone::Plain, ""), &progress(&pool["moves"]), look);
    if whole.natural_width() <= look.columns {
        return whole.text(look) + &end;
    }
    let mut lines = table(devices, false).lines(look).into_iter();
    let mut out: String = lines.next().into_iter().flatten().map(|head| head + "\n").collect();
    for (d, lines) in devices.iter().zip(lines) {
        lines.iter().for_each(|line| out += &format!("{line}\n"));
        out += &format!("  id {}\n", d["id"].as_str().unwrap_or("?"));
    }
    out + &end
}

fn table(devices: &[Value], ids: bool) -> Table {
    let mut columns = vec![
        Column::shortened("DEVICE", 20),
        Column::new("STATE"),
        Column::new("USED"),
        Column::new("OF"),
        Column::new("ERRORS"),
    ];
    columns.extend(ids.then_some(Column::new("ID")));
    let mut table = Table::new(&columns);
    for d in devices {
        let word = |name: &str| d[name].as_str().unwrap_or("?");
        let errors = d["errors"].as_object().into_iter().flatten();
        let errors: u64 =
            errors.filter(|(what, _)| *what != "healed").map(|(_, n)| number(n)).sum();
        let path = if word("path").is_empty() { "-" } else { word("path") };
        let bytes = |name: &str| Cell::from(human_bytes(number(&d[name])));
        let mut row = vec![
            path.into(),
            Cell::new(tone(word("state")), word("state")),
            bytes("allocated_bytes"),
            bytes("capacity_bytes"),
            Cell::new(if errors > 0 { Tone::Bad } else { Tone::Plain }, errors.to_string()),
        ];
        row.extend(ids.then(|| word("id").into()));
        table.add(row);
    }
    table
}

/// How good the state of a device is.
pub fn tone(state: &str) -> Tone {
    match state {
        "online" => Tone::Good,
        "missing" | "failed" | "flapping" => Tone::Bad,
        _ => Tone::Warn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = Look { columns: 80, colour: false };

    #[test]
    fn it_reads_as_a_person_would_expect() {
        let moves = serde_json::json!({
            "state": "waiting", "leaving": ["/a"], "behind": ["/b"], "behind_groups": 3,
            "left_bytes": 1u64 << 30, "copied_bytes": 5, "rate": 1 << 20, "left_s": 1024,
            "trouble": "waiting for a device with room",
        });
        let shown = progress(&moves);
        let parts = [
            "waiting: at most 1 GiB left",
            "/a will be removed",
            "/b is brought",
            "1 MiB/s",
            "with room",
        ];
        for part in parts {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert_eq!(line(&moves), Some(shown));
        let paused = serde_json::json!({ "state": "paused", "left_bytes": 1 << 20 });
        let shown = line(&paused).expect("a line");
        assert!(shown.ends_with("1 MiB left to copy; forebay device resume lets them go on"));
        let none = serde_json::json!({ "state": "none", "copied_bytes": 2048 });
        assert_eq!(progress(&none), "nothing left to move, 2 KiB copied");
        assert_eq!(line(&none), None);
        let pool = serde_json::json!({
            "copies": 2, "moves": none,
            "devices": [{ "path": "", "id": "x", "state": "missing", "errors": { "read": 2 } }],
        });
        let shown = list(&pool, &LOOK);
        assert!(shown.contains("missing") && shown.contains("copies of every block: 2"), "{shown}");
    }

    #[test]
    fn what_has_come_of_it_is_told() {
        let begun = serde_json::json!({ "device": "/c", "replaces": "/b" });
        let pool = |paths: &[&str]| {
            let devices: Vec<_> = paths.iter().map(|p| serde_json::json!({ "path": p })).collect();
            serde_json::json!({ "devices": devices, "copies": 2 })
        };
        let said = Change::Added.told(&begun, &pool(&["/a", "/c"]));
        assert_eq!(said, "/c is in the pool (2 devices, 2 copies)");
        let said = Change::Replaced.told(&begun, &pool(&["/a", "/b", "/c"]));
        assert!(said.contains("/b is in use until it is out") && said.contains("3 dev"), "{said}");
        let said = Change::Replaced.told(&begun, &pool(&["/a", "/c"]));
        assert!(said.starts_with("/c is in the pool; /b is out of the pool, and can"), "{said}");
        let id = "fb3c67df-f111-4703-ab55-386c0277c152";
        let gone = serde_json::json!({ "device": "/c", "replaces": id });
        let said = Change::Replaced.told(&gone, &pool(&["/a", "/c"]));
        assert_eq!(
            said,
            format!("/c is in the pool; {id} is out of the pool (2 devices, 2 copies)")
        );
        let said = Change::Removed.told(&begun, &pool(&["/a"]));
        assert!(said.starts_with("/c is out") && said.ends_with("(1 device, 2 copies)"), "{said}");
    }

    #[test]
    fn a_rebalance_is_offered_where_there_is_something_to_spread() {
        let pool = |bytes: u64, state: &str| {
            serde_json::json!({ "moves": { "state": state },
                "devices": [{ "path": "/a", "allocated_bytes": bytes }, { "path": "/b" }] })
        };
        let next = Change::Added.next(&pool(1, "none")).expect("a hint");
        assert!(next.ends_with("forebay device rebalance\n"), "{next}");
        assert_eq!(Change::Added.next(&pool(0, "none")), None, "nothing is stored");
        assert_eq!(Change::Added.next(&pool(1, "running")), None, "data moves already");
        assert_eq!(Change::Spare.next(&pool(1, "none")), None, "a spare stays empty");
        assert_eq!(Change::Replaced.next(&pool(1, "none")), None);
    }

    #[test]
    fn a_bar_shows_what_is_copied_of_all() {
        let moves = serde_json::json!({
            "state": "running", "left_bytes": 3 << 20, "copied_bytes": 1 << 20, "rate": 0,
            "left_s": null, "behind_groups": 2, "trouble": "slow",
        });
        let got = step(&moves);
        assert_eq!((got.done, got.total, got.rate), (1 << 20, 4 << 20, None));
        assert_eq!(
            (got.what.as_str(), got.note.as_str()),
            ("catching up", "2 block groups left, slow")
        );
        assert_eq!(step(&Value::Null).what, "copying");
        let last = serde_json::json!({ "state": "running", "behind_groups": 1 });
        assert_eq!(step(&last).note, "1 block group left");
    }

    #[test]
    fn waiting_without_progress_ends_with_what_to_type() {
        let moves = |state: &str, copied: u64| {
            serde_json::json!({ "state": state, "copied_bytes": copied, "leaving": ["/a"],
                "trouble": "waiting for a device with room" })
        };
        let mut waited_for = Waited::default();
        let looks = |waited_for: &mut Waited, state, copied| {
            (0..100).position(|_| waited_for.is_over(&moves(state, copied)))
        };
        assert_eq!(looks(&mut waited_for, "running", 0), None);
        assert_eq!(looks(&mut waited_for, "waiting", 0), Some(MOST_LOOKS as usize - 1));
        assert!(!waited_for.is_over(&moves("waiting", 1)), "it has come on");
        let text = ended(&moves("waiting", 0)).expect_err("it waits").to_string();
        for part in
            ["waiting for a device with room", "forebay device add", "forebay device cancel"]
        {
            assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
        }
        let text = ended(&moves("paused", 0)).expect_err("it rests").to_string();
        assert!(text.contains("forebay device resume"), "{text}");
        assert_eq!(ended(&moves("none", 0)), Ok(()));
    }

    #[test]
    fn ids_stand_below_where_there_is_no_room() {
        let id = "fb3c67df-f111-4703-ab55-386c0277c152";
        let device = |path: &str| {
            serde_json::json!({ "path": path, "id": id, "state": "online",
                "allocated_bytes": 1023u64 << 20, "capacity_bytes": 1023u64 << 40, "errors": {} })
        };
        let pool = |path| serde_json::json!({ "devices": [device(path)], "moves": {} });
        let short = list(&pool("/a"), &LOOK);
        assert!(short.lines().nth(1).is_some_and(|line| line.ends_with(id)), "{short}");
        let long = list(&pool(&format!("/{}", "x".repeat(90))), &LOOK);
        assert!(long.contains(&format!("\n  id {id}\n")) && long.contains('…'), "{long}");
        assert!(long.lines().all(|line| line.chars().count() <= 80), "{long}");
    }
}
