//! Runs that are aimed at one class of fault. The ordinary draw reaches these states too rarely.
//!
//! About half of the runs are aimed. Such a run has a small cache, few clients, many short boots,
//! and nothing but the one fault, so that it is cheap and hits often.
//!
//! | aim | what happens | the mend that it tests |
//! | --- | --- | --- |
//! | churn | kill, restart, cut of power at the first writes after it | recovery flushes first |
//! | start | what a start reads is unreadable, right after a flush | unreadable is not absent |
//! | beside | many clients read blocks beside bad sectors | a bad sector costs one block |
//! | crowd | flushes fill the ring while a checkpoint waits for the pool | its room is held |
//! | unreachable | no copy of a node of a tree can be read, for a boot | one volume stops |
//! | through | volumes that do not write back, and the cache fails | no clean block is too old |
//! | front | modes and caches change, and nothing else commits | commits around a change |
//! | subsets | starts by some of the devices | the newest history is served, or none |
//! | copies | the same, with older copies of some devices or of all | the same, or the copies are refused |
//! | snapshots | snapshots come and go under load | nothing is freed that one has |
//! | sizes | shrinks that fail, and growth after them | the pool knows an end first |
//!
//! `--aim NAME` aims every run at one of them.
//!
//! All of it comes from a generator of its own.

mod front;
mod small;
mod snapshots;

use base::{Duration, Prng};

use crate::settings::*;
use crate::stream::Stream;
use crate::swarm::{a_cache, one_of};

use small::{BUCKET, boot, buckets, micros, quick_and_wide};

impl Aim {
    /// All of them.
    pub const ALL: [Aim; 11] = [
        Aim::Churn,
        Aim::Start,
        Aim::Beside,
        Aim::Crowd,
        Aim::Unreachable,
        Aim::Through,
        Aim::Front,
        Aim::Sizes,
        Aim::Subsets,
        Aim::Copies,
        Aim::Snapshots,
    ];

    /// Aims run `settings.seed`, at `forced` if that is given, or leaves it as it is.
    pub fn draw(settings: &mut Settings, forced: Option<Aim>) {
        let r = &mut Stream::Aim.of(settings.seed);
        let drawn = match r.below(32) {
            0..=2 => Some(Aim::Churn),
            3..=4 => Some(Aim::Start),
            5 => Some(Aim::Beside),
            6..=7 => Some(Aim::Crowd),
            8..=10 => Some(Aim::Unreachable),
            11..=12 => Some(Aim::Through),
            13..=14 => Some(Aim::Front),
            15 => Some(Aim::Sizes),
            16..=17 => Some(Aim::Subsets),
            18 => Some(Aim::Copies),
            // Others keep what they drew before there were snapshots.
            _ => Stream::SnapshotAim.of(settings.seed).one_in(12).then_some(Aim::Snapshots),
        };
        let Some(aim) = forced.or(drawn) else { return };
        plain(settings);
        settings.aim = Some(aim);
        let plan = calm(r);
        match aim {
            Aim::Churn => churn(r, settings, plan),
            Aim::Start => start(r, settings, plan),
            Aim::Beside => beside(r, settings, plan),
            Aim::Crowd => crowd(r, settings, plan),
            Aim::Unreachable => unreachable(r, settings, plan),
            Aim::Through => front::through(r, settings, plan),
            Aim::Front => front::front(r, settings, plan),
            Aim::Sizes => front::sizes(r, settings, plan),
            Aim::Snapshots => snapshots::snapshots(r, settings, plan),
            Aim::Subsets => subsets(r, settings),
            Aim::Copies => {
                subsets(r, settings);
                settings.older_copies = one_of(r, &[2, 4]);
            }
        }
    }
}

/// Nothing happens to the devices, and nothing changes but what is drawn here.
fn plain(s: &mut Settings) {
    s.failures = Failures::default();
    s.damage = Damage::None;
    s.victims.clear();
    s.faults = Faults::default();
    s.changes = Changes::default();
    s.slow = None;
    (s.admin, s.names, s.huge, s.full_size) = (0, 1, false, true);
    (s.direct, s.nbd, s.hot) = (1, 0, 0);
    s.boots.truncate(1);
}

