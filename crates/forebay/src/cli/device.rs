//! `forebay device`: devices are added to a pool, replaced and removed while it serves.

use std::thread::sleep;
use std::time::Duration;

use base::{counted, shell_word};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::control::client::ask_patiently;
use crate::error::{CommandError, Result};
use crate::health::moves;
use crate::output::{print, print_json};
use crate::terminal::interrupted::GoesOn;
use crate::terminal::progress::{Progress, Step};
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::{human_bytes, human_seconds, unix_time};

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
                let usable = number(&grown["usable_bytes"]);
                let pool = client.ask(&Request::Status {})?["pool"].take();
                return print(&format!(
                    "{}: {}, of which the pool can use {} for data\n{}",
                    grown["device"].as_str().unwrap_or("?"),
                    human_bytes(number(&grown["size_bytes"])),
                    human_bytes(usable),
                    made_for(&pool, usable).unwrap_or_default(),
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
        let shown = match what {
            Change::None => Some(progress(&moves)),
            _ => under_way(&moves),
        };
        if let Some(shown) = shown.filter(|_| waited.is_ok()) {
            print(&format!("{shown}\n"))?;
        }
        if !matches!(what, Change::None) {
            let status = client.ask(&Request::Status {})?;
            let (done, next) = (what.told(&begun, &status["pool"]), what.next(&status["pool"]));
            let most = made_for(&status["pool"], 0).filter(|_| matches!(what, Change::Added));
            print(&format!("{done}\n{}{}", most.unwrap_or_default(), next.unwrap_or_default()))?;
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

/// That the pool does not become larger, where that is so, or where it can use `usable` bytes of a
/// device, which is all that it was made for: a line.
fn made_for(pool: &Value, usable: u64) -> Option<String> {
    let (most, has) = (number(&pool["capacity_limit_bytes"]), number(&pool["capacity_bytes"]));
    (most > 0 && has.max(usable) >= most).then(|| {
        format!(
            "the pool was made for {} at most, whatever devices it has: its block groups are \
             counted when it is made; a new pool can have more\n",
            human_bytes(most)
        )
    })
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
        moves = ask_patiently(&client.socket(), &Request::MovesStatus {})?;
    }
    Ok(moves)
}

/// For how long moves have waited since they last got further. While something is copied they do
/// not wait, but a copy that fails again and again gets no further.
#[derive(Default)]
struct Waited {
    looks: u32,
    copied: u64,
    furthest: Option<Reach>,
}

/// How far moves are.
#[derive(Clone, Copy)]
struct Reach {
    copied: u64,
    left: u64,
    behind: u64,
}

impl Reach {
    fn is_beyond(&self, other: &Reach) -> bool {
        self.copied > other.copied || self.left < other.left || self.behind < other.behind
    }

    fn or(self, other: Reach) -> Reach {
        Reach {
            copied: self.copied.max(other.copied),
            left: self.left.min(other.left),
            behind: self.behind.min(other.behind),
        }
    }
}

impl Waited {
    /// Looks once more. Returns true if they have waited for too long.
    fn is_over(&mut self, moves: &Value) -> bool {
        let of = |name: &str| number(&moves[name]);
        let at = Reach {
            copied: of("copied_bytes"),
            left: of("left_bytes"),
            behind: of("behind_groups"),
        };
        let copies = at.copied > std::mem::replace(&mut self.copied, at.copied);
        let further = self.furthest.is_none_or(|most| at.is_beyond(&most));
        self.furthest = Some(self.furthest.map_or(at, |most| most.or(at)));
        if moves["state"] != "waiting" || further {
            self.looks = 0;
        } else if !copies {
            self.looks += 1;
        }
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
            moves::todo(moves)
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
        let copied = match number(&moves["copied_bytes"]) {
            0 => return "nothing to move".into(),
            n => human_bytes(n),
        };
        return match (moves["ended"]["outcome"].as_str(), moves["ended"]["ended_at"].as_u64()) {
            (Some(how), Some(when)) => {
                format!("nothing left to move, {copied} copied ({how} {})", unix_time(when))
            }
            _ => format!("nothing left to move, {copied} copied"),
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
        text += ", devices will be filled to the same share";
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

/// What is moved, or was: in a line; `None`: nothing had to be.
pub fn under_way(moves: &Value) -> Option<String> {
    let idle = moves["state"] == "none" && number(&moves["copied_bytes"]) == 0;
    (!idle).then(|| progress(moves))
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
#[path = "device_tests.rs"]
mod tests;
