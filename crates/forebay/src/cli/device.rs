//! `forebay device`: devices are added to a pool, replaced and removed while it serves.

use std::thread::sleep;
use std::time::Duration;

use base::{counted, shell_word};
use clap::{Args, Subcommand};
use model::device::{DeviceState, DeviceStatus};
use model::moves::{DeviceMoves, MovesAnswer, MovesState, MovesStatus};
use model::status::PoolStatus;
use model::{Verb, request};
use serde::Serialize;

use crate::cli::options::ClientOptions;
use crate::control::client::ask_patiently;
use crate::error::{CommandError, Result};
use crate::output::{self, is_json, print, print_json};
use crate::serve::health::moves;
use crate::terminal::interrupted::InterruptNotice;
use crate::terminal::progress::{Progress, Step};
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::{human_bytes, human_seconds, unix_time};

/// The interval between two looks of `--wait`.
const LOOK: Duration = Duration::from_millis(500);
/// The number of looks at moves that wait, all in all for ten seconds, before `--wait` gives up.
const MOST_LOOKS: u32 = 20;

/// Commands that show moves and end them, where Ctrl-C ends the wait for them.
const CANCEL_ENDS: &str =
    "forebay device list shows how far it is, and forebay device cancel ends it";

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
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Add a device; what it holds is lost. A spare is used from now on as the others are
    Add {
        /// A file or block device, as the server sees it: PATH[,emulate=hdd|ssd]
        device: String,
        /// Keep the device empty: it takes the place of one that is missing or failed for long
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
        #[arg(add = crate::cli::candidates::devices())]
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
        /// Path, last part of the path or id of the device; it may be missing
        #[arg(add = crate::cli::candidates::devices())]
        device: String,
        /// Show how far it is until it has ended; fails if it waits itself or is paused
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Use all of a device that has grown
    Resize {
        /// Path, last part of the path or id of the device
        #[arg(add = crate::cli::candidates::devices())]
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
        /// Path, last part of the path or id of the device
        #[arg(add = crate::cli::candidates::devices())]
        device: String,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Take a device into use again that was missing, failed or offline; only what changed
    /// meanwhile is written to it
    Online {
        /// Path or id of the device; of one that was missing, the path where the server finds it
        #[arg(add = crate::cli::candidates::devices())]
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

/// The devices and moves as `forebay device list --json` prints them.
#[derive(Serialize)]
struct DeviceListing<'a> {
    devices: &'a [DeviceStatus],
    moves: &'a MovesStatus,
}

impl DeviceCommand {
    pub fn run(self) -> Result<()> {
        match self.action {
            Action::List { client } => {
                let pool = client.ask(request::Status {})?.pool;
                match is_json() {
                    true => {
                        print_json(&DeviceListing { devices: &pool.devices, moves: &pool.moves })
                    }
                    false => print(&list(&pool, &Look::of_stdout())),
                }
            }
            Action::Add { device, spare, force, client } => {
                let request = request::DeviceAdd { device, replaces: None, force, spare };
                let change = if spare { DeviceChange::Spare } else { DeviceChange::Added };
                of_device(&client, request, change, false)
            }
            Action::Replace { old, new, force, wait, client } => {
                let replaces = Some(old);
                let request = request::DeviceAdd { device: new, replaces, force, spare: false };
                of_device(&client, request, DeviceChange::Replaced, wait)
            }
            Action::Resize { device, size, client } => {
                let grown = client.ask(request::DeviceResize { device, size_bytes: size })?;
                let pool = client.ask(request::Status {})?.pool;
                if is_json() {
                    return print_json(&grown);
                }
                print(&format!(
                    "{}: {}, of which the pool can use {} for data\n{}",
                    grown.device,
                    human_bytes(grown.size_bytes),
                    human_bytes(grown.usable_bytes),
                    made_for(&pool, grown.usable_bytes).unwrap_or_default(),
                ))
            }
            Action::Rebalance { wait, client } => {
                of_moves(&client, request::DevicesBalance {}, wait)
            }
            Action::Remove { device, wait, client } => {
                of_device(&client, request::DeviceRemove { device }, DeviceChange::Removed, wait)
            }
            Action::Offline { device, client } => {
                let device = client.ask(request::DeviceOffline { device })?.device;
                output::done(&format!(
                    "{device} is out of use; forebay device online {} takes it into use again",
                    shell_word(&device)
                ))
            }
            Action::Online { device, wait, client } => {
                of_device(&client, request::DeviceOnline { device }, DeviceChange::Online, wait)
            }
            Action::Cancel { client } => of_moves(&client, request::MovesCancel {}, false),
            Action::Pause { client } => {
                of_moves(&client, request::MovesPause { paused: true }, false)
            }
            Action::Resume { wait, client } => {
                of_moves(&client, request::MovesPause { paused: false }, wait)
            }
        }
    }
}

/// Has a device change, waits for its moves if that is wished, and tells what has come of it.
fn of_device<R>(client: &ClientOptions, request: R, change: DeviceChange, wait: bool) -> Result<()>
where
    R: Verb<Answer = DeviceMoves> + Clone,
{
    let begun = client.ask(request)?;
    let moves = if wait {
        let (moves, next_start) = (begun.moves.clone(), begun.next_start.clone());
        wait_for(client, MovesAnswer { moves, next_start }, change.ends())?
    } else {
        client.ask(request::GetMoves {})?
    };
    let waited = if wait { ended(&moves.moves) } else { Ok(()) };
    if is_json() {
        print_json(&moves)?;
        return waited;
    }
    if let Some(shown) = under_way(&moves.moves).filter(|_| waited.is_ok()) {
        print(&format!("{shown}\n"))?;
    }
    let pool = client.ask(request::Status {})?.pool;
    let (done, next) = (change.told(&begun, &pool), change.next(&pool));
    let most = made_for(&pool, 0).filter(|_| matches!(change, DeviceChange::Added));
    print(&format!("{done}\n{}{}", most.unwrap_or_default(), next.unwrap_or_default()))?;
    tell_next_start(&moves)?;
    waited
}

/// Has moves begin, end, rest or go on, waits for them if that is wished, and shows how far they
/// are.
fn of_moves<R>(client: &ClientOptions, request: R, wait: bool) -> Result<()>
where
    R: Verb<Answer = MovesAnswer> + Clone,
{
    let mut moves = client.ask(request)?;
    let mut waited = Ok(());
    if wait {
        moves = wait_for(client, moves, CANCEL_ENDS)?;
        waited = ended(&moves.moves);
    }
    if is_json() {
        print_json(&moves)?;
        return waited;
    }
    if waited.is_ok() {
        print(&format!("{}\n", progress(&moves.moves)))?;
    }
    tell_next_start(&moves)?;
    waited
}

/// Tells what the next start of the server has to be told of devices, if that is something.
fn tell_next_start(moves: &MovesAnswer) -> Result<()> {
    let text = moves.next_start.as_ref();
    text.map_or(Ok(()), |text| print(&format!("{text}\n")))
}

/// A change of a device.
enum DeviceChange {
    Added,
    Spare,
    Replaced,
    Removed,
    Online,
}

impl DeviceChange {
    /// Commands that show the moves of a change and end them, where Ctrl-C ends the wait for them.
    fn ends(&self) -> &'static str {
        match self {
            DeviceChange::Online => {
                "forebay device list shows how far it is, and forebay device pause has it rest"
            }
            _ => CANCEL_ENDS,
        }
    }

    /// The result of a change in the pool: a line.
    fn told(&self, begun: &DeviceMoves, pool: &PoolStatus) -> String {
        let is_in = |name: &str| pool.devices.iter().any(|d| d.path == name || d.id == name);
        let device = begun.device.as_str();
        let old = match self {
            DeviceChange::Replaced => begun.replaces.as_deref().unwrap_or("?"),
            _ => device,
        };
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
            DeviceChange::Added => format!("{device} is in the pool"),
            DeviceChange::Spare => format!("{device} is in the pool, as a spare"),
            DeviceChange::Replaced => format!("{device} is in the pool; {left}"),
            DeviceChange::Removed => left,
            DeviceChange::Online => format!("{device} is in use"),
        };
        format!(
            "{what} ({}, {})",
            counted(pool.devices.len() as u64, "device", "devices"),
            counted(u64::from(pool.copies), "copy", "copies")
        )
    }

    /// The next thing that can be done: a line, if there is something.
    fn next(&self, pool: &PoolStatus) -> Option<&'static str> {
        let stays = pool.devices.iter().any(|d| d.allocated_bytes > 0);
        let rests = pool.moves.state == MovesState::None;
        (matches!(self, DeviceChange::Added) && stays && rests).then_some(
            "what is stored stays where it is; to spread it over all devices: forebay device \
             rebalance\n",
        )
    }
}

