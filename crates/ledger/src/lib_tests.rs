use base::{Duration, Instant, VolumeId};
use proptest::prelude::*;

use crate::advice::advice;
use crate::explain::{Answer, Question, explain};
use crate::summary::{Summary, band_of, top_of};
use crate::*;

fn at(us: u64) -> Moment {
    Moment::at(Instant(us * 1_000))
}

fn read(us: u64) -> Story {
    Story::of_request(RequestClass::Read, 4096, 512, at(us))
}

fn told(story: &Story, us: u64) -> Vec<(Reason, Reason, u64)> {
    let (_, parts) = story.end(at(us));
    parts.iter().map(|p| (p.cause.stage, p.cause.what.reason, p.ns / 1_000)).collect()
}

#[test]
fn time_belongs_to_the_innermost_wait_and_to_the_outermost_stage() {
    let story = read(0);
    let lock = story.enter(Reason::RangeLock.into(), at(1));
    story.leave(lock, at(11));
    let index = story.enter(Reason::Index.into(), at(12));
    let queue = story.enter(Reason::DeviceQueue.into(), at(13));
    story.turn(&queue, Reason::Transfer.into(), at(113));
    story.leave(queue, at(143));
    story.leave(index, at(145));
    assert_eq!(
        told(&story, 150),
        [
            (Reason::Index, Reason::DeviceQueue, 100),
            (Reason::Index, Reason::Transfer, 30),
            (Reason::RangeLock, Reason::RangeLock, 10),
            (Reason::Turn, Reason::Turn, 7),
            (Reason::Index, Reason::Index, 3),
        ]
    );
}

#[test]
fn waits_of_several_tasks_end_in_any_order() {
    let story = read(0);
    let a = story.enter(Reason::Transfer.into(), at(0));
    let b = story.enter(Reason::DeviceFlush.into(), at(10));
    story.leave(a, at(20));
    story.leave(b, at(30));
    // From 20 on the flush is the outermost.
    let (transfer, flush) = (Reason::Transfer, Reason::DeviceFlush);
    let expected = [(transfer, transfer, 10), (transfer, flush, 10), (flush, flush, 10)];
    assert_eq!(told(&story, 30), expected);
    // What comes after the end is not told.
    let late = story.enter(Reason::Ring.into(), at(31));
    story.leave(late, at(99));
    assert!(told(&story, 99).is_empty());
}

#[test]
fn a_wait_for_a_job_is_told_by_what_the_job_waits_for() {
    let ledger = Ledger::default();
    let commit = ledger.job("commit", at(0));
    let disk = ledger.place("pool device sda");
    // What it did before does not count.
    let before = commit.enter(Reason::Transfer.into(), at(0));
    let story = read(500);
    let token = story.enter_job(Reason::Commit, &commit, at(500));
    commit.leave(before, at(600));
    let flush = WaitCause { reason: Reason::DeviceFlush, place: disk, holder: Holder::NONE };
    let flush = commit.enter(flush, at(650));
    commit.leave(flush, at(1_650));
    story.leave(token, at(1_700));
    let (_, parts) = story.end(at(1_700));
    let parts: Vec<_> =
        parts.iter().map(|p| (p.cause.what.reason, p.ns / 1_000, p.cause.stage)).collect();
    assert_eq!(
        parts,
        [
            (Reason::DeviceFlush, 1_000, Reason::Commit),
            // The commit itself was at work, or had not begun.
            (Reason::Commit, 100, Reason::Commit),
            (Reason::Transfer, 100, Reason::Commit),
        ]
    );
}

#[test]
fn jobs_that_wait_for_each_other_are_told_all_the_same() {
    let ledger = Ledger::default();
    let (a, b) = (ledger.job("a", at(0)), ledger.job("b", at(0)));
    let _of_a = a.enter_job(Reason::Commit, &b, at(0));
    let _of_b = b.enter_job(Reason::Ring, &a, at(0));
    let story = read(0);
    let _token = story.enter_job(Reason::Throttle, &a, at(0));
    let parts = told(&story, 100);
    assert_eq!(parts.iter().map(|p| p.2).sum::<u64>(), 100, "{parts:?}");
}

