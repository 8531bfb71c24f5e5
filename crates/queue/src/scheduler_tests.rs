//! The scheduler in virtual time, over models of devices.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Prng};
use emulate::{Access, Emulate, Emulation};
use proptest::prelude::*;

use super::*;
use crate::share::LEAST_BYTES;

#[path = "scheduler_tests/order_of_writes.rs"]
mod order_of_writes;
#[path = "scheduler_tests/write_gate.rs"]
mod write_gate;

const K: usize = 1 << 10;
const M: u64 = 1 << 20;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// A device: requests by number, and when each is done.
trait Model {
    fn submit(&mut self, now: Instant, number: u64, write: bool, offset: u64, len: usize);
    fn next_at(&self) -> Option<Instant>;
    /// One that is done by `now`.
    fn done(&mut self, now: Instant) -> Option<u64>;
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    id: u64,
    class: Class,
    since: Instant,
    at: Instant,
}

impl Ended {
    fn took(&self) -> Duration {
        self.at.since(self.since)
    }
}

/// A request to the device as it went there.
#[derive(Clone, Debug)]
struct Sent {
    class: Class,
    write: bool,
    place: (u64, u64),
    ids: Vec<u64>,
}

struct Lab<M> {
    now: Instant,
    scheduler: Scheduler<u64>,
    model: M,
    in_flight: BTreeMap<u64, (Ticket, Vec<Ended>)>,
    sent: Vec<Sent>,
    ids: u64,
}

impl<M: Model> Lab<M> {
    fn new(kind: DeviceKind, limits: Limits, model: M) -> Lab<M> {
        let scheduler = Scheduler::new(limits, kind);
        let (in_flight, sent) = (BTreeMap::new(), Vec::new());
        Lab { now: Instant(0), scheduler, model, in_flight, sent, ids: 0 }
    }

    /// Asks for a request of so many pieces in a row; answers with the number of the first.
    fn ask(&mut self, class: Class, write: bool, offset: u64, (len, pieces): (usize, u32)) -> u64 {
        let first = self.ids;
        for piece in 0..pieces {
            self.scheduler.add(Request {
                class,
                write,
                durable: false,
                offset: offset + u64::from(piece) * len as u64,
                len,
                segments: 1,
                since: self.now,
                alone: false,
                more: pieces - piece - 1,
                work: self.ids,
            });
            self.ids += 1;
        }
        first
    }

    /// Sends what may go.
    fn dispatch(&mut self) {
        while let Some((ticket, run)) = self.scheduler.next(self.now) {
            let (first, number) = (run.first(), self.sent.len() as u64);
            let ids = run.parts().iter().map(|r| r.work).collect();
            let place = (first.offset, run.end());
            self.sent.push(Sent { class: first.class, write: first.write, place, ids });
            self.model.submit(self.now, number, first.write, first.offset, run.bytes());
            let end = |r: Request<u64>| Ended {
                id: r.work,
                class: r.class,
                since: r.since,
                at: Instant(0),
            };
            self.in_flight
                .insert(number, (ticket, run.into_parts().into_iter().map(end).collect()));
        }
    }

    /// Goes on to the next end of a request, or to `until`.
    fn step(&mut self, until: Instant) -> Vec<Ended> {
        self.dispatch();
        self.now = self.model.next_at().map_or(until, |at| at.min(until)).max(self.now);
        let mut ended = Vec::new();
        while let Some(number) = self.model.done(self.now) {
            let (ticket, requests) = self.in_flight.remove(&number).expect("it was sent");
            self.scheduler.end(self.now, ticket);
            ended.extend(requests.into_iter().map(|e| Ended { at: self.now, ..e }));
        }
        self.dispatch();
        ended
    }

    fn most(&self) -> u32 {
        self.scheduler.feedback.most()
    }
}

/// Everything takes the same time, so many at once. Which of those that wait is next is a rule.
struct Served<P> {
    at_once: usize,
    waiting: Vec<(u64, bool, u64, usize)>,
    serving: BTreeSet<(Instant, u64)>,
    head: u64,
    rule: P,
}

