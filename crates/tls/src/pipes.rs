//! The two queues of bytes between OpenSSL and the owner of the socket.

use std::io::{ErrorKind, Read, Result, Write};

use base::{Buf, BufPool, SliceList};

/// The number of bytes that one call may take of the input: a record of the largest size.
const BUDGET: usize = 5 + (16 << 10) + 2048;

pub(crate) struct Pipes {
    bufs: BufPool,
    /// The input that was received and is not looked at: the buffer, and the start and end of the
    /// bytes in it.
    input: Option<(Buf, usize, usize)>,
    /// True if the stream has ended.
    ended: bool,
    /// The number of bytes that this call may still take.
    budget: usize,
    /// The number of bytes that were fed.
    pub fed: usize,
    /// The output that is to be sent, and the buffer that is being filled.
    output: SliceList,
    filling: Option<(Buf, usize)>,
    /// The size in bytes that the next such buffer should have.
    pub hint: usize,
}

impl Pipes {
    pub fn new(bufs: BufPool) -> Pipes {
        Pipes {
            bufs,
            input: None,
            ended: false,
            budget: 0,
            fed: 0,
            output: SliceList::new(),
            filling: None,
            hint: 0,
        }
    }

    /// Takes the first `len` bytes of `buf`; none: the stream has ended. What was fed before is
    /// used up.
    pub fn feed(&mut self, buf: Buf, len: usize) {
        assert!(self.needs_input(), "fed before it needs input");
        self.ended |= len == 0;
        self.fed += len;
        self.input = Some((buf, 0, len));
    }

    /// True if all that was fed is used up.
    pub fn needs_input(&self) -> bool {
        self.input.as_ref().is_none_or(|(_, at, end)| at == end)
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The buffer that was fed last, once it is used up.
    pub fn take_buf(&mut self) -> Option<Buf> {
        if self.needs_input() { self.input.take().map(|(buf, ..)| buf) } else { None }
    }

    /// A call begins.
    pub fn begin(&mut self) {
        self.budget = BUDGET;
    }

    /// Bytes that are to be sent.
    pub fn output_bytes(&self) -> usize {
        let whole: usize = self.output.iter().map(|s| s.len()).sum();
        whole + self.filling.as_ref().map_or(0, |(_, len)| *len)
    }

    pub fn take_output(&mut self) -> SliceList {
        self.end_buf();
        std::mem::take(&mut self.output)
    }

    fn end_buf(&mut self) {
        if let Some((mut buf, len)) = self.filling.take() {
            buf.truncate(len);
            self.output.push(buf.freeze());
        }
    }
}

impl Read for Pipes {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let ended = self.ended;
        let Some((buf, at, end)) = self.input.as_mut().filter(|(_, at, end)| at < end) else {
            return if ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        let n = into.len().min(*end - *at).min(self.budget);
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..n].copy_from_slice(&buf[*at..*at + n]);
        *at += n;
        self.budget -= n;
        Ok(n)
    }
}

impl Write for Pipes {
    fn write(&mut self, mut bytes: &[u8]) -> Result<usize> {
        let len = bytes.len();
        while !bytes.is_empty() {
            let (buf, at) = match &mut self.filling {
                Some((buf, at)) if *at < buf.len() => (buf, at),
                _ => {
                    self.end_buf();
                    let size = self.hint.max(bytes.len()).next_multiple_of(base::BLOCK);
                    let buf = self.bufs.take(size.min(BufPool::MAX));
                    let (buf, at) = self.filling.insert((buf, 0));
                    (buf, at)
                }
            };
            let n = bytes.len().min(buf.len() - *at);
            buf[*at..*at + n].copy_from_slice(&bytes[..n]);
            *at += n;
            bytes = &bytes[n..];
        }
        Ok(len)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
