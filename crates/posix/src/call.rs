//! One operation on a file as a blocking call. Backends execute it at once if the file is in
//! memory; the workers execute the others.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use base::IoError;
use rt::{Op, Payload};

use crate::sys;

/// A call, with pointers to the memory it works on. The call does not own that memory: its caller
/// must keep the operation.
pub struct FileCall {
    fd: RawFd,
    what: CallKind,
    offset: u64,
    pieces: Vec<libc::iovec>,
}

#[derive(Clone, Copy)]
enum CallKind {
    Read,
    Write { fua: bool },
    Flush,
    Discard { len: u64 },
}

// SAFETY: the pieces point to memory that the backend owns, and does not touch until the call has
// returned.
unsafe impl Send for FileCall {}

impl FileCall {
    /// Creates the call for `op`, which must be an operation on a file. The capacity of `pieces` is
    /// reused.
    pub fn new(fd: RawFd, op: &mut Op, mut pieces: Vec<libc::iovec>) -> FileCall {
        pieces.clear();
        let (what, offset) = match op {
            Op::Read { offset, bufs, .. } => {
                sys::pieces_of_bufs(bufs, &mut pieces);
                (CallKind::Read, *offset)
            }
            Op::Write { offset, data, fua, .. } => {
                sys::pieces_of_data(data, &mut pieces);
                (CallKind::Write { fua: *fua }, *offset)
            }
            Op::Flush { .. } => (CallKind::Flush, 0),
            Op::Discard { offset, len, .. } => (CallKind::Discard { len: *len }, *offset),
            Op::Recv { .. } | Op::Send { .. } | Op::Accept { .. } | Op::Close { .. } => {
                unreachable!("not an operation on a file")
            }
        };
        FileCall { fd, what, offset, pieces }
    }

    /// Executes the call, which may block for any time.
    ///
    /// # Safety
    /// The operation that the call was made from must not be touched or dropped meanwhile, and its
    /// file must be open.
    pub unsafe fn run(&self) -> Result<u64, IoError> {
        // SAFETY: the pieces point into buffers (of a read) or views (of a write) that the
        // operation owns.
        unsafe {
            match self.what {
                CallKind::Read => sys::read(self.fd, &self.pieces, self.offset, 0),
                CallKind::Write { fua } => sys::write(self.fd, &self.pieces, self.offset, fua),
                CallKind::Flush => sys::flush(self.fd),
                CallKind::Discard { len } => sys::punch_hole(self.fd, self.offset, len),
            }
        }
    }

    /// Returns the list of pieces, so that its capacity can be reused.
    pub fn into_pieces(self) -> Vec<libc::iovec> {
        self.pieces
    }
}

/// The payload that an operation returns when it completes.
pub fn lent(op: Op) -> Payload {
    match op {
        Op::Read { bufs, .. } => Payload::Bufs(bufs),
        Op::Recv { buf, .. } => Payload::Bufs(buf),
        Op::Write { data, .. } | Op::Send { data, .. } => Payload::Data(data),
        Op::Flush { .. } | Op::Discard { .. } | Op::Accept { .. } | Op::Close { .. } => {
            Payload::None
        }
    }
}
