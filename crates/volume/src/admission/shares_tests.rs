//! Shares and limits in virtual time, in front of a device that serves requests in the order in
//! which they began.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use base::Prng;

use super::*;

const S: u64 = 1_000_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn limit(iops: u32, bytes: u64, burst_ms: u32) -> VolumeLimit {
    VolumeLimit {
        iops: NonZeroU32::new(iops),
        bytes_per_second: NonZeroU64::new(bytes),
        burst_ms: NonZeroU32::new(burst_ms).unwrap(),
    }
}

/// Clients that always have so many requests of one size, in one volume.
struct Load {
    volume: u32,
    requests: usize,
    bytes: u64,
}

/// What became of a volume's requests.
#[derive(Default, Debug)]
struct Outcome {
    ended: u64,
    bytes: u64,
    longest: u64,
    /// When each began.
    begun: Vec<u64>,
}

/// A device that serves one request after the other, in the order in which they began: each takes
/// 100 us, and a millisecond for each MiB.
struct Bench {
    shares: Shares<(u64, u32)>,
    now: Instant,
    /// Began in this order: volume, bytes, when it came.
    device: VecDeque<(u32, u64, u64)>,
    outcomes: BTreeMap<u32, Outcome>,
    most_waiting: u64,
}

fn service_ns(bytes: u64) -> u64 {
    100_000 + bytes * 1_000_000 / MIB
}

impl Bench {
    fn new() -> Bench {
        Bench {
            shares: Shares::new(),
            now: Instant(S),
            device: VecDeque::new(),
            outcomes: BTreeMap::new(),
            most_waiting: 0,
        }
    }

    fn arrive(&mut self, volume: u32, bytes: u64) {
        if self.shares.pass_at_once(self.now, VolumeId(volume), Size::whole(bytes)) {
            self.begin(volume, bytes, self.now.0);
        } else {
            self.shares.push(self.now, VolumeId(volume), Size::whole(bytes), (self.now.0, volume));
        }
        self.most_waiting = self.most_waiting.max(self.shares.waits().waiting);
    }

    fn begin(&mut self, volume: u32, bytes: u64, came: u64) {
        self.outcomes.entry(volume).or_default().begun.push(self.now.0);
        self.device.push_back((volume, bytes, came));
    }

    /// Lets in what may begin; when more may without an end of another.
    fn let_in(&mut self) -> Option<Instant> {
        loop {
            match self.shares.next(self.now) {
                NextStep::Pass((came, to), volume, Size { bytes, .. }) => {
                    assert_eq!(to, volume.0);
                    self.begin(to, bytes, came);
                }
                NextStep::At(when) => return Some(when),
                NextStep::Nothing => return None,
            }
        }
    }

    /// Serves for so long, with clients that ask again as soon as they are answered.
    fn run(&mut self, ns: u64) {
        let until = self.now.0 + ns;
        let mut free_at = self.now.0;
        while self.now.0 < until {
            let at = self.let_in();
            if let Some(&(volume, bytes, came)) = self.device.front() {
                free_at = free_at.max(self.now.0) + service_ns(bytes);
                self.device.pop_front();
                // What may begin earlier than this one ends does so.
                let mut at = at;
                while let Some(when) = at.filter(|when| when.0 < free_at) {
                    self.now = when;
                    at = self.let_in();
                }
                self.now = Instant(free_at);
                self.shares.leave(VolumeId(volume), Size::whole(bytes));
                let outcome = self.outcomes.entry(volume).or_default();
                outcome.ended += 1;
                outcome.bytes += bytes;
                outcome.longest = outcome.longest.max(self.now.0 - came);
                self.arrive(volume, bytes);
            } else {
                self.now = at.expect("nothing begins any more");
            }
        }
    }

    fn loads(&mut self, loads: &[Load]) {
        for load in loads {
            (0..load.requests).for_each(|_| self.arrive(load.volume, load.bytes));
        }
    }

    fn forget_outcomes(&mut self) {
        self.outcomes.clear();
    }
}

