//! The interface of the store, as the server needs it.

use std::future::Future;

use base::{Slice, SliceList, VolumeId};
use tls::Peer;

use crate::codec::Errno;

/// The properties of an export, which are agreed on with a client that opens it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The name of the export in a list; a client may have opened it as the default one.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
    /// The unit of offsets and lengths in bytes: 512 or 4096, in any case a power of two up to 64
    /// KiB.
    pub min_block: u32,
    /// The size in bytes from which on aligned requests are efficient.
    pub preferred_block: u32,
    /// The longest READ and WRITE in bytes, at most 32 MiB, a multiple of `min_block`.
    pub max_block: u32,
    /// True if nothing may be changed.
    pub read_only: bool,
}

/// Options of writing zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZeroOpts {
    /// The range stays allocated.
    pub no_hole: bool,
    /// Fail with [`Errno::NotSup`] at once if it is no faster than a write of zeros.
    pub fast: bool,
    /// Durable before it completes.
    pub fua: bool,
}

/// A run of blocks of the same kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockStatus {
    /// Bytes.
    pub len: u64,
    /// Not allocated.
    pub hole: bool,
    /// Reads as zeros.
    pub zero: bool,
}

/// An open export. A clone is the same export; each request runs on a clone.
///
/// The server has checked of every request that it is not empty, aligned to `min_block`, inside
/// `size_bytes` when it came, and no change of a read-only export. Requests run concurrently, in
/// any order.
pub trait Export: Clone + 'static {
    /// Returns the properties that a client is told.
    fn info(&self) -> ExportInfo;
    /// The size now: an export can be resized while clients use it. Called for every request.
    fn size_bytes(&self) -> u64;
    /// The volume. Requests of one volume stand in one line for what the server has; those of
    /// others do not stand in line behind them.
    fn volume(&self) -> VolumeId;
    /// Waits until a request that moves so many bytes may be carried out; the bytes are not there
    /// yet. If it `fills` a range with zeros, it does so in turns. The request is carried out on
    /// the handle that this returns, and on its clones, and has ended when they are dropped. Called
    /// for every request but FLUSH.
    fn admit(&self, bytes: u64, fills: bool) -> impl Future<Output = Self>;
    /// The request of this handle does nothing for a while: others need not wait for it.
    fn rest(&self);
    /// Waits until the request may go on.
    fn go_on(&self) -> impl Future<Output = ()>;
    /// The data of a range: exactly `len` bytes.
    fn read(&self, offset: u64, len: u32) -> impl Future<Output = Result<SliceList, Errno>>;
    /// Writes `data`, one contiguous view aligned in memory; with `fua` it is durable when this
    /// completes.
    fn write(&self, offset: u64, data: Slice, fua: bool)
    -> impl Future<Output = Result<(), Errno>>;
    /// Makes everything that completed before durable, on whatever connection.
    fn flush(&self) -> impl Future<Output = Result<(), Errno>>;
    /// Gives up a range's content.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> impl Future<Output = Result<(), Errno>>;
    /// Makes a range read as zeros.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        opts: ZeroOpts,
    ) -> impl Future<Output = Result<(), Errno>>;
    /// Reads a range ahead, if that makes sense.
    fn cache(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), Errno>>;
    /// The extents from `offset` on, in order, without gaps: at least one, at most `max_extents`,
    /// and not necessarily all of the range.
    fn block_status(
        &self,
        offset: u64,
        len: u64,
        max_extents: usize,
    ) -> impl Future<Output = Result<Vec<BlockStatus>, Errno>>;
}

/// The exports that a server has.
pub trait Exports: 'static {
    /// An open one.
    type Export: Export;
    /// Opens the export with this name; the empty name is the default one, if there is one. `peer`
    /// is the client, if it came over TLS. An export that it may not open is unknown to it.
    fn open(&self, name: &str, peer: Option<&Peer>) -> Option<Self::Export>;
    /// Names and descriptions of those that this client may open.
    fn list(&self, peer: Option<&Peer>) -> Vec<(String, String)>;
}