/// A small cache without faults.
fn calm(r: &mut Prng) -> CachePlan {
    let mut plan = a_cache(r, &mut Prng::new(0));
    plan.journal_bytes = 1 << 20;
    plan.bucket_bytes = BUCKET;
    plan.damage = CacheDamage::None;
    (plan.lost, plan.detach) = (0, 0);
    plan.harmless = sim::FaultRates::default();
    plan.settings.seal_blocks = 0;
    plan
}

/// A kill while the cache's superblock is written leaves it to the next life, and not durable. What
/// it has replaced is what that life writes over first. Then power fails.
fn churn(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(50, 70);
    buckets(&mut plan, count);
    plan.disk.flush_latency = micros(1_000, one_of(r, &[2_000, 20_000]));
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[50, 30_000, 30_000]));
    // Many leaves, each with a few keys: checkpoints all the time.
    plan.settings.dirty_nodes = 8;
    plan.settings.resident_nodes = 1000;
    (plan.settings.dirty_target_percent, plan.settings.dirty_limit_percent) = (60, 95);
    plan.settings.journal_interval = Duration::from_millis(one_of(r, &[1, 20]));
    s.failures.collects = r.one_in(3);
    s.volume_bytes = 3 << 20;
    s.depth = one_of(r, &[4, 8]);
    s.fua = 24;
    s.most_blocks = 1;
    s.mix = Mix { write: 16, sectors: 1, flush: 2, read: 1, ..Mix::default() };
    s.boots[0] = boot(Ending::Kill, 1200, None);
    for _ in 0..6 {
        // Superblocks of the cache are written in pairs. The first of a pair counts.
        let kill = Moment::CacheSuperblock(1 + 2 * r.range(1, 4));
        s.boots.push(boot(Ending::Kill, 250, Some(kill)));
        let cut = Moment::CacheWrite(r.range(1, 5));
        s.boots.push(boot(Ending::PowerCut, 40, Some(cut)));
    }
    s.cache = Some(plan);
}

/// Boots that end right after a flush was answered: the newest entry of the journal is durable, and
/// nothing says so yet.
fn start(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(30, 80);
    buckets(&mut plan, count);
    plan.settings.journal_interval = Duration::from_secs(1);
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[50, 30_000, 30_000, 30_000]));
    s.failures.start = true;
    s.failures.unreadable = one_of(r, &[0, 2, 8]);
    s.volume_bytes = 1 << 20;
    s.depth = one_of(r, &[1, 2, 4]);
    s.fua = one_of(r, &[3, 8, 24]);
    s.most_blocks = one_of(r, &[1, 4, 16]);
    s.mix = Mix { write: 8, sectors: one_of(r, &[0, 2]), flush: 2, read: 1, ..Mix::default() };
    for _ in 0..10 {
        let ending = if r.one_in(2) { Ending::Kill } else { Ending::PowerCut };
        s.boots.push(boot(ending, 400, Some(Moment::Flush(r.range(1, 20)))));
    }
    // Without a cache each flush is a commit of the pool, whose superblock is all that tells of it.
    s.cache = if r.one_in(3) { None } else { Some(plan) };
}

/// Many clients read a small volume, block by block: their requests are merged.
fn beside(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(24, 60);
    buckets(&mut plan, count);
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[500, 30_000, 30_000]));
    s.failures.unreadable = one_of(r, &[1, 2]);
    s.failures.often = true;
    s.failures.flaky_reads = one_of(r, &[0, 200]);
    s.volume_bytes = one_of(r, &[128 << 10, 1 << 20]);
    s.depth = 24;
    s.fua = 24;
    s.most_blocks = one_of(r, &[1, 8]);
    s.mix = Mix { write: 4, read: 16, flush: 1, ..Mix::default() };
    for b in &mut s.boots {
        *b = boot(Ending::Kill, 600, None);
    }
    for _ in 0..3 {
        let ending = if r.one_in(3) { Ending::PowerCut } else { Ending::Kill };
        s.boots.push(boot(ending, 600, None));
    }
    s.cache = Some(plan);
}

