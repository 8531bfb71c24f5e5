//! A disk in memory, in virtual time, that holds a pool of 100 GiB and counts what a commit writes
//! to its tables.
//!
//! `sim` keeps each block as it was written, which is too much here. This disk keeps one number
//! for a block that is full of that number, as those of clients are in this experiment, and of
//! other blocks the parts that are not zero. It has no faults, and what is written is durable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, BufList, Duration, Instant, SliceList};
use format::page::{GroupRecord, PageId, PageKind, decode_groups, open_page};
use pool::raw::Geometry;
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId, Payload};

const READ: Duration = Duration::from_micros(80);
const WRITE: Duration = Duration::from_micros(20);
const FLUSH: Duration = Duration::from_micros(100);
const BYTES_A_SECOND: u64 = 3_000_000_000;

/// A block of which parts are zero is kept in pieces of this size.
const PIECE: usize = 64;
/// Superblocks stand before the tables.
const TABLES_AT: u64 = 1 << 20;

/// A block: which of its pieces are not zero, and those.
struct Sparse {
    mask: u64,
    bytes: Box<[u8]>,
}

impl Sparse {
    fn new(block: &[u8]) -> Sparse {
        let (mut mask, mut bytes) = (0, Vec::new());
        for (i, piece) in block.chunks_exact(PIECE).enumerate() {
            if piece.iter().any(|&b| b != 0) {
                mask |= 1 << i;
                bytes.extend_from_slice(piece);
            }
        }
        Sparse { mask, bytes: bytes.into_boxed_slice() }
    }

    fn read(&self, out: &mut [u8]) {
        out.fill(0);
        let places = (0..BLOCK / PIECE).filter(|i| self.mask >> i & 1 == 1);
        for (i, piece) in places.zip(self.bytes.chunks_exact(PIECE)) {
            out[i * PIECE..(i + 1) * PIECE].copy_from_slice(piece);
        }
    }
}

/// What was written to the tables.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Tables {
    pub bitmap_pages: u64,
    pub record_pages: u64,
    /// Group records that have changed while the number of used blocks has not.
    pub same_used: u64,
}

struct State {
    now: Instant,
    link_free: Instant,
    pending: BTreeMap<(Instant, u64), Completion>,
    submitted: u64,
    /// By block: 0 if it is zero, a number that it is full of, or the place of its content with
    /// [`Disk::SPARSE`] added.
    blocks: Vec<u32>,
    sparse: Vec<Sparse>,
    pool_uuid: [u8; 16],
    geometry: Geometry,
    records: BTreeMap<u64, Vec<GroupRecord>>,
    tables: Tables,
}

/// A handle on the disk. It is file 0 of its backend.
#[derive(Clone)]
pub(super) struct Disk(Rc<RefCell<State>>);

impl Disk {
    pub const FILE: FileId = FileId(0);
    const SPARSE: u32 = 1 << 31;

    /// A disk for a pool of this uuid.
    pub fn new(size_bytes: u64, pool_uuid: [u8; 16], geometry: Geometry) -> Disk {
        Disk(Rc::new(RefCell::new(State {
            now: Instant(0),
            link_free: Instant(0),
            pending: BTreeMap::new(),
            submitted: 0,
            blocks: vec![0; (size_bytes / BLOCK_U64) as usize],
            sparse: Vec::new(),
            pool_uuid,
            geometry,
            records: BTreeMap::new(),
            tables: Tables::default(),
        })))
    }

    /// What was written to the tables so far.
    pub fn tables(&self) -> Tables {
        self.0.borrow().tables
    }
}