#[test]
fn time_in_which_the_thread_was_busy_is_told_apart() {
    let story = read(0);
    let wait = story.enter(Reason::Transfer.into(), at(0));
    let late = Duration::from_micros(30);
    let moment = Moment { late, holder: Holder::of("collection"), ..at(100) };
    story.leave(wait, moment);
    let (_, parts) = story.end(moment);
    assert_eq!(parts.len(), 2);
    assert_eq!((parts[0].cause.what.reason, parts[0].ns), (Reason::Transfer, 70_000));
    let what = parts[1].cause.what;
    assert_eq!(
        (what.reason, what.holder.name(), parts[1].ns),
        (Reason::Engine, "collection", 30_000)
    );
}

#[test]
fn time_in_which_the_thread_did_not_run_is_told_whenever_it_is_seen() {
    let stopped = |us, away| {
        let away = AwayTimes::of(Reason::NotRunning, Duration::from_micros(away));
        Moment { away, ..at(us) }
    };
    let commit = Story::of_job("commit", at(0));
    let (spans, of_job) = (read(0), read(0));
    let transfer = spans.enter(Reason::Transfer.into(), at(0));
    let flush = commit.enter(Reason::DeviceFlush.into(), at(0));
    let waits = of_job.enter_job(Reason::Commit, &commit, at(0));
    // It is stopped from 10 to 510; what is waited for ends some turns later.
    let now = stopped(530, 500);
    spans.leave(transfer, now);
    commit.leave(flush, now);
    of_job.leave(waits, now);
    let (gone, flush) = (Reason::NotRunning, Reason::DeviceFlush);
    let after = |story: Story| {
        let (_, parts) = story.end(now);
        let of = parts.iter().map(|p| (p.cause.stage, p.cause.what.reason, p.ns / 1_000));
        of.collect::<Vec<_>>()
    };
    let transfer = Reason::Transfer;
    assert_eq!(after(spans), [(gone, gone, 500), (transfer, transfer, 30)]);
    assert_eq!(after(of_job), [(Reason::Commit, gone, 500), (Reason::Commit, flush, 30)]);
    // What began since then knows nothing of it.
    let since = Story::of_request(RequestClass::Read, 0, 512, stopped(520, 500));
    assert_eq!(after(since), [(Reason::Turn, Reason::Turn, 10)]);
    // What had come meanwhile waited for nothing else.
    let late = Duration::from_micros(500);
    let moment = Moment { late, reason: gone, ..stopped(511, 500) };
    let came = Story::of_request(RequestClass::Read, 0, 512, moment.before());
    let (_, parts) = came.end(moment);
    assert_eq!((parts.len(), parts[0].cause.what.reason, parts[0].ns), (1, gone, 500_000));
    // It was stopped, and later others had all processors.
    let both = read(0);
    let crowded = AwayTimes::of(Reason::NoProcessor, Duration::from_micros(100));
    let now = stopped(630, 500);
    let (_, parts) = both.end(Moment { away: now.away.and(crowded), ..now });
    let of: Vec<_> = parts.iter().map(|p| (p.cause.what.reason, p.ns / 1_000)).collect();
    assert_eq!(of, [(gone, 500), (Reason::NoProcessor, 100), (Reason::Turn, 30)]);
}

fn answer(ledger: &Ledger, slower_than_us: u64) -> Answer {
    let slower_than_ns = slower_than_us * 1_000;
    let question = Question { volume: None, kind: None, since: Instant(0), slower_than_ns };
    explain(ledger, &question, at(0))
}

