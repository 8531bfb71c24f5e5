use base::Prng;
use proptest::prelude::*;

use super::*;

const V: VolumeId = VolumeId(1);

fn load(room: u64, all: u64) -> Load {
    Load { room, all, lump: 0, soon: 0, reserved: 0, age: None }
}

proptest! {
    #[test]
    fn the_curve_grows_with_what_is_gone_and_with_the_request(
        percent in 10u8..=98,
        a in 0.0..1.0f64,
        b in 0.0..1.0f64,
        blocks in 1u64..256,
        all in 0u64..1 << 22,
    ) {
        let curve = Curve::until(percent);
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(curve.delay(blocks, less, all) <= curve.delay(blocks, more, all));
        prop_assert!(curve.delay(blocks, a, all) <= curve.delay(blocks + 1, a, all));
        prop_assert!(curve.delay(blocks, a, all) <= MOST);
        prop_assert_eq!(curve.delay(blocks, curve.begin(), all), Duration::ZERO);
    }

    /// Whatever comes, in whatever order: no request is forgotten, a volume's requests pass in
    /// their order, none passes while what was let in takes all the room.
    #[test]
    fn all_pass_in_order(
        requests in prop::collection::vec((1u32..4, 1u64..64, 0u64..30), 1..200),
        all in 100u64..5000,
    ) {
        let mut line = Line::new(Curve::until(95));
        let (mut now, mut room) = (0u64, all);
        let mut due: Vec<(u32, usize)> = Vec::new();
        let mut last = [0usize; 4];
        for (i, &(volume, blocks, pause)) in requests.iter().enumerate() {
            line.push(VolumeId(volume), blocks, (volume, i + 1));
            due.push((volume, i + 1));
            now += pause * 1_000_000;
            loop {
                match line.next(Instant(now), &Load { reserved: 1, ..load(room, all) }) {
                    NextStep::Pass((volume, i), blocks) => {
                        prop_assert!(blocks < room && i > last[volume as usize]);
                        last[volume as usize] = i;
                        room -= blocks;
                        due.retain(|d| d.1 != i);
                    }
                    NextStep::At(when) => {
                        prop_assert!(when.since(Instant(now)) <= MOST);
                        break;
                    }
                    NextStep::Room | NextStep::Empty => break,
                }
            }
            if i % 7 == 0 {
                room = all;
            }
        }
        // All that is left passes when there is room.
        while !line.is_empty() {
            match line.next(Instant(now), &load(all, all)) {
                NextStep::Pass((_, i), _) => due.retain(|d| d.1 != i),
                other => prop_assert!(false, "{other:?} with all of the room"),
            }
        }
        prop_assert!(due.is_empty());
    }
}

#[test]
fn a_volume_that_floods_does_not_make_another_wait_for_more_than_its_turn() {
    let mut line = Line::new(Curve::until(95));
    for i in 0..1000 {
        line.push(V, 16, i);
    }
    let full = load(120, 1000);
    let mut now = Instant(1_000_000_000);
    let mut pass = |line: &mut Line<i32>| loop {
        match line.next(now, &full) {
            NextStep::Pass(who, _) => return who,
            NextStep::At(when) => now = when,
            other => panic!("{other:?}"),
        }
    };
    (0..100).for_each(|_| assert!(pass(&mut line) < 100));
    line.push(VolumeId(2), 16, -1);
    line.push(VolumeId(2), 16, -2);
    let next: Vec<i32> = (0..6).map(|_| pass(&mut line)).collect();
    let place = |who| next.iter().position(|w| *w == who).unwrap();
    assert!(place(-1) <= 1 && place(-2) <= 3, "{next:?}");
}

#[test]
fn an_image_that_is_too_old_slows_writers_to_the_speed_of_write_back_and_no_further() {
    let mut line = Line::new(Curve::until(95));
    let old = Load { age: Some(1.5), ..load(900, 1000) };
    let (mut now, mut passed) = (Instant(0), 0);
    for ms in 0..10_000u64 {
        now = Instant(ms * 1_000_000);
        if ms < 5_000 {
            line.carried(4);
        }
        if line.is_empty() {
            (0..64).for_each(|i| line.push(V, 1, i));
        }
        while let NextStep::Pass(..) = line.next(now, &old) {
            passed += 1;
        }
    }
    // 20,000 blocks were carried; after that one request passes each 100 ms.
    assert!((19_900..20_200).contains(&passed), "{passed} at {now:?}");
}

