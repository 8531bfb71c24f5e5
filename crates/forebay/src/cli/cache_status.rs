//! The cache, as people read it.

use base::counted;
use model::Status;
use model::cache::{
    BucketStatus, CacheState, CacheStatus, GcStatus, HitRatioStatus, IndexStatus, JournalStatus,
    KeptStatus, ReplacementStatus, VolumeHitRatio, WritebackStatus,
};
use model::volume::{CacheMode, VolumeOfStatus};

use crate::terminal::text::shortened;
use crate::terminal::{Cell, Look, Tone, summary};
use crate::units::{human_bytes, human_seconds, human_us};

/// Volumes that are named for a mode.
const LISTED: usize = 5;
/// Columns of their names.
const NAME: usize = 24;

/// The rows about the cache that belong on one page; none without a cache.
pub fn rows(status: &Status) -> Vec<(&'static str, Cell)> {
    let Some(c) = &status.cache else { return Vec::new() };
    let behind = match c.writeback.lag_seconds {
        lag if lag > 0.0 => format!("; the pool is {} behind", human_us(lag * 1e6)),
        _ => String::new(),
    };
    let found = match c.hit_ratio.last_hour {
        Some(share) => format!("; {} of the last hour's reads found here", percent(Some(share))),
        None => String::new(),
    };
    let text = format!("{}: {}; {}{behind}{found}", c.path, state(c), holds(c));
    let mut rows = vec![("cache", Cell::new(tone(c), text))];
    rows.extend(losses(status, c));
    rows
}

/// The cache's part of a server's status; empty if there is none.
pub fn text(status: &Status, look: &Look) -> String {
    let Some(c) = &status.cache else { return String::new() };
    let mut rows: Vec<(&str, Cell)> = vec![
        ("cache", Cell::new(tone(c), format!("{}: {}", c.path, state(c)))),
        ("modes", modes(&status.volumes).into()),
        ("holds", holds(c).into()),
        ("blocks read", reads(c).into()),
        ("kept", kept(&c.replacement).into()),
        ("buckets", buckets(&c.buckets).into()),
        ("index", index(&c.index).into()),
        ("journal", journal(&c.journal).into()),
        ("write-back", writeback(&c.writeback).into()),
    ];
    if let Some(hits) = by_volume(&c.hit_ratio) {
        rows.push(("hits", hits.into()));
    }
    rows.push(("gc", gc(&c.gc).into()));
    rows.extend(losses(status, c));
    summary(rows, look)
}

/// The rows about blocks that cannot come to the pool, and blocks that are lost.
fn losses(status: &Status, c: &CacheStatus) -> Vec<(&'static str, Cell)> {
    let kept = c.kept.iter().map(|kept| ("STAYS", Cell::new(Tone::Bad, stays(kept))));
    let lost = bad(c, &status.volumes).map(|bad| ("LOST", Cell::new(Tone::Bad, bad)));
    kept.chain(lost).collect()
}

fn holds(c: &CacheStatus) -> String {
    format!(
        "{} dirty, {} clean, room for {}",
        human_bytes(c.dirty_bytes),
        human_bytes(c.clean_bytes),
        human_bytes(c.size_bytes)
    )
}

fn tone(c: &CacheStatus) -> Tone {
    if c.state == CacheState::Failed { Tone::Bad } else { Tone::Plain }
}

/// The name of a volume among others.
fn name(name: &str) -> String {
    shortened(name, NAME)
}

fn state(c: &CacheStatus) -> &'static str {
    match c.state {
        CacheState::Failed => "FAILED: it takes nothing any more",
        CacheState::Serving | CacheState::Aside => c.state.word(),
    }
}

/// `writeback: a, b; none: c`.
fn modes(volumes: &[VolumeOfStatus]) -> String {
    let mut by_mode: Vec<(CacheMode, Vec<String>)> = Vec::new();
    for VolumeOfStatus { volume, .. } in volumes {
        let (mode, name) = (volume.cache_mode, name(&volume.name));
        match by_mode.iter_mut().find(|(m, _)| *m == mode) {
            Some((_, names)) => names.push(name),
            None => by_mode.push((mode, vec![name])),
        }
    }
    let one = |(mode, names): (CacheMode, Vec<String>)| {
        let more = names.len().saturating_sub(LISTED);
        let listed = names.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{mode}: {listed}{more}")
    };
    let texts: Vec<String> = by_mode.into_iter().map(one).collect();
    if texts.is_empty() { "no volumes".into() } else { texts.join("; ") }
}

/// A share, `-` if there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.1}%", share * 100.0))
}

fn reads(c: &CacheStatus) -> String {
    let ratio = &c.hit_ratio;
    let mut text = format!(
        "{} found here, {} of the last hour's, {} of the last minute's ({} of {}), {} kept after \
         a miss, {} past the cache",
        percent(ratio.total),
        percent(ratio.last_hour),
        percent(ratio.last_minute),
        c.hits,
        c.hits + c.misses,
        c.promoted,
        c.bypassed,
    );
    match c.refetched {
        0 => {}
        n => text += &format!("; {n} BAD HERE and dropped, the pool has them"),
    }
    text
}

