use super::*;
use crate::cache::index::{encode_data, encode_staged, encode_zeros};
use base::CacheAddr;
use proptest::prelude::*;

const HEADER: EntryHeader = EntryHeader {
    uuid: [7; 16],
    incarnation: 3,
    sequence: EntrySeq(9),
    durable: EntrySeq(8),
    pool_seen: PoolSeen { entry: EntrySeq(5), published: base::Epoch(5) },
};

fn values() -> Vec<Vec<u8>> {
    let mut a = Vec::new();
    encode_data(&mut a, Epoch(4), CacheAddr(77), BucketGen(2), &[1, 2, 3]);
    let mut b = Vec::new();
    encode_zeros(&mut b, Epoch(4), 1 << 30);
    let mut c = Vec::new();
    encode_staged(&mut c, Epoch(5), &[4, 5]);
    vec![a, b, c]
}

fn sealed(records: &[Record<'_>]) -> Vec<u8> {
    let mut builder = EntryBuilder::new(MAX_ENTRY_BLOCKS);
    records.iter().for_each(|r| assert!(builder.push(r)));
    let mut out = vec![0; builder.blocks() as usize * BLOCK];
    builder.seal(&HEADER, &mut out);
    out
}

fn read(bytes: &[u8]) -> Result<Entry, FormatError> {
    decode_entry(bytes, &HEADER.uuid, HEADER.incarnation, HEADER.sequence)
}

#[test]
fn round_trip_and_every_flipped_bit() {
    let values = values();
    let volume = VolumeId(5);
    let records = [
        Record::Epoch { epoch: Epoch(4) },
        Record::Insert { volume, lba: Lba(10), value: &values[0] },
        Record::Raise { bucket: BucketId(3), generation: BucketGen(9) },
        Record::Insert { volume, lba: Lba(1 << 37), value: &values[1] },
        Record::Insert { volume, lba: Lba(20), value: &values[2] },
        Record::Remove { volume, lba: Lba(0), len: 1 << 38 },
    ];
    let mut out = sealed(&records);
    let entry = read(&out).unwrap();
    assert_eq!(entry.records().collect::<Vec<_>>(), records);
    assert_eq!((entry.sequence, entry.durable, entry.blocks()), (EntrySeq(9), EntrySeq(8), 1));
    for bit in 0..BLOCK * 8 {
        out[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&out).is_err(), "bit {bit}");
        out[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(decode_entry(&out, &[8; 16], 3, EntrySeq(9)).is_err());
    assert!(decode_entry(&out, &[7; 16], 2, EntrySeq(9)).is_err());
    assert!(decode_entry(&out, &[7; 16], 3, EntrySeq(10)).is_err());
}

#[test]
fn an_entry_with_a_missing_block_is_refused() {
    let value = &values()[0];
    let mut builder = EntryBuilder::new(MAX_ENTRY_BLOCKS);
    let mut n = 0;
    while builder.push(&Record::Insert { volume: VolumeId(1), lba: Lba(n), value }) {
        n += 1;
    }
    assert_eq!(builder.blocks(), MAX_ENTRY_BLOCKS);
    let mut out = vec![0; builder.blocks() as usize * BLOCK];
    builder.seal(&HEADER, &mut out);
    assert_eq!(read(&out).unwrap().records().count() as u64, n);
    for block in 0..MAX_ENTRY_BLOCKS as usize {
        let mut torn = out.clone();
        torn[block * BLOCK..][..BLOCK].fill(0);
        assert!(read(&torn).is_err(), "block {block}");
        assert!(read(&out[..block * BLOCK]).is_err());
    }
}

proptest! {
    #[test]
    fn invalid_records_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 1..200),
        records in 0u32..4,
    ) {
        // The checksum is right, as if a faulty program had written the entry.
        let builder = EntryBuilder { bytes, records, most: CAPACITY };
        let mut out = vec![0; builder.blocks() as usize * BLOCK];
        builder.seal(&HEADER, &mut out);
        if let Ok(entry) = read(&out) {
            prop_assert_eq!(entry.records().count() as u32, records);
        }
    }
}
