//! Two ways to a volume: by its own functions, and by NBD over the simulated wire.

use base::{ErrorKind, Slice, SliceList, StorageError};
use ledger::RequestClass;
use nbd::Errno;
use nbd::codec::request::{Command, flag};
use nbd_client::{Client, ClientError};
use rt::Rt;
use volume::Volume;

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureReason {
    NoSpace,
    /// The request makes no sense: it is outside of the volume.
    Invalid,
    /// There is no such volume (any more).
    Gone,
    /// No good copy, or no device.
    Io,
    /// The connection is gone; whether it was done is unknown.
    Closed,
    /// An error that should never come.
    Odd,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub why: FailureReason,
    pub text: String,
}

impl From<StorageError> for Failure {
    fn from(e: StorageError) -> Failure {
        let why = match e.kind {
            ErrorKind::NoSpace => FailureReason::NoSpace,
            ErrorKind::Invalid => FailureReason::Invalid,
            ErrorKind::NotFound => FailureReason::Gone,
            ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Missing | ErrorKind::Unreachable => {
                FailureReason::Io
            }
            _ => FailureReason::Odd,
        };
        Failure { why, text: format!("{:?}: {e}", e.kind) }
    }
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Failure {
        let why = match e {
            ClientError::Closed => FailureReason::Closed,
            ClientError::Errno(Errno::NoSpc) => FailureReason::NoSpace,
            ClientError::Errno(Errno::Inval) => FailureReason::Invalid,
            ClientError::Errno(Errno::Shutdown) => FailureReason::Gone,
            ClientError::Errno(Errno::Io) => FailureReason::Io,
            _ => FailureReason::Odd,
        };
        Failure { why, text: format!("{e:?}") }
    }
}

/// A way to a volume.
#[derive(Clone)]
pub(crate) enum Front {
    Direct(Volume, Rt),
    Nbd(Client),
}

/// Requests through the front.
impl Front {
    pub async fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Failure> {
        match self {
            Front::Direct(v, rt) => {
                let read = async {
                    let _ticket = v.admit(len).await;
                    Ok(flat(&v.read(offset, len).await?))
                };
                rt.request(RequestClass::Read, offset, len).works(read).await
            }
            Front::Nbd(c) => Ok(c.read(offset, len as u32, 0).await?),
        }
    }

    pub async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), Failure> {
        match self {
            Front::Direct(v, rt) => {
                let len = data.len() as u64;
                let write = async {
                    let ticket = v.admit(len).await;
                    v.write(offset, data).await?;
                    drop(ticket);
                    durable(v, fua).await
                };
                rt.request(RequestClass::Write, offset, len).works(write).await
            }
            Front::Nbd(c) => Ok(c.write(offset, &data, if fua { flag::FUA } else { 0 }).await?),
        }
    }

    pub async fn flush(&self) -> Result<(), Failure> {
        match self {
            Front::Direct(v, rt) => {
                rt.request(RequestClass::Flush, 0, 0).works(durable(v, true)).await
            }
            Front::Nbd(c) => Ok(c.flush().await?),
        }
    }

    pub async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<(), Failure> {
        match self {
            Front::Direct(v, rt) => {
                let discard = async {
                    let ticket = v.admit(0).await;
                    v.discard(offset, len).await?;
                    drop(ticket);
                    durable(v, fua).await
                };
                rt.request(RequestClass::Discard, offset, len).works(discard).await
            }
            Front::Nbd(c) => Ok(c
                .command(Command::Trim, offset, len as u32, if fua { flag::FUA } else { 0 })
                .await?),
        }
    }

    pub async fn zeroes(
        &self,
        offset: u64,
        len: u64,
        allocate: bool,
        fua: bool,
    ) -> Result<(), Failure> {
        match self {
            Front::Direct(v, rt) => {
                let zeroes = async {
                    let ticket = if allocate { v.admit_fill(len).await } else { v.admit(0).await };
                    v.write_zeroes(offset, len, allocate, Some(&ticket)).await?;
                    drop(ticket);
                    durable(v, fua).await
                };
                rt.request(RequestClass::Discard, offset, len).works(zeroes).await
            }
            Front::Nbd(c) => {
                let flags =
                    if allocate { flag::NO_HOLE } else { 0 } | if fua { flag::FUA } else { 0 };
                Ok(c.command(Command::WriteZeroes, offset, len as u32, flags).await?)
            }
        }
    }

    /// The extents of a range: bytes, and whether they may hold something else than zeros.
    pub async fn extents(&self, offset: u64, len: u64) -> Result<Vec<(u64, bool)>, Failure> {
        match self {
            Front::Direct(v, rt) => {
                let extents = async {
                    let _ticket = v.admit(0).await;
                    let parts = v.extents(offset, len, 64).await?;
                    Ok(parts.into_iter().map(|e| (e.len, e.allocated)).collect())
                };
                rt.request(RequestClass::Other, offset, len).works(extents).await
            }
            Front::Nbd(c) => {
                let parts = c.block_status(offset, len as u32, 0).await?;
                Ok(parts.into_iter().map(|(len, flags)| (u64::from(len), flags & 2 == 0)).collect())
            }
        }
    }

    /// The longest range of one request.
    pub fn most_bytes(&self) -> u64 {
        match self {
            Front::Direct(..) => u64::MAX,
            Front::Nbd(_) => 1 << 31,
        }
    }
}

async fn durable(volume: &Volume, fua: bool) -> Result<(), Failure> {
    if fua { Ok(volume.flush().await?) } else { Ok(()) }
}

fn flat(parts: &SliceList) -> Vec<u8> {
    let mut out = Vec::with_capacity(parts.iter().map(|s| s.len()).sum());
    parts.iter().for_each(|s| out.extend_from_slice(s));
    out
}

/// Runs a request as a task of its own, as front ends do: it must not be dropped half way.
pub(crate) async fn run<T: 'static>(
    rt: &Rt,
    request: impl Future<Output = Result<T, Failure>> + 'static,
) -> Result<T, Failure> {
    match rt.spawn(request).await {
        Some(outcome) => outcome,
        None => Err(Failure {
            why: FailureReason::Odd,
            text: "the request ended without an answer".to_owned(),
        }),
    }
}
