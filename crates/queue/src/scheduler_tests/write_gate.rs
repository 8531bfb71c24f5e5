//! Reads beside writes for which clients wait, on an emulated disk.

use super::*;

/// So many tasks that read 4 KiB at random, each again after `think`, beside a stream of writes for
/// which clients wait, for a minute: how long reads took, and how many writes of 1 MiB ended.
fn reads_beside_commits(readers: u64, think: Duration) -> (Vec<Duration>, usize) {
    const SIZE: u64 = 64 << 30;
    let mut lab = Lab::new(DeviceKind::Rotating, Limits::default(), Disk::new(SIZE));
    let mut rng = Prng::new(5);
    let (mut took, mut written, mut write_at) = (Vec::new(), 0, SIZE / 2);
    let mut next: Vec<Instant> = (0..readers).map(|i| Instant(0).after(us(i * 100))).collect();
    for _ in 0..64 {
        lab.ask(Class::Commit, true, write_at, (M as usize, 1));
        write_at += M;
    }
    let end = Instant(0).after(Duration::from_secs(60));
    while lab.now < end {
        let (now, waiting) = (lab.now, next.len());
        next.retain(|at| *at > now);
        for _ in next.len()..waiting {
            lab.ask(Class::Foreground, false, rng.below(SIZE / 2 / 4096) * 4096, (4 * K, 1));
        }
        lab.dispatch();
        let until = next.iter().min().map_or(end, |at| (*at).min(end));
        for ended in lab.step(until) {
            if ended.class == Class::Foreground {
                took.push(ended.took());
                next.push(lab.now.after(think));
            } else {
                written += 1;
                lab.ask(Class::Commit, true, write_at, (M as usize, 1));
                write_at += M;
            }
        }
    }
    took.sort();
    (took, written)
}

#[test]
fn on_a_rotating_device_a_stream_of_commits_leaves_reads_their_turn() {
    let (took, written) = reads_beside_commits(4, Duration::from_millis(50));
    let p99 = took[took.len() * 99 / 100];
    assert!(p99 < Duration::from_millis(90), "{p99:?} of {} reads", took.len());
    assert!(written > 2000, "{written} writes beside them");
    // Where reads alone keep the disk busy, and one always is late, writes go on.
    let (took, written) = reads_beside_commits(8, Duration::ZERO);
    assert!(took.len() > 4000 && written > took.len() / 8, "{written} of {}", took.len());
    let (took, written) = reads_beside_commits(64, Duration::ZERO);
    assert!(took.len() > 4000 && written > took.len() / 20, "{written} of {}", took.len());
}

#[test]
fn on_a_rotating_device_the_background_does_not_keep_commits_out() {
    let mut lab = Lab::new(DeviceKind::Rotating, Limits::default(), Disk::new(64 << 30));
    let mut stream_at = 1 << 34;
    let mut stream = |lab: &mut Lab<Disk>| {
        lab.ask(Class::WriteBack, true, stream_at, (M as usize, 1));
        stream_at += M;
    };
    (0..32).for_each(|_| stream(&mut lab));
    lab.dispatch();
    let (mut took, end) = (Vec::new(), Instant(0).after(Duration::from_secs(20)));
    while lab.now < end && took.len() < 50 {
        for ended in lab.step(end) {
            if ended.class == Class::WriteBack {
                stream(&mut lab);
                if ended.id == 40 {
                    lab.ask(Class::Commit, true, 0, (4 * K, 1));
                }
            } else {
                took.push(ended.took());
                lab.ask(Class::Commit, true, (took.len() as u64) << 20, (4 * K, 1));
            }
        }
    }
    let longest = took.iter().max().expect("a commit ended");
    assert!(took.len() == 50 && *longest < Duration::from_millis(400), "{took:?}");
}