#[test]
fn one_volume_alone_never_waits() {
    let mut bench = Bench::new();
    bench.loads(&[Load { volume: 1, requests: 5000, bytes: MIB }]);
    bench.run(S);
    assert_eq!(bench.shares.waits(), WaitCounts::default());
    assert_eq!(bench.device.len(), 5000);
}

#[test]
fn a_single_request_does_not_wait_for_the_line_of_another_volume() {
    for (flood, window_ns) in [(4 * KIB, 62 * service_ns(4 * KIB)), (MIB, 8 * service_ns(MIB))] {
        let mut bench = Bench::new();
        let flood = Load { volume: 1, requests: 2048, bytes: flood };
        bench.loads(&[flood, Load { volume: 2, requests: 1, bytes: 4 * KIB }]);
        // What had begun before the other volume was in use.
        bench.run(2048 * service_ns(MIB) * 2);
        bench.forget_outcomes();
        bench.run(20 * S);
        let reader = &bench.outcomes[&2];
        assert!(reader.longest <= window_ns + 2 * service_ns(MIB), "{} ns", reader.longest);
        // The device never rests, as the window is not empty.
        let all: u64 = bench.outcomes.values().map(|o| o.bytes).sum();
        let flooded = bench.outcomes[&1].bytes;
        assert!(flooded as f64 > 0.9 * all as f64, "{flooded} of {all}");
    }
}

#[test]
fn floods_have_equal_shares_whatever_their_depth_and_size() {
    let mut bench = Bench::new();
    bench.loads(&[
        Load { volume: 1, requests: 2000, bytes: 64 * KIB },
        Load { volume: 2, requests: 100, bytes: 64 * KIB },
        Load { volume: 3, requests: 20, bytes: MIB },
    ]);
    bench.run(10 * S);
    bench.forget_outcomes();
    bench.run(30 * S);
    let cost = |volume: u32| {
        let o = &bench.outcomes[&volume];
        (o.bytes + o.ended * FIXED) as f64
    };
    let least = cost(1).min(cost(2)).min(cost(3));
    let most = cost(1).max(cost(2)).max(cost(3));
    assert!(most / least < 1.5, "{} {} {}", cost(1), cost(2), cost(3));
}

#[test]
fn a_volume_that_is_left_alone_has_everything_again() {
    let mut bench = Bench::new();
    bench.loads(&[
        Load { volume: 1, requests: 500, bytes: 4 * KIB },
        Load { volume: 2, requests: 500, bytes: 4 * KIB },
    ]);
    bench.run(S);
    assert!(bench.shares.waits().waiting > 0);
    // The clients of the second volume leave: nothing of it comes again.
    let mut gone = 0;
    while gone < 500 {
        bench.let_in();
        let Some((volume, bytes, _)) = bench.device.pop_front() else { break };
        bench.now = Instant(bench.now.0 + service_ns(bytes));
        bench.shares.leave(VolumeId(volume), Size::whole(bytes));
        if volume == 1 {
            bench.arrive(1, bytes);
        } else {
            gone += 1;
        }
    }
    assert_eq!(gone, 500);
    bench.run(LINGER.as_nanos() as u64 + S);
    assert_eq!(bench.shares.waits().waiting, 0);
    assert_eq!(bench.device.len(), 500);
}

#[test]
fn limits_hold_and_delay_no_other_volume() {
    let mut bench = Bench::new();
    let set = limit(50, 0, 100);
    bench.shares.set_limit(bench.now, VolumeId(1), Some(&set));
    bench.loads(&[
        Load { volume: 1, requests: 300, bytes: 4 * KIB },
        Load { volume: 2, requests: 4, bytes: 4 * KIB },
    ]);
    bench.run(10 * S);
    let begun = bench.outcomes[&1].begun.len();
    assert!((495..=506).contains(&begun), "{begun} in 10 s, at 50 a second");
    assert!(bench.outcomes[&2].longest < 12 * service_ns(4 * KIB));
    assert_eq!(bench.most_waiting, 300, "nothing of the other volume waits");
    // A higher limit wakes those that wait; none lets all of them go.
    bench.shares.set_limit(bench.now, VolumeId(1), Some(&limit(500, 0, 100)));
    bench.forget_outcomes();
    bench.run(2 * S);
    let begun = bench.outcomes[&1].begun.len();
    assert!((990..=1051).contains(&begun), "{begun} in 2 s, at 500 a second");
    bench.shares.set_limit(bench.now, VolumeId(1), None);
    let next = bench.let_in();
    assert_eq!(next, Some(bench.shares.shared_until), "the window alone is waited for");
}

