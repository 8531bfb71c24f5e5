//! The places of connections at a listener.
//!
//! A client is known once a request of it was granted: over TCP by the token, over the unix socket
//! by its being there. Until then it costs its peer nothing to hold a place. So when all are taken,
//! one that is not known makes room for the next: of those that have not asked for anything the
//! first of the host, or of the user, that has the most of them. A client that is known keeps its
//! place.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::crowd::{CrowdMember, makes_room};
use base::telling::TellingQuota;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Who answers for a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
    /// Somebody on this machine.
    Unknown,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Address(address) => address.fmt(f),
            Host::User(uid) => write!(f, "user {uid}"),
            Host::Unknown => f.write_str("this machine"),
        }
    }
}

/// The last time that there was no room for a connection.
#[derive(Clone, Copy, Debug)]
pub struct HttpCrowd {
    /// When that was.
    pub at: Instant,
    /// Where the connection came from that was closed.
    pub from: Host,
    /// True if it was refused, as all places were taken by clients that are known; false if it made
    /// room for another one.
    pub refused: bool,
}

/// Counts of connections for which there was no room, and of requests that were refused; of all
/// listeners.
pub struct HttpCrowds {
    began: Instant,
    /// Connections that were refused.
    pub refused: AtomicU64,
    /// Connections that made room for others.
    pub crowded_out: AtomicU64,
    last: Mutex<Option<HttpCrowd>>,
    failures: Mutex<TellingQuota>,
    rooms: Mutex<TellingQuota>,
}

impl Default for HttpCrowds {
    fn default() -> HttpCrowds {
        HttpCrowds {
            began: Instant::now(),
            refused: AtomicU64::new(0),
            crowded_out: AtomicU64::new(0),
            last: Mutex::default(),
            failures: Mutex::default(),
            rooms: Mutex::default(),
        }
    }
}

impl HttpCrowds {
    /// The last time that there was no room.
    pub fn last(&self) -> Option<HttpCrowd> {
        *lock(&self.last)
    }

    /// Tells the log of a request that was refused, unless many were told a moment ago.
    pub fn tell_refused(&self, from: Host, why: &str) {
        if let Some(untold) = lock(&self.failures).take(self.now()) {
            let untold = (untold > 0).then_some(untold);
            tracing::warn!(%from, untold, "an HTTP request was refused: {why}");
        }
    }

    fn now(&self) -> base::Instant {
        base::Instant(0).after(self.began.elapsed())
    }

    fn note(&self, from: Host, refused: bool) {
        let count = if refused { &self.refused } else { &self.crowded_out };
        count.fetch_add(1, Ordering::Relaxed);
        *lock(&self.last) = Some(HttpCrowd { at: Instant::now(), from, refused });
        if let Some(untold) = lock(&self.rooms).take(self.now()) {
            let (untold, what) = (
                (untold > 0).then_some(untold),
                match refused {
                    true => "refused: all places are taken",
                    false => "closed for another one, as it had not asked for anything",
                },
            );
            tracing::warn!(%from, untold, "an HTTP connection was {what}");
        }
    }
}

/// The places at a listener.
pub struct ConnectionPlaces {
    limit: usize,
    open: Mutex<OpenConnections>,
    crowds: Arc<HttpCrowds>,
    /// Rings when a connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    all: BTreeMap<u64, OpenConnection>,
}

struct OpenConnection {
    host: Host,
    /// A whole request has come.
    asked: bool,
    known: bool,
    close: Arc<Notify>,
}

impl ConnectionPlaces {
    /// So many places.
    pub fn new(limit: usize, crowds: &Arc<HttpCrowds>) -> Arc<ConnectionPlaces> {
        Arc::new(ConnectionPlaces {
            limit,
            open: Mutex::default(),
            crowds: crowds.clone(),
            ended: Notify::new(),
        })
    }

    /// A place for a connection; `None` if all are taken by clients that are known.
    pub fn take(self: &Arc<Self>, host: Host) -> Option<ConnectionPlace> {
        let mut open = lock(&self.open);
        if open.all.len() >= self.limit {
            let unknown = open.all.iter().filter(|(_, one)| !one.known);
            let unknown: Vec<_> = unknown
                .map(|(number, one)| CrowdMember {
                    number: *number,
                    host: one.host,
                    progress: one.asked.into(),
                })
                .collect();
            let gone = makes_room(&unknown).and_then(|number| open.all.remove(&number));
            let Some(gone) = gone else {
                drop(open);
                self.crowds.note(host, true);
                return None;
            };
            gone.close.notify_one();
            self.crowds.note(gone.host, false);
        }
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        let one = OpenConnection { host, asked: false, known: false, close: close.clone() };
        open.all.insert(number, one);
        Some(ConnectionPlace { places: self.clone(), number, close })
    }

    /// Waits until no connection has a place.
    pub async fn all_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if lock(&self.open).all.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

/// The place of a connection, until this is dropped.
pub struct ConnectionPlace {
    places: Arc<ConnectionPlaces>,
    number: u64,
    close: Arc<Notify>,
}

impl ConnectionPlace {
    /// A request of the client has come.
    pub fn note_asked(&self) {
        if let Some(one) = lock(&self.places.open).all.get_mut(&self.number) {
            one.asked = true;
        }
    }

    /// A request of the client was granted.
    pub fn note_known(&self) {
        if let Some(one) = lock(&self.places.open).all.get_mut(&self.number) {
            one.known = true;
        }
    }

    /// Waits until the connection has to make room.
    pub async fn lost(&self) {
        self.close.notified().await;
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        lock(&self.places.open).all.remove(&self.number);
        self.places.ended.notify_waiters();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_connection_makes_room_and_a_known_one_does_not() {
        let crowds = Arc::default();
        let places = ConnectionPlaces::new(3, &crowds);
        let host = |n| Host::Address(IpAddr::from([10, 0, 0, n]));
        let other = places.take(host(1)).expect("free");
        let mut silent: Vec<_> = (0..2).map(|_| places.take(host(2)).expect("free")).collect();
        let numbers =
            |places: &ConnectionPlaces| lock(&places.open).all.keys().copied().collect::<Vec<_>>();
        silent.push(places.take(host(2)).expect("the first of its host makes room"));
        assert_eq!(numbers(&places), [0, 2, 3]);
        other.note_known();
        silent.iter().for_each(ConnectionPlace::note_known);
        assert!(places.take(host(1)).is_none());
        assert_eq!(crowds.crowded_out.load(Ordering::Relaxed), 1);
        assert_eq!(crowds.refused.load(Ordering::Relaxed), 1);
        drop(silent);
        assert_eq!(numbers(&places), [0]);
    }
}
