//! Devices are added, replaced and removed in simulation: under load, over kills and power cuts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK_U64, ByteRange, Duration, Epoch, ErrorKind, Lba, SliceList, VolumeId, crc32c};
use model::device::DeviceState;
use model::moves::MovesState;
use model::status::PoolState;
use pool::{DeviceFile, Pool};
use queue::Limits;
use rt::{DeviceKind, Rt};
use sim::{Ascending, DiskModel};
use testkit::{
    MIB, Mirror, block, change, device_states, disk, fill, holds_each, moved, only_byte, open,
    try_open,
};

const BLOCKS: u64 = 1024;

/// A pool with a volume of which all blocks hold `1`.
fn mirror(seed: u64, disks: usize, copies: u8) -> Mirror {
    Mirror::filled(seed, (disks, copies), BLOCKS)
}

/// A disk that belongs to no pool.
fn new_disk(bench: &Mirror, name: &str) -> DeviceFile {
    disk(&bench.world, name, DiskModel::nvme(32 * MIB))
}

async fn reads(pool: &Pool, id: VolumeId, value: u8) {
    let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
    assert_eq!(only_byte(&data), Some(value));
}

/// Opens the pool on these disks alone, where everything must be.
fn alone(bench: &Mirror, disks: Vec<DeviceFile>, value: u8) {
    let id = bench.volume;
    bench.run(|rt, _| async move {
        let pool = open(&rt, disks).await;
        reads(&pool, id, value).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn a_device_is_added_and_gives_room() {
    let mut bench = mirror(1, 2, 2);
    let third = new_disk(&bench, "disk2");
    let added = third.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.status().pool.capacity_bytes;
        pool.moves().add_device(added.clone(), [9; 16]).await.expect("add");
        assert_eq!(device_states(&pool)[2], ("disk2".into(), DeviceState::Online));
        assert!(pool.status().pool.capacity_bytes > before + 8 * MIB);
        let again = pool.moves().add_device(added, [9; 16]).await.expect_err("twice");
        assert_eq!(again.kind, ErrorKind::Invalid);
        pool.close().await.expect("close");
    });
    bench.files.push(third);
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    // All tables are on it too: the pool can do without either of the others.
    for left_out in 0..2 {
        let disks: Vec<_> = bench.files.iter().map(|f| f.file).collect();
        let before: Vec<_> = disks.iter().map(|&f| bench.world.snapshot_disk(f)).collect();
        let mut some = bench.files.clone();
        some.remove(left_out);
        alone(&bench, some, 1);
        disks.iter().zip(&before).for_each(|(&f, was)| bench.world.restore_disk(f, was));
    }
}

#[test]
fn a_device_is_replaced_under_load() {
    let mut bench = mirror(2, 2, 2);
    let (new, id) = (new_disk(&bench, "disk2"), bench.volume);
    let replacement = new.clone();
    let model = bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let goes_on = Rc::new(Cell::new(true));
        let writes = rt.spawn(change((rt.clone(), pool.clone()), (id, BLOCKS), goes_on.clone()));
        pool.moves().replace_device("disk1", replacement, [9; 16]).await.expect("replace");
        assert_eq!(device_states(&pool)[1], ("disk1".into(), DeviceState::Leaving));
        moved(&rt, &pool).await;
        goes_on.set(false);
        let model = writes.await.expect("writes");
        let expected =
            [("disk0".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
        assert_eq!(device_states(&pool), expected);
        assert!(pool.moves().moves_status().copied_bytes >= BLOCKS * BLOCK_U64);
        holds_each(&pool, id, &model).await;
        pool.close().await.expect("close");
        model
    });
    // The old one does not say any more that it belongs to the pool.
    let old = bench.files[1].clone();
    bench.run(|rt, _| async move {
        let e = try_open(&rt, vec![old]).await.map(drop).expect_err("foreign");
        assert_eq!(e.kind, ErrorKind::Foreign);
    });
    bench.files = vec![bench.files[0].clone(), new.clone()];
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    // It has everything.
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![new]).await;
        holds_each(&pool, id, &model).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn a_missing_device_is_replaced() {
    let mut bench = mirror(3, 2, 2);
    let new = new_disk(&bench, "disk2");
    let replacement = new.clone();
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[0].clone()]).await;
        let missing = pool.status().pool.devices[1].id.clone();
        fill(&pool, id, BLOCKS, 7).await;
        pool.moves().replace_device(&missing, replacement, [9; 16]).await.expect("replace");
        moved(&rt, &pool).await;
        assert_eq!(pool.status().pool.state, PoolState::Online);
        pool.close().await.expect("close");
    });
    bench.files[1] = new.clone();
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    alone(&bench, vec![new], 7);
}

