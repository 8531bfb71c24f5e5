//! TLS: what a client sends, and the files of certificates and keys.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::LazyLock;

use base::BufPool;
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream};
use openssl::x509::{X509, X509Name};
use tempfile::TempDir;
use tls::{Acceptor, Credentials, HandshakeProgress, ReadOutcome, Session};

const KEYS: &str = "vm1:30313233343536373839616263646566\nvm2:00112233445566778899aabbccddeeff\n";
const NAMES: [&str; 5] = ["keys", "server-cert.pem", "server-key.pem", "ca-cert.pem", "ca-crl.pem"];

/// Room for files, in memory where that is possible.
fn room() -> TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.expect("a directory for files of TLS")
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file in a directory of our own");
    let secret = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, secret).expect("a file of our own");
}

static ACCEPTOR: LazyLock<Acceptor> = LazyLock::new(|| {
    let dir = room();
    let keys = dir.path().join("keys");
    put(&keys, KEYS.as_bytes());
    let from = Credentials { certificates: None, keys: Some(keys), verify_peer: true };
    Acceptor::new(&from).expect("keys that are right")
});

/// What a client sends, in pieces: the first byte says how long they are.
pub fn session(data: &[u8]) {
    let Some((&step, bytes)) = data.split_first() else { return };
    let bufs = BufPool::new(0);
    let mut session = Session::new(&ACCEPTOR, &bufs).expect("a session of good credentials");
    let mut plain = vec![0; 4096];
    for piece in bytes.chunks(usize::from(step) * 8 + 1) {
        session.feed(bufs.copy_of(piece), piece.len());
        // Each call looks at some of the input, so that many are enough.
        let mut calls = 0;
        while let Ok(HandshakeProgress::Again) = session.shake() {
            calls += 1;
            assert!(calls <= piece.len(), "the handshake does not go on");
        }
        match session.shake() {
            Ok(HandshakeProgress::NeedsInput) => {}
            Ok(HandshakeProgress::Done) => match session.open(&mut plain) {
                Ok(ReadOutcome::Bytes(n)) => assert!(n <= plain.len()),
                Ok(ReadOutcome::NeedsInput) => {}
                Ok(ReadOutcome::Again | ReadOutcome::End) | Err(_) => return,
            },
            Ok(HandshakeProgress::Again) => return,
            Err(e) => return assert!(!e.0.is_empty(), "broken without a word"),
        }
        drop(session.take_output());
        drop(session.take_buf());
    }
}

/// What a client of OpenSSL sends first. It is not answered.
#[derive(Debug, Default)]
struct ClientHello(Vec<u8>);

impl Read for ClientHello {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for ClientHello {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Seeds of [`session`].
pub fn hellos() -> Vec<Vec<u8>> {
    let hello = |by_key: bool| {
        let mut context = SslContext::builder(SslMethod::tls_client()).expect("a client");
        if by_key {
            context.set_psk_client_callback(|_, _, name, key| {
                name[..4].copy_from_slice(b"vm1\0");
                key[..16].copy_from_slice(b"0123456789abcdef");
                Ok(16)
            });
        }
        let ssl = Ssl::new(&context.build()).expect("a client's end");
        let mut stream = SslStream::new(ssl, ClientHello::default()).expect("a client's stream");
        // It waits for the answer, which does not come.
        drop(stream.connect());
        let mut seed = vec![255];
        seed.append(&mut stream.get_mut().0);
        seed
    };
    vec![hello(false), hello(true)]
}

/// A file of keys, a certificate, its key, an authority's certificate, or a list of what was
/// revoked: the first byte says which.
pub fn files(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    let name = NAMES[usize::from(which) % NAMES.len()];
    // The other files are right, so that this one is looked at.
    let dir = room();
    put_certificates(dir.path());
    put(&dir.path().join(name), bytes);
    let certificates = (name != "keys").then(|| dir.path().to_owned());
    let keys = (name == "keys").then(|| dir.path().join(name));
    if let Err(e) = Acceptor::new(&Credentials { certificates, keys, verify_peer: true }) {
        assert!(!e.why.is_empty() && !e.to_string().contains("30313233"), "{e}");
    }
}

/// A certificate that signs itself, valid for a year, and its key, in PEM.
static CERTIFICATE: LazyLock<(Vec<u8>, Vec<u8>)> =
    LazyLock::new(|| certificate().expect("OpenSSL makes a certificate"));

fn certificate() -> Result<(Vec<u8>, Vec<u8>), ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509Name::builder()?;
    name.append_entry_by_nid(Nid::COMMONNAME, "fuzz")?;
    let name = name.build();
    let mut builder = X509::builder()?;
    builder.set_version(2)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    builder.set_pubkey(&key)?;
    let (from, until) = (Asn1Time::days_from_now(0)?, Asn1Time::days_from_now(365)?);
    builder.set_not_before(&from)?;
    builder.set_not_after(&until)?;
    builder.sign(&key, MessageDigest::sha256())?;
    Ok((builder.build().to_pem()?, key.private_key_to_pem_pkcs8()?))
}

fn put_certificates(dir: &Path) {
    let (own, key) = &*CERTIFICATE;
    for (name, bytes) in NAMES[1..].iter().zip([own, key, own]) {
        put(&dir.join(name), bytes);
    }
}

/// Seeds of [`files`].
pub fn some_files() -> Vec<Vec<u8>> {
    let (own, key) = &*CERTIFICATE;
    let list = b"-----BEGIN X509 CRL-----\nMIGp\n-----END X509 CRL-----\n";
    let contents: [&[u8]; 5] = [KEYS.as_bytes(), own, key, own, list];
    (0..).zip(contents).map(|(which, bytes)| [&[which], bytes].concat()).collect()
}