#[test]
fn what_waits_behind_a_request_that_a_limit_holds_waits_for_the_limit() {
    let mut bench = Bench::new();
    bench.shares.set_limit(bench.now, VolumeId(1), Some(&limit(0, 4 * MIB, 500)));
    // The burst passes. Soon there are tokens for a small request, and not for the first in line.
    bench.arrive(1, 2 * MIB);
    bench.arrive(1, MIB);
    bench.now = bench.now.after(Duration::from_millis(100));
    for bytes in [4 * KIB, 0, 4 * KIB] {
        bench.arrive(1, bytes);
    }
    let waits = bench.shares.waits();
    assert_eq!((waits.limited, waits.shared, waits.waiting), (4, 0, 4));
    // A volume without a limit waits for its share only.
    for _ in 0..200 {
        bench.arrive(2, 4 * KIB);
        bench.arrive(3, 4 * KIB);
    }
    let waits = bench.shares.waits();
    assert_eq!((waits.limited, waits.shared), (4, waits.waiting - 4));
    assert!(waits.shared > 0);
}

#[test]
fn requests_of_a_volume_begin_in_the_order_of_their_arrival() {
    let r = &mut Prng::new(3);
    let mut shares = Shares::new();
    let (mut now, mut next) = (Instant(0), 0u64);
    let mut arrived: BTreeMap<u32, VecDeque<u64>> = BTreeMap::new();
    let mut device = Vec::new();
    for volume in 1..4 {
        shares.know(now, VolumeId(volume), &limit(100 * volume, MIB, 20));
    }
    for _ in 0..20_000 {
        now = Instant(now.0 + r.below(2_000_000));
        let volume = 1 + r.below(5) as u32;
        match r.below(5) {
            0 => {
                let set = limit(
                    r.below(2000) as u32,
                    64 * KIB + r.below(8 * MIB),
                    1 + r.below(50) as u32,
                );
                shares.set_limit(now, VolumeId(volume), Some(&set).filter(|_| volume < 4));
            }
            1 | 2 => {
                let bytes = [0, 512, 4 * KIB, MIB, 32 * MIB][r.below(5) as usize];
                if shares.pass_at_once(now, VolumeId(volume), Size::whole(bytes)) {
                    assert!(arrived.get(&volume).is_none_or(VecDeque::is_empty), "overtaken");
                    device.push((volume, bytes));
                } else {
                    shares.push(now, VolumeId(volume), Size::whole(bytes), next);
                    arrived.entry(volume).or_default().push_back(next);
                    next += 1;
                }
            }
            _ if !device.is_empty() => {
                let (volume, bytes) = device.swap_remove(r.below(device.len() as u64) as usize);
                shares.leave(VolumeId(volume), Size::whole(bytes));
            }
            _ => {}
        }
        while let NextStep::Pass(who, volume, Size { bytes, .. }) = shares.next(now) {
            assert_eq!(arrived.get_mut(&volume.0).unwrap().pop_front(), Some(who));
            device.push((volume.0, bytes));
        }
    }
    // Everything comes to rest, by and by, also what was larger than a burst.
    for _ in 0..1_000_000 {
        device
            .drain(..)
            .for_each(|(volume, bytes)| shares.leave(VolumeId(volume), Size::whole(bytes)));
        match shares.next(now) {
            NextStep::Pass(_, volume, Size { bytes, .. }) => device.push((volume.0, bytes)),
            NextStep::At(when) => now = when,
            NextStep::Nothing => break,
        }
    }
    device.drain(..).for_each(|(volume, bytes)| shares.leave(VolumeId(volume), Size::whole(bytes)));
    assert!(!shares.has_line() && shares.waits().waiting == 0);
    assert_eq!((shares.in_flight, shares.busy), (0, 0));
}

