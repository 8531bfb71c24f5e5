//! TLS of a server as a state machine: bytes in, bytes out, no I/O. OpenSSL does the cryptography.
//!
//! A [`Session`] is one connection. The owner of the socket feeds it what comes and sends what it
//! gives; so it runs over any socket, and in the simulator. An [`Acceptor`] is what all sessions
//! share: the server's certificate, the authority of its clients, and keys that were agreed on.
//!
//! Spoken are TLS 1.2 and 1.3 with forward secrecy. There is no renegotiation, compression,
//! resumption, ticket or early data: a connection lives for hours, and each of these has been a
//! hole.
//!
//! Fault model: a peer may send any bytes, cut anywhere, or stop. It gets an alert or nothing.
//! Before its handshake ends it can make the session take [`Session::MAX_HANDSHAKE`] bytes of input
//! at most. One call looks at one record of input, so no peer keeps others waiting for long. What
//! came before the end of a stream without a farewell is never taken for whole: see
//! [`ReadOutcome`].
//!
//! * [`files`]: certificates and keys, and what is wrong with them
//! * [`psk`]: the file of keys that were agreed on
//! * [`acceptor`]: what sessions share
//! * [`peer`]: who is at the other end
//! * [`session`]: one connection

pub mod acceptor;
pub mod files;
pub mod peer;
mod pipes;
pub mod psk;
pub mod session;

pub use acceptor::{Acceptor, Credentials};
pub use files::{FileError, Validity};
pub use peer::{Peer, Proof};
pub use session::{HandshakeProgress, ReadOutcome, Session, SessionError};
