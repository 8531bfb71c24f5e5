//! Bytes of the protocol to values and back. Nothing here does I/O, allocates by a peer's number,
//! or panics on input.
//!
//! All integers are big endian. A *magic* begins each message; where it is wrong the stream has
//! lost its place and the connection has to end ([`BadMagic`]). Everything else that is wrong is
//! answered with an [`Errno`] or a reply to the option.

pub mod option;
pub mod reply;
pub mod request;
#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

use base::IoError;

/// A message that does not begin as it must: the stream cannot be followed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bad magic")]
pub struct BadMagic;

/// The longest string of the protocol: names, descriptions, messages.
pub const MAX_STRING: usize = 4096;
/// The largest payload of one request; also advertised as the maximum block size.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The protocol's errors, with their numbers on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: writing to what is read-only.
    #[error("operation not permitted")]
    Perm = 1,
    /// EIO.
    #[error("input/output error")]
    Io = 5,
    /// ENOMEM.
    #[error("out of memory")]
    NoMem = 12,
    /// EINVAL.
    #[error("invalid argument")]
    Inval = 22,
    /// ENOSPC: out of space, or a write beyond the end.
    #[error("no space left")]
    NoSpc = 28,
    /// EOVERFLOW.
    #[error("value too large")]
    Overflow = 75,
    /// ENOTSUP: not at all, or not as fast as was asked for.
    #[error("operation not supported")]
    NotSup = 95,
    /// ESHUTDOWN.
    #[error("server is shutting down")]
    Shutdown = 108,
}

impl Errno {
    /// The error with this number on the wire; `None` for 0 (success). Numbers that the protocol
    /// does not know mean EINVAL.
    pub fn from_wire(n: u32) -> Option<Errno> {
        const ALL: [Errno; 8] = [
            Errno::Perm,
            Errno::Io,
            Errno::NoMem,
            Errno::Inval,
            Errno::NoSpc,
            Errno::Overflow,
            Errno::NotSup,
            Errno::Shutdown,
        ];
        if n == 0 {
            None
        } else {
            Some(ALL.into_iter().find(|e| *e as u32 == n).unwrap_or(Errno::Inval))
        }
    }
}

impl From<IoError> for Errno {
    /// Out of space stays so; whatever else a device answers is EIO to a client.
    fn from(e: IoError) -> Errno {
        if e.is_no_space() { Errno::NoSpc } else { Errno::Io }
    }
}

/// Reads integers from the front of bytes; `None` where they end too early.
pub(crate) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string that stands behind its length in 32 bits.
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        if len > MAX_STRING {
            return None;
        }
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