/// A line that says that the pool does not become larger, where that is so, or where the pool can
/// use `usable` bytes of a device, which is all that it was made for.
fn made_for(pool: &PoolStatus, usable: u64) -> Option<String> {
    let (most, has) = (pool.capacity_limit_bytes, pool.capacity_bytes);
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
pub fn wait_for(
    client: &ClientOptions,
    mut moves: MovesAnswer,
    how: &'static str,
) -> Result<MovesAnswer> {
    let _told = InterruptNotice::without_us(how);
    let (mut shown, mut waited_for) = (Progress::new(false), MoveWait::default());
    while matches!(moves.moves.state, MovesState::Running | MovesState::Waiting) {
        if waited_for.is_over(&moves.moves) {
            break;
        }
        shown.show(&step(&moves.moves));
        #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
        sleep(LOOK);
        moves = ask_patiently(&client.socket(), request::GetMoves {})?;
    }
    Ok(moves)
}

/// For how long moves have waited since they last got further. While something is copied they do
/// not wait, but a copy that fails again and again gets no further.
#[derive(Default)]
struct MoveWait {
    looks: u32,
    copied: u64,
    furthest: Option<MoveProgress>,
}

/// The progress of moves: bytes that are copied, bytes that are left, and block groups that are
/// behind.
#[derive(Clone, Copy)]
struct MoveProgress {
    copied: u64,
    left: u64,
    behind: u64,
}

impl MoveProgress {
    fn is_beyond(&self, other: &MoveProgress) -> bool {
        self.copied > other.copied || self.left < other.left || self.behind < other.behind
    }

    fn or(self, other: MoveProgress) -> MoveProgress {
        MoveProgress {
            copied: self.copied.max(other.copied),
            left: self.left.min(other.left),
            behind: self.behind.min(other.behind),
        }
    }
}

impl MoveWait {
    /// Looks once more. Returns true if they have waited for too long.
    fn is_over(&mut self, moves: &MovesStatus) -> bool {
        let at = MoveProgress {
            copied: moves.copied_bytes,
            left: moves.left_bytes,
            behind: moves.behind_groups,
        };
        let copies = at.copied > std::mem::replace(&mut self.copied, at.copied);
        let further = self.furthest.is_none_or(|most| at.is_beyond(&most));
        self.furthest = Some(self.furthest.map_or(at, |most| most.or(at)));
        if moves.state != MovesState::Waiting || further {
            self.looks = 0;
        } else if !copies {
            self.looks += 1;
        }
        self.looks >= MOST_LOOKS
    }
}

/// Fails if moves that were waited for have not ended.
pub fn ended(moves: &MovesStatus) -> Result<()> {
    let text = match moves.state {
        MovesState::Paused => {
            "moves are paused, so nothing is moved: forebay device resume --wait".to_owned()
        }
        MovesState::Waiting => format!(
            "the moves do not get on: {}; {}; they go on by themselves when they can, and forebay \
             device list shows how far they are",
            moves.trouble.as_deref().unwrap_or("it is not known why"),
            moves::todo(moves)
        ),
        MovesState::None | MovesState::Running => return Ok(()),
    };
    Err(CommandError::Failed(text))
}

/// The progress of moves.
fn step(moves: &MovesStatus) -> Step {
    let (copied, groups) = (moves.copied_bytes, moves.behind_groups);
    let what = match (moves.state, groups) {
        (MovesState::Waiting, _) => "waiting",
        (_, 0) => "copying",
        _ => "catching up",
    };
    let behind = (groups > 0).then(|| groups_left(groups));
    Step {
        what: what.to_owned(),
        done: copied,
        total: copied.saturating_add(moves.left_bytes),
        rate: Some(moves.rate).filter(|rate| *rate > 0),
        left_s: moves.left_s,
        note: behind.into_iter().chain(moves.trouble.clone()).collect::<Vec<_>>().join(", "),
        ..Step::default()
    }
}

/// The state of moves, in a line.
pub fn progress(moves: &MovesStatus) -> String {
    if moves.state == MovesState::None {
        let copied = match moves.copied_bytes {
            0 => return "nothing to move".into(),
            n => human_bytes(n),
        };
        return match &moves.ended {
            Some(end) => format!(
                "nothing left to move, {copied} copied ({} {})",
                end.outcome,
                unix_time(u64::from(end.ended_at))
            ),
            None => format!("nothing left to move, {copied} copied"),
        };
    }
    let behind = moves.behind.join(", ");
    let most = if behind.is_empty() { "" } else { "at most " };
    let left = human_bytes(moves.left_bytes);
    let mut text = format!("{}: {most}{left} left to copy", moves.state);
    if !moves.leaving.is_empty() {
        text += &format!(", {} will be removed", moves.leaving.join(", "));
    }
    if moves.balancing {
        text += ", devices will be filled to the same share";
    }
    if !behind.is_empty() {
        let groups = groups_left(moves.behind_groups);
        text += &format!(", {behind} is brought up to date ({groups})");
    }
    if moves.rate > 0 {
        text += &format!(", {}/s", human_bytes(moves.rate));
    }
    if let Some(left) = moves.left_s {
        text += &format!(", {} left", human_seconds(left));
    }
    if let Some(trouble) = &moves.trouble {
        text += &format!("; {trouble}");
    }
    if moves.state == MovesState::Paused {
        text += "; forebay device resume lets them go on";
    }
    text
}

/// The state of moves, in a line; `None`: nothing had to be moved.
pub fn under_way(moves: &MovesStatus) -> Option<String> {
    let idle = moves.state == MovesState::None && moves.copied_bytes == 0;
    (!idle).then(|| progress(moves))
}

fn groups_left(n: u64) -> String {
    counted(n, "block group", "block groups") + " left"
}

/// The line of `forebay status` about moves; `None`: there are none.
pub fn line(moves: &MovesStatus) -> Option<String> {
    (moves.state != MovesState::None).then(|| progress(moves))
}

/// Devices, each with its id: behind it where a line has room, else below it.
fn list(pool: &PoolStatus, look: &Look) -> String {
    let whole = table(&pool.devices, true);
    let end = format!("\ncopies of every block: {}\n", pool.copies);
    let end = end + &paragraph(Tone::Plain, "", &progress(&pool.moves), look);
    if whole.natural_width() <= look.columns {
        return whole.text(look) + &end;
    }
    let mut lines = table(&pool.devices, false).lines(look).into_iter();
    let mut out: String = lines.next().into_iter().flatten().map(|head| head + "\n").collect();
    for (d, lines) in pool.devices.iter().zip(lines) {
        lines.iter().for_each(|line| out += &format!("{line}\n"));
        out += &format!("  id {}\n", d.id);
    }
    out + &end
}

fn table(devices: &[DeviceStatus], ids: bool) -> Table {
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
        let errors = d.errors.read + d.errors.write + d.errors.checksum;
        let path = if d.path.is_empty() { "-" } else { &d.path };
        let mut row = vec![
            path.into(),
            Cell::new(tone(d.state), d.state.word()),
            human_bytes(d.allocated_bytes).into(),
            human_bytes(d.capacity_bytes).into(),
            Cell::new(if errors > 0 { Tone::Bad } else { Tone::Plain }, errors.to_string()),
        ];
        row.extend(ids.then(|| d.id.as_str().into()));
        table.add(row);
    }
    table
}

/// The tone that shows how good the state of a device is.
pub fn tone(state: DeviceState) -> Tone {
    match state {
        DeviceState::Online => Tone::Good,
        DeviceState::Missing | DeviceState::Failed | DeviceState::Flapping => Tone::Bad,
        DeviceState::Spare
        | DeviceState::Behind
        | DeviceState::Joining
        | DeviceState::Leaving
        | DeviceState::Stale
        | DeviceState::Offline => Tone::Warn,
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
