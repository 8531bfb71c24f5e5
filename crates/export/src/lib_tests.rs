use base::{BLOCK, BLOCK_U64};
use nbd::{BlockStatus, Errno, Export, Exports, ZeroOpts};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{Order, Rt};
use sim::{DiskModel, World};
use volume::Volumes;

use super::*;

const MIB: u64 = 1 << 20;

/// Runs `body` with the exports of a pool that has no volume yet.
fn run<F: Future<Output = ()> + 'static>(body: impl FnOnce(Rt, VolumeExports) -> F + 'static) {
    let world = World::new(1);
    let file = world.add_disk(DiskModel::nvme(32 * MIB));
    let disk = DeviceFile { path: "disk".into(), file, size_bytes: 32 * MIB };
    let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
    let r = rt.clone();
    let ended = rt.block_on(async move {
        let options = CreateOptions { name: "p".into(), copies: 1, group_bytes: Some(MIB) };
        pool::create(&r, std::slice::from_ref(&disk), &options, &[[1; 16], [2; 16]]).await.unwrap();
        let (pool, _) = Pool::open(&r, vec![disk], Settings::default()).await.unwrap();
        body(r, VolumeExports::new(Volumes::new(&pool), Access::default())).await;
        pool.close().await.unwrap();
    });
    assert_eq!(ended, Some(()));
}

#[test]
fn the_only_volume_is_the_default_export() {
    run(|_, exports| async move {
        let name = |wanted: &str| exports.open(wanted, None).map(|e| e.info().name);
        assert_eq!(name(""), None);
        exports.volumes.create("a", MIB, 4096).await.unwrap();
        assert_eq!((name(""), name("a"), name("b")), (Some("a".into()), Some("a".into()), None));
        exports.volumes.create("b", MIB, 512).await.unwrap();
        assert_eq!((name(""), name("b")), (None, Some("b".into())));
        assert_eq!(exports.list(None), [("a".into(), String::new()), ("b".into(), String::new())]);
        let sectors = ["a", "b"].map(|name| exports.open(name, None).unwrap().info().min_block);
        assert_eq!(sectors, [4096, 512]);
    });
}

/// Exports of the same volumes, for clients as these rules have it.
fn with_rules(exports: &VolumeExports, rules: &[Rule]) -> VolumeExports {
    VolumeExports::new(exports.volumes.clone(), Access::by(rules))
}

fn snapshot(volume: &str, name: &str) -> SnapshotName {
    SnapshotName { volume: volume.into(), name: name.into() }
}

#[test]
fn a_snapshot_is_an_export_that_can_be_read() {
    run(|rt, exports| async move {
        let volume = exports.volumes.create("a", MIB, 4096).await.unwrap();
        let data = |byte| rt.bufs().copy_of(&[byte; BLOCK]).freeze();
        volume.write(0, data(1)).await.unwrap();
        exports.volumes.take_snapshots(&[snapshot("a", "then")]).await.unwrap();
        volume.write(0, data(2)).await.unwrap();
        let names =
            |all: Vec<(String, String)>| all.into_iter().map(|one| one.0).collect::<Vec<_>>();
        assert_eq!(names(exports.list(None)), ["a", "a@then"]);
        let then = exports.open("a@then", None).unwrap();
        let info = then.info();
        assert_eq!((&*info.name, info.min_block, info.read_only), ("a@then", 4096, true));
        assert!(then.read(0, BLOCK as u32).await.unwrap()[0].iter().all(|&b| b == 1));
        assert_eq!(then.write(0, data(3), false).await, Err(Errno::Perm));
        assert_eq!(then.trim(0, BLOCK_U64, false).await, Err(Errno::Perm));
        let default = exports.open("", None).unwrap().info();
        assert_eq!((&*default.name, default.read_only), ("a", false), "the only volume");

        // A volume with the name of a snapshot hides it.
        exports.volumes.create("a@then", MIB, 512).await.unwrap();
        assert_eq!(names(exports.list(None)), ["a", "a@then"]);
        assert!(!exports.open("a@then", None).unwrap().info().read_only);
        exports.volumes.delete("a@then").await.unwrap();

        exports.volumes.delete_snapshot(&snapshot("a", "then")).await.unwrap();
        assert!(exports.open("a@then", None).is_none());
        assert_eq!(then.read(0, BLOCK as u32).await.map(|_| ()), Err(Errno::Shutdown));
    });
}

