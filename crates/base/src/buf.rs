//! Aligned buffers. A buffer moves into an operation and comes back with its completion.
//!
//! A [`Buf`] has one owner and is writable. [`Buf::freeze`] turns it into a [`Slice`], a shared
//! read-only view. When the last view is dropped, the memory returns to its [`BufPool`]. Memory is
//! aligned to [`BLOCK`], so every buffer can be used for direct I/O. A pool belongs to one thread;
//! nothing here is `Send`.
//!
//! All `unsafe` of this crate is in this file: it allocates aligned memory and views it as bytes.
//! This is sound because memory is zeroed when it is allocated, so it is always initialised, and
//! because only the `Drop` of the one `Buf` that owns it frees or reuses it.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::units::BLOCK;

/// The capacity of size class `c` is `BLOCK << c`. The largest is 32 MiB, the largest request.
const CLASSES: usize = 14;

/// Buffers to read into, in the order of the transfer.
pub type BufList = SmallVec<[Buf; 1]>;
/// Views to write from, in the order of the transfer.
pub type SliceList = SmallVec<[Slice; 2]>;

struct Shelf {
    free: RefCell<[Vec<NonNull<u8>>; CLASSES]>,
    /// Bytes on the shelf, at most `keep`.
    kept: Cell<usize>,
    keep: usize,
    /// Bytes handed out and not returned yet.
    out: Cell<usize>,
}

/// A source of aligned buffers that keeps a bounded number of bytes for reuse.
#[derive(Clone)]
pub struct BufPool(Rc<Shelf>);

impl BufPool {
    /// The largest length of a buffer, in bytes.
    pub const MAX: usize = BLOCK << (CLASSES - 1);

    /// Creates a pool that keeps at most `keep` bytes of returned buffers.
    pub fn new(keep: usize) -> BufPool {
        BufPool(Rc::new(Shelf {
            free: RefCell::new(std::array::from_fn(|_| Vec::new())),
            kept: Cell::new(0),
            keep,
            out: Cell::new(0),
        }))
    }

    /// Returns a buffer of `len` bytes. Its contents are unspecified: they may be those of an
    /// earlier use. Panics if `len` exceeds [`BufPool::MAX`].
    pub fn take(&self, len: usize) -> Buf {
        assert!(len <= Self::MAX, "a buffer of {len} bytes");
        let class = len.div_ceil(BLOCK).next_power_of_two().trailing_zeros() as usize;
        let reused = self.0.free.borrow_mut()[class].pop();
        let ptr = if let Some(ptr) = reused {
            self.0.kept.set(self.0.kept.get() - size_of_class(class));
            ptr
        } else {
            let layout = layout_of_class(class);
            // SAFETY: the layout has a size of at least BLOCK.
            let raw = unsafe { alloc_zeroed(layout) };
            NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout))
        };
        self.0.out.set(self.0.out.get() + size_of_class(class));
        Buf { ptr, class: class as u8, len: len as u32, shelf: self.0.clone() }
    }

    /// Returns a buffer of `len` zero bytes.
    pub fn zeroed(&self, len: usize) -> Buf {
        let mut b = self.take(len);
        b.fill(0);
        b
    }

    /// Returns a buffer with a copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> Buf {
        let mut b = self.take(bytes.len());
        b.copy_from_slice(bytes);
        b
    }

    /// Bytes handed out and not returned yet, counted by capacity.
    pub fn outstanding(&self) -> usize {
        self.0.out.get()
    }
}

fn size_of_class(class: usize) -> usize {
    BLOCK << class
}

fn layout_of_class(class: usize) -> Layout {
    // Both numbers are powers of two, and their sum is far from an overflow.
    Layout::from_size_align(size_of_class(class), BLOCK).unwrap_or_else(|_| unreachable!())
}

impl Drop for Shelf {
    fn drop(&mut self) {
        for (class, list) in self.free.get_mut().iter_mut().enumerate() {
            for ptr in list.drain(..) {
                // SAFETY: `take` allocated this memory with this layout, and only the shelf owns
                // it.
                unsafe { dealloc(ptr.as_ptr(), layout_of_class(class)) }
            }
        }
    }
}

/// A unique, writable, aligned buffer.
pub struct Buf {
    ptr: NonNull<u8>,
    class: u8,
    len: u32,
    shelf: Rc<Shelf>,
}

