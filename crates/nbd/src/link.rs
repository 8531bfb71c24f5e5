//! One connected socket, shared by who receives from it and who sends to it; closed exactly once,
//! never used after.
//!
//! What is long is received and sent in pieces of [`PIECE`]: how far a backend's operation is
//! cannot be seen before it has ended.

use std::cell::Cell;

use base::{Buf, BufList, Duration, Instant, SliceList};
use rt::{Op, Payload, Rt, SocketId};

/// What one operation moves at most, and what a peer has to let through in the time after which a
/// transfer counts as stalled, or else all that is left of it: a few bytes now and then are no
/// progress. A batch of replies is less, as a rule, and so one operation.
pub(crate) const PIECE: usize = 2 << 20;

/// The connection is at its end: closed by us or by the peer, or broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone;

pub(crate) struct Link {
    rt: Rt,
    socket: SocketId,
    closed: Cell<bool>,
    /// A payload that is being received, and what is being sent.
    payload: Progress,
    sending: Progress,
}

/// How a transfer that waits for the peer goes on.
#[derive(Default)]
struct Progress {
    /// When it began, or when the last whole piece was done.
    since: Cell<Option<Instant>>,
    /// Bytes moved since then, fewer than [`PIECE`].
    moved: Cell<usize>,
}

impl Progress {
    fn begin(&self, now: Instant) {
        self.since.set(Some(now));
        self.moved.set(0);
    }

    fn end(&self) {
        self.since.set(None);
    }

    /// Bytes that are missing to a whole piece.
    fn missing(&self) -> usize {
        PIECE - self.moved.get()
    }

    /// `n` bytes were moved, at most those that were missing.
    fn advance(&self, n: usize, now: Instant) {
        if n >= self.missing() {
            self.begin(now);
        } else {
            self.moved.set(self.moved.get() + n);
        }
    }
}

impl Link {
    pub fn new(rt: Rt, socket: SocketId) -> Link {
        Link {
            rt,
            socket,
            closed: Cell::new(false),
            payload: Progress::default(),
            sending: Progress::default(),
        }
    }

    pub fn rt(&self) -> &Rt {
        &self.rt
    }

    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes the socket; what waits for it ends soon.
    pub fn close(&self) {
        if !self.closed.replace(true) {
            self.rt.submit(Op::Close { socket: self.socket }, |_| ());
        }
    }

    /// Receives at least one byte into `buf[start..]`.
    pub async fn recv(&self, buf: Buf, start: usize, fill: bool) -> (Buf, Result<usize, Gone>) {
        if self.closed.get() {
            return (buf, Err(Gone));
        }
        let mut bufs = BufList::new();
        let room = buf.len() - start;
        bufs.push(buf);
        let c = self.rt.op(Op::Recv { socket: self.socket, buf: bufs, start, fill }).await;
        let n = match c.result {
            Ok(n) if n > 0 && n <= room as u64 => Ok(n as usize),
            _ => Err(Gone),
        };
        let buf =
            c.into_bufs().pop().unwrap_or_else(|| unreachable!("a receive gives its buffer back"));
        (buf, n)
    }

    /// Receives all of `buf[start..]`, a payload.
    pub async fn recv_all(&self, buf: Buf, start: usize) -> Result<Buf, Gone> {
        self.payload.begin(self.rt.now());
        let outcome = self.recv_pieces(buf, start).await;
        self.payload.end();
        outcome
    }

    async fn recv_pieces(&self, mut buf: Buf, mut start: usize) -> Result<Buf, Gone> {
        let len = buf.len();
        while start < len {
            buf.truncate(len.min(start + self.payload.missing()));
            let n;
            (buf, n) = self.recv(buf, start, true).await;
            buf.lengthen(len);
            let n = n?;
            self.payload.advance(n, self.rt.now());
            start += n;
        }
        Ok(buf)
    }

    /// Sends all of `data`.
    pub async fn send_all(&self, data: SliceList) -> Result<(), Gone> {
        self.sending.begin(self.rt.now());
        let outcome = self.send_pieces(data).await;
        self.sending.end();
        outcome
    }

    async fn send_pieces(&self, mut data: SliceList) -> Result<(), Gone> {
        let mut left: usize = data.iter().map(|s| s.len()).sum();
        while !data.is_empty() {
            if self.closed.get() {
                return Err(Gone);
            }
            let missing = self.sending.missing();
            let whole = left <= missing;
            let piece = if whole { std::mem::take(&mut data) } else { front(&data, missing) };
            let c = self.rt.op(Op::Send { socket: self.socket, data: piece }).await;
            let (Ok(n @ 1..), Payload::Data(piece)) = (c.result, c.payload) else {
                return Err(Gone);
            };
            if whole {
                data = piece;
            }
            let n = usize::try_from(n).unwrap_or(usize::MAX).min(left);
            self.sending.advance(n, self.rt.now());
            advance(&mut data, n);
            left -= n;
        }
        Ok(())
    }

    /// True if for this long the peer has let us wait, but for a few bytes, in the middle of a
    /// payload or of a reply.
    pub fn stalled(&self, limit: Duration) -> bool {
        let now = self.rt.now();
        [&self.payload, &self.sending]
            .iter()
            .any(|p| p.since.get().is_some_and(|s| now.since(s) >= limit))
    }
}

/// The first `n` bytes.
fn front(data: &SliceList, mut n: usize) -> SliceList {
    let mut list = SliceList::new();
    for s in data {
        if n == 0 {
            break;
        }
        let len = s.len().min(n);
        list.push(s.slice(0, len));
        n -= len;
    }
    list
}

/// Takes the first `n` bytes away, and views that are empty.
fn advance(data: &mut SliceList, mut n: usize) {
    let whole = data
        .iter()
        .take_while(|s| {
            n >= s.len() && {
                n -= s.len();
                true
            }
        })
        .count();
    data.drain(..whole);
    if n > 0 {
        if let Some(first) = data.first_mut() {
            *first = first.slice(n, first.len() - n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::BufPool;
    use rt::{Backend, Completion, OpId, Order};
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

    #[test]
    fn advancing_by_every_count_leaves_the_rest() {
        let pool = BufPool::new(0);
        let parts_of = |pool: &BufPool| -> SliceList {
            let parts: [&[u8]; 4] = [b"abc", b"", b"de", b"f"];
            parts.iter().map(|p| pool.copy_of(p).freeze()).collect()
        };
        for n in 0..=6 {
            let mut list = parts_of(&pool);
            advance(&mut list, n);
            let rest: Vec<u8> = list.iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(rest, &b"abcdef"[n..]);
            let first: Vec<u8> =
                front(&parts_of(&pool), n).iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(first, &b"abcdef"[..n]);
            assert!(
                list.iter().any(|s| !s.is_empty()) || n == 6 && list.is_empty(),
                "{n}: {list:?}"
            );
        }
    }
}
