//! TLS: a client of OpenSSL over the simulated wire, and what may not pass around it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use nbd::codec::option::{self, info_request, opt, rep, transmit};
use nbd::codec::request::{Command, Request};
use nbd::{Limits, Proof, Security};
use openssl::ssl::{ErrorCode, Ssl, SslContext, SslMethod, SslStream};
use tls::{Acceptor, Credentials};

use super::{Bed, Raw, run, smooth};

const KEY: &[u8] = b"0123456789abcdef";

/// What a server with the key of `vm1` goes by.
fn acceptor() -> Acceptor {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("keys");
    std::fs::write(&path, "vm1:30313233343536373839616263646566\n").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("permitted");
    Acceptor::new(&Credentials { keys: Some(path), ..Credentials::default() }).expect("an acceptor")
}

/// A listener with TLS in the same world.
fn secured(bed: &Bed, security: impl FnOnce(nbd::Acceptors) -> Security) -> Bed {
    let acceptor = acceptor();
    let listener = bed.world.listener();
    bed.server.serve_with(listener, security(Rc::new(move || acceptor.clone())));
    Bed { listener, ..bed.clone() }
}

#[derive(Default)]
struct Ends {
    received: VecDeque<u8>,
    sent: Vec<u8>,
}

impl Read for Ends {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self.received.is_empty() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.received.read(into),
        }
    }
}

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.sent.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A connection after STARTTLS.
struct Secured {
    raw: Raw,
    stream: SslStream<Ends>,
}

impl Secured {
    fn new(raw: Raw) -> Secured {
        let mut context = SslContext::builder(SslMethod::tls_client()).expect("a context");
        context.set_psk_client_callback(|_, _, name, key| {
            name[..4].copy_from_slice(b"vm1\0");
            key[..KEY.len()].copy_from_slice(KEY);
            Ok(KEY.len())
        });
        let ssl = Ssl::new(&context.build()).expect("a client");
        Secured { raw, stream: SslStream::new(ssl, Ends::default()).expect("a stream") }
    }

    /// After STARTTLS and its reply.
    async fn begin(bed: &Bed, flags: u32) -> Secured {
        let mut raw = bed.raw(flags).await;
        assert_eq!(raw.option(opt::STARTTLS, &[]).await, [(rep::ACK, vec![])]);
        Secured::new(raw)
    }

    /// After a handshake.
    async fn connect(bed: &Bed) -> Secured {
        let mut this = Secured::begin(bed, 3).await;
        assert!(this.shake().await, "shaken");
        this
    }

    async fn flush(&mut self) {
        let sent = std::mem::take(&mut self.stream.get_mut().sent);
        if !sent.is_empty() {
            self.raw.send(&sent).await;
        }
    }

    /// False at the end.
    async fn more(&mut self) -> bool {
        if self.raw.receiver.more().await.is_err() {
            return false;
        }
        let data = self.raw.receiver.data();
        let n = data.len();
        self.stream.get_mut().received.extend(data);
        self.raw.receiver.consume(n);
        true
    }

