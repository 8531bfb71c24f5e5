//! The NBD protocol, both sides. The transmission phase of whole connections is fuzzed in the
//! simulator (`crates/nbd/tests/server/fuzz.rs`).

use base::{Slice, SliceList, VolumeId};
use nbd::codec::option::{
    GREETING, InfoRequest, MAX_OPTION, MetaRequest, OPTION, REPLY, greeting, info_request,
    meta_request, opt, parse_greeting, parse_option, parse_reply, put_option, put_reply, rep,
};
use nbd::codec::reply::{ChunkBody, Head, ReplyHead, block_status, data, error, simple};
use nbd::codec::request::{Command, Request, Terms};
use nbd::handshake::{Encryption, Handshake, NextStep};
use nbd::{BlockStatus, Errno, Export, ExportInfo, Exports, Peer, Proof, ZeroOpts};

/// What a server reads: options and requests.
pub fn server(data: &[u8]) {
    let _ = InfoRequest::parse(data).map(|i| i.wants(3));
    drop(MetaRequest::parse(data));
    if let Some(head) = data.first_chunk() {
        let _ = parse_option(head);
    }
    let Some(header) = data.first_chunk() else { return };
    let Ok(request) = Request::decode(header) else { return };
    assert_eq!(Request::decode(&request.encode()), Ok(request));
    let ranged = !matches!(request.command, Command::Flush | Command::Disc);
    for min_block in [1, 512, 4096] {
        for flags in 0..8 {
            let (read_only, structured, block_status) =
                (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
            let terms =
                Terms { min_block, max_block: 32 << 20, read_only, structured, block_status };
            for size in [0, 4096, 1 << 30, u64::MAX] {
                if ranged && terms.admit(&request, size).is_ok() {
                    let end = request.offset.checked_add(u64::from(request.len));
                    assert!(end.is_some_and(|end| end <= size));
                }
            }
        }
    }
}

/// Seeds of [`server`].
pub fn requests() -> Vec<Vec<u8>> {
    use Command::{BlockStatus, Cache, Disc, Flush, Read, Trim, Write, WriteZeroes};
    let commands = [Read, Write, Disc, Flush, Trim, Cache, WriteZeroes, BlockStatus];
    let request =
        |command| Request { flags: 0, command, cookie: 7, offset: 4096, len: 4096 }.encode();
    let mut all: Vec<Vec<u8>> = commands.map(|c| request(c).to_vec()).into();
    all.push(info_request("vol0", &[0, 1, 3]));
    all.push(meta_request("vol0", &["base:allocation"]));
    all
}

/// An export without data.
#[derive(Clone)]
struct EmptyExport;

impl Export for EmptyExport {
    fn info(&self) -> ExportInfo {
        ExportInfo {
            name: "vol0".into(),
            description: "for the fuzzer".into(),
            min_block: 512,
            preferred_block: 4096,
            max_block: 32 << 20,
            read_only: true,
        }
    }
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn volume(&self) -> VolumeId {
        VolumeId(0)
    }
    async fn admit(&self, _bytes: u64, _fills: bool) -> EmptyExport {
        EmptyExport
    }
    fn rest(&self) {}
    async fn go_on(&self) {}
    async fn read(&self, _offset: u64, _len: u32) -> Result<SliceList, Errno> {
        Err(Errno::Io)
    }
    async fn write(&self, _offset: u64, _data: Slice, _fua: bool) -> Result<(), Errno> {
        Err(Errno::Io)
    }
    async fn flush(&self) -> Result<(), Errno> {
        Err(Errno::Io)
    }
    async fn trim(&self, _offset: u64, _len: u64, _fua: bool) -> Result<(), Errno> {
        Err(Errno::Io)
    }
    async fn write_zeroes(&self, _offset: u64, _len: u64, _opts: ZeroOpts) -> Result<(), Errno> {
        Err(Errno::Io)
    }
    async fn cache(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::Io)
    }
    async fn block_status(
        &self,
        _offset: u64,
        _len: u64,
        _max_extents: usize,
    ) -> Result<Vec<BlockStatus>, Errno> {
        Err(Errno::Io)
    }
}

struct SingleExport;

impl Exports for SingleExport {
    type Export = EmptyExport;
    fn open(&self, name: &str, _peer: Option<&Peer>) -> Option<EmptyExport> {
        ["", "vol0"].contains(&name).then_some(EmptyExport)
    }
    fn list(&self, _peer: Option<&Peer>) -> Vec<(String, String)> {
        vec![("vol0".into(), "for the fuzzer".into())]
    }
}

