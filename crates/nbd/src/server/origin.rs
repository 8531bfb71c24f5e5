//! Where clients come from, and how many may be there at a time.
//!
//! Clients over TCP and those of this machine have places of their own, so neither can take those
//! of the others. A client is *known* once it has an export, or has proved a name by TLS; until
//! then it costs its peer nothing to be there. Such clients may have the places that those that are
//! known leave free, and some more. When all are taken, one of them makes room for the next: of
//! those that have said least, the oldest of the host, or of the user, that has the most of them. A
//! client that is known keeps its place.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use base::crowd::network_of;

/// Where a client comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientOrigin {
    /// An address of TCP.
    Tcp(SocketAddr),
    /// A process of this machine.
    Process {
        /// The number of the process; 0: it is not known here, as in another namespace.
        pid: u32,
        /// The user of the process.
        uid: u32,
    },
    /// Somewhere on this machine.
    #[default]
    Local,
}

/// The way by which a client has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ClientWay {
    /// A unix socket.
    Local,
    /// TCP.
    Tcp,
}

impl ClientWay {
    /// The way, in words.
    pub fn words(self) -> &'static str {
        match self {
            ClientWay::Local => "over unix sockets",
            ClientWay::Tcp => "over TCP",
        }
    }
}

/// Who answers for a client that is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Host {
    Address(IpAddr),
    User(u32),
    Unknown,
}

impl ClientOrigin {
    /// The way by which the client has come.
    pub fn way(self) -> ClientWay {
        match self {
            ClientOrigin::Tcp(_) => ClientWay::Tcp,
            ClientOrigin::Process { .. } | ClientOrigin::Local => ClientWay::Local,
        }
    }

    pub(super) fn host(self) -> Host {
        match self {
            ClientOrigin::Tcp(address) => Host::Address(network_of(address.ip())),
            ClientOrigin::Process { uid, .. } => Host::User(uid),
            ClientOrigin::Local => Host::Unknown,
        }
    }
}

impl fmt::Display for ClientOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientOrigin::Tcp(address) => address.fmt(f),
            ClientOrigin::Process { pid: 0, uid } => write!(f, "a process of user {uid}"),
            ClientOrigin::Process { pid, uid } => write!(f, "process {pid} of user {uid}"),
            ClientOrigin::Local => f.write_str("this machine"),
        }
    }
}
