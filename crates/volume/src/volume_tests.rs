use base::{Duration, Prng};
use pool::{CreateOptions, DeviceFile, Settings};
use rt::{Order, Rt};
use sim::{DiskModel, World};

use super::*;
use crate::Volumes;

const MIB: u64 = 1 << 20;

/// Two disks, a pool of two copies, and what to open it with again.
struct Bench {
    world: World,
    files: Vec<DeviceFile>,
    settings: Settings,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let world = World::new(seed);
        let size = 48 * MIB;
        let files: Vec<_> = (0..2)
            .map(|i| DeviceFile {
                path: format!("disk{i}"),
                file: world.add_disk(DiskModel::nvme(size)),
                size_bytes: size,
            })
            .collect();
        let options = CreateOptions { name: "bench".into(), copies: 2, group_bytes: Some(MIB) };
        let ids = [[1; 16], [2; 16], [3; 16]];
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 256);
        let (f, r) = (files.clone(), rt.clone());
        rt.block_on(async move { pool::create(&r, &f, &options, &ids).await.expect("create") })
            .expect("alive");
        rt.kill();
        let settings =
            Settings { commit_interval: Duration::from_millis(20), ..Settings::default() };
        Bench { world, files, settings }
    }

    /// Runs `body` on the open pool; closes it afterwards, or pulls the plug.
    fn boot<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        clean: bool,
        body: impl FnOnce(Rt, Volumes) -> F + 'static,
    ) -> T {
        let rt = Rt::new(self.world.backend(), Order::Seeded(self.world.history_hash()), 256);
        let (r, files, settings) = (rt.clone(), self.files.clone(), self.settings.clone());
        let out = rt.block_on(async move {
            let (pool, warnings) = Pool::open(&r, files, settings).await.expect("open");
            assert!(warnings.is_empty(), "{warnings:?}");
            let out = body(r, Volumes::new(&pool)).await;
            if clean {
                pool.close().await.expect("close");
            }
            out
        });
        if !clean {
            self.world.power_cut();
        }
        rt.kill();
        out.expect("alive")
    }
}

async fn bytes_of(v: &Volume, offset: u64, len: u64) -> Vec<u8> {
    v.read(offset, len).await.expect("read").iter().flat_map(|s| s.to_vec()).collect()
}

fn random_slice(v: &Volume, rng: &mut Prng, len: usize) -> Slice {
    let mut b = v.pool.bufs().take(len);
    rng.fill(&mut b);
    b.freeze()
}

#[test]
fn agrees_with_a_vector_of_bytes_over_restarts() {
    for seed in 0..6 {
        let bench = Bench::new(seed);
        let size = 3 * MIB + 512;
        bench.boot(true, move |_, v| async move {
            drop(v.create("v", size, 512).await.expect("create"))
        });
        let mut model = vec![0u8; size as usize];
        for round in 0..4u64 {
            model = bench.boot(round % 2 == 0, move |_, volumes| async move {
                let v = volumes.open("v").expect("there");
                assert_eq!(bytes_of(&v, 0, size).await, model, "seed {seed} round {round}");
                let mut rng = Prng::new(seed * 100 + round);
                for _ in 0..60 {
                    let len = match rng.below(3) {
                        0 => 512 * rng.range(1, 16),
                        1 => 4096 * rng.range(1, 8),
                        _ => 512 * rng.range(1, 1200),
                    };
                    let at = 512 * rng.below((size - len) / 512 + 1);
                    let span = at as usize..(at + len) as usize;
                    match rng.below(6) {
                        0..=2 => {
                            let data = random_slice(&v, &mut rng, len as usize);
                            model[span].copy_from_slice(&data);
                            v.write(at, data).await.expect("write");
                        }
                        3 => {
                            v.write_zeroes(at, len, rng.one_in(2), None).await.expect("zero");
                            model[span].fill(0);
                        }
                        4 => {
                            v.discard(at, len).await.expect("discard");
                            let to = if at + len == size { size } else { (at + len) / 4096 * 4096 };
                            let from = at.next_multiple_of(4096);
                            if from < to {
                                model[from as usize..to as usize].fill(0);
                            }
                        }
                        _ => assert_eq!(bytes_of(&v, at, len).await, model[span]),
                    }
                }
                v.flush().await.expect("flush");
                let parts = v.extents(0, size, 10_000).await.expect("extents");
                assert_eq!(parts.iter().map(|p| p.len).sum::<u64>(), size);
                let mut at = 0;
                for p in parts {
                    assert!(p.allocated || model[at..at + p.len as usize].iter().all(|&b| b == 0));
                    at += p.len as usize;
                }
                model
            });
        }
    }
}

