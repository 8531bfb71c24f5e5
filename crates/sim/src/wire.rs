//! Connections whose two ends both belong to the backend: byte streams with latency, cut into
//! pieces of any length.
//!
//! A send accepts a prefix of its data, as much as fits into the receiver's buffer, or waits for
//! room. Bytes arrive in order after a latency. A receive returns any part of the bytes that have
//! arrived. After a close, the data that was sent still arrives, then the end of the stream. After
//! a reset (the peer's machine is gone) nothing more arrives.

use std::collections::VecDeque;

use base::{BufList, Duration, IoError, Prng, SliceList};
use rt::{Completion, OpId, Payload, SocketId};
use rustc_hash::FxHashMap;

use crate::model::Latency;

/// EBADF: there is no such socket.
const BAD_SOCKET: IoError = IoError(9);
/// The error of operations whose own socket is closed.
const CLOSED: IoError = IoError::CANCELED;

/// The behaviour of connections.
#[derive(Clone, Debug)]
pub struct WireModel {
    /// The smallest and largest time from a send to its arrival, and of other actions on a socket.
    pub latency: Latency,
    /// The limit on bytes that are sent and not received, for each direction of a connection.
    pub buffer_bytes: usize,
    /// Whether sends and receives end at random places, or only where they must.
    pub fragments: bool,
}

impl Default for WireModel {
    fn default() -> WireModel {
        let latency = Latency::new(Duration::from_micros(2), Duration::from_micros(40));
        WireModel { latency, buffer_bytes: 256 << 10, fragments: true }
    }
}

/// An event that happens to a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WireEvent {
    /// The pending operations of the socket are tried again.
    Pump,
    /// The next item under way to it arrives.
    Arrive,
    /// The close operation with this number takes effect.
    Close(u64),
}

struct PendingRecv {
    id: OpId,
    buf: BufList,
    /// The position of the next byte.
    at: usize,
    start: usize,
    fill: bool,
}

impl PendingRecv {
    fn end(self, result: Result<u64, IoError>) -> Completion {
        Completion { id: self.id, result, payload: Payload::Bufs(self.buf) }
    }
}

enum Socket {
    Listener { waiting: VecDeque<SocketId>, accepts: VecDeque<OpId> },
    End(End),
}

struct End {
    peer: SocketId,
    /// Bytes that were sent to this end and not received yet. The first `arrived` bytes can be
    /// received.
    inbox: VecDeque<u8>,
    arrived: usize,
    /// Lengths of the transfers under way, in order. `None` is the end of the stream.
    under_way: VecDeque<Option<usize>>,
    /// When the last of them arrives.
    last_arrival: u64,
    ended: bool,
    reset: bool,
    sends: VecDeque<(OpId, SliceList)>,
    recvs: VecDeque<PendingRecv>,
}

impl End {
    fn to(peer: SocketId) -> End {
        End {
            peer,
            inbox: VecDeque::new(),
            arrived: 0,
            under_way: VecDeque::new(),
            last_arrival: 0,
            ended: false,
            reset: false,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
        }
    }
}

/// Events that the wire wants to schedule: when, for which socket, which event.
pub(crate) type WireEvents = Vec<(u64, SocketId, WireEvent)>;

pub(crate) struct Wire {
    pub model: WireModel,
    rng: Prng,
    /// This map is never iterated, so its order does not matter.
    sockets: FxHashMap<SocketId, Socket>,
    next: u32,
    pub later: WireEvents,
}

impl Wire {
    pub fn new(rng: Prng) -> Wire {
        Wire {
            model: WireModel::default(),
            rng,
            sockets: FxHashMap::default(),
            next: 0,
            later: Vec::new(),
        }
    }

    /// Drops all connections. Their numbers are never reused.
    pub fn stop(&mut self) {
        self.sockets.clear();
        self.later.clear();
    }

    fn open(&mut self, socket: Socket) -> SocketId {
        let id = SocketId(self.next);
        self.next += 1;
        self.sockets.insert(id, socket);
        id
    }

    pub fn listener(&mut self) -> SocketId {
        self.open(Socket::Listener { waiting: VecDeque::new(), accepts: VecDeque::new() })
    }

    pub fn connect(&mut self, now: u64, listener: SocketId) -> SocketId {
        let (client, server) = (SocketId(self.next), SocketId(self.next + 1));
        self.open(Socket::End(End::to(server)));
        if let Some(Socket::Listener { waiting, .. }) = self.sockets.get_mut(&listener) {
            waiting.push_back(server);
            self.open(Socket::End(End::to(client)));
            self.soon(now, listener, WireEvent::Pump);
        } else if let Some(Socket::End(end)) = self.sockets.get_mut(&client) {
            (end.ended, end.reset) = (true, true);
        }
        client
    }

