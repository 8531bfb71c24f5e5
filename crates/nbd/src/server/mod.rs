//! Connections, and what they may use together.
//!
//! Each connection has a task that receives ([`session`]) and one that sends; each request has a
//! task of its own, so requests of one connection are answered as they end. Three bounds hold,
//! whatever clients do:
//!
//! * connections: further ones are closed at once, and of those that are not known the oldest
//!   ([`origin`]);
//! * requests in flight, by connection: a request holds its place from its header to the last byte
//!   of its reply, and while there is no place the socket is not read;
//! * bytes of payload, over all connections: taken before memory is, for a write until it is done,
//!   for a read until its reply is sent. A request that waits for bytes holds none for that
//!   request, so all who hold some can go on. Exports get them in turn ([`budget`]).
//!
//! Before it takes bytes a request is admitted by its export, which may have it wait; its
//! connection is not read meanwhile.
//!
//! A peer that neither sends the payload it announced nor reads its replies would keep bytes from
//! others for as long as it likes: where somebody has waited for [`Limits::stall_timeout`],
//! connections that have stood still for as long are closed. So are those that merely trickle: a
//! slow client is one that moves 2 MiB in that time, or all that is left of its payload or replies.
//! At the default that is 70 KiB/s, so the largest request holds its bytes for eight minutes at
//! most.

mod budget;
mod connection;
mod execute;
mod origin;
mod session;
mod shared;

use std::cell::Cell;
use std::rc::Rc;

use base::Duration;
use rt::{Op, Payload, Rt, SocketId};

use crate::export::Exports;
use connection::Connection;
use shared::{Shared, within};

pub use connection::ConnectionStatus;
pub use origin::{ClientOrigin, ClientWay};
pub use shared::{Acceptors, Crowd, CrowdOutcome, Limits, Origins, Security};

/// The counts of a server: its work now, and since its start.
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
    /// Connections that were closed before their client was known, for others that came later.
    pub crowded_out: u64,
    /// The last time that there was no room for a client: over unix sockets, and over TCP.
    pub crowds: [Option<Crowd>; 2],
    /// Connections that were closed because they stood still while others waited.
    pub stalled: u64,
    /// Handshakes of TLS that were done.
    pub handshakes: u64,
    /// Handshakes of TLS that failed.
    pub handshakes_failed: u64,
}

/// A server of exports. Clones are the same server.
pub struct Server<E: Exports>(Rc<Shared<E>>);

impl<E: Exports> Clone for Server<E> {
    fn clone(&self) -> Self {
        Server(self.0.clone())
    }
}

impl<E: Exports> Server<E> {
    /// A server without listeners.
    pub fn new(rt: Rt, exports: E, limits: Limits) -> Server<E> {
        Server(Rc::new(Shared::new(rt, exports, limits)))
    }

    /// Serves who connects to `listener`, in tasks of its own, until [`Server::shutdown`], which
    /// closes it. They have no TLS.
    pub fn serve(&self, listener: SocketId) {
        self.serve_with(listener, Security::Plain);
    }

    /// The same with TLS.
    pub fn serve_with(&self, listener: SocketId, security: Security) {
        self.0.listeners.borrow_mut().push(listener);
        let shared = self.0.clone();
        drop(self.0.rt.spawn(accept(shared, listener, security)));
    }

    /// Asks this where a client comes from, from now on. Without it all are of this machine.
    pub fn find_clients_by(&self, origins: Origins) {
        self.0.origins.replace(Some(origins));
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
                from = %c.origin(),
                requests = c.in_flight(),
                "closed with requests in flight"
            );
            c.close();
        }
        within(&s.rt, Duration::from_secs(1), s.all_ended()).await.is_some()
    }

    /// Returns the counts of the server.
    pub fn status(&self) -> Status {
        let s = &self.0;
        let connections = s.connections.borrow();
        Status {
            connections: connections.len(),
            requests: connections.values().map(|c| c.in_flight()).sum(),
            payload_bytes: s.payload.taken(),
            accepted: s.accepted.get(),
            refused: s.refused.get(),
            crowded_out: s.crowded_out.get(),
            crowds: s.crowds.each_ref().map(Cell::get),
            stalled: s.stalled.get(),
            handshakes: s.handshakes.get(),
            handshakes_failed: s.handshakes_failed.get(),
        }
    }

    /// An export has another name now, also for those that have it open.
    pub fn note_renamed(&self, from: &str, to: &str) {
        for c in self.0.connections.borrow().values() {
            if let Some((name, _)) = c.open.borrow_mut().as_mut().filter(|(name, _)| name == from) {
                to.clone_into(name);
            }
        }
    }

    /// The connections that are open, in the order in which they were accepted.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        self.0.connections.borrow().values().map(|c| c.status()).collect()
    }
}

/// After an accept that failed, for want of descriptors say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

async fn accept<E: Exports>(s: Rc<Shared<E>>, listener: SocketId, security: Security) {
    // Of a row of failures the first is logged.
    let mut fails = false;
    while !s.stopping.get() {
        let done = s.rt.op(Op::Accept { listener }).await;
        let socket = match (done.result, done.payload) {
            (Ok(_), Payload::Socket(socket)) => socket,
            (result, _) => {
                if !s.stopping.get() {
                    if !std::mem::replace(&mut fails, true) {
                        tracing::warn!(?result, "accept failed; tried again until it succeeds");
                    }
                    s.rt.sleep(ACCEPT_AGAIN).await;
                }
                continue;
            }
        };
        fails = false;
        let origin = s.origins.borrow().as_ref().map_or(ClientOrigin::Local, |of| of(socket));
        let full = !s.has_place(origin.way());
        if full || s.stopping.get() {
            if full {
                s.note_refused(origin);
            }
            s.rt.submit(Op::Close { socket }, |_| ());
            continue;
        }
        s.make_room(origin.way());
        let number = s.accepted.get() + 1;
        s.accepted.set(number);
        let in_flight = s.limits.max_in_flight_requests;
        let c = Rc::new(Connection::new(&s.rt, number, origin, socket, in_flight));
        s.connections.borrow_mut().insert(number, c.clone());
        let (s2, security) = (s.clone(), security.clone());
        drop(s.rt.spawn(async move {
            session::run(&s2, &c, &security).await;
            s2.connections.borrow_mut().remove(&number);
            s2.ended.notify();
        }));
    }
}