#[test]
fn the_longest_write_needs_no_alignment() {
    Bench::new(3).boot(true, |_, volumes| async move {
        let v = volumes.create("v", 36 * MIB, 512).await.expect("create");
        let data = random_slice(&v, &mut Prng::new(1), base::BufPool::MAX);
        v.write(512, data.clone()).await.expect("write");
        assert!(bytes_of(&v, 512, data.len() as u64).await == data[..]);
        assert_eq!(bytes_of(&v, 0, 512).await, [0; 512]);
        assert_eq!(bytes_of(&v, 512 + data.len() as u64, 512).await, [0; 512]);
    });
}

#[test]
fn writers_of_different_sectors_of_a_block_do_not_lose_one_another() {
    let bench = Bench::new(7);
    bench.boot(true, |rt, volumes| async move {
        let v = volumes.create("v", MIB, 512).await.expect("create");
        for round in 1..20u8 {
            let tasks: Vec<_> = (0..16u64)
                .map(|i| {
                    let v = v.clone();
                    rt.spawn(async move {
                        let mut b = v.pool.bufs().take(512);
                        b.fill(round.wrapping_mul(16).wrapping_add(i as u8));
                        v.write(i * 512, b.freeze()).await.expect("write");
                    })
                })
                .collect();
            for t in tasks {
                t.await.expect("ran");
            }
            let got = bytes_of(&v, 0, 16 * 512).await;
            for (i, sector) in got.chunks(512).enumerate() {
                assert!(
                    sector.iter().all(|&b| b == round.wrapping_mul(16).wrapping_add(i as u8)),
                    "round {round} sector {i}"
                );
            }
        }
    });
}

#[test]
fn what_a_shrink_cut_off_does_not_come_back_and_space_returns() {
    let bench = Bench::new(9);
    bench.boot(true, |rt, volumes| async move {
        let v = volumes.create("v", 4 * MIB, 512).await.expect("create");
        let data = random_slice(&v, &mut Prng::new(1), 4 * MIB as usize);
        v.write(0, data.clone()).await.expect("write");
        volumes.resize("v", MIB + 512).await.expect("shrink");
        assert_eq!(v.read(MIB, 1024).await.expect_err("outside").kind, ErrorKind::Invalid);
        volumes.resize("v", 4 * MIB).await.expect("grow");
        let got = bytes_of(&v, 0, 4 * MIB).await;
        assert_eq!(got[..MIB as usize + 512], data[..MIB as usize + 512]);
        assert!(got[MIB as usize + 512..].iter().all(|&b| b == 0));
        volumes.delete("v").await.expect("delete");
        assert!(v.info().is_none() && v.read(0, 512).await.is_err() && volumes.open("v").is_none());
        rt.sleep(Duration::from_secs(1)).await;
        volumes.pool().commit().await.expect("commit");
        let used = volumes.pool().status().pool.used_bytes;
        assert!(used < 64 * 4096, "{used} bytes are still in use");
    });
}

#[test]
fn a_full_pool_says_so_and_keeps_what_it_has() {
    let bench = Bench::new(11);
    bench.boot(true, |_, volumes| async move {
        let v = volumes.create("v", 1 << 40, 4096).await.expect("create");
        let mut rng = Prng::new(5);
        let mut written = Vec::new();
        let full = loop {
            let at = MIB * rng.below(1 << 19);
            let data = random_slice(&v, &mut rng, MIB as usize / 4);
            match v.write(at, data.clone()).await {
                Ok(()) => written.push((at, data)),
                Err(e) => break e,
            }
            assert!(written.len() < 1000);
        };
        assert_eq!(full.kind, ErrorKind::NoSpace, "{full}");
        assert!(written.len() > 50, "only {} fit", written.len());
        v.flush().await.expect("flush");
        for (at, data) in &written {
            assert_eq!(bytes_of(&v, *at, data.len() as u64).await, **data);
        }
        for (at, data) in &written {
            v.discard(*at, data.len() as u64).await.expect("discard on a full pool");
        }
        v.flush().await.expect("flush");
        v.write(0, written[0].1.clone()).await.expect("there is room again");
    });
}

