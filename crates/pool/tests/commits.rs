//! Commits against a naive model: a list with the content after each change.
//!
//! A boot ends by a kill or a power cut at a random time, in whatever step a commit is then, and
//! some writes and flushes fail. What the next open finds is the content after some change: not
//! before the last one that a commit had covered when it was answered, and never a mixture.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK_U64, Duration, IoError, Lba, VolumeId};
use offline::Severity;
use pool::{DeviceFile, Pool};
use rt::{Op, Rt};
use sim::{Fault, FlushLoss, Times, World};
use testkit::{Effect, Mirror, Rules, only_byte, open, try_put};

const BLOCKS: usize = 48;

/// What each block holds.
type Content = [u8; BLOCKS];

/// All contents since the boot began, and which one is durable for sure.
#[derive(Clone)]
struct Model(Rc<RefCell<Vec<Content>>>, Rc<Cell<usize>>);

impl Model {
    fn new(first: Content) -> Model {
        Model(Rc::new(RefCell::new(vec![first])), Rc::default())
    }

    fn changes(&self) -> usize {
        self.0.borrow().len() - 1
    }

    /// The blocks of `[at, at + n)` hold `value` from now on.
    fn change(&self, (at, n): (usize, usize), value: u8) {
        let mut now = *self.0.borrow().last().expect("the first");
        now[at..at + n].fill(value);
        self.0.borrow_mut().push(now);
    }

    /// A commit that was asked for after so many changes was answered well.
    fn committed(&self, changes: usize) {
        self.1.set(self.1.get().max(changes));
    }

    /// How many changes are in what was found: the newest that may be.
    fn found(&self, content: &Content) -> Option<usize> {
        let all = self.0.borrow();
        (self.1.get()..all.len()).rev().find(|&n| all[n] == *content)
    }
}

async fn content(pool: &Pool, id: VolumeId) -> Content {
    let mut out = [0; BLOCKS];
    for (lba, byte) in (0..).zip(&mut out) {
        let data = pool.read(id, Lba(lba), 1).await.expect("read");
        *byte = only_byte(&data).expect("a block of one write");
    }
    out
}

/// Changes blocks, and asks for commits, which run beside the next changes. A change that fails is
/// none.
async fn work(rt: Rt, pool: Pool, id: VolumeId, model: Model) {
    loop {
        let at = (rt.random() % BLOCKS as u64) as usize;
        let n = (1 + rt.random() as usize % 6).min(BLOCKS - at);
        let (value, from) = ((1 + rt.random() % 250) as u8, Lba(at as u64));
        match rt.random() % 8 {
            0 => {
                if pool.discard(id, from, from.plus(n as u64)).await.is_ok() {
                    model.change((at, n), 0);
                }
            }
            1 | 2 => {
                let (pool, model, changes) = (pool.clone(), model.clone(), model.changes());
                let commit = async move {
                    if pool.commit().await.is_ok() {
                        model.committed(changes);
                    }
                };
                if rt.random() % 2 == 0 {
                    commit.await;
                } else {
                    drop(rt.spawn(commit));
                }
            }
            3 => rt.sleep(Duration::from_micros(rt.random() % 300)).await,
            _ => {
                if try_put(&pool, id, at as u64, n as u64, value).await.is_ok() {
                    model.change((at, n), value);
                }
            }
        }
        rt.yield_now().await;
    }
}

/// In some boots one write in so many fails, of those to metadata too; in others a device's flush
/// fails once, and loses what it covered.
fn fail_some((world, rules, files): (World, Rules, Vec<DeviceFile>), n: u64) {
    if n % 3 == 1 {
        let count = Cell::new(n);
        rules.set(move |op| {
            let write = matches!(op, Op::Write { .. });
            count.set(count.get() + u64::from(write));
            (write && count.get() % 23 == 0).then_some((IoError::IO, Effect::No))
        });
    }
    if n % 3 == 2 {
        let loses = if n % 2 == 0 { FlushLoss::All } else { FlushLoss::Part };
        let fault = Fault::FailFlush { times: Times::Next(1), loses };
        assert!(world.inject(files[n as usize % files.len()].file, fault));
    }
}

#[test]
fn what_is_found_is_the_content_after_a_change_that_no_commit_has_passed() {
    // Boots that have lost changes, that have kept some which no commit was answered for, and
    // commits that were answered.
    let (mut lost, mut kept, mut commits) = (0, 0, 0);
    for seed in 0..60 {
        let disks = 1 + seed as usize % 2;
        let bench = Mirror::new(seed, (disks, disks as u8), |pool| async move {
            pool.create_volume("v", BLOCKS as u64 * BLOCK_U64, 4096).await.expect("volume")
        });
        let (id, mut first) = (bench.volume, [0; BLOCKS]);
        for boot in 0..6 {
            let model = Model::new(first);
            let time = Duration::from_micros(500 + (seed * 7919 + boot * 104_729) % 9_000);
            let filled = model.clone();
            let (world, rules) = (bench.world.clone(), bench.rules.clone());
            let ended = bench.try_run(|rt, files| async move {
                let pool = open(&rt, files.clone()).await;
                assert_eq!(content(&pool, id).await, first, "seed {seed}, boot {boot}");
                fail_some((world, rules, files), seed + boot);
                let r = rt.clone();
                drop(rt.spawn(async move {
                    r.sleep(time).await;
                    r.kill();
                }));
                work(rt, pool, id, filled).await;
            });
            assert!(ended.is_none());
            bench.rules.clear();
            if (seed + boot) % 2 == 0 {
                bench.world.power_cut();
            } else {
                // The runtime is gone, and caches of devices keep what they have.
                drop(bench.world.backend());
            }
            first = bench.run(|rt, files| async move {
                let pool = open(&rt, files).await;
                let now = content(&pool, id).await;
                pool.close().await.expect("close");
                now
            });
            let found = model.found(&first);
            let found = found.unwrap_or_else(|| panic!("seed {seed}, boot {boot}: {first:?}"));
            lost += u64::from(found < model.changes());
            kept += u64::from(found > model.1.get());
            commits += u64::from(model.1.get() > 0);
        }
        let problems = bench.check().findings.problems;
        // What a crash has torn on one device stands there until it is written again.
        assert!(problems.iter().all(|p| p.severity != Severity::Error), "{seed}: {problems:?}");
    }
    assert!(lost > 50 && kept > 20 && commits > 100, "{lost} lost, {kept} kept, {commits} commits");
}
