//! `forebay device`: devices are added to a pool, replaced and removed while it serves.

use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::control::client::ask;
use crate::error::Result;
use crate::output::{Meter, print, print_json, table};
use crate::units::{human_bytes, human_seconds};

/// How often `--wait` looks.
const LOOK: Duration = Duration::from_millis(500);

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
        /// Path or id of the device to be replaced; it may be missing
        old: String,
        /// A file or block device, as the server sees it: PATH[,emulate=hdd|ssd]; or a spare of the
        /// pool
        new: String,
        /// Overwrite what the new one holds
        #[arg(long)]
        force: bool,
        /// Show how far it is until it has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Move all that a device holds to the others, and remove it
    Remove {
        /// Its path or id; it may be missing
        device: String,
        /// Show how far it is until it has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Use all of a device that has grown
    Resize {
        /// Its path or id
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
        /// Show how far it is until it has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Take a device out of use until it is taken into use again; no data is moved
    Offline {
        /// Its path or id
        device: String,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Take a device into use again that was missing, failed or offline; only what changed
    /// meanwhile is written to it
    Online {
        /// Its path or id; of one that was missing, the path where the server finds it
        device: String,
        /// Show how far it is until it has ended
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
        /// Show how far it is until it has ended
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
}

impl DeviceCommand {
    pub fn run(self) -> Result<()> {
        let (client, request, wait) = match self.action {
            Action::List { json, client } => {
                let status = ask(&client.socket, &Request::Status {})?;
                let pool = &status["pool"];
                return match json {
                    true => print_json(&serde_json::json!({
                        "devices": pool["devices"], "moves": pool["moves"],
                    })),
                    false => print(&list(pool)),
                };
            }
            Action::Add { device, spare, force, client } => {
                let request = Request::DeviceAdd { device, replaces: None, force, spare };
                (client, request, false)
            }
            Action::Replace { old, new, force, wait, client } => {
                let replaces = Some(old);
                let request = Request::DeviceAdd { device: new, replaces, force, spare: false };
                (client, request, wait)
            }
            Action::Resize { device, size, client } => {
                let request = Request::DeviceResize { device, size_bytes: size };
                let grown = ask(&client.socket, &request)?;
                return print(&format!(
                    "{}: {}, of which the pool can use {} for data\n",
                    grown["device"].as_str().unwrap_or("?"),
                    human_bytes(number(&grown["size_bytes"])),
                    human_bytes(number(&grown["usable_bytes"])),
                ));
            }
            Action::Rebalance { wait, client } => (client, Request::DevicesBalance {}, wait),
            Action::Remove { device, wait, client } => {
                (client, Request::DeviceRemove { device }, wait)
            }
            Action::Offline { device, client } => {
                (client, Request::DeviceOffline { device }, false)
            }
            Action::Online { device, wait, client } => {
                (client, Request::DeviceOnline { device }, wait)
            }
            Action::Cancel { client } => (client, Request::MovesCancel {}, false),
            Action::Pause { client } => (client, Request::MovesPause { paused: true }, false),
            Action::Resume { wait, client } => {
                (client, Request::MovesPause { paused: false }, wait)
            }
        };
        let is_added = matches!(request, Request::DeviceAdd { .. });
        let moves = ask(&client.socket, &request)?;
        let moves = if wait { wait_for(&client, moves)? } else { moves };
        print(&format!("{}\n", progress(&moves)))?;
        if is_added {
            print("name the new device when the server is started next\n")?;
        }
        Ok(())
    }
}

/// Shows how far moves are until they have ended, or rest.
pub fn wait_for(client: &ClientOptions, mut moves: Value) -> Result<Value> {
    let mut meter = Meter::new();
    while matches!(moves["state"].as_str(), Some("running" | "waiting")) {
        meter.show(&progress(&moves));
        #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
        sleep(LOOK);
        moves = ask(&client.socket, &Request::MovesStatus {})?;
    }
    meter.clear();
    Ok(moves)
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
    let mut text = format!("{state}: {} left to copy", human_bytes(number(&moves["left_bytes"])));
    let leaving = names(&moves["leaving"]);
    if !leaving.is_empty() {
        text += &format!(", {leaving} will be removed");
    }
    if moves["balancing"] == true {
        text += ", devices are filled to the same share";
    }
    let behind = names(&moves["behind"]);
    if !behind.is_empty() {
        let groups = number(&moves["behind_groups"]);
        text += &format!(", {behind} is brought up to date ({groups} block groups left)");
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
    text
}

fn names(list: &Value) -> String {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// What `forebay status` says of it; `None`: nothing.
pub fn line(moves: &Value) -> Option<String> {
    matches!(moves["state"].as_str()?, "running" | "waiting" | "paused").then(|| progress(moves))
}

fn list(pool: &Value) -> String {
    let heads = ["DEVICE", "STATE", "USED", "OF", "ERRORS", "ID"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for d in pool["devices"].as_array().into_iter().flatten() {
        let word = |name: &str| d[name].as_str().unwrap_or("?").to_owned();
        let errors = d["errors"].as_object().into_iter().flatten();
        let errors: u64 =
            errors.filter(|(what, _)| *what != "healed").map(|(_, n)| number(n)).sum();
        let path = match word("path") {
            path if path.is_empty() => "-".to_owned(),
            path => path,
        };
        let bytes = |name: &str| human_bytes(number(&d[name]));
        let (used, of) = (bytes("allocated_bytes"), bytes("capacity_bytes"));
        rows.push(vec![path, word("state"), used, of, errors.to_string(), word("id")]);
    }
    let copies = number(&pool["copies"]);
    format!("{}\ncopies of every block: {copies}\n{}\n", table(&rows), progress(&pool["moves"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_a_person_would_expect() {
        let moves = serde_json::json!({
            "state": "waiting", "leaving": ["/a"], "behind": ["/b"], "behind_groups": 3,
            "left_bytes": 1u64 << 30, "copied_bytes": 5, "rate": 1 << 20, "left_s": 1024,
            "trouble": "waiting for a device with room",
        });
        let shown = progress(&moves);
        let parts =
            ["waiting: 1 GiB left", "/a will be removed", "/b is brought", "1 MiB/s", "with room"];
        for part in parts {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert_eq!(line(&moves), Some(shown));
        let none = serde_json::json!({ "state": "none", "copied_bytes": 2048 });
        assert_eq!(progress(&none), "nothing left to move, 2 KiB copied");
        assert_eq!(line(&none), None);
        let pool = serde_json::json!({
            "copies": 2, "moves": none,
            "devices": [{ "path": "", "id": "x", "state": "missing", "errors": { "read": 2 } }],
        });
        let shown = list(&pool);
        assert!(shown.contains("missing") && shown.contains("copies of every block: 2"), "{shown}");
    }
}
