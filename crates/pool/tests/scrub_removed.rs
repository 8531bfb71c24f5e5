//! Devices are removed that a scrub reads or has found bad blocks on, and others take their rows.

use base::{BLOCK, BLOCK_U64, Duration};
use model::scrub::{PoolScrub, ScrubState};
use pool::{DeviceFile, Pool, ScrubOptions};
use rt::Rt;
use sim::{DiskModel, Fault};
use testkit::{MIB, Mirror, disk, moved, open, scrubbed};

const BLOCKS: u64 = 2048;

/// Three disks, and two copies of a volume whose blocks hold `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (3, 2), BLOCKS)
}

async fn remove(rt: &Rt, pool: &Pool, name: &str) {
    pool.moves().remove_device(name).await.expect("remove");
    moved(rt, pool).await;
    assert!(pool.status().pool.devices.iter().all(|d| d.path != name));
}

/// What was found: device, bad blocks, healed ones.
fn found(status: &PoolScrub) -> Vec<(&str, u64, u64)> {
    status.found.iter().map(|f| (f.device.as_str(), f.found.bad, f.found.healed)).collect()
}

fn new_disk(bench: &Mirror) -> DeviceFile {
    disk(&bench.world, "disk3", DiskModel::nvme(32 * MIB))
}

#[test]
fn a_scrub_of_a_device_ends_when_that_is_removed() {
    for paused in [false, true] {
        let bench = mirror(1);
        let new = new_disk(&bench);
        let files = bench.files.clone();
        bench.run(|rt, _| async move {
            let pool = open(&rt, files.clone()).await;
            let slow = ScrubOptions { rate: Some(1 << 20), device: Some("disk2".into()) };
            pool.scrubs().start_scrub(slow).await.expect("start");
            rt.sleep(Duration::from_secs(1)).await;
            if paused {
                pool.scrubs().pause_scrub().await.expect("pause");
            }
            remove(&rt, &pool, "disk2").await;
            let status = scrubbed(&rt, &pool).await;
            assert_eq!((status.state, status.away), (ScrubState::Cancelled, true), "{status:?}");
            assert_eq!(status.device.as_deref(), Some("disk2"));
            pool.moves().add_device(new.clone(), [9; 16]).await.expect("add");
            let status = pool.scrubs().scrub_status().await;
            assert_eq!(status.device.as_deref(), Some("disk2"), "its row has another device");
            pool.close().await.expect("close");
            let pool = open(&rt, vec![files[0].clone(), files[1].clone(), new]).await;
            let status = pool.scrubs().scrub_status().await;
            assert_eq!((status.state, status.device), (ScrubState::Cancelled, None));
            pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
            let status = scrubbed(&rt, &pool).await;
            assert_eq!((status.state, status.away, status.device), (ScrubState::Done, false, None));
            pool.close().await.expect("close");
        });
    }
}

#[test]
fn a_scrub_of_another_device_goes_on() {
    let bench = mirror(2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let slow = ScrubOptions { rate: Some(1 << 20), device: Some("disk0".into()) };
        pool.scrubs().start_scrub(slow).await.expect("start");
        rt.sleep(Duration::from_secs(1)).await;
        remove(&rt, &pool, "disk2").await;
        let status = scrubbed(&rt, &pool).await;
        assert_eq!((status.state, status.away), (ScrubState::Done, false), "{status:?}");
        assert_eq!(status.device.as_deref(), Some("disk0"));
        pool.close().await.expect("close");
    });
}

#[test]
fn what_was_found_on_a_device_is_told_of_it_after_its_row_is_used_again() {
    let bench = mirror(3);
    let file = bench.files[2].file;
    let has = |at: &u64| bench.world.contents(file, *at, BLOCK).iter().all(|&b| b == 1);
    let at = (2 * MIB..32 * MIB).step_by(BLOCK).find(has).expect("a block of the volume");
    assert!(bench.world.inject(file, Fault::BitRot { offset: at, len: BLOCK_U64 }));
    let new = new_disk(&bench);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let only = ScrubOptions { device: Some("disk2".into()), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(only).await.expect("start");
        assert_eq!(found(&scrubbed(&rt, &pool).await), [("disk2", 1, 1)]);
        remove(&rt, &pool, "disk2").await;
        pool.moves().add_device(new, [9; 16]).await.expect("add");
        let status = pool.scrubs().scrub_status().await;
        assert_eq!((status.state, status.away), (ScrubState::Done, false));
        assert_eq!(status.device.as_deref(), Some("disk2"));
        assert_eq!(found(&status), [("disk2", 1, 1)]);
        pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
        let status = scrubbed(&rt, &pool).await;
        assert_eq!((status.device.as_deref(), found(&status)), (None, vec![]));
        pool.close().await.expect("close");
    });
}
