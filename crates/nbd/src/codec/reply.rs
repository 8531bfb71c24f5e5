//! Replies of the transmission phase.
//!
//! Simple, 16 bytes: magic u32, error u32, cookie u64; a READ's data follows it. Chunk of a
//! structured reply, 20 bytes: magic u32, flags u16, type u16, cookie u64, length u32; `length`
//! bytes of payload follow, which depend on the type: data (offset u64, data), hole (offset u64,
//! length u32), block status (context u32, then extents: length u32, flags u32), error (error u32,
//! message length u16, message).

use super::{BadMagic, Cursor, Errno};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u16 = 1;

/// Bytes of a simple reply.
pub const SIMPLE: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK: usize = 20;
/// The context id that `base:allocation` has.
pub const ALLOCATION_CONTEXT: u32 = 1;

const DATA: u16 = 1;
const HOLE: u16 = 2;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 0x8001;
const ERROR_BIT: u16 = 0x8000;

/// Flags of an extent in `base:allocation`.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The bytes with which a message begins: a header, and what of the payload has a fixed size.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Head {
    /// The most bytes that a head has.
    pub const MAX: usize = 28;

    /// A head of these bytes, which must not be more than [`Head::MAX`].
    pub fn new(parts: &[&[u8]]) -> Head {
        let mut head = Head { bytes: [0; Self::MAX], len: 0 };
        parts.iter().for_each(|p| head.push(p));
        head
    }

    fn push(&mut self, part: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + part.len()].copy_from_slice(part);
        self.len += part.len() as u8;
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A simple reply: success, or an error.
pub fn simple(cookie: u64, error: Option<Errno>) -> Head {
    let error = error.map_or(0, |e| e as u32);
    Head::new(&[&SIMPLE_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
}

/// A chunk that is its reply's last one, with `first` of its payload of `len` bytes.
fn last_chunk(kind: u16, cookie: u64, len: u32, first: &[&[u8]]) -> Head {
    chunk(FLAG_DONE, kind, cookie, len, first)
}

fn chunk(flags: u16, kind: u16, cookie: u64, len: u32, first: &[&[u8]]) -> Head {
    let mut head = Head::new(&[
        &CHUNK_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &len.to_be_bytes(),
    ]);
    first.iter().for_each(|p| head.push(p));
    head
}

/// A chunk of an answer to READ that others follow; `len` bytes of data follow it at once.
pub fn data_part(cookie: u64, offset: u64, len: u32) -> Head {
    chunk(0, DATA, cookie, 8 + len, &[&offset.to_be_bytes()])
}

/// The last or only chunk of an answer to READ; `len` bytes of data follow.
pub fn data(cookie: u64, offset: u64, len: u32) -> Head {
    last_chunk(DATA, cookie, 8 + len, &[&offset.to_be_bytes()])
}

/// The only chunk of an answer to BLOCK_STATUS; `extents` of 8 bytes each follow.
pub fn block_status(cookie: u64, extents: u32) -> Head {
    last_chunk(BLOCK_STATUS, cookie, 4 + 8 * extents, &[&ALLOCATION_CONTEXT.to_be_bytes()])
}

/// A chunk that ends an answer with an error.
pub fn error(cookie: u64, e: Errno) -> Head {
    last_chunk(ERROR, cookie, 6, &[&(e as u32).to_be_bytes(), &0u16.to_be_bytes()])
}

/// The header of a reply, as a client meets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyHead {
    /// A simple reply.
    Simple {
        /// Of the request.
        cookie: u64,
        /// `None`: success.
        error: Option<Errno>,
    },
    /// A chunk.
    Chunk {
        /// The cookie of the request.
        cookie: u64,
        /// True for the last chunk of this reply.
        done: bool,
        /// The type of the chunk, on the wire.
        kind: u16,
        /// The bytes of payload.
        len: u32,
    },
}

impl ReplyHead {
    /// Decodes a header from the front of `bytes`, and says how long it was; `None` if there are
    /// too few bytes yet.
    pub fn decode(bytes: &[u8]) -> Result<Option<(ReplyHead, usize)>, BadMagic> {
        let mut c = Cursor(bytes);
        let Some(magic) = c.u32() else { return Ok(None) };
        let head = match magic {
            SIMPLE_MAGIC => c.u32().zip(c.u64()).map(|(error, cookie)| {
                let error = Errno::from_wire(error);
                (ReplyHead::Simple { cookie, error }, SIMPLE)
            }),
            CHUNK_MAGIC => (|| {
                let (flags, kind, cookie, len) = (c.u16()?, c.u16()?, c.u64()?, c.u32()?);
                Some((ReplyHead::Chunk { cookie, done: flags & FLAG_DONE != 0, kind, len }, CHUNK))
            })(),
            _ => return Err(BadMagic),
        };
        Ok(head)
    }
}

/// A chunk's payload, as a client meets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChunkBody<'a> {
    /// Nothing more to say.
    None,
    /// Data at an offset.
    Data(u64, &'a [u8]),
    /// Zeros at an offset.
    Hole(u64, u32),
    /// Extents (length, flags) of a context.
    BlockStatus(u32, Vec<(u32, u32)>),
    /// The request failed.
    Error(Errno),
}

impl ChunkBody<'_> {
    /// Decodes the payload of a chunk of this type; `None` if it is not as the protocol says.
    pub fn decode(kind: u16, payload: &[u8]) -> Option<ChunkBody<'_>> {
        let mut c = Cursor(payload);
        Some(match kind {
            0 if payload.is_empty() => ChunkBody::None,
            DATA => {
                let offset = c.u64()?;
                if c.is_empty() {
                    return None;
                }
                ChunkBody::Data(offset, c.0)
            }
            HOLE if payload.len() == 12 => ChunkBody::Hole(c.u64()?, c.u32()?),
            BLOCK_STATUS => {
                let context = c.u32()?;
                if c.is_empty() || c.0.len() % 8 != 0 {
                    return None;
                }
                let mut extents = Vec::with_capacity(c.0.len() / 8);
                while !c.is_empty() {
                    extents.push((c.u32()?, c.u32()?));
                }
                ChunkBody::BlockStatus(context, extents)
            }
            k if k & ERROR_BIT != 0 => {
                let (error, message) = (c.u32()?, c.u16()?);
                c.bytes(usize::from(message))?;
                ChunkBody::Error(Errno::from_wire(error)?)
            }
            _ => return None,
        })
    }
}