#[test]
fn one_slow_request_is_told_of_in_the_singular() {
    let ledger = Ledger::default();
    let disk = ledger.place("disk");
    let story = read(0);
    let what =
        WaitCause { reason: Reason::DeviceQueue, place: disk, holder: Holder::of("write-back") };
    let wait = story.enter(what, at(0));
    story.leave(wait, at(50_000));
    ledger.end(&story, at(50_001));
    let verdict = &answer(&ledger, 20_000).kinds[0].verdict;
    assert!(
        verdict.starts_with("1 read took 50.0 ms. 1 was slower than 20.0 ms; it "),
        "{verdict}"
    );
    assert!(
        verdict.contains("it waited mostly for a turn on disk, beside write-back"),
        "{verdict}"
    );
}

/// Lengths are told apart to an eighth: here 134.2 to 151.0 ms are one.
#[test]
fn none_is_slower_than_the_longest() {
    let ledger = Ledger::default();
    let ends = |ms: u64| ledger.end(&read(0), at(ms * 1_000));
    (0..3).for_each(|_| ends(1));
    ends(140);
    let of = |ms: u64| answer(&ledger, ms * 1_000).kinds.remove(0);
    let longest = of(148);
    assert_eq!((longest.slow, longest.causes.len()), (0, 0));
    assert!(longest.verdict.ends_with(" None was slower than 148.0 ms."), "{}", longest.verdict);
    assert!(answer(&ledger, 140_000).slowest.is_empty() && of(140).slow == 0);
    // It is a single one, so it is the longest.
    assert!(of(139).verdict.contains(" 1 was slower than 139.0 ms; it "), "{}", of(139).verdict);
    ends(145);
    let some = of(143);
    assert_eq!((some.slow, some.about), (2, true));
    assert!(some.verdict.contains(" About 2 were slower than 143.0 ms; 2 of these"));
    // No other is in the band of this one.
    let all = of(100);
    assert_eq!((all.slow, all.about), (2, false));
    assert!(all.verdict.contains(" 2 were slower than 100.0 ms;"), "{}", all.verdict);
}

#[test]
fn an_answer_names_the_cause_and_is_silent_where_nothing_is_wrong() {
    let ledger = Ledger::default();
    let disk = ledger.place("cache device nvme0");
    for i in 0..1_000u64 {
        let story = read(i * 100);
        story.set_volume(VolumeId(1 + (i % 2) as u32));
        let what = WaitCause {
            reason: Reason::DeviceQueue,
            place: disk,
            holder: Holder::of("write-back"),
        };
        let wait = story.enter(what, at(i * 100));
        let took = if i % 100 == 7 { 50_000 } else { 80 };
        story.leave(wait, at(i * 100 + took));
        ledger.end(&story, at(i * 100 + took + 1));
    }
    let slow = answer(&ledger, 20_000);
    let reads = &slow.kinds[0];
    assert_eq!((slow.kinds.len(), reads.count, reads.slow), (1, 1_000, 10));
    assert_eq!(reads.causes.len(), 1);
    let text = "a turn on cache device nvme0, beside write-back";
    assert_eq!((reads.causes[0].text.as_str(), reads.causes[0].count), (text, 10));
    assert!(reads.verdict.contains("10 were slower than 20.0 ms"), "{}", reads.verdict);
    assert!(reads.verdict.contains("writeback_rate_max"), "{}", reads.verdict);
    assert!(reads.verdict.contains("latency_target_read"), "{}", reads.verdict);
    assert_eq!(reads.holders, [("write-back", 500_000_000)]);
    assert_eq!(reads.slow_ns, 10 * 50_001_000);
    assert_eq!((slow.slowest.len(), slow.slowest[0].slow.ns), (10, 50_001_000));
    // The median is made of the same, and is short.
    assert!((81_000..93_000).contains(&reads.percentiles[0].ns));
    // Half of them are of each volume; all slow ones are of the second.
    let of = |volume| {
        let question = Question {
            volume: Some(VolumeId(volume)),
            kind: Some(RequestClass::Read),
            since: Instant(0),
            slower_than_ns: 20_000_000,
        };
        let kinds = explain(&ledger, &question, at(0)).kinds;
        kinds.first().map(|k| (k.count, k.slow))
    };
    assert_eq!((of(1), of(2), of(3)), (Some((500, 0)), Some((500, 10)), None));
    let well = answer(&ledger, 100_000);
    assert!(well.kinds[0].causes.is_empty() && well.slowest.is_empty());
    assert!(well.kinds[0].verdict.ends_with("None was slower than 100.0 ms."));
}