impl State {
    fn read(&self, offset: u64, bufs: &mut BufList) -> u64 {
        let mut at = (offset / BLOCK_U64) as usize;
        for buf in bufs.iter_mut() {
            for out in buf.chunks_exact_mut(BLOCK) {
                match self.blocks[at] {
                    n if n >= Disk::SPARSE => self.sparse[(n - Disk::SPARSE) as usize].read(out),
                    n => out.chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&n.to_le_bytes())),
                }
                at += 1;
            }
        }
        (at as u64) * BLOCK_U64 - offset
    }

    fn write(&mut self, offset: u64, data: &SliceList) -> u64 {
        let mut at = (offset / BLOCK_U64) as usize;
        for slice in data {
            assert_eq!(slice.len() % BLOCK, 0, "a pool writes whole blocks");
            for block in slice.chunks_exact(BLOCK) {
                self.write_block(at, block);
                at += 1;
            }
        }
        (at as u64) * BLOCK_U64 - offset
    }

    fn write_block(&mut self, at: usize, block: &[u8]) {
        self.note(at as u64 * BLOCK_U64, block);
        let word = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        let old = self.blocks[at];
        if word < Disk::SPARSE && block[4..] == block[..BLOCK - 4] {
            // What a sparse block had before stays behind, which is little.
            self.blocks[at] = word;
        } else if old >= Disk::SPARSE {
            self.sparse[(old - Disk::SPARSE) as usize] = Sparse::new(block);
        } else {
            self.blocks[at] = Disk::SPARSE + self.sparse.len() as u32;
            self.sparse.push(Sparse::new(block));
        }
    }

    /// Counts a page of the tables that is written.
    fn note(&mut self, offset: u64, block: &[u8]) {
        if offset < TABLES_AT || offset >= self.geometry.data_start() {
            return;
        }
        let slots = (offset - TABLES_AT) / BLOCK_U64;
        let (page, slot) = (slots / 2, (slots % 2) as u8);
        if page >= u64::from(self.geometry.table_pages()) {
            self.tables.bitmap_pages += 1;
            return;
        }
        let kind = PageKind::Groups;
        let id = PageId { pool_uuid: self.pool_uuid, kind, page, slot };
        // The others are pages of volumes, or zeros from the creation.
        let Ok((_, payload)) = open_page(&id, block) else { return };
        let Ok(records) = decode_groups(payload) else { return };
        self.tables.record_pages += 1;
        if let Some(before) = self.records.get(&page) {
            let pairs = records.iter().zip(before);
            let same = pairs.filter(|(new, old)| new != old && new.used == old.used).count();
            self.tables.same_used += same as u64;
        }
        self.records.insert(page, records);
    }

    /// When an operation is done that moves so many bytes.
    fn done_at(&mut self, bytes: u64, takes: Duration) -> Instant {
        let moves = Duration::from_nanos(bytes * 1_000_000_000 / BYTES_A_SECOND);
        self.link_free = self.link_free.max(self.now).after(moves);
        self.link_free.after(takes)
    }
}

impl Backend for Disk {
    fn submit(&mut self, id: OpId, op: Op) {
        let mut s = self.0.borrow_mut();
        let (moved, payload, takes) = match op {
            Op::Read { offset, mut bufs, .. } => {
                (s.read(offset, &mut bufs), Payload::Bufs(bufs), READ)
            }
            Op::Write { offset, data, .. } => (s.write(offset, &data), Payload::Data(data), WRITE),
            Op::Flush { .. } => (0, Payload::None, FLUSH),
            Op::Discard { .. } => (0, Payload::None, WRITE),
            other => panic!("a pool has no sockets: {other:?}"),
        };
        let at = s.done_at(moved, takes);
        s.submitted += 1;
        let key = (at, s.submitted);
        s.pending.insert(key, Completion { id, result: Ok(moved), payload });
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let mut guard = self.0.borrow_mut();
        let s = &mut *guard;
        let next = s.pending.first_key_value().map(|(key, _)| key.0);
        let target = next.into_iter().chain(until).min();
        s.now = s.now.max(target.expect("deadlock: nothing is under way, and no timer is set"));
        while let Some(first) = s.pending.first_entry()
            && first.key().0 <= s.now
        {
            done.push(first.remove());
        }
        s.now
    }

    fn kind(&self, _file: FileId) -> DeviceKind {
        DeviceKind::Nvme
    }

    fn now(&self) -> Instant {
        self.0.borrow().now
    }
}
