//! Images of every released version of the format must open, hold what was written and check clean.
//!
//! Images are in `vN/`; `cargo run -p pool --example golden -- DIRECTORY` makes those of the
//! version that is built. A committed image never changes: a new version gets a directory of its
//! own.

mod by_hand;
mod image;

use base::{BLOCK, Lba};
use offline::CheckOptions;
use offline::pool::check::check;
use pool::{Pool, Settings};
use sim::World;

const V1: [&str; 2] = [include_str!("v1/disk0.txt"), include_str!("v1/disk1.txt")];

fn assert_holds(world: &World, devices: Vec<pool::DeviceFile>, degraded: bool) {
    let files = devices.clone();
    let clean = async move |rt: rt::Rt| {
        let options = CheckOptions { data: true, ..CheckOptions::default() };
        let report = check(&rt, files, &options, &mut |_| ()).await.expect("a pool");
        assert!(report.is_clean(), "{:#?}", report.problems);
        assert_eq!(report.degraded, degraded);
        assert_eq!(report.counts.volumes, 2);
        report.counts
    };
    let counts = image::boot(world, clean.clone());
    assert!(counts.nodes > 5, "trees of more than one level: {counts:?}");
    image::boot(world, |rt| async move {
        let (pool, _) = Pool::open(&rt, devices, Settings::default()).await.expect("it opens");
        for (name, size, sector) in [("plain", 64 << 20, 512), ("other", 1 << 30, 4096)] {
            let v = pool.find_volume(name).expect("its volumes are there");
            assert_eq!((v.size_bytes, v.sector_bytes), (size, sector));
            let mut want = vec![0; BLOCK];
            for lba in 0..1300 {
                let found = pool.read(v.id, Lba(lba), 1).await.expect("read");
                image::block(name, lba, image::version(name, lba), &mut want);
                assert!(
                    found.iter().flat_map(|s| s.iter()).eq(want.iter()),
                    "block {lba} of {name}"
                );
            }
        }
        assert!(pool.find_volume("gone").is_none());
        pool.close().await.expect("close");
    });
    image::boot(world, clean);
}

#[test]
fn version_1() {
    let world = World::new(1);
    V1.iter().for_each(|text| {
        testkit::disk_of_image(&world, text);
    });
    assert_holds(&world, image::files(), false);
}

#[test]
fn version_1_without_a_device() {
    let world = World::new(2);
    V1.iter().for_each(|text| {
        testkit::disk_of_image(&world, text);
    });
    assert_holds(&world, vec![image::files().remove(1)], true);
}