#[test]
fn a_verdict_names_what_most_requests_waited_for_themselves() {
    let ledger = Ledger::default();
    let slow = |kind, count, stage: Reason, what: WaitCause| {
        for _ in 0..count {
            let story = Story::of_request(kind, 0, 4096, at(0));
            let outer = story.enter(stage.into(), at(0));
            let inner = story.enter(what, at(0));
            story.leave(inner, at(50_000));
            story.leave(outer, at(50_000));
            ledger.end(&story, at(50_000));
        }
    };
    let on = |place: &str, holder| {
        let (place, holder) = (ledger.place(place), Holder::of(holder));
        WaitCause { reason: Reason::Transfer, place, holder }
    };
    let throttle = Reason::Throttle;
    let verdict = |kind| {
        let kinds = answer(&ledger, 20_000).kinds;
        kinds.into_iter().find(|k| k.kind == kind).map(|k| k.verdict).unwrap_or_default()
    };
    // Writers wait for room, for this reason or that; none is as frequent as the client.
    slow(RequestClass::Write, 61, Reason::Reply, Reason::Reply.into());
    slow(RequestClass::Write, 50, throttle, on("pool device a", "write-back"));
    slow(RequestClass::Write, 47, throttle, on("pool device b", "write-back"));
    slow(RequestClass::Write, 40, throttle, throttle.into());
    let said = verdict(RequestClass::Write);
    let room = "137 of these waited mostly for write-back, as room for dirty data runs short; in \
                50 cases that waited for a transfer of pool device a, beside write-back.";
    assert!(said.contains(room), "{said}");
    assert!(said.contains(" 61 waited mostly for the client, to take the reply."), "{said}");
    assert!(said.ends_with("use a larger cache, or a faster pool."), "{said}");
    // Most of them waited for nothing else.
    slow(RequestClass::Write, 20, throttle, throttle.into());
    let said = verdict(RequestClass::Write);
    let room = "157 of these waited mostly for write-back, as room for dirty data runs short. 61";
    assert!(said.contains(room), "{said}");
    // Each device of a mirror has half of them.
    slow(RequestClass::Read, 60, Reason::Reply, Reason::Reply.into());
    for device in ["pool device a", "pool device b"] {
        slow(RequestClass::Read, 40, Reason::Transfer, on(device, "scrub"));
    }
    let said = verdict(RequestClass::Read);
    let devices = "80 of these waited mostly for devices, 40 of them for a transfer of pool device \
                   a, beside scrub.";
    assert!(said.contains(devices) && said.contains("scrub.rate"), "{said}");
    // Some of one device waited beside one job, and some beside another.
    slow(RequestClass::Discard, 5, Reason::Transfer, on("pool device a", "scrub"));
    slow(RequestClass::Discard, 2, Reason::DeviceQueue, on("pool device a", "commit"));
    let said = verdict(RequestClass::Discard);
    let device = " 7 of these waited mostly for pool device a, 5 of them for a transfer of pool ";
    assert!(said.contains(device), "{said}");
    // The thread was busy with several jobs.
    let busy = |job| WaitCause { holder: Holder::of(job), ..WaitCause::from(Reason::Engine) };
    slow(RequestClass::Flush, 2, Reason::Engine, busy("scrub"));
    slow(RequestClass::Flush, 1, Reason::Engine, busy("collection"));
    let said = verdict(RequestClass::Flush);
    let thread = "3 of these waited mostly for the engine's thread, which was busy; 2 of them for \
                  the engine's thread, which was busy with scrub.";
    assert!(said.contains(thread), "{said}");
}

