//! Structures of a cache.

use base::{
    BLOCK, BucketGen, BucketId, CacheAddr, EntrySeq, Epoch, Generation, Lba, OpenId, Sectors,
    VolumeId, crc32c,
};
use format::cache::bucket::{
    BucketKind, BucketRecord, RECORDS_PER_PAGE, decode_buckets, encode_buckets,
};
use format::cache::index::{
    Cover, IndexValue, MAX_EXTENT_BLOCKS, decode_key, encode_data, encode_part, encode_staged,
    encode_zeros, index_key,
};
use format::cache::journal::{
    EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, Record, blocks_of, decode_entry, sequence_of,
};
use format::cache::moved::MovedPages;
use format::cache::pool_seen::{PoolOpens, PoolSeen};
use format::cache::summary::{SummaryOwner, decode_summary, encode_summary};
use format::cache::superblock::{CacheState, CacheSuperblock};
use format::cache::watermark::Watermark;
use format::page::{PAYLOAD, PageId, PageKind, open_page, payload_mut, seal_page};
use format::seal::seal;

use super::block;

const UUID: [u8; 16] = [7; 16];
const HEADER: EntryHeader = EntryHeader {
    uuid: UUID,
    incarnation: 3,
    sequence: EntrySeq(9),
    durable: EntrySeq(8),
    pool_seen: PoolSeen { entry: EntrySeq(5), published: base::Epoch(5) },
};
/// The header of an entry of the journal: its length, its checksum, its counts.
const HEAD: usize = 64;
const CRC: std::ops::Range<usize> = 56..60;

/// The superblock of a cache: as it comes, and with magic and seal put right.
pub fn superblock(data: &[u8]) {
    drop(CacheSuperblock::decode(data));
    let mut bytes = block(data);
    bytes[..8].copy_from_slice(b"FBCACHE1");
    seal(&mut bytes);
    if let Ok(sb) = CacheSuperblock::decode(&bytes) {
        let mut again = block(&[]);
        sb.encode(&mut again);
        assert_eq!(CacheSuperblock::decode(&again), Ok(sb));
    }
}

/// Seeds of [`superblock`].
pub fn superblocks() -> Vec<Vec<u8>> {
    let sb = CacheSuperblock {
        uuid: UUID,
        pool_uuid: [8; 16],
        sequence: 5,
        incarnation: 3,
        generation: Generation(9),
        root: None,
        bucket_blocks: 128,
        bucket_count: 1000,
        table_start: 32,
        journal_start: 64,
        journal_blocks: 1024,
        replay_position: 7,
        replay_sequence: EntrySeq(8),
        epoch: Epoch(4),
        cut: Epoch(3),
        table_digest: 11,
        staged: (0, 0),
        counted_from: Epoch(0),
        pool_seen: PoolSeen { entry: EntrySeq(2), published: base::Epoch(2) },
        opens: PoolOpens { opened: OpenId(3), named: OpenId(2) },
        moved: MovedPages::default(),
        state: CacheState::Attached,
        shard: 0,
    };
    let mut bytes = block(&[]);
    sb.encode(&mut bytes);
    vec![bytes.to_vec()]
}

/// The watermark: as it comes, and with magic and seal put right.
pub fn watermark(data: &[u8]) {
    let _ = Watermark::decode(data);
    let mut bytes = block(data);
    bytes[..8].copy_from_slice(b"FBWATER1");
    seal(&mut bytes);
    let mark = Watermark::decode(&bytes);
    let mut again = block(&[]);
    mark.as_ref().expect("any sealed block is a watermark").encode(&mut again);
    assert_eq!(Watermark::decode(&again), mark);
}

/// Seeds of [`watermark`].
pub fn watermarks() -> Vec<Vec<u8>> {
    let mut bytes = block(&[]);
    Watermark { uuid: UUID, incarnation: 3, durable: EntrySeq(8) }.encode(&mut bytes);
    vec![bytes.to_vec()]
}