/// A cache, a pool behind it and clients before it, by `step_ms`. A pass begins when
/// `first` blocks are dirty; cuts are sealed while one is carried, each of `chunk` blocks.
struct Plant {
    all: u64,
    chunk: u64,
    step_ms: u64,
    first: u64,
    line: Line<u64>,
    open: u64,
    sealed: VecDeque<u64>,
    carried: f64,
    passes: u64,
    /// Requests that clients have under way, in line.
    waiting: u64,
    written: u64,
    /// The longest wait of the last step's passes, in steps.
    longest: u64,
}

impl Plant {
    fn new(all: u64) -> Plant {
        Plant {
            all,
            chunk: all / LUMP,
            step_ms: 10,
            first: 1,
            line: Line::new(Curve::until(95)),
            open: 0,
            sealed: VecDeque::new(),
            carried: 0.0,
            passes: 0,
            waiting: 0,
            written: 0,
            longest: 0,
        }
    }

    fn load(&self) -> Load {
        // Others have room in hand, so no request passes without.
        let soon = self.carried as u64;
        Load {
            reserved: 1,
            lump: self.sealed.front().copied().unwrap_or_default(),
            soon,
            ..load(self.all - self.open - self.sealed.iter().sum::<u64>(), self.all)
        }
    }

    /// `depth` clients send requests of `blocks`, no more than `most` blocks in this step; the pool
    /// takes `speed` blocks.
    fn step(&mut self, at: u64, (depth, blocks, most): (u64, u64, u64), speed: f64) {
        let now = Instant(at * self.step_ms * 1_000_000);
        self.written = 0;
        self.longest = 0;
        while self.written < most {
            while self.waiting < depth {
                self.line.push(V, blocks, at);
                self.waiting += 1;
            }
            let load = self.load();
            let NextStep::Pass(came, blocks) = self.line.next(now, &load) else { break };
            self.waiting -= 1;
            self.open += blocks;
            self.written += blocks;
            self.longest = self.longest.max(at - came);
        }
        if self.open >= if self.sealed.is_empty() { self.first } else { self.chunk } {
            self.sealed.push_back(std::mem::take(&mut self.open));
        }
        self.carried += speed;
        while let Some(&first) = self.sealed.front() {
            if (first as f64) > self.carried {
                break;
            }
            self.carried -= first as f64;
            self.passes += 1;
            self.sealed.pop_front();
        }
        if self.sealed.is_empty() {
            self.carried = 0.0;
        }
    }
}

#[test]
fn after_any_load_has_stopped_being_too_much_writes_are_fast_within_two_passes() {
    for seed in 0..400 {
        let r = &mut Prng::new(seed);
        let mut plant = Plant::new(1 << r.range(14, 21));
        let base = 10.0 + r.below(400) as f64;
        let mut at = 0;
        // Bursts, a pool ten times slower, one that stops.
        for _ in 0..r.range(1, 8) {
            let speed = match r.below(4) {
                0 => 0.0,
                1 => base / 10.0,
                _ => base,
            };
            let (depth, blocks) = (r.range(1, 64), [1, 1, 4, 16, 64][r.below(5) as usize]);
            let most = [0, base as u64, 700, 7000][r.below(4) as usize];
            for _ in 0..r.range(10, 2000) {
                plant.step(at, (depth, blocks, most), speed);
                at += 1;
            }
        }
        // Now a light load on a pool that is well. Those who wait pass first.
        let until = plant.passes + 2 + plant.sealed.len() as u64;
        let mut slow = 0;
        while (plant.passes < until || plant.waiting > 1) && slow < 400_000 {
            plant.step(at, (1, 1, (base as u64) / 2), base);
            (at, slow) = (at + 1, slow + 1);
        }
        assert!(slow < 400_000, "seed {seed}: it stands still");
        for i in 0..110 {
            plant.step(at, (1, 1, (base as u64) / 2), base);
            at += 1;
            // The last one that waited may be among the first.
            assert!(i < 10 || plant.longest <= 1, "seed {seed}: a write waits for nothing");
        }
    }
}

