use format::superblock::DeviceState;
use proptest::prelude::*;

use super::*;

pub(crate) fn row(chunks: u64, state: DeviceState) -> PoolDevice {
    row_of_kind(chunks, state, None)
}

fn row_of_kind(chunks: u64, state: DeviceState, kind: Option<rt::DeviceKind>) -> PoolDevice {
    let record = DeviceRecord { state, ..DeviceRecord::online([7; 16], chunks) };
    // A closed world: no request is made to these disks.
    let world = sim::World::new(1);
    let file = world.add_disk(sim::DiskModel::nvme(1 << 20));
    let rt = rt::Rt::new(world.backend(), rt::Order::Seeded(1), 4);
    let file = DeviceFile { path: "disk".into(), file, size_bytes: 1 << 20 };
    let limits = queue::Limits { kind, ..queue::Limits::default() };
    PoolDevice::new(record, "disk".into(), Some(file.disk(&rt, limits)))
}

#[test]
fn two_streams_stay_on_two_rotating_disks() {
    const FAR: u64 = 1 << 30;
    let row = || row_of_kind(1, DeviceState::Online, Some(rt::DeviceKind::Rotating));
    let mut devices = Devices::new(vec![row(), row()]);
    let mut read = |offset: u64, less_busy: usize| {
        let mut copies = [0, 1].map(|row| CopyPlace { row, offset });
        copies.rotate_left(less_busy);
        devices.put_near_first(&mut copies, 4096);
        copies[0].row
    };
    assert_eq!([read(FAR, 0), read(3 * FAR, 1)], [0, 1], "neither is near");
    for i in 1..100u64 {
        let other = i as usize % 2;
        assert_eq!(read(FAR + i * 8192, other), 0);
        assert_eq!(read(3 * FAR + i * 8192, other), 1);
    }
    assert_eq!(read(5 * FAR, 1), 1);
    assert_eq!(read(3 * FAR + 819_200, 0), 0, "disk 1 is elsewhere now");
}

/// What was sent to a device that has left its row says nothing of the one that has the row now.
#[test]
fn a_failure_counts_against_the_device_that_it_was_sent_to() {
    let joins = || {
        let device = row(1, DeviceState::Online);
        let disk = device.disk().cloned().expect("a disk");
        PoolDevice::new_joining(device.record().clone(), "disk".into(), disk)
    };
    let mut devices = Devices::new(vec![row(1, DeviceState::Online)]);
    let failed = |devices: &mut Devices, (of, row)| {
        let outcome = DeviceOutcome { row, of, result: Err(IoError::IO) };
        let left_out = devices.note_write_errors(vec![outcome], "write").len();
        (left_out, devices.row(row).and_then(PoolDevice::missed))
    };
    let first = devices.enter(joins()).expect("a row");
    let before = devices.to_write(first).0;
    drop(devices.clear_row(first));
    let none = devices.to_write(first).0;
    assert_eq!(devices.enter(joins()), Some(first), "it has the same row");
    assert_eq!(failed(&mut devices, (before, first)), (0, None), "of the one before");
    assert_eq!(failed(&mut devices, (none, first)), (0, None), "of none");
    let now = devices.to_write(first).0;
    assert_eq!(failed(&mut devices, (now, first)), (0, Some(MissedReason::Write(IoError::IO))));
    devices.row_mut(first).expect("a row").joined(2);
    assert_eq!(failed(&mut devices, (before, first)).0, 0, "of the one before");

    // It was away, and is the same: its flush that fails late has lost what it was given since.
    let used = devices.to_write(0).0;
    devices.drop_from_use([0], 7, Generation(3));
    let disk = devices.row(0).and_then(PoolDevice::disk).cloned().expect("a disk");
    devices.row_mut(0).expect("a row").reattach("disk".into(), disk);
    assert_eq!(
        failed(&mut devices, (used, 0)),
        (0, Some(MissedReason::Write(IoError::IO))),
        "it does not come back"
    );
    devices.row_mut(0).expect("a row").joined(8);
    assert_eq!(failed(&mut devices, (used, 0)).0, 1, "it is left out");
}

/// How many groups can be formed, by forming them.
fn formed(mut free: Vec<(u64, bool)>, copies: usize) -> u64 {
    let mut groups = 0;
    loop {
        let mut order: Vec<usize> = (0..free.len()).filter(|&d| free[d].0 > 0).collect();
        order.sort_by_key(|&d| (!free[d].1, std::cmp::Reverse(free[d].0), d));
        if order.len() < copies || !free[order[0]].1 {
            return groups;
        }
        order[..copies].iter().for_each(|&d| free[d].0 -= 1);
        groups += 1;
    }
}

proptest! {
    /// The model is a number of free chunks a device. No chunk is handed out twice, and as many
    /// groups can be formed as was said, at least.
    #[test]
    fn chunks_are_taken_once_and_given_back(
        rows in prop::collection::vec((0u64..12, any::<bool>()), 1..5),
        copies in 1usize..4,
        given in prop::collection::vec(any::<bool>(), 60),
    ) {
        let state = |online| if online { DeviceState::Online } else { DeviceState::Failed };
        let rows_of = rows.iter().map(|&(n, online)| row(n, state(online)));
        let mut devices = Devices::new(rows_of.collect());
        let said = devices.formable(copies as u64, 1000);
        prop_assert!(said <= formed(rows.clone(), copies));
        let mut held: Vec<Vec<Chunk>> = Vec::new();
        let mut taken = std::collections::BTreeSet::new();
        let mut n = 0;
        while let Some(chunks) = devices.take_chunks(copies) {
            n += 1;
            let mut used: Vec<u16> = chunks.iter().map(|c| c.device).collect();
            used.dedup();
            prop_assert_eq!(used.len(), copies);
            for c in &chunks {
                let chunk = (c.device, c.chunk);
                prop_assert!(taken.insert(chunk), "chunk {chunk:?} was taken twice");
            }
            held.push(chunks);
        }
        prop_assert!(n >= said, "{n} groups, {said} were promised");
        for (chunks, give) in held.into_iter().zip(given) {
            if give {
                chunks.iter().for_each(|c| assert!(taken.remove(&(c.device, c.chunk))));
                devices.give_chunks(chunks);
            }
        }
        let free: u64 = devices.iter().map(|d| d.chunks().free()).sum();
        prop_assert_eq!(free, rows.iter().map(|r| r.0).sum::<u64>() - taken.len() as u64);
    }
}
