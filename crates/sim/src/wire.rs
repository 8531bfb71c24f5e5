//! Connections between two ends that both belong to the backend: streams of bytes with latency, cut anywhere.
//!
//! A send takes some prefix of what it is given, as far as the receiver's buffer has room, else it waits; bytes arrive in
//! order after a latency; a receive gives any part of what has arrived. A close lets what was sent arrive, then the end
//! of the stream. A reset (the peer's machine is gone) lets nothing more arrive.

use std::collections::VecDeque;

use base::{BufList, Duration, IoError, Prng, SliceList};
use rt::{Completion, OpId, Payload, SocketId};
use rustc_hash::FxHashMap;

use crate::disk::by_range;

/// EBADF.
const BAD_SOCKET: IoError = IoError(9);
/// Of operations whose own socket is closed under them.
const CLOSED: IoError = IoError::CANCELED;

/// How connections behave.
#[derive(Clone, Debug)]
pub struct WireModel {
    /// Least and most time from a send to its arrival, and of anything else on a socket.
    pub latency: (Duration, Duration),
    /// Bytes sent and not yet received, on one direction of a connection.
    pub buffer_bytes: usize,
    /// Sends and receives are cut at random places; else only where they must.
    pub fragments: bool,
}

impl Default for WireModel {
    fn default() -> WireModel {
        let latency = (Duration::from_micros(2), Duration::from_micros(40));
        WireModel { latency, buffer_bytes: 256 << 10, fragments: true }
    }
}

/// Something that happens on the wire, to a socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WireEvent {
    /// Its operations are looked at.
    Pump,
    /// The next of what is under way to it arrives.
    Arrive,
    /// A close, with the operation's number, takes place.
    Close(u64),
}

struct PendingRecv {
    id: OpId,
    buf: BufList,
    /// Where the next byte goes.
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
    /// Sent to this end and not yet received; the first `arrived` bytes can be.
    inbox: VecDeque<u8>,
    arrived: usize,
    /// Lengths of what is under way, in order; `None` is the end of the stream.
    under_way: VecDeque<Option<usize>>,
    /// When the last of it arrives.
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

/// What the wire wants to happen later: when, to whom, what.
pub(crate) type Later = Vec<(u64, SocketId, WireEvent)>;

pub(crate) struct Wire {
    pub model: WireModel,
    rng: Prng,
    /// Looked up, never iterated.
    sockets: FxHashMap<SocketId, Socket>,
    next: u32,
    pub later: Later,
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

    /// All connections are gone; no number comes back.
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

    /// Both ends of a connection see a reset.
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
        let when = now + by_range(self.model.latency, &mut self.rng);
        self.later.push((when, socket, event));
    }

    /// Takes an accept; gives its completion if there is no such socket. So do the three that follow.
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
        (buf, start, fill): (BufList, usize, bool),
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
                        // A reset came before it.
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
                // It goes on when the peer has received something.
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

    /// Sends `what` on its way to `to`; it arrives after all that is under way already.
    fn dispatch(&mut self, now: u64, to: SocketId, what: Option<usize>) {
        let latency = by_range(self.model.latency, &mut self.rng);
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

/// Some of `n`, at least one if `n` is not 0; often all.
fn fragment(n: usize, fragments: bool, rng: &mut Prng) -> usize {
    if n < 2 || !fragments || rng.one_in(2) { n } else { rng.range(1, n as u64 + 1) as usize }
}