/// Of what waits, chooses one and says how long it takes.
type Waiting = [(u64, bool, u64, usize)];

impl<P: FnMut(Instant, u64, &Waiting) -> (usize, Duration)> Served<P> {
    fn new(at_once: usize, rule: P) -> Served<P> {
        Served { at_once, waiting: Vec::new(), serving: BTreeSet::new(), head: 0, rule }
    }

    fn serve(&mut self, now: Instant) {
        while self.serving.len() < self.at_once && !self.waiting.is_empty() {
            let (chosen, takes) = (self.rule)(now, self.head, &self.waiting);
            let (number, _, offset, len) = self.waiting.remove(chosen);
            self.head = offset + len as u64;
            self.serving.insert((now.after(takes), number));
        }
    }
}

impl<P: FnMut(Instant, u64, &Waiting) -> (usize, Duration)> Model for Served<P> {
    fn submit(&mut self, now: Instant, number: u64, write: bool, offset: u64, len: usize) {
        self.waiting.push((number, write, offset, len));
        self.serve(now);
    }

    fn next_at(&self) -> Option<Instant> {
        self.serving.first().map(|(at, _)| *at)
    }

    fn done(&mut self, now: Instant) -> Option<u64> {
        let (at, number) = *self.serving.first().filter(|(at, _)| *at <= now)?;
        self.serving.remove(&(at, number));
        self.serve(now);
        Some(number)
    }
}

/// The rotating disk that the command emulates.
struct Disk {
    model: Emulation,
    numbers: BTreeMap<emulate::Ticket, u64>,
    done: Vec<emulate::Ticket>,
}

impl Disk {
    fn new(size_bytes: u64) -> Disk {
        let model = Emulation::new(Emulate::Hdd, size_bytes);
        Disk { model, numbers: BTreeMap::new(), done: Vec::new() }
    }
}

impl Model for Disk {
    fn submit(&mut self, now: Instant, number: u64, write: bool, offset: u64, len: usize) {
        let access = if write { Access::Write } else { Access::Read };
        let ticket = self.model.submit(now, access, offset, len);
        self.numbers.insert(ticket, number);
    }

    fn next_at(&self) -> Option<Instant> {
        self.model.next_at()
    }

    fn done(&mut self, now: Instant) -> Option<u64> {
        if self.done.is_empty() {
            self.model.take_done(now, &mut self.done);
        }
        let ticket = self.done.pop()?;
        self.numbers.remove(&ticket)
    }
}

/// One after the other, in order of arrival.
fn in_order(takes: Duration) -> impl FnMut(Instant, u64, &Waiting) -> (usize, Duration) {
    move |_, _, _| (0, takes)
}

#[test]
fn foreground_and_commit_go_in_one_order_of_arrival() {
    let limits = Limits { depth: 4, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Unknown, limits, Served::new(1, in_order(us(100))));
    let mut rng = Prng::new(1);
    for _ in 0..200 {
        let class = if rng.one_in(2) { Class::Foreground } else { Class::Commit };
        lab.ask(class, rng.one_in(2), rng.below(1000) * 3 * M, (4 * K, 1));
    }
    while lab.scheduler.waiting() > 0 {
        lab.step(Instant(u64::MAX));
    }
    let order: Vec<u64> = lab.sent.iter().flat_map(|s| s.ids.clone()).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>());
}

#[test]
fn beside_others_all_background_classes_together_have_the_least() {
    for kind in [DeviceKind::Unknown, DeviceKind::Rotating] {
        let mut lab = Lab::new(kind, Limits::default(), Served::new(32, in_order(us(1000))));
        let classes = [Class::WriteBack, Class::Promotion, Class::Collection];
        let mut most = 0;
        lab.ask(Class::Foreground, false, 0, (4 * K, 1));
        for i in 0..3000u64 {
            let class = classes[i as usize % 3];
            // Neighbours, so that they could become one large request.
            lab.ask(class, true, (1 + i % 3) << 30 | (i * 4096), (4 * K, 1));
        }
        for _ in 0..300 {
            for ended in lab.step(Instant(u64::MAX)) {
                if ended.class == Class::Foreground {
                    lab.ask(Class::Foreground, false, ended.id << 20, (4 * K, 1));
                    lab.dispatch();
                }
            }
            let background = |number: &u64| {
                let sent = &lab.sent[*number as usize];
                sent.class.is_background().then(|| (sent.place.1 - sent.place.0) as usize)
            };
            let sizes: Vec<usize> = lab.in_flight.keys().filter_map(background).collect();
            most = most.max(sizes.len());
            assert!(sizes.len() <= LEAST as usize, "{sizes:?}");
            assert!(sizes.iter().all(|&bytes| bytes <= LEAST_BYTES), "{sizes:?}");
        }
        assert_eq!(most, LEAST as usize, "and it has its least");
    }
}

