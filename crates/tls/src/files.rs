//! Certificates and keys in files, and what is wrong with them. Every error names its file.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use openssl::asn1::{Asn1Time, Asn1TimeRef};
use openssl::pkey::{PKey, Private};
use openssl::x509::{X509, X509Crl};

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Others may do nothing with a secret, and a group may only read it.
const TOO_OPEN: u32 = 0o027;
/// Seconds before its end at which the end of a file is near.
const NEAR: i64 = 14 * 86_400;
/// The last part of a short validity, one in so many, in which the end counts as near.
const LAST_PART: i64 = 3;
/// The line that ends a list of revoked certificates in PEM.
const LIST_END: &[u8] = b"-----END X509 CRL-----";

/// A file that cannot be used, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The fault of the file.
    pub why: String,
}

impl FileError {
    pub(crate) fn new(path: &Path, why: impl Display) -> FileError {
        FileError { path: path.to_owned(), why: why.to_string() }
    }
}

/// From when until when a file is valid, in seconds since 1970. Of several certificates or lists in
/// it the one counts that ends first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validity {
    /// The file.
    pub path: PathBuf,
    /// The first second of the validity.
    pub from: i64,
    /// The last second of the validity.
    pub until: i64,
}

impl Validity {
    /// True if the end is so near that the file should be replaced. A file that is valid for a
    /// short time is replaced shortly before its end.
    pub fn ends_soon(&self, now: i64) -> bool {
        self.until - now < NEAR.min((self.until - self.from) / LAST_PART)
    }

    fn first<'a>(
        path: &Path,
        all: impl Iterator<Item = (&'a Asn1TimeRef, &'a Asn1TimeRef)>,
    ) -> Option<Validity> {
        let one = |(from, until): (&Asn1TimeRef, &Asn1TimeRef)| {
            let (from, until) = (unix(from)?, unix(until)?);
            Some(Validity { path: path.to_owned(), from, until })
        };
        all.filter_map(one).min_by_key(|one| one.until)
    }

    /// That of certificates.
    pub(crate) fn of_certificates(path: &Path, all: &[X509]) -> Option<Validity> {
        Validity::first(path, all.iter().map(|one| (one.not_before(), one.not_after())))
    }

    /// That of the lists of revoked certificates in a file. One that names no end has none.
    pub(crate) fn of_lists(path: &Path, pem: &[u8]) -> Option<Validity> {
        let mut all = Vec::new();
        let mut rest = pem;
        while let Some(at) = rest.windows(LIST_END.len()).position(|part| part == LIST_END) {
            let (list, behind) = rest.split_at(at + LIST_END.len());
            all.extend(X509Crl::from_pem(list));
            rest = behind;
        }
        Validity::first(path, all.iter().filter_map(|l| Some((l.last_update(), l.next_update()?))))
    }
}

fn unix(time: &Asn1TimeRef) -> Option<i64> {
    let passed = Asn1Time::from_unix(0).ok()?.diff(time).ok()?;
    Some(i64::from(passed.days) * 86_400 + i64::from(passed.secs))
}

/// The content of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let wrong = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => FileError::new(path, "there is no such file"),
        _ => FileError::new(path, e),
    };
    let file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(FileError::new(path, "it is longer than 1 MiB"));
    }
    Ok(bytes)
}

/// The content of a file that is a secret.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, FileError> {
    if let Ok(meta) = path.metadata() {
        let mode = meta.permissions().mode() & 0o777;
        if mode & TOO_OPEN != 0 {
            let text = format!(
                "its mode is {mode:03o}: others can use this secret; make it 0600, or 0640 for a \
                 group that may read it"
            );
            return Err(FileError::new(path, text));
        }
    }
    read(path)
}

/// All certificates of a file, at least one, of which the first has to be valid today.
pub(crate) fn certificates(path: &Path) -> Result<Vec<X509>, FileError> {
    let wrong = |e: &dyn Display| FileError::new(path, e);
    let all = X509::stack_from_pem(&read(path)?)
        .map_err(|e| wrong(&format_args!("no certificate in PEM: {e}")))?;
    let Some(first) = all.first() else { return Err(wrong(&"there is no certificate in it")) };
    let now = Asn1Time::days_from_now(0).map_err(|e| wrong(&e))?;
    if *first.not_after() < *now {
        return Err(wrong(&format_args!("the certificate has expired, on {}", first.not_after())));
    }
    if *first.not_before() > *now {
        let from = first.not_before();
        return Err(wrong(&format_args!("the certificate is not valid before {from}")));
    }
    Ok(all)
}

/// A private key, without a passphrase.
pub(crate) fn private_key(path: &Path) -> Result<PKey<Private>, FileError> {
    let pem = read_secret(path)?;
    // An empty answer to the question for a passphrase: there is no terminal to ask at.
    PKey::private_key_from_pem_callback(&pem, |_| Ok(0)).map_err(|e| {
        FileError::new(path, format_args!("no private key in PEM without a passphrase: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_shortly_is_replaced_shortly_before_its_end() {
        const DAY: i64 = 86_400;
        let soon = |days: i64, left: i64| {
            let valid = Validity { path: PathBuf::new(), from: 0, until: days * DAY };
            valid.ends_soon(days * DAY - left)
        };
        assert!(soon(365, 14 * DAY - 1) && !soon(365, 14 * DAY) && soon(365, -1));
        assert!(soon(30, 10 * DAY - 1) && !soon(30, 10 * DAY));
        assert!(soon(1, 7 * 3600) && !soon(1, 9 * 3600));
    }
}