/// The replacement policy, and the blocks that it has kept.
fn kept(r: &ReplacementStatus) -> String {
    let mut text = format!("by {}", r.policy);
    if let Some(shares) = &r.shares {
        let shares = [("read", shares.read), ("write", shares.write), ("main", shares.main)]
            .map(|(queue, share)| format!("{queue} {}", percent(Some(share))))
            .join(", ");
        text += &format!(
            " ({shares}); {} blocks kept when their bucket went, {} came back soon",
            r.moved_blocks, r.ghost_hits,
        );
    }
    match r.lost_survivors {
        0 => {}
        n => text += &format!(", {n} dropped as room was short"),
    }
    match r.bad_survivors {
        0 => {}
        n => text += &format!(", {n} BAD"),
    }
    match r.lost_summaries {
        0 => {}
        n => text += &format!("; {n} buckets got no summary, as the cache's device was too slow"),
    }
    text
}

/// The hit ratio of each volume.
fn by_volume(ratio: &HitRatioStatus) -> Option<String> {
    let volumes = Some(&ratio.volumes).filter(|all| !all.is_empty())?;
    let one = |v: &VolumeHitRatio| {
        let (total, minute) = (percent(v.total), percent(v.last_minute));
        format!("{} {total} (last minute {minute})", name(&v.name))
    };
    let more = volumes.len().saturating_sub(LISTED);
    let listed = volumes.iter().take(LISTED).map(one).collect::<Vec<_>>().join(", ");
    Some(if more > 0 { format!("{listed} and {more} more") } else { listed })
}

fn buckets(b: &BucketStatus) -> String {
    let mut text =
        format!("{} free, {} clean, {} dirty, {} metadata", b.free, b.clean, b.dirty, b.metadata);
    match b.retired {
        0 => {}
        n => text += &format!(", {n} RETIRED after errors"),
    }
    text
}

fn index(i: &IndexStatus) -> String {
    format!(
        "{} nodes, {} in memory, {} unwritten; {} checkpoints",
        i.nodes,
        human_bytes(i.resident_bytes),
        i.unwritten_nodes,
        i.checkpoints,
    )
}

fn journal(j: &JournalStatus) -> String {
    format!(
        "{} of {} used; {} group commits of {:.1} records",
        human_bytes(j.used),
        human_bytes(j.size),
        j.commits,
        j.records_per_commit,
    )
}

fn writeback(w: &WritebackStatus) -> String {
    // The rate of the controller, unless room or age require more.
    let rate = w.rate_in_force.unwrap_or(w.rate);
    let mut text = format!(
        "{}/s ({}/s to {}/s), {} passes; the pool's image is {} behind",
        human_bytes(rate),
        human_bytes(w.min),
        human_bytes(w.max),
        w.passes,
        human_us(w.lag_seconds * 1e6),
    );
    if let Some(seconds) = w.image_of_before_s {
        let age = human_seconds(seconds);
        text += &format!(", and still that of before the start: {age} old at most");
    }
    if w.lag_seconds > w.max_lag_seconds {
        text += &format!(", OLDER THAN max_lag ({})", human_us(w.max_lag_seconds * 1e6));
    }
    if w.writers_waiting > 0 {
        text += &format!("; {} writes wait for room", w.writers_waiting);
    }
    if w.target > 0 {
        text += &format!("; {} dirty is the target", human_bytes(w.target));
    }
    if let Some(e) = &w.error {
        text += &format!("; THE LAST ONE FAILED: {e}");
    }
    text
}

fn gc(g: &GcStatus) -> String {
    let Some(last) = g.last_sec else { return "no pass yet".into() };
    format!(
        "{} passes, the last {} ago; {} on average, {} at most; its longest slice took {}",
        g.passes,
        human_us(last * 1e6),
        human_us(g.average_duration_ms.unwrap_or(0.0) * 1e3),
        human_us(g.max_duration_ms * 1e3),
        human_us(g.slice_us.max),
    )
}

/// The blocks of a volume that cannot be written back, and why.
fn stays(kept: &KeptStatus) -> String {
    format!(
        "{} of {}, which cannot come to the pool: {}",
        counted(kept.blocks, "block", "blocks"),
        kept.volume,
        kept.why
    )
}