/// The cache flushes fast and the pool slowly; each writer fills a block of the ring with every
/// flush.
fn crowd(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(100, 240);
    buckets(&mut plan, count);
    plan.disk.flush_latency = micros(20, 60);
    plan.settings.sequential_cutoff = 4096;
    plan.settings.max_lag = Duration::from_secs(30);
    plan.settings.journal_interval = Duration::from_millis(20);
    plan.settings.dirty_nodes = 400;
    (plan.settings.dirty_target_percent, plan.settings.dirty_limit_percent) = (60, 95);
    let most = Duration::from_micros(100_000);
    for disk in &mut s.devices {
        disk.flush_latency = micros(100_000, 400_000);
        // If each of so many requests took a second of the only disk, one of them would wait for
        // longer than the patience of a run.
        for latency in [&mut disk.read_latency, &mut disk.write_latency] {
            latency.most = latency.most.min(most).max(latency.least);
        }
    }
    s.failures.collects = r.one_in(2);
    s.volume_bytes = 6 << 20;
    s.slots = 4096;
    s.depth = 256;
    s.fua = 1;
    s.most_blocks = 1;
    s.mix = Mix { write: 400, large: one_of(r, &[4, 10]), read: 1, ..Mix::default() };
    s.boots[0] = boot(Ending::Kill, 3000, None);
    s.cache = Some(plan);
}

/// Several volumes, of some of which, or of block groups, no copy of some nodes can be read in most
/// boots.
fn unreachable(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    // Other volumes find little room where most of a cache is kept for the volumes that are struck;
    // and other policies do not put together what is kept.
    plan.settings.policy = cache::Policy::Adaptive;
    s.volume_bytes = one_of(r, &[1 << 20, 2 << 20]);
    let least = 2 * s.volume_bytes / BUCKET + 30;
    let count = r.range(least, 2 * least);
    buckets(&mut plan, count);
    if r.one_in(2) {
        plan.settings.sequential_cutoff = one_of(r, &[4096, 64 << 10]);
    }
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[50, 500, 30_000]));
    (plan.detach, plan.lost) = (one_of(r, &[0, 4]), one_of(r, &[0, 8]));
    quick_and_wide(s);
    s.failures.lost_nodes = one_of(r, &[1, 3]);
    s.failures.collects = r.one_in(4);
    s.names = r.range(2, 5) as usize;
    s.full_size = r.one_in(2);
    s.admin = one_of(r, &[0, 30, 100]);
    s.changes.mode = one_of(r, &[0, 0, 100]);
    s.changes.cache = one_of(r, &[0, 0, 200]);
    s.changes.scrubs = one_of(r, &[0, 100]);
    (s.direct, s.nbd) = one_of(r, &[(1, 0), (0, 1), (1, 1)]);
    s.depth = one_of(r, &[1, 4, 16]);
    s.fua = 24;
    s.most_blocks = one_of(r, &[1, 8]);
    s.hot = one_of(r, &[0, 8]);
    s.mix = Mix {
        write: 16,
        sectors: one_of(r, &[0, 2, 8]),
        large: one_of(r, &[0, 1, 4]),
        read: 8,
        flush: 1,
        discard: one_of(r, &[0, 1, 3]),
        zeroes: one_of(r, &[0, 1]),
        extents: 1,
        outside: 0,
    };
    s.boots[0] = boot(Ending::Close, 400, None);
    for _ in 0..8 {
        let ending = one_of(r, &[Ending::Close, Ending::Kill, Ending::PowerCut]);
        s.boots.push(BootPlan { verify: r.one_in(2), ..boot(ending, 300, None) });
    }
    s.cache = if r.one_in(6) { None } else { Some(plan) };
}

/// A mirror, of which any devices are there. [`crate::subsets`] draws the boots.
fn subsets(r: &mut Prng, s: &mut Settings) {
    let (devices, copies) = one_of(r, &[(2, 2), (2, 2), (3, 2), (3, 3)]);
    let disk = sim::DiskModel::nvme(one_of(r, &[12 << 20, 20 << 20]));
    s.devices = vec![disk; devices];
    s.copies = copies;
    s.pool.commit_interval = Duration::from_millis(one_of(r, &[2, 20, 1000]));
    s.cache = None;
}