/// Reads of 1 MiB at random, in pieces of 256 KiB, by so many tasks: how many a minute.
fn reads_a_minute(jobs: u64) -> usize {
    const SIZE: u64 = 64 << 30;
    let limits = Limits { max_request_bytes: 256 * K, depth: 1024, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Rotating, limits, Disk::new(SIZE));
    let mut rng = Prng::new(7);
    let mut left: BTreeMap<u64, u32> = BTreeMap::new();
    let mut ask = |lab: &mut Lab<Disk>, left: &mut BTreeMap<u64, u32>| {
        let first = lab.ask(Class::Foreground, false, rng.below(SIZE / M) * M, (256 * K, 4));
        left.insert(first / 4, 4);
    };
    (0..jobs).for_each(|_| ask(&mut lab, &mut left));
    let (end, mut whole) = (Instant(0).after(Duration::from_secs(60)), 0);
    while lab.now < end {
        for ended in lab.step(end) {
            let pieces = left.get_mut(&(ended.id / 4)).expect("it was asked for");
            *pieces -= 1;
            if *pieces == 0 {
                left.remove(&(ended.id / 4));
                whole += 1;
                ask(&mut lab, &mut left);
            }
        }
    }
    // Pieces of one request reach the device in a row.
    let order: Vec<u64> = lab.sent.iter().flat_map(|s| s.ids.clone()).collect();
    let rows = order.chunks_exact(4).filter(|row| row.windows(2).all(|w| w[0] + 1 == w[1]));
    assert!(rows.count() > order.len() / 4 * 99 / 100, "pieces are not kept together");
    whole
}

#[test]
fn many_tasks_that_read_in_pieces_are_as_fast_as_one() {
    let (one, many) = (reads_a_minute(1), reads_a_minute(72));
    assert!(many * 100 >= one * 99, "{many} reads of 72 tasks, {one} of one");
    assert!(one > 2500, "{one} reads a minute");
}

/// A read now and then beside a stream that always waits. How long reads took, and how many of the
/// stream ended.
fn stream_beside_reads<M: Model>(
    lab: &mut Lab<M>,
    think: Duration,
    end: Instant,
) -> (Vec<Duration>, usize) {
    let (mut took, mut streamed, mut stream_at) = (Vec::new(), 0, 1 << 40);
    let mut rng = Prng::new(3);
    let (mut read_at, mut reading) = (lab.now, false);
    for _ in 0..64 {
        lab.ask(Class::WriteBack, true, stream_at, (128 * K, 1));
        stream_at += 128 << 10;
    }
    while lab.now < end {
        if !reading && lab.now >= read_at {
            lab.ask(Class::Foreground, false, rng.below(1 << 20) * 65536 * 3, (4 * K, 1));
            reading = true;
        }
        let until = if reading { end } else { read_at.min(end) };
        for ended in lab.step(until) {
            if ended.class == Class::Foreground {
                took.push(ended.took());
                (reading, read_at) = (false, lab.now.after(think));
            } else {
                streamed += 1;
                lab.ask(Class::WriteBack, true, stream_at, (128 * K, 1));
                stream_at += 128 << 10;
            }
        }
    }
    took.sort();
    (took, streamed)
}