#[test]
fn an_answer_says_how_fast_the_work_was_that_kept_the_device_busy() {
    let (ledger, other) = (Ledger::default(), Holder::of(Holder::OTHER_REQUESTS));
    let (disk, second) = (ledger.place("pool device sda"), 1_000_000);
    let what =
        WaitCause { reason: Reason::Transfer, place: disk, holder: Holder::of("write-back") };
    let story = read(0);
    let wait = story.enter(what, at(0));
    story.leave(wait, at(30_000));
    ledger.end(&story, at(30_000));
    assert_eq!(answer(&ledger, 20_000).kinds[0].causes[0].rate, None);
    // 40 MiB in each of three seconds, of which two are of the next minute. Others, and another
    // device, do not count.
    for at_second in [58, 60, 61] {
        let now = at(at_second * second).now;
        for _ in 0..40 {
            ledger.moved(disk, what.holder, 1 << 20, now);
            ledger.moved(disk, other, 1 << 20, now);
            ledger.moved(ledger.place("pool device sdb"), what.holder, 1 << 20, now);
        }
    }
    let reads = answer(&ledger, 20_000).kinds.remove(0);
    let text = "a transfer of pool device sda, beside write-back at 40 MiB/s";
    assert_eq!((reads.causes[0].rate, reads.causes[0].text.as_str()), (Some(40 << 20), text));
    assert!(reads.verdict.contains(text), "{}", reads.verdict);
    // A device without a name is none in particular.
    ledger.moved(PlaceId::NONE, other, 1 << 20, at(61 * second).now);
    let none = WaitCause { place: PlaceId::NONE, holder: other, ..what };
    assert_eq!(ledger.rate(none, Instant(0), |_, _| true), None);
    // Of a minute in which none waited for it nothing counts: neither quick ones nor others did.
    for at_second in [130, 131] {
        ledger.moved(disk, what.holder, 1 << 30, at(at_second * second).now);
        ledger.end(&read(at_second * second), at(at_second * second + 30_000));
        let quick = read(at_second * second);
        let _wait = quick.enter(what, at(at_second * second));
        ledger.end(&quick, at(at_second * second + 10));
    }
    let reads = answer(&ledger, 20_000).kinds.remove(0);
    let of_disk = reads.causes.iter().find(|c| c.cause.what == what);
    assert_eq!(of_disk.and_then(|c| c.rate), Some(40 << 20), "{:?}", reads.causes);
}

/// A thousand slower writes of that minute do not take the room of the stories of slow reads.
#[test]
fn the_slowest_of_each_kind_are_kept() {
    let ledger = Ledger::default();
    for i in 0..1_000 {
        let write = Story::of_request(RequestClass::Write, 0, 4096, at(i));
        ledger.end(&write, at(i + 900_000));
    }
    for i in 0..3 {
        ledger.end(&read(i), at(i + 30_000));
    }
    let since = Instant(0);
    let question = Question {
        volume: None,
        kind: Some(RequestClass::Read),
        since,
        slower_than_ns: 20_000_000,
    };
    let told: Vec<_> =
        explain(&ledger, &question, at(0)).slowest.iter().map(|s| s.slow.kind).collect();
    assert_eq!(told, [RequestClass::Read; 3]);
}

/// A thousand slower reads of another volume do not take the room of the story of its slowest read.
#[test]
fn the_slowest_of_each_volume_is_kept() {
    let ledger = Ledger::default();
    let end = |volume, i, took| {
        let story = read(i);
        story.set_volume(VolumeId(volume));
        ledger.end(&story, at(i + took));
    };
    (0..1_000).for_each(|i| end(1, i, 900_000));
    (0..3).for_each(|i| end(2, i, 30_000 + i));
    let told = |volume| {
        let since = Instant(0);
        let question = Question { volume, kind: None, since, slower_than_ns: 20_000_000 };
        let slowest = explain(&ledger, &question, at(0)).slowest;
        slowest.iter().map(|s| (s.slow.ended, s.slow.ns / 1_000)).collect::<Vec<_>>()
    };
    assert_eq!(told(Some(VolumeId(2))), [(at(30_004).now, 30_002)]);
    // That of a volume is not told twice.
    let mut first = told(Some(VolumeId(1)));
    first.dedup();
    assert_eq!(first.len(), 10);
}

