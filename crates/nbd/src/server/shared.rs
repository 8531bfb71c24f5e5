//! The state that the connections of a server share: limits, the bytes of payloads, and who is
//! connected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use base::crowd::{CrowdMember, makes_room};
use base::telling::TellingQuota;
use base::{BLOCK_U64, Duration, Instant, VolumeId};
use rt::sync::Event;
use rt::{Rt, SocketId};
use tls::Acceptor;

use super::budget::{Budget, Bytes};
use super::connection::Connection;
use super::origin::{ClientOrigin, ClientWay};
use crate::codec::MAX_PAYLOAD;
use crate::export::Exports;
use crate::handshake::Encryption;

/// The limits of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients at a time that have an export, or have proved a name: so many over unix sockets, and
    /// so many over TCP.
    pub max_connections: usize,
    /// Others that find room beside these, where all of those are there.
    pub max_unknown: usize,
    /// Requests of one connection that are being carried out or answered; at least 1.
    pub max_in_flight_requests: usize,
    /// Bytes of payload of all connections; 32 MiB, the largest request, is the least it can be.
    pub max_payload_bytes: u64,
    /// A client that has not come to an export in this time is closed.
    pub handshake_timeout: Duration,
    /// After so long without progress in the middle of a payload or of replies a connection may be
    /// closed in favour of others that wait for its bytes. Progress is 2 MiB, or all that is left.
    pub stall_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_connections: 256,
            max_unknown: 64,
            max_in_flight_requests: 128,
            max_payload_bytes: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Gives the acceptor of which sessions are made; it may give another one later.
pub type Acceptors = Rc<dyn Fn() -> Acceptor>;

/// Says where the peer of a socket comes from.
pub type Origins = Rc<dyn Fn(SocketId) -> ClientOrigin>;

/// What became of a client for which there was no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrowdOutcome {
    /// The client was refused: all places of clients that are known are taken.
    Refused,
    /// The client was not known, and was closed for one that came after it.
    CrowdedOut,
}

/// A time at which there was no room for a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crowd {
    /// When that was.
    pub at: Instant,
    /// Where the client came from.
    pub origin: ClientOrigin,
    /// What became of it.
    pub outcome: CrowdOutcome,
}

/// After so long without a refusal the next one is logged again.
const QUIET: Duration = Duration::from_secs(60);

/// The security of the clients of a listener.
#[derive(Clone)]
pub enum Security {
    /// Clients cannot have TLS.
    Plain,
    /// Clients may have TLS.
    Offered(Acceptors),
    /// Clients must have TLS.
    Required(Acceptors),
}

impl Security {
    /// Returns the state of TLS at a client that connects.
    pub(super) fn encryption(&self) -> Encryption {
        match self {
            Security::Plain => Encryption::Absent,
            Security::Offered(_) => Encryption::Offered,
            Security::Required(_) => Encryption::Required,
        }
    }

    pub(super) fn acceptor(&self) -> Option<Acceptor> {
        match self {
            Security::Plain => None,
            Security::Offered(current) | Security::Required(current) => Some(current()),
        }
    }
}

pub(super) struct Shared<E> {
    pub rt: Rt,
    pub exports: E,
    pub limits: Limits,
    pub payload: Budget,
    pub connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    pub listeners: RefCell<Vec<SocketId>>,
    pub origins: RefCell<Option<Origins>>,
    pub stopping: Cell<bool>,
    pub accepted: Cell<u64>,
    pub refused: Cell<u64>,
    pub crowded_out: Cell<u64>,
    /// The last time that there was no room for a client, by the way of it.
    pub crowds: [Cell<Option<Crowd>>; 2],
    pub stalled: Cell<u64>,
    pub handshakes: Cell<u64>,
    pub handshakes_failed: Cell<u64>,
    failures: TellingQuota,
    /// Rings when a connection has ended.
    pub ended: Event,
}

impl<E: Exports> Shared<E> {
    /// Nothing is served yet.
    pub fn new(rt: Rt, exports: E, limits: Limits) -> Shared<E> {
        let payload_total = limits.max_payload_bytes.max(u64::from(MAX_PAYLOAD));
        Shared {
            rt,
            exports,
            limits: Limits {
                max_in_flight_requests: limits.max_in_flight_requests.max(1),
                ..limits
            },
            payload: Budget::new(payload_total),
            connections: RefCell::new(BTreeMap::new()),
            listeners: RefCell::new(Vec::new()),
            origins: RefCell::new(None),
            stopping: Cell::new(false),
            accepted: Cell::new(0),
            refused: Cell::new(0),
            crowded_out: Cell::new(0),
            crowds: Default::default(),
            stalled: Cell::new(0),
            handshakes: Cell::new(0),
            handshakes_failed: Cell::new(0),
            failures: TellingQuota::default(),
            ended: Event::new(),
        }
    }

