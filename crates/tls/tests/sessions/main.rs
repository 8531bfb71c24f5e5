//! Sessions with a client of OpenSSL at the other end, all in memory.
#![allow(clippy::unwrap_used, reason = "what is made for a test can be made")]

mod authority;
mod client;

use std::io::{Read, Write};
use std::path::Path;

use authority::{Signed, files, put};
use base::BufPool;
use client::{Client, Pair, Shows};
use openssl::ssl::SslVersion;
use tls::{Acceptor, Credentials, HandshakeProgress, Proof, ReadOutcome, Session, SessionError};

const KEY: &[u8] = b"0123456789abcdef";
const KEYS: &str = "vm1:30313233343536373839616263646566\nvm2:00112233445566778899aabbccddeeff\n";

struct Bed {
    dir: tempfile::TempDir,
    authority: Signed,
    from: Credentials,
}

/// A server with certificates and keys.
fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let authority = Signed::authority("authority");
    let server = authority.signs("server", 2, (-1, 1));
    files(dir.path(), &authority, &server);
    put(&dir.path().join("keys"), KEYS.as_bytes());
    let from = Credentials {
        certificates: Some(dir.path().to_owned()),
        keys: Some(dir.path().join("keys")),
        verify_peer: true,
    };
    Bed { dir, authority, from }
}

impl Bed {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn acceptor(&self) -> Acceptor {
        Acceptor::new(&self.from).unwrap()
    }

    fn pair(&self, shows: Shows<'_>, version: SslVersion, wire: usize) -> Pair {
        let authority = Some(&self.authority).filter(|_| !matches!(shows, Shows::Key(..)));
        Pair::new(&self.acceptor(), Client::new(authority, shows, version), wire)
    }

    fn refusal(&self, shows: Shows<'_>, version: SslVersion) -> String {
        self.pair(shows, version, 1 << 16).shake().unwrap_err().0
    }
}

#[test]
fn bytes_travel_both_ways_whatever_the_wire_does() {
    let bed = bed();
    let own = bed.authority.signs("vm1", 3, (-1, 1));
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for (wire, by_key) in [(1, false), (7, true), (4096, true), (1 << 20, false)] {
            let shows = if by_key { Shows::Key("vm1", KEY) } else { Shows::Certificate(&own) };
            let mut pair = bed.pair(shows, version, wire);
            pair.shake().unwrap();
            let peer = pair.session.peer();
            let (proof, names) = match by_key {
                true => (Proof::Key, &["vm1"][..]),
                false => (Proof::Certificate, &["vm1", "vm1.lan"][..]),
            };
            assert!(peer.proof == proof && peer.names.iter().eq(names), "{peer:?}");
            let name = if version == SslVersion::TLS1_2 { "TLSv1.2" } else { "TLSv1.3" };
            assert_eq!(peer.version, name);
            for len in [1usize, 28, 16_384, 16_385, 100_000] {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                pair.client.0.write_all(&bytes).unwrap();
                assert!(pair.open(len).unwrap() == bytes);
                // In views that are no whole records.
                let whole = pair.bufs.copy_of(&bytes).freeze();
                let parts = (0..len).step_by(5000);
                let list = parts.map(|at| whole.slice(at, 5000.min(len - at))).collect();
                pair.session.seal(&list).unwrap();
                pair.deliver();
                let mut got = vec![0; len];
                pair.client.0.read_exact(&mut got).unwrap();
                assert!(got == bytes);
            }
            assert_eq!(pair.session.output_bytes(), 0);
        }
    }
}

#[test]
fn a_stream_that_is_cut_is_not_taken_for_whole() {
    let bed = bed();
    for farewell in [true, false] {
        let mut pair = bed.pair(Shows::Key("vm1", KEY), SslVersion::TLS1_3, 1 << 16);
        pair.shake().unwrap();
        pair.client.0.write_all(b"the last").unwrap();
        if farewell {
            pair.client.0.shutdown().unwrap();
        }
        assert_eq!(pair.open(8).unwrap(), b"the last");
        let mut into = [0; 8];
        let mut end = pair.session.open(&mut into);
        if !farewell {
            assert_eq!(end, Ok(ReadOutcome::NeedsInput));
            drop(pair.session.take_buf());
            pair.session.feed(pair.bufs.take(base::BLOCK), 0);
            end = pair.session.open(&mut into);
        }
        match farewell {
            true => assert_eq!(end, Ok(ReadOutcome::End)),
            false => assert_eq!(end, Err(SessionError("the stream was cut".into()))),
        }
    }
}

