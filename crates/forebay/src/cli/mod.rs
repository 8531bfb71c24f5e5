//! Commands and their arguments.

mod attach;
mod cache;
mod cache_status;
mod candidates;
mod check;
mod checked;
mod clients;
mod completions;
mod config;
mod create;
mod device;
mod doctor;
#[cfg(test)]
mod documented;
mod dump;
mod explain;
mod gc;
mod help;
mod limit;
mod man;
mod options;
mod pool;
mod repair;
mod scrub;
mod serve;
mod set;
mod snapshot;
mod snapshot_range;
mod status;
mod top;
mod up;
mod version;
mod volume;
mod volumes;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Result;
use crate::output;
use crate::terminal::look::{self, Colour};

/// Block storage in one unprivileged process: thin, checksummed, mirrored volumes for any NBD
/// client.
///
/// Begin with `forebay up`: it makes a pool in ./forebay-data and serves a volume from it.
#[derive(Parser, Debug)]
#[command(name = "forebay", version, propagate_version = true, max_term_width = 110)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// When there are colours; NO_COLOR in the environment forbids them on a terminal, too
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    color: Colour,
    /// Print JSON: what is asked for, what was done, and an error
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Up(up::Up),
    Create(create::Create),
    Serve(serve::Serve),
    Volume(volume::VolumeCommand),
    Snapshot(snapshot::SnapshotCommand),
    Cache(cache::CacheCommand),
    Device(device::DeviceCommand),
    Pool(pool::PoolCommand),
    Gc(gc::Gc),
    Scrub(scrub::ScrubCommand),
    Explain(explain::Explain),
    Set(set::Set),
    Config(config::Config),
    Status(status::Status),
    Top(top::Top),
    Clients(clients::Clients),
    Attach(attach::Attach),
    Detach(attach::Detach),
    Attached(attach::Attached),
    Mount(attach::Mount),
    Unmount(attach::Unmount),
    Check(check::Check),
    Doctor(doctor::Doctor),
    Dump(dump::Dump),
    Version(version::Version),
    Help(help::Help),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// Answers a shell that wants to know what a line may go on with, and ends the process then.
    pub fn complete() {
        completions::answer(Cli::command);
    }

    /// Runs the command. Returns the exit status where nothing failed.
    pub fn run(self) -> Result<u8> {
        look::choose(self.color);
        output::choose_json(self.json);
        if let Some(command) = self.command.without_json() {
            output::no_json(command)?;
        }
        let next = self.command.next();
        self.command.run().map_err(|e| e.or_next(next))
    }
}

