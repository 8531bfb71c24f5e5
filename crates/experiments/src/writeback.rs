//! Write-back control: how fast dirty data is written back, and which requests stand still for it.
//!
//! bcache has a controller that aims at a share of the cache, never below a minimum. Two things
//! around it were reported from production. When clients ask for nothing, the rate leaps to its
//! maximum, which is 1 TiB/s. And each scan for dirty keys holds a lock that all writes need.
//!
//! * [`plant`]: clients, an array of disks, time
//! * [`old`]: the controller and the thread of bcache
//! * [`ours`]: `cache::controller` and `cache::delay`, as they are

mod array;
mod old;
mod ours;
mod plant;
#[cfg(test)]
#[path = "writeback_tests.rs"]
mod tests;

use cache::writer_delay::Curve;

use crate::report::{Picture, Report, Scale, Table, ms, short};
use crate::svg::{self, Panel};
use array::Region;
use old::BcacheWriteback;
use ours::ForebayWriteback;
use plant::{Load, Phase, WritebackMeasurements, run as run_plant};

const MB: f64 = 1e6;
/// The cache of the reports: 10 % of it are 36.7 GiB.
const CACHE_BLOCKS: u64 = (367 << 30) / 4096;
/// The cache that is too small for what is written.
const SMALL_BLOCKS: u64 = (4 << 30) / 4096;
/// The number of blocks that were dirty when clients stopped.
const DIRTY_BLOCKS: u64 = (955 << 20) / 4096;
/// Clients write to a file of a GiB; to a much larger one where the cache is too small.
const FILE_BLOCKS: u64 = (1 << 30) / 4096;
const LARGE_BLOCKS: u64 = (256 << 30) / 4096;

/// A load, and the cache that it meets.
struct Scenario {
    name: &'static str,
    cache_blocks: u64,
    /// Clients write here.
    region: Region,
    dirty_blocks: u64,
    phases: Vec<Phase>,
}

fn scenarios(scale: Scale) -> Vec<Scenario> {
    let phase = |seconds, writes, reads| Phase { seconds, writes, reads };
    let rate = Load::Rate;
    // Idle, or nearly; then clients are back.
    let back = phase(scale.pick(60, 10), rate(1000), 50);
    let quiet = scale.pick(60, 45);
    let of = |name, dirty_blocks, phases| Scenario {
        name,
        cache_blocks: CACHE_BLOCKS,
        region: Region::middle(FILE_BLOCKS),
        dirty_blocks,
        phases,
    };
    let full = phase(scale.pick(300, 40), Load::AsFastAsItGoes, 0);
    vec![
        of("start", 0, vec![phase(scale.pick(262, 60), rate(1000), 0)]),
        of("light", 0, vec![phase(scale.pick(300, 60), rate(10), 0)]),
        of("idle", DIRTY_BLOCKS, vec![phase(quiet, rate(0), 0), back]),
        of("trickle", DIRTY_BLOCKS, vec![phase(quiet, rate(1), 0), back]),
        Scenario {
            name: "full",
            cache_blocks: SMALL_BLOCKS,
            region: Region::middle(LARGE_BLOCKS),
            dirty_blocks: 0,
            phases: vec![full],
        },
    ]
}