#[test]
fn a_refusal_names_the_devices_that_are_out_of_use() {
    mirror(44, 2, 2).run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        let e = pool.moves().remove_device("disk0").await.expect_err("refused");
        let why = "without disk0 no device in use would be left (disk1 is out of use), and the \
                   pool keeps 2 copies: take that one into use again, or add a device first";
        assert!(e.kind == ErrorKind::Invalid && e.context.contains(why), "{e}");
        pool.close().await.expect("close");
    });
}

#[test]
fn a_device_is_removed_if_the_others_can_take_what_it_has() {
    let mut bench = mirror(4, 3, 2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().remove_device("disk0").await.expect("remove");
        moved(&rt, &pool).await;
        let expected =
            [("disk1".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
        assert_eq!(device_states(&pool), expected);
        reads(&pool, id, 1).await;
        for (name, kind, what) in [
            (
                "disk1",
                ErrorKind::Invalid,
                "1 device in use would be left, and the pool keeps 2 copies: add",
            ),
            ("disk0", ErrorKind::NotFound, "no device of this pool"),
        ] {
            let e = pool.moves().remove_device(name).await.expect_err("refused");
            assert!(e.kind == kind && e.context.contains(what), "{e}");
        }
        pool.close().await.expect("close");
    });
    bench.files.remove(0);
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    alone(&bench, vec![bench.files[1].clone()], 1);
}

#[test]
fn copies_are_made_and_given_up_on_line() {
    let mut bench = mirror(5, 1, 1);
    let new = new_disk(&bench, "disk1");
    let third = new_disk(&bench, "disk2");
    let (second, id) = (new.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let e = pool.moves().set_copies(2).await.expect_err("one device");
        assert_eq!(e.kind, ErrorKind::Invalid);
        assert!(e.context.starts_with("2 copies on 1 device in use:"), "{e}");
        pool.moves().add_device(second, [9; 16]).await.expect("add");
        pool.moves().set_copies(2).await.expect("copies");
        moved(&rt, &pool).await;
        assert!(pool.moves().moves_status().copied_bytes > 0);
        pool.moves().add_device(third, [10; 16]).await.expect("add");
        let status = pool.moves().moves_status();
        assert_eq!(
            (status.state, status.copied_bytes),
            (MovesState::None, 0),
            "of the command before"
        );
        pool.moves().remove_device("disk2").await.expect("remove");
        moved(&rt, &pool).await;
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
    bench.files.push(new);
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    for disk in 0..2 {
        let copy = bench.world.snapshot_disk(bench.files[disk].file);
        alone(&bench, vec![bench.files[disk].clone()], 1);
        bench.world.restore_disk(bench.files[disk].file, &copy);
    }
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.status().pool.capacity_bytes;
        pool.moves().set_copies(1).await.expect("copies");
        moved(&rt, &pool).await;
        assert!(pool.status().pool.capacity_bytes > before + 16 * MIB);
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

#[test]
fn a_pause_holds_and_a_cancelled_leave_is_none() {
    let bench = mirror(6, 3, 2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().pause_moves(true);
        pool.moves().remove_device("disk2").await.expect("remove");
        rt.sleep(Duration::from_secs(60)).await;
        let status = pool.moves().moves_status();
        assert_eq!((status.state, status.copied_bytes), (MovesState::Paused, 0), "{status:?}");
        assert_eq!(status.leaving, ["disk2"]);
        pool.moves().cancel_moves().await.expect("cancel");
        pool.moves().pause_moves(false);
        assert_eq!(pool.moves().moves_status().state, MovesState::None);
        assert_eq!(device_states(&pool)[2].1, DeviceState::Online);
        assert_eq!(
            pool.moves().cancel_moves().await.expect_err("nothing").kind,
            ErrorKind::Invalid
        );
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean());
}

/// A cancel comes at any moment of the removal of a device that holds nothing. Either it is
/// refused, or the device stays, and takes chunks.
#[test]
fn a_device_of_which_the_leave_was_cancelled_is_not_removed() {
    let bench = mirror(7, 2, 1);
    let id = bench.volume;
    let disks: Vec<DeviceFile> = (0..100).map(|n| new_disk(&bench, &format!("new{n}"))).collect();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let (mut stayed, mut went) = (0, 0);
        for (n, disk) in disks.into_iter().enumerate() {
            let path = disk.path.clone();
            pool.moves().add_device(disk, [n as u8 + 100; 16]).await.expect("add");
            let (p, name) = (pool.clone(), path.clone());
            let removal = rt.spawn(async move { p.moves().remove_device(&name).await });
            rt.sleep(Duration::from_micros(n as u64 * 5)).await;
            let cancelled = pool.moves().cancel_moves().await.is_ok();
            removal.await.expect("alive").expect("remove");
            fill(&pool, id, BLOCKS, 1).await;
            moved(&rt, &pool).await;
            let is_there = device_states(&pool).iter().any(|(p, _)| *p == path);
            assert_eq!(is_there, cancelled, "after {n}");
            if is_there {
                stayed += 1;
                pool.moves().remove_device(&path).await.expect("remove");
                moved(&rt, &pool).await;
            } else {
                went += 1;
            }
        }
        assert!(stayed >= 10 && went >= 10, "{stayed} stayed, {went} went");
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// A device that is out of use leaves the pool while it is asked back, at any moment. Either it
/// comes back first, or it is no device of the pool any more; never is it called another's.
#[test]
fn a_device_that_leaves_while_it_is_asked_back_is_not_called_foreign() {
    let bench = mirror(8, 2, 1);
    let disks: Vec<DeviceFile> = (0..100).map(|n| new_disk(&bench, &format!("new{n}"))).collect();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let (mut came_back, mut went) = (0, 0);
        for (n, disk) in disks.into_iter().enumerate() {
            let path = disk.path.clone();
            pool.moves().add_device(disk, [n as u8 + 100; 16]).await.expect("add");
            pool.returns().offline_device(&path).await.expect("offline");
            let (p, name) = (pool.clone(), path.clone());
            let back = rt.spawn(async move { p.returns().online_device(&name).await });
            rt.sleep(Duration::from_micros(n as u64 * 10)).await;
            let leaves = pool.moves().remove_device(&path).await.is_ok();
            match back.await.expect("alive") {
                Ok(is_back) => came_back += u32::from(is_back),
                Err(e) => {
                    // The device had left before it was looked for, or while it was read.
                    let while_read = e.context.contains("no device of the pool any more");
                    assert!(while_read || e.kind == ErrorKind::NotFound, "after {n}: {e}");
                    went += u32::from(while_read);
                }
            }
            if !leaves {
                pool.moves().remove_device(&path).await.expect("remove");
            }
            moved(&rt, &pool).await;
            assert!(device_states(&pool).iter().all(|(p, _)| *p != path), "after {n}");
        }
        assert!(came_back >= 5 && went >= 5, "{came_back} came back, {went} went");
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// A replacement is cut short again and again, at any moment, by kills and by power cuts. What was
/// flushed is always there, and in the end the new device has everything.
#[test]
fn a_replacement_survives_kills_and_power_cuts() {
    for seed in 0..40 {
        let mut bench = mirror(1000 + seed, 2, 2);
        let (new, id) = (new_disk(&bench, "disk2"), bench.volume);
        let mut asked = false;
        for life in 0..200 {
            let cut_after = Duration::from_micros(50 + (seed * 37 + life * 911) % 30_000);
            let (replacement, power) = (new.clone(), (seed + life) % 2 == 0);
            let files = bench.files.clone();
            let last = life > 150;
            let done = bench.try_run(|rt, _| async move {
                let all: Vec<DeviceFile> = if asked {
                    files.iter().cloned().chain([replacement.clone()]).collect()
                } else {
                    files.clone()
                };
                if !last {
                    let r = rt.clone();
                    drop(rt.spawn(async move {
                        r.sleep(cut_after).await;
                        r.kill();
                    }));
                }
                let pool = match try_open(&rt, all).await {
                    Ok((pool, _)) => pool,
                    // It did not come to be a device of the pool, or is none any more.
                    Err(e) if asked && e.kind == ErrorKind::Foreign => {
                        let left = e.context.starts_with("disk1");
                        assert!(left || e.context.starts_with("disk2"), "{e}");
                        let other = if left { replacement.clone() } else { files[1].clone() };
                        open(&rt, vec![files[0].clone(), other]).await
                    }
                    Err(e) => panic!("{e}"),
                };
                reads(&pool, id, 1).await;
                if !device_states(&pool).iter().any(|s| s.0 == "disk2") {
                    pool.moves()
                        .replace_device("disk1", replacement, [9; 16])
                        .await
                        .expect("replace");
                }
                moved(&rt, &pool).await;
                assert!(!device_states(&pool).iter().any(|s| s.0 == "disk1"));
                reads(&pool, id, 1).await;
                pool.close().await.expect("close");
            });
            asked = true;
            if done.is_some() {
                break;
            }
            if power {
                bench.world.power_cut();
            }
        }
        bench.files[1] = new.clone();
        assert!(bench.check().is_clean(), "seed {seed}: {:?}", bench.check());
        alone(&bench, vec![new], 1);
    }
}

/// Passes without a pause, each of which writes to blocks at random, until `goes_on` is false;
/// counts them.
async fn passes(
    (rt, pool): (Rt, Pool),
    id: VolumeId,
    goes_on: Rc<Cell<bool>>,
    count: Rc<Cell<u64>>,
) -> Vec<u8> {
    let mut model = vec![1; BLOCKS as usize];
    while goes_on.get() {
        let n = count.get() + 1;
        let pass = pool.begin_pass(&mut pool.reserve(64).expect("room")).expect("pass");
        for _ in 0..64 {
            let (at, value) = (rt.random() % BLOCKS, (2 + n % 200) as u8);
            let data = block(value);
            let crcs = [crc32c(&data)];
            let data = SliceList::from_iter([data]);
            pass.write(id, Lba(at), data, &crcs).await.expect("write");
            model[at as usize] = value;
        }
        pass.hand_over(Epoch(n as u32), rt.now())
            .await
            .expect("handed over")
            .commit()
            .await
            .expect("commit");
        count.set(n);
    }
    model
}

/// Passes always have the few block groups that there are. A move waits for the end of one, and the
/// next one does not take the group again.
#[test]
fn a_move_waits_for_one_pass_a_group() {
    for seed in 20..24 {
        let mut bench = mirror(seed, 2, 2);
        let (new, id) = (new_disk(&bench, "disk2"), bench.volume);
        let replacement = new.clone();
        let (model, waited) = bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            pool.cache_link().set_cache_uuid(Some([7; 16])).await.expect("cache");
            let (goes_on, count) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
            let own = (rt.clone(), pool.clone());
            let writes = rt.spawn(passes(own, id, goes_on.clone(), count.clone()));
            while count.get() < 3 {
                rt.sleep(Duration::from_millis(1)).await;
            }
            let replaced = pool.moves().replace_device("disk1", replacement, [9; 16]);
            replaced.await.expect("replace");
            let before = count.get();
            // A move takes some of these by itself.
            while pool.moves().moves_status().state != MovesState::None
                && count.get() < before + 2000
            {
                rt.sleep(Duration::from_millis(1)).await;
            }
            let waited = count.get() - before;
            goes_on.set(false);
            let model = writes.await.expect("passes");
            moved(&rt, &pool).await;
            holds_each(&pool, id, &model).await;
            pool.close().await.expect("close");
            (model, waited)
        });
        assert!(waited < 30, "seed {seed}: moved after {waited} passes");
        bench.files[1] = new.clone();
        assert!(bench.check().is_clean(), "{:?}", bench.check());
        bench.run(|rt, _| async move {
            let pool = open(&rt, vec![new]).await;
            holds_each(&pool, id, &model).await;
            pool.close().await.expect("close");
        });
    }
}

/// The writes of a move to a chunk come in ascending order, whatever clients write meanwhile, and
/// whatever the device counts as.
#[test]
fn chunks_are_filled_in_ascending_order() {
    for (seed, kind) in [(30, None), (31, Some(DeviceKind::Rotating)), (32, None)] {
        let bench = mirror(seed, 2, 2);
        let (new, id) = (new_disk(&bench, "disk2"), bench.volume);
        let replacement = new.clone();
        let opened: Rc<RefCell<Option<Pool>>> = Rc::default();
        let order: Rc<RefCell<(Ascending, Result<(), String>)>> =
            Rc::new(RefCell::new((Ascending::default(), Ok(()))));
        let (followed, noted) = (opened.clone(), order.clone());
        bench.world.watch_writes(new.file, move |offset, data| {
            let bytes: usize = data.iter().map(|s| s.len()).sum();
            let fills =
                followed.borrow().as_ref().map(|pool| pool.moves().fills()).unwrap_or_default();
            let fills = fills.into_iter().filter(|f| f.file == new.file);
            let (order, first) = &mut *noted.borrow_mut();
            let parts = fills.map(|f| (f.place, f.number));
            let right = order.note(parts, ByteRange::new(offset, offset + bytes as u64));
            *first = std::mem::replace(first, Ok(())).and(right);
        });
        bench.run(|rt, files| async move {
            let limits = Limits { kind, ..Limits::default() };
            let settings = pool::Settings { device: limits, ..pool::Settings::default() };
            let (pool, _) = Pool::open(&rt, files, settings).await.expect("open");
            *opened.borrow_mut() = Some(pool.clone());
            let goes_on = Rc::new(Cell::new(true));
            let own = (rt.clone(), pool.clone());
            let writes = rt.spawn(change(own, (id, BLOCKS), goes_on.clone()));
            // So that what a group holds is in many pieces.
            rt.sleep(Duration::from_millis(500)).await;
            let replaced = pool.moves().replace_device("disk1", replacement, [9; 16]);
            replaced.await.expect("replace");
            moved(&rt, &pool).await;
            goes_on.set(false);
            let model = writes.await.expect("writes");
            holds_each(&pool, id, &model).await;
            opened.borrow_mut().take();
            pool.close().await.expect("close");
        });
        let (order, first) = &*order.borrow();
        assert_eq!(first, &Ok(()), "seed {seed}");
        assert!(order.followed() > 100, "seed {seed}: {} writes", order.followed());
    }
}

/// The new device fails while a missing one is replaced by it. It is replaced itself; or all stay,
/// and what is missing is replaced by another one.
#[test]
fn the_new_device_of_a_replacement_fails() {
    for cancel in [false, true] {
        let mut bench = mirror(20, 2, 2);
        let id = bench.volume;
        let [new, third] = ["disk2", "disk3"].map(|name| new_disk(&bench, name));
        let last = third.clone();
        bench.run(|rt, files| async move {
            let pool = open(&rt, vec![files[0].clone()]).await;
            let missing = pool.status().pool.devices[1].id.clone();
            pool.moves().pause_moves(true);
            pool.moves().replace_device(&missing, new, [8; 16]).await.expect("replace");
            pool.returns().offline_device("disk2").await.expect("fails");
            pool.moves().pause_moves(false);
            while pool.moves().moves_status().state == MovesState::Running {
                rt.sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(pool.moves().moves_status().state, MovesState::Waiting);
            let text = pool.moves().replace_device(&missing, third.clone(), [9; 16]).await;
            let text = text.expect_err("it leaves").to_string();
            assert!(text.contains("forebay device cancel"), "{text}");
            if cancel {
                pool.moves().cancel_moves().await.expect("cancel");
                pool.moves().replace_device(&missing, third, [9; 16]).await.expect("replace");
                pool.moves().remove_device("disk2").await.expect("remove");
            } else {
                pool.moves().replace_device("disk2", third, [9; 16]).await.expect("replace");
            }
            moved(&rt, &pool).await;
            let expected =
                [("disk0".into(), DeviceState::Online), ("disk3".into(), DeviceState::Online)];
            let mut found = device_states(&pool);
            found.sort();
            assert_eq!(found, expected, "{cancel}");
            reads(&pool, id, 1).await;
            pool.close().await.expect("close");
        });
        bench.files[1] = last.clone();
        assert!(bench.check().is_clean(), "{:?}", bench.check());
        alone(&bench, vec![last], 1);
    }
}
