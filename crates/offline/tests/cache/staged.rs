//! What is staged: counted, and the counters compared.

use base::BLOCK;
use cache::{Settings, StreamWrites};
use offline::Subject;
use offline::pool::check::{Image, Staged};

use crate::has;
use crate::lab::{Lab, fill, settings};

/// With a stream past the cutoff, which goes past the buckets.
fn lab() -> Lab {
    let lab = Lab::new();
    // No pass begins meanwhile.
    let settings =
        Settings { dirty_target_percent: 100, stream_writes: StreamWrites::Past, ..settings() };
    lab.with(settings, |cache, a| async move {
        for i in 0..7 {
            fill(&cache, a, i * 200, 200, i as u8).await;
        }
        // One block of them is dirty here again.
        fill(&cache, a, 1300, 1, 77).await;
        assert_eq!(cache.status().staged_bytes, 399 * BLOCK as u64);
    });
    lab
}

#[test]
fn counters_of_what_is_staged() {
    let lab = lab();
    let r = lab.check();
    assert!(r.is_clean(), "{:?}", r.problems);
    assert_eq!((r.counts.staged_blocks, lab.superblock().staged), (399, (399, 0)));
    lab.put_superblock(|sb| sb.staged = (398, 0));
    let r = lab.check();
    assert!(
        has(&r, Subject::Superblock, "399 staged blocks of the open epoch"),
        "{:?}",
        r.problems
    );
}

#[test]
fn what_is_staged_has_to_be_in_the_pool() {
    let lab = lab();
    let image = lab.image();
    let staged = image.staged.clone().expect("the pool is whole");
    assert!(staged.len() >= 399);
    let without = |spoil: fn(&mut Staged)| {
        let mut staged = Staged::clone(&staged);
        spoil(&mut staged);
        lab.check_with(Image { staged: Some(staged.into()), ..lab.image() }, false)
    };
    assert!(without(|_| ()).is_clean());
    let gone = without(|s| s.clear());
    assert!(has(&gone, Subject::Extent, "are not in the pool as it says"), "{:?}", gone.problems);
    let other = without(|s| {
        let (_, crc) = s.iter_mut().min_by_key(|(key, _)| key.2).expect("not empty");
        *crc ^= 1;
    });
    assert!(
        has(&other, Subject::Extent, "1 of its blocks are not in the pool"),
        "{:?}",
        other.problems
    );
    // A pool that could not be read says nothing.
    assert!(lab.check_with(Image { staged: None, ..image }, false).is_clean());
}
