//! A journal that ends too early, or makes no sense.

use std::ops::Range;

use base::{BLOCK, BucketGen, BucketId, CacheAddr, EntrySeq, ErrorKind, Lba, VolumeId};
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::index::IndexValue;
use format::cache::journal::{EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, Record, decode_entry};
use offline::{Severity, Subject};
use testkit::MIB;

use crate::lab::{Lab, fill};
use crate::{data, has, kinds};

/// Cuts the power when there are several entries in the journal; where they are, by their sequence.
pub fn with_entries(lab: &Lab) -> Range<u64> {
    lab.power_cut(|cache, a| async move {
        for i in 0..6 {
            fill(&cache, a, 1300 + i, 1, 1).await;
            cache.flush().await.expect("flush");
        }
    });
    let first = lab.superblock().replay_sequence.0;
    let entries = lab.check().counts.journal_entries;
    assert!(entries >= 6);
    first..first + entries
}

/// Where the data of the entries of [`with_entries`] stands, a block of each.
fn blocks_of_entries(lab: &Lab, entries: Range<u64>) -> Vec<u64> {
    let (sb, layout) = (lab.superblock(), lab.layout());
    let entry = |sequence: u64| {
        let position = sb.replay_position + (sequence - entries.start) as u32;
        let block = lab.block(layout.ring().places(position)[0]);
        decode_entry(&block, &sb.uuid, sb.incarnation, EntrySeq(sequence)).expect("an entry")
    };
    let mut places = Vec::new();
    for sequence in entries.clone() {
        for record in entry(sequence).records() {
            let Record::Insert { value, .. } = record else { continue };
            if let Some(IndexValue::Data { addr, .. }) = IndexValue::decode(value) {
                places.push(layout.offset_of(addr));
            }
        }
    }
    places
}

/// A block of the last entry may never have arrived. Of the others it was flushed.
#[test]
fn blocks_of_the_last_entry_that_are_not_there() {
    let lab = Lab::new();
    let entries = with_entries(&lab);
    let places = blocks_of_entries(&lab, entries.clone());
    assert_eq!(places.len() as u64, entries.end - entries.start);
    let (&last, others) = places.split_last().expect("entries");
    lab.rot(last);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Note, Subject::Journal)]);
    assert!(r.is_clean() && r.counts.not_arrived == 1, "{:?}", r.counts);
    let text = r.problems[0].to_string();
    assert!(text.contains("1 block is named by its last entries, and not on the device"), "{text}");
    lab.rot(others[0]);
    let r = lab.check();
    assert!(!r.is_clean() && r.counts.not_arrived == 1, "{:?}", r.problems);
}

#[test]
fn a_journal_that_ends_too_early() {
    let lab = Lab::new();
    let entries = with_entries(&lab);
    let (sb, ring) = (lab.superblock(), lab.layout().ring());
    let at = |n: u64| ring.places(sb.replay_position + n as u32);
    lab.rot(at(1)[0]);
    let r = lab.check();
    assert_eq!(
        kinds(&r),
        [(Severity::DamagedCopy, Subject::Journal)],
        "the other copy is whole: {:?}",
        r.problems
    );
    lab.rot(at(1)[1]);
    let r = lab.check();
    assert_eq!(
        kinds(&r),
        [(Severity::Error, Subject::Journal), (Severity::Note, Subject::Journal)]
    );
    assert!(
        r.problems[0].to_string().contains(&format!("entry {}", entries.start + 1)),
        "{:?}",
        r.problems
    );
    // The last entry may never have been there.
    let lab = Lab::new();
    let entries = with_entries(&lab);
    at(entries.end - entries.start - 1).into_iter().for_each(|offset| lab.rot(offset));
    let r = lab.check();
    assert_eq!((r.problems.len(), r.counts.journal_entries), (0, entries.end - entries.start - 1));
    // Unless the pool has committed since: it knows.
    let lab = Lab::new();
    let entries = with_entries(&lab);
    lab.power_cut(|cache, a| async move {
        fill(&cache, a, 1400, 1, 1).await;
        cache.flush().await.expect("flush");
        cache.pool().create_volume("c", MIB, 4096).await.expect("volume");
    });
    let (sb, first) = (lab.superblock(), entries.end);
    assert!(sb.replay_sequence.0 >= first);
    ring.places(sb.replay_position).into_iter().for_each(|offset| lab.rot(offset));
    let r = lab.check();
    assert!(
        r.problems.iter().any(|p| p.severity == Severity::Error && p.what.contains("was durable")),
        "{:?}",
        r.problems
    );
    let e = lab.refusal();
    assert!(e.kind == ErrorKind::Damaged && e.context.contains("was durable"), "{e}");
}

