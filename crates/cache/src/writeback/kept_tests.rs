//! A volume whose mapping cannot be read does not stop the write-back of others.

use base::{BLOCK, ErrorKind, Lba, VolumeId};
use format::tree::mapping_tree_id;
use sim::Fault;

use crate::Cache;
use crate::testkit::{BLOCKS, Lab, POOL_BYTES, fill, plain, settings};
use crate::writeback::walk::CarriedBlocks;

const A: VolumeId = VolumeId(1);

/// From now on the leaves of the mapping of "a" cannot be read, until the disk is revived.
fn lose_mapping(lab: &Lab) {
    let mut lost = 0;
    for at in (0..POOL_BYTES).step_by(BLOCK) {
        let block = lab.world.contents(lab.disk, at, BLOCK);
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        let is_node = block.starts_with(b"FBnd");
        if is_node && number(16) == mapping_tree_id(A) && block[4] == 0 {
            let fault = Fault::FailReads { offset: at, len: BLOCK as u64, times: u32::MAX };
            assert!(lab.world.inject(lab.disk, fault));
            lost += 1;
        }
    }
    assert!(lost > 1, "{lost}");
}

async fn byte_of(cache: &Cache, volume: VolumeId, lba: u64) -> Result<u8, ErrorKind> {
    let found = cache.read(volume, Lba(lba), 1).await;
    found.map(|data| data[0][0]).map_err(|e| e.kind)
}

#[test]
fn a_run_of_a_pass_is_a_plain_value() {
    plain::<CarriedBlocks>();
}

#[test]
fn one_volume_that_cannot_be_reached_stops_no_other() {
    let lab = Lab::new();
    lose_mapping(&lab);
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.within_an_hour(settings(), move |cache, a| async move {
        assert_eq!(a, A);
        let b = cache.pool().find_volume("b").expect("there").id;
        fill(&cache, b, 0, 10, 77).await;
        for _ in 0..3 {
            cache.publish_all().await.expect("b comes to the pool");
        }
        assert_eq!(cache.pool().read(b, Lba(0), 1).await.expect("read")[0][0], 77);
        let kept = cache.kept();
        assert!(matches!(&kept[..], [(id, kept)] if *id == a && kept.blocks == 450), "{kept:?}");
        assert_eq!(byte_of(&cache, a, 2003).await, Ok(1));
        assert_eq!(byte_of(&cache, a, 3050).await, Ok(0));
        let e = cache.write_all_back().await.expect_err("a is not written back");
        assert!(e.context.starts_with("450 blocks of volume a in the cache"), "{e}");
        // An eighth of the cache is full of it.
        let mut block = cache.pool().bufs().take(BLOCK);
        block.fill(5);
        let block = block.freeze();
        let e = cache.write(a, Lba(7), &block).await.expect_err("no more of a");
        assert!(e.context.starts_with("volume a takes no more writes"), "{e}");
        fill(&cache, b, 20, 10, 78).await;
        cache.publish_all().await.expect("b comes to the pool");
        cache.detach().await.expect_err("it stays");
        world.revive(disk);
        cache.write_all_back().await.expect("all is well");
        assert!(cache.kept().is_empty() && cache.is_written_back(a));
        assert_eq!(cache.pool().read(a, Lba(2003), 1).await.expect("read")[0][0], 1);
        cache.write(a, Lba(7), &block).await.expect("a is written to again");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// Nothing of the volume is left, and nothing else is dirty: no pass comes that would see it.
#[test]
fn what_is_dirty_no_more_is_not_kept() {
    let lab = Lab::new();
    lab.with(|cache| async move {
        cache.publish_all().await.expect("published");
    });
    lose_mapping(&lab);
    lab.within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 2000, 600, 1).await;
        cache.publish_all().await.expect("published");
        assert_eq!(cache.core().levels().kept_blocks(), 600);
        let why = cache.core().levels().check_writable(a).expect_err("much is kept");
        assert!(why.context.starts_with("volume a takes no more writes"), "{why}");
        let alone = cache.between_passes().await;
        cache.forget_from(a, Lba(0)).await.expect("forget");
        drop(alone);
        assert_eq!((cache.kept().len(), cache.core().levels().kept_blocks()), (0, 0));
        fill(&cache, a, 7, 1, 5).await;
    });
}

#[test]
fn a_volume_that_is_deleted_is_kept_no_more() {
    let lab = Lab::new();
    lose_mapping(&lab);
    lab.within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("published");
        assert_eq!(cache.kept().len(), 1);
        cache.discard(a, Lba(0), Lba(BLOCKS)).await.expect("discard");
        cache.publish_all().await.expect("published");
        let kept = cache.kept();
        assert!(matches!(&kept[..], [(_, kept)] if kept.blocks == 0), "{kept:?}");
        cache.forget(a).await.expect("forget");
        cache.pool().delete_volume(a).await.expect("delete");
        cache.publish_all().await.expect("published");
        assert!(cache.kept().is_empty());
        cache.write_all_back().await.expect("all is well");
    });
}
