//! `forebay attach`, `detach`, `attached`, `mount`, `unmount`: volumes as disks of this machine.

use std::path::PathBuf;

use base::shell_word;
use clap::Args;
use model::request;
use model::setting::{ConfigEntry, Place, PlaceValue};
use serde::Serialize;

use crate::attach::attachment::{self, NoDevice};
use crate::attach::mount::{self, MountRequest};
use crate::attach::mounts;
use crate::attach::record::{AttachMethod, AttachRequest, AttachmentRecord, AttachmentRecords};
use crate::cli::options::ClientOptions;
use crate::error::{CommandError, Result};
use crate::output::{done, is_json, print, print_json};
use crate::terminal::progress::waiting;
use crate::terminal::{Cell, Column, Look, Table, Tone};

/// Attach a volume to this machine: a block device, or a file
///
/// The volume is a block device by the kernel's NBD, for root where the kernel has that, with a
/// link /dev/forebay/VOLUME; else a file by FUSE, and a line on standard error says why. The
/// attachment stays until `forebay detach`. Prints the path of the device or the file.
#[derive(Args, Debug)]
pub struct Attach {
    /// The volume, or VOLUME@NAME, a snapshot
    #[arg(add = crate::cli::candidates::volumes_and_snapshots())]
    volume: String,
    /// Name of the attachment [default: that of the volume]
    #[arg(long, value_name = "NAME", value_parser = crate::cli::options::name)]
    name: Option<String>,
    /// Means to attach the volume by, instead of the best that are there
    #[arg(long, value_enum, value_name = "MEANS")]
    by: Option<AttachMethod>,
    /// Change nothing through it
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// Take away what `forebay attach` made
#[derive(Args, Debug)]
pub struct Detach {
    /// Name of the attachment: that of the volume, if nothing else was said
    name: String,
}

/// List the volumes that are attached to this machine
#[derive(Args, Debug)]
pub struct Attached {}

/// Attach a volume and mount the file system that is on it
///
/// With --make a file system is made first. A volume that holds anything is left as it is then,
/// whether that is a file system or not, unless --force is given.
#[derive(Args, Debug)]
pub struct Mount {
    /// The volume, or VOLUME@NAME, a snapshot
    #[arg(add = crate::cli::candidates::volumes_and_snapshots())]
    volume: String,
    /// Directory to mount at
    dir: PathBuf,
    /// Make a file system of this type first, if the volume holds nothing
    #[arg(long, value_name = "ext4|xfs|btrfs", value_parser = ["ext4", "xfs", "btrfs"])]
    make: Option<String>,
    /// Make it on a volume that holds something too: all of that is lost
    #[arg(long, requires = "make")]
    force: bool,
    /// Options, as of mount -o
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    options: Option<String>,
    /// Name of the attachment [default: that of the volume]
    #[arg(long, value_name = "NAME", value_parser = crate::cli::options::name)]
    name: Option<String>,
    /// Means to attach the volume by, instead of the best that are there
    #[arg(long, value_enum, value_name = "MEANS")]
    by: Option<AttachMethod>,
    /// Change nothing
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// Unmount what `forebay mount` mounted, and detach it
#[derive(Args, Debug)]
pub struct Unmount {
    /// Directory at which the volume is mounted
    dir: PathBuf,
}

/// Whether this is the name of a snapshot, not that of a volume.
fn is_snapshot(name: &str, client: &ClientOptions) -> Result<bool> {
    let volumes = client.ask(request::VolumeList {})?;
    if volumes.iter().any(|one| one.name == name) {
        return Ok(false);
    }
    let snapshots = client.ask(request::SnapshotList { volume: None })?;
    match snapshots.iter().any(|snapshot| snapshot.full_name() == name) {
        true => Ok(true),
        false => Err(CommandError::Failed(format!(
            "there is no volume {name:?}, and no snapshot; see forebay volume list, or forebay \
             snapshot list"
        ))),
    }
}

/// The volume, and where the server has its NBD socket. A snapshot can only be read.
fn wanted(
    volume: String,
    name: Option<String>,
    means: Option<AttachMethod>,
    read_only: bool,
    client: &ClientOptions,
) -> Result<AttachRequest> {
    let read_only = is_snapshot(&volume, client)? || read_only;
    let config = client.ask(request::GetConfig {})?;
    let socket = config.settings.into_iter().find_map(|entry| match entry {
        ConfigEntry::Place(Place { key, value: PlaceValue::Text(path), .. })
            if key == "nbd.socket" =>
        {
            Some(path)
        }
        _ => None,
    });
    let missing = || CommandError::Failed("the server does not say where its NBD socket is".into());
    let socket = socket.map(PathBuf::from).ok_or_else(missing)?;
    let name = name.unwrap_or_else(|| volume.clone());
    Ok(AttachRequest { name, volume, socket, read_only, means })
}

/// An attachment as `--json` prints it.
#[derive(Serialize)]
struct AttachmentRow {
    name: String,
    volume: String,
    path: String,
    by: &'static str,
    read_only: bool,
    /// The directory where the volume is mounted; null: it is not.
    mounted: Option<String>,
    /// The other end of the attachment is still there.
    there: bool,
}

fn shown(record: &AttachmentRecord) -> AttachmentRow {
    AttachmentRow {
        name: record.name.clone(),
        volume: record.volume.clone(),
        path: record.path.display().to_string(),
        by: record.means.name(),
        read_only: record.read_only,
        mounted: mounts::in_use(record).map(|dir| dir.display().to_string()),
        there: attachment::is_there(record),
    }
}

impl Attach {
    pub fn run(self) -> Result<()> {
        let wanted = wanted(self.volume, self.name, self.by, self.read_only, &self.client)?;
        let records = AttachmentRecords::open()?;
        let (record, note) = waiting("attaching", || attachment::attach(&records, &wanted))?;
        if let Some(NoDevice(why)) = note {
            eprintln!("{} is a file and no block device: {why}", record.name);
        }
        match is_json() {
            true => print_json(&shown(&record)),
            false => print(&format!("{}\n", record.path.display())),
        }
    }
}

impl Detach {
    pub fn run(self) -> Result<()> {
        let records = AttachmentRecords::open()?;
        waiting("detaching", || attachment::detach(&records, &self.name))?;
        done(&format!("{} is detached", self.name))
    }
}

impl Attached {
    pub fn run(self) -> Result<()> {
        let records = AttachmentRecords::open()?;
        attachment::clear_left(&records)?;
        let all = records.all()?;
        if is_json() {
            return print_json(&all.iter().map(shown).collect::<Vec<_>>());
        }
        if all.is_empty() {
            return print("nothing is attached; forebay attach VOLUME does it\n");
        }
        print(&listed(&all.iter().map(shown).collect::<Vec<_>>(), &Look::of_stdout()))
    }
}

fn listed(all: &[AttachmentRow], look: &Look) -> String {
    let mut table = Table::new(&[
        Column::shortened("NAME", 10),
        Column::shortened("VOLUME", 10),
        Column::new("BY"),
        Column::new("MAY"),
        Column::shortened("PATH", 12),
        Column::wrapped("STATE"),
    ]);
    for one in all {
        let state = match (one.there, one.mounted.as_deref()) {
            (false, Some(dir)) => {
                let unmount = format!("forebay unmount {}", shell_word(dir));
                Cell::new(Tone::Bad, format!("mounted at {dir}, gone: {unmount}"))
            }
            (false, None) => {
                Cell::new(Tone::Bad, format!("gone: forebay detach {}", shell_word(&one.name)))
            }
            (true, Some(dir)) => format!("mounted at {dir}").into(),
            (true, None) => "attached".into(),
        };
        let may = if one.read_only { "read" } else { "write" };
        let (name, volume) = (one.name.as_str().into(), one.volume.as_str().into());
        table.add([name, volume, one.by.into(), may.into(), one.path.as_str().into(), state]);
    }
    table.text(look)
}

impl Mount {
    pub fn run(self) -> Result<()> {
        let wanted = wanted(self.volume, self.name, self.by, self.read_only, &self.client)?;
        let request = request::VolumeData { name: wanted.volume.clone() };
        let holds_data = self.client.ask(request)?.offset.is_some();
        let what = MountRequest {
            wanted,
            dir: self.dir,
            make: self.make,
            force: self.force,
            holds_data,
            options: self.options,
        };
        let records = AttachmentRecords::open()?;
        let record = waiting("mounting", || mount::mount(&records, &what))?;
        let dir = record.mounted.unwrap_or_default();
        done(&format!("{} is mounted at {}", record.volume, dir.display()))
    }
}

impl Unmount {
    pub fn run(self) -> Result<()> {
        let records = AttachmentRecords::open()?;
        let name = waiting("unmounting", || mount::unmount(&records, &self.dir))?;
        done(&format!("{name} is unmounted and detached"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_it() {
        let one = |there: bool, mounted: Option<&str>| AttachmentRow {
            name: "n".into(),
            volume: "v".into(),
            path: "/dev/nbd0".into(),
            by: "kernel",
            read_only: false,
            mounted: mounted.map(str::to_owned),
            there,
        };
        let all =
            [one(true, None), one(true, Some("/m")), one(false, Some("/m")), one(false, None)];
        let text = listed(&all, &Look { columns: 100, colour: false });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("/dev/nbd0") && lines[1].ends_with("  attached"), "{text}");
        assert!(lines[2].ends_with("  mounted at /m"), "{text}");
        // What is mounted cannot be detached.
        assert!(lines[3].ends_with("  mounted at /m, gone: forebay unmount /m"), "{text}");
        assert!(lines[4].ends_with("  gone: forebay detach n"), "{text}");
    }
}
