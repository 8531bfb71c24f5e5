//! One request: what the export is asked, and the reply that comes of it.

use base::{BufPool, Slice, SliceList};
use rt::Rt;

use crate::codec::Errno;
use crate::codec::reply::{self, Head, state};
use crate::codec::request::{Command, Request, Terms, flag};
use crate::export::{BlockStatus, Export, ZeroOpts};

/// Extents in one reply.
const MAX_EXTENTS: usize = 512;
/// Bytes of an extent in a reply.
const EXTENT: usize = 8;
/// Bytes of a READ that are read, verified and sent together where the client lets a reply be cut:
/// little enough to stay in a processor's cache meanwhile.
const PIECE: u32 = 128 << 10;

/// A reply that is an error.
pub(super) fn refusal(r: &Request, terms: &Terms, e: Errno) -> Head {
    let chunked = match r.command {
        Command::Read => terms.structured,
        Command::BlockStatus => terms.block_status,
        _ => false,
    };
    if chunked { reply::error(r.cookie, e) } else { reply::simple(r.cookie, Some(e)) }
}

/// Bytes of memory that a request's payload or reply takes; 0 if it has neither.
pub(super) fn payload_cost(r: &Request) -> u32 {
    match r.command {
        Command::Read | Command::Write => r.len,
        Command::BlockStatus => (MAX_EXTENTS * EXTENT) as u32,
        _ => 0,
    }
}

/// Bytes that a request moves, as far as limits and shares go.
pub(super) fn moved(r: &Request) -> u64 {
    match r.command {
        Command::Read | Command::Write => r.len.into(),
        Command::WriteZeroes if r.has(flag::NO_HOLE) => r.len.into(),
        _ => 0,
    }
}

/// Carries out a request that was admitted. `data` is a WRITE's payload.
pub(super) async fn answer<X: Export>(
    bufs: &BufPool,
    export: &X,
    r: &Request,
    terms: &Terms,
    data: Option<Slice>,
) -> (Head, SliceList) {
    if r.command != Command::Read {
        // Boxed, so that the task of a read, the most frequent, is small.
        return Box::pin(answer_other(bufs, export, r, terms, data)).await;
    }
    match read(export, r).await {
        Ok(data) if terms.structured => (reply::data(r.cookie, r.offset, r.len), data),
        Ok(data) => (reply::simple(r.cookie, None), data),
        Err(e) => (refusal(r, terms, e), SliceList::new()),
    }
}

/// True if a request's reply is sent piece by piece, by [`answer_in_pieces`].
pub(super) fn in_pieces(r: &Request, terms: &Terms) -> bool {
    r.command == Command::Read && terms.structured && !r.has(flag::DF) && r.len > PIECE
}

/// Carries out a large READ. All pieces are read at once; each is handed to `push` as soon as those
/// before it are, and the last one, or the error that ends the reply, is returned.
pub(super) async fn answer_in_pieces<X: Export>(
    rt: &Rt,
    export: &X,
    r: &Request,
    terms: &Terms,
    push: impl Fn(Head, SliceList),
) -> (Head, SliceList) {
    let (mut at, end) = (r.offset, r.offset + u64::from(r.len));
    let mut pieces = Vec::with_capacity((r.len / PIECE) as usize + 2);
    while at < end {
        // Up to the next boundary, so that no block is read for two pieces.
        let next = ((at / u64::from(PIECE) + 1) * u64::from(PIECE)).min(end);
        let part = Request { offset: at, len: (next - at) as u32, ..*r };
        let export = export.clone();
        pieces.push((part, rt.spawn(async move { read(&export, &part).await })));
        at = next;
    }
    let mut failed = None;
    // All of them, whatever one says: the reply's last chunk gives back the bytes they were allowed
    // to take.
    for (part, task) in pieces {
        let last = part.offset + u64::from(part.len) == end;
        match task.await.unwrap_or(Err(Errno::Shutdown)) {
            Err(e) => failed = failed.or(Some(e)),
            Ok(_) if failed.is_some() => {}
            Ok(data) if last => return (reply::data(r.cookie, part.offset, part.len), data),
            Ok(data) => push(reply::data_part(r.cookie, part.offset, part.len), data),
        }
    }
    (refusal(r, terms, failed.unwrap_or(Errno::Io)), SliceList::new())
}

/// Carries out any request but a READ.
async fn answer_other<X: Export>(
    bufs: &BufPool,
    export: &X,
    r: &Request,
    terms: &Terms,
    data: Option<Slice>,
) -> (Head, SliceList) {
    let (offset, len, fua) = (r.offset, u64::from(r.len), r.has(flag::FUA));
    let done = match (r.command, data) {
        (Command::BlockStatus, _) => {
            return match block_status(bufs, export, r).await {
                Ok(extents) => {
                    let mut data = SliceList::new();
                    let count = extents.len() / EXTENT;
                    data.push(extents);
                    (reply::block_status(r.cookie, count as u32), data)
                }
                Err(e) => (refusal(r, terms, e), SliceList::new()),
            };
        }
        (Command::Write, Some(data)) => export.write(offset, data, fua).await,
        (Command::Flush, _) => export.flush().await,
        (Command::Trim, _) => export.trim(offset, len, fua).await,
        (Command::Cache, _) => export.cache(offset, len).await,
        (Command::WriteZeroes, _) => {
            let opts =
                ZeroOpts { no_hole: r.has(flag::NO_HOLE), fast: r.has(flag::FAST_ZERO), fua };
            export.write_zeroes(offset, len, opts).await
        }
        (Command::Read | Command::Write | Command::Disc | Command::Unknown(_), _) => {
            Err(Errno::Inval)
        }
    };
    (reply::simple(r.cookie, done.err()), SliceList::new())
}

/// The data of a READ: not a byte more or less than was asked for, or the client would lose its
/// place in the stream.
async fn read<X: Export>(export: &X, r: &Request) -> Result<SliceList, Errno> {
    let data = export.read(r.offset, r.len).await?;
    let got: usize = data.iter().map(|s| s.len()).sum();
    if got != r.len as usize {
        tracing::error!(
            offset = r.offset,
            len = r.len,
            got,
            "export returned a read of the wrong length"
        );
        return Err(Errno::Io);
    }
    Ok(data)
}

/// The descriptors of a BLOCK_STATUS reply. They end where the request does, so that their lengths
/// fit into 32 bits.
async fn block_status<X: Export>(bufs: &BufPool, export: &X, r: &Request) -> Result<Slice, Errno> {
    let max = if r.has(flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
    let extents = export.block_status(r.offset, u64::from(r.len), max).await?;
    let mut out = bufs.take(max * EXTENT);
    let (mut n, mut left) = (0, r.len);
    for e in extents.iter().filter(|e| e.len > 0).take(max) {
        let len = u32::try_from(e.len).unwrap_or(u32::MAX).min(left);
        if len == 0 {
            break;
        }
        out[n..n + 4].copy_from_slice(&len.to_be_bytes());
        out[n + 4..n + EXTENT].copy_from_slice(&state_of(e).to_be_bytes());
        n += EXTENT;
        left -= len;
    }
    if n == 0 {
        tracing::error!(
            offset = r.offset,
            len = r.len,
            "export returned no extents for BLOCK_STATUS"
        );
        return Err(Errno::Io);
    }
    out.truncate(n);
    Ok(out.freeze())
}

fn state_of(e: &BlockStatus) -> u32 {
    (if e.hole { state::HOLE } else { 0 }) | (if e.zero { state::ZERO } else { 0 })
}
