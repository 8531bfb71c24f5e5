//! One operation on a file as a blocking call: done at once where it only copies memory, by a worker otherwise.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use base::IoError;
use rt::{Op, Payload};

use crate::sys;

/// A call, and the memory it works on. It does not own that memory: whoever runs it keeps the operation.
pub struct FileCall {
    fd: RawFd,
    what: What,
    offset: u64,
    pieces: Vec<libc::iovec>,
}

#[derive(Clone, Copy)]
enum What {
    Read,
    Write { fua: bool },
    Flush,
    Discard { len: u64 },
}

// SAFETY: the pieces are pointers to memory that the backend keeps, and does not look at, until the call has returned.
unsafe impl Send for FileCall {}

impl FileCall {
    /// The call for `op`, which must be one on a file. `pieces` is only room to use again.
    pub fn new(fd: RawFd, op: &mut Op, mut pieces: Vec<libc::iovec>) -> FileCall {
        pieces.clear();
        let (what, offset) = match op {
            Op::Read { offset, bufs, .. } => {
                sys::pieces_of_bufs(bufs, &mut pieces);
                (What::Read, *offset)
            }
            Op::Write { offset, data, fua, .. } => {
                sys::pieces_of_data(data, &mut pieces);
                (What::Write { fua: *fua }, *offset)
            }
            Op::Flush { .. } => (What::Flush, 0),
            Op::Discard { offset, len, .. } => (What::Discard { len: *len }, *offset),
            Op::Recv { .. } | Op::Send { .. } | Op::Accept { .. } | Op::Close { .. } => {
                unreachable!("not an operation on a file")
            }
        };
        FileCall { fd, what, offset, pieces }
    }

    /// Does it, however long it takes.
    ///
    /// # Safety
    /// The operation that this was made of is neither touched nor dropped meanwhile, and the file is open.
    pub unsafe fn run(&self) -> Result<u64, IoError> {
        // SAFETY: the pieces point into the operation's own buffers (for a read) or views (for a write).
        unsafe {
            match self.what {
                What::Read => sys::read(self.fd, &self.pieces, self.offset, 0),
                What::Write { fua } => sys::write(self.fd, &self.pieces, self.offset, fua),
                What::Flush => sys::flush(self.fd),
                What::Discard { len } => sys::punch_hole(self.fd, self.offset, len),
            }
        }
    }

    /// The room for pieces, to use again.
    pub fn into_pieces(self) -> Vec<libc::iovec> {
        self.pieces
    }
}

/// What an operation was lent, to give back.
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