/// The old policy and ours under one load.
fn both(scenario: &Scenario) -> [WritebackMeasurements; 2] {
    let Scenario { cache_blocks, region, dirty_blocks, phases, .. } = scenario;
    let dirty = || region.spread(*dirty_blocks);
    let old = BcacheWriteback::new(*cache_blocks, dirty());
    let ours = ForebayWriteback::new(*cache_blocks, dirty(), Curve::until(95));
    [run_plant(old, *region, phases), run_plant(ours, *region, phases)]
}

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let mut report = Report::new("Write-back control");
    describe(&mut report);
    let scenarios = scenarios(scale);
    let seen: Vec<[WritebackMeasurements; 2]> = scenarios.iter().map(both).collect();
    let mut table = Table::new(
        2,
        &[
            "load",
            "policy",
            "highest rate, MB/s",
            "most written back in a second, MB",
            "writes a second",
            "write, median ms",
            "P99.9",
            "slowest",
            "seconds without a write",
            "slowest read, ms",
        ],
    );
    for (scenario, both) in scenarios.iter().zip(&seen) {
        for (policy, s) in ["bcache", "ours"].into_iter().zip(both) {
            table.row(row(scenario.name, policy, s));
        }
    }
    report.table(table);
    report.text(
        "The controller of bcache leaps to 1 TiB/s when no request has come for 30 s, and to one \
         sector a second with the next request; a single write a second prevents both. The scans \
         are the pauses. Ours rises by a tenth each 100 ms, up to its idle rate. Where more is \
         written than the array takes, the line at the door spreads the wait: each write takes \
         somewhat longer, and none much. So the median is higher than that of bcache, which lets \
         most writes through at once and some wait at the array. The array is as busy with either, \
         and reads of it wait about as long. (A tick of the model is a millisecond, so shorter \
         waits are not told apart.)",
    );
    let panels =
        |names: &[&str], unit: &str, scale, of: &dyn Fn(&WritebackMeasurements) -> Vec<f64>| {
            let all = scenarios.iter().zip(&seen).filter(|(s, _)| names.contains(&s.name));
            let panel = |(s, [old, ours]): (&Scenario, &[WritebackMeasurements; 2])| {
                Panel::new(&format!("{}: {unit}", s.name), scale)
                    .seconds("bcache", &of(old))
                    .seconds("ours", &of(ours))
            };
            all.map(panel).collect::<Vec<_>>()
        };
    let rates =
        |s: &WritebackMeasurements| s.rates.iter().map(|rate| rate / MB).collect::<Vec<f64>>();
    let title = "The rate of write-back, idle and with a trickle";
    report.picture(Picture {
        file: "writeback-rate.svg".into(),
        title: title.into(),
        svg: svg::picture(
            title,
            &panels(&["idle", "trickle"], "rate, MB/s", svg::AxisScale::Decades(0.001), &rates),
        ),
    });
    let writes =
        |s: &WritebackMeasurements| s.writes.iter().map(|n| *n as f64).collect::<Vec<f64>>();
    let title = "Writes of clients in each second";
    report.picture(Picture {
        file: "writeback-writes.svg".into(),
        title: title.into(),
        svg: svg::picture(
            title,
            &panels(&["start", "light"], "writes a second", svg::AxisScale::Even, &writes),
        ),
    });
    let title = "Writes in each second, more than the array takes";
    report.picture(Picture {
        file: "writeback-full.svg".into(),
        title: title.into(),
        svg: svg::picture(
            title,
            &panels(&["full"], "writes a second", svg::AxisScale::Decades(100.0), &writes),
        ),
    });
    report
}

fn row(load: &str, policy: &str, s: &WritebackMeasurements) -> Vec<String> {
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let of = |q| if s.write.count() == 0 { "-".into() } else { ms(s.write.quantile_ns(q)) };
    vec![
        load.to_string(),
        policy.to_string(),
        short(most(&s.rates) / MB),
        short(most(&s.written) / MB),
        short(s.write.count() as f64 / s.writes.len() as f64),
        of(0.5),
        of(0.999),
        ms(s.write.max_ns()),
        s.stalled.to_string(),
        if s.read.count() == 0 { "-".into() } else { ms(s.read.max_ns()) },
    ]
}

fn describe(report: &mut Report) {
    report.text(
        "4 KiB random writes to a file of 1 GiB, 1000 a second, a minimum of 4 MiB/s, and a \
         target of 36.7 GiB, as reported in November 2019. Behind the cache is an array of 16 \
         disks, those of `--emulate hdd`. A write that the cache takes needs 0.375 ms.",
    );
    report.text(
        "- *start*: the cache is empty, and 1000 writes a second come. *light*: the same with 10 a \
         second.",
    );
    report.text(
        "- *idle*: 955 MiB are dirty, and no request comes for a minute. Then there are 1000 \
         writes a second, and 50 reads of the array. *trickle*: the same, but one write a second \
         comes meanwhile.",
    );
    report.text(
        "- *full*: a cache of 4 GiB, and clients that write to a file of 256 GiB as fast as they \
         can, 32 requests at once.",
    );
    report.text(
        "*bcache* is written anew after `drivers/md/bcache/writeback.c` of Linux 5.2. The rate is \
         computed every 5 s: a fortieth of what is dirty above the target, and a ten thousandth \
         of its integral, between the minimum and 10^9 sectors a second. After six rounds without \
         a request it is 2^31 sectors, and with the next request one sector a second until it is \
         computed again. The thread scans the index for 500 dirty keys under a lock that writes \
         need, writes them back with 64 in flight, scans again, and rests for 30 s when it has \
         seen all of the index. From 70 % dirty on writes go past the cache, to the array.",
    );
    report.text(&format!(
        "Modelled: a scan of the whole index takes {:.1} s ({} nodes at 1 ms), of a part of it as \
         much less. The reports name no cause for the pauses, but say that the thread used a \
         whole processor in each of them, and a scan under the lock is what it does then. With \
         that the model has the pause at the start, further ones in a run of 1000 writes a \
         second, and those every 30 s with 10 a second, as reported.",
        old::SCAN.as_secs_f64(),
        old::SCAN.as_millis(),
    ));
    report.text(
        "*Ours* is `cache::controller` (a minimum of 4 MiB/s, an idle rate of 64 MiB/s, a maximum \
         of 1 GiB/s) with its pacer, and `cache::delay` at the door. Modelled around them: a pass \
         begins 15 s after the cut before it, half of the default `max_lag`, or when more than \
         the target is dirty; it carries a cut in the order of addresses, 64 blocks at a time as \
         bcache; what it has carried is room when the whole cut is there. A cut is O(1) in the \
         product, so no request waits for it. The deadline by `max_lag` is left out, which would \
         write back sooner.",
    );
}
