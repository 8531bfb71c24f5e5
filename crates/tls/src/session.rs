//! One connection: a handshake, then bytes to records and back.

use base::{Buf, BufPool, SliceList};
use openssl::error::ErrorStack;
use openssl::ssl::{Error, ErrorCode, SslStream};

use crate::acceptor::{Acceptor, key_name, unknown_name};
use crate::peer::{Peer, plain};
use crate::pipes::Pipes;

/// The plain bytes of a record.
const RECORD: usize = 16 << 10;
/// The bytes that a record takes more than its plain bytes, at most.
const OVERHEAD: usize = 64;

/// The session is of no use any more; why, for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct SessionError(pub String);

/// The progress of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandshakeProgress {
    /// The handshake is done.
    Done,
    /// More input is there to be looked at: give others a turn, then call again.
    Again,
    /// The handshake waits for input.
    NeedsInput,
}

/// The outcome of reading the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// The number of plain bytes.
    Bytes(usize),
    /// No plain bytes yet; more input is there to be looked at: give others a turn, then call
    /// again.
    Again,
    /// No plain bytes; the session waits for input.
    NeedsInput,
    /// The peer has said farewell: there will be no more. A stream that ends without this was cut,
    /// which is an error.
    End,
}

/// A server's end of a connection.
pub struct Session {
    stream: SslStream<Pipes>,
    shaken: bool,
    /// Small pieces on their way into one record.
    record: Vec<u8>,
}

impl Session {
    /// Bytes that a peer may send before its handshake is done.
    pub const MAX_HANDSHAKE: usize = 160 << 10;
    /// Plain bytes that are best sealed at once: so many make whole records, which fit into a
    /// buffer of 256 KiB.
    pub const BATCH: usize = 15 * RECORD;

    /// A session that waits for a handshake.
    pub fn new(acceptor: &Acceptor, bufs: &BufPool) -> Result<Session, SessionError> {
        let made = acceptor.ssl().and_then(|ssl| SslStream::new(ssl, Pipes::new(bufs.clone())));
        let stream = made.map_err(|e| SessionError(e.to_string()))?;
        Ok(Session { stream, shaken: false, record: Vec::new() })
    }

    /// Goes on with the handshake. What is to be sent then has to be sent in any case: after an
    /// error it tells the peer why.
    pub fn shake(&mut self) -> Result<HandshakeProgress, SessionError> {
        self.begin();
        match self.stream.accept() {
            Ok(()) => {
                self.shaken = true;
                Ok(HandshakeProgress::Done)
            }
            Err(e) if e.code() == ErrorCode::WANT_READ => {
                let pipes = self.stream.get_ref();
                if pipes.fed > Self::MAX_HANDSHAKE {
                    return Err(SessionError("the handshake is too long".into()));
                }
                Ok(if pipes.needs_input() {
                    HandshakeProgress::NeedsInput
                } else {
                    HandshakeProgress::Again
                })
            }
            Err(e) => Err(self.broken(&e)),
        }
    }

    /// Returns the peer at the other end, once the handshake is done.
    pub fn peer(&self) -> Peer {
        let ssl = self.stream.ssl();
        let name = key_name().and_then(|place| ssl.ex_data(place));
        Peer::of(ssl, name.map(Vec::as_slice))
    }

    /// Takes the first `len` bytes of `buf` as input; none: the stream has ended. Only when it
    /// needs input.
    pub fn feed(&mut self, buf: Buf, len: usize) {
        self.stream.get_mut().feed(buf, len);
    }

    /// The buffer that was fed, for the next input.
    pub fn take_buf(&mut self) -> Option<Buf> {
        self.stream.get_mut().take_buf()
    }

    /// Reads plain bytes out of the input.
    pub fn open(&mut self, into: &mut [u8]) -> Result<ReadOutcome, SessionError> {
        self.begin();
        match self.stream.ssl_read(into) {
            Ok(n) => Ok(ReadOutcome::Bytes(n)),
            Err(e) if e.code() == ErrorCode::ZERO_RETURN => Ok(ReadOutcome::End),
            Err(e) if e.code() == ErrorCode::WANT_READ => {
                let needed = self.stream.get_ref().needs_input();
                Ok(if needed { ReadOutcome::NeedsInput } else { ReadOutcome::Again })
            }
            Err(e) => Err(self.broken(&e)),
        }
    }

    /// Makes records of plain bytes, which are to be sent.
    pub fn seal(&mut self, data: &SliceList) -> Result<(), SessionError> {
        let len: usize = data.iter().map(|s| s.len()).sum();
        self.stream.get_mut().hint = len + (len / RECORD + 1) * OVERHEAD;
        for piece in data {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                if self.record.is_empty() && rest.len() >= RECORD {
                    self.seal_record(&rest[..RECORD])?;
                    rest = &rest[RECORD..];
                    continue;
                }
                let n = rest.len().min(RECORD - self.record.len());
                self.record.extend_from_slice(&rest[..n]);
                rest = &rest[n..];
                if self.record.len() == RECORD {
                    self.seal_gathered()?;
                }
            }
        }
        self.seal_gathered()?;
        self.stream.get_mut().hint = 0;
        Ok(())
    }

    fn seal_gathered(&mut self) -> Result<(), SessionError> {
        let mut record = std::mem::take(&mut self.record);
        let sealed = if record.is_empty() { Ok(()) } else { self.seal_record(&record) };
        record.clear();
        self.record = record;
        sealed
    }

    fn seal_record(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.begin();
        match self.stream.ssl_write(bytes) {
            Ok(n) if n == bytes.len() => Ok(()),
            // The queue takes everything.
            Ok(n) => {
                Err(SessionError(format!("{n} bytes of a record of {} were sealed", bytes.len())))
            }
            Err(e) => Err(self.broken(&e)),
        }
    }

    /// Says farewell. An error here means that the peer hears none.
    pub fn farewell(&mut self) {
        self.begin();
        if self.shaken {
            let _told = self.stream.shutdown();
        }
    }

    /// Bytes that are to be sent.
    pub fn output_bytes(&self) -> usize {
        self.stream.get_ref().output_bytes()
    }

    /// Takes the bytes that are to be sent now, in this order.
    pub fn take_output(&mut self) -> SliceList {
        self.stream.get_mut().take_output()
    }

    fn begin(&mut self) {
        // An error that an earlier call has left in the thread's queue would be taken for one of
        // this call.
        drop(ErrorStack::get());
        self.stream.get_mut().begin();
    }

    fn broken(&self, e: &Error) -> SessionError {
        let verified = self.stream.ssl().verify_result();
        if !self.shaken && verified != openssl::x509::X509VerifyResult::OK {
            return SessionError(format!(
                "the certificate is refused: {}",
                verified.error_string()
            ));
        }
        let reason = e.ssl_error().and_then(|all| all.errors().first()?.reason());
        let why = match self.stream.get_ref().has_ended() {
            true => "the stream was cut".to_owned(),
            false => reason.map_or_else(|| e.to_string(), str::to_owned),
        };
        match self.unknown() {
            Some(name) if !self.shaken => {
                SessionError(format!("no key has the name {name:?}; {why}"))
            }
            _ => SessionError(why),
        }
    }

    /// The name of a key that the peer has asked for and that no key has, if it can be shown.
    fn unknown(&self) -> Option<String> {
        plain(self.stream.ssl().ex_data(unknown_name()?)?)
    }
}
