//! Certificates and keys in files, and what is wrong with them. Every error names its file.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use openssl::asn1::Asn1Time;
use openssl::pkey::{PKey, Private};
use openssl::x509::X509;

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Others may do nothing with a secret, and a group may only read it.
const TOO_OPEN: u32 = 0o027;

/// A file that cannot be used, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl FileError {
    pub(crate) fn new(path: &Path, why: impl Display) -> FileError {
        FileError { path: path.to_owned(), why: why.to_string() }
    }
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
