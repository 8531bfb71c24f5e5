//! The journal as a ring, without a device: its room, and its content against a list of records.

use std::collections::BTreeMap;

use base::{BLOCK_U64, BucketGen, BucketId, Epoch, Lba, Prng, VolumeId};
use format::cache::index::{MAX_EXTENT_BLOCKS, encode_staged};
use format::cache::journal::{Entry, blocks_for, decode_entry};
use rt::sync::Event;

use super::*;
use crate::store::ring_room::Share;

fn journal(blocks: u32, entry_blocks: u32) -> Journal {
    let room = RingRoom::new(blocks, Event::new(), Event::new());
    let identity = Identity { uuid: [1; 16], incarnation: 1 };
    Journal::new(
        Ring { offset: 0, blocks },
        room,
        identity,
        Place { position: 0, sequence: EntrySeq(1) },
        entry_blocks,
    )
}

fn push(journal: &mut Journal, room: &mut JournalRoom, blocks: usize) {
    let mut value = Vec::new();
    encode_staged(&mut value, Epoch(1), &vec![7; blocks]);
    journal.push(room, &Record::Insert { volume: VolumeId(1), lba: Lba(0), value: &value });
}

/// All that was pushed.
fn take_all(journal: &mut Journal, bufs: &BufPool) -> Vec<ReadyEntry> {
    let before = journal.close_entries();
    let mut all = Vec::new();
    loop {
        let some = journal.take_ready(before, PoolSeen::default(), bufs);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

#[test]
fn what_was_pushed_always_finds_its_place() {
    for seed in 0..200 {
        let mut rng = Prng::new(seed);
        let mut journal = journal(256, [4, 8, MAX_ENTRY_BLOCKS][rng.below(3) as usize]);
        let bufs = BufPool::new(0);
        // What requests hold, and how many blocks their extents have.
        let mut requests: Vec<(JournalRoom, usize)> = Vec::new();
        // Entries in the ring, from the oldest on: sequence, first block, blocks.
        let mut ring: Vec<(u64, u32, u32)> = Vec::new();
        let mut frozen = None;
        let often = [1, 4, 40][rng.below(3) as usize];
        for _ in 0..3_000 {
            match rng.below(12) {
                0..=5 => {
                    let blocks = if rng.one_in(often) { MAX_EXTENT_BLOCKS * 4 } else { 1 };
                    let records = blocks_for(blocks.div_ceil(MAX_EXTENT_BLOCKS), blocks);
                    requests.extend(
                        journal.room().try_take(Share::Clients, records).map(|room| (room, blocks)),
                    );
                }
                6..=8 if !requests.is_empty() => {
                    let (mut room, blocks) =
                        requests.swap_remove(rng.below(requests.len() as u64) as usize);
                    for _ in 0..blocks.div_ceil(MAX_EXTENT_BLOCKS) {
                        push(&mut journal, &mut room, blocks.min(MAX_EXTENT_BLOCKS));
                    }
                }
                9 => {
                    let mut last = None;
                    for entry in take_all(&mut journal, &bufs) {
                        let (from, blocks) = (
                            (entry.offsets[0] / BLOCK_U64) as u32,
                            (entry.bytes.len() / base::BLOCK) as u32,
                        );
                        assert!(from + blocks <= 256);
                        for &(_, a, n) in &ring {
                            assert!(
                                from + blocks <= a || a + n <= from,
                                "seed {seed}: written over what counts"
                            );
                        }
                        assert!(ring.last().is_none_or(|r| r.0 + 1 == entry.sequence.0));
                        ring.push((entry.sequence.0, from, blocks));
                        last = Some((entry.sequence, entry.last));
                    }
                    if let Some((sequence, records)) = last {
                        assert_eq!(records, journal.pushed());
                        journal.note_durable(Durable::supposed(), sequence, records);
                    }
                }
                10 if frozen.is_none() => frozen = Some(journal.next_place()),
                11 if rng.one_in(3) => {
                    if let Some((place, records)) = frozen.take() {
                        journal.forget_before(Durable::supposed(), place.sequence, records);
                        ring.retain(|&(sequence, ..)| sequence >= place.sequence.0);
                    }
                }
                _ => {}
            }
        }
        requests.clear();
        assert_eq!(journal.room().taken(), journal.blocks(), "seed {seed}");
    }
}

#[test]
fn a_checkpoint_stands_for_records_before_its_place_only() {
    let mut journal = journal(256, MAX_ENTRY_BLOCKS);
    let mut room = journal.room().try_take(Share::Clients, 100).unwrap();
    let bufs = BufPool::new(0);
    push(&mut journal, &mut room, 1);
    take_all(&mut journal, &bufs);
    // Full entries, and one that is being filled.
    let mut pushed = RecordSeq(1);
    while journal.waiting() < 1 {
        push(&mut journal, &mut room, MAX_EXTENT_BLOCKS);
        pushed.0 += 1;
    }
    let (place, records) = journal.next_place();
    assert_eq!((place.sequence, records), (EntrySeq(2), RecordSeq(1)));
    journal.forget_before(Durable::supposed(), place.sequence, records);
    assert_eq!(
        (journal.durable_entry(), journal.durable()),
        (EntrySeq(1), RecordSeq(1)),
        "{pushed:?}"
    );
    take_all(&mut journal, &bufs);
    assert_eq!(journal.next_place().1, pushed);
}

/// A record, with its bytes.
#[derive(Clone, PartialEq, Debug)]
enum Owned {
    Insert(VolumeId, Lba, Vec<u8>),
    Raise(BucketId, BucketGen),
    Remove(VolumeId, Lba, u64),
    Cut(Epoch),
}

impl Owned {
    fn of(record: &Record<'_>) -> Owned {
        match *record {
            Record::Insert { volume, lba, value } => Owned::Insert(volume, lba, value.to_vec()),
            Record::Raise { bucket, generation } => Owned::Raise(bucket, generation),
            Record::Remove { volume, lba, len } => Owned::Remove(volume, lba, len),
            Record::Epoch { epoch } => Owned::Cut(epoch),
        }
    }

    fn record(&self) -> Record<'_> {
        match self {
            Owned::Insert(volume, lba, value) => {
                Record::Insert { volume: *volume, lba: *lba, value }
            }
            Owned::Raise(bucket, generation) => {
                Record::Raise { bucket: *bucket, generation: *generation }
            }
            Owned::Remove(volume, lba, len) => {
                Record::Remove { volume: *volume, lba: *lba, len: *len }
            }
            Owned::Cut(epoch) => Record::Epoch { epoch: *epoch },
        }
    }

    /// Any record; `n` makes it unlike all others.
    fn any(rng: &mut Prng, n: u64) -> Owned {
        let (volume, lba) = (VolumeId(1 + rng.below(5) as u32), Lba(n));
        match rng.below(6) {
            0 => Owned::Raise(BucketId(n as u32), BucketGen(rng.below(99) as u32)),
            1 => Owned::Remove(volume, lba, 1 + rng.below(1000)),
            2 => Owned::Cut(Epoch(n as u32)),
            _ => {
                let most = [2, MAX_EXTENT_BLOCKS as u64][rng.below(2) as usize];
                let mut value = Vec::new();
                let crcs: Vec<_> = (0..=rng.below(most)).map(|i| (n + i) as u32).collect();
                encode_staged(&mut value, Epoch(1), &crcs[..crcs.len().min(MAX_EXTENT_BLOCKS)]);
                Owned::Insert(volume, lba, value)
            }
        }
    }
}

/// What a replay finds that begins at a place: entries in sequence, until one is not there. Each
/// place of the ring holds what was written to it last.
fn replay(ring: &BTreeMap<u32, Slice>, blocks: u32, from: Place) -> Vec<Entry> {
    let (mut out, mut place) = (Vec::new(), from);
    loop {
        if blocks - place.position < MAX_ENTRY_BLOCKS {
            place.position = 0;
        }
        let found = ring
            .get(&place.position)
            .and_then(|bytes| decode_entry(bytes, &[1; 16], 1, place.sequence).ok());
        let Some(entry) = found else { return out };
        place.position += entry.blocks();
        place.sequence.0 += 1;
        out.push(entry);
    }
}

/// Records are pushed, taken out as entries, written or lost by a kill, become durable, and are
/// forgotten by checkpoints. The model is the list of all records.
#[test]
fn a_replay_gives_the_records_that_were_pushed_in_their_order() {
    const BLOCKS: u32 = 256;
    for seed in 0..60 {
        let mut rng = Prng::new(seed);
        let mut journal = journal(BLOCKS, [4, 8, MAX_ENTRY_BLOCKS][rng.below(3) as usize]);
        let bufs = BufPool::new(0);
        let mut all: Vec<Owned> = Vec::new();
        let mut ring: BTreeMap<u32, Slice> = BTreeMap::new();
        // The last record of each entry, by its number; entries that are written and not durable.
        let mut last_of: BTreeMap<EntrySeq, RecordSeq> = BTreeMap::new();
        let mut written: Option<(EntrySeq, RecordSeq)> = None;
        let (mut durable, mut checkpoint) = (EntrySeq(0), journal.next_place());
        let (mut frozen, mut most) = (None, 0);
        for _ in 0..2_000 {
            match rng.below(10) {
                0..=5 => {
                    let record = Owned::any(&mut rng, all.len() as u64);
                    let need = blocks_for(1, MAX_EXTENT_BLOCKS);
                    let Some(mut room) = journal.room().try_take(Share::Clients, need) else {
                        continue;
                    };
                    all.push(record);
                    let record = all[all.len() - 1].record();
                    assert_eq!(journal.push(&mut room, &record), RecordSeq(all.len() as u64));
                    assert_eq!(journal.pushed().0, all.len() as u64);
                }
                6 => {
                    for entry in take_all(&mut journal, &bufs) {
                        let position = (entry.offsets[0] / BLOCK_U64) as u32;
                        let decoded = decode_entry(&entry.bytes, &[1; 16], 1, entry.sequence);
                        let decoded = decoded.expect("what was sealed");
                        // A slice of the list: behind the entry before, up to its last.
                        let before = last_of.last_key_value().map_or(0, |(_, last)| last.0);
                        let records: Vec<_> = decoded.records().map(|r| Owned::of(&r)).collect();
                        assert_eq!(records, all[before as usize..entry.last.0 as usize]);
                        assert_eq!(decoded.durable, durable, "what was known to be durable");
                        last_of.insert(entry.sequence, entry.last);
                        ring.insert(position, entry.bytes);
                        written = Some((entry.sequence, entry.last));
                    }
                    assert_eq!(
                        journal.newest_entry(),
                        last_of.keys().last().copied().unwrap_or_default()
                    );
                }
                7 => {
                    if let Some((entry, last)) = written.take() {
                        journal.note_durable(Durable::supposed(), entry, last);
                        durable = durable.max(entry);
                        assert_eq!(journal.durable(), last);
                    }
                }
                8 if frozen.is_none() && rng.one_in(4) => frozen = Some(journal.next_place()),
                // A checkpoint ends. A flush of all that was written goes before it.
                9 if written.is_none() => {
                    if let Some((place, records)) = frozen.take() {
                        journal.forget_before(Durable::supposed(), place.sequence, records);
                        checkpoint = (place, records);
                        durable = durable.max(EntrySeq(place.sequence.0 - 1));
                    }
                }
                _ => {}
            }
            assert_eq!(journal.durable_entry(), durable, "seed {seed}");
            // A kill now: the records behind the checkpoint, as far as they were taken out.
            let found = replay(&ring, BLOCKS, checkpoint.0);
            let records: Vec<Owned> =
                found.iter().flat_map(|e| e.records()).map(|r| Owned::of(&r)).collect();
            let upto = last_of.last_key_value().map_or(0, |(_, last)| last.0);
            assert_eq!(records, all[checkpoint.1.0 as usize..upto as usize], "seed {seed}");
            most = most.max(found.len());
        }
        assert!(all.len() > 200 && last_of.len() > 50 && most > 2, "seed {seed}");
    }
}

/// However much waits, a bounded part of it is sealed in one step, and what is pushed meanwhile is
/// not of it.
#[test]
fn entries_are_taken_out_some_at_a_time() {
    let mut journal = journal(4096, MAX_ENTRY_BLOCKS);
    let mut room = journal.room().try_take(Share::Clients, 2000).unwrap();
    let bufs = BufPool::new(0);
    while journal.blocks() < 3 * AT_ONCE {
        push(&mut journal, &mut room, MAX_EXTENT_BLOCKS);
    }
    let (before, pushed) = (journal.close_entries(), journal.pushed());
    let mut taken = Vec::new();
    loop {
        let some = journal.take_ready(before, PoolSeen::default(), &bufs);
        let Some(last) = some.last() else { break };
        let blocks: usize = some.iter().map(|one| one.bytes.len() / base::BLOCK).sum();
        assert!(blocks < (AT_ONCE + MAX_ENTRY_BLOCKS) as usize, "{blocks} blocks in one step");
        taken.push(last.last);
        push(&mut journal, &mut room, MAX_EXTENT_BLOCKS);
    }
    assert!(taken.len() >= 3 && taken.last() == Some(&pushed), "{taken:?} of {pushed:?}");
    assert_eq!(take_all(&mut journal, &bufs).len(), 1, "what came meanwhile");
}
