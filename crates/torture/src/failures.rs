//! Which operations of devices fail, which boots end unexpectedly, and storms of writers:
//! what a run draws of these, each with a switch of its own.
//!
//! All of it comes from a generator of its own, so that the rest of a run is drawn as it was
//! without it.
//!
//! | fault | what a client may see | what must be there after a restart |
//! | --- | --- | --- |
//! | a flush of a victim (there is a mirror) fails and loses what it covered, once or for good | nothing | all |
//! | a flush of a device that is needed, or of the cache, does | errors until the restart | all that a FLUSH acknowledged |
//! | a write or flush is done and reported as failed | as above | as above |
//! | a device, or the cache's, is away for a time, or dies and comes back at the restart | as above | as above |
//! | the file system under a device, or the cache's, is full, for a time or until a later start | as above; a write that found no space may be tried again | as above |
//! | a part of such a device takes no writes, for a boot or more | as above | as above |
//! | such a device hangs until the process is killed | nothing is answered | as above |
//! | such a device alone loses its power for a moment, and its next flush fails | as above | as above |
//! | a read fails, and is well when it is tried again: always, in recovery and the offline check too | nothing | all |
//! | a sector of the cache's data cannot be read | an error of that block, none of any other | all other blocks |
//! | a boot ends at any operation: in recovery, or a few after it, again and again | - | all that a FLUSH acknowledged |
//! | hundreds of writers wait for a flush each, on the smallest ring, under collection | nothing | everything comes to rest |

use base::{Duration, Prng};
use sim::{FaultRates, FlushLoss, Latency};

use crate::settings::*;
use crate::stream::Stream;
use crate::swarm::one_of;

/// The longest time that a device of the pool may take for a request in a storm.
const STORMY: Duration = Duration::from_millis(20);

impl Failures {
    /// Draws what fails in run `settings.seed`, and changes in `settings` what else that needs.
    pub fn draw(settings: &mut Settings) {
        let r = &mut Stream::Failure.of(settings.seed);
        let mut f = Failures::default();
        let cached = settings.cache.is_some();
        let beyond = settings.damage == Damage::Beyond;
        if settings.damage == Damage::Budget && r.one_in(2) {
            f.victims.failed_flush = one_of(r, &[0, 4, 20, 100]);
            f.victims.failed_but_done = one_of(r, &[0, 50, 400]);
        }
        let loses = one_of(
            r,
            &[
                FlushLoss::Part,
                FlushLoss::All,
                FlushLoss::Part,
                FlushLoss::All,
                FlushLoss::Part,
                FlushLoss::Nothing,
            ],
        );
        let how = one_of(
            r,
            &[
                FailureMode::Flush(loses),
                FailureMode::Flush(loses),
                FailureMode::Flush(loses),
                FailureMode::Flushes(loses),
                FailureMode::Once,
                FailureMode::ButDone,
                FailureMode::Away,
                FailureMode::Dies,
                FailureMode::Full,
            ],
        );
        let lasting = &mut Stream::LastingFailure.of(settings.seed);
        let kinds = [FailureMode::Range, FailureMode::Hangs, FailureMode::PowerAlone];
        let how = if lasting.one_in(3) { one_of(lasting, &kinds) } else { how };
        let whose = match r.below(if cached { 6 } else { 3 }) {
            0 => FailingDevices::OneOfPool,
            1 | 2 => FailingDevices::AllOfPool,
            3 | 4 => FailingDevices::Cache,
            _ => FailingDevices::All,
        };
        if r.one_in(2) && !beyond {
            f.needed = Some((how, whose));
            // Commits end in flushes: many of them, and several that wait at once.
            let (flush, fua) = (r.range(2, 8), one_of(r, &[24, 8, 3]));
            settings.mix.flush = settings.mix.flush.max(flush);
            settings.fua = fua;
            // The needed devices are all that is whole: there are no victims beside them.
            f.victims = FaultRates::default();
            if let Some(plan) = settings.cache.as_mut().filter(|c| c.damage == CacheDamage::Lies) {
                // A device that loses its power alone must not have lied.
                plan.damage = CacheDamage::None;
            }
            settings.damage = Damage::None;
            settings.victims.clear();
            settings.faults = Faults {
                harmless: settings.faults.harmless,
                full: settings.faults.full,
                ..Faults::default()
            };
        }
        let flaky = one_of(r, &[20, 200, 1000]);
        if r.one_in(4) && !beyond {
            f.flaky_reads = flaky;
        }
        let unreadable = one_of(r, &[1, 2, 8]);
        let whole = settings.cache.as_ref().is_some_and(|plan| plan.damage == CacheDamage::None);
        if r.one_in(3) && whole && !beyond {
            f.unreadable = unreadable;
        }
        if r.one_in(2) {
            let most = r.range(1, 4);
            f.hasty = Some(HastyBoots { most });
            hurry(r, &mut settings.boots, most);
        }
        // Hundreds of writers before a disk that takes up to 750 ms wait for longer than anybody is
        // patient.
        let fast = settings
            .devices
            .iter()
            .all(|d| d.read_latency.most.max(d.write_latency.most) <= STORMY);
        if r.one_in(8) && cached && !beyond && fast && settings.slow.is_none() {
            (f.storm, f.collects) = (true, true);
            blow(r, settings);
        }
        settings.failures = f;
    }
}

