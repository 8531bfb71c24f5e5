//! One connected socket; closed exactly once, never used after.
//!
//! Long data are received and sent in pieces of [`PIECE`]: the progress of a backend's operation
//! cannot be seen before it has ended.

use std::cell::Cell;

use base::{Buf, BufList, Duration, Instant, SliceList};
use rt::{Op, Payload, Rt, SocketId};

/// The largest number of bytes that one operation moves, and the number that a peer has to let
/// through in the time after which a transfer counts as stalled, or else all that is left of it: a
/// few bytes now and then are no progress. A batch of replies is less, as a rule, and so one
/// operation.
pub(crate) const PIECE: usize = 2 << 20;

/// The connection is at its end: closed by us or by the peer, or broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Disconnected;

pub(crate) struct Wire {
    rt: Rt,
    socket: SocketId,
    closed: Cell<bool>,
    /// A payload that is being received, and what is being sent.
    payload: TransferProgress,
    sending: TransferProgress,
}

/// The progress of a transfer that waits for the peer.
#[derive(Default)]
struct TransferProgress {
    /// The time when the transfer began, or when the last whole piece was done.
    since: Cell<Option<Instant>>,
    /// Bytes moved since then, fewer than [`PIECE`].
    moved: Cell<usize>,
}

impl TransferProgress {
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

impl Wire {
    pub fn new(rt: Rt, socket: SocketId) -> Wire {
        Wire {
            rt,
            socket,
            closed: Cell::new(false),
            payload: TransferProgress::default(),
            sending: TransferProgress::default(),
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
    pub async fn recv(
        &self,
        buf: Buf,
        start: usize,
        fill: bool,
    ) -> (Buf, Result<usize, Disconnected>) {
        if self.closed.get() {
            return (buf, Err(Disconnected));
        }
        let mut bufs = BufList::new();
        let room = buf.len() - start;
        bufs.push(buf);
        let c = self.rt.op(Op::Recv { socket: self.socket, buf: bufs, start, fill }).await;
        let n = match c.result {
            Ok(n) if n > 0 && n <= room as u64 => Ok(n as usize),
            _ => Err(Disconnected),
        };
        let buf =
            c.into_bufs().pop().unwrap_or_else(|| unreachable!("a receive gives its buffer back"));
        (buf, n)
    }

    /// Returns the number of bytes of a payload that are to be received next, at most, for what
    /// [`Wire::payload_came`] counts.
    pub fn payload_missing(&self) -> usize {
        self.payload.missing()
    }

    /// Notes that `n` bytes of a payload came.
    pub fn payload_came(&self, n: usize) {
        self.payload.advance(n, self.rt.now());
    }

    /// While it runs a payload is being received: the peer is to send.
    pub async fn in_payload<T>(&self, receiving: impl Future<Output = T>) -> T {
        self.payload.begin(self.rt.now());
        let outcome = receiving.await;
        self.payload.end();
        outcome
    }

    /// While it runs something is being sent: the peer is to receive.
    pub async fn in_reply<T>(&self, sending: impl Future<Output = T>) -> T {
        self.sending.begin(self.rt.now());
        let outcome = sending.await;
        self.sending.end();
        outcome
    }

    /// Sends all of `data`, in [`Wire::in_reply`].
    pub async fn send(&self, mut data: SliceList) -> Result<(), Disconnected> {
        let mut left: usize = data.iter().map(|s| s.len()).sum();
        while !data.is_empty() {
            if self.closed.get() {
                return Err(Disconnected);
            }
            let missing = self.sending.missing();
            let whole = left <= missing;
            let piece = if whole { std::mem::take(&mut data) } else { front(&data, missing) };
            let c = self.rt.op(Op::Send { socket: self.socket, data: piece }).await;
            let (Ok(n @ 1..), Payload::Data(piece)) = (c.result, c.payload) else {
                return Err(Disconnected);
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
pub(crate) fn front(data: &SliceList, mut n: usize) -> SliceList {
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
pub(crate) fn advance(data: &mut SliceList, mut n: usize) {
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
