use format::page::{PageId, PageKind};

use super::*;

const SIZE: u64 = 64 << 20;
const EDGE: u64 = format::edges::EDGE_BYTES;

fn device(pieces: &[(u64, &[u8])]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    for (at, bytes) in pieces {
        file.write_all_at(bytes, *at).unwrap();
    }
    file
}

fn held(file: &File) -> String {
    match by_bytes(file, SIZE) {
        Content::Data(what) => what,
        other => format!("{other:?}"),
    }
}

/// The block of a superblock of a cache.
fn cache_block(sequence: u64, state: CacheState) -> Vec<u8> {
    let sb = CacheSuperblock {
        uuid: [1; 16],
        pool_uuid: [2; 16],
        sequence,
        incarnation: 3,
        generation: base::Generation(1),
        root: None,
        bucket_blocks: 128,
        bucket_count: 64,
        table_start: 32,
        journal_start: 64,
        journal_blocks: 256,
        replay_position: 0,
        replay_sequence: base::EntrySeq(1),
        epoch: base::Epoch(1),
        cut: base::Epoch(0),
        staged: (0, 0),
        counted_from: base::Epoch(1),
        pool_seen: Default::default(),
        opens: Default::default(),
        moved: Default::default(),
        table_digest: 0,
        state,
        shard: 0,
    };
    let mut block = vec![0; BLOCK];
    sb.encode(&mut block);
    block
}

fn cache_at(file: &File, state: CacheState) {
    for sequence in 0..cache::SLOTS {
        let at = CacheSuperblock::offset_of(sequence);
        file.write_all_at(&cache_block(sequence, state), at).unwrap();
    }
}

#[test]
fn whatever_is_not_zeros_in_the_edges_is_data_until_it_is_cleared() {
    assert_eq!(held(&device(&[])), "Empty");
    let text = b"Dear diary";
    for at in [0, 1, 511, 0x10040, 4 << 20, EDGE - 1, SIZE - EDGE, SIZE - 8192, SIZE - 10] {
        let file = device(&[(at, &text[..text.len().min((SIZE - at) as usize)])]);
        assert_eq!(held(&file), format!("data: it is not zeros at byte {at}"));
        assert!(look(&file, SIZE).data().is_some());
        clear(&file, SIZE).unwrap();
        assert_eq!(look(&file, SIZE), Content::Empty, "after it was cleared at {at}");
    }
    // Small ones are looked at whole, to the last byte.
    let small = tempfile::tempfile().unwrap();
    small.write_all_at(b"x", 5000).unwrap();
    assert_eq!(by_bytes(&small, 5001), Content::Data("data: it is not zeros at byte 5000".into()));
    clear(&small, 5001).unwrap();
    assert_eq!((by_bytes(&small, 5001), small.metadata().unwrap().len()), (Content::Empty, 5001));
    assert_eq!(by_bytes(&tempfile::tempfile().unwrap(), 0), Content::Empty);
}

#[test]
fn what_cannot_be_read_is_not_empty() {
    let dir = File::open(tempfile::tempdir().unwrap().path()).unwrap();
    assert!(held(&dir).starts_with("what cannot be read at byte 0: "), "{}", held(&dir));
}

#[test]
fn what_forebay_wrote_has_its_name() {
    for (at, magic, what) in [
        (0x10000, FOREBAY, "a Forebay pool whose superblocks are all damaged"),
        (0x40000, FOREBAY, "a Forebay pool whose superblocks are all damaged"),
        (0x4000, FOREBAY_CACHE, "a Forebay cache whose superblocks are all damaged"),
        (1 << 20, PAGE, "what is left of a Forebay pool or cache"),
        ((1 << 20) + 4096, PAGE, "what is left of a Forebay pool or cache"),
    ] {
        assert_eq!(held(&device(&[(at, magic)])), what, "at {at}");
    }
    let file = device(&[]);
    cache_at(&file, CacheState::Attached);
    assert_eq!(held(&file), "a Forebay cache");
}

/// A disk whose cache was detached may have got a file system since, which leaves superblocks where
/// they are.
#[test]
fn a_detached_cache_is_spent_and_what_was_written_since_is_data() {
    let file = device(&[]);
    cache_at(&file, CacheState::Detached);
    assert_eq!(look(&file, SIZE), Content::Spent);
    file.write_all_at(&cache_block(1, CacheState::Attached), CacheSuperblock::offset_of(1))
        .unwrap();
    assert!(matches!(look(&file, SIZE), Content::Data(_)), "one slot says otherwise");
    for at in [0, 0x5000, 1 << 20, SIZE - 512] {
        cache_at(&file, CacheState::Detached);
        file.write_all_at(b"data", at).unwrap();
        assert_eq!(held(&file), "what is left of a Forebay cache that was detached", "{at}");
        clear(&file, SIZE).unwrap();
        assert_eq!(look(&file, SIZE), Content::Empty);
    }
}

/// A crash while a cache was being made leaves its tables without a superblock.
#[test]
fn the_tables_of_a_new_cache_are_spent() {
    let page_of = |slot, used: bool| {
        let mut block = vec![0; BLOCK];
        page::payload_mut(&mut block)[5] = used.into();
        let id = PageId { pool_uuid: [3; 16], kind: PageKind::Buckets, page: 0, slot };
        page::seal_page(&id, base::Generation(1), &mut block);
        block
    };
    let file = device(&[(0x20000, &page_of(0, false)), (0x21000, &page_of(1, false))]);
    assert_eq!(look(&file, SIZE), Content::Spent);
    file.write_all_at(&page_of(1, true), 0x21000).unwrap();
    assert!(matches!(look(&file, SIZE), Content::Data(_)));
}

#[test]
fn blkid_gives_names() {
    for (said, what) in [
        ("TYPE=ext4\nUSAGE=filesystem\n", Some("a file system (ext4)")),
        (
            "USAGE=raid\nTYPE=LVM2_member\n",
            Some("a member of a RAID or a volume group (LVM2_member)"),
        ),
        ("TYPE=crypto_LUKS\nUSAGE=crypto\n", Some("an encrypted device (crypto_LUKS)")),
        ("TYPE=swap\nUSAGE=other\n", Some("something that blkid calls swap")),
        ("PTUUID=1\nPTTYPE=gpt\n", Some("a partition table (gpt)")),
        ("DEVNAME=/dev/stdin\n", None),
        ("", None),
    ] {
        assert_eq!(described(said).as_deref(), what);
    }
}
