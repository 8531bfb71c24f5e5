//! A node of a B+tree: one block of sorted records.
//!
//! A node has 4096 bytes, little-endian: a [`Header`] of 72 bytes, then the body. In the body,
//! slots of 4 bytes grow up from the start in the order of the keys, and records grow down from the
//! end:
//!
//! ```text
//! header | slot 0 | slot 1 | ... ->   free   <- ... | record | record |
//! slot:   offset u16 (of the record, from the start of the body),
//!         head u16 (first two bytes of the key's suffix)
//! record: suffix length u8, value length u16, suffix, value
//! ```
//!
//! The header holds the common prefix of all keys once (`prefix`). A record holds the rest of its
//! key, the suffix. Most searches need only the heads. Level 0 is a leaf. In an inner node a value
//! is a [`NodePtr`] (address u64, generation u64, crc u32), and child `i` holds the keys from key
//! `i` up to key `i + 1`. Key 0 of an inner node is not stored: it is below all keys, its suffix is
//! empty, and the prefix does not apply to it.
//!
//! Fault model: the reference to a node holds the crc32c of its whole block. So a reader detects
//! damage, a lost write (the generation is old) and a misdirected write (the address is another
//! one). The bytes may still be hostile. [`decode`] therefore checks every bound and the order of
//! the keys. Nothing that reads a valid [`NodePage`] can go out of bounds or loop for ever.

mod edit;
mod verify;

pub use edit::{NodeFull, Split, merge, new_root};
pub use verify::decode;

use std::cmp::Ordering;
use std::mem::{offset_of, size_of};
use std::ops::Deref;

use base::{BLOCK, Crc, Generation, PoolAddr, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The largest length of a key, in bytes. The smallest is 1.
pub const MAX_KEY: usize = 32;
/// The largest length of a value, in bytes. The smallest is 0.
pub const MAX_VALUE: usize = 1024;
/// The largest height of a tree. An inner node is split only when it is full, with at least 60
/// children, so no device can hold a higher tree.
pub const MAX_HEIGHT: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"FBnd");
/// Bytes of the body, which holds slots and records.
pub const BODY: usize = BLOCK - size_of::<Header>();
const SLOT: usize = 4;
const RECORD: usize = 3;
const POINTER: usize = 20;

/// The fixed part of a node.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    /// The level; 0 is a leaf.
    level: u8,
    prefix_len: u8,
    count: U16,
    /// The smallest offset of a record in the body.
    heap: U16,
    /// Total bytes of all records, without the holes between them.
    live: U16,
    reserved: U32,
    /// The tree that owns the node.
    tree: U64,
    /// The transaction that wrote the node.
    generation: U64,
    /// The block where the node is stored.
    address: U64,
    /// The first `prefix_len` bytes count; the others are zeros.
    prefix: [u8; MAX_KEY],
}

#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Block {
    header: Header,
    body: [u8; BODY],
}

const _: () = {
    assert!(size_of::<Header>() == 72 && size_of::<Block>() == BLOCK);
    assert!(
        offset_of!(Header, level) == 4
            && offset_of!(Header, count) == 6
            && offset_of!(Header, heap) == 8
    );
    assert!(
        offset_of!(Header, live) == 10
            && offset_of!(Header, reserved) == 12
            && offset_of!(Header, tree) == 16
    );
    assert!(offset_of!(Header, generation) == 24 && offset_of!(Header, address) == 32);
    assert!(offset_of!(Header, prefix) == 40 && offset_of!(Block, body) == 72);
    // `NodePage::split` relies on this: half of a full node and the largest record fit in a node.
    assert!((BODY + LARGEST) / 2 + LARGEST <= BODY);
};
/// Bytes of the largest record, with its slot.
const LARGEST: usize = SLOT + RECORD + MAX_KEY + MAX_VALUE;

/// A reference to a node: its address, the transaction that wrote it, and its crc32c.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct NodePtr {
    /// The block where the node is stored.
    pub addr: PoolAddr,
    /// The transaction that wrote the node.
    pub generation: Generation,
    /// The crc32c of all 4096 bytes.
    pub crc: Crc,
}

