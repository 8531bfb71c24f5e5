//! Cases on files. All offsets, lengths and memory are multiples of a block, so that the cases hold
//! with direct I/O too.

use base::{BufList, IoError, Slice, SliceList};
use rt::{FileId, Op, Payload, Rt};

use crate::harness::{Case, Harness, on, pattern};

const BLOCK: usize = base::BLOCK;

/// The cases on files.
pub const CASES: &[Case] = &[
    ("a read returns the bytes that were written", read_back),
    ("several buffers are read and written in order", vectored),
    ("a write may use slices of larger buffers", slices),
    ("large transfers", large),
    ("reads at the end are short, and empty beyond it", end_of_file),
    ("flush and durable writes succeed", flush_and_fua),
    ("a discard leaves its neighbours alone", discard),
    ("an operation returns its buffers", buffers_return),
    ("an unknown file is an error", unknown_file),
];

/// Writes all of `bytes` at `offset`, with as many transfers as it takes.
pub(crate) async fn write_all(rt: &Rt, file: FileId, offset: u64, bytes: &[u8], fua: bool) {
    let whole = rt.bufs().copy_of(bytes).freeze();
    let mut at = 0;
    while at < bytes.len() {
        let data = SliceList::from_iter([whole.slice(at, bytes.len() - at)]);
        let done = rt.op(Op::Write { file, offset: offset + at as u64, data, fua }).await;
        match done.result {
            Ok(n) if n > 0 && n as usize <= bytes.len() - at => at += n as usize,
            other => panic!("write of {} at {offset}+{at}: {other:?}", bytes.len() - at),
        }
    }
}

/// Reads `len` bytes from `offset`, fewer only at the end of the file.
pub(crate) async fn read_all(rt: &Rt, file: FileId, offset: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < len {
        let want = len - out.len();
        let bufs = BufList::from_iter([rt.bufs().take(want)]);
        let done = rt.op(Op::Read { file, offset: offset + out.len() as u64, bufs }).await;
        match done.result {
            Ok(0) => break,
            Ok(n) if n as usize <= want => {
                out.extend_from_slice(&done.into_bufs()[0][..n as usize])
            }
            other => panic!("read of {want} at {offset}+{}: {other:?}", out.len()),
        }
    }
    out
}

fn read_back(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        assert!(
            read_all(&r, file, 0, 1 << 20).await.iter().all(|&b| b == 0),
            "a new file is zeros"
        );
        let cases =
            [(0, BLOCK), (8 * BLOCK, 4 * BLOCK), (255 * BLOCK, BLOCK), (100 * BLOCK, 32 * BLOCK)];
        for (seed, (offset, len)) in cases.into_iter().enumerate() {
            write_all(&r, file, offset as u64, &pattern(seed as u64, len), false).await;
        }
        for (seed, (offset, len)) in cases.into_iter().enumerate() {
            let got = read_all(&r, file, offset as u64, len).await;
            assert!(
                got == pattern(seed as u64, len),
                "{len} bytes at {offset} are not what was written"
            );
        }
        assert!(
            read_all(&r, file, BLOCK as u64, 7 * BLOCK).await.iter().all(|&b| b == 0),
            "nothing else changed"
        );
    });
}

fn vectored(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let sizes = [1, 3, 1, 8, 2].map(|blocks| blocks * BLOCK);
        let total: usize = sizes.iter().sum();
        let bytes = pattern(7, total);
        let mut at = 0;
        let data: SliceList = sizes
            .iter()
            .map(|&n| {
                at += n;
                r.bufs().copy_of(&bytes[at - n..at]).freeze()
            })
            .collect();
        let done = r.op(Op::Write { file, offset: 4 * BLOCK as u64, data, fua: false }).await;
        let n = done.result.unwrap_or_else(|e| panic!("write: {e}")) as usize;
        write_all(&r, file, (4 * BLOCK + n) as u64, &bytes[n..], false).await;
        assert!(read_all(&r, file, 4 * BLOCK as u64, total).await == bytes, "written in order");

        let bufs: BufList =
            [4, 1, 10].into_iter().map(|blocks| r.bufs().zeroed(blocks * BLOCK)).collect();
        let done = r.op(Op::Read { file, offset: 4 * BLOCK as u64, bufs }).await;
        let n = *done.result.as_ref().unwrap_or_else(|e| panic!("read: {e}")) as usize;
        let got: Vec<u8> = done.into_bufs().iter().flat_map(|b| b.to_vec()).collect();
        assert!(n > 0 && got[..n] == bytes[..n], "filled in order");
        assert!(got[n..].iter().all(|&b| b == 0), "no further than the result says");
    });
}

