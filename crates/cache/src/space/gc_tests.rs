//! Collection beside write-back, in simulation.

use base::{BLOCK, SECTOR};

use super::*;
use crate::testkit::{Lab, fill, settings, write_part};

/// Torture's seed 80106605. The key of a part without an epoch would be no key.
#[test]
fn a_part_that_is_published_before_it_is_moved_is_not_moved() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("publish");
        let bucket = u64::from(cache.core().layout().bucket_blocks);
        // The open bucket is filled, so that the next one begins with the part.
        let left = u64::from(
            cache.core().state().buckets.left_open(crate::store::buckets::census::Stream::Writes),
        );
        if left > 0 {
            fill(&cache, a, 3_000, left, 1).await;
        }
        let sector = cache.pool().bufs().zeroed(SECTOR).freeze();
        write_part(&cache, (a, Lba(3_200)), 0, &sector).await.expect("write");
        for byte in [1, 2] {
            fill(&cache, a, 3_300, bucket - 1, byte).await;
        }
        cache.flush().await.expect("flush");
        let ring = cache.core().state().journal().room().clone();
        let held: Vec<_> = std::iter::from_fn(|| ring.try_take(Share::Clients, 1)).collect();
        let collector = cache.clone();
        let collection = cache.core().rt().spawn(async move { collector.collect().await });
        cache.core().rt().sleep(Duration::from_secs(1)).await;
        assert!(ring.has_line(), "the part waits for room to be moved");
        cache.publish_all().await.expect("publish");
        drop(held);
        collection.await.expect("it ended").expect("collect");
        // It reads every key.
        cache.collect().await.expect("collect");
        let data = cache.read(a, Lba(3_200), 1).await.expect("read");
        assert_eq!(data[0][..], [0; BLOCK]);
    });
}
