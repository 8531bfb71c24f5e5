//! A connection as the protocol sees it, shared by what receives from it and what sends to it:
//! plain bytes, whether they are encrypted on the wire or not.
//!
//! A long payload is received in pieces: the progress of a backend's operation cannot be seen
//! before it has ended.

use std::cell::OnceCell;

use base::{Buf, Duration, SliceList};
use rt::{Rt, SocketId};
use tls::{Acceptor, Peer, SessionError};

use crate::secure::SecureStream;
use crate::wire::{Disconnected, Wire};

pub(crate) struct Link {
    wire: Wire,
    /// From when on it is encrypted.
    secure: OnceCell<SecureStream>,
}

impl Link {
    pub fn new(rt: Rt, socket: SocketId) -> Link {
        Link { wire: Wire::new(rt, socket), secure: OnceCell::new() }
    }

    pub fn rt(&self) -> &Rt {
        self.wire.rt()
    }

    pub fn is_closed(&self) -> bool {
        self.wire.is_closed()
    }

    /// Closes the socket; what waits for it ends soon.
    pub fn close(&self) {
        self.wire.close();
    }

    /// True if for this long the peer has let us wait, but for a few bytes, in the middle of a
    /// payload or of a reply.
    pub fn stalled(&self, limit: Duration) -> bool {
        self.wire.stalled(limit)
    }

    /// Shakes hands; from then on the link is encrypted. Once, while nothing else uses it. Errors
    /// say why, for people.
    pub async fn secure(&self, acceptor: &Acceptor) -> Result<Peer, SessionError> {
        let (secure, peer) = SecureStream::shake(&self.wire, acceptor).await?;
        assert!(self.secure.set(secure).is_ok(), "a link is secured once");
        Ok(peer)
    }

    /// Receives at least one byte into `buf[start..]`.
    pub async fn recv(
        &self,
        buf: Buf,
        start: usize,
        fill: bool,
    ) -> (Buf, Result<usize, Disconnected>) {
        match self.secure.get() {
            None => self.wire.recv(buf, start, fill).await,
            // Boxed, so that the future of a link without TLS is as small as without this.
            Some(secure) => Box::pin(secure.recv(&self.wire, buf, start)).await,
        }
    }

    /// Receives all of `buf[start..]`, a payload.
    pub async fn recv_all(&self, buf: Buf, start: usize) -> Result<Buf, Disconnected> {
        self.wire.in_payload(self.recv_pieces(buf, start)).await
    }

    async fn recv_pieces(&self, mut buf: Buf, mut start: usize) -> Result<Buf, Disconnected> {
        let len = buf.len();
        while start < len {
            buf.truncate(len.min(start + self.wire.payload_missing()));
            let n;
            (buf, n) = self.recv(buf, start, true).await;
            buf.lengthen(len);
            let n = n?;
            self.wire.payload_came(n);
            start += n;
        }
        Ok(buf)
    }

    /// Sends all of `data`.
    pub async fn send_all(&self, data: SliceList) -> Result<(), Disconnected> {
        match self.secure.get() {
            None => self.wire.in_reply(self.wire.send(data)).await,
            Some(secure) => Box::pin(secure.send(&self.wire, data)).await,
        }
    }

    /// Tells the peer that nothing more will come, if it is there to hear it.
    pub async fn farewell(&self) {
        if let Some(secure) = self.secure.get() {
            secure.farewell(&self.wire).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PIECE;
    use base::Instant;
    use rt::{Backend, Completion, Op, OpId, Order, Payload};
    use std::cell::Cell;
    use std::rc::Rc;

    /// The simulated world, and the most that one operation on a socket was to move.
    struct Watched {
        world: Box<dyn Backend>,
        most: Rc<Cell<usize>>,
    }

    impl Backend for Watched {
        fn submit(&mut self, id: OpId, op: Op) {
            let bytes = match &op {
                Op::Recv { buf, start, .. } => buf[0].len() - start,
                Op::Send { data, .. } => data.iter().map(|s| s.len()).sum(),
                _ => 0,
            };
            self.most.set(self.most.get().max(bytes));
            self.world.submit(id, op);
        }
        fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
            self.world.wait(until, done)
        }
        fn now(&self) -> Instant {
            self.world.now()
        }
    }

    #[test]
    fn no_operation_moves_more_than_a_piece() {
        const LEN: usize = (5 << 20) + 77;
        let (world, most) = (sim::World::new(1), Rc::new(Cell::new(0)));
        let backend = Watched { world: world.backend(), most: most.clone() };
        let rt = Rt::new(Box::new(backend), Order::Seeded(1), 512);
        let listener = world.listener();
        let r = rt.clone();
        let done = rt.block_on(async move {
            let theirs = Link::new(r.clone(), world.connect(listener));
            let Payload::Socket(socket) = r.op(Op::Accept { listener }).await.payload else {
                panic!("not accepted")
            };
            let ours = Link::new(r.clone(), socket);
            let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
            let whole = r.bufs().copy_of(&bytes).freeze();
            let parts = (0..LEN)
                .step_by(300_000)
                .map(|at| whole.slice(at, 300_000.min(LEN - at)))
                .collect();
            let sending = r.spawn(async move { theirs.send_all(parts).await });
            let got = ours.recv_all(r.bufs().zeroed(LEN), 0).await;
            assert!(got.is_ok_and(|got| *got == *bytes), "another content");
            assert_eq!(sending.await, Some(Ok(())));
        });
        assert_eq!((done, most.get()), (Some(()), PIECE));
    }
}
