//! The swarm: every run draws which operations and faults there are at all, and how large and slow
//! everything is, so that runs differ in kind and not only in order (Groce et al., Swarm Testing,
//! 2012).

use base::{Duration, Prng};
use rt::DeviceKind;
use sim::{DiskModel, FaultRates};

use crate::settings::*;
use crate::stream::Stream;

const MIB: u64 = 1 << 20;
/// A disk of which a single request may take so long.
const VERY_SLOW: Duration = Duration::from_millis(100);

pub(crate) fn one_of<T: Copy>(r: &mut Prng, choices: &[T]) -> T {
    choices[r.below(choices.len() as u64) as usize]
}

/// The settings of run `seed`, but for failures and aims.
pub(crate) fn without_failures(seed: u64) -> Settings {
    let r = &mut Stream::Run.of(seed);
    let count = one_of(r, &[1, 2, 2, 2, 3, 3, 4]);
    let copies = r.range(1, 1 + (count as u64).min(3)) as u8;
    let copies = if r.one_in(2) { copies.max(2.min(count as u8)) } else { copies };
    // Small ones are soon full, and what is freed is soon written again.
    let (least, most) = if r.one_in(3) { (8, 16) } else { (16, 65) };
    let devices: Vec<_> = (0..count).map(|_| disk(r, least, most)).collect();
    let damage = match (r.below(16), copies) {
        (0..=3, _) => Damage::None,
        (4..=5, _) => Damage::Beyond,
        (_, 1) => Damage::None,
        _ => Damage::Budget,
    };
    let victims = match damage {
        Damage::None => Vec::new(),
        Damage::Beyond => (0..count).collect(),
        Damage::Budget => victims(r, count, usize::from(copies) - 1),
    };
    let mut pool = pool::Settings {
        commit_interval: Duration::from_millis(one_of(r, &[2, 20, 200, 1000, 5000])),
        dirty_nodes: one_of(r, &[16, 64, 200]),
        cached_nodes: one_of(r, &[256, 256, 1000]),
        loaded_groups: one_of(r, &[2, 4, 16, 256]),
        device: queue::Limits {
            depth: one_of(r, &[1, 2, 8, 32, 128]),
            max_request_bytes: one_of(r, &[4096, 64 << 10, 1 << 20]),
            max_segments: one_of(r, &[1, 8, 256]),
            kind: kind(seed),
        },
        read_ahead: read_ahead(seed),
        ..pool::Settings::default()
    };
    // Large requests are split, and requests of one segment are not merged. On a device of up to
    // seconds a request, one block at a time, all the patience of a run would not suffice for one
    // commit; nor for a write behind several large ones of a crowd that overlap each other.
    let slowest = |model: &DiskModel| model.read_latency.most.max(model.write_latency.most);
    if devices.iter().any(|model| slowest(model) >= VERY_SLOW) {
        pool.device.max_request_bytes = 1 << 20;
        pool.device.max_segments = 256;
    }
    let direct = r.below(4) as usize;
    let boots = boots(r);
    let cache = cache_plan(seed);
    let (changes, slow) = changes(seed, cache.is_some(), count);
    Settings {
        seed,
        copies,
        group_bytes: MIB,
        pool,
        slots: one_of(r, &[256, 1024, 4096]),
        names: r.range(1, 7) as usize,
        volume_bytes: one_of(r, &[MIB, 2 * MIB, 6 * MIB, 20 * MIB]),
        full_size: false,
        huge: r.one_in(3),
        admin: if r.one_in(3) { 0 } else { r.range(10, 60) },
        direct,
        nbd: if direct == 0 { r.range(1, 4) } else { r.below(3) } as usize,
        vanish: if r.one_in(2) { 0 } else { r.range(20, 200) },
        depth: one_of(r, &[1, 2, 8, 24]),
        mix: mix(r),
        hot: one_of(r, &[0, 4, 8, 14, 16]),
        faults: more_faults(seed, faults(r, damage), damage),
        damage,
        victims,
        devices,
        boots,
        cache,
        changes,
        slow,
        most_blocks: 16,
        fua: 24,
        failures: Failures::default(),
        aim: None,
        older_copies: 0,
    }
}

/// Of a run in which devices come and go: what may strike them meanwhile. To be called when all
/// else is drawn.
///
/// A block group always has at least `settings.copies` chunks on different devices: the pool keeps
/// as many copies or one more, and gives up an old chunk only when the new one has everything. At
/// most `settings.copies - 1` devices are victims, and no other device goes out of use, or lacks
/// anything. So each block has a good copy, wherever chunks move: clients see no error, and nothing
/// is lost. A victim may fail to come online, if it has lost all its superblocks.
pub(crate) fn spare_the_moved(settings: &mut Settings) {
    if settings.changes.moves == 0 {
        return;
    }
    // Not tried yet: chunks move while devices fail that are needed, or in runs with other aims.
    let aimed = settings.aim.is_some_and(|aim| aim != Aim::Snapshots);
    let needed = settings.failures.needed.is_some();
    if needed || aimed || settings.damage == Damage::Beyond {
        settings.changes.moves = 0;
    }
}

