//! The order in which writes reach a rotating disk.

use super::*;

/// Writes that overlap, over a device that ends them in any order: what is on it in the end.
fn overlapping(seed: u64) {
    const BLOCKS: u64 = 40;
    let mut rng = Prng::new(seed);
    let mut service = rng.fork();
    let rule = move |_: Instant, _: u64, waiting: &Waiting| {
        (service.below(waiting.len() as u64) as usize, us(service.range(10, 5000)))
    };
    let limits = Limits { depth: 8, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Rotating, limits, Served::new(4, rule));
    let (mut disk, mut want) = (vec![0; BLOCKS as usize], vec![0; BLOCKS as usize]);
    let mut places: Vec<(u64, u64)> = Vec::new();
    let mut ended = 0;
    while ended < 300 {
        if places.len() < 300 && (rng.one_in(2) || lab.in_flight.is_empty()) {
            let (at, len) = (rng.below(BLOCKS), rng.range(1, 8));
            let end = (at + len).min(BLOCKS);
            let class = if rng.one_in(3) { Class::Commit } else { Class::Foreground };
            let id = lab.ask(class, true, at * 4096, ((end - at) as usize * 4096, 1));
            places.push((at, end));
            want[at as usize..end as usize].fill(id);
            lab.dispatch();
            continue;
        }
        for write in lab.step(Instant(u64::MAX)) {
            let (at, end) = places[write.id as usize];
            disk[at as usize..end as usize].fill(write.id);
            ended += 1;
        }
    }
    assert_eq!(disk, want, "seed {seed}");
}

#[test]
fn overlapping_writes_keep_their_order() {
    (0..50).for_each(overlapping);
}

/// Writes of a move come in ascending order, some in pieces, and so the disk gets them, however
/// others make its head jump.
#[test]
fn writes_of_moves_reach_a_rotating_disk_in_their_order() {
    for seed in 0..20 {
        let mut rng = Prng::new(seed);
        let mut lab = Lab::new(DeviceKind::Rotating, Limits::default(), Disk::new(64 * M));
        // Others write on both sides of the chunk, and read everywhere.
        let (mut at, mut asked, mut ended) = (16 * M, 0, 0);
        while ended < asked || at < 47 * M {
            if at < 47 * M && (rng.one_in(2) || lab.in_flight.is_empty()) {
                at += rng.below(4) * 64 * 1024;
                let pieces = rng.range(1, 4) as u32;
                lab.ask(Class::Move, true, at, (64 * K, pieces));
                at += u64::from(pieces) * 64 * 1024;
                asked += u64::from(pieces);
                for _ in 0..rng.below(4) {
                    let class = if rng.one_in(2) { Class::WriteBack } else { Class::Foreground };
                    let (write, place) = (rng.one_in(2), rng.below(32 * M / 4096) * 4096);
                    let outside = if place < 16 * M { place } else { place + 32 * M };
                    let offset = if write { outside } else { 2 * place };
                    lab.ask(class, write, offset, (4 * K, 1));
                }
                lab.dispatch();
                continue;
            }
            let moves = lab.step(Instant(u64::MAX)).into_iter().filter(|e| e.class == Class::Move);
            ended += moves.count() as u64;
        }
        let moves = lab.sent.iter().filter(|s| s.class == Class::Move && s.write);
        let places: Vec<(u64, u64)> = moves.map(|s| s.place).collect();
        assert!(places.len() > 50 && places.is_sorted(), "seed {seed}: {places:?}");
    }
}

#[test]
fn a_write_of_a_move_that_was_held_keeps_its_place_in_the_order() {
    let limits = Limits { depth: 1, ..Limits::default() };
    let mut lab = Lab::new(DeviceKind::Rotating, limits, Served::new(1, in_order(us(500))));
    for (ms, place) in [0, 0, M, 2 * M, 3 * M].into_iter().enumerate() {
        lab.now = Instant(0).after(Duration::from_millis(ms as u64));
        lab.ask(Class::Move, true, place, (4 * K, 1));
    }
    while lab.sent.len() < 5 {
        lab.step(Instant(u64::MAX));
    }
    // When the first has ended, and the second may go, the third is on its way.
    let order: Vec<u64> = lab.sent.iter().map(|s| s.ids[0]).collect();
    assert_eq!(order, [0, 2, 1, 3, 4]);
}
