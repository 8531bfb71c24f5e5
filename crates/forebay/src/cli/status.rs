//! `forebay status`: what a running server is and does.

use clap::Args;
use model::device::DeviceStatus;
use model::health::Problem;
use model::io::IoOfKind;
use model::request;
use model::status::{Admission, CommitStatus, PoolState, PoolStatus, ServerStatus};

use crate::cli::checked::counted;
use crate::cli::options::ClientOptions;
use crate::cli::pool::ONE_COPY;
use crate::cli::{cache_status, device, scrub, volumes};
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::serve::overcommit;
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone, is_piped, summary};
use crate::units::{human_bytes, human_seconds, human_us};

/// Show a running server: what is wrong, its pool, cache, devices and volumes
///
/// With --verbose also what happens inside: commits, the cache's parts, and requests. Their numbers
/// count from the start of the server. The latencies of clients' requests are those that `forebay
/// explain` tells of, from the arrival of a request until the client has taken the reply. Those of
/// devices have the time in the queue.
#[derive(Args, Debug)]
pub struct Status {
    /// All volumes, however many there are; what does not go to a terminal has all
    #[arg(long)]
    all: bool,
    /// Also commits, the parts of the cache, requests and the I/O of devices
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let status = self.client.ask(request::Status {})?;
        if is_json() {
            return print_json(&status);
        }
        let detail = Detail { all: self.all || is_piped(), verbose: self.verbose };
        print(&text(&status, detail, &Look::of_stdout()))
    }
}

/// The extent of what is shown.
#[derive(Clone, Copy, Default)]
struct Detail {
    /// All volumes.
    all: bool,
    /// The inside of the engine too.
    verbose: bool,
}

fn text(s: &model::Status, Detail { all, verbose }: Detail, look: &Look) -> String {
    let mut out = health(&s.health, look);
    if let Some(stalls) = &s.stalls {
        out += &format!("\n{}", paragraph(Tone::Warn, "", stalls, look));
        out += "  see forebay explain\n";
    }
    out += &format!("\n{}", summary(rows(s, verbose), look));
    out += &format!("\n{}", devices(&s.pool.devices).text(look));
    if verbose && s.cache.is_some() {
        out += &format!("\n{}", cache_status::text(s, look));
    }
    out += &format!("\n{}", volumes::text(s, all, "forebay status --all", look));
    if verbose {
        out += &format!("\n{}", traffic(s).text(look));
    }
    out
}

/// The state of the server, a line for each part.
fn rows(s: &model::Status, verbose: bool) -> Vec<(&'static str, Cell)> {
    let (pool, server) = (&s.pool, &s.server);
    let (state, copies) = (pool.state, pool.copies);
    let name = if verbose { format!("{} ({})", pool.name, pool.uuid) } else { pool.name.clone() };
    let mut rows: Vec<(&str, Cell)> = vec![
        (
            "pool",
            Cell::new(tone(state), format!("{name}: {state}, copies of every block: {copies}")),
        ),
        ("space", space(pool).into()),
    ];
    if copies == 1 {
        rows.push(("copies", Cell::new(Tone::Warn, ONE_COPY)));
    }
    rows.extend(overcommit::of_pool(pool).map(|text| ("volumes", Cell::new(Tone::Warn, text))));
    if !verbose {
        rows.extend(cache_status::rows(s));
    }
    let clients = format!(
        "{}, {} in flight{}",
        connected(server),
        counted(server.requests_in_flight, "request"),
        waits(&s.admission),
    );
    rows.push(("clients", clients.into()));
    let part = s.cache.as_ref().map(|cache| &cache.scrub_part);
    rows.extend(scrub::line(&pool.scrub, part).map(|fact| ("scrub", fact.into())));
    rows.extend(device::line(&pool.moves).map(|fact| ("moves", fact.into())));
    if verbose {
        rows.push(("commits", commits(&s.commit).into()));
        let process = format!(
            "{}, {}, up {}, {} resident",
            server.version,
            server.io_backend,
            human_seconds(server.uptime_seconds),
            human_bytes(server.resident_bytes.unwrap_or(0)),
        );
        rows.push(("server", process.into()));
    }
    rows
}

/// The numbers of clients that are connected, that can be, and that were refused as too many.
fn connected(server: &ServerStatus) -> String {
    let refused = match server.connections_refused {
        0 => String::new(),
        n => format!(", {n} refused"),
    };
    format!("{} of {} connected{refused}", server.connections, server.connections_max)
}

