//! The acceptor: the settings, certificates and keys that all sessions of a server share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslFiletype, SslMethod, SslMode, SslOptions, SslRef,
    SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use openssl::x509::store::{X509Lookup, X509StoreBuilder};
use openssl::x509::verify::X509VerifyFlags;

use crate::files::{FileError, Validity, certificates, private_key, read};
use crate::psk::{Keys, read_keys};

/// The names that qemu and nbdkit give these files.
const AUTHORITY: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Ciphers of TLS 1.2: with forward secrecy, and authenticated. Keys that were agreed on come
/// first: a client that has one is known by it.
const CIPHERS: &str = "kECDHEPSK+CHACHA20:ECDHE+AESGCM:ECDHE+CHACHA20";
/// Ciphers of TLS 1.3. Keys that were agreed on go with the hash of the first two only; a server
/// that preferred the third would take no such key from a client that has all of them.
const SUITES: &str = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";
/// The number of certificates between a client's and the authority's.
const MAX_DEPTH: u32 = 8;

/// The files by which a server proves itself, and by which it knows clients.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Credentials {
    /// A directory with `server-cert.pem`, `server-key.pem`, `ca-cert.pem` and, if it is there,
    /// `ca-crl.pem`.
    pub certificates: Option<PathBuf>,
    /// A file of keys, `NAME:HEX` a line.
    pub keys: Option<PathBuf>,
    /// True if clients without a key need a certificate of the authority.
    pub verify_peer: bool,
}

impl Credentials {
    /// Returns the files of the credentials, whether they are there or not.
    pub fn files(&self) -> Vec<PathBuf> {
        let of_dir = |dir: &PathBuf| [AUTHORITY, REVOKED, CERTIFICATE, KEY].map(|n| dir.join(n));
        let certificates = self.certificates.iter().flat_map(of_dir);
        certificates.chain(self.keys.clone()).collect()
    }
}

/// The context of which sessions are made. Clones are the same; an acceptor may be used by several
/// threads.
#[derive(Clone)]
pub struct Acceptor {
    context: SslContext,
    valid: Arc<[Validity]>,
}

/// Returns the slot in which a session keeps the name of the key that was asked for.
pub(crate) fn key_name() -> Option<Index<Ssl, Vec<u8>>> {
    static PLACE: OnceLock<Option<Index<Ssl, Vec<u8>>>> = OnceLock::new();
    *PLACE.get_or_init(|| Ssl::new_ex_index().ok())
}

/// Returns the slot in which a session keeps a name that was asked for and has no key.
pub(crate) fn unknown_name() -> Option<Index<Ssl, Vec<u8>>> {
    static PLACE: OnceLock<Option<Index<Ssl, Vec<u8>>>> = OnceLock::new();
    *PLACE.get_or_init(|| Ssl::new_ex_index().ok())
}

impl Acceptor {
    /// Reads all files. Errors: one that is missing, cannot be used, or does not fit the others.
    pub fn new(from: &Credentials) -> Result<Acceptor, FileError> {
        let named = from.certificates.as_deref().or(from.keys.as_deref()).unwrap_or(Path::new(""));
        let wrong = |e: ErrorStack| FileError::new(named, e);
        let mut builder = hardened().map_err(wrong)?;
        let mut valid = Vec::new();
        if let Some(dir) = &from.certificates {
            valid.extend(prove_by(&mut builder, dir)?);
            if from.verify_peer {
                valid.extend(demand(&mut builder, dir)?);
            }
        }
        if let Some(path) = &from.keys {
            agree(&mut builder, read_keys(path)?);
        }
        Ok(Acceptor { context: builder.build(), valid: valid.into() })
    }

    /// For how long its files are valid, as far as they say so: certificates, and the list of those
    /// that were revoked.
    pub fn validity(&self) -> &[Validity] {
        &self.valid
    }

    pub(crate) fn ssl(&self) -> Result<Ssl, ErrorStack> {
        Ssl::new(&self.context)
    }
}

