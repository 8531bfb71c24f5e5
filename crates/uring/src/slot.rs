//! An operation in flight: what it owns, and its submission queue entry.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use base::IoError;
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use posix::sys;
use rt::{Op, SocketId};

/// One operation in flight. The slot outlives the operation, and the next operation reuses the
/// capacity of its lists.
#[derive(Default)]
pub(crate) struct Slot {
    /// Owns the buffers from submission to completion. `None` while the slot is free.
    pub op: Option<Op>,
    pub fd: RawFd,
    /// A thread of the kernel starts it, because that may take long.
    pub in_thread: bool,
    /// The kernel copies these lists when the entry is submitted. Until then they must not move.
    /// The heap memory of a `Vec` and a `Box` stays in place even when the slot moves.
    pieces: Vec<libc::iovec>,
    message: Option<Box<libc::msghdr>>,
}

// SAFETY (for all entries below): they point to memory that the operation in the slot owns. The
// slot keeps it until its completion has been reaped, and nothing reads or writes it meanwhile.
impl Slot {
    /// True if the operation in flight reads a file.
    pub fn is_read(&self) -> bool {
        matches!(self.op, Some(Op::Read { .. }))
    }

    /// Builds the submission queue entry for the operation in this slot.
    pub fn entry(&mut self) -> Result<Entry, IoError> {
        let entry = self.inline_entry()?;
        Ok(if self.in_thread { entry.flags(Flags::ASYNC) } else { entry })
    }

    fn inline_entry(&mut self) -> Result<Entry, IoError> {
        let fd = types::Fd(self.fd);
        let Some(op) = &mut self.op else { unreachable!("an entry for a free slot") };
        Ok(match op {
            Op::Read { offset, bufs, .. } => {
                let offset = sys::signed(*offset)? as u64;
                if let [buf] = &mut bufs[..] {
                    opcode::Read::new(fd, buf.as_mut_ptr(), buf.len() as u32).offset(offset).build()
                } else {
                    sys::pieces_of_bufs(bufs, &mut self.pieces);
                    opcode::Readv::new(fd, self.pieces.as_ptr(), self.pieces.len() as u32)
                        .offset(offset)
                        .build()
                }
            }
            Op::Write { offset, data, fua, .. } => {
                let offset = sys::signed(*offset)? as u64;
                let flags = if *fua { libc::RWF_DSYNC } else { 0 };
                if let [part] = &data[..] {
                    let w = opcode::Write::new(fd, part.as_ptr(), part.len() as u32);
                    w.offset(offset).rw_flags(flags).build()
                } else {
                    sys::pieces_of_data(data, &mut self.pieces);
                    let w = opcode::Writev::new(fd, self.pieces.as_ptr(), self.pieces.len() as u32);
                    w.offset(offset).rw_flags(flags).build()
                }
            }
            Op::Flush { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Discard { offset, len, .. } => {
                let (offset, len) = (sys::signed(*offset)? as u64, sys::signed(*len)? as u64);
                opcode::Fallocate::new(fd, len).offset(offset).mode(sys::PUNCH_HOLE).build()
            }
            Op::Recv { buf, start, fill, .. } => {
                let [buf] = &mut buf[..] else { return Err(IoError::INVALID) };
                let rest = buf.get_mut(*start..).ok_or(IoError::INVALID)?;
                let flags = if *fill { libc::MSG_WAITALL } else { 0 };
                opcode::Recv::new(fd, rest.as_mut_ptr(), rest.len() as u32).flags(flags).build()
            }
            Op::Send { data, .. } => {
                // With MSG_WAITALL the kernel continues by itself when the socket accepts only a
                // part.
                const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                if let [part] = &data[..] {
                    opcode::Send::new(fd, part.as_ptr(), part.len() as u32).flags(FLAGS).build()
                } else {
                    sys::pieces_of_data(data, &mut self.pieces);
                    // SAFETY: all zeros is a valid message without address, pieces and control
                    // data.
                    let message =
                        self.message.get_or_insert_with(|| Box::new(unsafe { std::mem::zeroed() }));
                    message.msg_iov = self.pieces.as_mut_ptr();
                    message.msg_iovlen = self.pieces.len() as _;
                    opcode::SendMsg::new(fd, &raw const **message).flags(FLAGS as u32).build()
                }
            }
            Op::Accept { .. } => {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Op::Close { .. } => unreachable!("closing is not the ring's work"),
        })
    }
}

/// The socket that an operation holds while it is in flight.
pub(crate) fn socket_of(op: &Op) -> Option<SocketId> {
    match op {
        Op::Recv { socket, .. } | Op::Send { socket, .. } => Some(*socket),
        Op::Accept { listener } => Some(*listener),
        _ => None,
    }
}
