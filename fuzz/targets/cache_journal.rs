//! Journal entries of a cache: as they come, and as records behind a header and a checksum that are right.
#![no_main]

use base::{BLOCK, crc32c};
use format::cache::journal::{EntryBuilder, EntryHeader, MAX_ENTRY_BLOCKS, decode_entry};
use libfuzzer_sys::fuzz_target;

const HEADER: EntryHeader = EntryHeader { uuid: [7; 16], incarnation: 3, sequence: 9, durable: 8 };
const HEAD: usize = 64;
const CRC: std::ops::Range<usize> = 56..60;

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

fuzz_target!(|data: &[u8]| {
    let decode = |bytes: &[u8]| decode_entry(bytes, &HEADER.uuid, HEADER.incarnation, HEADER.sequence);
    let _ = decode(data);
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
});