#[test]
fn clients_that_prove_nothing_are_refused() {
    let bed = bed();
    let stranger = Signed::authority("stranger").signs("vm1", 3, (-1, 1));
    let old = bed.authority.signs("vm1", 4, (-5, -2));
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for (shows, word) in [
            (Shows::Nothing, "peer did not return a certificate"),
            (Shows::Certificate(&stranger), "certificate is refused: unable to get local issuer"),
            (Shows::Certificate(&old), "certificate is refused: certificate has expired"),
            (Shows::Key("vm3", KEY), "no key has the name \"vm3\""),
            (Shows::Key("vm2", KEY), ""),
            (Shows::Key("", KEY), ""),
        ] {
            let e = bed.refusal(shows, version);
            assert!(e.contains(word), "{e}");
        }
    }
    let own = bed.authority.signs("vm1", 5, (-1, 1));
    for version in [SslVersion::TLS1, SslVersion::TLS1_1] {
        let e = bed.refusal(Shows::Certificate(&own), version);
        assert!(e.contains("unsupported protocol") || e.contains("version"), "{e}");
    }
}

#[test]
fn any_client_may_come_where_none_is_asked_who_it_is() {
    let mut bed = bed();
    bed.from.verify_peer = false;
    let own = bed.authority.signs("vm1", 5, (-1, 1));
    for shows in [Shows::Nothing, Shows::Certificate(&own)] {
        let mut pair = bed.pair(shows, SslVersion::TLS1_3, 1 << 16);
        pair.shake().unwrap();
        let peer = pair.session.peer();
        assert_eq!((peer.proof, peer.names.len()), (Proof::Nothing, 0));
    }
    let mut pair = bed.pair(Shows::Key("vm2", &[0x00, 0x11]), SslVersion::TLS1_3, 1 << 16);
    assert!(pair.shake().is_err() || pair.session.peer().proof != Proof::Key);
}

#[test]
fn keys_alone_are_enough_for_a_server() {
    let mut bed = bed();
    bed.from.certificates = None;
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        bed.pair(Shows::Key("vm1", KEY), version, 100).shake().unwrap();
        assert!(bed.pair(Shows::Nothing, version, 100).shake().is_err());
    }
}

#[test]
fn a_client_may_stop_at_every_byte_of_its_handshake_or_say_anything() {
    let bed = bed();
    let acceptor = bed.acceptor();
    let mut client = Client::new(None, Shows::Key("vm1", KEY), SslVersion::TLS1_3);
    assert!(client.0.connect().is_err());
    let hello = client.0.get_ref().sent.clone();
    let bufs = BufPool::new(0);
    let session = |bytes: &[u8], ends: bool| {
        let mut session = Session::new(&acceptor, &bufs).unwrap();
        if !bytes.is_empty() {
            session.feed(bufs.copy_of(bytes), bytes.len());
        }
        let mut step = session.shake();
        while step == Ok(HandshakeProgress::Again) {
            step = session.shake();
        }
        if ends && step == Ok(HandshakeProgress::NeedsInput) {
            drop(session.take_buf());
            session.feed(bufs.take(base::BLOCK), 0);
            step = session.shake();
        }
        step
    };
    for cut in 0..hello.len() {
        assert_eq!(session(&hello[..cut], false), Ok(HandshakeProgress::NeedsInput), "{cut}");
        assert!(session(&hello[..cut], true).is_err(), "{cut}");
    }
    for at in 0..hello.len() {
        let mut wrong = hello.clone();
        wrong[at] ^= 0x80;
        // It is refused, or waits for more; it is never done.
        assert_ne!(session(&wrong, false), Ok(HandshakeProgress::Done), "{at}");
    }
    assert!(session(b"GET / HTTP/1.1\r\n\r\n", false).is_err());
    assert!(session(&[0; 4096], false).is_err());
}

#[test]
fn a_handshake_that_never_ends_is_given_up() {
    let bed = bed();
    let mut session = Session::new(&bed.acceptor(), &BufPool::new(0)).unwrap();
    let bufs = BufPool::new(0);
    // Records of a hello that announces more than it ever has.
    let mut first = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    first.resize(5 + 0x4000, 0);
    let mut fed = 0;
    loop {
        drop(session.take_buf());
        session.feed(bufs.copy_of(&first), first.len());
        fed += first.len();
        match session.shake() {
            Ok(HandshakeProgress::Done) => panic!("done"),
            Ok(_) => assert!(fed <= Session::MAX_HANDSHAKE, "{fed}"),
            Err(_) => return,
        }
    }
}