/// The reference to the root of a tree, which is recorded outside of the tree. An empty tree has
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RootPtr {
    /// The root node.
    pub ptr: NodePtr,
    /// Levels of nodes. At height 1 the root is a leaf.
    pub height: u8,
}

/// A reference to a node with everything that the node is expected to say of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeRef {
    /// The place of the node, and its crc32c.
    pub ptr: NodePtr,
    /// The node's level; 0 is a leaf.
    pub level: u8,
    /// The tree that owns the node.
    pub tree: u64,
}

/// Why bytes are not the expected node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// The number of bytes is not that of a block.
    #[error("{0} bytes, but a node has 4096")]
    Length(usize),
    /// The crc32c of the bytes is not the one in the reference.
    #[error("checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// The crc32c of the bytes.
        found: Crc,
        /// The crc32c in the reference.
        expected: Crc,
    },
    /// The bytes are no node.
    #[error("not a node: magic {0:08x}")]
    Magic(u32),
    /// The node belongs to another address: a write or a read was misdirected.
    #[error("the node of block {found}, expected that of block {expected}")]
    Address {
        /// The address in the node.
        found: PoolAddr,
        /// The address in the reference.
        expected: PoolAddr,
    },
    /// The node is of another transaction: a write was lost.
    #[error("generation {found}, expected {expected}")]
    Generation {
        /// The generation in the node.
        found: Generation,
        /// The generation in the reference.
        expected: Generation,
    },
    /// The node belongs to another tree.
    #[error("a node of tree {found:#x}, expected one of {expected:#x}")]
    Tree {
        /// The tree in the node.
        found: u64,
        /// The tree in the reference.
        expected: u64,
    },
    /// The node is of another level.
    #[error("level {found}, expected {expected}")]
    Level {
        /// The level in the node.
        found: u8,
        /// The level in the reference.
        expected: u8,
    },
    /// The checksum is right but the contents are not: a faulty or hostile program wrote them.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A key, stored by value: 0 to [`MAX_KEY`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    len: u8,
    bytes: [u8; MAX_KEY],
}

impl Key {
    /// The empty key, which is below all others. No record has it.
    pub const EMPTY: Key = Key { len: 0, bytes: [0; MAX_KEY] };

    /// Makes a key of `bytes`. Panics if there are more than [`MAX_KEY`].
    pub fn new(bytes: &[u8]) -> Key {
        Key::joined(&[], bytes)
    }