#[test]
fn zeroes_that_wait_take_no_memory() {
    let bench = Bench::new(13);
    bench.boot(true, |rt, volumes| async move {
        let v = volumes.create("v", 4 * MIB, 512).await.expect("create");
        let held = v.locks.lock(0..1024).await;
        rt.settled().await;
        let before = v.pool.bufs().outstanding();
        let tasks: Vec<_> = (0..32)
            .map(|i| {
                let v = v.clone();
                rt.spawn(async move { v.write_zeroes(i * 512, 2 * MIB, true, None).await })
            })
            .collect();
        rt.settled().await;
        assert_eq!(v.pool.bufs().outstanding(), before);
        drop(held);
        for t in tasks {
            t.await.expect("ran").expect("zeroes");
        }
        assert!(bytes_of(&v, 0, 4 * MIB).await.iter().all(|&b| b == 0));
        let parts = v.extents(0, 4 * MIB, 10).await.expect("extents");
        assert!(parts[0].allocated && parts[0].len > 2 * MIB, "{parts:?}");
    });
}

#[test]
fn zeroes_that_cannot_fit_take_nothing() {
    let bench = Bench::new(14);
    bench.boot(true, |_, volumes| async move {
        let v = volumes.create("v", 400 * MIB, 512).await.expect("create");
        let before = v.pool.available_bytes();
        let e = v.write_zeroes(0, 300 * MIB, true, None).await.expect_err("too many");
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
        assert_eq!(v.pool.available_bytes(), before);
        // What takes no space is none of that, and nor is what takes little.
        v.write_zeroes(0, 300 * MIB, false, None).await.expect("holes");
        v.write_zeroes(0, 4 * MIB, true, None).await.expect("room");
    });
}

/// Torture's seed 95006697. A commit took its time, and what others had discarded was to be free
/// after the next one: zeros that had room then were refused.
#[test]
fn zeroes_find_the_room_that_is_being_given_back() {
    let bench = Bench::new(16);
    bench.boot(true, |_, volumes| async move {
        let v = volumes.create("v", 36 * MIB, 512).await.expect("create");
        let other = volumes.create("other", 36 * MIB, 512).await.expect("create");
        other.write_zeroes(0, 32 * MIB, true, None).await.expect("room");
        let refused = v.write_zeroes(0, 32 * MIB, true, None).await.map_err(|e| e.kind);
        assert_eq!(refused, Err(ErrorKind::NoSpace), "nothing gives room for both");
        other.flush().await.expect("flush");
        other.discard(0, 32 * MIB).await.expect("discard");
        assert!(v.pool.available_bytes() < 16 * MIB, "a commit has given it back already");
        v.write_zeroes(0, 32 * MIB, true, None).await.expect("the same room again");
    });
}

#[test]
fn zeroes_up_to_an_old_end_spare_what_was_written_behind_it() {
    let bench = Bench::new(15);
    bench.boot(true, |rt, volumes| async move {
        // The last whole block, and the last block alone.
        for (name, offset) in [("a", 100), ("b", MIB - 100)] {
            let v = volumes.create(name, MIB + 512, 512).await.expect("create");
            v.write(0, random_slice(&v, &mut Prng::new(1), MIB as usize + 512))
                .await
                .expect("write");
            let first = offset / BLOCK_U64;
            let held = v.locks.lock(first..first + 1).await;
            let z = v.clone();
            let zeroes =
                rt.spawn(
                    async move { z.write_zeroes(offset, MIB + 512 - offset, false, None).await },
                );
            rt.settled().await;
            volumes.resize(name, 4 * MIB).await.expect("grow");
            let data = random_slice(&v, &mut Prng::new(2), 1024);
            v.write(MIB + 512, data.clone()).await.expect("write");
            drop(held);
            zeroes.await.expect("ran").expect("zeroes");
            let got = bytes_of(&v, MIB - 4096, 4096 + 1536).await;
            let from = if offset < MIB - 4096 { 0 } else { 4096 - 100 };
            assert!(got[from..4096 + 512].iter().all(|&b| b == 0), "{name}");
            assert_eq!(got[4096 + 512..], data[..], "{name}");
        }
    });
}
