//! One connected socket: the connection, by which any task sends, and its receiver.
//!
//! The code is not shared with the server's side (`nbd::link`), so that neither hides a mistake of
//! the other.

use std::cell::Cell;
use std::rc::Rc;

use base::{BufPool, SliceList};
use rt::{Op, Payload, Rt, SocketId};

/// The number of bytes that one receive takes at most.
const RECEIVE: usize = 64 << 10;

/// The connection is at its end: closed by us or by the peer, or broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disconnected;

/// A connected socket. Clones are the same; it is closed once, and not used after that.
#[derive(Clone)]
pub struct Connection(Rc<Inner>);

struct Inner {
    rt: Rt,
    socket: SocketId,
    closed: Cell<bool>,
}

impl Connection {
    /// Takes over a connected socket, which is to be closed by [`Connection::close`].
    pub fn new(rt: &Rt, socket: SocketId) -> Connection {
        Connection(Rc::new(Inner { rt: rt.clone(), socket, closed: Cell::new(false) }))
    }

    /// True if this side has closed it.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Closes the socket; what waits for it ends soon.
    pub fn close(&self) {
        if !self.0.closed.replace(true) {
            self.0.rt.submit(Op::Close { socket: self.0.socket }, |_| ());
        }
    }

    /// A copy of `bytes` that can be sent.
    pub fn copy_of(&self, bytes: &[u8]) -> SliceList {
        bytes.chunks(BufPool::MAX).map(|piece| self.0.rt.bufs().copy_of(piece).freeze()).collect()
    }

    /// Sends all of `data`. One task at a time.
    pub async fn send(&self, mut data: SliceList) -> Result<(), Disconnected> {
        while !data.is_empty() {
            if self.is_closed() {
                return Err(Disconnected);
            }
            let c = self.0.rt.op(Op::Send { socket: self.0.socket, data }).await;
            let (Ok(n @ 1..), Payload::Data(sent)) = (c.result, c.payload) else {
                return Err(Disconnected);
            };
            data = behind(sent, n as usize);
        }
        Ok(())
    }
}

/// Returns the part of `data` behind its first `n` bytes.
fn behind(data: SliceList, mut n: usize) -> SliceList {
    let mut rest = SliceList::new();
    for piece in data {
        let skip = n.min(piece.len());
        n -= skip;
        if skip < piece.len() {
            rest.push(piece.slice(skip, piece.len() - skip));
        }
    }
    rest
}

/// The receiver of a connection: the bytes that came, from which messages are parsed.
pub struct Receiver {
    connection: Connection,
    bytes: Vec<u8>,
    /// The number of these bytes that are consumed.
    consumed: usize,
}

impl Receiver {
    /// The receiver of a connection; it should have only one.
    pub fn new(connection: &Connection) -> Receiver {
        Receiver { connection: connection.clone(), bytes: Vec::new(), consumed: 0 }
    }

    /// Returns the bytes that are received and not consumed.
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Forgets the first `n` bytes of [`Receiver::data`].
    pub fn consume(&mut self, n: usize) {
        self.consumed += n;
        assert!(self.consumed <= self.bytes.len(), "consumed more than was received");
    }

    /// Receives once, at least one byte.
    pub async fn more(&mut self) -> Result<(), Disconnected> {
        let Inner { rt, socket, .. } = &*self.connection.0;
        if self.connection.is_closed() {
            return Err(Disconnected);
        }
        let buf = std::iter::once(rt.bufs().take(RECEIVE)).collect();
        let c = rt.op(Op::Recv { socket: *socket, buf, start: 0, fill: false }).await;
        let Ok(n @ 1..) = c.result else { return Err(Disconnected) };
        let bufs = c.into_bufs();
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        self.bytes.extend_from_slice(&bufs[0][..n as usize]);
        Ok(())
    }

    /// Receives until `n` bytes are there.
    pub async fn at_least(&mut self, n: usize) -> Result<(), Disconnected> {
        while self.data().len() < n {
            self.more().await?;
        }
        Ok(())
    }

    /// Takes the next `n` bytes.
    pub async fn take(&mut self, n: usize) -> Result<Vec<u8>, Disconnected> {
        self.at_least(n).await?;
        let bytes = self.data()[..n].to_vec();
        self.consume(n);
        Ok(bytes)
    }
}
