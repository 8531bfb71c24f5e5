//! The journal as a ring, without a device.

use base::{BLOCK_U64, Epoch, Lba, Prng, VolumeId};
use format::cache::index::{MAX_EXTENT_BLOCKS, encode_staged};
use format::cache::journal::blocks_for;
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
                    for entry in journal.take_ready(PoolSeen::default(), &bufs) {
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
        assert_eq!(journal.room().held(), journal.blocks(), "seed {seed}");
    }
}

#[test]
fn a_checkpoint_stands_for_records_before_its_place_only() {
    let mut journal = journal(256, MAX_ENTRY_BLOCKS);
    let mut room = journal.room().try_take(Share::Clients, 100).unwrap();
    let bufs = BufPool::new(0);
    push(&mut journal, &mut room, 1);
    journal.take_ready(PoolSeen::default(), &bufs);
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
    journal.take_ready(PoolSeen::default(), &bufs);
    assert_eq!(journal.next_place().1, pushed);
}