    async fn shake(&mut self) -> bool {
        loop {
            let step = self.stream.connect();
            self.flush().await;
            match step {
                Ok(()) => return true,
                Err(e) if e.code() == ErrorCode::WANT_READ => {
                    if !self.more().await {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sealed");
        self.flush().await;
    }

    async fn expect(&mut self, n: usize) -> Vec<u8> {
        let mut all = vec![0; n];
        let mut at = 0;
        while at < n {
            match self.stream.ssl_read(&mut all[at..]) {
                Ok(more) => at += more,
                Err(e) if e.code() == ErrorCode::WANT_READ => {
                    // A change of keys is answered.
                    self.flush().await;
                    assert!(self.more().await, "{at} of {n} bytes came");
                }
                Err(e) => panic!("{e}"),
            }
        }
        all
    }

    async fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        option::put_option(&mut bytes, number, data);
        self.send(&bytes).await;
        let mut all = Vec::new();
        loop {
            let head = self.expect(option::REPLY).await;
            let head = option::parse_reply(head.first_chunk().expect("a header"));
            let (_, kind, len) = head.expect("a reply");
            all.push((kind, self.expect(len as usize).await));
            if kind == rep::ACK || kind & rep::ERR != 0 {
                return all;
            }
        }
    }

    /// A request without structured replies; what is read by it.
    async fn request(&mut self, command: Command, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
        let header = Request { flags: 0, command, cookie: 7, offset, len };
        self.send(&[&header.encode()[..], data].concat()).await;
        let reply = self.expect(16).await;
        assert_eq!(reply[4..8], [0; 4], "an error");
        match command {
            Command::Read => self.expect(len as usize).await,
            _ => Vec::new(),
        }
    }
}

fn go() -> Vec<u8> {
    info_request("rw", &[])
}

#[test]
fn requests_and_replies_travel_whatever_the_wire_does() {
    for seed in 0..12 {
        run(seed, Limits::default(), |bed| async move {
            let bed = secured(&bed, Security::Required);
            let mut client = Secured::connect(&bed).await;
            let replies = client.option(opt::GO, &go()).await;
            assert_eq!(replies.last().expect("a reply").0, rep::ACK);
            let at_work = bed.server.connections();
            let peer = at_work[0].peer.clone().expect("a peer");
            assert_eq!((peer.proof, peer.name()), (Proof::Key, Some("vm1")));
            assert_eq!((at_work[0].export.as_deref(), at_work[0].read_only), (Some("rw"), false));
            for len in [512u32, 4096, 100 << 10, 700 << 10] {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
                client.request(Command::Write, 512, len, &bytes).await;
                assert!(client.request(Command::Read, 512, len, &[]).await == bytes, "{len}");
            }
            client.request(Command::Flush, 0, 0, &[]).await;
            assert_eq!(bed.exports.rw.0.flushes.get(), 1);
            let s = bed.server.status();
            assert_eq!((s.handshakes, s.handshakes_failed), (1, 0));
            client.raw.connection.close();
            bed.quiet().await;
        });
    }
}

#[test]
fn many_requests_are_answered_while_others_are_received() {
    run(3, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Required);
        let mut client = Secured::connect(&bed).await;
        client.option(opt::GO, &go()).await;
        let mut all = Vec::new();
        for i in 0..200u64 {
            let (command, len) =
                if i % 2 == 0 { (Command::Read, 4096) } else { (Command::Write, 512) };
            all.extend(Request { flags: 0, command, cookie: i, offset: i * 4096, len }.encode());
            if command == Command::Write {
                all.extend([i as u8; 512]);
            }
        }
        for part in all.chunks(9000) {
            client.send(part).await;
        }
        let mut seen = [false; 200];
        for _ in 0..200 {
            let head = client.expect(16).await;
            let cookie = u64::from_be_bytes(*head.last_chunk().expect("a cookie"));
            assert!(!std::mem::replace(&mut seen[cookie as usize], true));
            if cookie % 2 == 0 {
                client.expect(4096).await;
            }
        }
        // It is told that nothing more comes.
        client
            .send(
                &Request { flags: 0, command: Command::Disc, cookie: 0, offset: 0, len: 0 }
                    .encode(),
            )
            .await;
        while client.more().await {}
        let end = client.stream.ssl_read(&mut [0]).expect_err("no more");
        assert_eq!(end.code(), ErrorCode::ZERO_RETURN);
        bed.quiet().await;
    });
}

#[test]
fn without_tls_nothing_is_told_where_it_is_required() {
    run(4, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Required);
        let mut raw = bed.raw(3).await;
        for number in [opt::GO, opt::INFO] {
            assert_eq!(raw.option(number, &go()).await[0].0, rep::ERR_TLS_REQD);
        }
        for number in [opt::LIST, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, 99] {
            assert_eq!(raw.option(number, &[]).await[0].0, rep::ERR_TLS_REQD);
        }
        assert_eq!(raw.option(opt::STARTTLS, b"x").await[0].0, rep::ERR_INVALID);
        raw.option(opt::ABORT, &[]).await;
        raw.connection.close();
        let mut raw = bed.raw(3).await;
        let mut bytes = Vec::new();
        option::put_option(&mut bytes, opt::EXPORT_NAME, b"rw");
        raw.send(&bytes).await;
        assert_eq!(raw.end().await, b"", "told something");
        bed.quiet().await;
    });
}

#[test]
fn tls_is_begun_once_and_only_where_it_is() {
    run(5, Limits::default(), |bed| async move {
        let mut raw = bed.raw(3).await;
        assert_eq!(raw.option(opt::STARTTLS, &[]).await[0].0, rep::ERR_UNSUP);
        raw.connection.close();
        let bed = secured(&bed, Security::Offered);
        let mut raw = bed.raw(3).await;
        assert_eq!(raw.option(opt::GO, &go()).await.last().expect("a reply").0, rep::ACK);
        raw.connection.close();
        let mut client = Secured::connect(&bed).await;
        assert_eq!(client.option(opt::STARTTLS, &[]).await[0].0, rep::ERR_INVALID);
        assert_eq!(client.option(opt::GO, &go()).await.last().expect("a reply").0, rep::ACK);
        client.raw.connection.close();
        bed.quiet().await;
    });
}

