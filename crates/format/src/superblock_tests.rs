//! Superblocks as bytes.

use base::OpenId;
use proptest::prelude::*;

use super::lineage::History;
use super::scrub::{LostExtent, MAX_LOST, MAX_LOST_ALONE};
use super::*;

fn sample() -> Superblock {
    let device = |n| DeviceRecord::online([n; 16], 100);
    Superblock {
        pool_uuid: [7; 16],
        sequence: 9,
        generation: 1 << 32,
        previous: 77,
        tables_digest: 5,
        published: Epoch(6),
        published_at: 1_790_000_000,
        cache_uuid: Some([9; 16]),
        cache_journal: EntrySeq(1234),
        clean_void: false,
        balancing: true,
        group_blocks: 4096,
        group_capacity: 800,
        volume_pages: 48,
        next_volume: 3,
        device: 1,
        copies: 2,
        shards: 1,
        name: "tank".into(),
        devices: vec![
            device(1),
            DeviceRecord {
                state: DeviceState::Failed,
                since: 8,
                lacks_since: Some(Generation(5)),
                offline: true,
                ..device(2)
            },
            DeviceRecord { leaving: true, successor: Some(0), ..device(3) },
            DeviceRecord::removed(),
            DeviceRecord { spare: true, ..device(4) },
        ],
        scrub: ScrubRecord { state: scrub::ScrubState::Done, ended_at: 5, ..Default::default() },
        birth: Birth(3),
        lineage: Lineage {
            opened: OpenId(0x0123_4567_89AB_CDEF),
            opened_before: OpenId(7),
            cache_opened: OpenId(0x0123_4567_89AB_CDEF),
            settled: Generation(9),
            histories: vec![
                History { name: OpenId(7), end: Generation(1 << 32) },
                History { name: OpenId(0), end: Generation(9) },
            ],
        },
    }
}

fn encoded() -> Vec<u8> {
    let mut out = vec![0; BLOCK];
    sample().encode(&mut out);
    out
}

#[test]
fn round_trip_and_slots() {
    assert_eq!(Superblock::decode(&encoded()), Ok(sample()));
    let slots: Vec<_> = (4..8).map(Superblock::offset_of).collect();
    assert_eq!(slots, [65536, 131072, 196608, 262144]);
}

#[test]
fn cache_flags_round_trip() {
    let mut out = encoded();
    assert_eq!((&out[160..168], &out[168..192]), (&[0, 0, 0, 0, 1, 0, 0, 0][..], &[0; 24][..]));
    let void = Superblock { clean_void: true, ..sample() };
    void.encode(&mut out);
    assert_eq!(out[160..164], [1, 0, 0, 0]);
    assert_eq!(Superblock::decode(&out), Ok(void));
    out[160] = 3;
    seal(&mut out);
    let unknown = FormatError::Value { what: WHAT, field: "flags of the cache", found: 3 };
    assert_eq!(Superblock::decode(&out), Err(unknown));
}

#[test]
fn foreign_newer_and_damaged_are_told_apart() {
    assert_eq!(Superblock::decode(&[0; BLOCK]), Err(FormatError::Magic(WHAT)));
    assert!(matches!(Superblock::decode(&[0; 12]), Err(FormatError::Length { .. })));
    let mut newer = encoded();
    newer[8] = 2;
    seal(&mut newer);
    assert_eq!(
        Superblock::decode(&newer),
        Err(FormatError::Version { what: WHAT, found: 2, known: 1 })
    );
    let mut feature = encoded();
    feature[32] = 4;
    seal(&mut feature);
    assert_eq!(Superblock::decode(&feature), Err(FormatError::Features { what: WHAT, bits: 4 }));
    for at in [50, 300, 4000, 4095] {
        let mut bad = encoded();
        bad[at] ^= 1;
        assert_eq!(Superblock::decode(&bad), Err(FormatError::Checksum(WHAT)), "byte {at}");
    }
}

proptest! {
    #[test]
    fn hostile_but_sealed_bytes_never_panic(
        at in prop::collection::vec((8usize..BLOCK - 4, any::<u8>()), 1..20),
    ) {
        let mut bytes = encoded();
        for (i, b) in at {
            bytes[i] = b;
        }
        seal(&mut bytes);
        if let Ok(sb) = Superblock::decode(&bytes) {
            prop_assert!(usize::from(sb.device) < sb.devices.len());
            let mut again = vec![0; BLOCK];
            sb.encode(&mut again);
            prop_assert_eq!(Superblock::decode(&again), Ok(sb));
        }
    }
}

#[test]
fn a_superblock_without_a_lineage_is_as_it_always_was() {
    let lost = |n: usize| ScrubRecord {
        extents: (0..n as u64)
            .map(|n| LostExtent {
                addr: base::PoolAddr(n + 1),
                volume: base::VolumeId(1),
                lba: base::Lba(n),
                blocks: 1,
            })
            .collect(),
        ..sample().scrub
    };
    let mut out = vec![0; BLOCK];
    let old = Superblock {
        lineage: Lineage::default(),
        birth: Birth(0),
        scrub: lost(MAX_LOST_ALONE),
        ..sample()
    };
    old.encode(&mut out);
    assert_eq!(out[32..40], [0; 8]);
    assert_eq!(Superblock::decode(&out), Ok(old));
    // With one the list is shorter, and says so where it was cut.
    let new = Superblock { scrub: lost(MAX_LOST_ALONE), ..sample() };
    new.encode(&mut out);
    assert_eq!(out[32..40], [3, 0, 0, 0, 0, 0, 0, 0]);
    let cut = ScrubRecord { more_lost: true, ..lost(MAX_LOST) };
    assert_eq!(Superblock::decode(&out), Ok(Superblock { scrub: cut, ..sample() }));
}

/// A list of zeros ends in no byte that would tell it from a lineage: its length does.
#[test]
fn a_list_of_lost_blocks_that_reaches_into_the_lineage_is_refused() {
    const COUNT_AT: usize = 3328 + 3;
    let mut out = encoded();
    for (count, fits) in [(MAX_LOST, true), (MAX_LOST + 1, false), (MAX_LOST_ALONE, false)] {
        out[COUNT_AT] = count as u8;
        seal(&mut out);
        let decoded = Superblock::decode(&out);
        assert_eq!(decoded.is_ok(), fits, "{count}: {decoded:?}");
    }
}