#[test]
fn what_is_older_than_an_hour_is_forgotten() {
    let ledger = Ledger::default();
    let minute = 60_000_000;
    for i in 0..100 {
        ledger.end(&read(i * minute), at(i * minute + 5));
    }
    assert_eq!(answer(&ledger, 0).kinds[0].count, 60);
    let since = Instant(97 * minute * 1_000);
    let question = Question { volume: None, kind: None, since, slower_than_ns: 0 };
    assert_eq!(explain(&ledger, &question, at(0)).kinds[0].count, 3);
}

#[test]
fn bands_cover_all_lengths_in_order_to_an_eighth() {
    let mut last = None;
    for ns in (0..2_000).chain((11..63).flat_map(|m| [(1 << m) - 1, 1 << m, (1 << m) + (1 << 9)])) {
        let band = band_of(ns);
        assert!(last <= Some(band), "{ns}");
        assert!(top_of(band) >= ns && top_of(band) <= ns + ns / 8, "{ns}: {}", top_of(band));
        last = Some(band);
    }
    let mut summary = Summary::default();
    (1..=1_000u64).for_each(|us| summary.count_one(us * 1_000, &[]));
    for (q, want) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
        let got = summary.quantile_ns(q);
        assert!(got >= want && got <= want + want / 8, "{q}: {got}");
    }
    assert_eq!(summary.above(499_000).count, summary.above(500_000).count);
}

proptest! {
    #[test]
    fn parts_add_up_to_the_length(
        steps in prop::collection::vec(
            (0u8..5, 0..Reason::ALL.len(), 0u64..50, 0u64..20, 0u64..9),
            0..60,
        ),
    ) {
        let ledger = Ledger::default();
        let jobs = [ledger.job("a", at(0)), ledger.job("b", at(0))];
        let story = read(0);
        let (mut now, mut gone) = (0, AwayTimes::default());
        let (mut open, mut of_jobs) = (Vec::new(), Vec::new());
        for (what, which, passed, late, away) in steps {
            now += passed;
            let why = [Reason::NotRunning, Reason::NoProcessor][which % 2];
            gone = gone.and(AwayTimes::of(why, Duration::from_micros(away.min(passed))));
            let moment = Moment { late: Duration::from_micros(late), away: gone, ..at(now) };
            let reason = Reason::ALL[which];
            let job = &jobs[which % 2];
            match what {
                0 => open.push(story.enter(reason.into(), moment)),
                1 => open.push(story.enter_job(reason, job, moment)),
                2 if !open.is_empty() => {
                    let token = open.swap_remove(which % open.len());
                    story.leave(token, moment);
                }
                3 => of_jobs.push((which % 2, job.enter(reason.into(), moment))),
                _ => if let Some((job, token)) = of_jobs.pop() {
                    jobs[job].leave(token, moment);
                }
            }
        }
        let (began, parts) = story.end(at(now + 3));
        prop_assert_eq!(began, Instant(0));
        prop_assert_eq!(parts.iter().map(|p| p.ns).sum::<u64>(), (now + 3) * 1_000);
    }
}

proptest! {
    #[test]
    fn no_time_is_untold_while_anything_is_waited_for(
        steps in prop::collection::vec((0u8..4, 0usize..3, 0usize..1000, 0u64..50), 0..300),
    ) {
        let ledger = Ledger::default();
        let places = ["a", "b", "c"].map(|name| ledger.place(name));
        let story = read(0);
        let (mut now, mut open, mut idle) = (0, Vec::new(), 0);
        for (step, place, which, passed) in steps {
            now += passed;
            if open.is_empty() {
                idle += passed;
            }
            let on = |reason| WaitCause { reason, place: places[place], holder: Holder::NONE };
            match step {
                // More than half are enters, so that many wait at a time.
                0 | 1 => open.push(story.enter(on(Reason::DeviceQueue), at(now))),
                2 if !open.is_empty() => {
                    story.turn(&open[which % open.len()], on(Reason::Transfer), at(now));
                }
                3 if !open.is_empty() => {
                    story.leave(open.swap_remove(which % open.len()), at(now));
                }
                _ => {}
            }
            prop_assert!(story.depth() <= open.len() && (open.is_empty() == (story.depth() == 0)));
        }
        if open.is_empty() {
            idle += 3;
        }
        let (_, parts) = story.end(at(now + 3));
        let untold = parts.iter().filter(|p| p.cause.what.reason == Reason::Turn);
        prop_assert_eq!(untold.map(|p| p.ns).sum::<u64>(), idle * 1_000);
    }
}