    /// Resets both ends of a connection.
    pub fn reset(&mut self, now: u64, socket: SocketId) {
        let Some(Socket::End(end)) = self.sockets.get(&socket) else { return };
        for id in [socket, end.peer] {
            if let Some(Socket::End(end)) = self.sockets.get_mut(&id) {
                end.reset = true;
                end.inbox.clear();
                end.arrived = 0;
                end.under_way.clear();
                self.soon(now, id, WireEvent::Pump);
            }
        }
    }

    fn soon(&mut self, now: u64, socket: SocketId, event: WireEvent) {
        let when = now + self.model.latency.draw(&mut self.rng);
        self.later.push((when, socket, event));
    }

    /// Accepts an operation. Returns its completion if there is no such socket. The next three
    /// functions do the same for their operations.
    pub fn submit_accept(&mut self, now: u64, id: OpId, socket: SocketId) -> Option<Completion> {
        match self.sockets.get_mut(&socket) {
            Some(Socket::Listener { accepts, .. }) => accepts.push_back(id),
            _ => return Some(Completion { id, result: Err(BAD_SOCKET), payload: Payload::None }),
        }
        self.soon(now, socket, WireEvent::Pump);
        None
    }

    pub fn submit_send(
        &mut self,
        now: u64,
        id: OpId,
        socket: SocketId,
        data: SliceList,
    ) -> Option<Completion> {
        match self.sockets.get_mut(&socket) {
            Some(Socket::End(end)) => end.sends.push_back((id, data)),
            _ => {
                return Some(Completion {
                    id,
                    result: Err(BAD_SOCKET),
                    payload: Payload::Data(data),
                });
            }
        }
        self.soon(now, socket, WireEvent::Pump);
        None
    }

    pub fn submit_recv(
        &mut self,
        now: u64,
        id: OpId,
        socket: SocketId,
        buf: BufList,
        start: usize,
        fill: bool,
    ) -> Option<Completion> {
        match self.sockets.get_mut(&socket) {
            Some(Socket::End(end)) => {
                end.recvs.push_back(PendingRecv { id, buf, at: start, start, fill })
            }
            _ => {
                return Some(Completion {
                    id,
                    result: Err(BAD_SOCKET),
                    payload: Payload::Bufs(buf),
                });
            }
        }
        self.soon(now, socket, WireEvent::Pump);
        None
    }

    pub fn submit_close(&mut self, now: u64, id: OpId, socket: SocketId) -> Option<Completion> {
        if !self.sockets.contains_key(&socket) {
            return Some(Completion { id, result: Err(BAD_SOCKET), payload: Payload::None });
        }
        self.soon(now, socket, WireEvent::Close(id.0));
        None
    }

    pub fn happen(
        &mut self,
        now: u64,
        socket: SocketId,
        event: WireEvent,
        done: &mut Vec<Completion>,
    ) {
        match event {
            WireEvent::Close(id) => self.close(now, OpId(id), socket, done),
            WireEvent::Arrive => {
                if let Some(Socket::End(end)) = self.sockets.get_mut(&socket) {
                    match end.under_way.pop_front() {
                        Some(Some(n)) => end.arrived += n,
                        Some(None) => end.ended = true,
                        // A reset removed it before.
                        None => {}
                    }
                }
                self.pump_recvs(now, socket, done);
            }
            WireEvent::Pump => match self.sockets.get_mut(&socket) {
                Some(Socket::Listener { waiting, accepts }) => {
                    while !waiting.is_empty() && !accepts.is_empty() {
                        if let (Some(end), Some(id)) = (waiting.pop_front(), accepts.pop_front()) {
                            done.push(Completion {
                                id,
                                result: Ok(0),
                                payload: Payload::Socket(end),
                            });
                        }
                    }
                }
                Some(Socket::End(_)) => {
                    self.pump_sends(now, socket, done);
                    self.pump_recvs(now, socket, done);
                }
                None => {}
            },
        }
    }

