//! The peer at the other end of a session, as far as it has proved who it is.

pub use model::volume::Proof;
use openssl::nid::Nid;
use openssl::ssl::SslRef;
use openssl::x509::X509Ref;

/// The other end of a session whose handshake is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: &'static str,
    /// The cipher of the connection.
    pub cipher: &'static str,
    /// The way in which the peer has proved its names.
    pub proof: Proof,
    /// The names of the peer: common name and alternative names of its certificate, or the name of
    /// its key. Names with control characters are left out, so nothing can hide behind one.
    pub names: Vec<String>,
}

impl Peer {
    /// The first of the names.
    pub fn name(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }

    /// Returns the peer of a session whose handshake is done. `key_name` is the name of the key
    /// that was last asked for.
    pub(crate) fn of(ssl: &SslRef, key_name: Option<&[u8]>) -> Peer {
        let version = ssl.version_str();
        let cipher = ssl.current_cipher().map_or("?", |cipher| cipher.name());
        let (proof, names) = if let Some(name) = key_name.filter(|_| by_key(ssl)) {
            (Proof::Key, plain(name).into_iter().collect())
        } else if let Some(certificate) = ssl.peer_certificate() {
            (Proof::Certificate, names_of(&certificate))
        } else {
            (Proof::Nothing, Vec::new())
        };
        Peer { version, cipher, proof, names }
    }
}

/// Whether the handshake went by a key: a client may name one and then not prove it, but go on with
/// a certificate.
fn by_key(ssl: &SslRef) -> bool {
    // TLS 1.3 treats such a key like a session that is resumed; nothing else can be resumed here.
    // In TLS 1.2 the session keeps the name.
    ssl.session_reused() || ssl.psk_identity().is_some()
}

fn names_of(certificate: &X509Ref) -> Vec<String> {
    let mut names: Vec<String> = certificate
        .subject_name()
        .entries_by_nid(Nid::COMMONNAME)
        .filter_map(|entry| plain(entry.data().as_slice()))
        .collect();
    for name in certificate.subject_alt_names().into_iter().flatten() {
        let text = name.dnsname().or_else(|| name.email()).or_else(|| name.uri());
        names.extend(text.and_then(|text| plain(text.as_bytes())));
    }
    let mut seen = Vec::new();
    names.retain(|name| !seen.contains(name) && (seen.push(name.clone()), true).1);
    names
}

/// A name as it stands, if there is nothing odd about it.
pub(crate) fn plain(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}
