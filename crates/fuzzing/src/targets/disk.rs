//! Structures of the pool.

use base::checksum::crc32c_parts;
use base::{Bitmap, Generation, PoolAddr, crc32c};
use format::node::{NodePtr, NodeRef, decode};
use format::page::{
    BITS_PER_PAGE, PAYLOAD, PageId, PageKind, PageVersion, decode_bitmap, decode_groups,
    decode_volumes, encode_bitmap, encode_groups, encode_volumes, open_page, payload_mut,
    seal_page,
};
use format::places::{self, Place, PlaceKind, Places};
use format::records::{Checksums, MappedExtent, encode_checksums, mapping_key};
use format::seal::seal;
use format::superblock::Superblock;

use super::{block, word};

/// The superblock: as it comes, and with magic and seal put right.
pub fn superblock(data: &[u8]) {
    drop(Superblock::decode(data));
    let mut bytes = block(data);
    bytes[..8].copy_from_slice(b"FOREBAY1");
    seal(&mut bytes);
    if let Ok(sb) = Superblock::decode(&bytes) {
        let mut again = block(&[]);
        sb.encode(&mut again);
        assert_eq!(Superblock::decode(&again), Ok(sb));
    }
}

/// The record of places: as it comes, and with magic, version, length and checksum put right.
pub fn places(data: &[u8]) {
    drop(Places::decode(data));
    let mut bytes = data.to_vec();
    if bytes.len() < 48 || bytes.len() > places::SLOT_BYTES {
        return;
    }
    bytes[..8].copy_from_slice(b"FBPLACES");
    bytes[8..12].copy_from_slice(&1u32.to_le_bytes());
    let len = (bytes.len() as u32).to_le_bytes();
    bytes[12..16].copy_from_slice(&len);
    let crc = crc32c_parts(&[&bytes[..44], &bytes[48..]]);
    bytes[44..48].copy_from_slice(&crc.to_le_bytes());
    if let Ok(record) = Places::decode(&bytes) {
        let mut again = vec![0; places::SLOT_BYTES];
        record.encode(&mut again);
        assert_eq!(Places::decode(&again), Ok(record));
    }
}

/// Records of places.
pub fn some_places() -> Vec<Vec<u8>> {
    let row = |kind, path: &[u8]| Place { kind, uuid: [3; 16], path: path.to_vec() };
    let rows = vec![
        row(PlaceKind::Device, b"/dev/disk/by-id/x"),
        row(PlaceKind::Device, b"/srv/b.img"),
        row(PlaceKind::Cache, b"/fast/c"),
        row(PlaceKind::NoCache, b""),
    ];
    let one = |rows| {
        let mut bytes = vec![0; places::SLOT_BYTES];
        Places { pool_uuid: [1; 16], sequence: 5, rows }.encode(&mut bytes);
        let len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        bytes.truncate(len);
        bytes
    };
    vec![one(rows), one(Vec::new())]
}

/// Pages: the header as it comes and sealed, the payloads of all kinds.
pub fn page(data: &[u8]) {
    let mut bytes = block(data);
    let mut pool_uuid = [0; 16];
    pool_uuid.copy_from_slice(&bytes[24..40]);
    for kind in [PageKind::Volumes, PageKind::Groups, PageKind::Bitmap] {
        let id = PageId { pool_uuid, kind, page: word(&bytes, 8), slot: bytes[5] & 1 };
        let _ = open_page(&id, data);
        seal(&mut bytes);
        let _ = open_page(&id, &bytes);
        let mut sealed = bytes;
        let generation = Generation(word(&bytes, 16));
        let version = PageVersion { generation, attempt: word(&bytes, 40) as u32 };
        seal_page(&id, version, &mut sealed);
        assert_eq!(open_page(&id, &sealed).expect("sealed").0, version);
    }
    let payload = payload_mut(&mut bytes).to_vec();
    let mut again = [0; PAYLOAD];
    if let Ok(records) = decode_groups(&payload) {
        encode_groups(&records, &mut again);
        assert_eq!(decode_groups(&again), Ok(records));
    }
    if let Ok(records) = decode_volumes(&payload) {
        encode_volumes(&records, &mut again);
        assert_eq!(decode_volumes(&again), Ok(records));
    }
    for bits in [64, 256, 4096, BITS_PER_PAGE as usize] {
        if let Ok(words) = decode_bitmap(&payload, bits) {
            encode_bitmap(&words, &mut again);
            assert_eq!(decode_bitmap(&again, bits).as_ref(), Ok(&words));
            Bitmap::new(bits).set_words(0, &words);
        }
    }
}

/// Nodes: what is expected of a node is taken from its own header, so that only its structure is in
/// question.
pub fn node(data: &[u8]) {
    let mut bytes = block(data);
    bytes[..4].copy_from_slice(b"FBnd");
    // A reference that is not the node's own is refused, whatever the bytes are.
    let ptr = NodePtr { addr: PoolAddr(1), generation: Generation(1), crc: 1 };
    let _ = decode(data, &NodeRef { ptr, level: 0, tree: 1 });
    let ptr = NodePtr {
        addr: PoolAddr(word(&bytes, 32)),
        generation: Generation(word(&bytes, 24)),
        crc: crc32c(&bytes),
    };
    let expected = NodeRef { ptr, level: bytes[4], tree: word(&bytes, 16) };
    let Ok(page) = decode(&bytes, &expected) else { return };
    let inner = page.level() > 0;
    for i in 0..page.count() {
        let key = page.key(i);
        let _ = page.value(i);
        if inner {
            assert!(page.pointer(i).generation <= ptr.generation);
            assert_eq!(page.child_of(&key), i);
        } else {
            assert_eq!(page.search(&key), Ok(i));
        }
    }
    let mut again = block(&[]);
    let crc = page.seal(expected.tree, ptr.generation, ptr.addr, &mut again);
    let expected = NodeRef { ptr: NodePtr { crc, ..ptr }, ..expected };
    assert!(decode(&again, &expected).is_ok());
}

/// Records of the pool's trees: the first byte is the key's length, then the key, then the value.
pub fn records(data: &[u8]) {
    let Some((&n, rest)) = data.split_first() else { return };
    let (key, value) = rest.split_at(usize::from(n).min(rest.len()));
    if let Some(e) = MappedExtent::decode(key, value) {
        assert_eq!(MappedExtent::decode(&mapping_key(e.lba), &e.value()), Some(e));
    }
    if let Some(r) = Checksums::decode(key, value) {
        let mut again = Vec::new();
        encode_checksums(&mut again, r.volume, r.lba, (0..r.len()).filter_map(|i| r.crc(i)));
        assert_eq!(again, value);
        assert_eq!(r.crc(r.len()), None);
    }
}
