//! A device that a crash has left a superblock behind. By itself it serves the commit before, until
//! it has the newest one, and from then on that; whenever the next open ends, and also if it was
//! opened alone meanwhile.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use base::{BLOCK, Duration, IoError, Lba, StorageError, VolumeId};
use pool::check::{CheckOptions, Report, Severity, Subject};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{Op, Order, Rt};
use sim::{DiskModel, World};

#[allow(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::{Done, Rules, writes_to};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 64;

struct Bench {
    world: World,
    files: Vec<DeviceFile>,
    rules: Rules,
    volume: VolumeId,
}

impl Bench {
    /// A mirror of two disks with a volume of which all blocks hold `1`, then `2`. Of the commit of
    /// the `2` the first disk has all but the superblock.
    fn new(seed: u64) -> Bench {
        let world = World::new(seed);
        let disk = |i| {
            let file = world.add_disk(DiskModel::nvme(32 * MIB));
            DeviceFile { path: format!("disk{i}"), file, size_bytes: 32 * MIB }
        };
        let files: Vec<_> = (0..2).map(disk).collect();
        let mut bench = Bench { world, files, rules: Rules::default(), volume: VolumeId(0) };
        bench.volume = bench.run(|rt, files| async move {
            let options = CreateOptions { name: "bench".into(), copies: 2, group_bytes: Some(MIB) };
            pool::create(&rt, &files, &options, &[[1; 16], [2; 16], [3; 16]])
                .await
                .expect("create");
            let pool = open(&rt, files).await.expect("open");
            let id = pool.create_volume("v", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
            fill(&pool, id, 1).await;
            pool.close().await.expect("close");
            id
        });
        // As it is when it is asked for the last superblock.
        let (world, first, id) = (bench.world.clone(), bench.files[0].file, bench.volume);
        let before = Rc::new(RefCell::new(None));
        let seen = before.clone();
        bench.rules.set(move |op| {
            if is_superblock(op) && writes_to(op, first) {
                *seen.borrow_mut() = Some(world.snapshot_disk(first));
            }
            None
        });
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await.expect("open");
            fill(&pool, id, 2).await;
        });
        bench.rules.clear();
        bench.world.restore_disk(first, before.borrow().as_ref().expect("it was asked"));
        bench
    }

    /// The first disk is opened alone, and fails at its first superblock.
    fn open_alone_in_vain(&self) {
        self.rules.set(|op| is_superblock(op).then_some((IoError::IO, Done::No)));
        self.run(|rt, files| async move {
            let Err(e) = open(&rt, files[..1].to_vec()).await else {
                panic!("it has no superblock")
            };
            assert!(e.context.contains("superblock write to disk0"), "{e}");
        });
        self.rules.clear();
    }

    /// Both are opened, until they are asked for the `n`th write or flush; then power fails, or all
    /// is killed. False if it was open before that.
    fn open_until(&self, n: u64, power: bool) -> bool {
        let (left, open_now) = (Rc::new(Cell::new(n)), Rc::new(Cell::new(false)));
        let counted = left.clone();
        self.rules.set(move |op| {
            let counts = matches!(op, Op::Write { .. } | Op::Flush { .. });
            counted.set(counted.get().saturating_sub(u64::from(counts)));
            None
        });
        let (opened, opening) = (open_now.clone(), open_now.clone());
        self.run(|rt, files| async move {
            let inner = rt.clone();
            rt.detach(async move {
                let _pool = open(&inner, files).await.expect("open");
                opened.set(true);
            });
            while left.get() > 0 && !opening.get() {
                rt.sleep(Duration::from_micros(1)).await;
            }
        });
        self.rules.clear();
        if power {
            self.world.power_cut();
        }
        !open_now.get()
    }

    /// These disks can be opened, and the volume holds one of `values` as a whole.
    fn expect(&self, disks: &'static [usize], values: &'static [u8]) {
        let id = self.volume;
        self.run(|rt, files| async move {
            let some = disks.iter().map(|&d| files[d].clone()).collect();
            let pool = open(&rt, some).await.unwrap_or_else(|e| panic!("{disks:?}: {e}"));
            let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
            let first = data[0][0];
            assert!(values.contains(&first), "{disks:?}: {first}");
            assert!(
                data.iter().all(|s| s.iter().all(|&b| b == first)),
                "{disks:?}: not all is {first}"
            );
            pool.close().await.expect("close");
        });
    }

    fn check(&self) -> Report {
        self.run(|rt, files| async move {
            let options = CheckOptions { data: true, ..CheckOptions::default() };
            pool::check::check(&rt, files, &options, &mut |_| ()).await.expect("a pool")
        })
    }

    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(Rt, Vec<DeviceFile>) -> F,
    ) -> T {
        let rt = Rt::new(
            self.rules.over(self.world.backend()),
            Order::Seeded(self.world.history_hash()),
            256,
        );
        let out = rt.block_on(body(rt.clone(), self.files.clone()));
        rt.kill();
        out.expect("alive")
    }
}

fn is_superblock(op: &Op) -> bool {
    matches!(op, Op::Write { fua: true, .. })
}

async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Result<Pool, StorageError> {
    let settings = Settings { commit_interval: Duration::from_millis(50), ..Settings::default() };
    Ok(Pool::open(rt, files, settings).await?.0)
}

async fn fill(pool: &Pool, id: VolumeId, value: u8) {
    let mut data = pool.bufs().take(BLOCKS as usize * BLOCK);
    data.fill(value);
    pool.write(id, Lba(0), &data.freeze()).await.expect("write");
    pool.commit().await.expect("commit");
}

/// What it wrote over on the device are table pages of the newest commit; the next open copies them
/// back.
#[test]
fn an_open_alone_that_was_cut_short_costs_one_copy_of_table_pages() {
    let bench = Bench::new(1);
    assert!(bench.check().is_clean(), "a crash alone costs nothing");
    bench.open_alone_in_vain();
    let report = bench.check();
    let bad: Vec<_> = report.problems.iter().filter(|p| p.severity != Severity::Note).collect();
    let explained = |what: &str| what.contains("the pool was opened without the other devices");
    assert!(!bad.is_empty());
    for p in bad {
        assert_eq!((p.severity, p.subject), (Severity::DamagedCopy, Subject::Table), "{p}");
        assert!(p.device.as_deref() == Some("disk0") && explained(&p.what), "{p}");
    }
    bench.expect(&[0, 1], &[2]);
    let report = bench.check();
    assert!(report.is_clean(), "{:?}", report.problems);
    bench.expect(&[0], &[2]);
}

/// Then the other disk is lost, or the first one.
#[test]
fn an_open_that_is_cut_short_leaves_each_device_whole() {
    for alone in [false, true] {
        for power in [false, true] {
            for disks in [&[0][..], &[1]] {
                let mut n = 1;
                loop {
                    let bench = Bench::new(n);
                    if alone {
                        bench.open_alone_in_vain();
                    }
                    if !bench.open_until(n, power) {
                        break;
                    }
                    bench.expect(disks, if disks == [0] { &[1, 2] } else { &[2] });
                    n += 1;
                }
                // It has flushed both, and a commit has flushed both and written two superblocks,
                // at least.
                assert!(n > 6, "{n}");
            }
        }
    }
}