fn disk(r: &mut Prng, least: u64, most: u64) -> DiskModel {
    let size = r.range(least, most) * MIB + r.below(16) * 64 * 1024;
    let mut model = if r.one_in(5) { DiskModel::rotating(size) } else { DiskModel::nvme(size) };
    model.align = one_of(r, &[512, 4096]);
    if r.one_in(4) {
        model.flush_latency.most *= 20;
    }
    if r.one_in(4) {
        model.write_latency.most *= 50;
    }
    if r.one_in(4) {
        model.read_latency.most *= 50;
    }
    model
}

fn cache_plan(seed: u64) -> Option<CachePlan> {
    let r = &mut Stream::Cache.of(seed);
    let cuts = &mut Stream::Cuts.of(seed);
    (!r.one_in(2)).then(|| {
        let mut plan = a_cache(r, cuts);
        plan.settings.device.kind = kind(!seed);
        let lies = &mut Stream::CacheLies.of(seed);
        if plan.damage == CacheDamage::None && lies.one_in(12) {
            plan.damage = CacheDamage::Lies;
        }
        plan
    })
}

/// Draws the kind that the queues take the devices for.
fn kind(seed: u64) -> Option<DeviceKind> {
    let r = &mut Stream::DeviceKind.of(seed);
    r.one_in(3).then_some(DeviceKind::Rotating)
}

/// Draws how far data is read ahead, in bytes, where devices count as rotating.
fn read_ahead(seed: u64) -> u64 {
    let r = &mut Stream::ReadAhead.of(seed);
    one_of(r, &[0, 32 << 10, 512 << 10, 1 << 20])
}

/// Some cache.
#[allow(clippy::needless_update, reason = "settings that are not drawn here are the default ones")]
pub(crate) fn a_cache(r: &mut Prng, cuts: &mut Prng) -> CachePlan {
    let bucket_bytes = one_of(r, &[64 << 10, 64 << 10, 128 << 10, 256 << 10]);
    let journal_bytes = one_of(r, &[MIB, MIB, 2 * MIB]);
    // As few buckets as there may be, and some more; or as much as is written.
    let buckets = if r.one_in(3) { r.range(16, 24) } else { r.range(24, 160) };
    // The journal stands there twice.
    let size = (MIB + 2 * journal_bytes + buckets * bucket_bytes).next_multiple_of(4096);
    let mut model = DiskModel::nvme(size);
    model.align = one_of(r, &[512, 4096]);
    if r.one_in(4) {
        model.flush_latency.most *= 20;
    }
    if r.one_in(4) {
        model.write_latency.most *= 50;
    }
    if r.one_in(4) {
        model.read_latency.most *= 50;
    }
    let target = one_of(r, &[5, 20, 40, 60]);
    let max = one_of(r, &[1 << 20, 16 << 20, 1 << 30]);
    let settings = cache::Settings {
        policy: one_of(r, &cache::Policy::ALL),
        resident_nodes: one_of(r, &[8, 32, 1000]),
        dirty_nodes: one_of(r, &[8, 32, 400]),
        journal_interval: Duration::from_millis(one_of(r, &[1, 20, 1000])),
        journal_entry_blocks: one_of(cuts, &[4, 4, 8, 64]),
        max_lag: Duration::from_millis(one_of(r, &[4, 50, 500, 30_000, 3_600_000])),
        dirty_target_percent: target,
        dirty_limit_percent: target + one_of(r, &[5, 30, 35]),
        seal_blocks: one_of(cuts, &[0, 0, 1, 8, 40]),
        pressure_percent: one_of(cuts, &[33, 0, 5, 15, 100]),
        writeback: cache::rate_controller::RateSettings {
            min: one_of(r, &[64 << 10, 4 << 20]).min(max),
            max,
            idle_rate: one_of(r, &[64 << 10, 64 << 20]).min(max),
        },
        promote_blocks: one_of(r, &[0, 4, 64]),
        // Small, so that reads of a few blocks more are streams.
        sequential_cutoff: one_of(r, &[0, 4096, 4096, 64 << 10, 4 << 20]),
        ..cache::Settings::default()
    };
    let rate = |r: &mut Prng| if r.one_in(2) { 0 } else { one_of(r, &[20, 100, 400, 2000]) };
    let harmless = FaultRates {
        short_transfer: rate(r),
        stuck: if r.one_in(4) { 500 } else { 0 },
        stuck_for: Duration::from_millis(one_of(r, &[5, 100, 3000])),
        ..FaultRates::default()
    };
    let lost = if r.one_in(3) { 0 } else { r.range(1, 5) };
    let detach = one_of(r, &[0, 1, 2]);
    use CacheDamage::{Buckets, Dies, Journal, Older, Superblocks, Table};
    let damage = if r.one_in(3) {
        one_of(r, &[Dies, Buckets, Buckets, Journal, Superblocks, Table, Older])
    } else {
        CacheDamage::None
    };
    CachePlan { disk: model, bucket_bytes, journal_bytes, settings, lost, damage, detach, harmless }
}

