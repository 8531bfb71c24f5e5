//! The bytes of a disk: a sparse table of immutable pages that are shared, not copied.
//!
//! A page is 4 KiB behind an `Rc`. A version of a page lives as long as a table or a record of a
//! write refers to it. Chunks of pages are shared in the same way, so that cloning a table (a
//! snapshot, a second image) costs one pointer for each MiB. Pages that were never written are
//! absent and read as zeros.

use std::rc::Rc;

use base::{Prng, SECTOR, Slice};

pub(crate) const PAGE: usize = 4096;
pub(crate) const PAGE_U64: u64 = PAGE as u64;
/// Sectors in a page. Each of them has one bit in the mask of a [`Piece`].
pub(crate) const SECTORS: u64 = (PAGE / SECTOR) as u64;
pub(crate) const WHOLE: u8 = 0xFF;

pub(crate) type Page = Rc<[u8]>;

const CHUNK: usize = 256;
type Chunk = [Option<Page>; CHUNK];

/// New content for some sectors of one page.
#[derive(Clone)]
pub(crate) struct Piece {
    pub page: u64,
    /// The sectors that the piece changes; bit 0 is the first.
    pub mask: u8,
    /// A page in which the masked sectors count; `None` stands for zeros.
    pub bytes: Option<Page>,
}

impl Piece {
    /// The numbers, counted on the disk, of the sectors that the piece changes.
    pub fn sectors(&self) -> impl Iterator<Item = u64> + '_ {
        (0..SECTORS).filter(|i| self.mask >> i & 1 == 1).map(|i| self.page * SECTORS + i)
    }

    pub fn covers(&self, sector: u64) -> bool {
        self.page == sector / SECTORS && self.mask >> (sector % SECTORS) & 1 == 1
    }
}

#[derive(Clone)]
pub(crate) struct Table {
    chunks: Vec<Option<Rc<Chunk>>>,
}

impl Table {
    pub fn new(size_bytes: u64) -> Table {
        let chunks = size_bytes.div_ceil(PAGE_U64).div_ceil(CHUNK as u64);
        Table { chunks: vec![None; chunks as usize] }
    }

    pub fn get(&self, page: u64) -> Option<&Page> {
        self.chunks[page as usize / CHUNK].as_ref()?[page as usize % CHUNK].as_ref()
    }

    fn set(&mut self, page: u64, bytes: Option<Page>) {
        let chunk = &mut self.chunks[page as usize / CHUNK];
        if chunk.is_none() && bytes.is_none() {
            return;
        }
        let chunk = chunk.get_or_insert_with(|| Rc::new([const { None }; CHUNK]));
        Rc::make_mut(chunk)[page as usize % CHUNK] = bytes;
    }

    /// Applies the sectors of `piece`.
    pub fn apply(&mut self, piece: &Piece) {
        if piece.mask == WHOLE {
            self.set(piece.page, piece.bytes.clone());
            return;
        }
        if piece.mask == 0 || (piece.bytes.is_none() && self.get(piece.page).is_none()) {
            return;
        }
        let mut merged = [0; PAGE];
        if let Some(old) = self.get(piece.page) {
            merged.copy_from_slice(old);
        }
        for i in (0..SECTORS as usize).filter(|i| piece.mask >> i & 1 == 1) {
            let range = i * SECTOR..(i + 1) * SECTOR;
            match &piece.bytes {
                Some(bytes) => merged[range.clone()].copy_from_slice(&bytes[range]),
                None => merged[range].fill(0),
            }
        }
        self.set(piece.page, Some(Rc::from(&merged[..])));
    }

