//! The state that the connections of a server share: limits, the bytes of payloads, and who is
//! connected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use base::{BLOCK_U64, Duration, VolumeId};
use rt::sync::Event;
use rt::{Rt, SocketId};
use tls::Acceptor;

use super::budget::{Budget, Bytes};
use super::connection::Connection;
use crate::codec::MAX_PAYLOAD;
use crate::export::Exports;
use crate::handshake::Encryption;

/// The limits of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at a time, in handshake or beyond.
    pub max_connections: usize,
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
            max_in_flight_requests: 128,
            max_payload_bytes: 64 << 20,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Gives the acceptor of which sessions are made; it may give another one later.
pub type Acceptors = Rc<dyn Fn() -> Acceptor>;

/// Says where the peer of a socket is, if it came over TCP.
pub type Addresses = Rc<dyn Fn(SocketId) -> Option<SocketAddr>>;

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
    pub addresses: RefCell<Option<Addresses>>,
    pub stopping: Cell<bool>,
    pub accepted: Cell<u64>,
    pub refused: Cell<u64>,
    pub stalled: Cell<u64>,
    pub handshakes: Cell<u64>,
    pub handshakes_failed: Cell<u64>,
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
            addresses: RefCell::new(None),
            stopping: Cell::new(false),
            accepted: Cell::new(0),
            refused: Cell::new(0),
            stalled: Cell::new(0),
            handshakes: Cell::new(0),
            handshakes_failed: Cell::new(0),
            ended: Event::new(),
        }
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
                    address = c.address(),
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
