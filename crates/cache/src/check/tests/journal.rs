//! A journal that ends too early.

use super::*;

/// Cuts the power when there are several entries in the journal; where they are, by their sequence.
fn with_entries(lab: &Lab) -> Range<u64> {
    lab.cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        for i in 0..6 {
            fill(&cache, a, 1300 + i, 1, 1).await;
            cache.flush().await.expect("flush");
        }
    });
    let first = lab.superblock().replay_sequence;
    let entries = lab.check().counts.journal_entries;
    assert!(entries >= 6);
    first..first + entries
}

#[test]
fn a_journal_that_ends_too_early() {
    let lab = Lab::new();
    let entries = with_entries(&lab);
    let (sb, ring) = (lab.superblock(), lab.layout().ring());
    let at = |n: u64| ring.places(sb.replay_position + n as u32);
    lab.rot(at(1)[0]);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Journal)], "the other copy is whole: {:?}", r.problems);
    lab.rot(at(1)[1]);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Journal), (Severity::Note, Subject::Journal)]);
    assert!(r.problems[0].to_string().contains(&format!("entry {}", entries.start + 1)), "{:?}", r.problems);
    // The last entry may never have been there.
    let lab = Lab::new();
    let entries = with_entries(&lab);
    at(entries.end - entries.start - 1).into_iter().for_each(|offset| lab.rot(offset));
    let r = lab.check();
    assert_eq!((r.problems.len(), r.counts.journal_entries), (0, entries.end - entries.start - 1));
    // Unless the pool has committed since: it knows.
    let lab = Lab::new();
    let entries = with_entries(&lab);
    lab.cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        fill(&cache, a, 1400, 1, 1).await;
        cache.flush().await.expect("flush");
        cache.pool().create_volume("c", MIB, 4096).await.expect("volume");
    });
    let (sb, first) = (lab.superblock(), entries.end);
    assert!(sb.replay_sequence >= first);
    ring.places(sb.replay_position).into_iter().for_each(|offset| lab.rot(offset));
    let r = lab.check();
    assert!(
        r.problems.iter().any(|p| p.severity == Severity::Error && p.what.contains("was durable")),
        "{:?}",
        r.problems
    );
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        let Err(e) = Cache::open(&rt, &file, &pool, settings()).await else { panic!("it was opened") };
        assert!(e.kind == pool::ErrorKind::Damaged && e.context.contains("was durable"), "{e}");
    });
}
