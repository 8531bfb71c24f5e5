//! The handshake's messages: greeting, options, replies to them.
//!
//! Greeting of the server, 18 bytes: "NBDMAGIC", "IHAVEOPT", flags u16. The client answers with its
//! flags u32. Then options, 16 bytes: "IHAVEOPT", option u32, length u32, data. A reply, 20 bytes:
//! magic u64, option u32, type u32, length u32, data. EXPORT_NAME alone is answered by size u64,
//! transmission flags u16 and (unless declined) 124 zeros.

use super::{BadMagic, Cursor};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of the greeting.
pub const GREETING: usize = 18;
/// Bytes of an option's header.
pub const OPTION: usize = 16;
/// Bytes of an option reply's header.
pub const REPLY: usize = 20;
/// The longest data of an option that is looked at.
pub const MAX_OPTION: u32 = 32 << 10;

/// Flags of the greeting and of the client's answer have the same bits.
pub mod hello {
    /// Fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeros after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
#[allow(missing_docs, reason = "the protocol's names")]
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
#[allow(missing_docs, reason = "the protocol's names")]
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERR + 1;
    pub const ERR_INVALID: u32 = ERR + 3;
    pub const ERR_TLS_REQD: u32 = ERR + 5;
    pub const ERR_UNKNOWN: u32 = ERR + 6;
    pub const ERR_TOO_BIG: u32 = ERR + 9;
}

/// Kinds of information about an export.
#[allow(missing_docs, reason = "the protocol's names")]
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
#[allow(missing_docs, reason = "the protocol's names")]
pub mod transmit {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The server's first words.
pub fn greeting(flags: u16) -> [u8; GREETING] {
    let mut b = [0; GREETING];
    b[0..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    b[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    b[16..18].copy_from_slice(&flags.to_be_bytes());
    b
}

/// The flags of a greeting.
pub fn parse_greeting(bytes: &[u8; GREETING]) -> Result<u16, BadMagic> {
    let mut c = Cursor(bytes);
    match (c.u64(), c.u64(), c.u16()) {
        (Some(NBDMAGIC), Some(IHAVEOPT), Some(flags)) => Ok(flags),
        _ => Err(BadMagic),
    }
}

/// Appends an option with its data.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&IHAVEOPT.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// An option's number and the length of its data.
pub fn parse_option(bytes: &[u8; OPTION]) -> Result<(u32, u32), BadMagic> {
    let mut c = Cursor(bytes);
    match (c.u64(), c.u32(), c.u32()) {
        (Some(IHAVEOPT), Some(option), Some(len)) => Ok((option, len)),
        _ => Err(BadMagic),
    }
}

/// Appends a reply of `kind` to `option`; its data is `parts` one after the other.
pub fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    for n in [option, kind, len as u32] {
        out.extend_from_slice(&n.to_be_bytes());
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

/// The header of a reply: option, type, length of its data.
pub fn parse_reply(bytes: &[u8; REPLY]) -> Result<(u32, u32, u32), BadMagic> {
    let mut c = Cursor(bytes);
    match (c.u64(), c.u32(), c.u32(), c.u32()) {
        (Some(REPLY_MAGIC), Some(option), Some(kind), Some(len)) => Ok((option, kind, len)),
        _ => Err(BadMagic),
    }
}

/// The data of INFO and GO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InfoRequest<'a> {
    /// The export; empty is the default one.
    pub name: &'a str,
    /// Kinds of [`info`] that are wanted, 16 bits each.
    kinds: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Decodes the data.
    pub fn parse(data: &'a [u8]) -> Option<InfoRequest<'a>> {
        let mut c = Cursor(data);
        let name = c.string()?;
        let n = c.u16()?;
        let kinds = c.bytes(usize::from(n) * 2)?;
        c.is_empty().then_some(InfoRequest { name, kinds })
    }

    /// Whether information of this kind was asked for.
    pub fn wants(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|k| k == kind.to_be_bytes())
    }
}

/// Encodes the data of INFO and GO.
pub fn info_request(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut b = Vec::with_capacity(6 + name.len() + 2 * kinds.len());
    put_string(&mut b, name);
    b.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|k| b.extend_from_slice(&k.to_be_bytes()));
    b
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// Names of contexts, or patterns of them. At most [`MAX_OPTION`] / 4 fit into an option.
    pub queries: Vec<&'a str>,
}

impl<'a> MetaRequest<'a> {
    /// Decodes the data.
    pub fn parse(data: &'a [u8]) -> Option<MetaRequest<'a>> {
        let mut c = Cursor(data);
        let name = c.string()?;
        let n = c.u32()?;
        let mut queries = Vec::new();
        for _ in 0..n {
            queries.push(c.string()?);
        }
        c.is_empty().then_some(MetaRequest { name, queries })
    }
}

/// Encodes the data of LIST_META_CONTEXT and SET_META_CONTEXT.
pub fn meta_request(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut b = Vec::new();
    put_string(&mut b, name);
    b.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| put_string(&mut b, q));
    b
}

fn put_string(out: &mut Vec<u8>, s: &str) {
    out.extend_from_slice(&(s.len() as u32).to_be_bytes());
    out.extend_from_slice(s.as_bytes());
}
