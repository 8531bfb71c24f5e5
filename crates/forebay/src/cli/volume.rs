//! `forebay volume`: the volumes of a running server.

use std::io::{IsTerminal, Write, stderr, stdin};

use clap::{ArgAction, Args, Subcommand};
use model::{Verb, request};

use crate::cli::limit::Limit;
use crate::cli::options::{ClientOptions, volume_size};
use crate::cli::volumes;
use crate::error::{CommandError, Result};
use crate::output::{self, is_json, print, print_json};
use crate::serve::overcommit;
use crate::terminal::{Look, is_piped};
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
        /// Name of the volume: 1 to 64 bytes, without slashes
        #[arg(value_parser = crate::cli::options::name)]
        name: String,
        /// Size of the volume, such as 100G; at most 1P
        #[arg(long, value_parser = volume_size)]
        size: u64,
        /// Logical sector of the volume, in bytes
        #[arg(long, value_name = "BYTES", default_value = "512", value_parser = sector)]
        sector: u32,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// List the volumes: those with problems first, then by the requests they got
    List {
        /// All of them, however many there are; what does not go to a terminal has all
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Change a volume's size; to a smaller one only with --shrink, as what that cuts off is lost
    Resize {
        /// The volume
        #[arg(add = crate::cli::candidates::volumes())]
        name: String,
        /// New size of the volume
        #[arg(long, value_parser = volume_size)]
        size: u64,
        /// Let the volume become smaller: what is behind the new size is lost for good
        #[arg(long)]
        shrink: bool,
        /// Make it smaller even if clients have it open
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    Limit(Limit),
    /// Let clients change a volume, or not; those that are connected are held to it at once
    ReadOnly {
        /// The volume
        #[arg(add = crate::cli::candidates::volumes())]
        name: String,
        /// on: clients may change nothing; off: they may
        #[arg(action = ArgAction::Set, value_parser = on_or_off, value_name = "on|off")]
        state: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Give a volume another name; clients reach it by the new one
    Rename {
        /// The volume
        #[arg(add = crate::cli::candidates::volumes())]
        name: String,
        /// The new name
        to: String,
        /// Do it even if clients have it open; they keep it, and find it by the new name next time
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Delete a volume and all that is in it; its space is freed in the background
    ///
    /// On a terminal it asks for the volume's name, unless --yes is given.
    Delete {
        /// The volume
        #[arg(add = crate::cli::candidates::volumes())]
        name: String,
        /// Do not ask whether all that is in it may be lost
        #[arg(long)]
        yes: bool,
        /// Delete it even if clients have it open
        #[arg(long)]
        force: bool,
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
        match self.action {
            Action::List { all, client } => list(&client, all || is_piped()),
            Action::Limit(limit) => limit.run(),
            Action::Create { name, size, sector, client } => {
                let done = format!("{name} is made: a volume of {}", human_bytes(size));
                let (size_bytes, sector_bytes) = (size, sector);
                change(&client, request::VolumeCreate { name, size_bytes, sector_bytes }, &done)?;
                tell_too_much(&client)
            }
            Action::Resize { name, size, shrink, force, client } => {
                let done = format!("{name} has {} now", human_bytes(size));
                let request = request::VolumeResize { name, size_bytes: size, shrink, force };
                change(&client, request, &done)?;
                tell_too_much(&client)
            }
            Action::ReadOnly { name, state, client } => {
                let may = if state { "cannot change it any more" } else { "may change it" };
                let done = format!("{name}: clients {may}");
                change(&client, request::VolumeReadOnly { name, read_only: state }, &done)
            }
            Action::Rename { name, to, force, client } => {
                let done = format!("{name} is called {to} now");
                change(&client, request::VolumeRename { name, to, force }, &done)
            }
            Action::Delete { name, yes, force, client } => {
                if !yes {
                    confirm(&name, &client)?;
                }
                let done = format!("{name} is deleted; its space is freed in the background");
                change(&client, request::VolumeDelete { name, force }, &done)
            }
        }
    }
}

/// Has the server change a volume, and tells that with `done`.
fn change<R>(client: &ClientOptions, request: R, done: &str) -> Result<()>
where
    R: Verb<Answer = ()> + Clone,
{
    client.ask(request)?;
    output::done(done)
}

/// Tells people if the volumes are larger together than the pool.
fn tell_too_much(client: &ClientOptions) -> Result<()> {
    if is_json() {
        return Ok(());
    }
    let note = overcommit::of_pool(&client.ask(request::Status {})?.pool);
    note.map_or(Ok(()), |text| print(&format!("{text}\n")))
}

/// Has a person type the name of a volume that is about to be deleted.
fn confirm(name: &str, client: &ClientOptions) -> Result<()> {
    if !stdin().is_terminal() || !stderr().is_terminal() {
        return Err(CommandError::Usage(format!(
            "all that is in {name} would be lost: nobody can be asked here, so say --yes to \
             delete it"
        )));
    }
    let all = client.ask(request::VolumeList {})?;
    // The server says so of one that is not there.
    let Some(volume) = all.iter().find(|one| one.name == name) else { return Ok(()) };
    let failed = |e: std::io::Error| CommandError::failed("asking", e);
    let (size, written) = (human_bytes(volume.size_bytes), human_bytes(volume.allocated_bytes));
    let mut out = stderr();
    write!(
        out,
        "{name} has {size}, of which {written} were written. All of it is lost for good.\nType the \
         name of the volume to delete it: "
    )
    .and_then(|()| out.flush())
    .map_err(failed)?;
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(failed)?;
    if typed.strip_suffix('\n').unwrap_or(&typed) == name {
        return Ok(());
    }
    Err(CommandError::Failed(format!("that is not its name: {name} was not deleted")))
}

fn list(client: &ClientOptions, all: bool) -> Result<()> {
    if is_json() {
        return print_json(&client.ask(request::VolumeList {})?);
    }
    let status = client.ask(request::Status {})?;
    print(&volumes::text(&status, all, "forebay volume list --all", &Look::of_stdout()))
}