#[test]
fn a_record_that_was_changed_ends_the_session() {
    let bed = bed();
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for at in [0, 3, 5, 20, 60] {
            let mut pair = bed.pair(Shows::Key("vm1", KEY), version, 1 << 16);
            pair.shake().unwrap();
            pair.client.0.write_all(&[7; 100]).unwrap();
            pair.client.0.get_mut().sent[at] ^= 1;
            assert!(pair.open(100).is_err(), "{at}");
        }
    }
}

#[test]
fn one_call_looks_at_one_record() {
    let bed = bed();
    let mut pair = bed.pair(Shows::Key("vm1", KEY), SslVersion::TLS1_3, 1 << 20);
    pair.shake().unwrap();
    for _ in 0..1000 {
        pair.client.0.write_all(&[1]).unwrap();
    }
    assert!(pair.feed());
    let mut into = [0; 4096];
    // However much was received, each call ends soon: others have their turn between them.
    assert_eq!(pair.session.open(&mut into), Ok(ReadOutcome::Bytes(1)));
}

#[test]
fn what_is_revoked_is_refused() {
    let bed = bed();
    let (good, bad) =
        (bed.authority.signs("good", 7, (-1, 1)), bed.authority.signs("bad", 8, (-1, 1)));
    revoke(bed.path(), &bed.authority, 8);
    let mut pair = bed.pair(Shows::Certificate(&good), SslVersion::TLS1_3, 1 << 16);
    pair.shake().unwrap();
    let e = bed.refusal(Shows::Certificate(&bad), SslVersion::TLS1_3);
    assert!(e.contains("revoked"), "{e}");
}

/// A list of what was revoked; the crate cannot make one, the command can.
fn revoke(dir: &Path, authority: &Signed, serial: u32) {
    put(&dir.join("ca-key.pem"), &authority.key.private_key_to_pem_pkcs8().unwrap());
    let revoked = format!("R\t401231000000Z\t250101000000Z\t{serial:02X}\tunknown\t/CN=bad\n");
    put(&dir.join("index.txt"), revoked.as_bytes());
    put(&dir.join("crlnumber"), b"01\n");
    let config = "[ca]\ndefault_ca = one\n[one]\ndatabase = index.txt\ncrlnumber = crlnumber\n\
                  default_md = sha256\n";
    put(&dir.join("ca.conf"), config.as_bytes());
    let done = std::process::Command::new("openssl")
        .current_dir(dir)
        .args(["ca", "-config", "ca.conf", "-gencrl", "-crldays", "2", "-keyfile", "ca-key.pem"])
        .args(["-cert", "ca-cert.pem", "-out", "ca-crl.pem"])
        .output()
        .expect("openssl");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_reason() {
    use std::os::unix::fs::PermissionsExt;
    let check = |spoil: &dyn Fn(&Bed), file: &str, word: &str| {
        let bed = bed();
        spoil(&bed);
        let Err(e) = Acceptor::new(&bed.from) else { panic!("{file}: taken") };
        let text = e.to_string();
        assert!(text.contains(file) && text.contains(word), "{text}");
    };
    let remove = |name: &'static str| {
        move |bed: &Bed| {
            std::fs::remove_file(bed.path().join(name)).unwrap();
        }
    };
    for name in ["server-cert.pem", "server-key.pem", "ca-cert.pem", "keys"] {
        check(&remove(name), name, "no such file");
    }
    for name in ["server-cert.pem", "ca-cert.pem"] {
        check(&|bed| put(&bed.path().join(name), b"nonsense"), name, "certificate");
    }
    check(&|bed| put(&bed.path().join("server-key.pem"), b"x"), "server-key.pem", "private key");
    check(&|bed| put(&bed.path().join("ca-crl.pem"), b"x"), "ca-crl.pem", "PEM");
    for name in ["server-key.pem", "keys"] {
        let open = |bed: &Bed| {
            let mode = std::fs::Permissions::from_mode(0o644);
            std::fs::set_permissions(bed.path().join(name), mode).unwrap();
        };
        check(&open, name, "0600");
    }
    let other = |bed: &Bed| {
        let other = bed.authority.signs("other", 9, (-1, 1));
        let pem = other.key.private_key_to_pem_pkcs8().unwrap();
        put(&bed.path().join("server-key.pem"), &pem);
    };
    check(&other, "server-key.pem", "not that of");
    for (days, word) in [((-5, -1), "expired"), ((1, 5), "not valid before")] {
        let spoil = |bed: &Bed| {
            files(bed.path(), &bed.authority, &bed.authority.signs("server", 9, days));
        };
        check(&spoil, "server-cert.pem", word);
    }
}
