//! A new device takes the place of another one: at the same path, and beside another new one; in
//! simulation.

use std::cell::Cell;
use std::rc::Rc;

use base::{ErrorKind, Lba, VolumeId};
use model::device::DeviceState;
use pool::{DeviceFile, Pool};
use sim::DiskModel;
use testkit::{MIB, Mirror, device_states, disk, moved, only_byte, open};

const BLOCKS: u64 = 1024;

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

fn new_disk(bench: &Mirror, name: &str) -> DeviceFile {
    disk(&bench.world, name, DiskModel::nvme(32 * MIB))
}

async fn reads(pool: &Pool, id: VolumeId) {
    let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
    assert_eq!(only_byte(&data), Some(1));
}

#[test]
fn a_device_that_is_out_of_use_is_replaced_at_its_own_path() {
    let mut bench = mirror(1);
    let new = new_disk(&bench, "disk1");
    let (id, pair) = (bench.volume, vec![bench.files[0].clone(), new.clone()]);
    let its_file = new.file;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        assert_eq!(
            pool.returns().check_out_of_use("disk1").expect_err("in use").kind,
            ErrorKind::Invalid
        );
        assert_eq!(
            pool.returns().give_up_place("disk1").expect_err("in use").kind,
            ErrorKind::Invalid
        );
        pool.returns().offline_device("disk1").await.expect("offline");
        pool.returns().check_out_of_use("disk1").expect("it is out of use");
        let old = pool.status().pool.devices[1].id.clone();
        assert_eq!(pool.returns().give_up_place("disk1").expect("it is away"), Some(files[1].file));
        assert!(!pool.moves().uses_file(files[1].file));
        pool.moves().replace_device(&old, new, [9; 16]).await.expect("replace");
        // The path is the new one's alone.
        assert_eq!(pool.moves().file_of_device(&old).expect_err("away").kind, ErrorKind::Invalid);
        assert_eq!(
            pool.moves().file_of_device("disk1").expect("in use"),
            ("disk1".into(), its_file)
        );
        moved(&rt, &pool).await;
        assert_eq!(
            device_states(&pool),
            [("disk0".into(), DeviceState::Online), ("disk1".into(), DeviceState::Online)]
        );
        reads(&pool, id).await;
        pool.close().await.expect("close");
    });
    bench.files = pair;
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// The second one would be a device like the others, that no user has asked for.
#[test]
fn one_device_is_replaced_by_one_other() {
    let bench = mirror(2);
    let news = [new_disk(&bench, "x"), new_disk(&bench, "y")];
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let refused = Rc::new(Cell::new(0));
        let both: Vec<_> = (0..)
            .zip(news)
            .map(|(i, new)| {
                let (pool, refused) = (pool.clone(), refused.clone());
                rt.spawn(async move {
                    let outcome = pool.moves().replace_device("disk0", new, [10 + i; 16]).await;
                    if let Err(e) = outcome {
                        assert!(e.to_string().contains("leaves the pool already"), "{e}");
                        refused.set(refused.get() + 1);
                    }
                })
            })
            .collect();
        for one in both {
            one.await.expect("alive");
        }
        assert_eq!(refused.get(), 1);
        moved(&rt, &pool).await;
        assert_eq!(device_states(&pool).len(), 2, "{:?}", device_states(&pool));
        reads(&pool, id).await;
        pool.close().await.expect("close");
    });
}
