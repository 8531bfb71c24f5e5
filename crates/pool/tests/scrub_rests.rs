//! Where room is short, writers need what was freed a moment ago. A scrub keeps what it reads from
//! being used again, and nothing while it rests.

use base::{BLOCK_U64, Duration, ErrorKind, Lba};
use model::scrub::ScrubState;
use pool::ScrubOptions;
use testkit::{MIB, Mirror, blocks, open};

const BLOCKS: u64 = 2048;

#[test]
fn no_write_waits_for_a_scrub_that_rests() {
    let bench = Mirror::new(13, (2, 2), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
        // In no order, so that trees have leaves.
        for i in 0..BLOCKS {
            pool.write(id, Lba(i * 911 % BLOCKS), &blocks(1, 1)).await.expect("write");
        }
        id
    });
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let big = pool.create_volume("big", 64 * MIB, 4096).await.expect("volume");
        for lba in (0..).step_by(256) {
            match pool.write(big, Lba(lba), &blocks(1, 256)).await {
                Ok(()) => {}
                Err(e) if e.kind == ErrorKind::NoSpace => break,
                Err(e) => panic!("{e}"),
            }
        }
        pool.discard(big, Lba(0), Lba(512)).await.expect("discard");
        pool.commit().await.expect("commit");
        let slow = ScrubOptions { rate: Some(64 << 10), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(slow).await.expect("start");
        let (mut longest, began) = (Duration::ZERO, rt.now());
        for i in 0..3000 {
            let before = rt.now();
            pool.write(id, Lba(i * 7 % BLOCKS), &blocks(2, 1)).await.expect("write");
            longest = longest.max(rt.now().since(before));
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert!(longest < Duration::from_secs(1), "{longest:?}");
        let status = pool.scrubs().scrub_status().await;
        let most = 64 * 1024 * rt.now().since(began).as_secs() + 8 * MIB;
        assert!(
            status.state == ScrubState::Running && status.verified_bytes < 2 * most,
            "{status:?}"
        );
        pool.close().await.expect("close");
    });
}
