//! Disks in memory, in virtual time, that hold pools of a TiB.
//!
//! The disks of a [`World`](crate::World) keep each block as it was written, which is too much for
//! these. A disk here keeps one number for a block that is full of that number, as those of clients
//! should be, and of other blocks the parts that are not zero. It has no faults, and what is
//! written is durable.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, BufList, Duration, Instant, SliceList};
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId, Payload};

const READ: Duration = Duration::from_micros(80);
const WRITE: Duration = Duration::from_micros(20);
const FLUSH: Duration = Duration::from_micros(100);
/// Of each disk.
const BYTES_A_SECOND: u64 = 3_000_000_000;

/// A block of which parts are zero is kept in pieces of this size.
const PIECE: usize = 64;

/// Sees each block that is written: its disk, the bytes before it there, and its content.
type Look = Box<dyn FnMut(FileId, u64, &[u8])>;

/// The disks of a backend. Clones are the same.
#[derive(Clone, Default)]
pub struct CompactDisks(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    now: Instant,
    pending: BTreeMap<(Instant, u64), Completion>,
    submitted: u64,
    disks: Vec<CompactDisk>,
    look: Option<Look>,
}

impl CompactDisks {
    /// Adds a disk that is empty.
    pub fn add(&self, size_bytes: u64) -> FileId {
        let mut state = self.0.borrow_mut();
        let file = FileId(state.disks.len() as u32);
        state.disks.push(CompactDisk::new(size_bytes));
        file
    }

    /// From now on `look` sees each block that is written.
    pub fn look(&self, look: impl FnMut(FileId, u64, &[u8]) + 'static) {
        self.0.borrow_mut().look = Some(Box::new(look));
    }
}

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

struct CompactDisk {
    link_free: Instant,
    /// By block: 0 if it is zero, a number that it is full of, or the place of its content with
    /// [`CompactDisk::SPARSE`] added.
    blocks: Vec<u32>,
    sparse: Vec<Sparse>,
}

impl CompactDisk {
    const SPARSE: u32 = 1 << 31;

    fn new(size_bytes: u64) -> CompactDisk {
        let blocks = vec![0; (size_bytes / BLOCK_U64) as usize];
        CompactDisk { link_free: Instant(0), blocks, sparse: Vec::new() }
    }

    fn read(&self, offset: u64, bufs: &mut BufList) -> u64 {
        let mut at = (offset / BLOCK_U64) as usize;
        for buf in bufs.iter_mut() {
            for out in buf.chunks_exact_mut(BLOCK) {
                match self.blocks[at] {
                    n if n >= CompactDisk::SPARSE => {
                        self.sparse[(n - CompactDisk::SPARSE) as usize].read(out)
                    }
                    n => out.chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&n.to_le_bytes())),
                }
                at += 1;
            }
        }
        (at as u64) * BLOCK_U64 - offset
    }

    fn write_block(&mut self, at: usize, block: &[u8]) {
        let word = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        let old = self.blocks[at];
        if word < CompactDisk::SPARSE && block[4..] == block[..BLOCK - 4] {
            // The sparse content that the block had before stays behind, which is little memory.
            self.blocks[at] = word;
        } else if old >= CompactDisk::SPARSE {
            self.sparse[(old - CompactDisk::SPARSE) as usize] = Sparse::new(block);
        } else {
            self.blocks[at] = CompactDisk::SPARSE + self.sparse.len() as u32;
            self.sparse.push(Sparse::new(block));
        }
    }

    /// When an operation is done that moves so many bytes.
    fn done_at(&mut self, now: Instant, bytes: u64, takes: Duration) -> Instant {
        let moves = Duration::from_nanos(bytes * 1_000_000_000 / BYTES_A_SECOND);
        self.link_free = self.link_free.max(now).after(moves);
        self.link_free.after(takes)
    }
}

impl State {
    fn write(&mut self, file: FileId, offset: u64, data: &SliceList) -> u64 {
        let mut at = offset;
        for slice in data {
            assert_eq!(slice.len() % BLOCK, 0, "a pool writes whole blocks");
            for block in slice.chunks_exact(BLOCK) {
                if let Some(look) = &mut self.look {
                    look(file, at, block);
                }
                self.disks[file.0 as usize].write_block((at / BLOCK_U64) as usize, block);
                at += BLOCK_U64;
            }
        }
        at - offset
    }
}

impl Backend for CompactDisks {
    fn submit(&mut self, id: OpId, op: Op) {
        let mut s = self.0.borrow_mut();
        let (file, moved, payload, takes) = match op {
            Op::Read { file, offset, mut bufs } => {
                let moved = s.disks[file.0 as usize].read(offset, &mut bufs);
                (file, moved, Payload::Bufs(bufs), READ)
            }
            Op::Write { file, offset, data, .. } => {
                (file, s.write(file, offset, &data), Payload::Data(data), WRITE)
            }
            Op::Flush { file } => (file, 0, Payload::None, FLUSH),
            Op::Discard { file, .. } => (file, 0, Payload::None, WRITE),
            other => panic!("a pool has no sockets: {other:?}"),
        };
        let now = s.now;
        let at = s.disks[file.0 as usize].done_at(now, moved, takes);
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
