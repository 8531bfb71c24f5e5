//! An authority that signs certificates for tests, and the files that servers have them in.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Name};

/// A certificate and its key.
pub struct Signed {
    pub certificate: X509,
    pub key: PKey<Private>,
}

impl Signed {
    /// One that nothing else vouches for.
    pub fn authority(name: &str) -> Signed {
        make(name, None, 1, (-10, 10))
    }

    /// One that this one vouches for, valid from a day to another, counted from today.
    pub fn signs(&self, name: &str, serial: u32, days: (i64, i64)) -> Signed {
        make(name, Some(self), serial, days)
    }
}

fn day(from_today: i64) -> Asn1Time {
    #[allow(clippy::disallowed_methods, reason = "certificates go by the calendar")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Asn1Time::from_unix(now.as_secs() as i64 + from_today * 86_400).unwrap()
}

fn make(name: &str, by: Option<&Signed>, serial: u32, (from, to): (i64, i64)) -> Signed {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509Name::builder().unwrap();
    subject.append_entry_by_nid(Nid::COMMONNAME, name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    let serial = BigNum::from_u32(serial).unwrap().to_asn1_integer().unwrap();
    builder.set_serial_number(&serial).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(by.map_or(&subject, |by| by.certificate.subject_name())).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&day(from)).unwrap();
    builder.set_not_after(&day(to)).unwrap();
    if by.is_none() {
        let ca = BasicConstraints::new().critical().ca().build().unwrap();
        builder.append_extension(ca).unwrap();
    } else {
        let mut names = SubjectAlternativeName::new();
        let names = names.dns(&format!("{name}.lan"));
        let names = names.build(&builder.x509v3_context(None, None)).unwrap();
        builder.append_extension(names).unwrap();
    }
    builder.sign(by.map_or(&key, |by| &by.key), MessageDigest::sha256()).unwrap();
    Signed { certificate: builder.build(), key }
}

/// Writes a file that is for its owner alone.
pub fn put(path: &Path, bytes: &[u8]) {
    write(path, bytes).unwrap();
    set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// The files of a server.
pub fn files(dir: &Path, authority: &Signed, server: &Signed) {
    put(&dir.join("ca-cert.pem"), &authority.certificate.to_pem().unwrap());
    put(&dir.join("server-cert.pem"), &server.certificate.to_pem().unwrap());
    put(&dir.join("server-key.pem"), &server.key.private_key_to_pem_pkcs8().unwrap());
}
