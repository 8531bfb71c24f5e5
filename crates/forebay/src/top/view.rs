//! Two samples as lines: a function of these and of the size of the screen, and of nothing else.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use base::counted;
use model::device::DeviceState;
use model::status::PoolState;

use super::cache;
use super::counts::Counts;
use super::sample::{Ops, Sample};
use crate::terminal::text::{paragraph, shortened, width};
use crate::terminal::{Cell, Column, Look, Table, Tone, summary};
use crate::units::{human_bytes, human_seconds};

/// Volumes that are shown where the screen has no end: those that do something, but some in any
/// case, and not more than can be read.
const VOLUMES: usize = 20;
const FEW: usize = 5;
/// The number of problems that are told of.
const PROBLEMS: usize = 2;
/// The least number of rows of a section, with its head.
const LEAST_ROWS: usize = 3;

/// The lines that say what happened between two samples. `rows`: the number of lines there is room
/// for; without end if it is absent. No line is wider than the look says.
pub fn lines(before: &Sample, now: &Sample, look: &Look, rows: Option<usize>) -> Vec<String> {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64().max(0.001);
    let mut out = head(before, now, seconds, look);
    let tail = tail(before, now, seconds, look);
    let (volumes, busy) = volumes(before, now, seconds);
    let volumes = volumes.lines(look);
    let devices = devices(before, now, seconds).lines(look);
    // An empty line before each of three parts.
    let left = rows.map(|rows| rows.saturating_sub(out.len() + tail.len() + 3));
    let (for_volumes, for_devices) = match left {
        None => (busy.clamp(FEW, VOLUMES) + 2, usize::MAX),
        Some(left) => {
            let half = (left / 2).max(LEAST_ROWS);
            let for_devices = devices.len().min(half.max(left.saturating_sub(volumes.len())));
            (left.saturating_sub(for_devices), for_devices)
        }
    };
    out.push(String::new());
    out.extend(section(volumes, for_volumes, "volumes"));
    out.push(String::new());
    out.extend(section(devices, for_devices, "rows of devices"));
    out.push(String::new());
    out.extend(tail);
    out.truncate(rows.unwrap_or(usize::MAX));
    out
}

/// As many rows of a table as there is room for, and how many more there are.
fn section(rows: Vec<Vec<String>>, room: usize, what: &str) -> Vec<String> {
    let all = rows.len();
    let fits = all <= room;
    let shown = if fits { all } else { room.saturating_sub(1) };
    let mut out: Vec<String> = rows.into_iter().take(shown).flatten().collect();
    if !fits && room > 0 {
        out.push(format!("  and {} more {what}", all - shown));
    }
    out
}

fn head(before: &Sample, now: &Sample, seconds: f64, look: &Look) -> Vec<String> {
    let (pool, server) = (&now.status.pool, &now.status.server);
    let first = format!("pool {}: {}", shortened(&pool.name, 16), pool.state);
    let more = [
        String::new(),
        format!("{} of {} used", human_bytes(pool.used_bytes), human_bytes(pool.capacity_bytes)),
        format!("{} in flight", server.requests_in_flight),
        counted(server.connections, "client", "clients"),
        format!("up {}", human_seconds(server.uptime_seconds)),
        format!("{} wait", now.status.admission.waiting),
    ];
    let rest = fitting(&more, look.columns.saturating_sub(width(&first)));
    let tone = if pool.state == PoolState::Online { Tone::Good } else { Tone::Bad };
    let ops = now.requests.since(&before.requests);
    let all = ops.all();
    let part = |counts: &Counts, what: &str| {
        format!("{} {what} {}/s", counts.per_second(seconds), counts.bytes_per_second(seconds))
    };
    let requests = [
        format!("{} IOPS", all.per_second(seconds)),
        part(&ops.read, "read"),
        part(&ops.write, "write"),
        format!("mean {}", all.mean()),
        format!("99 % {}", all.long(&now.bounds_us)),
    ];
    vec![look.paint(tone, &first) + &rest, fitting(&requests, look.columns)]
}

/// As many of these as there is room for, the first ones.
fn fitting(parts: &[String], columns: usize) -> String {
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        let next = if i == 0 { part.clone() } else { format!("{out}, {part}") };
        if width(&next) > columns {
            break;
        }
        out = next;
    }
    out
}

const FIGURES: [Column; 6] = [
    Column::figures("READ/s"),
    Column::figures("BYTES/s"),
    Column::figures("WRITE/s"),
    Column::figures("BYTES/s"),
    Column::figures("MEAN"),
    Column::figures("99 %"),
];