/// Draws what changes while clients work, and a device that is slow for some time.
fn changes(seed: u64, cached: bool, devices: usize) -> (Changes, Option<SlowDevice>) {
    let every = |r: &mut Prng, of: u64, least: u64, most: u64| {
        if r.one_in(of) { 0 } else { r.range(least, most) }
    };
    let settings = every(&mut Stream::SettingChanges.of(seed), 2, 4, 60);
    let limits = every(&mut Stream::Limits.of(seed), 3, 4, 60);
    let scrubs = every(&mut Stream::Scrubs.of(seed), 3, 4, 80);
    let moves = every(&mut Stream::Moves.of(seed), 2, 2, 30);
    let (snapshots, kept_snapshots) = snapshots(seed);
    let r = &mut Stream::Changes.of(seed);
    let (mode, cache) = (every(r, 3, 8, 80), every(r, 3, 8, 80));
    let alone = Changes { limits, scrubs, moves, snapshots, kept_snapshots, ..Changes::default() };
    let changes = Changes { mode, cache, settings, ..alone };
    let slow = SlowDevice {
        device: r.below(devices as u64) as usize,
        delay: Duration::from_millis(one_of(r, &[1, 10, 100])),
        time: Duration::from_millis(one_of(r, &[10, 300, 5000])),
    };
    let slow = r.one_in(4).then_some(slow);
    (if cached { changes } else { alone }, slow)
}

/// Draws how often snapshots change, and how many there may be. A pool has few places for them.
fn snapshots(seed: u64) -> (u64, usize) {
    let r = &mut Stream::Snapshots.of(seed);
    if r.one_in(4) { (r.range(4, 40), one_of(r, &[2, 8, 20])) } else { (0, 0) }
}

fn victims(r: &mut Prng, devices: usize, n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..devices).collect();
    (0..n).map(|_| all.swap_remove(r.below(all.len() as u64) as usize)).collect()
}

fn mix(r: &mut Prng) -> Mix {
    let weight = |r: &mut Prng| if r.one_in(4) { 0 } else { r.range(1, 12) };
    let mut m = Mix {
        write: weight(r),
        sectors: weight(r),
        large: weight(r) / 3,
        read: weight(r),
        flush: weight(r) / 2,
        discard: weight(r) / 3,
        zeroes: weight(r) / 3,
        extents: weight(r) / 5,
        outside: weight(r) / 8,
    };
    if m.write + m.sectors + m.large == 0 {
        m.write = 5;
    }
    m
}

fn faults(r: &mut Prng, damage: Damage) -> Faults {
    let rate = |r: &mut Prng| if r.one_in(2) { 0 } else { one_of(r, &[20, 100, 400, 2000]) };
    let stuck_for = Duration::from_millis(one_of(r, &[5, 100, 3000]));
    let harmless = FaultRates {
        short_transfer: rate(r),
        stuck: if r.one_in(3) { 500 } else { 0 },
        stuck_for,
        ..FaultRates::default()
    };
    let full = r.one_in(6);
    if damage == Damage::None {
        return Faults { harmless, full, ..Faults::default() };
    }
    let mut rates = FaultRates {
        bit_rot: rate(r),
        read_error: rate(r),
        misdirected_write: rate(r),
        lost_write: rate(r),
        transient_error: if r.one_in(3) { 0 } else { one_of(r, &[300, 2000]) },
        ..harmless
    };
    if damage == Damage::Beyond {
        // A fault that cannot be noticed when it happens to all copies (an acknowledged write that
        // was not done) is no fault of the pool.
        rates =
            FaultRates { bit_rot: 0, read_error: 0, misdirected_write: 0, lost_write: 0, ..rates };
        return Faults { rates, harmless, full, at_rest: true, ..Faults::default() };
    }
    Faults {
        rates,
        harmless,
        die: r.one_in(3),
        absent: r.one_in(3),
        stale: r.one_in(3),
        full,
        at_rest: r.one_in(2),
        ..Faults::default()
    }
}

fn more_faults(seed: u64, mut faults: Faults, damage: Damage) -> Faults {
    let r = &mut Stream::DeviceFaults.of(seed);
    let failed_discard = if r.one_in(2) { 0 } else { one_of(r, &[1, 4, 50]) };
    faults.harmless.failed_discard = failed_discard;
    faults.rates.failed_discard = failed_discard;
    if damage == Damage::Budget {
        (faults.swapped, faults.truncated) = (r.one_in(6), r.one_in(6));
        faults.hang = r.one_in(4);
    }
    faults
}

fn boots(r: &mut Prng) -> Vec<BootPlan> {
    let n = r.range(2, 7);
    (0..n)
        .map(|_| {
            let ending = match r.below(8) {
                0 => Ending::Close,
                1 => Ending::Kill,
                _ => Ending::PowerCut,
            };
            // Short ones: while the pool is being opened, or just after.
            let brief = r.one_in(5) && ending != Ending::Close;
            let cut_after = if brief {
                Duration::from_micros(r.range(1, 60_000))
            } else {
                Duration::from_secs(100_000)
            };
            BootPlan {
                ending,
                operations: one_of(r, &[5, 40, 150, 400]),
                cut_after,
                cut_at: None,
                verify: !r.one_in(4),
            }
        })
        .collect()
}