#[test]
fn who_may_open_a_volume_may_read_its_snapshots() {
    run(|_, exports| async move {
        for name in ["a", "b"] {
            exports.volumes.create(name, MIB, 4096).await.unwrap();
            exports.volumes.take_snapshots(&[snapshot(name, "s")]).await.unwrap();
        }
        let rule = |volume: &str, read_only| Rule {
            client: "c".into(),
            volumes: vec![volume.into()],
            read_only,
        };
        let peer = Peer {
            version: "TLSv1.3",
            cipher: "any",
            proof: nbd::Proof::Certificate,
            names: vec!["c".into()],
        };
        for (rules, wanted) in [
            (vec![rule("a", false)], vec![("a", false), ("a@s", true)]),
            (vec![rule("a", true)], vec![("a", true), ("a@s", true)]),
            (vec![rule("b@s", false)], vec![("b@s", true)]),
            (vec![rule("c", false)], vec![]),
        ] {
            let exports = with_rules(&exports, &rules);
            let is_read_only =
                |name: &str| exports.open(name, Some(&peer)).map(|export| export.info().read_only);
            let all = ["a", "b", "a@s", "b@s"].into_iter();
            let open: Vec<(&str, bool)> =
                all.filter_map(|name| Some((name, is_read_only(name)?))).collect();
            assert_eq!(open, wanted, "{rules:?}");
            let listed: Vec<String> =
                exports.list(Some(&peer)).into_iter().map(|one| one.0).collect();
            assert_eq!(listed, open.iter().map(|one| one.0).collect::<Vec<_>>(), "{rules:?}");
        }
    });
}

#[test]
fn requests_reach_the_volume_and_errors_the_client() {
    run(|rt, exports| async move {
        exports.volumes.create("v", MIB, 512).await.unwrap();
        let v = exports.open("v", None).unwrap();
        assert_eq!(v.size_bytes(), MIB);
        let data = rt.bufs().copy_of(&[7; 2 * BLOCK]).freeze();
        v.write(BLOCK_U64, data.clone(), true).await.unwrap();
        assert!(v.read(BLOCK_U64, BLOCK as u32).await.unwrap()[0].iter().all(|&b| b == 7));
        let zeroes = ZeroOpts { no_hole: true, fast: true, fua: false };
        assert_eq!(v.write_zeroes(0, BLOCK_U64, zeroes).await, Err(Errno::NotSup));
        v.write_zeroes(BLOCK_U64, BLOCK_U64, ZeroOpts { fua: true, ..ZeroOpts::default() })
            .await
            .unwrap();
        let part = |len, hole| BlockStatus { len, hole, zero: hole };
        let parts = [part(2 * BLOCK_U64, true), part(BLOCK_U64, false), part(BLOCK_U64, true)];
        assert_eq!(v.block_status(0, 4 * BLOCK_U64, 9).await.unwrap(), parts);
        assert_eq!(v.write(MIB, data.clone(), false).await, Err(Errno::Inval));

        // Requests to a deleted volume are let through by its size, to be told of its end.
        exports.volumes.delete("v").await.unwrap();
        assert_eq!((v.size_bytes(), v.info().name.as_str()), (u64::MAX, ""));
        assert_eq!(v.write(0, data, false).await, Err(Errno::Shutdown));
        assert_eq!(v.read(0, 512).await.map(|_| ()), Err(Errno::Shutdown));
    });
}