fn figures(ops: &Ops, all: &Counts, seconds: f64, bounds_us: &[f64]) -> [Cell; 6] {
    [
        ops.read.per_second(seconds).into(),
        ops.read.bytes_per_second(seconds).into(),
        ops.write.per_second(seconds).into(),
        ops.write.bytes_per_second(seconds).into(),
        all.mean().into(),
        all.long(bounds_us).into(),
    ]
}

/// Volumes: those with problems first, then by what they do now. And how many of them there are
/// that do something, or have a problem.
fn volumes(before: &Sample, now: &Sample, seconds: f64) -> (Table, usize) {
    let mut table = Table::new(&[&[Column::shortened("VOLUME", 12)], &FIGURES[..]].concat());
    let mut rows: Vec<(&str, bool, Ops)> = Vec::new();
    let known: BTreeMap<&str, &Ops> =
        before.volumes.iter().map(|(name, _, ops)| (name.as_str(), ops)).collect();
    for (name, is_bad, ops) in &now.volumes {
        let since = known.get(name.as_str()).map_or_else(|| ops.clone(), |old| ops.since(old));
        rows.push((name, *is_bad, since));
    }
    rows.sort_by_key(|(name, is_bad, ops)| (!is_bad, Reverse(ops.all().count), *name));
    for (name, is_bad, ops) in &rows {
        let all = ops.all();
        let tone = match (is_bad, all.count) {
            (true, _) => Tone::Bad,
            (_, 0) => Tone::Faint,
            _ => Tone::Plain,
        };
        let figures = figures(ops, &all, seconds, &now.bounds_us);
        table.add(std::iter::once(Cell::new(tone, name)).chain(figures));
    }
    let busy = rows.iter().filter(|(_, is_bad, ops)| *is_bad || ops.all().count > 0).count();
    (table, busy)
}

/// Devices, a row for each class that did something; one that did nothing has one.
fn devices(before: &Sample, now: &Sample, seconds: f64) -> Table {
    let heads = [Column::shortened("DEVICE", 8), Column::shortened("CLASS", 8)];
    let mut table = Table::new(&[&heads[..], &FIGURES[..]].concat());
    let idle = Ops::default();
    for device in &now.devices {
        let old = before.devices.iter().find(|old| old.path == device.path);
        let mut rows = Vec::new();
        for (class, ops) in &device.classes {
            let old = old.and_then(|old| old.classes.iter().find(|(name, _)| name == class));
            let ops = ops.since(old.map_or(&idle, |(_, ops)| ops));
            if ops.all().count > 0 {
                rows.push((*class, ops));
            }
        }
        let state = device.state.unwrap_or(DeviceState::Online);
        let trouble = match state {
            DeviceState::Online if device.silent => Some("silent"),
            DeviceState::Online => None,
            other => Some(other.word()),
        };
        let well = trouble.is_none();
        let name = Cell::new(if well { Tone::Plain } else { Tone::Bad }, name(now, &device.path));
        if rows.is_empty() || !well {
            let idle_word = if device.has_requests { "busy" } else { "idle" };
            let word = Cell::new(Tone::Faint, trouble.unwrap_or(idle_word));
            let figures = figures(&idle, &idle.all(), seconds, &now.bounds_us);
            table.add([name.clone(), word].into_iter().chain(figures));
        }
        for (class, ops) in rows {
            // A device's flush has no latency that a reader or a writer saw.
            let all = ops.read.and(&ops.write);
            let figures = figures(&ops, &all, seconds, &now.bounds_us);
            table.add([name.clone(), class.into()].into_iter().chain(figures));
        }
    }
    table
}

/// The last part of a path, if that is enough to tell it from the others.
fn name<'a>(now: &Sample, path: &'a str) -> &'a str {
    let last = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let short = last(path);
    let same = now.devices.iter().filter(|d| d.path.rsplit('/').next() == Some(short)).count();
    if same == 1 { short } else { path }
}

/// The cache, slow requests, and what is wrong.
fn tail(before: &Sample, now: &Sample, seconds: f64, look: &Look) -> Vec<String> {
    let mut rows = cache::rows(before, now, seconds);
    rows.push(match &now.status.stalls {
        Some(stalls) => ("stalls", Cell::new(Tone::Warn, stalls)),
        None => ("stalls", "none in the last 10 minutes".into()),
    });
    let mut out = summary(rows, look);
    let problems = &now.status.health;
    for problem in problems.iter().take(PROBLEMS) {
        out += &paragraph(Tone::Bad, "! ", &problem.what, look);
    }
    match problems.len() {
        0 => {}
        n => out += &format!("! what to do: forebay status ({n} in all)\n"),
    }
    out.lines().map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