fn tone(state: PoolState) -> Tone {
    match state {
        PoolState::Online => Tone::Good,
        PoolState::Failed => Tone::Bad,
        PoolState::Degraded => Tone::Warn,
    }
}

/// Whether anything is wrong, and the problems with what to do about them, a paragraph each.
fn health(problems: &[Problem], look: &Look) -> String {
    let mut out = match problems {
        [] => return paragraph(Tone::Good, "", "Nothing is wrong.", look),
        [_] => String::new(),
        all => {
            let head = format!("{} problems, the worst first:", all.len());
            paragraph(Tone::Bad, "", &head, look)
        }
    };
    for Problem { page, what, todo, .. } in problems {
        let todo = format!("{todo} (more: forebay help {page})");
        out += &paragraph(Tone::Bad, "! ", what, look);
        out += &paragraph(Tone::Plain, "  to do: ", &todo, look);
    }
    out
}

/// Requests that wait for the limit or the share of their volume, or have done so.
fn waits(admission: &Admission) -> String {
    let Admission { waiting, waited_for_limit: limit, waited_for_share: share } = admission;
    if waiting + limit + share == 0 {
        return String::new();
    }
    format!(", {waiting} of them waiting; {limit} have waited for a limit, {share} for their share")
}

fn space(pool: &PoolStatus) -> String {
    let percent = pool.used_bytes as f64 * 100.0 / pool.capacity_bytes.max(1) as f64;
    format!(
        "{} of {} used ({percent:.1}%), {} left for data",
        human_bytes(pool.used_bytes),
        human_bytes(pool.capacity_bytes),
        human_bytes(pool.available_bytes)
    )
}

fn commits(commit: &CommitStatus) -> String {
    let (duration, freeze) = (&commit.duration_ms, &commit.critical_section_us);
    let mut text = format!(
        "{}, each {} (p99 {}), of which {} (p99 {}) hold up requests",
        commit.count,
        human_us(duration.p50 * 1e3),
        human_us(duration.p99 * 1e3),
        human_us(freeze.p50),
        human_us(freeze.p99),
    );
    match commit.failed {
        0 => {}
        n => text += &format!("; {n} FAILED"),
    }
    text
}

fn devices(list: &[DeviceStatus]) -> Table {
    let columns = [
        Column::shortened("DEVICE", 20),
        Column::shortened("STATE", 16),
        Column::wrapped("ERRORS"),
    ];
    let mut table = Table::new(&columns);
    for d in list {
        let path = match d.path.as_str() {
            "" => format!("(device {})", d.id),
            path => path.to_owned(),
        };
        let counts = [
            ("read", d.errors.read),
            ("write", d.errors.write),
            ("checksum", d.errors.checksum),
            ("healed", d.errors.healed),
        ];
        let errors: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        let errors = match errors.is_empty() {
            true => Cell::from("none"),
            false => Cell::new(Tone::Bad, errors.join(", ")),
        };
        let mut state = d.state.to_string();
        let mut tone = device::tone(d.state);
        if let Some(what) = d.emulate {
            state += &format!(", emulating {what}");
        }
        if let Some(out) = d.sits_out {
            state += &format!(", {}: read only where it must be", out.why);
            tone = Tone::Warn;
        }
        table.add([path.into(), Cell::new(tone, state), errors]);
    }
    table
}

