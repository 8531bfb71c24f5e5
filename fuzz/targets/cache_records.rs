//! Records of a cache: the bucket table's page, a bucket's summary, and the index, where the first byte is the key's length, then the key, then the value.
#![no_main]

use base::{BucketGen, BucketId, Generation};
use forebay_fuzz::block;
use format::cache::bucket::{RECORDS_PER_PAGE, decode_buckets, encode_buckets};
use format::cache::index::{
    IndexValue, MAX_EXTENT_BLOCKS, decode_key, encode_data, encode_part, encode_staged, encode_zeros, index_key,
};
use format::cache::summary::{SummaryOf, decode_summary, encode_summary};
use format::page::{PAYLOAD, PageId, PageKind, open_page, payload_mut, seal_page};
use format::seal::seal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = decode_buckets(data);
    let mut page = block(data);
    page.rotate_right(56);
    if let Ok(records) = decode_buckets(payload_mut(&mut page)) {
        assert_eq!(records.len(), RECORDS_PER_PAGE);
        let mut again = [0; PAYLOAD];
        encode_buckets(&records, &mut again);
        assert_eq!(&again[..], payload_mut(&mut page));
    }
    let id = PageId { pool_uuid: [7; 16], kind: PageKind::Buckets, page: 3, slot: 0 };
    let payload = payload_mut(&mut page).to_vec();
    seal_page(&id, Generation(9), &mut page);
    assert_eq!(open_page(&id, &page), Ok((Generation(9), &payload[..])));

    let of = SummaryOf { uuid: [7; 16], bucket: BucketId(3), generation: BucketGen(9) };
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

    let Some((&n, rest)) = data.split_first() else { return };
    let (key, value) = rest.split_at(usize::from(n).min(rest.len()));
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
            encode_part(&mut again, epoch, (addr, generation), &cover, crc);
        }
        None => return,
    }
    assert_eq!(again, value);
});
