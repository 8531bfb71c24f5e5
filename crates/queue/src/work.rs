//! The work of a request: what it moves, and who hears of its end.
//!
//! A request that is larger than the device's largest is split. Its pieces are requests of their
//! own, and its task is woken once, when the last of them has ended. The outcome is the first error
//! in order of time.

use std::cell::Cell;
use std::rc::Rc;

use base::{Buf, BufPool, IoError, SliceList};
use rt::WaitGuard;
use rt::sync::{OneShot, OneShotSender, oneshot};

/// The outcome of a read, and its buffer.
pub(crate) type ReadEnd = (Result<(), IoError>, Buf);
pub(crate) type WriteEnd = Result<(), IoError>;

pub(crate) enum Work {
    /// Without a buffer, one is taken when the request starts.
    Read {
        buf: Option<Buf>,
        told: WaitGuard,
        done: ReadDone,
    },
    Write {
        data: SliceList,
        told: WaitGuard,
        done: WriteDone,
    },
}

/// Hears of the end of a read.
pub(crate) enum ReadDone {
    One(OneShotSender<ReadEnd>),
    /// The piece that begins at so many bytes of the whole.
    Piece(Rc<WholeRead>, usize),
}

impl ReadDone {
    pub fn send(self, outcome: Result<(), IoError>, buf: Buf) {
        match self {
            ReadDone::One(done) => done.send((outcome, buf)),
            ReadDone::Piece(whole, at) => whole.end(at, outcome, &buf),
        }
    }
}

/// Hears of the end of a write.
pub(crate) enum WriteDone {
    One(OneShotSender<WriteEnd>),
    Piece(Rc<WholeWrite>),
}

impl WriteDone {
    pub fn send(self, outcome: WriteEnd) {
        match self {
            WriteDone::One(done) => done.send(outcome),
            WriteDone::Piece(whole) => whole.end(outcome),
        }
    }
}

/// A read in pieces. Each has a buffer of its own, which is copied when it ends.
pub(crate) struct WholeRead {
    bufs: BufPool,
    len: usize,
    left: Cell<usize>,
    outcome: Cell<Result<(), IoError>>,
    /// Without one, it is taken when the first piece ends.
    buf: Cell<Option<Buf>>,
    done: Cell<Option<OneShotSender<ReadEnd>>>,
}

impl WholeRead {
    /// Of `len` bytes in so many pieces.
    pub fn new(
        bufs: &BufPool,
        len: usize,
        pieces: usize,
        buf: Option<Buf>,
    ) -> (Rc<WholeRead>, OneShot<ReadEnd>) {
        let (done, end) = oneshot();
        let whole = WholeRead {
            bufs: bufs.clone(),
            len,
            left: Cell::new(pieces),
            outcome: Cell::new(Ok(())),
            buf: Cell::new(buf),
            done: Cell::new(Some(done)),
        };
        (Rc::new(whole), end)
    }

    fn end(&self, at: usize, outcome: Result<(), IoError>, piece: &Buf) {
        let mut buf = self.buf.take().unwrap_or_else(|| self.bufs.take(self.len));
        buf[at..at + piece.len()].copy_from_slice(piece);
        self.outcome.set(self.outcome.get().and(outcome));
        self.left.set(self.left.get() - 1);
        if self.left.get() > 0 {
            self.buf.set(Some(buf));
        } else if let Some(done) = self.done.take() {
            done.send((self.outcome.get(), buf));
        }
    }
}

/// A write in pieces.
pub(crate) struct WholeWrite {
    left: Cell<usize>,
    outcome: Cell<WriteEnd>,
    done: Cell<Option<OneShotSender<WriteEnd>>>,
}

impl WholeWrite {
    /// In so many pieces.
    pub fn new(pieces: usize) -> (Rc<WholeWrite>, OneShot<WriteEnd>) {
        let (done, end) = oneshot();
        let (left, outcome) = (Cell::new(pieces), Cell::new(Ok(())));
        (Rc::new(WholeWrite { left, outcome, done: Cell::new(Some(done)) }), end)
    }

    fn end(&self, outcome: WriteEnd) {
        self.outcome.set(self.outcome.get().and(outcome));
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(done) = self.done.take()
        {
            done.send(self.outcome.get());
        }
    }
}