/// Dirty blocks that cannot be written back.
fn bad(c: &CacheStatus, volumes: &[VolumeOfStatus]) -> Option<String> {
    if c.bad_blocks.is_empty() {
        return None;
    }
    let name = |id: u32| {
        let found = volumes.iter().find(|v| v.id == id);
        found.map_or_else(|| format!("volume {id}"), |v| v.volume.name.clone())
    };
    let mut ranges: Vec<(u32, u64, u64)> = Vec::new();
    for &(volume, at) in &c.bad_blocks {
        match ranges.last_mut() {
            Some((id, _, end)) if *id == volume && *end == at => *end += 1,
            _ => ranges.push((volume, at, at + 1)),
        }
    }
    let text = |&(id, from, end): &(u32, u64, u64)| match end - from {
        1 => format!("block {from} of {}", name(id)),
        _ => format!("blocks {from} to {} of {}", end - 1, name(id)),
    };
    let named: Vec<String> = ranges.iter().take(LISTED).map(text).collect();
    let of_named: u64 = ranges.iter().take(LISTED).map(|(_, from, end)| end - from).sum();
    let more = match c.bad_blocks_known.saturating_sub(of_named) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "{}{more}: damaged before they came to the pool, or known in part, and the pool cannot \
         read the rest; reading them is an error until they are written again",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use model::cache::{Policy, ShareStatus, SliceStatus};
    use model::volume::Volume;

    use super::*;

    /// As wide as the longest fact, so that none of them wraps.
    const LOOK: Look = Look { columns: 400, colour: false };

    fn volume(name: &str, id: u32, cache_mode: CacheMode) -> VolumeOfStatus {
        let volume = Volume { name: name.into(), cache_mode, ..Volume::default() };
        VolumeOfStatus { volume, id, requests: None }
    }

    #[test]
    fn a_cache_in_trouble_is_shown_as_such() {
        let hit_ratio = HitRatioStatus {
            total: Some(0.75),
            last_hour: Some(0.5),
            last_minute: None,
            volumes: vec![VolumeHitRatio {
                name: "a".into(),
                total: Some(0.75),
                last_minute: Some(0.25),
                ..VolumeHitRatio::default()
            }],
        };
        let replacement = ReplacementStatus {
            policy: Policy::Adaptive,
            moved_blocks: 12,
            ghost_hits: 5,
            shares: Some(ShareStatus { read: 0.05, write: 0.85, main: 0.1 }),
            bad_survivors: 1,
            lost_summaries: 4,
            ..ReplacementStatus::default()
        };
        let writeback = WritebackStatus {
            rate: 4 << 20,
            min: 1 << 20,
            max: 1 << 30,
            lag_seconds: 1.5,
            max_lag_seconds: 1.0,
            writers_waiting: 7,
            error: Some("no space".into()),
            ..WritebackStatus::default()
        };
        let cache = CacheStatus {
            path: "/c.img".into(),
            state: CacheState::Failed,
            size_bytes: 2 << 30,
            dirty_bytes: 3 << 20,
            hits: 3,
            misses: 1,
            refetched: 2,
            bad_blocks: vec![(1, 77)],
            bad_blocks_known: 1,
            hit_ratio,
            replacement,
            buckets: BucketStatus { free: 5, retired: 1, ..BucketStatus::default() },
            journal: JournalStatus {
                used: 4096,
                size: 1 << 20,
                records_per_commit: 2.25,
                ..JournalStatus::default()
            },
            gc: GcStatus {
                passes: 3,
                last_sec: Some(2.5),
                average_duration_ms: Some(20.0),
                max_duration_ms: 30.0,
                slice_us: SliceStatus { max: 210.0, ..SliceStatus::default() },
                ..GcStatus::default()
            },
            writeback,
            ..CacheStatus::default()
        };
        let status = Status {
            volumes: vec![
                volume("a", 5, CacheMode::WriteBack),
                volume("b", 6, CacheMode::None),
                volume("c", 7, CacheMode::WriteBack),
            ],
            cache: Some(cache),
            ..Status::default()
        };
        let text = text(&status, &LOOK);
        for part in [
            "/c.img: FAILED",
            "writeback: a, c; none: b",
            "3 MiB dirty, 0 B clean, room for 2 GiB",
            "75.0% found here, 50.0% of the last hour's, - of the last minute's (3 of 4)",
            "by adaptive (read 5.0%, write 85.0%, main 10.0%); 12 blocks kept when their bucket \
             went, 5 came back soon, 1 BAD; 4 buckets got no summary, as the cache's device was \
             too slow",
            "a 75.0% (last minute 25.0%)",
            "2 BAD HERE",
            "5 free, 0 clean, 0 dirty, 0 metadata, 1 RETIRED",
            "4 KiB of 1 MiB used; 0 group commits of 2.2 records",
            "4 MiB/s (1 MiB/s to 1 GiB/s), 0 passes; the pool's image is 1.5 s behind, OLDER THAN \
             max_lag (1.0 s)",
            "7 writes wait for room",
            "THE LAST ONE FAILED: no space",
            "3 passes, the last 2.5 s ago; 20.0 ms on average, 30.0 ms at most; its longest slice \
             took 210 us",
            "block 77 of volume 1: damaged",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn none_is_shown_as_nothing() {
        assert_eq!(text(&Status::default(), &LOOK), "");
        let empty = Status { cache: Some(CacheStatus::default()), ..Status::default() };
        assert!(text(&empty, &LOOK).contains("no volumes"));
    }
}
