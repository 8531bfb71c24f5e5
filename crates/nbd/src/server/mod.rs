//! Connections, and what they may use together.
//!
//! Each connection has a task that receives ([`connection`]) and one that sends; each request has a
//! task of its own, so requests of one connection are answered as they end. Three bounds hold,
//! whatever clients do:
//!
//! * connections: further ones are closed at once;
//! * requests in flight, by connection: a request holds its place from its header to the last byte
//!   of its reply, and while there is no place the socket is not read;
//! * bytes of payload, over all connections: taken before memory is, for a write until it is done,
//!   for a read until its reply is sent. A request that waits for bytes holds none for that
//!   request, so all who hold some can go on.
//!
//! A peer that neither sends the payload it announced nor reads its replies would keep bytes from
//! others for as long as it likes: where somebody has waited for [`Limits::stall_timeout`],
//! connections that have stood still for as long are closed. So are those that merely trickle: a
//! slow client is one that moves 2 MiB in that time, or all that is left of its payload or replies.
//! At the default that is 70 KiB/s, so the largest request holds its bytes for eight minutes at
//! most.

mod connection;
mod execute;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use base::{BLOCK_U64, Duration};
use rt::sync::{Event, Permit, Semaphore};
use rt::{Op, Payload, Rt, SocketId};

use crate::codec::MAX_PAYLOAD;
use crate::export::Exports;
use connection::Connection;

/// How much clients may use.
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

/// What the server is doing now, and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Connections that are open.
    pub connections: usize,
    /// Requests that have been received and not yet answered completely.
    pub requests: u64,
    /// Bytes of payload in use.
    pub payload_bytes: u64,
    /// Connections that were accepted since the start.
    pub accepted: u64,
    /// Connections that were closed at once because there were too many.
    pub refused: u64,
    /// Connections that were closed because they stood still while others waited.
    pub stalled: u64,
}

/// A server of exports. Clones are the same server.
pub struct Server<E: Exports>(Rc<Shared<E>>);

impl<E: Exports> Clone for Server<E> {
    fn clone(&self) -> Self {
        Server(self.0.clone())
    }
}

pub(crate) struct Shared<E> {
    rt: Rt,
    exports: E,
    limits: Limits,
    payload: Semaphore,
    payload_total: u64,
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    listeners: RefCell<Vec<SocketId>>,
    stopping: Cell<bool>,
    accepted: Cell<u64>,
    refused: Cell<u64>,
    stalled: Cell<u64>,
    /// Rings when a connection has ended.
    ended: Event,
}

impl<E: Exports> Server<E> {
    /// A server without listeners.
    pub fn new(rt: Rt, exports: E, limits: Limits) -> Server<E> {
        let payload_total = limits.max_payload_bytes.max(u64::from(MAX_PAYLOAD));
        Server(Rc::new(Shared {
            rt,
            exports,
            limits: Limits {
                max_in_flight_requests: limits.max_in_flight_requests.max(1),
                ..limits
            },
            payload: Semaphore::new(payload_total),
            payload_total,
            connections: RefCell::new(BTreeMap::new()),
            listeners: RefCell::new(Vec::new()),
            stopping: Cell::new(false),
            accepted: Cell::new(0),
            refused: Cell::new(0),
            stalled: Cell::new(0),
            ended: Event::new(),
        }))
    }

    /// Serves who connects to `listener`, in tasks of its own, until [`Server::shutdown`], which
    /// closes it.
    pub fn serve(&self, listener: SocketId) {
        self.0.listeners.borrow_mut().push(listener);
        let shared = self.0.clone();
        drop(self.0.rt.spawn(accept(shared, listener)));
    }

    /// Stops: closes the listeners, takes no more requests, lets those in flight end and be
    /// answered for at most `grace`, closes the connections. Completes when no connection is left,
    /// or a second after they were closed if the export does not end its requests; true if all of
    /// them ended.
    pub async fn shutdown(&self, grace: Duration) -> bool {
        let s = &self.0;
        s.stopping.set(true);
        for listener in s.listeners.take() {
            s.rt.submit(Op::Close { socket: listener }, |_| ());
        }
        let connections: Vec<_> = s.connections.borrow().values().cloned().collect();
        for c in &connections {
            let c = c.clone();
            drop(s.rt.spawn(async move { c.drain_and_close().await }));
        }
        if within(&s.rt, grace, s.all_ended()).await.is_some() {
            return true;
        }
        for c in s.connections.borrow().values() {
            tracing::warn!(
                connection = c.number(),
                requests = c.in_flight(),
                "closed with requests in flight"
            );
            c.close();
        }
        within(&s.rt, Duration::from_secs(1), s.all_ended()).await.is_some()
    }

    /// What the server is doing now.
    pub fn status(&self) -> Status {
        let s = &self.0;
        let connections = s.connections.borrow();
        Status {
            connections: connections.len(),
            requests: connections.values().map(|c| c.in_flight()).sum(),
            payload_bytes: s.payload_total - s.payload.free(),
            accepted: s.accepted.get(),
            refused: s.refused.get(),
            stalled: s.stalled.get(),
        }
    }
}

impl<E: Exports> Shared<E> {
    async fn all_ended(&self) {
        while !self.connections.borrow().is_empty() {
            self.ended.wait().await;
        }
    }

    /// Bytes for the payload of one request.
    async fn payload_permit(&self, len: u32) -> Permit {
        // What a buffer of that size takes.
        let n = u64::from(len).next_power_of_two().clamp(BLOCK_U64, u64::from(MAX_PAYLOAD));
        if let Some(p) = self.payload.try_acquire(n) {
            return p;
        }
        let mut acquire = pin!(self.payload.acquire(n));
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
                    "closed: it stood still while others waited for its buffers"
                );
                self.stalled.set(self.stalled.get() + 1);
                c.close();
            }
        }
    }
}

/// After an accept that failed, for want of descriptors say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

async fn accept<E: Exports>(s: Rc<Shared<E>>, listener: SocketId) {
    while !s.stopping.get() {
        let done = s.rt.op(Op::Accept { listener }).await;
        let socket = match (done.result, done.payload) {
            (Ok(_), Payload::Socket(socket)) => socket,
            (result, _) => {
                if !s.stopping.get() {
                    tracing::warn!(?result, "accept failed");
                    s.rt.sleep(ACCEPT_AGAIN).await;
                }
                continue;
            }
        };
        let full = s.connections.borrow().len() >= s.limits.max_connections;
        if full || s.stopping.get() {
            if full {
                tracing::warn!(limit = s.limits.max_connections, "connection refused: too many");
                s.refused.set(s.refused.get() + 1);
            }
            s.rt.submit(Op::Close { socket }, |_| ());
            continue;
        }
        let number = s.accepted.get() + 1;
        s.accepted.set(number);
        let c = Rc::new(Connection::new(&s.rt, number, socket, s.limits.max_in_flight_requests));
        s.connections.borrow_mut().insert(number, c.clone());
        let s2 = s.clone();
        drop(s.rt.spawn(async move {
            connection::run(&s2, &c).await;
            s2.connections.borrow_mut().remove(&number);
            s2.ended.notify();
        }));
    }
}

/// The result of `future` if it comes in time.
async fn within<T>(rt: &Rt, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
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