#[test]
fn what_was_said_in_the_clear_holds_no_more() {
    run(6, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Offered);
        let mut raw = bed.raw(3).await;
        assert_eq!(raw.option(opt::STRUCTURED_REPLY, &[]).await[0].0, rep::ACK);
        assert_eq!(raw.option(opt::STARTTLS, &[]).await[0].0, rep::ACK);
        let mut client = Secured::new(raw);
        assert!(client.shake().await);
        let replies = client.option(opt::GO, &go()).await;
        let flags = u16::from_be_bytes(*replies[0].1[10..].first_chunk().expect("flags"));
        assert_eq!(flags & transmit::SEND_DF, 0, "structured replies from before TLS");
        client.raw.connection.close();
        bed.quiet().await;
    });
}

#[test]
fn what_comes_in_the_clear_behind_the_request_ends_the_connection() {
    for more in [&b"x"[..], b"\x16\x03\x01", &[0; 100]] {
        run(7, Limits::default(), |bed| async move {
            smooth(&bed);
            let bed = secured(&bed, Security::Required);
            let mut raw = bed.raw(3).await;
            let mut bytes = Vec::new();
            option::put_option(&mut bytes, opt::STARTTLS, &[]);
            bytes.extend_from_slice(more);
            raw.send(&bytes).await;
            assert_eq!(raw.end().await, b"", "it goes on");
            bed.quiet().await;
            assert_eq!(bed.server.status().handshakes, 0);
        });
    }
}

#[test]
fn a_client_may_vanish_or_fall_silent_at_every_byte_of_its_handshake() {
    run(8, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Required);
        let mut probe = Secured::begin(&bed, 3).await;
        assert!(probe.stream.connect().is_err());
        let hello = std::mem::take(&mut probe.stream.get_mut().sent);
        probe.raw.connection.close();
        for cut in (0..=hello.len()).step_by(5) {
            let client = Secured::begin(&bed, 3).await;
            client.raw.send(&hello[..cut]).await;
            bed.sleep(cut as u64 % 3).await;
            client.raw.connection.close();
            bed.quiet().await;
        }
        let failed = bed.server.status().handshakes_failed;
        let client = Secured::begin(&bed, 3).await;
        client.raw.send(&hello[..20]).await;
        bed.sleep(11_000).await;
        assert_eq!(bed.server.status().connections, 0, "a silent one stays");
        assert_eq!(bed.server.status().handshakes_failed, failed + 1);
        client.raw.connection.close();
    });
}

#[test]
fn a_wrong_key_and_nonsense_are_told_so_and_cost_nothing() {
    run(9, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Required);
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], &[22, 3, 1, 0, 1, 9]] {
            let mut client = Secured::begin(&bed, 3).await;
            client.raw.send(bytes).await;
            client.raw.end().await;
        }
        let mut wrong = Secured::begin(&bed, 3).await;
        let mut context = SslContext::builder(SslMethod::tls_client()).expect("a context");
        context.set_psk_client_callback(|_, _, name, key| {
            name[..4].copy_from_slice(b"vm1\0");
            key[..16].fill(9);
            Ok(16)
        });
        let ssl = Ssl::new(&context.build()).expect("a client");
        wrong.stream = SslStream::new(ssl, Ends::default()).expect("a stream");
        assert!(!wrong.shake().await);
        wrong.raw.connection.close();
        bed.quiet().await;
        let s = bed.server.status();
        assert_eq!((s.handshakes, s.handshakes_failed), (0, 4));
    });
}

#[test]
fn a_record_that_was_changed_ends_the_connection_and_nothing_of_it_is_done() {
    run(10, Limits::default(), |bed| async move {
        let bed = secured(&bed, Security::Required);
        let mut client = Secured::connect(&bed).await;
        client.option(opt::GO, &go()).await;
        let header = Request { flags: 0, command: Command::Write, cookie: 1, offset: 0, len: 512 };
        client.stream.write_all(&[&header.encode()[..], &[1; 512]].concat()).expect("sealed");
        let sent = &mut client.stream.get_mut().sent;
        let last = sent.len() - 1;
        sent[last] ^= 1;
        client.flush().await;
        client.raw.end().await;
        bed.quiet().await;
        assert!(bed.exports.rw.0.bytes.borrow().iter().all(|&b| b == 0), "it was written");
    });
}