impl Buf {
    /// Shortens the buffer to `len` bytes; the capacity stays. Panics if `len` exceeds the length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len as usize);
        self.len = len as u32;
    }

    /// Lengthens the buffer to `len` bytes; the contents of the added bytes are unspecified. Panics
    /// if `len` is below the length or exceeds the capacity.
    pub fn lengthen(&mut self, len: usize) {
        assert!(len >= self.len as usize && len <= size_of_class(self.class as usize));
        self.len = len as u32;
    }

    /// Turns the buffer into a shared view of all its bytes, without a copy.
    pub fn freeze(self) -> Slice {
        let len = self.len;
        Slice { buf: Rc::new(self), start: 0, len }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid and initialised for the size of its class while `self` lives, and
        // `len` is not above that size.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len as usize) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let size = size_of_class(self.class as usize);
        self.shelf.out.set(self.shelf.out.get() - size);
        if self.shelf.kept.get() + size <= self.shelf.keep {
            self.shelf.kept.set(self.shelf.kept.get() + size);
            self.shelf.free.borrow_mut()[self.class as usize].push(self.ptr);
        } else {
            // SAFETY: `take` allocated this memory with this layout, and only `self` owns it.
            unsafe { dealloc(self.ptr.as_ptr(), layout_of_class(self.class as usize)) }
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// A shared, read-only view into a [`Buf`]. Neither a clone nor a slice of it copies bytes.
#[derive(Clone)]
pub struct Slice {
    buf: Rc<Buf>,
    start: u32,
    len: u32,
}

impl Slice {
    /// The part `[start, start + len)` of this view. Panics if the part reaches past the end.
    pub fn slice(&self, start: usize, len: usize) -> Slice {
        assert!(
            start + len <= self.len as usize,
            "slice [{start}, {start} + {len}) of {}",
            self.len
        );
        Slice { buf: self.buf.clone(), start: self.start + start as u32, len: len as u32 }
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.start as usize..(self.start + self.len) as usize]
    }
}

/// `len` bytes of `list` from `from` on, or as many as there are. No bytes are copied.
pub fn slice_of_list(list: &SliceList, mut from: usize, mut len: usize) -> SliceList {
    let mut out = SliceList::new();
    for s in list {
        let start = from.min(s.len());
        from -= start;
        let n = len.min(s.len() - start);
        if n > 0 {
            out.push(s.slice(start, n));
        }
        len -= n;
    }
    out
}

impl From<Buf> for Slice {
    fn from(b: Buf) -> Slice {
        b.freeze()
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_reused_and_counted() {
        let pool = BufPool::new(64 * 1024);
        let mut b = pool.take(5000);
        assert_eq!(b.len(), 5000);
        assert_eq!(b.as_ptr() as usize % BLOCK, 0);
        assert_eq!(pool.outstanding(), 8192);
        b[4999] = 7;
        let first = b.as_ptr();
        let s = b.freeze();
        let tail = s.slice(4990, 10);
        drop(s);
        assert_eq!(tail[9], 7);
        drop(tail);
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(pool.take(8192).as_ptr(), first, "the memory is reused");
    }

    #[test]
    fn a_slice_of_a_list_has_the_bytes_of_all_of_it() {
        let pool = BufPool::new(0);
        let all = b"abcdefghi";
        let parts = [&all[..3], &all[3..3], &all[3..4], &all[4..]];
        let list: SliceList = parts.iter().map(|part| pool.copy_of(part).freeze()).collect();
        for from in 0..=all.len() + 1 {
            for len in (0..=all.len() + 1).chain([usize::MAX]) {
                let got = slice_of_list(&list, from, len);
                let bytes: Vec<u8> = got.iter().flat_map(|s| s.to_vec()).collect();
                let wanted: Vec<u8> = all.iter().copied().skip(from).take(len).collect();
                assert_eq!(bytes, wanted, "{len} bytes from {from} on");
                assert!(got.iter().all(|s| !s.is_empty()), "a slice is empty");
            }
        }
    }

    #[test]
    fn lengthen_restores_truncated_bytes() {
        let mut b = BufPool::new(0).copy_of(b"abcdef");
        b.truncate(2);
        assert_eq!(&b[..], b"ab");
        b.lengthen(6);
        assert_eq!(&b[..], b"abcdef");
        b.lengthen(BLOCK);
        assert_eq!(b.len(), BLOCK);
    }

    #[test]
    #[should_panic(expected = "size_of_class")]
    fn lengthen_beyond_the_capacity_panics() {
        BufPool::new(0).take(5000).lengthen(8193);
    }

    #[test]
    fn the_pool_keeps_a_bounded_number_of_bytes() {
        let pool = BufPool::new(BLOCK);
        let (a, b) = (pool.take(1), pool.take(1));
        drop(a);
        drop(b);
        assert_eq!(pool.0.kept.get(), BLOCK);
    }

    #[test]
    fn zeroed_is_zero_after_reuse() {
        let pool = BufPool::new(1 << 20);
        pool.take(BLOCK).fill(9);
        assert!(pool.zeroed(BLOCK).iter().all(|&x| x == 0));
    }
}
