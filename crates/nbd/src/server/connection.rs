//! One connection: its requests in flight, and the replies that go out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Duration, Instant, SliceList};
use rt::sync::{Permit, Semaphore};
use rt::{Request, Rt, SocketId};
use tls::Peer;

use super::budget::Bytes;
use super::origin::ClientOrigin;
use crate::codec::reply;
use crate::link::Link;
use crate::outbox::{Message, Outbox};

/// The holdings of a reply until its last chunk is sent: its place among the requests in flight,
/// the bytes of its payload, and the request, which has ended then.
#[derive(Default)]
pub(super) struct Permits {
    _place: Option<Permit>,
    _payload: Option<Bytes>,
    _request: Option<Request>,
}

/// A connection, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionStatus {
    /// The number of the connection: from 1, in the order in which connections were accepted.
    pub number: u64,
    /// When the connection was accepted.
    pub accepted_at: Instant,
    /// Where the client comes from.
    pub origin: ClientOrigin,
    /// The export that it has open; absent during the handshake.
    pub export: Option<String>,
    /// True if the client may change nothing.
    pub read_only: bool,
    /// The client, if it came over TLS.
    pub peer: Option<Peer>,
    /// Requests that have been received and not yet answered completely.
    pub requests: u64,
}

pub(super) struct Connection {
    number: u64,
    accepted_at: Instant,
    origin: ClientOrigin,
    pub peer: RefCell<Option<Peer>>,
    /// The export, and whether it is read-only.
    pub open: RefCell<Option<(String, bool)>>,
    /// The steps of the handshake that the client has taken.
    pub progress: Cell<u32>,
    pub link: Rc<Link>,
    pub outbox: Outbox<Permits>,
    pub places: Semaphore,
    max_in_flight: u64,
}

impl Connection {
    pub fn new(
        rt: &Rt,
        number: u64,
        origin: ClientOrigin,
        socket: SocketId,
        max_in_flight: usize,
    ) -> Connection {
        let link = Rc::new(Link::new(rt.clone(), socket));
        let max_in_flight = max_in_flight as u64;
        let places = Semaphore::new(max_in_flight);
        let outbox = Outbox::new(link.clone());
        let (peer, open) = (RefCell::default(), RefCell::default());
        let progress = Cell::new(0);
        Connection {
            number,
            accepted_at: rt.now(),
            origin,
            peer,
            open,
            progress,
            outbox,
            link,
            places,
            max_in_flight,
        }
    }

    pub fn status(&self) -> ConnectionStatus {
        let open = self.open.borrow().clone();
        ConnectionStatus {
            number: self.number,
            accepted_at: self.accepted_at,
            origin: self.origin,
            read_only: open.as_ref().is_some_and(|(_, read_only)| *read_only),
            export: open.map(|(name, _)| name),
            peer: self.peer.borrow().clone(),
            requests: self.in_flight(),
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn origin(&self) -> ClientOrigin {
        self.origin
    }

    /// Whether the client has an export, or has proved a name.
    pub fn is_known(&self) -> bool {
        let peer = self.peer.borrow();
        self.open.borrow().is_some() || peer.as_ref().is_some_and(|peer| peer.name().is_some())
    }

    /// Requests that have been received and not yet answered completely.
    pub fn in_flight(&self) -> u64 {
        self.max_in_flight - self.places.free()
    }

    pub fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    pub fn close(&self) {
        self.link.close();
    }

    pub fn stalled(&self, limit: Duration) -> bool {
        self.link.stalled(limit)
    }

    /// Takes no more requests, waits until those in flight are answered, closes.
    pub async fn drain_and_close(&self) {
        let _all = self.places.acquire(self.max_in_flight).await;
        self.link.farewell().await;
        self.link.close();
    }

    /// Sends a part of a reply of which more follows.
    pub fn push_part(&self, head: reply::Head, data: SliceList) {
        self.outbox.push(Message { head, data, permits: Permits::default() });
    }

    /// Sends a reply, or the rest of it.
    pub fn push(
        &self,
        head: reply::Head,
        data: SliceList,
        place: Permit,
        payload: Option<Bytes>,
        mut request: Request,
    ) {
        request.replies();
        let permits = Permits { _place: Some(place), _payload: payload, _request: Some(request) };
        self.outbox.push(Message { head, data, permits });
    }
}