/// A client's side of the handshake: what it may have of TLS (a byte), its flags, its options.
pub fn handshake(data: &[u8]) {
    let Some((&tls, rest)) = data.split_first() else { return };
    let Some((flags, mut rest)) = rest.split_first_chunk() else { return };
    let peer =
        || Peer { version: "TLSv1.3", cipher: "c", proof: Proof::Key, names: vec!["vm1".into()] };
    let encryption = match tls % 4 {
        0 => Encryption::Absent,
        1 => Encryption::Offered,
        2 => Encryption::Required,
        _ => Encryption::Done(peer()),
    };
    let must = encryption == Encryption::Required;
    let Some(mut handshake) = Handshake::new(u32::from_be_bytes(*flags), encryption) else {
        return;
    };
    while let Some((head, after)) = rest.split_first_chunk::<OPTION>() {
        let Ok((option, len)) = parse_option(head) else { return };
        let mut out = Vec::new();
        if len > MAX_OPTION {
            Handshake::too_long(option, &mut out);
            return assert!(!out.is_empty());
        }
        let (data, after) = after.split_at(after.len().min(len as usize));
        rest = after;
        match handshake.option(&SingleExport, option, data, &mut out) {
            NextStep::Again => assert!(!out.is_empty(), "option {option} has no answer"),
            NextStep::Close => return,
            NextStep::Secure => {
                assert!(handshake.peer().is_none(), "TLS in TLS");
                handshake.secured(peer());
            }
            NextStep::Start(_, terms) => {
                assert!(!must || handshake.peer().is_some(), "served without TLS");
                return assert!(terms.read_only);
            }
        }
    }
}

/// Seeds of [`handshake`].
pub fn handshakes() -> Vec<Vec<u8>> {
    let meta = meta_request("vol0", &["base:allocation", "base:"]);
    let options: [(u32, &[u8]); 9] = [
        (opt::STARTTLS, &[]),
        (opt::LIST, &[]),
        (opt::STRUCTURED_REPLY, &[]),
        (opt::EXTENDED_HEADERS, &[]),
        (opt::LIST_META_CONTEXT, &meta),
        (opt::SET_META_CONTEXT, &meta),
        (opt::INFO, &info_request("vol0", &[0, 1, 2, 3])),
        (opt::GO, &info_request("", &[])),
        (opt::ABORT, &[]),
    ];
    let seed = |tls: u8, last: u32| {
        let mut seed = vec![tls, 0, 0, 0, 3];
        options.iter().for_each(|(option, data)| put_option(&mut seed, *option, data));
        put_option(&mut seed, last, b"vol0");
        seed
    };
    (0..4).map(|tls| seed(tls, opt::EXPORT_NAME)).collect()
}

/// What a client reads: greeting, replies to options, headers and chunks of replies.
pub fn client(data: &[u8]) {
    if let Some(greeting) = data.first_chunk::<GREETING>() {
        let _ = parse_greeting(greeting);
    }
    if let Some(reply) = data.first_chunk::<REPLY>() {
        let _ = parse_reply(reply);
    }
    if let Ok(Some((_, len))) = ReplyHead::decode(data) {
        assert!(len <= data.len());
    }
    if let Some((kind, payload)) = data.split_first_chunk() {
        let _ = ChunkBody::decode(u16::from_be_bytes(*kind), payload);
    }
}

/// Seeds of [`client`].
pub fn replies() -> Vec<Vec<u8>> {
    let mut reply = Vec::new();
    put_reply(&mut reply, opt::GO, rep::INFO, &[&[0, 0], &[0; 10]]);
    let heads: [Head; 5] = [
        simple(7, None),
        simple(7, Some(Errno::Io)),
        data(7, 4096, 512),
        block_status(7, 2),
        error(7, Errno::Io),
    ];
    let mut all: Vec<Vec<u8>> = heads.iter().map(|head| head.bytes().to_vec()).collect();
    all.extend([reply, greeting(3).to_vec()]);
    // The kinds of chunks, each with a payload.
    all.extend([[0, 1], [0, 2], [0, 5], [0x80, 1]].map(|kind| [&kind[..], &[0; 24]].concat()));
    all
}
