//! One connected socket, shared by who receives from it and who sends to it; closed exactly once, never used after.

use std::cell::Cell;

use base::{Buf, BufList, Duration, Instant, SliceList};
use rt::{Op, Payload, Rt, SocketId};

/// The connection is at its end: closed by us or by the peer, or broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone;

pub(crate) struct Link {
    rt: Rt,
    socket: SocketId,
    closed: Cell<bool>,
    /// Since when a payload, respectively a send, waits for the peer.
    payload_since: Cell<Option<Instant>>,
    send_since: Cell<Option<Instant>>,
}

impl Link {
    pub fn new(rt: Rt, socket: SocketId) -> Link {
        Link { rt, socket, closed: Cell::new(false), payload_since: Cell::new(None), send_since: Cell::new(None) }
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
        let buf = c.into_bufs().pop().unwrap_or_else(|| unreachable!("a receive gives its buffer back"));
        (buf, n)
    }

    /// Receives all of `buf[start..]`.
    pub async fn recv_all(&self, mut buf: Buf, mut start: usize) -> Result<Buf, Gone> {
        while start < buf.len() {
            self.payload_since.set(Some(self.rt.now()));
            let (b, n) = self.recv(buf, start, true).await;
            self.payload_since.set(None);
            buf = b;
            start += n?;
        }
        Ok(buf)
    }

    /// Sends all of `data`.
    pub async fn send_all(&self, mut data: SliceList) -> Result<(), Gone> {
        while !data.is_empty() {
            if self.closed.get() {
                return Err(Gone);
            }
            self.send_since.set(Some(self.rt.now()));
            let c = self.rt.op(Op::Send { socket: self.socket, data }).await;
            self.send_since.set(None);
            let (Ok(n @ 1..), Payload::Data(rest)) = (c.result, c.payload) else { return Err(Gone) };
            data = rest;
            advance(&mut data, n);
        }
        Ok(())
    }

    /// True if the peer has let us wait for this long in the middle of a payload or of a reply.
    pub fn stalled(&self, limit: Duration) -> bool {
        let now = self.rt.now();
        [&self.payload_since, &self.send_since].iter().any(|s| s.get().is_some_and(|s| now.since(s) >= limit))
    }
}

/// Takes the first `n` bytes away, and views that are empty.
fn advance(data: &mut SliceList, n: u64) {
    let mut n = usize::try_from(n).unwrap_or(usize::MAX);
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
            *first = first.cut(n, first.len() - n);
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
        let parts: [&[u8]; 4] = [b"abc", b"", b"de", b"f"];
        for n in 0..=6 {
            let mut list: SliceList = parts.iter().map(|p| pool.copy_of(p).freeze()).collect();
            advance(&mut list, n);
            let rest: Vec<u8> = list.iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(rest, &b"abcdef"[n as usize..]);
            assert!(list.iter().any(|s| !s.is_empty()) || n == 6 && list.is_empty(), "{n}: {list:?}");
        }
    }
}