    /// Tells the log of a client that does not get what it asks for, and why; unless it has told of
    /// many a moment ago.
    pub fn tell_failed(&self, c: &Connection, why: fmt::Arguments<'_>) {
        let Some(untold) = self.failures.take(self.rt.now()) else { return };
        let untold = (untold > 0).then_some(untold);
        tracing::warn!(connection = c.number(), from = %c.origin(), untold, "{why}");
    }

    fn known(&self, way: ClientWay) -> usize {
        let connections = self.connections.borrow();
        let open = connections.values().filter(|c| c.origin().way() == way && !c.is_closed());
        open.filter(|c| c.is_known()).count()
    }

    /// Whether one more client that is known may come this way.
    pub fn has_place(&self, way: ClientWay) -> bool {
        self.known(way) < self.limits.max_connections
    }

    /// Closes a client that is not known, if that is needed for one more to come this way.
    pub fn make_room(&self, way: ClientWay) {
        let connections = self.connections.borrow();
        let open = || {
            let all = connections.iter();
            all.filter(move |(_, c)| c.origin().way() == way && !c.is_closed())
        };
        if open().count() < self.limits.max_connections + self.limits.max_unknown {
            return;
        }
        let unknown: Vec<_> = open()
            .filter(|(_, c)| !c.is_known())
            .map(|(number, c)| CrowdMember {
                number: *number,
                host: c.origin().host(),
                progress: c.progress.get(),
            })
            .collect();
        let Some(c) = makes_room(&unknown).and_then(|number| connections.get(&number)) else {
            return;
        };
        self.crowded_out.set(self.crowded_out.get() + 1);
        if self.note_crowd(c.origin(), CrowdOutcome::CrowdedOut) {
            tracing::warn!(
                from = %c.origin(),
                "closed, as too many connections {} have not said which volume they want; so are \
                 others, the oldest of whom has the most",
                way.words()
            );
        }
        c.close();
    }

    /// Notes a client that is sent away because there is no place.
    pub fn note_refused(&self, origin: ClientOrigin) {
        self.refused.set(self.refused.get() + 1);
        if self.note_crowd(origin, CrowdOutcome::Refused) {
            tracing::warn!(
                limit = self.limits.max_connections,
                from = %origin,
                "connection refused: too many {}; so are others until there is room",
                origin.way().words()
            );
        }
    }

    /// Notes that there was no room. True if that is worth a line in the log: it was quiet before.
    fn note_crowd(&self, origin: ClientOrigin, outcome: CrowdOutcome) -> bool {
        let at = self.rt.now();
        let last = &self.crowds[origin.way() as usize];
        let before = last.replace(Some(Crowd { at, origin, outcome }));
        before.is_none_or(|before| before.outcome != outcome || at.since(before.at) > QUIET)
    }

    /// Waits until no connection is left.
    pub async fn all_ended(&self) {
        while !self.connections.borrow().is_empty() {
            self.ended.wait().await;
        }
    }

    /// Bytes for the payload of one request of a volume, if it need not wait for them.
    pub fn try_payload_permit(&self, volume: VolumeId, len: u32) -> Option<Bytes> {
        self.payload.try_take(volume.0.into(), bytes_for(len))
    }

    /// Bytes for the payload of one request of a volume. A request that waits here must hold
    /// nothing that one with bytes may wait for: it [rests](crate::Export::rest).
    pub async fn payload_permit(&self, volume: VolumeId, len: u32) -> Bytes {
        let mut acquire = pin!(self.payload.take(volume.0.into(), bytes_for(len)));
        loop {
            if let Some(p) = within(&self.rt, self.limits.stall_timeout, acquire.as_mut()).await {
                return p;
            }
            self.close_stalled();
        }
    }

    fn close_stalled(&self) {
        for c in self.connections.borrow().values() {
            if !c.is_closed() && c.stalled(self.limits.stall_timeout) {
                tracing::warn!(
                    connection = c.number(),
                    from = %c.origin(),
                    "closed: stalled while other connections waited for buffers"
                );
                self.stalled.set(self.stalled.get() + 1);
                c.close();
            }
        }
    }
}

/// Returns the bytes that a buffer for a payload of `len` bytes takes.
fn bytes_for(len: u32) -> u64 {
    u64::from(len).next_power_of_two().clamp(BLOCK_U64, u64::from(MAX_PAYLOAD))
}

/// The result of `future` if it comes in time.
pub(super) async fn within<T>(
    rt: &Rt,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(rt.sleep(limit));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(v) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(v));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}