    fn joined(prefix: &[u8], suffix: &[u8]) -> Key {
        let (p, s) = (prefix.len(), suffix.len());
        let mut key = Key { len: (p + s) as u8, bytes: [0; MAX_KEY] };
        key.bytes[..p].copy_from_slice(prefix);
        key.bytes[p..p + s].copy_from_slice(suffix);
        key
    }
}

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for b in self.iter() {
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

/// A structurally valid node in memory: [`decode`] verified it, or this module built it.
#[derive(Clone)]
pub struct NodePage(Box<Block>);

impl NodePage {
    /// The node's level; 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.0.header.level
    }

    /// Number of records. Each record of an inner node is a child.
    pub fn count(&self) -> usize {
        usize::from(self.0.header.count.get())
    }

    /// Bytes of the body in use, at most [`BODY`].
    pub fn used(&self) -> usize {
        usize::from(self.0.header.live.get()) + SLOT * self.count()
    }

    fn prefix(&self) -> &[u8] {
        &self.0.header.prefix[..usize::from(self.0.header.prefix_len)]
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0.body[at], self.0.body[at + 1]])
    }

    fn offset(&self, i: usize) -> usize {
        usize::from(self.u16_at(i * SLOT))
    }

    fn head(&self, i: usize) -> u16 {
        self.u16_at(i * SLOT + 2)
    }

    fn suffix(&self, i: usize) -> &[u8] {
        let at = self.offset(i);
        &self.0.body[at + RECORD..][..usize::from(self.0.body[at])]
    }

    /// Bytes of record `i`, without its slot.
    fn record_len(&self, i: usize) -> usize {
        let at = self.offset(i);
        RECORD + usize::from(self.0.body[at]) + usize::from(self.u16_at(at + 1))
    }

    /// Key `i`. Key 0 of an inner node is empty.
    pub fn key(&self, i: usize) -> Key {
        if i == 0 && self.level() > 0 {
            Key::EMPTY
        } else {
            Key::joined(self.prefix(), self.suffix(i))
        }
    }

    /// Value `i`.
    pub fn value(&self, i: usize) -> &[u8] {
        let at = self.offset(i);
        &self.0.body[at + RECORD + usize::from(self.0.body[at])..]
            [..usize::from(self.u16_at(at + 1))]
    }

    /// The pointer to child `i` of an inner node.
    pub fn pointer(&self, i: usize) -> NodePtr {
        decode_pointer(self.value(i))
    }

    /// Searches a leaf: `Ok(i)` if record `i` has the key `key`, else `Err(i)` where `i` is the
    /// first record whose key is above `key`.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (at, equal) = self.lower_bound(key, 0);
        if equal { Ok(at) } else { Err(at) }
    }

    /// The child of an inner node that is responsible for `key`.
    pub fn child_of(&self, key: &[u8]) -> usize {
        let (at, equal) = self.lower_bound(key, 1);
        if equal { at } else { at - 1 }
    }

    /// The first slot at or after `first` whose key is not below `key`, and whether its key equals
    /// `key`.
    fn lower_bound(&self, key: &[u8], first: usize) -> (usize, bool) {
        let count = self.count();
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            return (if key < prefix { first } else { count }, false);
        };
        let head = head_of(suffix);
        // Compare the heads alone, without a branch that depends on them.
        let (mut lo, mut len) = (first, count - first);
        while len > 0 {
            let half = len / 2;
            let below = self.head(lo + half) < head;
            lo = if below { lo + half + 1 } else { lo };
            len = if below { len - half - 1 } else { half };
        }
        // Then compare suffixes among equal heads. There is seldom more than one.
        let mut hi = lo;
        let mut step = 1;
        while hi < count && self.head(hi) == head {
            match self.suffix(hi).cmp(suffix) {
                Ordering::Equal => return (hi, true),
                Ordering::Greater => break,
                Ordering::Less => {
                    lo = hi + 1;
                    hi += step;
                    step *= 2;
                }
            }
        }
        let mut hi = hi.min(count);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            match (self.head(mid), self.suffix(mid)).cmp(&(head, suffix)) {
                Ordering::Less => lo = mid + 1,
                Ordering::Equal => return (mid, true),
                Ordering::Greater => hi = mid,
            }
        }
        (lo, false)
    }

    /// Writes the node's block to `out` (4096 bytes) and completes it with its tree, its generation
    /// and its address. Returns the crc32c of the block.
    pub fn seal(&self, tree: u64, generation: Generation, addr: PoolAddr, out: &mut [u8]) -> Crc {
        let gap = size_of::<Header>() + self.count() * SLOT
            ..size_of::<Header>() + usize::from(self.0.header.heap.get());
        out.copy_from_slice(self.0.as_bytes());
        // Removed records must not reach the device.
        out[gap].fill(0);
        out[offset_of!(Header, tree)..][..8].copy_from_slice(&tree.to_le_bytes());
        out[offset_of!(Header, generation)..][..8].copy_from_slice(&generation.0.to_le_bytes());
        out[offset_of!(Header, address)..][..8].copy_from_slice(&addr.0.to_le_bytes());
        crc32c(out)
    }
}

impl std::fmt::Debug for NodePage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "NodePage(level {}, {} records, {} bytes)",
            self.level(),
            self.count(),
            self.used()
        )
    }
}

/// The first two bytes of a suffix, as a number that sorts as the suffix does.
fn head_of(suffix: &[u8]) -> u16 {
    match *suffix {
        [] => 0,
        [a] => u16::from_be_bytes([a, 0]),
        [a, b, ..] => u16::from_be_bytes([a, b]),
    }
}

fn encode_pointer(ptr: &NodePtr) -> [u8; POINTER] {
    let mut bytes = [0; POINTER];
    bytes[..8].copy_from_slice(&ptr.addr.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&ptr.generation.0.to_le_bytes());
    bytes[16..].copy_from_slice(&ptr.crc.to_le_bytes());
    bytes
}

fn decode_pointer(bytes: &[u8]) -> NodePtr {
    let word = |at: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(w)
    };
    let crc = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    NodePtr { addr: PoolAddr(word(0)), generation: Generation(word(8)), crc }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
