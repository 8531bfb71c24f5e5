//! Data is read ahead of clients on disks that rotate, in simulation.

use base::{Lba, Prng, VolumeId};
use pool::{Pool, Settings};
use rt::{DeviceKind, Rt};
use testkit::{Mirror, only_byte, try_put};

const BLOCKS: u64 = 4096;

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

fn settings(kind: DeviceKind, read_ahead: u64) -> Settings {
    let device = queue::Limits { kind: Some(kind), ..queue::Limits::default() };
    Settings { device, read_ahead, ..Settings::default() }
}

/// Five streams of 8 KiB at once; returns what the devices were asked to read for them.
async fn streams(rt: &Rt, pool: &Pool, id: VolumeId) -> u64 {
    let clients = (0..5).map(|i| {
        let pool = pool.clone();
        rt.spawn(async move {
            for at in (0..600).step_by(2) {
                let data = pool.read(id, Lba(i * 800 + at), 2).await.expect("read");
                assert_eq!(only_byte(&data), Some(1));
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("alive");
    }
    pool.status().io.foreground.read.count
}

/// The reads of five streams: how many the devices had, and what was read ahead and used.
fn reads(kind: DeviceKind, read_ahead: u64) -> (u64, u64, u64) {
    let bench = mirror(3);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let (pool, _) = Pool::open(&rt, files, settings(kind, read_ahead)).await.expect("open");
        let reads = streams(&rt, &pool, id).await;
        let counts = pool.status().read_ahead;
        pool.close().await.expect("close");
        (reads, counts.read, counts.used)
    })
}

#[test]
fn streams_of_small_requests_are_few_reads_of_a_disk() {
    let (without, none, _) = reads(DeviceKind::Rotating, 0);
    // And some of nodes.
    assert!((1500..1550).contains(&without) && none == 0, "{without}, {none}");
    let (with, read, used) = reads(DeviceKind::Rotating, 512 << 10);
    assert!(with * 10 < without, "{with} reads, where {without} were asked for");
    assert!(used > 2900 && read < 3000 + 5 * 128, "{used} used of {read}");
    assert_eq!(reads(DeviceKind::Nvme, 512 << 10).1, 0, "no head moves there");
}

/// Blocks are written, given up and read at random and in short streams, in a volume that nearly
/// fills the pool, so that each place has one content after another. No read sees an older one.
fn mixed(seed: u64) -> u64 {
    let bench = mirror(seed);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let set = settings(DeviceKind::Rotating, 64 << 10);
        let (pool, _) = Pool::open(&rt, files, set).await.expect("open");
        let (mut r, mut model) = (Prng::new(seed), vec![1_u8; BLOCKS as usize]);
        for round in 0..400 {
            let at = r.below(BLOCKS - 128);
            let len = 1 + r.below(96);
            match r.below(4) {
                0 => {
                    let byte = (2 + round % 250) as u8;
                    try_put(&pool, id, at, len, byte).await.expect("write");
                    model[at as usize..(at + len) as usize].fill(byte);
                }
                1 if r.one_in(3) => {
                    pool.discard(id, Lba(at), Lba(at + len)).await.expect("discard");
                    model[at as usize..(at + len) as usize].fill(0);
                }
                2 => pool.commit().await.expect("commit"),
                _ => {
                    for lba in (at..at + len).step_by(2) {
                        let data = pool.read(id, Lba(lba), 2).await.expect("read");
                        let got: Vec<u8> = data
                            .iter()
                            .flat_map(|s| s.chunks(base::BLOCK).map(|block| block[0]))
                            .collect();
                        assert_eq!(got, model[lba as usize..lba as usize + 2], "at {lba}");
                    }
                }
            }
        }
        let used = pool.status().read_ahead.used;
        pool.close().await.expect("close");
        used
    })
}

#[test]
fn what_was_read_ahead_is_never_older_than_what_was_written() {
    for seed in 0..20 {
        assert!(mixed(seed) > 1000, "seed {seed}");
    }
}