fn slices(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let bytes = pattern(3, 8 * BLOCK);
        let whole = r.bufs().copy_of(&bytes).freeze();
        let data: SliceList =
            [5, 1, 3].into_iter().map(|i| whole.slice(i * BLOCK, BLOCK)).collect();
        drop(whole);
        let done = r.op(Op::Write { file, offset: 0, data, fua: false }).await;
        let n = done.result.unwrap_or_else(|e| panic!("write: {e}")) as usize;
        let expect = [5, 1, 3].map(|i| &bytes[i * BLOCK..(i + 1) * BLOCK]).concat();
        write_all(&r, file, n as u64, &expect[n..], false).await;
        assert!(read_all(&r, file, 0, 3 * BLOCK).await == expect);
    });
}

fn large(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(16 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let bytes = pattern(11, 8 << 20);
        write_all(&r, file, 4 << 20, &bytes, false).await;
        assert!(read_all(&r, file, 4 << 20, 8 << 20).await == bytes);
    });
}

fn end_of_file(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(16 * BLOCK as u64));
    let r = rt.clone();
    on(&rt, async move {
        let last = pattern(5, BLOCK);
        write_all(&r, file, 15 * BLOCK as u64, &last, false).await;
        assert!(
            read_all(&r, file, 15 * BLOCK as u64, 4 * BLOCK).await == last,
            "only the bytes before the end"
        );
        assert!(read_all(&r, file, 16 * BLOCK as u64, BLOCK).await.is_empty(), "at the end");
        assert!(read_all(&r, file, 64 * BLOCK as u64, BLOCK).await.is_empty(), "beyond the end");
    });
}

fn flush_and_fua(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        write_all(&r, file, 0, &pattern(1, 2 * BLOCK), false).await;
        let done = r.op(Op::Flush { file }).await;
        assert!(done.result.is_ok(), "flush: {:?}", done.result);
        assert!(matches!(done.payload, Payload::None));
        write_all(&r, file, 2 * BLOCK as u64, &pattern(2, 2 * BLOCK), true).await;
        assert!(read_all(&r, file, 0, 2 * BLOCK).await == pattern(1, 2 * BLOCK));
        assert!(read_all(&r, file, 2 * BLOCK as u64, 2 * BLOCK).await == pattern(2, 2 * BLOCK));
    });
}

fn discard(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let bytes = pattern(9, 64 * BLOCK);
        write_all(&r, file, 0, &bytes, false).await;
        let done =
            r.op(Op::Discard { file, offset: 16 * BLOCK as u64, len: 16 * BLOCK as u64 }).await;
        assert!(
            matches!(done.result, Ok(_) | Err(IoError::UNSUPPORTED)),
            "discard: {:?}",
            done.result
        );
        assert_eq!(
            read_all(&r, file, 16 * BLOCK as u64, 16 * BLOCK).await.len(),
            16 * BLOCK,
            "readable"
        );
        assert!(read_all(&r, file, 0, 16 * BLOCK).await == bytes[..16 * BLOCK], "before it");
        assert!(
            read_all(&r, file, 32 * BLOCK as u64, 32 * BLOCK).await == bytes[32 * BLOCK..],
            "after it"
        );
        let again = pattern(10, 4 * BLOCK);
        write_all(&r, file, 20 * BLOCK as u64, &again, false).await;
        assert!(read_all(&r, file, 20 * BLOCK as u64, 4 * BLOCK).await == again, "writable");
    });
}

fn buffers_return(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let bufs: BufList = (0..3).map(|_| r.bufs().take(BLOCK)).collect();
        let lent: Vec<_> = bufs.iter().map(|b| b.as_ptr()).collect();
        let back = r.op(Op::Read { file, offset: 0, bufs }).await.into_bufs();
        assert_eq!(back.iter().map(|b| b.as_ptr()).collect::<Vec<_>>(), lent);
        drop(back);
        let data: SliceList = (0..3).map(|_| Slice::from(r.bufs().zeroed(BLOCK))).collect();
        let lent: Vec<_> = data.iter().map(|s| s.as_ptr()).collect();
        match r.op(Op::Write { file, offset: 0, data, fua: false }).await.payload {
            Payload::Data(back) => {
                assert_eq!(back.iter().map(|s| s.as_ptr()).collect::<Vec<_>>(), lent)
            }
            other => panic!("a write returned {other:?}"),
        }
        assert_eq!(r.bufs().outstanding(), 0);
    });
}

fn unknown_file(h: &mut dyn Harness) {
    let rt = h.rt();
    let r = rt.clone();
    let file = FileId(4_000_000_000);
    on(&rt, async move {
        let bufs = BufList::from_iter([r.bufs().take(BLOCK)]);
        let done = r.op(Op::Read { file, offset: 0, bufs }).await;
        assert!(done.result.is_err());
        assert_eq!(done.into_bufs().len(), 1, "the buffer comes back with the error");
        assert!(r.op(Op::Flush { file }).await.result.is_err());
    });
}
