//! Volumes for people: the important ones first, and no more than can be read.

use std::cmp::Reverse;

use model::Status;
use model::volume::VolumeOfStatus;

use crate::cli::limit;
use crate::serve::health::of_volume;
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::human_bytes;

/// The number of rows of a table that are shown unless all are wanted.
pub const SHOWN: usize = 20;
/// The number of volumes with problems that are told of one by one.
const TOLD: usize = 5;

/// A table of a server's volumes, and what is wrong with them. `command` shows all of them.
pub fn text(status: &Status, all: bool, command: &str, look: &Look) -> String {
    let mut ranked: Vec<Ranked> = ranked(status);
    if ranked.is_empty() {
        return "no volumes; make one: forebay volume create NAME --size 8G\n".to_owned();
    }
    let mut out = String::new();
    let bad = ranked.iter().filter(|one| one.problem.is_some()).count();
    for one in ranked.iter().take(TOLD) {
        if let Some(problem) = one.problem {
            let text = format!("{} {problem}", one.name);
            out += &paragraph(Tone::Bad, "! ", &text, look);
        }
    }
    if bad > TOLD {
        out += &format!("! and {} more volumes with problems\n", bad - TOLD);
    }
    let hidden = if all { 0 } else { ranked.len().saturating_sub(SHOWN) };
    ranked.truncate(ranked.len() - hidden);
    out += &table(&ranked).text(look);
    out + &not_shown(hidden, "volumes", command, look)
}

/// Says how many rows a table leaves out.
pub fn not_shown(hidden: usize, what: &str, command: &str, look: &Look) -> String {
    match hidden {
        0 => String::new(),
        n => {
            let text = format!("{n} more {what} are not shown: {command}");
            paragraph(Tone::Plain, "", &text, look)
        }
    }
}

/// A volume, and what makes it important.
struct Ranked<'a> {
    volume: &'a VolumeOfStatus,
    name: &'a str,
    problem: Option<&'static str>,
    requests: u64,
}

/// All volumes: those with problems first, then by the requests they got since the server started.
fn ranked(status: &Status) -> Vec<Ranked<'_>> {
    let rank = |volume| Ranked {
        volume,
        name: &volume.volume.name,
        problem: of_volume(volume, status),
        requests: requests(volume),
    };
    let mut all: Vec<Ranked> = status.volumes.iter().map(rank).collect();
    all.sort_by_key(|one| (one.problem.is_none(), Reverse(one.requests), one.name));
    all
}

/// The number of requests that clients have made of a volume.
fn requests(volume: &VolumeOfStatus) -> u64 {
    let kinds = volume.requests.iter().flat_map(|requests| requests.by_name());
    kinds.map(|(_, kind)| kind.count).sum()
}

fn table(volumes: &[Ranked]) -> Table {
    let mut table = Table::new(&[
        Column::shortened("NAME", 12),
        Column::new("SIZE"),
        Column::new("ALLOCATED"),
        Column::new("SECTOR"),
        Column::new("MAY"),
        Column::new("REQUESTS"),
        Column::wrapped("LIMIT"),
    ]);
    for one in volumes {
        let v = &one.volume.volume;
        let tone = if one.problem.is_some() { Tone::Bad } else { Tone::Plain };
        table.add([
            Cell::new(tone, one.name),
            human_bytes(v.size_bytes).into(),
            human_bytes(v.allocated_bytes).into(),
            v.sector_bytes.to_string().into(),
            if v.read_only { "read" } else { "write" }.into(),
            one.requests.to_string().into(),
            limit::text(v.limit.as_ref()).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::scrub::{LostBlocks, PoolScrub};
    use model::status::PoolStatus;
    use model::volume::{RequestsOfVolume, Volume, VolumeIo, VolumeLimit};

    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    fn volume(name: &str, id: u32, requests: u64) -> VolumeOfStatus {
        let limit = VolumeLimit {
            iops: 100_000_u32.try_into().ok(),
            bytes_per_second: (1_u64 << 30).try_into().ok(),
            burst_ms: 1500_u32.try_into().unwrap(),
        };
        let io = |count| VolumeIo { count, ..VolumeIo::default() };
        VolumeOfStatus {
            volume: Volume {
                name: name.into(),
                size_bytes: 1 << 50,
                allocated_bytes: 1023 << 20,
                sector_bytes: 4096,
                read_only: id == 1,
                limit: Some(limit),
                ..Volume::default()
            },
            id,
            requests: Some(RequestsOfVolume {
                read: io(requests / 2),
                write: io(requests - requests / 2),
                ..RequestsOfVolume::default()
            }),
        }
    }

    fn shown(text: &str) -> Vec<String> {
        let rows = text.lines().skip_while(|line| !line.starts_with("NAME")).skip(1);
        let rows = rows.filter(|line| line.contains("1 PiB"));
        rows.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }

    #[test]
    fn the_important_ones_are_first_and_the_rest_is_counted() {
        let mut volumes: Vec<VolumeOfStatus> =
            (0..300).map(|i| volume(&format!("vm{i:03}"), i, u64::from(i) % 100)).collect();
        volumes.push(volume(&"x".repeat(64), 300, 1_000_000_000));
        let lost = LostBlocks { volume: "vm007".into(), ..LostBlocks::default() };
        let scrub = PoolScrub { lost_blocks: vec![lost], ..PoolScrub::default() };
        let bad_blocks = vec![(5, 1), (5, 2)];
        let status = Status {
            volumes,
            pool: PoolStatus { scrub, ..PoolStatus::default() },
            cache: Some(CacheStatus { bad_blocks, ..CacheStatus::default() }),
            ..Status::default()
        };
        let few = text(&status, false, "forebay volume list --all", &LOOK);
        assert!(few.lines().all(|line| width(line) <= 80), "{few}");
        assert!(few.starts_with("! vm007 has blocks without a good copy"), "{few}");
        assert!(few.ends_with("281 more volumes are not shown: forebay volume list --all\n"));
        let names = shown(&few);
        assert_eq!(names.len(), SHOWN);
        assert_eq!(names[..2], ["vm007", "vm005"], "problems, by load");
        assert!(names[2].starts_with("xxxx") && names[2].contains('…'), "{names:?}");
        assert_eq!(names[3..6], ["vm099", "vm199", "vm299"]);
        let all = text(&status, true, "", &LOOK);
        assert_eq!(shown(&all).len(), 301);
        assert!(!all.contains("not shown"));
    }

    #[test]
    fn where_there_are_none_it_says_what_makes_one() {
        let text = text(&Status::default(), false, "", &LOOK);
        assert!(text.contains("forebay volume create"), "{text}");
    }
}