    fn pump_sends(&mut self, now: u64, socket: SocketId, done: &mut Vec<Completion>) {
        loop {
            let Some(Socket::End(end)) = self.sockets.get_mut(&socket) else { return };
            let Some((id, data)) = end.sends.pop_front() else { return };
            let (peer, reset) = (end.peer, end.reset);
            let peer_end = match self.sockets.get_mut(&peer) {
                Some(Socket::End(peer_end)) if !reset => peer_end,
                _ => {
                    done.push(Completion {
                        id,
                        result: Err(IoError::RESET),
                        payload: Payload::Data(data),
                    });
                    continue;
                }
            };
            let len: usize = data.iter().map(|s| s.len()).sum();
            let room = self.model.buffer_bytes.saturating_sub(peer_end.inbox.len());
            if room == 0 && len > 0 {
                // The send continues when the peer has received something.
                if let Some(Socket::End(end)) = self.sockets.get_mut(&socket) {
                    end.sends.push_front((id, data));
                }
                return;
            }
            let n = fragment(len.min(room), self.model.fragments, &mut self.rng);
            let mut left = n;
            for slice in &data {
                let part = left.min(slice.len());
                peer_end.inbox.extend(&slice[..part]);
                left -= part;
            }
            self.dispatch(now, peer, Some(n));
            done.push(Completion { id, result: Ok(n as u64), payload: Payload::Data(data) });
        }
    }

    /// Sends `what` to `to`. It arrives after everything that is already under way.
    fn dispatch(&mut self, now: u64, to: SocketId, what: Option<usize>) {
        let latency = self.model.latency.draw(&mut self.rng);
        if let Some(Socket::End(end)) = self.sockets.get_mut(&to) {
            end.under_way.push_back(what);
            end.last_arrival = end.last_arrival.max(now + latency);
            self.later.push((end.last_arrival, to, WireEvent::Arrive));
        }
    }

    fn pump_recvs(&mut self, now: u64, socket: SocketId, done: &mut Vec<Completion>) {
        let mut taken = false;
        let Some(Socket::End(end)) = self.sockets.get_mut(&socket) else { return };
        while let Some(mut recv) = end.recvs.pop_front() {
            let room = recv.buf.first().map_or(0, |b| b.len().saturating_sub(recv.at));
            let mut n = room.min(end.arrived);
            if !recv.fill {
                n = fragment(n, self.model.fragments, &mut self.rng);
            }
            if n > 0 {
                let (a, b) = end.inbox.as_slices();
                let out = &mut recv.buf[0][recv.at..recv.at + n];
                let from_a = n.min(a.len());
                out[..from_a].copy_from_slice(&a[..from_a]);
                out[from_a..].copy_from_slice(&b[..n - from_a]);
                end.inbox.drain(..n);
                (end.arrived, recv.at, taken) = (end.arrived - n, recv.at + n, true);
            }
            let got = (recv.at - recv.start) as u64;
            if (recv.fill && n == room) || (!recv.fill && (n > 0 || room == 0)) {
                done.push(recv.end(Ok(got)));
            } else if end.reset && got == 0 {
                done.push(recv.end(Err(IoError::RESET)));
            } else if end.reset || end.ended {
                done.push(recv.end(Ok(got)));
            } else {
                end.recvs.push_front(recv);
                break;
            }
        }
        if taken {
            let peer = end.peer;
            self.soon(now, peer, WireEvent::Pump);
        }
    }

    fn close(&mut self, now: u64, id: OpId, socket: SocketId, done: &mut Vec<Completion>) {
        let result = match self.sockets.remove(&socket) {
            None => Err(BAD_SOCKET),
            Some(Socket::Listener { waiting, accepts }) => {
                done.extend(accepts.into_iter().map(|id| Completion {
                    id,
                    result: Err(CLOSED),
                    payload: Payload::None,
                }));
                for server in waiting {
                    self.reset(now, server);
                    self.sockets.remove(&server);
                }
                Ok(0)
            }
            Some(Socket::End(end)) => {
                let sends = end.sends.into_iter();
                done.extend(sends.map(|(id, data)| Completion {
                    id,
                    result: Err(CLOSED),
                    payload: Payload::Data(data),
                }));
                done.extend(end.recvs.into_iter().map(|r| r.end(Err(CLOSED))));
                self.dispatch(now, end.peer, None);
                self.soon(now, end.peer, WireEvent::Pump);
                Ok(0)
            }
        };
        done.push(Completion { id, result, payload: Payload::None });
    }
}

/// A part of `n`: at least 1 if `n` is not 0, and often all of it.
fn fragment(n: usize, fragments: bool, rng: &mut Prng) -> usize {
    if n < 2 || !fragments || rng.one_in(2) { n } else { rng.range(1, n as u64 + 1) as usize }
}
