//! Lists of buffers and slices as one sequence of bytes.

use base::{BufList, SliceList};

/// Copies `bytes` to position `at` of the concatenation of `bufs`.
pub(crate) fn scatter(bufs: &mut BufList, mut at: usize, mut bytes: &[u8]) {
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

/// `data` without its first `skip` bytes.
pub(crate) fn tail(data: &SliceList, mut skip: usize) -> SliceList {
    let mut out = SliceList::new();
    for s in data {
        let cut = skip.min(s.len());
        skip -= cut;
        if cut < s.len() {
            out.push(s.slice(cut, s.len() - cut));
        }
    }
    out
}