/// The requests of clients, and the I/O of devices by class.
fn traffic(s: &model::Status) -> Table {
    let heads = ["", "COUNT", "BYTES", "P50", "P99", "MAX"];
    let mut table = Table::new(&heads.map(Column::new));
    let mut add = |name: String, kind: &IoOfKind| {
        if kind.count > 0 {
            let row = [
                name,
                kind.count.to_string(),
                human_bytes(kind.bytes),
                human_us(kind.latency_us.p50),
                human_us(kind.latency_us.p99),
                human_us(kind.latency_us.max),
            ];
            table.add(row.map(Cell::from));
        }
    };
    for (name, kind) in s.requests.by_name() {
        add(format!("requests {name}"), kind);
    }
    let mut classes = s.io.by_name();
    classes.sort_by_key(|(class, _)| *class);
    for (class, kinds) in classes {
        for (name, kind) in kinds.by_name() {
            add(format!("io {class} {name}"), kind);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::device::{DeviceErrors, DeviceState, Emulate, SitsOut, SitsOutWhy};
    use model::io::{Quantiles, RequestsByKind};
    use model::volume::{Volume, VolumeOfStatus};

    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    fn volume(volume: Volume) -> VolumeOfStatus {
        VolumeOfStatus { volume, ..VolumeOfStatus::default() }
    }

    #[test]
    fn a_damaged_pool_is_shown_as_such() {
        let quantiles = Quantiles { p50: 80.0, p99: 1200.0, p999: 2000.0, max: 3e6 };
        let read = IoOfKind {
            count: 5,
            bytes: 4096,
            latency_us: quantiles.clone(),
            ..IoOfKind::default()
        };
        let devices = vec![
            DeviceStatus {
                path: "/a".into(),
                id: "1".into(),
                emulate: Some(Emulate::Hdd),
                errors: DeviceErrors { checksum: 3, healed: 3, ..DeviceErrors::default() },
                ..DeviceStatus::default()
            },
            DeviceStatus { id: "2".into(), state: DeviceState::Missing, ..DeviceStatus::default() },
        ];
        let status = model::Status {
            pool: PoolStatus {
                name: "p".into(),
                uuid: "u".into(),
                state: PoolState::Degraded,
                copies: 2,
                capacity_bytes: 1 << 34,
                provisioned_bytes: 1 << 50,
                used_bytes: 1 << 33,
                available_bytes: 7 << 30,
                devices,
                ..PoolStatus::default()
            },
            volumes: vec![volume(Volume {
                name: "v".into(),
                size_bytes: 1 << 50,
                allocated_bytes: 5,
                sector_bytes: 512,
                ..Volume::default()
            })],
            commit: CommitStatus {
                count: 7,
                failed: 1,
                duration_ms: quantiles.clone(),
                critical_section_us: quantiles,
                ..CommitStatus::default()
            },
            requests: RequestsByKind { read, ..RequestsByKind::default() },
            server: ServerStatus {
                connections: 2,
                connections_max: 2,
                connections_refused: 7,
                ..ServerStatus::default()
            },
            ..model::Status::default()
        };
        let text = text(&status, Detail { verbose: true, ..Detail::default() }, &LOOK);
        for part in [
            "degraded",
            "online, emulating hdd",
            "3 checksum, 3 healed",
            "(device 2)",
            "missing",
            "1 FAILED",
            "2 of 2 connected, 7 refused, 0 requests in flight",
            "8 GiB of 16 GiB used (50.0%), 7 GiB left for data",
            "the volumes have 1 PiB together, and the pool holds 16 GiB",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("copies   "), "it has two: {text}");
        assert!(text.contains("requests read  5      4 KiB  80 us  1.2 ms  3.0 s"), "{text}");
    }

    #[test]
    fn one_copy_is_told_for_as_long_as_it_is_one() {
        let pool = PoolStatus { copies: 1, ..PoolStatus::default() };
        let status = model::Status { pool, ..model::Status::default() };
        let text = text(&status, Detail::default(), &Look { columns: 200, colour: false });
        assert!(text.contains(ONE_COPY), "{text}");
    }

    #[test]
    fn long_names_and_many_problems_fit() {
        let path = format!("/{}/cache.img", "x".repeat(120));
        let health = (0..3).map(|i| Problem {
            page: "device-missing".into(),
            what: format!("device {i} is away"),
            todo: "forebay device online NAME, when it may be used again; or replace".into(),
            ..Problem::default()
        });
        let device = DeviceStatus {
            path: path.clone(),
            id: "1".into(),
            sits_out: Some(SitsOut { why: SitsOutWhy::Slow, ..SitsOut::default() }),
            errors: DeviceErrors { read: 1, checksum: 2, ..DeviceErrors::default() },
            ..DeviceStatus::default()
        };
        let stalls = "12 requests of the last 10 minutes took more than 20 ms; 9 waited mostly \
                      for a read of pool device data/pool0.img";
        let status = model::Status {
            pool: PoolStatus {
                name: "p".repeat(64),
                uuid: "fb3c67df-f111-4703-ab55-386c0277c152".into(),
                devices: vec![device],
                ..PoolStatus::default()
            },
            cache: Some(CacheStatus { path, ..CacheStatus::default() }),
            volumes: vec![volume(Volume { name: "v".repeat(64), ..Volume::default() })],
            stalls: Some(stalls.into()),
            health: health.collect(),
            ..model::Status::default()
        };
        let text = text(&status, Detail::default(), &LOOK);
        assert!(text.lines().all(|line| width(line) <= 80), "{text}");
        assert!(text.contains("\n  see forebay explain\n"), "{text}");
        assert!(text.contains("! device 2 is away\n  to do: forebay device online"), "{text}");
    }
}
