use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use base::{Birth, Bitmap, Epoch, VolumeId};
use proptest::prelude::*;

/// Bytes of a volume record.
const VOLUME: usize = 192;
const ID: PageId = PageId { pool_uuid: [3; 16], kind: PageKind::Groups, page: 77, slot: 1 };

fn root(n: u64) -> Option<RootPtr> {
    Some(RootPtr {
        ptr: NodePtr { addr: PoolAddr(n), generation: Generation(n + 1), crc: n as u32 },
        height: 2,
    })
}

fn group() -> GroupRecord {
    GroupRecord {
        kind: GroupKind::Data,
        used: 12,
        chunks: vec![Chunk::new(0, 5), Chunk { behind: true, ..Chunk::new(1, 9) }],
        checksums: root(44),
        bitmap_generations: std::array::from_fn(|i| Generation(i as u64)),
    }
}

fn volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(4),
        state: VolumeState::Live,
        sector: 512,
        size_bytes: 512 * 77,
        allocated_blocks: 3,
        cache_mode: CacheMode::WriteAround,
        mapping: root(8),
        name: "vol0".into(),
        staged: None,
        limit: None,
        read_only: false,
        snapshot: None,
        deadlist: root(17),
    }
}

#[test]
fn the_record_of_a_snapshot_says_of_what_it_is() {
    let origin = SnapshotOrigin {
        volume: VolumeId(2),
        birth: Birth(5),
        generation: Generation(9),
        taken_at: 7,
    };
    let snapshot = VolumeRecord { snapshot: Some(origin), ..volume() };
    assert_eq!((snapshot.owner(), volume().owner()), (VolumeId(2), VolumeId(4)));
    let mut records = vec![None; VOLUMES_PER_PAGE as usize];
    records[1] = Some(snapshot.clone());
    let mut payload = vec![0; PAYLOAD];
    encode_volumes(&records, &mut payload);
    assert_eq!(decode_volumes(&payload), Ok(records));
    let refused = |change: &dyn Fn(&mut SnapshotOrigin)| {
        let mut bad = origin;
        change(&mut bad);
        let record = VolumeRecord { snapshot: Some(bad), ..volume() };
        let mut payload = vec![0; PAYLOAD];
        encode_volumes(&[Some(record)], &mut payload);
        decode_volumes(&payload).is_err()
    };
    assert!(refused(&|origin| origin.volume = VolumeId(4)), "of itself");
    assert!(refused(&|origin| origin.volume = VolumeId(0)), "of no volume");
}

#[test]
fn group_page_round_trip() {
    let mut records = vec![GroupRecord::free(); GROUPS_PER_PAGE as usize];
    records[3] = group();
    let mut block = vec![0; BLOCK];
    encode_groups(&records, payload_mut(&mut block));
    let version = PageVersion { generation: Generation(6), attempt: 3 };
    seal_page(&ID, version, &mut block);
    let (found, payload) = open_page(&ID, &block).expect("good");
    assert_eq!(found, version);
    assert_eq!(decode_groups(payload), Ok(records));
}

/// The last attempt of the newest transaction. Pages of the first attempt are what pages were
/// before attempts had numbers.
#[test]
fn versions_are_ordered_and_differ_in_the_digest() {
    let version = |g: u64, attempt| PageVersion { generation: Generation(g), attempt };
    let ordered = [version(6, 0), version(6, 1), version(6, 2), version(7, 0), version(7, 1)];
    assert!(ordered.is_sorted());
    let digests: BTreeSet<u64> = ordered.iter().map(|&v| page_digest(3, v)).collect();
    assert_eq!(digests.len(), ordered.len());
    assert_eq!(page_digest(3, Generation(6)), mix64(mix64(4) ^ 6));
    let mut block = vec![0; BLOCK];
    seal_page(&ID, Generation(6), &mut block);
    assert_eq!(block[40..56], [0; 16]);
}

#[test]
fn volume_page_round_trip() {
    let mut records = vec![None; VOLUMES_PER_PAGE as usize];
    records[20] = Some(volume());
    let mut payload = vec![0; PAYLOAD];
    encode_volumes(&records, &mut payload);
    assert_eq!(decode_volumes(&payload), Ok(records));
}