    /// Copies the bytes at `offset` into `out`.
    pub fn read(&self, mut offset: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let start = (offset % PAGE_U64) as usize;
            let n = out.len().min(PAGE - start);
            let (head, rest) = out.split_at_mut(n);
            match self.get(offset / PAGE_U64) {
                Some(bytes) => head.copy_from_slice(&bytes[start..start + n]),
                None => head.fill(0),
            }
            out = rest;
            offset += n as u64;
        }
    }

    /// The first written page in `[from, end)`, if there is one.
    pub fn next_written(&self, from: u64, end: u64) -> Option<u64> {
        let mut page = from;
        while page < end {
            match self.chunks.get(page as usize / CHUNK)? {
                None => page = (page / CHUNK as u64 + 1) * CHUNK as u64,
                Some(chunk) if chunk[page as usize % CHUNK].is_some() => return Some(page),
                Some(_) => page += 1,
            }
        }
        None
    }

    /// A random page that was written; `None` if there is none.
    pub fn any_written(&self, rng: &mut Prng) -> Option<u64> {
        let end = (self.chunks.len() * CHUNK) as u64;
        let from = rng.below(end.max(1));
        self.next_written(from, end).or_else(|| self.next_written(0, from))
    }

    /// The sectors that read differently in `other`, which must have the same size.
    pub fn differences(&self, other: &Table) -> Vec<u64> {
        let mut out = Vec::new();
        for (i, pair) in self.chunks.iter().zip(&other.chunks).enumerate() {
            match pair {
                (None, None) => continue,
                (Some(a), Some(b)) if Rc::ptr_eq(a, b) => continue,
                _ => {}
            }
            for page in (i * CHUNK) as u64..((i + 1) * CHUNK) as u64 {
                differences_of_page(page, self.get(page), other.get(page), &mut out);
            }
        }
        out
    }
}

fn differences_of_page(page: u64, a: Option<&Page>, b: Option<&Page>, out: &mut Vec<u64>) {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    let (a, b) = match (a, b) {
        (None, None) => return,
        (Some(a), Some(b)) if Rc::ptr_eq(a, b) => return,
        (a, b) => (a.map_or(&ZEROS[..], |p| p), b.map_or(&ZEROS[..], |p| p)),
    };
    let pairs = a.chunks_exact(SECTOR).zip(b.chunks_exact(SECTOR));
    out.extend(
        (page * SECTORS..).zip(pairs).filter(|(_, (x, y))| x != y).map(|(sector, _)| sector),
    );
}

/// The mask of the sectors that `[start, start + len)` touches, in bytes from the start of a page.
fn mask_of(start: usize, len: usize) -> u8 {
    let (first, end) = (start / SECTOR, (start + len).div_ceil(SECTOR));
    ((0xFFu16 << first) & !(0xFFu16 << end)) as u8
}

/// The changes that writing the first `len` bytes of `data` at `offset` makes. `current` supplies
/// the rest of sectors that are written in part.
pub(crate) fn pieces_of_write(
    offset: u64,
    data: &[Slice],
    len: u64,
    current: &Table,
) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity((len as usize).div_ceil(PAGE) + 1);
    let mut parts = data.iter().map(|s| &s[..]);
    let mut part: &[u8] = &[];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let start = (at % PAGE_U64) as usize;
        let n = (PAGE - start).min((end - at) as usize);
        while part.is_empty() {
            part =
                parts.next().unwrap_or_else(|| unreachable!("len is at most the length of data"));
        }
        let bytes: Page = if n == PAGE && part.len() >= PAGE {
            let (head, rest) = part.split_at(PAGE);
            part = rest;
            Rc::from(head)
        } else {
            let mut page = [0; PAGE];
            if start % SECTOR != 0 || n % SECTOR != 0 {
                current.read(at - start as u64, &mut page);
            }
            let mut out = &mut page[start..start + n];
            while !out.is_empty() {
                while part.is_empty() {
                    part = parts
                        .next()
                        .unwrap_or_else(|| unreachable!("len is at most the length of data"));
                }
                let m = out.len().min(part.len());
                let (head, rest) = out.split_at_mut(m);
                head.copy_from_slice(&part[..m]);
                (out, part) = (rest, &part[m..]);
            }
            Rc::from(&page[..])
        };
        pieces.push(Piece { page: at / PAGE_U64, mask: mask_of(start, n), bytes: Some(bytes) });
        at += n as u64;
    }
    pieces
}

/// The changes that turn `[offset, offset + len)` into zeros, on pages that are present in one of
/// `tables`.
pub(crate) fn pieces_of_zeros(offset: u64, len: u64, tables: &[&Table]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let end = offset + len;
    let mut page = offset / PAGE_U64;
    while let Some(next) =
        tables.iter().filter_map(|t| t.next_written(page, end.div_ceil(PAGE_U64))).min()
    {
        let (from, to) = (offset.max(next * PAGE_U64), end.min((next + 1) * PAGE_U64));
        // Only whole sectors are changed.
        let from = from.next_multiple_of(SECTOR as u64);
        let to = to / SECTOR as u64 * SECTOR as u64;
        if from < to {
            let mask = mask_of((from - next * PAGE_U64) as usize, (to - from) as usize);
            pieces.push(Piece { page: next, mask, bytes: None });
        }
        page = next + 1;
    }
    pieces
}
