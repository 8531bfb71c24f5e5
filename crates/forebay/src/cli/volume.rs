//! `forebay volume`: the volumes of a running server.

use clap::{ArgAction, Args, Subcommand};
use serde_json::Value;

use crate::cli::limit::{self, Limit};
use crate::cli::options::{ClientOptions, positive_size, volume_size};
use crate::control::Request;
use crate::control::client::ask;
use crate::error::Result;
use crate::output::{print, print_json, table};
use crate::units::human_bytes;

/// Make, list, resize, limit and delete volumes of a running server
#[derive(Args, Debug)]
pub struct VolumeCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make a volume; it takes space as it is written
    Create {
        /// Its name: 1 to 64 bytes, without slashes
        name: String,
        /// Its size, such as 100G; at most 1P
        #[arg(long, value_parser = volume_size)]
        size: u64,
        /// Its logical sector, in bytes
        #[arg(long, value_name = "BYTES", default_value = "512", value_parser = sector)]
        sector: u32,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// List the volumes
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Change a volume's size; what a smaller size cuts off is lost
    Resize {
        /// The volume
        name: String,
        /// Its new size
        #[arg(long, value_parser = positive_size)]
        size: u64,
        #[command(flatten)]
        client: ClientOptions,
    },
    Limit(Limit),
    /// Let clients change a volume, or not; those that are connected are held to it at once
    ReadOnly {
        /// The volume
        name: String,
        /// on: clients may change nothing; off: they may
        #[arg(action = ArgAction::Set, value_parser = on_or_off, value_name = "on|off")]
        state: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Delete a volume and all that is in it; its space is freed in the background
    Delete {
        /// The volume
        name: String,
        #[command(flatten)]
        client: ClientOptions,
    },
}

fn on_or_off(text: &str) -> std::result::Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("it is on or off".into()),
    }
}

fn sector(text: &str) -> std::result::Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4K" | "4k" => Ok(4096),
        _ => Err("a sector has 512 or 4096 bytes".into()),
    }
}

impl VolumeCommand {
    pub fn run(self) -> Result<()> {
        let (client, request) = match self.action {
            Action::List { json, client } => return list(&client, json),
            Action::Limit(limit) => return limit.run(),
            Action::Create { name, size, sector, client } => {
                (client, Request::VolumeCreate { name, size_bytes: size, sector_bytes: sector })
            }
            Action::Resize { name, size, client } => {
                (client, Request::VolumeResize { name, size_bytes: size })
            }
            Action::ReadOnly { name, state, client } => {
                (client, Request::VolumeReadOnly { name, read_only: state })
            }
            Action::Delete { name, client } => (client, Request::VolumeDelete { name }),
        };
        ask(&client.socket, &request).map(|_| ())
    }
}

fn list(client: &ClientOptions, json: bool) -> Result<()> {
    let volumes = ask(&client.socket, &Request::VolumeList {})?;
    if json {
        return print_json(&volumes);
    }
    match volumes.as_array().map(Vec::as_slice) {
        Some([]) | None => print("no volumes; make one: forebay volume create NAME --size 8G\n"),
        Some(volumes) => print(&table(&rows(volumes))),
    }
}

/// A table of volumes, with its head.
pub fn rows(volumes: &[Value]) -> Vec<Vec<String>> {
    let bytes = |v: &Value| human_bytes(v.as_u64().unwrap_or(0));
    let row = |v: &Value| {
        let name = v["name"].as_str().unwrap_or_default().to_owned();
        vec![
            name,
            bytes(&v["size_bytes"]),
            bytes(&v["allocated_bytes"]),
            v["sector_bytes"].to_string(),
            if v["read_only"] == true { "read" } else { "write" }.to_owned(),
            limit::text(&v["limit"]),
        ]
    };
    let head = ["NAME", "SIZE", "ALLOCATED", "SECTOR", "MAY", "LIMIT"].map(str::to_owned).to_vec();
    std::iter::once(head).chain(volumes.iter().map(row)).collect()
}
