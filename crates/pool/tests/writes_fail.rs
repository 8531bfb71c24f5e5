//! A device that the pool cannot do without is not dropped when a write to it fails. The status
//! says so until one succeeds; where space was missing, until one does some time later.

use base::{Duration, ErrorKind, IoError, Lba};
use model::device::DeviceState;
use model::moves::MovesState;
use rt::Op;
use sim::DiskModel;
use testkit::{Effect, MIB, Mirror, blocks, disk, fill, open, writes_to};

#[test]
fn the_status_tells_of_writes_that_fail_until_one_succeeds() {
    for error in [IoError::IO, IoError::NO_SPACE] {
        let bench = Mirror::new(6, (1, 1), |pool| async move {
            pool.create_volume("v", 64 * MIB, 4096).await.expect("volume")
        });
        let (rules, id, only) = (bench.rules.clone(), bench.volume, bench.files[0].file);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let told = |pool: &pool::Pool| {
                let device = pool.status().pool.devices.remove(0);
                assert_eq!(device.state, DeviceState::Online);
                device.write_trouble
            };
            assert_eq!(told(&pool), None);
            rules.set(move |op| writes_to(op, only).then_some((error, Effect::No)));
            pool.write(id, Lba(0), &blocks(1, 1)).await.expect_err("no write succeeds");
            assert_eq!(told(&pool), Some(error.to_string()));
            rules.set(|_| None);
            assert_eq!(told(&pool), Some(error.to_string()));
            pool.write(id, Lba(0), &blocks(1, 1)).await.expect("write");
            if error == IoError::NO_SPACE {
                // This one may have needed none.
                assert_eq!(told(&pool), Some(error.to_string()));
                rt.sleep(Duration::from_secs(10)).await;
                pool.write(id, Lba(0), &blocks(1, 1)).await.expect("write");
            }
            assert_eq!(told(&pool), None);
            pool.close().await.expect("close");
        });
    }
}

/// A move says what it waits for: space under the device that it fills, or that this can be
/// written, or a copy that can be read. No client gets an error for what only a move was refused.
#[test]
fn a_move_says_which_side_of_it_fails() {
    // Behind the tables and the first chunks, which are written.
    const LATE: u64 = 6 * MIB;
    for (error, on_new, expected) in [
        (IoError::NO_SPACE, true, "waiting for space under new"),
        (IoError::IO, true, "waiting for writes to new to succeed (see log)"),
        (IoError::IO, false, "waiting for a readable copy (see log)"),
    ] {
        let bench = Mirror::new(7, (1, 1), |pool| async move {
            let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
            fill(&pool, id, 4096, 1).await;
            id
        });
        let new = disk(&bench.world, "new", DiskModel::nvme(32 * MIB));
        let rules = bench.rules.clone();
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            pool.moves().pause_moves(true);
            let (from, to) = (files[0].file, new.file);
            pool.moves().replace_device("disk0", new, [9; 16]).await.expect("replace");
            let all = pool.moves().moves_status().left_bytes;
            rules.set(move |op| {
                let is_it = match op {
                    Op::Write { file, offset, .. } => on_new && *file == to && *offset >= LATE,
                    Op::Read { file, .. } => !on_new && *file == from,
                    _ => false,
                };
                is_it.then_some((error, Effect::No))
            });
            pool.moves().pause_moves(false);
            rt.sleep(Duration::from_secs(30)).await;
            let status = pool.moves().moves_status();
            assert_eq!(status.trouble.as_deref(), Some(expected), "{status:?}");
            // A group that was copied in part, again and again, does not count.
            assert_eq!(status.copied_bytes + status.left_bytes, all, "{status:?}");
            let told: Vec<_> =
                pool.status().pool.devices.into_iter().filter_map(|d| d.write_trouble).collect();
            assert!(told.is_empty(), "{told:?}");
            rules.set(|_| None);
            rt.sleep(Duration::from_secs(30)).await;
            assert_eq!(pool.moves().moves_status().state, MovesState::None);
            pool.close().await.expect("close");
        });
    }
}

/// Space may come back, so its want drops no device; but it must not hide that another one fails,
/// which is dropped as ever: the first one has all that was written before.
#[test]
fn a_device_without_space_hides_no_other_that_fails() {
    for full in 0..2 {
        let bench = Mirror::new(8, (2, 2), |pool| async move {
            let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
            fill(&pool, id, 16, 1).await;
            id
        });
        let (rules, id) = (bench.rules.clone(), bench.volume);
        let [space, dead] = [full, 1 - full].map(|i| bench.files[i].file);
        bench.run(move |rt, files| async move {
            let pool = open(&rt, files).await;
            let device = |i: usize| pool.status().pool.devices.remove(i);
            rules.set(move |op| match op {
                op if writes_to(op, space) => Some((IoError::NO_SPACE, Effect::No)),
                op if writes_to(op, dead) => Some((IoError::IO, Effect::No)),
                _ => None,
            });
            let e = pool.write(id, Lba(1), &blocks(2, 1)).await.expect_err("no write succeeds");
            assert_eq!(e.kind, ErrorKind::NoSpace, "without the other, space is all it lacks: {e}");
            assert!(e.context.contains(&format!("no space under disk{full}")), "{e}");
            assert_eq!(
                (device(full).state, device(1 - full).state),
                (DeviceState::Online, DeviceState::Failed)
            );
            assert!(device(1 - full).errors.write > 0 && device(full).errors.write > 0);
            // Once there is space, the other one alone is missing.
            rules.set(move |op| writes_to(op, dead).then_some((IoError::IO, Effect::No)));
            pool.write(id, Lba(1), &blocks(2, 1)).await.expect("write");
            pool.commit().await.expect("commit");
            assert_eq!(device(1 - full).state, DeviceState::Failed);
            rules.set(|_| None);
            rt.sleep(Duration::from_secs(60)).await;
            assert_eq!(device(1 - full).state, DeviceState::Online, "it comes back by itself");
            pool.close().await.expect("close");
        });
    }
}
