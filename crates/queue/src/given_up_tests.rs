//! Devices that are given up while they have requests, or have none.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK, BufPool, Duration, IoError, SliceList};
use rt::{Order, Rt};
use sim::{DiskModel, Fault, World};

use crate::{Class, Device, Limits};

fn block(bufs: &BufPool, fill: u8, blocks: usize) -> SliceList {
    let mut b = bufs.take(blocks * BLOCK);
    b.fill(fill);
    SliceList::from_iter([b.freeze()])
}

/// A device hangs, and is given up: everything that waits for it ends at once, the queue takes
/// nothing until it has answered, and then it can be used again, with all that it had.
#[test]
fn a_device_that_is_given_up_keeps_nothing_waiting() {
    let world = World::new(11);
    let file = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, file, Limits { depth: 2, ..Limits::default() });
    let r = rt.clone();
    rt.block_on(async move {
        world.inject(file, Fault::StuckForever);
        let ended = Rc::new(Cell::new(0));
        let count = |e: &Rc<Cell<u32>>| e.set(e.get() + 1);
        let mut tasks = Vec::new();
        for i in 0..6u64 {
            let (d, e, data) = (device.clone(), ended.clone(), block(r.bufs(), 7, 1));
            tasks.push(r.spawn(async move {
                let at = 8 * i * BLOCK as u64;
                let outcome = match i {
                    0 => d.flush(Class::Commit).await,
                    1 => d.discard(40 * BLOCK as u64, BLOCK as u64).await,
                    2 => d.read_new(Class::Foreground, at, BLOCK).await.0,
                    _ => d.write(Class::Foreground, at, data).await,
                };
                assert_eq!(outcome, Err(IoError::GONE), "{i}");
                count(&e);
            }));
        }
        r.sleep(Duration::from_secs(60)).await;
        assert_eq!(ended.get(), 0, "nothing answers");
        device.give_up();
        for task in tasks {
            task.await;
        }
        assert_eq!(ended.get(), 6);
        assert!(device.is_given_up() && device.load() > 0);
        assert_eq!(device.flush(Class::Commit).await, Err(IoError::GONE));
        let data = block(r.bufs(), 9, 1);
        assert_eq!(device.write(Class::Foreground, 0, data).await, Err(IoError::GONE));
        world.revive(file);
        device.until_idle().await;
        assert_eq!((device.load(), device.is_given_up()), (0, false));
        // Requests that the device had took effect, and those that came later did not.
        assert_eq!(world.contents(file, 24 * BLOCK as u64, 1), [7]);
        assert_eq!(world.contents(file, 0, 1), [0]);
        // It is asked again by a handle that was made since.
        let write = async |device: &Device, value| {
            device.write(Class::Foreground, 0, block(r.bufs(), value, 1)).await
        };
        let again = device.anew();
        assert_eq!(write(&device, 8).await, Err(IoError::GONE));
        assert_eq!(write(&again, 9).await, Ok(()));
        assert_eq!(world.contents(file, 0, 1), [9]);
    });
}

/// A device has nothing when it is given up. A flow that had begun before asks it for more.
#[test]
fn a_device_that_was_given_up_gets_nothing_by_a_handle_of_before() {
    let world = World::new(13);
    let file = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, file, Limits::default());
    let r = rt.clone();
    rt.block_on(async move {
        world.inject(file, Fault::StuckForever);
        let before = device.clone();
        device.give_up();
        assert!(!device.is_given_up(), "it had nothing");
        let (data, len) = (block(r.bufs(), 7, 1), BLOCK as u64);
        assert_eq!(before.write(Class::Commit, 0, data.clone()).await, Err(IoError::GONE));
        assert_eq!(before.write_durable(Class::Commit, 0, data).await, Err(IoError::GONE));
        assert_eq!(before.flush(Class::Commit).await, Err(IoError::GONE));
        assert_eq!(before.discard(0, len).await, Err(IoError::GONE));
        assert_eq!(before.read_new(Class::Commit, 0, BLOCK).await.0, Err(IoError::GONE));
        world.revive(file);
        let again = device.anew();
        assert_eq!(again.flush(Class::Commit).await, Ok(()));
        device.give_up();
        assert_eq!(again.flush(Class::Commit).await, Err(IoError::GONE));
    });
}

/// A device is given up at a moment at which requests have just been made and still gather: those
/// are never sent, and the device can be used again at once.
#[test]
fn what_gathers_for_a_device_that_is_given_up_does_not_keep_it() {
    let world = World::new(14);
    let file = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, file, Limits::default());
    let r = rt.clone();
    rt.block_on(async move {
        let (d, data) = (device.clone(), block(r.bufs(), 7, 1));
        let write = r.spawn(async move { d.write(Class::Foreground, 0, data).await });
        while device.load() == 0 {
            r.yield_now().await;
        }
        device.give_up();
        assert!(device.is_given_up(), "it is given up before what gathers is handed on");
        assert_eq!(write.await, Some(Err(IoError::GONE)));
        device.until_idle().await;
        assert_eq!(world.contents(file, 0, 1), [0]);
        assert_eq!(device.anew().flush(Class::Commit).await, Ok(()));
    });
}

/// Requests in the queue of a device that was given up are never sent, also if the device answers
/// later.
#[test]
fn what_waits_for_a_device_that_is_given_up_is_never_sent() {
    let world = World::new(12);
    let file = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, file, Limits { depth: 1, ..Limits::default() });
    let r = rt.clone();
    rt.block_on(async move {
        world.inject(file, Fault::StuckForever);
        let mut tasks = Vec::new();
        for i in 0..8u64 {
            let (d, data) = (device.clone(), block(r.bufs(), 7, 1));
            let write = async move { d.write(Class::Foreground, 2 * i * BLOCK as u64, data).await };
            tasks.push(r.spawn(write));
            r.sleep(Duration::from_millis(1)).await;
        }
        device.give_up();
        for task in tasks {
            assert_eq!(task.await, Some(Err(IoError::GONE)));
        }
        world.revive(file);
        device.until_idle().await;
        let written = |i: u64| world.contents(file, 2 * i * BLOCK as u64, 1) == [7];
        assert_eq!((0..8).filter(|i| written(*i)).collect::<Vec<_>>(), [0]);
    });
}
