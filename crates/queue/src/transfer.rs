//! Transfers: one request to the device for a run of requests, finished where the device moved only
//! a part of it, and split where it failed.

use base::{BufList, IoError, SliceList, slice_of_list};
use rt::{Completion, FileId, Op, Payload, Rt, WaitCause, WaitGuard};
use smallvec::SmallVec;

use crate::request::{MergedRequest, Request};
use crate::work::{ReadDone, Work, WriteDone};

/// Short transfers in a row that do not finish a single block, before it is an error.
const MAX_STALLS: u32 = 16;

/// The file or device that transfers are of.
#[derive(Clone)]
pub(crate) struct Medium {
    pub rt: Rt,
    pub file: FileId,
    /// The rest of a short read is read in requests of this size, in bytes.
    pub max_request_bytes: usize,
}

enum DoneSender {
    Read(ReadDone),
    Write(WriteDone),
}

struct TransferPart {
    /// The request without its work.
    request: Request<()>,
    /// Bytes before it that belong to no request.
    gap: usize,
    told: WaitGuard,
    done: DoneSender,
}

/// One request to the device: a run of merged requests.
pub(crate) struct Transfer {
    offset: u64,
    moved: usize,
    stalls: u32,
    len: usize,
    durable: bool,
    parts: SmallVec<[TransferPart; 1]>,
    /// The data to be written, if a part of it was written already and it belongs to more than one
    /// request.
    whole: Option<SliceList>,
}

/// A transfer that has ended, and what it owned.
pub(crate) struct EndedTransfer {
    transfer: Transfer,
    bufs: BufList,
    data: SliceList,
    /// `None`: the transfer failed, and each of its requests is to be tried alone.
    outcome: Option<Result<(), IoError>>,
}

fn take_work<W>(request: Request<W>) -> (Request<()>, W) {
    let Request { class, write, durable, offset, len, segments, since, alone, more, work } =
        request;
    let bare =
        Request { class, write, durable, offset, len, segments, since, alone, more, work: () };
    (bare, work)
}

impl Transfer {
    /// True if it failed for what one of several requests may have met.
    fn can_be_split(&self, e: IoError) -> bool {
        self.parts.len() > 1 && !self.durable && !e.is_gone()
    }

    fn end(self, outcome: Result<(), IoError>, bufs: BufList) -> EndedTransfer {
        EndedTransfer { transfer: self, bufs, data: SliceList::new(), outcome: Some(outcome) }
    }

    fn fail(self, e: IoError, bufs: BufList, data: SliceList) -> EndedTransfer {
        let outcome = if self.can_be_split(e) { None } else { Some(Err(e)) };
        EndedTransfer { transfer: self, bufs, data, outcome }
    }
}

impl EndedTransfer {
    /// True if it failed as a whole, and each of its requests is to be tried alone: which of them
    /// is bad is not known, and the others are not to fail with it.
    pub fn is_to_be_split(&self) -> bool {
        self.outcome.is_none()
    }

    /// The requests of the transfer, to be tried alone.
    pub fn split(self) -> Vec<Request<Work>> {
        let (mut bufs, mut data) = (self.bufs.into_iter(), self.data.into_iter());
        let mut alone = Vec::with_capacity(self.transfer.parts.len());
        for TransferPart { request, gap, told, done } in self.transfer.parts {
            if gap > 0 {
                bufs.next();
            }
            let segments = request.segments;
            let work = match done {
                DoneSender::Read(done) => Work::Read { buf: bufs.next(), told, done },
                DoneSender::Write(done) => {
                    let data = data.by_ref().take(segments).collect();
                    Work::Write { data, told, done }
                }
            };
            let Request { class, write, durable, offset, len, since, .. } = request;
            alone.push(Request {
                class,
                write,
                durable,
                offset,
                len,
                segments,
                since,
                alone: true,
                more: 0,
                work,
            });
        }
        alone
    }

    /// The requests of the transfer.
    pub fn requests(&self) -> impl Iterator<Item = &Request<()>> {
        self.transfer.parts.iter().map(|part| &part.request)
    }

    /// Tells the tasks that wait for the transfer.
    pub fn tell(self) {
        let outcome = self.outcome.unwrap_or(Err(IoError::IO));
        let mut bufs = self.bufs.into_iter();
        for TransferPart { gap, done, .. } in self.transfer.parts {
            match done {
                DoneSender::Read(done) => {
                    if gap > 0 {
                        bufs.next();
                    }
                    if let Some(buf) = bufs.next() {
                        done.send(outcome, buf);
                    }
                }
                DoneSender::Write(done) => done.send(outcome),
            }
        }
    }
}