/// Writes an entry behind the newest checkpoint, of records that were never pushed.
fn put_entry(lab: &Lab, records: &[Record<'_>]) {
    let sb = lab.superblock();
    let mut entry = EntryBuilder::new(MAX_ENTRY_BLOCKS);
    assert!(records.iter().all(|r| entry.push(r)));
    let (sequence, durable) = (sb.replay_sequence, sb.replay_sequence);
    let mut block = vec![0; BLOCK];
    entry.seal(
        &EntryHeader {
            uuid: sb.uuid,
            incarnation: sb.incarnation,
            sequence,
            durable,
            pool_seen: sb.pool_seen,
        },
        &mut block,
    );
    lab.layout()
        .ring()
        .places(sb.replay_position)
        .into_iter()
        .for_each(|offset| lab.put(offset, &block));
}

#[test]
fn a_journal_that_makes_no_sense() {
    let lab = Lab::new();
    let value = data(0, CacheAddr(1 << 39), BucketGen(0), 1);
    put_entry(&lab, &[Record::Insert { volume: VolumeId(1), lba: Lba(0), value: &value }]);
    let r = lab.check();
    assert!(has(&r, Subject::Journal, "not there"), "{:?}", r.problems);
}

/// The check finds `what`, an open fails with it, and nothing was changed by that.
fn contradicts(record: impl FnOnce(&Lab, &mut dyn FnMut(&Record<'_>)), what: &str) {
    let lab = Lab::new();
    record(&lab, &mut |record| put_entry(&lab, std::slice::from_ref(record)));
    let sequence = lab.superblock().replay_sequence;
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Journal)]);
    assert!(has(&r, Subject::Journal, what), "{:?}", r.problems);
    assert!(has(&r, Subject::Journal, &format!("cache: entry {sequence} of")), "{:?}", r.problems);
    let before = lab.contents();
    let e = lab.refusal();
    assert!(e.kind == ErrorKind::Damaged && e.context.contains("contradicts"), "{e}");
    assert!(lab.contents() == before, "the open wrote");
}

#[test]
fn a_journal_that_contradicts_its_checkpoint() {
    let of_kind = |lab: &Lab, wanted: fn(&BucketRecord) -> bool| {
        let (_, records) = lab.records();
        let bucket = records.iter().position(wanted).expect("there is one");
        let addr = CacheAddr(bucket as u64 * u64::from(lab.layout().bucket_blocks));
        (addr, BucketId(bucket as u32), records[bucket].generation)
    };
    let insert = |put: &mut dyn FnMut(&Record<'_>), addr, generation| {
        let value = data(0, addr, generation, 1);
        put(&Record::Insert { volume: VolumeId(1), lba: Lba(4000), value: &value });
    };
    contradicts(
        |lab, put| {
            // All but its summary is live: two more do not fit.
            let (addr, _, generation) =
                of_kind(lab, |f| f.kind == BucketKind::Data && f.live == 15);
            let value = data(0, addr, generation, 2);
            put(&Record::Insert { volume: VolumeId(1), lba: Lba(4000), value: &value });
        },
        "about block 4000 of volume 1: bucket:",
    );
    contradicts(
        |lab, put| {
            let (addr, _, generation) = of_kind(lab, |f| f.kind == BucketKind::Nodes);
            insert(put, addr, generation);
        },
        "has nodes of the index, and blocks of a volume",
    );
    contradicts(
        |lab, put| {
            let (_, bucket, BucketGen(generation)) = of_kind(lab, |f| f.kind == BucketKind::Nodes);
            put(&Record::Raise { bucket, generation: BucketGen(generation + 1) });
        },
        "has nodes of the index, and was evicted",
    );
    contradicts(
        |lab, put| {
            put(&Record::Raise { bucket: BucketId(lab.layout().buckets), generation: BucketGen(1) })
        },
        "was evicted, and is not there",
    );
}

#[test]
fn a_bucket_table_that_says_less_than_the_index() {
    // The check finds that before it comes to the journal. An open does not walk the index.
    for (live, dirty, what) in [(0, 0, "has fewer live blocks"), (1, 0, "has fewer dirty blocks")] {
        let lab = Lab::new();
        let (e, addr, _) = lab.first(true);
        let (generation, mut records) = lab.records();
        let f = &mut records[(addr.0 / u64::from(lab.layout().bucket_blocks)) as usize];
        (f.live, f.dirty_open) = (live, dirty);
        lab.put_records(generation, &records);
        put_entry(&lab, &[Record::Remove { volume: e.volume, lba: e.lba, len: 1 }]);
        let e = lab.refusal();
        assert!(e.kind == ErrorKind::Damaged && e.context.contains(what), "{e}");
    }
}