#[test]
fn writers_settle_at_the_speed_of_the_pool_whatever_it_is() {
    for speed in [10.0, 30.0, 100.0, 300.0, 1000.0] {
        for cache in [1 << 17, 1 << 19] {
            let mut plant = Plant::new(cache);
            let seconds: Vec<u64> = (0..cache / 600 + 60)
                .map(|s| {
                    (0..100)
                        .map(|i| {
                            plant.step(s * 100 + i, (32, 1, 10_000), speed);
                            plant.written
                        })
                        .sum()
                })
                .collect();
            let settled = &seconds[seconds.len() * 3 / 4..];
            let mean = settled.iter().sum::<u64>() as f64 / settled.len() as f64;
            let lowest = *settled.iter().min().unwrap() as f64;
            assert!((0.9..1.1).contains(&(mean / speed / 100.0)), "{speed}, {cache}: {mean}");
            assert!(lowest > 0.5 * mean, "{speed}, {cache}: {lowest} of {mean}: {settled:?}");
        }
    }
}

/// Where cuts cost much, they are larger than an eighth of the cache
/// ([`crate::policy::which_cut::should_seal`]).
#[test]
fn writers_do_not_follow_the_publications_of_large_cuts() {
    for (part, speed) in [(8, 85.0), (6, 20.0), (5, 85.0), (4, 85.0), (4, 20.0), (3, 85.0)] {
        let all = 250_000;
        let mut plant = Plant { chunk: all / part, first: all / 8, ..Plant::new(all) };
        let seconds: Vec<u64> = (0..300)
            .map(|s| {
                let step = |plant: &mut Plant, i: u64| {
                    plant.step(s * 100 + i, (32, 1, 400), speed);
                    plant.written
                };
                (0..100).map(|i| step(&mut plant, i)).sum()
            })
            .collect();
        let settled = &seconds[60..];
        let mean = settled.iter().sum::<u64>() as f64 / settled.len() as f64;
        let (lowest, highest) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
        let about = [*lowest as f64 / mean, *highest as f64 / mean];
        assert!((0.9..1.1).contains(&(mean / speed / 100.0)), "{part}, {speed}: {mean}");
        assert!(about[0] > 0.5, "{part}, {speed}: {about:?} of {settled:?}");
        // Of a lump that is too large to be left out, some comes at once.
        assert!(about[1] < 2.0 || part < 4, "{part}, {speed}: {about:?} of {settled:?}");
    }
}

#[test]
fn a_burst_of_three_fifths_of_the_room_does_not_wait() {
    let mut plant = Plant::new(1 << 20);
    let mut sum = 0;
    for at in 0.. {
        plant.step(at, (32, 1, 1000), 50.0);
        assert!(plant.longest <= 1);
        sum += plant.written;
        if sum > (1 << 20) / 10 * 6 {
            break;
        }
        assert_eq!(plant.written, 1000);
    }
}

/// As fast as a device allows, for longer than there is room, before a pool of a sixth of that
/// speed and less; the first pass begins late, with a large cut. The steps are shorter than what a
/// request that passes late gives to the next one.
#[test]
fn writers_never_lose_more_than_half_of_their_speed_from_one_second_to_the_next() {
    for (all, most, speed) in
        [(1 << 19, 60, 7.0), (1 << 19, 40, 7.0), (1 << 20, 60, 10.0), (1 << 21, 60, 2.0)]
    {
        let mut plant = Plant { step_ms: 1, first: all / 5, ..Plant::new(all) };
        let second = |plant: &mut Plant, s: u64| -> u64 {
            (0..1000)
                .map(|i| {
                    plant.step(s * 1000 + i, (32, 1, most), speed);
                    plant.written
                })
                .sum()
        };
        let seconds: Vec<u64> = (0..60).map(|s| second(&mut plant, s)).collect();
        for pair in seconds.windows(2) {
            let as_the_pool = pair[1] as f64 > 0.6 * speed * 1000.0;
            assert!(
                pair[1] * 100 >= pair[0] * 48 || as_the_pool && pair[0] < 3 * speed as u64 * 1000,
                "{all}, {most}, {speed}: {pair:?} of {seconds:?}"
            );
        }
    }
}