impl Medium {
    /// Starts a run, of which requests say that they wait for `what`; `then` is called with what
    /// became of it.
    pub fn start(
        &self,
        run: MergedRequest<Work>,
        what: WaitCause,
        then: impl FnOnce(EndedTransfer) + 'static,
    ) {
        let (offset, durable, len) = (run.first().offset, run.first().durable, run.bytes());
        let parts = SmallVec::new();
        let mut transfer =
            Transfer { offset, moved: 0, stalls: 0, len, durable, parts, whole: None };
        let (mut bufs, mut data, mut reading) = (BufList::new(), SliceList::new(), false);
        let mut at = offset;
        for request in run.into_parts() {
            let gap = (request.offset - at) as usize;
            at = request.end();
            let (request, work) = take_work(request);
            let (told, done) = match work {
                Work::Read { buf, told, done } => {
                    reading = true;
                    if gap > 0 {
                        bufs.push(self.rt.bufs().take(gap));
                    }
                    bufs.push(buf.unwrap_or_else(|| self.rt.bufs().take(request.len)));
                    (told, DoneSender::Read(done))
                }
                Work::Write { data: more, told, done } => {
                    data.extend(more);
                    (told, DoneSender::Write(done))
                }
            };
            told.turn(what);
            transfer.parts.push(TransferPart { request, gap, told, done });
        }
        if reading { self.read(transfer, bufs, then) } else { self.write(transfer, data, then) }
    }

    fn read(&self, transfer: Transfer, bufs: BufList, then: impl FnOnce(EndedTransfer) + 'static) {
        let medium = self.clone();
        self.rt.submit(Op::Read { file: self.file, offset: transfer.offset, bufs }, move |c| {
            let result = c.result;
            let bufs = c.into_bufs();
            match result {
                Ok(n) if n as usize == transfer.len => then(transfer.end(Ok(()), bufs)),
                Ok(0) => then(transfer.end(Err(IoError::IO), bufs)),
                Ok(n) => medium.read_rest(transfer, n as usize, bufs, then),
                Err(e) => then(transfer.fail(e, bufs, SliceList::new())),
            }
        });
    }

    /// After a short read: reads the rest piece by piece into a buffer of its own and copies it;
    /// rare, so simple.
    fn read_rest(
        &self,
        transfer: Transfer,
        got: usize,
        mut bufs: BufList,
        then: impl FnOnce(EndedTransfer) + 'static,
    ) {
        let medium = self.clone();
        self.rt.detach(async move {
            let mut at = got;
            let mut stalls = 0;
            while at < transfer.len {
                // Direct I/O wants an aligned start: read again from the beginning of the block of
                // which only a part came.
                let from = at / base::BLOCK * base::BLOCK;
                let want = (transfer.len - from).min(medium.max_request_bytes);
                let mut bounce = BufList::new();
                bounce.push(medium.rt.bufs().take(want));
                let offset = transfer.offset + from as u64;
                let c = medium.rt.op(Op::Read { file: medium.file, offset, bufs: bounce }).await;
                let n = match c.result {
                    Ok(n) if from + n as usize > at => n as usize,
                    // Shorter still than before: that is no end of the file.
                    Ok(1..) if stalls < MAX_STALLS => {
                        stalls += 1;
                        continue;
                    }
                    Ok(_) => return then(transfer.fail(IoError::IO, bufs, SliceList::new())),
                    Err(e) => return then(transfer.fail(e, bufs, SliceList::new())),
                };
                let bounce = c.into_bufs();
                scatter(&mut bufs, at, &bounce[0][at - from..n]);
                at = from + n;
            }
            then(transfer.end(Ok(()), bufs));
        });
    }

    fn write(
        &self,
        mut transfer: Transfer,
        data: SliceList,
        then: impl FnOnce(EndedTransfer) + 'static,
    ) {
        let medium = self.clone();
        let offset = transfer.offset + transfer.moved as u64;
        let fua = transfer.durable;
        let ended = move |c: Completion| {
            let data = match c.payload {
                Payload::Data(d) => d,
                other => panic!("a write completed with {other:?}"),
            };
            match c.result {
                Ok(n) if transfer.moved + n as usize == transfer.len => {
                    then(transfer.end(Ok(()), BufList::new()))
                }
                Ok(0) => then(transfer.end(Err(IoError::IO), BufList::new())),
                Ok(n) => {
                    // Direct I/O wants an aligned start: again from the block of which only a part
                    // was written.
                    let keep = (transfer.moved + n as usize) / base::BLOCK * base::BLOCK;
                    if keep == transfer.moved {
                        transfer.stalls += 1;
                        if transfer.stalls > MAX_STALLS {
                            return then(transfer.end(Err(IoError::IO), BufList::new()));
                        }
                    }
                    let rest = slice_of_list(&data, keep - transfer.moved, usize::MAX);
                    transfer.moved = keep;
                    if transfer.parts.len() > 1 {
                        transfer.whole.get_or_insert(data);
                    }
                    medium.write(transfer, rest, then);
                }
                // A write that was to be durable is not tried again: the caller has to know that
                // the device could not do it.
                Err(e) => {
                    let data = transfer.whole.take().unwrap_or(data);
                    then(transfer.fail(e, BufList::new(), data));
                }
            }
        };
        self.rt.submit(Op::Write { file: self.file, offset, data, fua }, ended);
    }
}

/// Copies `bytes` to position `at` of the concatenation of `bufs`.
fn scatter(bufs: &mut BufList, mut at: usize, mut bytes: &[u8]) {
    for b in bufs {
        if at >= b.len() {
            at -= b.len();
            continue;
        }
        let n = bytes.len().min(b.len() - at);
        b[at..at + n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        at = 0;
    }
}