#[test]
fn staging_volume_round_trip() {
    let mut records = vec![None; VOLUMES_PER_PAGE as usize];
    let staged = Some((VolumeId(9), Epoch(7)));
    records[2] = Some(VolumeRecord { name: String::new(), staged, ..volume() });
    let mut payload = vec![0; PAYLOAD];
    encode_volumes(&records, &mut payload);
    let at = 2 * VOLUME + 112;
    assert_eq!(payload[at..at + 8], [9, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(decode_volumes(&payload), Ok(records));
    for (volume, epoch) in [(0, 7), (9, 0), (4, 7)] {
        payload[at] = volume;
        payload[at + 4] = epoch;
        assert!(decode_volumes(&payload).is_err(), "{volume} {epoch}");
    }
    payload[at..at + 8].fill(0);
    for (place, value) in [(24, 2), (25, 1), (52, 1), (55, 1)] {
        payload[at + place] = value;
        assert!(decode_volumes(&payload).is_err(), "flags or reserved: {place}");
        payload[at + place] = 0;
    }
}

#[test]
fn limit_round_trip() {
    let at = VOLUME + 120;
    for (bytes, iops) in [(7, 0), (0, 9), (7, 9)] {
        let mut records = vec![None; VOLUMES_PER_PAGE as usize];
        let limit = Some(VolumeLimit {
            iops: NonZeroU32::new(iops),
            bytes_per_second: NonZeroU64::new(bytes),
            burst_ms: NonZeroU32::MIN,
        });
        records[1] = Some(VolumeRecord { limit, read_only: iops == 0, ..volume() });
        let mut payload = vec![0; PAYLOAD];
        encode_volumes(&records, &mut payload);
        let want = [bytes as u8, 0, 0, 0, 0, 0, 0, 0, iops as u8, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(payload[at..at + 16], want);
        assert_eq!(decode_volumes(&payload), Ok(records));
        payload[at + 12] = 0;
        assert!(decode_volumes(&payload).is_err(), "a limit without a burst");
        payload[at..at + 16].fill(0);
        payload[at + 12] = 1;
        assert!(decode_volumes(&payload).is_err(), "a burst without a limit");
    }
}

#[test]
fn another_page_is_refused() {
    let mut block = vec![0; BLOCK];
    seal_page(&ID, Generation(6), &mut block);
    let other = |id: PageId| open_page(&id, &block).map(|_| ());
    assert!(matches!(
        other(PageId { page: 78, ..ID }),
        Err(FormatError::Unexpected { field: "number", .. })
    ));
    assert!(matches!(
        other(PageId { kind: PageKind::Bitmap, ..ID }),
        Err(FormatError::Unexpected { field: "kind", .. })
    ));
    assert!(matches!(
        other(PageId { pool_uuid: [4; 16], ..ID }),
        Err(FormatError::Unexpected { field: "pool", .. })
    ));
    assert!(matches!(other(ID.in_slot(0)), Err(FormatError::Unexpected { field: "slot", .. })));
    assert_eq!(open_page(&ID, &[0; BLOCK]).map(|_| ()), Err(FormatError::Checksum("page")));
    block[5] = 0;
    crate::seal::seal(&mut block);
    assert!(
        open_page(&ID, &block).is_ok() && open_page(&ID.in_slot(0), &block).is_ok(),
        "a page without a recorded slot"
    );
}

proptest! {
    #[test]
    fn bitmap_round_trip(
        len in 64usize..BITS_PER_PAGE as usize,
        set in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
    ) {
        let mut b = Bitmap::new(len);
        for i in set {
            b.assign(i.index(len), 1, true);
        }
        let mut payload = vec![0xff; PAYLOAD];
        encode_bitmap(b.words(), &mut payload);
        prop_assert_eq!(decode_bitmap(&payload, len), Ok(b.words().to_vec()));
        payload[PAYLOAD - 1] = 0x80;
        prop_assert!(decode_bitmap(&payload, len - 1).is_err());
    }

    #[test]
    fn hostile_payloads_never_panic(
        at in prop::collection::vec((0usize..PAYLOAD, any::<u8>()), 1..40),
    ) {
        let mut groups = vec![0; PAYLOAD];
        encode_groups(&vec![group(); GROUPS_PER_PAGE as usize], &mut groups);
        let mut volumes = vec![0; PAYLOAD];
        encode_volumes(&vec![Some(volume()); VOLUMES_PER_PAGE as usize], &mut volumes);
        for (i, b) in at {
            groups[i] = b;
            volumes[i] = b;
        }
        let _ = decode_groups(&groups);
        let _ = decode_volumes(&volumes);
    }
}
