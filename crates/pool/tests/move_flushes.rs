//! A new device fails at one of its flushes while chunks are moved to it, and loses what it had not
//! made durable. What was copied to it counts only where it is durable.

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, Lba};
use model::device::DeviceState;
use model::moves::MovesState;
use model::status::PoolState;
use pool::DeviceFile;
use rt::Op;
use sim::{DiskModel, Fault, FlushLoss, Times};
use testkit::{MIB, Mirror, check_pool, device_states, disk, moved, only_byte, open, try_open};

const BLOCKS: u64 = 512;

/// Replaces the last disk of a pool by `new`, which loses what its `n`th flush covers. Returns
/// whether it was asked for so many.
fn replaced(bench: &Mirror, new: &DeviceFile, n: u32) -> bool {
    let (flushes, hit) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (world, file, struck) = (bench.world.clone(), new.file, hit.clone());
    bench.rules.set(move |op| {
        if matches!(op, Op::Flush { file: of } if *of == file) {
            flushes.set(flushes.get() + 1);
            if flushes.get() == n {
                let fault = Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All };
                struck.set(world.inject(file, fault));
            }
        }
        None
    });
    let new = new.clone();
    bench.run(|rt, files| async move {
        let last = files.last().expect("a disk").path.clone();
        let pool = open(&rt, files).await;
        // This may fail, or the pool ends, as the new device alone has something by now.
        let joined = pool.moves().replace_device(&last, new, [9; 16]).await.is_ok();
        for _ in 0..6_000 {
            let (left, ended) =
                (pool.moves().moves_status().state, pool.status().pool.state == PoolState::Failed);
            let is_back = device_states(&pool).iter().all(|d| d.1 == DeviceState::Online);
            if !joined || ended || left == MovesState::None && is_back {
                return;
            }
            rt.sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}, {:?}", pool.moves().moves_status(), device_states(&pool));
    });
    bench.rules.clear();
    hit.get()
}

/// The pool with all devices that there are now: it holds what it held, and its copies are whole.
fn is_whole(bench: &Mirror, new: &DeviceFile, what: &str) {
    let (id, new, label) = (bench.volume, new.clone(), what.to_owned());
    let left = bench.run(|rt, mut files| async move {
        files.push(new);
        let all = files.clone();
        let (pool, _) = try_open(&rt, files).await.unwrap_or_else(|e| panic!("{label}: {e}"));
        let data = pool.read(id, Lba(0), BLOCKS).await;
        let data = data.unwrap_or_else(|e| panic!("{label}: {e}"));
        assert_eq!(only_byte(&data), Some(1), "{label}");
        moved(&rt, &pool).await;
        let names = device_states(&pool);
        pool.close().await.expect("close");
        let is_left = |f: &DeviceFile| names.iter().any(|(path, _)| *path == f.path);
        all.into_iter().filter(is_left).collect::<Vec<_>>()
    });
    let report = bench.run(|rt, _| async move { check_pool(&rt, left).await });
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
}

#[test]
fn what_a_new_device_has_lost_is_no_copy() {
    for copies in [1, 2] {
        for n in 1.. {
            let what = format!("{copies} copies, flush {n}");
            let bench = Mirror::filled(u64::from(n), (copies, copies as u8), BLOCKS);
            let new = disk(&bench.world, "new", DiskModel::nvme(32 * MIB));
            let hit = replaced(&bench, &new, n);
            bench.world.power_cut();
            is_whole(&bench, &new, &what);
            if !hit {
                assert!(n > 8, "{what}");
                break;
            }
        }
    }
}
