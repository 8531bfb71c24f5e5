use super::super::finding::has;
use super::super::found::{plain, with};
use super::*;

fn pool(change: impl FnOnce(&mut Properties)) -> Vec<Finding> {
    check(&with(plain("/srv/a.img", Role::Pool), change), None)
}

fn on(kind: &str) -> Device {
    let mut device = plain("/srv/a.img", Role::Pool);
    device.mount = Some(MountPoint { point: "/srv".into(), kind: kind.into(), free_bytes: 0 });
    device
}

#[test]
fn a_good_device_is_described() {
    let all = pool(|_| {});
    assert!(all.len() == 1 && has(&all, Level::Ok, &["file of 1 GiB, ssd, on ext4"]), "{all:?}");
    let all = pool(|properties| {
        properties.block = true;
        properties.queue = Some(QueueLimits {
            logical_bytes: 512,
            physical_bytes: 4096,
            misaligned_bytes: 0,
            write_cache: "write back".into(),
        });
    });
    let words = ["block device", "sectors of 512 (4 KiB at once)", "write back cache"];
    assert!(all.len() == 1 && has(&all, Level::Ok, &words), "{all:?}");
}

#[test]
fn what_is_not_there_or_not_permitted() {
    let mut device = plain("/dev/none", Role::Pool);
    device.state = State::Missing("No such file or directory".into());
    assert!(has(&check(&device, None), Level::Problem, &["/dev/none is missing: No such"]));
    device.role = Role::Cache(None);
    assert!(has(&check(&device, None), Level::Problem, &["the cache /dev/none", "not served"]));
    device.role = Role::Cache(Some(2 << 30));
    assert!(has(&check(&device, None), Level::Ok, &["2 GiB is made"]));
    device.state = State::Odd;
    assert!(has(&check(&device, None), Level::Problem, &["neither a file"]));
    let refused = |block: bool| {
        pool(|properties| {
            (properties.block, properties.refused) = (block, Some("Permission denied".into()))
        })
    };
    assert!(has(&refused(true), Level::Problem, &["Permission denied", "SupplementaryGroups="]));
    assert!(has(&refused(false), Level::Problem, &["Permission denied", "chown"]));
    let all = pool(|properties| {
        (properties.read_only, properties.refused) = (true, Some("Read-only file system".into()))
    });
    assert!(has(&all, Level::Problem, &["Read-only", "mount its file system", "without it"]));
    let all = pool(|properties| properties.users = vec!["mounted at /home".into()]);
    assert!(has(&all, Level::Problem, &["mounted at /home", "unmount"]));
}

#[test]
fn file_systems_and_disks_that_lose_or_slow() {
    for (kind, word) in [
        ("tmpfs", "lost at power-off"),
        ("nfs4", "network file system"),
        ("overlay", "container's own layer"),
    ] {
        assert!(has(&check(&on(kind), None), Level::Warning, &[word]), "{kind}");
    }
    let all =
        pool(|properties| (properties.block, properties.disks) = (true, vec!["zram0".into()]));
    assert!(has(&all, Level::Warning, &["disk in memory"]));
    assert!(has(
        &pool(|properties| properties.direct = Some(false)),
        Level::Warning,
        &["O_DIRECT"]
    ));
    let in_memory = |properties: &mut Properties| {
        (properties.direct, properties.kind) = (Some(false), DeviceKind::Memory);
    };
    assert!(!has(&pool(in_memory), Level::Warning, &["O_DIRECT"]), "tmpfs has nothing to bypass");
}

#[test]
fn files_on_file_systems_that_copy_on_write() {
    let note = |device: &Device| copies_twice(device).into_iter().collect::<Vec<_>>();
    assert!(has(&note(&on("btrfs")), Level::Note, &["twice", "chattr +C"]));
    assert!(has(&note(&on("zfs")), Level::Note, &["ext4 or XFS"]));
    assert!(note(&on("ext4")).is_empty());
    assert!(note(&with(on("btrfs"), |properties| properties.no_cow = Some(true))).is_empty());
    assert!(note(&with(on("btrfs"), |properties| properties.block = true)).is_empty());
}

#[test]
fn sectors_and_partitions() {
    let queue = |logical_bytes, misaligned_bytes| {
        let write_cache = "write through".into();
        let queue =
            QueueLimits { logical_bytes, physical_bytes: 4096, misaligned_bytes, write_cache };
        pool(|properties| (properties.block, properties.queue) = (true, Some(queue)))
    };
    assert!(has(&queue(16_384, 0), Level::Problem, &["sectors of 16 KiB"]));
    assert!(has(&queue(512, 3584), Level::Warning, &["3584 bytes beside", "1 MiB"]));
    assert!(queue(4096, 0).iter().all(|one| one.level == Level::Ok));
}

#[test]
fn a_cache_that_rotates_or_is_slow_on_purpose() {
    let cache = plain("/srv/c.img", Role::Cache(None));
    let rotating = with(cache.clone(), |properties| properties.kind = DeviceKind::Rotating);
    assert!(has(&check(&rotating, None), Level::Warning, &["disk that rotates"]));
    assert!(has(&check(&cache, Some(DeviceKind::Rotating)), Level::Warning, &["rotates"]));
    assert!(!has(&check(&rotating, Some(DeviceKind::Ssd)), Level::Warning, &["rotates"]));
    let mut pool = plain("/srv/a.img", Role::Pool);
    pool.emulate = Some(Emulate::Hdd);
    let all = check(&pool, Some(DeviceKind::Rotating));
    assert!(has(&all, Level::Note, &["slow on purpose", "emulate = \"hdd\""]), "{all:?}");
    assert!(!has(&all, Level::Warning, &["rotates"]), "a pool may rotate");
}
