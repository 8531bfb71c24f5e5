//! Round trips, and that no bytes make a parser panic or accept what it must not.

use proptest::prelude::*;

use super::option::{self, InfoRequest, MetaRequest, info};
use super::reply::{self, ChunkBody, ReplyHead};
use super::request::{Command, HEADER, Request, Terms, flag};
use super::{BadMagic, Errno, MAX_PAYLOAD};

fn request() -> impl Strategy<Value = Request> {
    let command = prop_oneof![
        Just(Command::Read),
        Just(Command::Write),
        Just(Command::Disc),
        Just(Command::Flush),
        Just(Command::Trim),
        Just(Command::Cache),
        Just(Command::WriteZeroes),
        Just(Command::BlockStatus),
        (8u16..).prop_map(Command::Unknown),
    ];
    let offset = prop_oneof![0u64..1 << 21, any::<u64>(), (0u64..4000).prop_map(|n| n * 512)];
    let len = prop_oneof![0u32..1 << 21, any::<u32>(), (0u32..4000).prop_map(|n| n * 512)];
    (0u16..64, command, any::<u64>(), offset, len).prop_map(
        |(flags, command, cookie, offset, len)| Request { flags, command, cookie, offset, len },
    )
}

const TERMS: Terms = Terms {
    min_block: 512,
    max_block: MAX_PAYLOAD,
    read_only: false,
    structured: true,
    block_status: true,
};

proptest! {
    #[test]
    fn requests_round_trip(r in request()) {
        prop_assert_eq!(Request::decode(&r.encode()), Ok(r));
    }

    #[test]
    fn any_other_magic_is_bad(r in request(), at in 0usize..4, x in 1u8..) {
        let mut bytes = r.encode();
        bytes[at] ^= x;
        prop_assert_eq!(Request::decode(&bytes), Err(BadMagic));
    }

    #[test]
    fn what_is_admitted_is_inside_and_aligned(
        r in request(),
        min in prop_oneof![Just(1u32), Just(512), Just(4096)],
        size in 0u64..1 << 21, read_only: bool, structured: bool, block_status: bool) {
        let terms = Terms { min_block: min, read_only, structured, block_status, ..TERMS };
        if terms.admit(&r, size).is_ok() && !matches!(r.command, Command::Flush | Command::Disc) {
            let len = u64::from(r.len);
            prop_assert!(len > 0 && r.offset + len <= size);
            prop_assert!(r.offset % u64::from(min) == 0 && r.len % min == 0);
            let changes =
                matches!(r.command, Command::Write | Command::Trim | Command::WriteZeroes);
            prop_assert!(!(changes && read_only));
            prop_assert!(!matches!(r.command, Command::Unknown(_)));
            prop_assert!(block_status || r.command != Command::BlockStatus);
            prop_assert!(structured || !r.has(flag::DF));
        }
    }

    #[test]
    fn parsers_bear_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind: u16) {
        let _ = ReplyHead::decode(&bytes);
        let _ = ChunkBody::decode(kind, &bytes);
        let _ = ChunkBody::decode(kind & 0x8007, &bytes);
        let _ = InfoRequest::parse(&bytes).map(|i| i.wants(kind));
        let _ = MetaRequest::parse(&bytes);
        if let Some(b) = bytes.first_chunk::<HEADER>() {
            let _ = Request::decode(b);
        }
        let _ = bytes.first_chunk().map(option::parse_option);
        let _ = bytes.first_chunk().map(option::parse_reply);
        let _ = bytes.first_chunk().map(option::parse_greeting);
    }

    #[test]
    fn info_and_meta_requests_round_trip_and_nothing_shorter_or_longer_does(
        name in "[a-zä]{0,20}",
        kinds in proptest::collection::vec(0u16..5, 0..5),
        queries in proptest::collection::vec("[a-z:]{0,9}", 0..4),
    ) {
        let bytes = option::info_request(&name, &kinds);
        let i = InfoRequest::parse(&bytes).expect("well formed");
        prop_assert_eq!(i.name, &name);
        (0..5).for_each(|k| assert_eq!(i.wants(k), kinds.contains(&k)));
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let meta = option::meta_request(&name, &queries);
        let parsed = MetaRequest::parse(&meta).expect("well formed");
        prop_assert_eq!(parsed, MetaRequest { name: &name, queries });
        for (b, parses) in [(&bytes, (|b| InfoRequest::parse(b).is_some()) as fn(&[u8]) -> bool),
            (&meta, |b| MetaRequest::parse(b).is_some())] {
            (0..b.len()).for_each(|n| assert!(!parses(&b[..n])));
            let mut longer = b.clone();
            longer.push(0);
            prop_assert!(!parses(&longer));
        }
    }
}

