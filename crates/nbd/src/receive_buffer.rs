//! The receiving half of a connection: one buffer from which many messages are parsed, that grows
//! where much comes at once.
//!
//! Requests without payload are small, so the buffer begins with a page; it multiplies whenever a
//! receive has filled it, and shrinks where receives bring little. Large payloads are received into
//! their own memory; after one the buffer is a page again, so that little of the next is copied out
//! of it.

use std::rc::Rc;

use base::{BLOCK, Buf};

use crate::link::Link;
use crate::wire::Disconnected;

const SMALLEST: usize = BLOCK;
const LARGEST: usize = 256 << 10;

pub(crate) struct Receiver {
    link: Rc<Link>,
    /// The buffer; absent while a receive has it.
    buf: Option<Buf>,
    /// The range of bytes that are received and not consumed.
    head: usize,
    tail: usize,
    /// The size that the next receive's buffer should have.
    want: usize,
}

impl Receiver {
    pub fn new(link: Rc<Link>) -> Receiver {
        Receiver { link, buf: None, head: 0, tail: 0, want: SMALLEST }
    }

    /// Returns the bytes that are received and not consumed.
    pub fn data(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |b| &b[self.head..self.tail])
    }

    /// The first bytes of [`Receiver::data`], if there are so many.
    pub fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.data().first_chunk()
    }

    /// Forgets the first `n` bytes of [`Receiver::data`].
    pub fn consume(&mut self, n: usize) {
        self.head += n;
        assert!(self.head <= self.tail, "consumed more than was received");
    }

    /// Receives once; there is room for `need` bytes of [`Receiver::data`] together at least, of
    /// which some are missing.
    pub async fn more(&mut self, need: usize) -> Result<(), Disconnected> {
        let left = self.tail - self.head;
        let buf = self.buf.take();
        let size = self.want.max(need.next_power_of_two());
        let buf = match buf {
            Some(mut b) if b.len() == size => {
                b.copy_within(self.head..self.tail, 0);
                b
            }
            old => {
                let mut b = self.link.rt().bufs().take(size);
                if let Some(old) = old {
                    b[..left].copy_from_slice(&old[self.head..self.tail]);
                }
                b
            }
        };
        (self.head, self.tail) = (0, left);
        let (buf, n) = self.link.recv(buf, left, false).await;
        self.buf = Some(buf);
        let n = n?;
        self.tail += n;
        if self.tail == size {
            self.want = (self.want * 4).min(LARGEST);
        } else if n < size / 8 {
            self.want = (self.want / 2).max(SMALLEST);
        }
        Ok(())
    }

    /// Receives until `n` bytes are there.
    pub async fn at_least(&mut self, n: usize) -> Result<(), Disconnected> {
        while self.data().len() < n {
            self.more(n).await?;
        }
        Ok(())
    }

    /// Receives a large payload into memory of its own.
    pub async fn payload(&mut self, mut into: Buf) -> Result<Buf, Disconnected> {
        let here = self.data().len().min(into.len());
        into[..here].copy_from_slice(&self.data()[..here]);
        self.consume(here);
        if here < into.len() {
            self.buf = None;
            (self.head, self.tail, self.want) = (0, 0, SMALLEST);
        }
        self.link.recv_all(into, here).await
    }

    /// Receives `n` bytes and throws them away.
    pub async fn skip(&mut self, mut n: usize) -> Result<(), Disconnected> {
        loop {
            let here = self.data().len().min(n);
            self.consume(here);
            n -= here;
            if n == 0 {
                return Ok(());
            }
            self.more(1).await?;
        }
    }
}
