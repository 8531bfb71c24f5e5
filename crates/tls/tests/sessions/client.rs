//! A client in memory, and what goes to and fro between it and a session.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Result, Write};

use base::BufPool;
use openssl::ssl::{ErrorCode, Ssl, SslContext, SslMethod, SslStream, SslVerifyMode, SslVersion};
use tls::{Acceptor, HandshakeProgress, ReadOutcome, Session, SessionError};

use super::authority::Signed;

/// What a client has received and has to send.
#[derive(Default)]
pub struct Ends {
    pub received: VecDeque<u8>,
    pub sent: Vec<u8>,
}

impl Read for Ends {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if self.received.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.received.read(into)
    }
}

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.sent.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a client shows for itself.
pub enum Shows<'a> {
    Nothing,
    Certificate(&'a Signed),
    Key(&'static str, &'static [u8]),
}

pub struct Client(pub SslStream<Ends>);

impl Client {
    /// One that trusts this authority.
    pub fn new(authority: Option<&Signed>, shows: Shows<'_>, version: SslVersion) -> Client {
        let mut context = SslContext::builder(SslMethod::tls_client()).unwrap();
        context.set_max_proto_version(Some(version)).unwrap();
        // Security level 0 lets clients speak versions that the server is to refuse.
        context.set_cipher_list("ALL:PSK:@SECLEVEL=0").unwrap();
        context.set_min_proto_version(None).unwrap();
        if let Some(authority) = authority {
            context.cert_store_mut().add_cert(authority.certificate.clone()).unwrap();
            context.set_verify(SslVerifyMode::PEER);
        }
        match shows {
            Shows::Nothing => {}
            Shows::Certificate(own) => {
                context.set_certificate(&own.certificate).unwrap();
                context.set_private_key(&own.key).unwrap();
            }
            Shows::Key(name, key) => {
                context.set_psk_client_callback(move |_, _, name_to, key_to| {
                    name_to[..name.len()].copy_from_slice(name.as_bytes());
                    name_to[name.len()] = 0;
                    key_to[..key.len()].copy_from_slice(key);
                    Ok(key.len())
                });
            }
        }
        let ssl = Ssl::new(&context.build()).unwrap();
        Client(SslStream::new(ssl, Ends::default()).unwrap())
    }
}

/// A client and the session at the other end, and a wire that carries so many bytes at a time.
pub struct Pair {
    pub client: Client,
    pub session: Session,
    pub bufs: BufPool,
    pub wire: usize,
}

impl Pair {
    pub fn new(acceptor: &Acceptor, client: Client, wire: usize) -> Pair {
        let bufs = BufPool::new(0);
        Pair { session: Session::new(acceptor, &bufs).unwrap(), client, bufs, wire }
    }

    /// From the session to the client.
    pub fn deliver(&mut self) {
        for piece in self.session.take_output() {
            self.client.0.get_mut().received.extend(&piece[..]);
        }
    }

    /// A piece of what the client sent, to the session; false if there is none.
    pub fn feed(&mut self) -> bool {
        let sent = &mut self.client.0.get_mut().sent;
        let n = sent.len().min(self.wire);
        let piece: Vec<u8> = sent.drain(..n).collect();
        drop(self.session.take_buf());
        if n > 0 {
            self.session.feed(self.bufs.copy_of(&piece), n);
        }
        n > 0
    }

    /// Both sides as far as they come.
    pub fn shake(&mut self) -> std::result::Result<(), SessionError> {
        let mut done = false;
        loop {
            if let Err(e) = self.client.0.connect()
                && e.code() != ErrorCode::WANT_READ
            {
                // The server hears the alert.
                while self.feed() {
                    while self.session.shake()? == HandshakeProgress::Again {}
                }
                return Err(SessionError(format!("client: {e}")));
            }
            let mut moved = false;
            while !done && self.feed() {
                moved = true;
                let mut step = self.session.shake();
                while step == Ok(HandshakeProgress::Again) {
                    step = self.session.shake();
                }
                self.deliver();
                done = step? == HandshakeProgress::Done;
            }
            if done && self.client.0.ssl().is_init_finished() {
                return Ok(());
            }
            if !moved && self.client.0.get_ref().received.is_empty() {
                return Err(SessionError("nothing more comes".into()));
            }
        }
    }

    /// All plain bytes that the client's records open to.
    pub fn open(&mut self, want: usize) -> std::result::Result<Vec<u8>, SessionError> {
        let mut all = Vec::new();
        let mut into = vec![0; 70_000];
        while all.len() < want {
            match self.session.open(&mut into)? {
                ReadOutcome::Bytes(n) => all.extend_from_slice(&into[..n]),
                ReadOutcome::Again => {}
                ReadOutcome::NeedsInput if self.feed() => {}
                ReadOutcome::NeedsInput => return Err(SessionError("it waits for more".into())),
                ReadOutcome::End => return Err(SessionError("the end".into())),
            }
        }
        Ok(all)
    }
}
