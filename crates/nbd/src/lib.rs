//! The network block device protocol: a pure codec apart from sockets, and a server of it over the
//! seam.
//!
//! Source: doc/proto.md of the NetworkBlockDevice project. Spoken are fixed newstyle negotiation,
//! structured replies, block size constraints, the metadata context `base:allocation`, and TLS
//! (STARTTLS); extended headers are declined.
//!
//! Fault model: a client may send any bytes at any speed, stop at any point, or never read what it
//! asked for. It gets the protocol's error or a closed connection; memory is bounded by [`Limits`],
//! whatever clients do.
//!
//! * [`codec`]: bytes to values and back, no I/O
//! * [`handshake`]: option haggling as a state machine, no I/O
//! * [`export`]: what the server needs from the store
//! * [`server`]: connections, budgets, out-of-order replies

pub mod codec;
pub mod export;
pub mod handshake;
mod link;
mod outbox;
mod receive_buffer;
mod secure;
pub mod server;
mod wire;

pub use codec::Errno;
pub use export::{BlockStatus, Export, ExportInfo, Exports, ZeroOpts};
pub use server::{
    Acceptors, ClientOrigin, ClientWay, ConnectionStatus, Crowd, CrowdOutcome, Limits, Origins,
    Security, Server, Status,
};
pub use tls::{Peer, Proof};
