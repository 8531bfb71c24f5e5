//! Dirty blocks that go bad: named, never forgotten.

use std::cell::Cell;
use std::rc::Rc;

use base::ErrorKind;

use super::*;

/// Where the cache has the first block of volume "a" from `lba` on.
fn offset_of(cache: &Cache, lba: u64) -> u64 {
    let a = cache.pool().find_volume("a").expect("there").id;
    let st = &mut *cache.state_mut();
    let found =
        st.index.overlapping(&st.buckets, a, (Lba(lba), Lba(lba + 1)), 1).expect("resident");
    let [IndexKey { lba: from, body: Body::Data { addr, .. }, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    cache.0.layout.offset_of(CacheAddr(addr.0 + lba - from.0))
}

#[test]
fn a_bad_dirty_block_stays_an_error_over_passes_and_power_cuts() {
    let lab = Lab::new();
    let at = Rc::new(Cell::new(0));
    let place = at.clone();
    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        // The pool has something older.
        fill(&cache, a, 100, 3, 1).await;
        cache.publish_all().await.expect("published");
        fill(&cache, a, 100, 3, 51).await;
        cache.flush().await.expect("flush");
        // The next entry of the journal says that this was durable.
        fill(&cache, a, 200, 1, 7).await;
        cache.flush().await.expect("flush");
        place.set(offset_of(&cache, 101));
    });
    lab.rot(at.get());
    for _ in 0..3 {
        lab.power_cut(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            // A pass carries what is good, and enters what is bad again; then the power is cut,
            // with that in the journal only.
            cache.publish_all().await.expect("published");
            let e = cache.read(a, Lba(101), 1).await.expect_err("what was flushed is lost");
            assert_eq!(e.kind, ErrorKind::Io, "{e}");
            for (lba, byte) in [(100, 51), (102, 53)] {
                let data = cache.read(a, Lba(lba), 1).await.expect("read");
                assert_eq!(data[0][0], byte);
            }
        });
    }
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        assert!(cache.read(a, Lba(101), 1).await.is_err());
        fill(&cache, a, 101, 1, 99).await;
        cache.publish_all().await.expect("published");
        assert_eq!(cache.read(a, Lba(101), 1).await.expect("read")[0][0], 99);
    });
    assert!(lab.check().is_clean());
}

#[test]
fn what_clean_blocks_hold_is_of_no_matter_where_they_do_not_count() {
    let lab = Lab::new();
    let (_, addr, _) = lab.first(false);
    lab.rot(lab.layout().offset_of(addr));
    assert_eq!(kinds(&lab.check()), [(Severity::DamagedCopy, Subject::Data)]);
    let void = || Image { clean_void: true, ..lab.image() };
    assert!(lab.check_with(void(), true).is_clean());
    let (_, addr, _) = lab.first(true);
    lab.rot(lab.layout().offset_of(addr));
    assert_eq!(kinds(&lab.check_with(void(), true)), [(Severity::Error, Subject::Data)]);
}