#[test]
fn advice_fits_what_kept_the_device_busy() {
    let of = |holder| advice(Reason::Transfer, Holder::of(holder), "pool device a");
    for (holder, word) in [
        ("write-back", "writeback_rate_max"),
        ("scrub", "scrub.rate"),
        ("move", "forebay device pause"),
        ("collection", "gc_pause"),
        ("compaction", "larger cache"),
        (Holder::OTHER_REQUESTS, "forebay volume limit"),
        (Holder::DEVICE_FLUSH, "make data durable"),
    ] {
        assert!(of(holder).contains(word), "{holder}: {}", of(holder));
    }
    assert_eq!(of("nothing of ours"), "");
    assert!(advice(Reason::Index, Holder::of("scrub"), "").contains("index_memory"));
    // Settings have the names by which they are set.
    assert!(of("write-back").contains(" pool.latency_target_read"));
    let of_cache = advice(Reason::Transfer, Holder::of("write-back"), "cache device a");
    assert!(of_cache.contains(" cache.latency_target_write"), "{of_cache}");
}

/// Of writers that wait for room, because the device is busy with write-back, slower write-back
/// makes more.
#[test]
fn advice_is_about_the_work_that_kept_the_device_busy() {
    let advice = |stage, reason, holder| {
        let what = WaitCause { reason, place: PlaceId::NONE, holder: Holder::of(holder) };
        Cause { stage, what }.advice("pool device a")
    };
    for device in [Reason::DeviceQueue, Reason::Transfer, Reason::DeviceFlush] {
        for holder in ["write-back", "commit", "scrub", ""] {
            for (stage, word) in [
                (Reason::Throttle, "a faster pool"),
                (Reason::Buckets, "a faster pool"),
                (Reason::Ring, "a larger cache"),
                (Reason::JournalEntries, "a larger cache"),
                (Reason::NodeRoom, "a larger one"),
                (Reason::ChangedNodes, "cache.dirty_nodes"),
                (Reason::Index, "cache.index_memory"),
                (Reason::Publish, "free some of it"),
                (Reason::PoolRoom, "free some of it"),
                (Reason::Tree, "pool.cached_nodes"),
                (Reason::Heal, "errors"),
            ] {
                let said = advice(stage, device, holder);
                assert!(said.contains(word), "{stage:?} {device:?} {holder}: {said}");
            }
        }
        // Only the device can be faster.
        for stage in [Reason::Journal, Reason::Commit] {
            assert!(advice(stage, device, "").contains("to make data durable"), "{stage:?}");
        }
    }
    // A commit that scrubs hold up is helped by slower scrubs.
    for stage in [Reason::Journal, Reason::Commit, Reason::ReadAhead] {
        assert!(advice(stage, Reason::Transfer, "scrub").contains("scrub.rate"), "{stage:?}");
    }
    // A pass waits for commits as it does for transfers.
    assert!(advice(Reason::Throttle, Reason::Commit, "commit").contains("a faster pool"));
    // What keeps the awaited work itself is not the device.
    assert!(advice(Reason::Throttle, Reason::NotRunning, "").contains("stops the process"));
    assert!(advice(Reason::ChangedNodes, Reason::NodeRoom, "").contains("for its index"));
    assert!(advice(Reason::Throttle, Reason::PoolRoom, "").contains("nearly full"));
}