/// A disk whose firmware goes on with a stream for as long as the next request of it is there.
fn starving(kind: DeviceKind) -> (Vec<Duration>, usize) {
    let rule = |_: Instant, head: u64, waiting: &Waiting| match waiting
        .iter()
        .position(|(_, _, offset, _)| *offset == head)
    {
        Some(next) => (next, us(700)),
        None => (0, us(10_000)),
    };
    let mut lab = Lab::new(kind, Limits::default(), Served::new(1, rule));
    let end = Instant(0).after(Duration::from_secs(30));
    stream_beside_reads(&mut lab, us(20_000), end)
}

#[test]
fn a_firmware_that_starves_reads_behind_a_stream_does_not() {
    let (took, streamed) = starving(DeviceKind::Rotating);
    let p99 = took[took.len() * 99 / 100];
    assert!(p99 <= us(60_000), "99 of 100 reads took up to {p99:?}");
    assert!(took.len() > 400, "{} reads", took.len());
    assert!(streamed > 5000, "{streamed} of the stream");
    // The model does starve them where nothing pauses.
    let (took, _) = starving(DeviceKind::Ssd);
    assert!(took.len() < 10, "{} reads", took.len());
}

/// An SSD that stops for `pause` twice a second.
fn pausing(pause: Duration) -> (Vec<Duration>, usize) {
    const PERIOD: u64 = 500_000_000;
    let rule = move |now: Instant, _: u64, waiting: &Waiting| {
        let takes = Duration::from_nanos(80_000 + 8 * waiting[0].3 as u64);
        let since = Duration::from_nanos((now.0 + PERIOD / 2) % PERIOD);
        (0, takes + pause.saturating_sub(since))
    };
    let mut lab = Lab::new(DeviceKind::Ssd, Limits::default(), Served::new(4, rule));
    let end = Instant(0).after(Duration::from_secs(30));
    stream_beside_reads(&mut lab, us(20_000), end)
}

#[test]
fn pauses_of_a_device_do_not_cost_the_background_its_speed() {
    let ((_, without), (took, with)) = (pausing(Duration::ZERO), pausing(us(30_000)));
    // The pauses themselves are 6 of 100.
    assert!(with * 100 >= without * 85, "{with} of the stream, {without} without pauses");
    let p90 = took[took.len() * 90 / 100];
    assert!(p90 <= us(7_000), "90 of 100 reads took up to {p90:?}");
}

#[test]
fn on_a_device_that_gets_slower_the_background_has_less_and_never_nothing() {
    // Twice as slow every 3 seconds, and well again after 30.
    let rule = |now: Instant, _: u64, _: &Waiting| {
        let turns = now.0 as f64 / 3e9;
        let factor = if turns < 10.0 { turns.exp2() } else { 1.0 };
        (0, us(100).mul_f64(factor))
    };
    let limits = Limits { depth: 32, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Ssd, limits, Served::new(4, rule));
    let full = lab.most();
    let mut at = Instant(0);
    for turn in 0..20 {
        at = at.after(Duration::from_secs(3));
        let (took, streamed) = stream_beside_reads(&mut lab, us(50_000), at);
        let most = lab.most();
        assert!(streamed > 20, "{streamed} of the stream in the {turn}. turn");
        assert!(most >= LEAST);
        match turn {
            0 => assert_eq!(most, full, "nothing is late yet: {took:?}"),
            9 => assert!(most < full / 4, "{most} at the slowest"),
            _ => {}
        }
    }
    assert_eq!(lab.most(), full, "it is well again");
}