#[test]
fn replies_are_as_the_protocol_says_byte_by_byte() {
    let hex = |h: reply::Head| h.bytes().iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(reply::simple(0x0102, None)), "67446698000000000000000000000102");
    assert_eq!(hex(reply::simple(7, Some(Errno::NoSpc))), "674466980000001c0000000000000007");
    assert_eq!(
        hex(reply::data(7, 0x1000, 512)),
        "668e33ef000100010000000000000007000002080000000000001000"
    );
    assert_eq!(
        hex(reply::error(7, Errno::Io)),
        "668e33ef00018001000000000000000700000006000000050000"
    );
    assert_eq!(
        hex(reply::block_status(7, 2)),
        "668e33ef000100050000000000000007000000140000".to_owned() + "0001"
    );
}

#[test]
fn replies_decode_to_what_was_said() {
    let simple = reply::simple(9, Some(Errno::NotSup));
    let head = ReplyHead::Simple { cookie: 9, error: Some(Errno::NotSup) };
    assert_eq!(ReplyHead::decode(simple.bytes()), Ok(Some((head, reply::SIMPLE))));
    let data = reply::data(9, 512, 3);
    let head = ReplyHead::Chunk { cookie: 9, done: true, kind: 1, len: 11 };
    assert_eq!(ReplyHead::decode(data.bytes()), Ok(Some((head, reply::CHUNK))));
    (0..reply::CHUNK)
        .for_each(|n| assert_eq!(ReplyHead::decode(&data.bytes()[..n]), Ok(None), "{n} bytes"));
    let payload = [&data.bytes()[reply::CHUNK..], b"abc"].concat();
    assert_eq!(ChunkBody::decode(1, &payload), Some(ChunkBody::Data(512, b"abc")));
    let error = reply::error(9, Errno::Perm);
    assert_eq!(
        ChunkBody::decode(0x8001, &error.bytes()[reply::CHUNK..]),
        Some(ChunkBody::Error(Errno::Perm))
    );
    assert_eq!(ReplyHead::decode(b"nbd!"), Err(BadMagic));
}

#[test]
fn errors_are_those_of_the_protocol() {
    let r = Request { flags: 0, command: Command::Write, cookie: 1, offset: 4096, len: 4096 };
    let admit = |r: Request, size| TERMS.admit(&r, size);
    assert_eq!(admit(r, 8192), Ok(()));
    assert_eq!(admit(r, 8191), Err(Errno::NoSpc));
    assert_eq!(
        admit(Request { offset: u64::MAX - 511, len: 512, ..r }, u64::MAX),
        Err(Errno::NoSpc)
    );
    assert_eq!(admit(Request { command: Command::WriteZeroes, ..r }, 0), Err(Errno::NoSpc));
    assert_eq!(admit(Request { command: Command::Read, ..r }, 0), Err(Errno::Inval));
    assert_eq!(admit(Request { command: Command::Trim, ..r }, 0), Err(Errno::Inval));
    assert_eq!(admit(Request { offset: 4097, ..r }, 1 << 20), Err(Errno::Inval));
    assert_eq!(admit(Request { len: 0, ..r }, 1 << 20), Err(Errno::Inval));
    assert_eq!(admit(Request { len: MAX_PAYLOAD + 512, ..r }, 1 << 40), Err(Errno::Inval));
    // Lengths without payload have no other bound than the export.
    assert_eq!(admit(Request { command: Command::Trim, len: 3 << 30, ..r }, 1 << 40), Ok(()));
    assert_eq!(admit(Request { flags: flag::DF, ..r }, 8192), Err(Errno::Inval));
    for command in [Command::Read, Command::Flush, Command::Cache, Command::BlockStatus] {
        assert_eq!(admit(Request { command, flags: flag::FUA, ..r }, 8192), Ok(()), "{command:?}");
    }
    let read_only = Terms { read_only: true, ..TERMS };
    assert_eq!(read_only.admit(&r, 8192), Err(Errno::Perm));
    assert_eq!(Errno::from_wire(0), None);
    assert_eq!(Errno::from_wire(108), Some(Errno::Shutdown));
    assert_eq!(Errno::from_wire(4711), Some(Errno::Inval));
}

#[test]
fn names_that_are_too_long_are_refused() {
    let name = "x".repeat(super::MAX_STRING + 1);
    assert_eq!(InfoRequest::parse(&option::info_request(&name, &[info::NAME])), None);
}