/// Returns a context with the settings that hold whatever the credentials are.
fn hardened() -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContext::builder(SslMethod::tls_server())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    builder.set_cipher_list(CIPHERS)?;
    builder.set_ciphersuites(SUITES)?;
    builder.set_options(
        SslOptions::NO_RENEGOTIATION
            | SslOptions::NO_COMPRESSION
            | SslOptions::NO_TICKET
            | SslOptions::CIPHER_SERVER_PREFERENCE,
    );
    builder.set_num_tickets(0)?;
    builder.set_max_early_data(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_session_id_context(b"forebay")?;
    builder.set_mode(
        SslMode::ENABLE_PARTIAL_WRITE
            | SslMode::ACCEPT_MOVING_WRITE_BUFFER
            | SslMode::RELEASE_BUFFERS,
    );
    builder.set_verify(SslVerifyMode::NONE);
    Ok(builder)
}

/// The server's own certificate, with those between it and the authority.
fn prove_by(builder: &mut SslContextBuilder, dir: &Path) -> Result<Option<Validity>, FileError> {
    let (path, key_path) = (dir.join(CERTIFICATE), dir.join(KEY));
    let wrong = |e: ErrorStack| FileError::new(&path, e);
    let chain = certificates(&path)?;
    let valid = Validity::of_certificates(&path, &chain);
    let mut chain = chain.into_iter();
    if let Some(own) = chain.next() {
        builder.set_certificate(&own).map_err(wrong)?;
    }
    for between in chain {
        builder.add_extra_chain_cert(between).map_err(wrong)?;
    }
    let misfit =
        |_| FileError::new(&key_path, format_args!("the key is not that of {}", path.display()));
    builder.set_private_key(&*private_key(&key_path)?).map_err(misfit)?;
    builder.check_private_key().map_err(misfit)?;
    Ok(valid)
}

/// Clients need a certificate of the authority, which is not among those that were revoked.
fn demand(builder: &mut SslContextBuilder, dir: &Path) -> Result<Vec<Validity>, FileError> {
    let (path, revoked) = (dir.join(AUTHORITY), dir.join(REVOKED));
    let wrong = |e: ErrorStack| FileError::new(&path, e);
    let mut store = X509StoreBuilder::new().map_err(wrong)?;
    let authorities = certificates(&path)?;
    let mut valid = Vec::from_iter(Validity::of_certificates(&path, &authorities));
    for authority in authorities {
        builder.add_client_ca(&authority).map_err(wrong)?;
        store.add_cert(authority).map_err(wrong)?;
    }
    if revoked.exists() {
        valid.extend(Validity::of_lists(&revoked, &read(&revoked)?));
        let load = |store: &mut X509StoreBuilder| {
            store.add_lookup(X509Lookup::file())?.load_crl_file(&revoked, SslFiletype::PEM)?;
            store.set_flags(X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL)
        };
        load(&mut store)
            .map_err(|e| FileError::new(&revoked, format_args!("no list in PEM: {e}")))?;
    }
    builder.set_cert_store(store.build());
    builder.set_verify_depth(MAX_DEPTH);
    builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    Ok(valid)
}

/// Clients may go by a key.
fn agree(builder: &mut SslContextBuilder, keys: Keys) {
    builder.set_psk_server_callback(move |ssl: &mut SslRef, name, secret| {
        let (Some(name), Some(place)) = (name, key_name()) else { return Ok(0) };
        let Some(key) = keys.get(name) else {
            // Not the end yet: the client may go on with a certificate.
            if let Some(place) = unknown_name() {
                ssl.set_ex_data(place, name.to_vec());
            }
            return Ok(0);
        };
        let Some(room) = secret.get_mut(..key.len()) else { return Ok(0) };
        room.copy_from_slice(key);
        ssl.set_ex_data(place, name.to_vec());
        Ok(key.len())
    });
}