#[test]
fn on_a_rotating_device_reads_are_sorted_over_all_that_waits_and_merged_across_gaps() {
    let limits = Limits { depth: 4, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Rotating, limits, Served::new(1, in_order(us(1000))));
    // Every second block of 1 MiB, in any order, beside a write that came first.
    lab.ask(Class::Foreground, true, 1 << 40, (4 * K, 1));
    let mut blocks: Vec<u64> = (0..128).map(|i| 2 * i).collect();
    let mut rng = Prng::new(5);
    for i in (1..blocks.len()).rev() {
        blocks.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for block in blocks {
        lab.ask(Class::Foreground, false, block * 4096, (4 * K, 1));
    }
    // Too far behind for one request.
    lab.ask(Class::Foreground, false, M + (64 << 10), (4 * K, 1));
    lab.dispatch();
    let sent: Vec<(bool, (u64, u64))> = lab.sent.iter().map(|s| (s.write, s.place)).collect();
    let far = M + (64 << 10);
    let want =
        [(false, (0, 255 * 4096)), (false, (far, far + 4096)), (true, (1 << 40, (1 << 40) + 4096))];
    assert_eq!(sent, want, "reads go ahead of the write");
    let stats = lab.scheduler.stats();
    let foreground = &stats.classes[Class::Foreground as usize];
    assert_eq!((foreground.merged, foreground.gap_bytes), (127, 127 * 4096));
}

#[test]
fn where_nothing_rotates_there_are_no_gaps() {
    let served = Served::new(1, in_order(us(10)));
    let mut lab = Lab::new(DeviceKind::Nvme, Limits::default(), served);
    for block in [0, 2, 3, 5] {
        lab.ask(Class::Foreground, false, block * 4096, (4 * K, 1));
    }
    lab.dispatch();
    let places: Vec<u64> = lab.sent.iter().map(|s| s.place.0 / 4096).collect();
    assert_eq!(places, [0, 2, 5]);
}

/// A task that always has `depth` requests waiting or in flight.
#[derive(Clone, Debug)]
struct Client {
    class: Class,
    write: bool,
    depth: u64,
    /// Where the next request is: behind the last, anywhere, or always the same place.
    pattern: u8,
    blocks: usize,
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    let all: Vec<Class> = Class::ALL.into_iter().chain([Class::HurriedWriteBack]).collect();
    let class = proptest::sample::select(all);
    let one = (class, any::<bool>(), 1..32u64, 0..3u8, 1..64usize).prop_map(
        |(class, write, depth, pattern, blocks)| {
            // One request of a place goes in each sweep.
            let depth = if pattern == 2 { depth.min(8) } else { depth };
            Client { class, write, depth, pattern, blocks }
        },
    );
    proptest::collection::vec(one, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn every_request_is_served_within_a_bound(
        clients in clients(),
        rotating in any::<bool>(),
        patient in any::<bool>(),
        depth in proptest::sample::select(vec![1usize, 2, 8, 128]),
        seed in any::<u64>(),
    ) {
        let kind = if rotating { DeviceKind::Rotating } else { DeviceKind::Ssd };
        let limits = Limits { depth, ..Limits::default() };
        let mut lab = Lab::new(kind, limits, Served::new(1, in_order(us(500))));
        lab.scheduler.set_background_patient(patient);
        let mut rng = Prng::new(seed);
        let mut at = vec![0u64; clients.len()];
        // By the number of a request: its client, and when it came.
        let mut open: BTreeMap<u64, (usize, Instant)> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        let mut ask = |lab: &mut Lab<_>, open: &mut BTreeMap<u64, (usize, Instant)>, n: usize| {
            let client: &Client = &clients[n];
            let len = client.blocks * 4096;
            let place = match client.pattern {
                0 => at[n],
                1 => rng.below(1 << 24) * 4096,
                _ => (n as u64) << 36,
            };
            at[n] = place + len as u64;
            let id = lab.ask(client.class, client.write, place, (len, 1));
            open.insert(id, (n, lab.now));
        };
        for (n, client) in clients.iter().enumerate() {
            (0..client.depth).for_each(|_| ask(&mut lab, &mut open, n));
        }
        let end = Instant(0).after(Duration::from_secs(12));
        while lab.now < end {
            for ended in lab.step(end) {
                longest = longest.max(ended.took());
                let (n, _) = open.remove(&ended.id).expect("it was asked for");
                ask(&mut lab, &mut open, n);
            }
        }
        for (_, since) in open.values() {
            longest = longest.max(lab.now.since(*since));
        }
        // Of at most 160 requests each may be the last, and one in nine is of the background: a
        // sweep takes 0.7 s at most. Of up to 8 requests of one place one goes in each sweep.
        prop_assert!(longest <= Duration::from_secs(8), "{longest:?}");
    }
}
