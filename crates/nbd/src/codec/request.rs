//! Requests of the transmission phase: their header, and whether the protocol allows them.
//!
//! Header, 28 bytes: magic u32, flags u16, type u16, cookie u64, offset u64, length u32. A WRITE's
//! payload follows it.

use super::{BadMagic, Cursor, Errno};

/// Bytes of a request's header.
pub const HEADER: usize = 28;
const MAGIC: u32 = 0x2560_9513;

/// Command flags.
pub mod flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered by one chunk of content.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS is answered by one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES fails where it would be no faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// A command: the type of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Data from the export.
    Read,
    /// Data to the export.
    Write,
    /// The end of the connection; it has no reply.
    Disc,
    /// Makes what has been answered durable.
    Flush,
    /// Gives up a range's content.
    Trim,
    /// Reads ahead.
    Cache,
    /// Makes a range read as zeros.
    WriteZeroes,
    /// The extents of a range.
    BlockStatus,
    /// A type that this server does not know.
    Unknown(u16),
}

impl Command {
    fn from_wire(n: u16) -> Command {
        match n {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disc,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    fn to_wire(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disc => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Unknown(n) => n,
        }
    }
}

/// A request's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Flags, see [`flag`].
    pub flags: u16,
    /// The command.
    pub command: Command,
    /// The client's name for the request, given back in the reply.
    pub cookie: u64,
    /// Bytes from the export's start.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len: u32,
}

impl Request {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Request, BadMagic> {
        let mut c = Cursor(bytes);
        let mut parse = || {
            Some((
                c.u32()?,
                Request {
                    flags: c.u16()?,
                    command: Command::from_wire(c.u16()?),
                    cookie: c.u64()?,
                    offset: c.u64()?,
                    len: c.u32()?,
                },
            ))
        };
        match parse() {
            Some((MAGIC, request)) => Ok(request),
            _ => Err(BadMagic),
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        b[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        b[4..6].copy_from_slice(&self.flags.to_be_bytes());
        b[6..8].copy_from_slice(&self.command.to_wire().to_be_bytes());
        b[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        b[16..24].copy_from_slice(&self.offset.to_be_bytes());
        b[24..28].copy_from_slice(&self.len.to_be_bytes());
        b
    }

    /// True if `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Bytes that follow the header.
    pub fn payload_len(&self) -> u32 {
        if self.command == Command::Write { self.len } else { 0 }
    }
}

/// The terms that were agreed on for a connection, by which its requests are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Offsets and lengths are multiples of this power of two.
    pub min_block: u32,
    /// The longest READ and WRITE.
    pub max_block: u32,
    /// Nothing may be changed.
    pub read_only: bool,
    /// READ is answered by chunks.
    pub structured: bool,
    /// `base:allocation` was selected.
    pub block_status: bool,
}

impl Terms {
    /// Whether `r` may be carried out on an export that has `size_bytes` now; the protocol's error
    /// if not.
    pub fn admit(&self, r: &Request, size_bytes: u64) -> Result<(), Errno> {
        let known = match r.command {
            Command::Read if self.structured => flag::DF,
            Command::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
            Command::BlockStatus if self.block_status => flag::REQ_ONE,
            Command::BlockStatus | Command::Unknown(_) => return Err(Errno::Inval),
            _ => 0,
        };
        // FUA is legal on every command.
        if r.flags & !(known | flag::FUA) != 0 {
            return Err(Errno::Inval);
        }
        let changes = matches!(r.command, Command::Write | Command::Trim | Command::WriteZeroes);
        if changes && self.read_only {
            return Err(Errno::Perm);
        }
        if matches!(r.command, Command::Flush | Command::Disc) {
            return Ok(());
        }
        let carries_data = matches!(r.command, Command::Read | Command::Write);
        let mask = u64::from(self.min_block) - 1;
        if r.len == 0
            || (r.offset | u64::from(r.len)) & mask != 0
            || carries_data && r.len > self.max_block
        {
            return Err(Errno::Inval);
        }
        if r.offset.checked_add(u64::from(r.len)).is_none_or(|end| end > size_bytes) {
            let grows = matches!(r.command, Command::Write | Command::WriteZeroes);
            return Err(if grows { Errno::NoSpc } else { Errno::Inval });
        }
        Ok(())
    }
}
