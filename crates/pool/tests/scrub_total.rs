//! How far a scrub is, in simulation: what it will have verified in the end is told while the pool
//! grows and shrinks.

use base::{BLOCK_U64, Duration, Lba, VolumeId};
use model::scrub::{PoolScrub, ScrubState};
use pool::{Pool, ScrubOptions};
use rt::Rt;
use testkit::{MIB, Mirror, blocks, open};

const BLOCKS: u64 = 1024;

fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (2, 2), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
        pool.create_volume("more", 32 * MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS).await;
        id
    })
}

async fn fill(pool: &Pool, id: VolumeId, n: u64) {
    for lba in (0..n).step_by(64) {
        pool.write(id, Lba(lba), &blocks(1, 64)).await.expect("write");
    }
    pool.commit().await.expect("commit");
}

/// What is told from now on until it ends, twice a second.
async fn watch(rt: &Rt, pool: &Pool) -> Vec<PoolScrub> {
    let mut all = Vec::new();
    loop {
        all.push(pool.scrubs().scrub_status().await);
        if all.last().is_some_and(|status| status.state != ScrubState::Running) {
            return all;
        }
        rt.sleep(Duration::from_millis(500)).await;
    }
}

/// The total was right all the time, and it was never told to be done before it was.
fn assert_true(told: &[PoolScrub]) {
    let end = told.last().expect("some");
    assert_eq!((end.state, end.all_bytes), (ScrubState::Done, end.verified_bytes), "{end:?}");
    assert!(told.len() > 10, "it was too fast to see");
    for status in &told[..told.len() - 1] {
        let off = status.all_bytes.abs_diff(end.all_bytes);
        assert!(off * 25 < end.all_bytes, "{status:?} ends with {}", end.all_bytes);
    }
    for status in &told[..told.len() - 5] {
        assert!(status.verified_bytes < status.all_bytes, "{status:?}");
        assert_ne!(status.left_s, Some(0), "{status:?}");
    }
}

#[test]
fn the_total_follows_what_is_written_and_discarded() {
    for device in [None, Some("disk1".to_owned())] {
        mirror(31).run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let id = pool.find_volume("v").expect("there").id;
            let more = pool.find_volume("more").expect("there").id;
            let copies = if device.is_some() { 1 } else { 2 };
            let (data, rate) = (copies * BLOCKS * BLOCK_U64, Some(256 << 10));
            pool.scrubs().start_scrub(ScrubOptions { device, rate }).await.expect("start");
            let told = pool.scrubs().scrub_status().await.all_bytes;
            assert!((data..data * 4 / 3).contains(&told), "{told} of {data}");
            rt.sleep(Duration::from_secs(4)).await;
            let before = pool.scrubs().scrub_status().await;
            fill(&pool, more, 4 * BLOCKS).await;
            let grown = pool.scrubs().scrub_status().await;
            assert!(grown.all_bytes > before.all_bytes + 3 * data, "{before:?} {grown:?}");
            rt.sleep(Duration::from_secs(4)).await;
            pool.discard(more, Lba(BLOCKS), Lba(4 * BLOCKS)).await.expect("discard");
            pool.commit().await.expect("commit");
            rt.sleep(Duration::from_secs(1)).await;
            pool.commit().await.expect("commit");
            let shrunk = pool.scrubs().scrub_status().await;
            assert!(shrunk.all_bytes < grown.all_bytes - 2 * data, "{grown:?} {shrunk:?}");
            assert_true(&watch(&rt, &pool).await);
            // What is written later is no matter of the scrub that is over.
            let end = pool.scrubs().scrub_status().await.all_bytes;
            fill(&pool, id, BLOCKS).await;
            assert_eq!(pool.scrubs().scrub_status().await.all_bytes, end);
            pool.close().await.expect("close");
        });
    }
}

#[test]
fn the_total_is_known_after_a_restart_in_the_middle() {
    let bench = mirror(32);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let slow = ScrubOptions { device: None, rate: Some(256 << 10) };
        pool.scrubs().start_scrub(slow).await.expect("start");
        rt.sleep(Duration::from_secs(8)).await;
        pool.scrubs().pause_scrub().await.expect("pause");
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let more = pool.find_volume("more").expect("there").id;
        let before = pool.scrubs().scrub_status().await;
        assert!(before.verified_bytes * 3 > before.all_bytes, "{before:?}");
        fill(&pool, more, BLOCKS).await;
        let grown = pool.scrubs().scrub_status().await;
        assert!(grown.all_bytes > before.all_bytes + BLOCKS * BLOCK_U64, "{before:?} {grown:?}");
        pool.scrubs().resume_scrub(None).await.expect("resume");
        assert_true(&watch(&rt, &pool).await);
        pool.close().await.expect("close");
    });
}