/// An entry with the bytes of `records`, whatever they are, that claims to have `count` of them.
fn entry_of(records: &[u8], count: u8) -> Vec<u8> {
    let mut out = vec![0; BLOCK];
    EntryBuilder::new(MAX_ENTRY_BLOCKS).seal(&HEADER, &mut out);
    out.resize((HEAD + records.len()).next_multiple_of(BLOCK), 0);
    out[HEAD..HEAD + records.len()].copy_from_slice(records);
    out[40..44].copy_from_slice(&(records.len() as u32).to_le_bytes());
    out[44..48].copy_from_slice(&u32::from(count).to_le_bytes());
    out[CRC].fill(0);
    let crc = crc32c(&out);
    out[CRC].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Entries of the journal: as they come, and as records (after their number, a byte) behind a
/// header and a checksum that are right.
pub fn journal(data: &[u8]) {
    let decode =
        |bytes: &[u8]| decode_entry(bytes, &HEADER.uuid, HEADER.incarnation, HEADER.sequence);
    drop(decode(data));
    let _ = sequence_of(data);
    let _ = blocks_of(data, &HEADER.uuid, HEADER.incarnation, HEADER.sequence);
    let Some((&count, records)) = data.split_first() else { return };
    let bytes = entry_of(records, count);
    let Ok(entry) = decode(&bytes) else { return };
    let mut builder = EntryBuilder::new(MAX_ENTRY_BLOCKS);
    for record in entry.records() {
        assert!(builder.push(&record));
    }
    assert_eq!((builder.records(), builder.blocks()), (count.into(), entry.blocks()));
    let mut again = vec![0xff; builder.blocks() as usize * BLOCK];
    builder.seal(&HEADER, &mut again);
    assert_eq!(again, bytes);
}

/// Seeds of [`journal`].
pub fn some_entries() -> Vec<Vec<u8>> {
    let values = values();
    let inserts = values.iter().zip(1..).map(|(value, n)| Record::Insert {
        volume: VolumeId(n),
        lba: Lba(8 * u64::from(n)),
        value,
    });
    let others = [
        Record::Raise { bucket: BucketId(3), generation: BucketGen(4) },
        Record::Remove { volume: VolumeId(1), lba: Lba(16), len: 8 },
    ];
    let all: Vec<_> = inserts.chain(others).collect();
    let seed = |records: &[Record<'_>]| {
        let mut builder = EntryBuilder::new(MAX_ENTRY_BLOCKS);
        let count = records.iter().filter(|record| builder.push(record)).count();
        let mut bytes = vec![0; builder.blocks() as usize * BLOCK];
        builder.seal(&HEADER, &mut bytes);
        let len = u32::from_le_bytes([bytes[40], bytes[41], bytes[42], bytes[43]]) as usize;
        let mut seed = vec![count as u8];
        seed.extend_from_slice(&bytes[HEAD..HEAD + len]);
        seed
    };
    all.iter().map(std::slice::from_ref).chain([&all[..]]).map(seed).collect()
}

/// Records of a cache: the bucket table's page, a bucket's summary, and the index, where the first
/// byte is the key's length, then the key, then the value.
pub fn records(data: &[u8]) {
    drop(decode_buckets(data));
    let mut page = block(data);
    page.rotate_right(56);
    if let Ok(records) = decode_buckets(payload_mut(&mut page)) {
        assert_eq!(records.len(), RECORDS_PER_PAGE);
        let mut again = [0; PAYLOAD];
        encode_buckets(&records, &mut again);
        assert_eq!(&again[..], payload_mut(&mut page));
    }
    let id = PageId { pool_uuid: UUID, kind: PageKind::Buckets, page: 3, slot: 0 };
    let payload = payload_mut(&mut page).to_vec();
    seal_page(&id, Generation(9), &mut page);
    assert_eq!(open_page(&id, &page), Ok((Generation(9).into(), &payload[..])));
    summary(data);
    if let Some((&n, rest)) = data.split_first() {
        let (key, value) = rest.split_at(usize::from(n).min(rest.len()));
        index(key, value);
    }
}

fn summary(data: &[u8]) {
    let of = SummaryOwner { uuid: UUID, bucket: BucketId(3), generation: BucketGen(9) };
    let mut head = block(&[]);
    encode_summary(&of, &[], &mut head);
    let mut summary = block(data);
    summary.rotate_right(34);
    summary[..34].copy_from_slice(&head[..34]);
    seal(&mut summary);
    if let Ok(keys) = decode_summary(&of, &summary) {
        let mut again = block(&[]);
        encode_summary(&of, &keys, &mut again);
        assert_eq!(decode_summary(&of, &again), Ok(keys));
    }
}

fn index(key: &[u8], value: &[u8]) {
    if let Some((volume, lba)) = decode_key(key) {
        assert_eq!(index_key(volume, lba), key);
    }
    let mut again = Vec::new();
    match IndexValue::decode(value) {
        Some(IndexValue::Data { dirty, epoch, addr, generation, crcs }) => {
            let crcs: Vec<_> = crcs.iter().collect();
            assert!((1..=MAX_EXTENT_BLOCKS).contains(&crcs.len()) && dirty == (epoch.0 > 0));
            encode_data(&mut again, epoch, addr, generation, &crcs);
        }
        Some(IndexValue::Zeros { epoch, len }) => encode_zeros(&mut again, epoch, len),
        Some(IndexValue::Staged { epoch, crcs }) => {
            encode_staged(&mut again, epoch, &crcs.iter().collect::<Vec<_>>());
        }
        Some(IndexValue::Part { epoch, addr, generation, cover, crc }) => {
            encode_part(&mut again, epoch, addr, generation, &cover, crc);
        }
        None => return,
    }
    assert_eq!(again, value);
}

/// A value of each kind.
fn values() -> Vec<Vec<u8>> {
    let (addr, generation) = (CacheAddr(99), BucketGen(4));
    let mut all = vec![Vec::new(); 4];
    encode_data(&mut all[0], Epoch(4), addr, generation, &[1, 2, 3]);
    encode_zeros(&mut all[1], Epoch(4), 8);
    encode_staged(&mut all[2], Epoch(4), &[5, 6]);
    let cover = Cover { sectors: Sectors::from_bits(0b1110), below: None };
    encode_part(&mut all[3], Epoch(4), addr, generation, &cover, 7);
    all
}

/// Seeds of [`records`].
pub fn some_records() -> Vec<Vec<u8>> {
    let key = index_key(VolumeId(1), Lba(77));
    let of_index = values().into_iter().map(|value| {
        let mut seed = vec![key.len() as u8];
        seed.extend_from_slice(&key);
        seed.extend(value);
        seed
    });
    let bucket = BucketRecord { kind: BucketKind::Data, live: 3, ..BucketRecord::default() };
    let mut payload = [0; PAYLOAD];
    encode_buckets(&[bucket; 5], &mut payload);
    let of = SummaryOwner { uuid: UUID, bucket: BucketId(3), generation: BucketGen(9) };
    let mut summary = block(&[]);
    encode_summary(&of, &[Some((VolumeId(1), Lba(77))), None], &mut summary);
    of_index.chain([payload.to_vec(), summary[34..].to_vec()]).collect()
}
