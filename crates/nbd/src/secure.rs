//! A connection over TLS: records between a [`Wire`] and the protocol.
//!
//! A connection without TLS has none of this. The receiver and the sender of a connection share the
//! session, which does no I/O. To send what the session gives one holds `turn`, so records leave in
//! the order in which they were made.
//!
//! A peer can have the receiver make small records, answers to a change of keys. They go out with
//! what the sender sends, or at once if it is idle; where too many wait, nothing is received.

use std::cell::{Cell, RefCell};

use base::{BLOCK, Buf, Duration, SliceList};
use rt::sync::{Semaphore, within};
use tls::{Acceptor, HandshakeProgress, Peer, ReadOutcome, Session, SessionError};

use crate::wire::{Disconnected, Wire, advance, front};

/// The sizes of the buffer that records are received into: it grows where much comes at once.
const SMALLEST: usize = BLOCK;
const LARGEST: usize = 256 << 10;
/// The number of bytes of records that the receiver has made and that may wait for the sender.
const MAX_ANSWERS: usize = 16 << 10;
/// Records that are opened before others have a turn: one may have a single byte.
const RECORDS: usize = 32;
/// A peer that takes no farewell in this time gets none.
const FAREWELL: Duration = Duration::from_secs(1);

pub(crate) struct SecureStream {
    session: RefCell<Session>,
    /// The turn to send.
    turn: Semaphore,
    /// The size that the next receive's buffer should have.
    want: Cell<usize>,
}

impl SecureStream {
    /// Shakes hands. Errors say why, for people.
    pub async fn shake(
        wire: &Wire,
        acceptor: &Acceptor,
    ) -> Result<(SecureStream, Peer), SessionError> {
        let session = Session::new(acceptor, wire.rt().bufs())?;
        let secure = SecureStream {
            session: RefCell::new(session),
            turn: Semaphore::new(1),
            want: Cell::new(SMALLEST),
        };
        let gone = |Disconnected| SessionError("the peer left".into());
        loop {
            let shaken = secure.session.borrow_mut().shake();
            // A signature takes long: however many shake hands, others have a turn after each.
            wire.rt().yield_now().await;
            // After an error that is the alert, which the peer may not be there to hear.
            let sent = wire.in_reply(secure.send_output(wire)).await;
            match shaken? {
                HandshakeProgress::Done => {
                    sent.map_err(gone)?;
                    break;
                }
                HandshakeProgress::Again => {}
                HandshakeProgress::NeedsInput => {
                    sent.map_err(gone)?;
                    secure.fill(wire).await;
                    if wire.is_closed() {
                        return Err(gone(Disconnected));
                    }
                }
            }
        }
        let peer = secure.session.borrow().peer();
        Ok((secure, peer))
    }

    /// Receives at least one byte into `buf[start..]`.
    pub async fn recv(
        &self,
        wire: &Wire,
        mut buf: Buf,
        start: usize,
    ) -> (Buf, Result<usize, Disconnected>) {
        loop {
            let opened = self.open(&mut buf[start..]);
            if self.answer(wire).await.is_err() || wire.is_closed() {
                return (buf, Err(Disconnected));
            }
            match opened {
                Ok((ReadOutcome::Bytes(n), more)) => {
                    if more {
                        wire.rt().yield_now().await;
                    }
                    return (buf, Ok(n));
                }
                Ok((ReadOutcome::Again, _)) => wire.rt().yield_now().await,
                Ok((ReadOutcome::NeedsInput, _)) => self.fill(wire).await,
                Ok((ReadOutcome::End, _)) => return (buf, Err(Disconnected)),
                Err(why) => {
                    tracing::debug!("a connection over TLS is broken: {why}");
                    return (buf, Err(Disconnected));
                }
            }
        }
    }

    /// Receives once and feeds the session.
    async fn fill(&self, wire: &Wire) {
        let size = self.want.get();
        let old = self.session.borrow_mut().take_buf().filter(|buf| buf.len() == size);
        let buf = old.unwrap_or_else(|| wire.rt().bufs().take(size));
        let (buf, n) = wire.recv(buf, 0, false).await;
        let n = n.unwrap_or(0);
        if n == size {
            self.want.set((size * 4).min(LARGEST));
        } else if n < size / 8 {
            self.want.set((size / 2).max(SMALLEST));
        }
        self.session.borrow_mut().feed(buf, n);
    }

    /// Sends what the receiver has made, unless the sender does so.
    async fn answer(&self, wire: &Wire) -> Result<(), Disconnected> {
        let waiting = self.session.borrow().output_bytes();
        if waiting == 0 {
            return Ok(());
        }
        let turn = match self.turn.try_acquire(1) {
            None if waiting <= MAX_ANSWERS => return Ok(()),
            None => self.turn.acquire(1).await,
            Some(turn) => turn,
        };
        let sent = wire.in_reply(self.send_output(wire)).await;
        drop(turn);
        sent
    }

    /// Sends all of `data`, encrypted.
    pub async fn send(&self, wire: &Wire, data: SliceList) -> Result<(), Disconnected> {
        let _turn = self.turn.acquire(1).await;
        wire.in_reply(self.send_batches(wire, data)).await
    }

    async fn send_batches(&self, wire: &Wire, mut data: SliceList) -> Result<(), Disconnected> {
        while !data.is_empty() {
            let batch = front(&data, Session::BATCH);
            let len = batch.iter().map(|s| s.len()).sum();
            if let Err(why) = self.session.borrow_mut().seal(&batch) {
                tracing::debug!("a connection over TLS is broken: {why}");
                return Err(Disconnected);
            }
            drop(batch);
            advance(&mut data, len);
            self.send_output(wire).await?;
        }
        Ok(())
    }

    async fn send_output(&self, wire: &Wire) -> Result<(), Disconnected> {
        loop {
            let output = self.session.borrow_mut().take_output();
            if output.is_empty() {
                return Ok(());
            }
            wire.send(output).await?;
        }
    }

    /// Tells the peer that nothing more will come, if it is there to hear it.
    pub async fn farewell(&self, wire: &Wire) {
        let tell = async {
            let _turn = self.turn.acquire(1).await;
            self.session.borrow_mut().farewell();
            wire.in_reply(self.send_output(wire)).await
        };
        if !wire.is_closed() {
            within(&mut std::pin::pin!(tell), wire.rt().sleep(FAREWELL)).await;
        }
    }

    /// As many plain bytes as there are and have room, of some records. True if there may be more.
    fn open(&self, into: &mut [u8]) -> Result<(ReadOutcome, bool), SessionError> {
        let mut session = self.session.borrow_mut();
        let mut n = 0;
        for _ in 0..RECORDS {
            if n == into.len() {
                return Ok((ReadOutcome::Bytes(n), false));
            }
            match session.open(&mut into[n..]) {
                Ok(ReadOutcome::Bytes(more)) => n += more,
                // The next call says it again.
                _ if n > 0 => return Ok((ReadOutcome::Bytes(n), false)),
                other => return other.map(|opened| (opened, false)),
            }
        }
        Ok((ReadOutcome::Bytes(n), true))
    }
}