#[test]
fn nothing_waits_when_all_are_let_in() {
    let mut bench = Bench::new();
    bench.shares.set_limit(bench.now, VolumeId(1), Some(&limit(1, 0, 1000)));
    bench.loads(&[Load { volume: 1, requests: 100, bytes: MIB }]);
    bench.let_in();
    assert_eq!(bench.device.len(), 1);
    bench.shares.open();
    assert_eq!(bench.let_in(), None);
    bench.arrive(1, MIB);
    assert_eq!((bench.device.len(), bench.shares.waits().waiting), (101, 0));
}

#[test]
fn volumes_that_are_not_used_are_forgotten() {
    let mut shares: Shares<()> = Shares::new();
    for volume in 0..1000 {
        assert!(shares.pass_at_once(Instant(0), VolumeId(volume), Size::whole(1)));
        shares.leave(VolumeId(volume), Size::whole(1));
    }
    assert!(shares.volumes.len() <= IDLE + 1);
}

/// A request that fills the window in turns: those of its own volume that have come meanwhile begin
/// between two of them, and its limit counts it once.
#[test]
fn what_comes_in_turns_is_no_bar_to_its_own_volume() {
    let mut shares: Shares<u32> = Shares::new();
    let (now, one) = (Instant(S), VolumeId(1));
    shares.set_limit(now, one, Some(&limit(0, 512 * MIB, 1000)));
    assert!(shares.pass_at_once(now, VolumeId(2), Size::whole(4 * KIB)));
    let fill = Size { bytes: 480 * MIB, turn: MIB };
    for n in 0..4 {
        assert_eq!(shares.pass_at_once(now, one, fill), n == 0, "{n}");
    }
    shares.set_limit(now, one, None);
    // Seven turns are the window, and one is in it.
    for n in 0..20 {
        if shares.pass_at_once(now, one, Size::whole(MIB)) {
            continue;
        }
        shares.push(now, one, Size::whole(4 * KIB), n);
        shares.leave(one, fill);
        shares.push_again(now, one, fill, 100);
        assert!(!shares.again_at_once(now, one, fill), "others of its volume wait");
        assert_eq!(shares.next(now), NextStep::Pass(n, one, Size::whole(4 * KIB)));
        shares.leave(one, Size::whole(4 * KIB));
        // What has begun does not wait behind what the limit holds.
        shares.set_limit(now, one, Some(&limit(1, 0, 1000)));
        assert!(!shares.pass_at_once(now, one, Size::whole(4 * KIB)));
        shares.push(now, one, Size::whole(4 * KIB), 200);
        assert_eq!(shares.next(now), NextStep::Pass(100, one, fill));
        return;
    }
    panic!("the window is never full");
}

/// Where the only requests in the window do not end, the end of the window wakes the line.
#[test]
fn a_line_for_the_window_ends_when_its_volume_is_alone() {
    let mut shares: Shares<u32> = Shares::new();
    let (mut now, one) = (Instant(S), VolumeId(1));
    assert!(shares.pass_at_once(now, VolumeId(2), Size::whole(4 * KIB)));
    assert!(shares.pass_at_once(now, one, Size::whole(32 * MIB)));
    assert!(!shares.pass_at_once(now, one, Size::whole(4 * KIB)));
    shares.push(now, one, Size::whole(4 * KIB), 7);
    let NextStep::At(when) = shares.next(now) else { panic!("it is looked at again") };
    assert_eq!(when, now.after(LINGER));
    now = when;
    assert_eq!(shares.next(now), NextStep::Pass(7, one, Size::whole(4 * KIB)));
}