impl Command {
    /// The command as it is typed, if it prints no JSON.
    fn without_json(&self) -> Option<&'static str> {
        match self {
            Command::Up(_) => Some("forebay up"),
            Command::Serve(_) => Some("forebay serve"),
            Command::Top(_) => Some("forebay top"),
            Command::Dump(_) => Some("forebay dump"),
            Command::Help(_) => Some("forebay help"),
            Command::Completions(_) => Some("forebay completions"),
            Command::Man(_) => Some("forebay man"),
            _ => None,
        }
    }

    /// The text that says what to type where the command fails and does not say so itself.
    fn next(&self) -> &'static str {
        match self {
            Command::Up(_) => "forebay doctor DIR looks for what is wrong",
            Command::Serve(_) => {
                "forebay doctor --config FILE, or with --device PATH, looks for what is wrong"
            }
            Command::Create(_) => "see forebay create --help",
            Command::Check(_) => {
                "name the directory of forebay up, or each --device; see forebay check --help"
            }
            Command::Dump(_) => {
                "name the directory of forebay up, or each --device; see forebay dump --help"
            }
            Command::Man(_) | Command::Completions(_) | Command::Help(_) => "see forebay help",
            Command::Config(_) => "forebay config --example shows every key",
            Command::Doctor(_) => "see forebay doctor --help",
            Command::Top(_) => "forebay status shows the same once",
            Command::Attach(_) | Command::Detach(_) | Command::Attached(_) => {
                "forebay attached lists what is attached"
            }
            Command::Mount(_) | Command::Unmount(_) => "forebay attached lists what is mounted",
            Command::Volume(_)
            | Command::Snapshot(_)
            | Command::Cache(_)
            | Command::Device(_)
            | Command::Pool(_)
            | Command::Gc(_)
            | Command::Scrub(_)
            | Command::Explain(_)
            | Command::Set(_)
            | Command::Status(_)
            | Command::Clients(_)
            | Command::Version(_) => "forebay status shows whether the server is well",
        }
    }

    fn run(self) -> Result<u8> {
        match self {
            Command::Up(c) => c.run().map(|()| 0),
            Command::Create(c) => c.run().map(|()| 0),
            Command::Serve(c) => c.run().map(|()| 0),
            Command::Volume(c) => c.run().map(|()| 0),
            Command::Snapshot(c) => c.run().map(|()| 0),
            Command::Cache(c) => c.run().map(|()| 0),
            Command::Device(c) => c.run().map(|()| 0),
            Command::Pool(c) => c.run().map(|()| 0),
            Command::Gc(c) => c.run().map(|()| 0),
            Command::Scrub(c) => c.run(),
            Command::Explain(c) => c.run().map(|()| 0),
            Command::Set(c) => c.run().map(|()| 0),
            Command::Config(c) => c.run().map(|()| 0),
            Command::Status(c) => c.run().map(|()| 0),
            Command::Top(c) => c.run().map(|()| 0),
            Command::Clients(c) => c.run().map(|()| 0),
            Command::Attach(c) => c.run().map(|()| 0),
            Command::Detach(c) => c.run().map(|()| 0),
            Command::Attached(c) => c.run().map(|()| 0),
            Command::Mount(c) => c.run().map(|()| 0),
            Command::Unmount(c) => c.run().map(|()| 0),
            Command::Check(c) => c.run(),
            Command::Doctor(c) => c.run(),
            Command::Dump(c) => c.run().map(|()| 0),
            Command::Version(c) => c.run().map(|()| 0),
            Command::Help(c) => c.run(Cli::command()).map(|()| 0),
            Command::Completions(c) => c.run(&Cli::command()).map(|()| 0),
            Command::Man(c) => c.run(Cli::command()).map(|()| 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_argument_explains_itself() {
        fn look(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {} has no help",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
    }

    #[test]
    fn serve_asks_for_devices_or_a_configuration() {
        let e = Cli::try_parse_from(["forebay", "serve"]).unwrap_err().to_string();
        assert!(e.contains("--device") && e.contains("--config"), "{e}");
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_done() {
        for line in [
            "forebay",
            "forebay nonsense",
            "forebay up a b",
            "forebay up --size many",
            "forebay up --size 0",
            "forebay up --volume-size 1000",
            "forebay up --io dos",
            "forebay up --nbd-listen nowhere",
            "forebay up --commit-interval soon",
            "forebay up --http-listen nowhere",
            "forebay up --http-listen unix:",
            "forebay up --log loud",
            "forebay create",
            "forebay create --device a --copies 4",
            "forebay create --device a --copies 0",
            "forebay serve",
            "forebay serve --device a --config b",
            "forebay device",
            "forebay device replace a",
            "forebay pool set copies=many",
            "forebay pool set size=2",
            "forebay volume",
            "forebay volume create a",
            "forebay volume create a/b --size 1G",
            "forebay create --device a --name ",
            "forebay volume create a --size 1G --sector 1000",
            "forebay volume resize a",
            "forebay attach",
            "forebay attach a --by rail",
            "forebay detach",
            "forebay attach a --name b/c",
            "forebay mount a",
            "forebay mount a b --make fat",
            "forebay unmount",
            "forebay volume read-only a",
            "forebay volume read-only a maybe",
            "forebay up --tls maybe",
            "forebay up --tls-verify-peer perhaps",
            "forebay up --nbd-socket-mode 0400",
            "forebay volume limit",
            "forebay volume limit a --iops 0",
            "forebay volume limit a --iops many",
            "forebay volume limit a --bandwidth fast",
            "forebay volume limit a --burst soon",
            "forebay volume limit a --none --iops 5",
            "forebay snapshot",
            "forebay snapshot create",
            "forebay snapshot create vm1",
            "forebay snapshot create vm1@",
            "forebay snapshot rename vm1@a",
            "forebay snapshot rename vm1 b",
            "forebay snapshot delete",
            "forebay snapshot delete vm1",
            "forebay snapshot delete vm1@a..",
            "forebay cache",
            "forebay cache attach",
            "forebay cache attach c --size 0",
            "forebay cache mode vol0",
            "forebay cache mode vol0 fast",
            "forebay up --cache-size much",
            "forebay up --cache-policy best",
            "forebay up --max-lag soon",
            "forebay create --device a --cache-size 1G",
            "forebay check a --device b",
            "forebay check --dry-run",
            "forebay doctor a b",
            "forebay doctor a --config f",
            "forebay doctor a --device b",
            "forebay doctor --config f --device b",
            "forebay doctor --config f --cache c",
            "forebay dump",
            "forebay completions",
            "forebay completions dos",
            "forebay man a b",
            "forebay set a b c",
            "forebay set --save",
            "forebay config --example --config f",
            "forebay explain --since long",
            "forebay explain --class reading",
            "forebay set a --save",
            "forebay scrub",
            "forebay scrub start --rate fast",
            "forebay scrub status --wait",
            "forebay top --every soon",
            "forebay top --every 1ms",
            "forebay status --color sometimes",
        ] {
            let e = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(e.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn what_is_documented_is_accepted() {
        for line in [
            "forebay up",
            "forebay up data --size 1G --volume-size 64M --io posix --nbd-listen 127.0.0.1:0 \
             --log json",
            "forebay up --http-listen none",
            "forebay up --http-listen 127.0.0.1:0 --http-listen unix:h.sock --http-token-file t",
            "forebay up --nbd-socket n --socket c --commit-interval 1s --max-connections 3 \
             --log-level debug",
            "forebay create --device a --device b --copies 2 --name p --size 1G --force",
            "forebay create --device a b c",
            "forebay serve --device a --device b",
            "forebay serve --config forebay.toml --log human",
            "forebay volume create a --size 1G --sector 4096 --socket s",
            "forebay volume list --json",
            "forebay volume resize a --size 2G",
            "forebay volume resize a --size 1G --shrink --force",
            "forebay volume delete a",
            "forebay volume delete a --yes --force",
            "forebay snapshot create vm1@monday vm2@monday --socket s --json",
            "forebay snapshot list",
            "forebay snapshot list vm1 --json",
            "forebay snapshot rename vm1@monday tuesday",
            "forebay snapshot delete vm1@a vm2@a --yes",
            "forebay snapshot delete vm1@a..c --force",
            "forebay cache attach a --size 1G --force",
            "forebay attach a --name b --by fuse --read-only --json --socket s",
            "forebay detach a",
            "forebay attached --json",
            "forebay mount a b --make ext4 -o noatime,discard --by kernel --socket s",
            "forebay mount a b --read-only",
            "forebay unmount b",
            "forebay volume read-only a on --socket s",
            "forebay volume read-only a off",
            "forebay clients --json --socket s",
            "forebay up --nbd-listen 127.0.0.1:0 --tls off --nbd-socket-mode 0660 \
             --nbd-socket-group kvm",
            "forebay up --tls offer --tls-certificates d --tls-psk k --tls-verify-peer false",
            "forebay volume limit a",
            "forebay volume limit a --iops 500 --bandwidth 50M --burst 2s --json --socket s",
            "forebay volume limit a --iops none",
            "forebay volume limit a --none",
            "forebay up --cache c --cache-size 0 --cache-policy lru --max-lag 5s --index-memory \
             32M --forget-cache",
            "forebay serve --device a --cache c --cache-size 4G",
            "forebay create --device a --cache c --cache-size 4G",
            "forebay cache attach c --size 4G --socket s",
            "forebay cache detach",
            "forebay cache status --json",
            "forebay cache mode vol0 writethrough",
            "forebay cache flush --socket s",
            "forebay status --json --socket s",
            "forebay status -v",
            "forebay status --verbose --all",
            "forebay volume delete a --yes --json",
            "forebay --json gc",
            "forebay help",
            "forebay help volume create",
            "forebay help pool-full",
            "forebay gc --json --socket s",
            "forebay status --all",
            "forebay volume list --all",
            "forebay clients --all",
            "forebay top",
            "forebay top --every 500ms --socket s",
            "forebay top --once",
            "forebay status --color never",
            "forebay --color always status",
            "forebay set",
            "forebay set --json",
            "forebay config --socket s --json",
            "forebay config --config forebay.toml --json",
            "forebay config --example",
            "forebay explain",
            "forebay explain --volume vol0 --since 5m --slower-than 5ms --class read --json",
            "forebay set max_lag --socket s",
            "forebay set cache.max_lag 10s --save --json",
            "forebay scrub start --device a --rate 100M --wait --socket s",
            "forebay scrub start",
            "forebay scrub pause",
            "forebay scrub resume --rate 5M --wait",
            "forebay scrub cancel --socket s",
            "forebay scrub status --json",
            "forebay check",
            "forebay check data --data --json",
            "forebay check --data --device a --device b",
            "forebay check --device a --device b --cache c",
            "forebay check data --cache c",
            "forebay check --repair --dry-run --json",
            "forebay check --repair --device a --device b --cache c",
            "forebay doctor",
            "forebay doctor data --json",
            "forebay doctor --config forebay.toml",
            "forebay doctor --device a b --cache c",
            "forebay version",
            "forebay version --json",
            "forebay completions bash",
            "forebay man",
            "forebay man target/man",
            "forebay dump superblock",
            "forebay dump cache journal --cache c",
            "forebay dump extents vol0 --dir data",
            "forebay dump node 77 --device a b --io posix",
        ] {
            Cli::try_parse_from(line.split(' ')).expect(line);
        }
    }
}
