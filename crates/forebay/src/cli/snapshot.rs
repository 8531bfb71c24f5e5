//! `forebay snapshot`: the snapshots of the volumes of a running server.

use std::io::{IsTerminal, Write, stderr, stdin};

use base::shell_word;
use clap::{Args, Subcommand};
use model::request;
use model::snapshot::{Snapshot, SnapshotName, TakenSnapshots};

use crate::cli::options::ClientOptions;
use crate::cli::snapshot_range::SnapshotRange;
use crate::error::{CommandError, Result};
use crate::output::{done, is_json, print, print_json};
use crate::terminal::{Column, Look, Table};
use crate::units::{human_bytes, human_us, unix_time};

/// Take, list, rename and delete snapshots of volumes of a running server
///
/// A snapshot is what a volume had at one moment. It takes space only for what the volume changes
/// afterwards. It is an export that can only be read, with the name VOLUME@NAME.
#[derive(Args, Debug)]
pub struct SnapshotCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Take snapshots, all at one moment, or none
    ///
    /// They have everything that the server answered before, and are durable when the command ends.
    Create {
        /// The snapshots to take, as vm1@monday; one of each volume
        #[arg(required = true, value_name = "VOLUME@NAME", value_parser = snapshot)]
        #[arg(add = crate::cli::candidates::new_snapshots())]
        snapshots: Vec<SnapshotName>,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// List the snapshots; those of a volume in the order in which they were taken
    List {
        /// The volume; without it those of all volumes
        #[arg(add = crate::cli::candidates::volumes())]
        volume: Option<String>,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Give a snapshot another name
    Rename {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME", value_parser = snapshot)]
        #[arg(add = crate::cli::candidates::snapshots())]
        snapshot: SnapshotName,
        /// The new name, without that of the volume
        to: String,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Delete snapshots; what they alone have is freed in the background
    ///
    /// vm1@a..c stands for the snapshots of vm1 from a to c, in the order in which they were taken.
    /// On a terminal it asks, unless --yes is given.
    Delete {
        /// The snapshots
        #[arg(required = true, value_name = "VOLUME@NAME[..NAME]")]
        #[arg(value_parser = SnapshotRange::parse, add = crate::cli::candidates::snapshots())]
        snapshots: Vec<SnapshotRange>,
        /// Do not ask whether all that is in them may be lost
        #[arg(long)]
        yes: bool,
        /// Delete them even if clients have them open
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
}

fn snapshot(text: &str) -> std::result::Result<SnapshotName, String> {
    text.parse()
}

impl SnapshotCommand {
    pub fn run(self) -> Result<()> {
        match self.action {
            Action::Create { snapshots, client } => create(&snapshots, &client),
            Action::List { volume, client } => list(volume, &client),
            Action::Rename { snapshot, to, client } => {
                let text = format!("{snapshot} is called {}@{to} now", snapshot.volume);
                client.ask(request::SnapshotRename { snapshot: snapshot.to_string(), to })?;
                done(&text)
            }
            Action::Delete { snapshots, yes, force, client } => {
                delete(&snapshots, yes, force, &client)
            }
        }
    }
}

fn create(names: &[SnapshotName], client: &ClientOptions) -> Result<()> {
    let snapshots = names.iter().map(SnapshotName::to_string).collect();
    let taken = client.ask(request::SnapshotCreate { snapshots })?;
    match is_json() {
        true => print_json(&taken),
        false => print(&told(&taken)),
    }
}

/// What was taken, for people.
fn told(taken: &TakenSnapshots) -> String {
    let names: Vec<String> = taken.snapshots.iter().map(Snapshot::full_name).collect();
    let are = if names.len() == 1 { "is taken" } else { "are taken at one moment" };
    format!("{} {are}, in {}\n", names.join(", "), human_us(taken.took_ms * 1e3))
}

fn list(volume: Option<String>, client: &ClientOptions) -> Result<()> {
    let all = client.ask(request::SnapshotList { volume: volume.clone() })?;
    if is_json() {
        return print_json(&all);
    }
    if all.is_empty() {
        let one = shell_word(volume.as_deref().unwrap_or("VOLUME"));
        return print(&format!("no snapshots; take one: forebay snapshot create {one}@NAME\n"));
    }
    print(&table(&all, &Look::of_stdout()))
}

fn table(all: &[Snapshot], look: &Look) -> String {
    let mut table = Table::new(&[
        Column::shortened("NAME", 20),
        Column::new("TAKEN"),
        Column::new("SIZE"),
        Column::new("REFERENCED"),
    ]);
    for one in all {
        let (size, referenced) = (human_bytes(one.size_bytes), human_bytes(one.referenced_bytes));
        let taken = unix_time(one.taken_at);
        table.add([one.full_name().into(), taken.into(), size.into(), referenced.into()]);
    }
    table.text(look)
}

fn delete(ranges: &[SnapshotRange], yes: bool, force: bool, client: &ClientOptions) -> Result<()> {
    let all = client.ask(request::SnapshotList { volume: None })?;
    let names = chosen(ranges, &all)?;
    if !yes {
        confirm(&names)?;
    }
    for (deleted, snapshot) in names.iter().enumerate() {
        let asked = client.ask(request::SnapshotDelete { snapshot: snapshot.clone(), force });
        asked.map_err(|e| match deleted {
            0 => e,
            _ => e.within(format_args!("{deleted} of {} are deleted", names.len())),
        })?;
    }
    let text = match &names[..] {
        [one] => format!("{one} is deleted; what it alone had is freed in the background"),
        all => format!(
            "{} snapshots are deleted; what they alone had is freed in the background",
            all.len()
        ),
    };
    done(&text)
}

/// The names of all snapshots that are meant, each once.
fn chosen(ranges: &[SnapshotRange], all: &[Snapshot]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for range in ranges {
        for name in range.of(all).map_err(CommandError::Failed)? {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// Has a person say that these snapshots may be deleted.
fn confirm(names: &[String]) -> Result<()> {
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(CommandError::Usage(format!(
            "all that is in {} would be lost: nobody can be asked here, so say --yes to delete it",
            names.join(", ")
        )));
    }
    let failed = |e: std::io::Error| CommandError::failed("asking", e);
    let wanted = match names {
        [one] => one.clone(),
        all => all.len().to_string(),
    };
    let mut text: String = names.iter().map(|name| format!("{name}\n")).collect();
    text += match names {
        [_] => "All that is in it is lost for good.\nType the name of the snapshot to delete it: ",
        _ => "All that is in them is lost for good.\nType how many they are to delete them: ",
    };
    let mut out = stderr();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(failed)?;
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(failed)?;
    if typed.strip_suffix('\n').unwrap_or(&typed) == wanted {
        return Ok(());
    }
    Err(CommandError::Failed(format!("that is not {wanted}: nothing was deleted")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot_of(volume: &str, name: &str) -> Snapshot {
        Snapshot {
            volume: volume.into(),
            name: name.into(),
            taken_at: 1_000_000_000,
            size_bytes: 8 << 30,
            referenced_bytes: 3 << 20,
            sector_bytes: 512,
        }
    }

    #[test]
    fn people_read_it() {
        let all = [snapshot_of("vm1", "monday"), snapshot_of(&"v".repeat(64), &"n".repeat(64))];
        let look = Look { columns: 80, colour: false };
        let text = table(&all, &look);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let date = ["2001-09-09", "01:46:40", "UTC"];
        assert_eq!(words[0], "vm1@monday");
        assert_eq!(words[1..4], date);
        assert_eq!(words[4..], ["8", "GiB", "3", "MiB"]);
        assert!(lines.iter().all(|line| crate::terminal::text::width(line) <= 80), "{text}");
    }

    #[test]
    fn it_says_how_long_it_took() {
        let one = TakenSnapshots { snapshots: vec![snapshot_of("a", "b")], took_ms: 12.34 };
        assert_eq!(told(&one), "a@b is taken, in 12.3 ms\n");
        let snapshots = vec![snapshot_of("a", "b"), snapshot_of("c", "b")];
        let two = TakenSnapshots { snapshots, took_ms: 0.5 };
        assert_eq!(told(&two), "a@b, c@b are taken at one moment, in 500 us\n");
    }

    #[test]
    fn each_is_deleted_once() {
        let all = ["a", "b", "c"].map(|name| snapshot_of("v", name));
        let ranges = ["v@b", "v@a..c"].map(|text| SnapshotRange::parse(text).unwrap());
        assert_eq!(chosen(&ranges, &all).unwrap(), ["v@b", "v@a", "v@c"]);
    }
}