/// After boots that end in a crash, some that end at any of their operations.
fn hurry(r: &mut Prng, boots: &mut Vec<BootPlan>, most: u64) {
    // The time that the added boots cost comes off the others.
    boots.truncate(4);
    let before = std::mem::take(boots);
    for mut boot in before {
        if boot.ending == Ending::PowerCut && r.one_in(2) {
            boot.ending = Ending::Kill;
        }
        boots.push(boot);
        if boot.ending == Ending::Close {
            continue;
        }
        for _ in 0..r.below(most + 1) {
            let ending = if r.one_in(3) { Ending::Kill } else { Ending::PowerCut };
            let span = one_of(r, &[10, 60, 300, 2000]);
            let operations = one_of(r, &[5, 40]);
            let forever = Duration::from_secs(100_000);
            boots.push(BootPlan {
                ending,
                operations,
                cut_after: forever,
                cut_at: Some(Moment::Operation(r.below(span))),
                verify: r.one_in(3),
            });
            if ending == Ending::PowerCut {
                break;
            }
        }
    }
}

/// Nothing happens to the cache but what is drawn here.
fn calm(plan: &mut CachePlan) {
    plan.journal_bytes = 1 << 20;
    plan.damage = CacheDamage::None;
    (plan.lost, plan.detach) = (0, 0);
}

/// Hundreds of writers at once, on the smallest ring, in a cache that has room for them.
fn blow(r: &mut Prng, s: &mut Settings) {
    let Some(plan) = &mut s.cache else { return };
    calm(plan);
    plan.bucket_bytes = 128 << 10;
    plan.disk.size_bytes = (3 << 20) + r.range(100, 240) * plan.bucket_bytes;
    if r.one_in(2) {
        // The longer a flush takes, the more wait for the next.
        plan.disk.flush_latency = Latency::new(Duration::from_millis(1), Duration::from_millis(10));
    }
    plan.settings.journal_interval = Duration::from_millis(one_of(r, &[1, 20, 1000]));
    (plan.settings.dirty_target_percent, plan.settings.dirty_limit_percent) = (60, 95);
    s.changes = Changes::default();
    s.admin = 0;
    s.names = 2;
    (s.direct, s.nbd) = (1, 0);
    s.depth = one_of(r, &[300, 400, 600]);
    s.slots = 4096;
    s.huge = false;
    s.volume_bytes = s.volume_bytes.max(6 << 20);
    s.fua = 1;
    s.most_blocks = one_of(r, &[1, 2]);
    s.hot = one_of(r, &[0, 4]);
    s.mix = Mix {
        write: 20,
        sectors: one_of(r, &[0, 4]),
        large: one_of(r, &[0, 0, 1]),
        read: 1,
        ..Mix::default()
    };
    s.boots.truncate(2);
    for boot in &mut s.boots {
        boot.operations = 4000;
        (boot.cut_at, boot.cut_after) = (None, Duration::from_secs(100_000));
    }
}
