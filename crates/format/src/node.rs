//! A node of a B+tree: one block of sorted records.
//!
//! Layout, little-endian, 4096 bytes: a [`Header`] of 72 bytes, then the body. In the body slots of 4 bytes grow up from
//! its start, in the order of the keys, and records grow down from its end:
//!
//! ```text
//! header | slot 0 | slot 1 | ... ->   free   <- ... | record | record |
//! slot:   offset u16 (of the record, from the start of the body), head u16 (first two bytes of the key's suffix)
//! record: suffix length u8, value length u16, suffix, value
//! ```
//!
//! What all keys of a node begin with stands once, in the header (`prefix`); a record holds the rest, its suffix. Most
//! searches are settled by the heads alone. Level 0 is a leaf. In an inner node a value is a [`NodePtr`] (address u64,
//! generation u64, crc u32), child `i` holds the keys from key `i` up to key `i + 1`, and key 0 is not stored: it is
//! below all keys, its suffix is empty and the prefix does not apply to it.
//!
//! Fault model: the crc32c of the whole block stands in whoever refers to the node, so damage, a lost write (the old
//! generation) and a misdirected one (another address) are all found. Bytes may be hostile nevertheless, so
//! [`decode`] checks every bound and the order of the keys; a [`NodePage`] is valid from then on, and nothing that reads
//! it can go out of bounds or loop.

mod edit;
mod verify;

pub use edit::{Full, Split, merge, new_root};
pub use verify::decode;

use std::cmp::Ordering;
use std::mem::{offset_of, size_of};
use std::ops::Deref;

use base::{BLOCK, Crc, Generation, PoolAddr, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest key, in bytes; the shortest is 1.
pub const MAX_KEY: usize = 32;
/// The longest value, in bytes; the shortest is 0.
pub const MAX_VALUE: usize = 1024;
/// The highest tree. Every split leaves a node that had at least 60 children, so no device can hold a higher one.
pub const MAX_HEIGHT: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"FBnd");
/// Bytes for slots and records.
pub const BODY: usize = BLOCK - size_of::<Header>();
const SLOT: usize = 4;
const RECORD: usize = 3;
const POINTER: usize = 20;

/// The fixed part of a node.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    /// 0 is a leaf.
    level: u8,
    prefix_len: u8,
    count: U16,
    /// No record begins below this offset.
    heap: U16,
    /// Bytes of the records, without holes.
    live: U16,
    reserved: U32,
    /// The tree that owns the node.
    tree: U64,
    /// The transaction that wrote the node.
    generation: U64,
    /// Where the node stands.
    address: U64,
    /// `prefix_len` bytes, then zeros.
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
    // What `NodePage::split` relies on: half of a full node and the largest record fit in a node.
    assert!((BODY + LARGEST) / 2 + LARGEST <= BODY);
};
/// The largest record and its slot.
const LARGEST: usize = SLOT + RECORD + MAX_KEY + MAX_VALUE;

/// Where a node stands, which transaction wrote it, and the crc32c of its block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct NodePtr {
    /// The node's block.
    pub addr: PoolAddr,
    /// The transaction that wrote it.
    pub generation: Generation,
    /// Of all 4096 bytes.
    pub crc: Crc,
}

/// The root of a tree, as it is recorded outside the tree. An empty tree has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RootPtr {
    /// The root node.
    pub ptr: NodePtr,
    /// Levels of nodes; 1: the root is a leaf.
    pub height: u8,
}

/// A node as it is expected by whoever refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeRef {
    /// Where it stands.
    pub ptr: NodePtr,
    /// Its level; 0 is a leaf.
    pub level: u8,
    /// The tree that owns it.
    pub tree: u64,
}

/// Why bytes are not the node that was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NodeError {
    /// Not one block.
    #[error("a node is one block, not {0} bytes")]
    Length(usize),
    /// The crc32c of the bytes is not the one in the reference.
    #[error("checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Of the bytes.
        found: Crc,
        /// In the reference.
        expected: Crc,
    },
    /// No node at all.
    #[error("not a node: magic {0:08x}")]
    Magic(u32),
    /// A node of another place: a misdirected write or read.
    #[error("the node of block {found}, expected that of block {expected}")]
    Address {
        /// In the node.
        found: PoolAddr,
        /// In the reference.
        expected: PoolAddr,
    },
    /// A node of another transaction: a lost write.
    #[error("generation {found}, expected {expected}")]
    Generation {
        /// In the node.
        found: Generation,
        /// In the reference.
        expected: Generation,
    },
    /// A node of another tree.
    #[error("a node of tree {found:#x}, expected one of {expected:#x}")]
    Tree {
        /// In the node.
        found: u64,
        /// In the reference.
        expected: u64,
    },
    /// A node of another level.
    #[error("level {found}, expected {expected}")]
    Level {
        /// In the node.
        found: u8,
        /// In the reference.
        expected: u8,
    },
    /// The checksum is right and the contents are not: written by a broken or hostile program.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A key by value: 0 to [`MAX_KEY`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    len: u8,
    bytes: [u8; MAX_KEY],
}

impl Key {
    /// The key below all others: no record's.
    pub const EMPTY: Key = Key { len: 0, bytes: [0; MAX_KEY] };

    /// A key of these bytes. Panics if they are more than [`MAX_KEY`].
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

/// A structurally valid node in memory, verified by [`decode`] or built here.
#[derive(Clone)]
pub struct NodePage(Box<Block>);

impl NodePage {
    /// The node's level; 0 is a leaf.
    pub fn level(&self) -> u8 {
        self.0.header.level
    }

    /// Number of records (children, in an inner node).
    pub fn count(&self) -> usize {
        usize::from(self.0.header.count.get())
    }

    /// Bytes of the body in use, of [`BODY`].
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

    /// Key `i`; key 0 of an inner node is empty.
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

    /// The first record of a leaf whose key is not below `key`: `Ok` if it is `key`.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (at, equal) = self.lower_bound(key, 0);
        if equal { Ok(at) } else { Err(at) }
    }

    /// The child of an inner node that holds `key`.
    pub fn child_of(&self, key: &[u8]) -> usize {
        let (at, equal) = self.lower_bound(key, 1);
        if equal { at } else { at - 1 }
    }

    /// The first slot from `first` on whose key is not below `key`, and whether it is `key`.
    fn lower_bound(&self, key: &[u8], first: usize) -> (usize, bool) {
        let count = self.count();
        let prefix = self.prefix();
        let Some(suffix) = key.strip_prefix(prefix) else {
            return (if key < prefix { first } else { count }, false);
        };
        let head = head_of(suffix);
        // By heads alone, without a branch that depends on them.
        let (mut lo, mut len) = (first, count - first);
        while len > 0 {
            let half = len / 2;
            let below = self.head(lo + half) < head;
            lo = if below { lo + half + 1 } else { lo };
            len = if below { len - half - 1 } else { half };
        }
        // Among equal heads by suffixes; seldom more than one.
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

    /// Writes the node's block to `out` (4096 bytes) with what only its writing decides; returns the block's crc32c.
    pub fn seal(&self, tree: u64, generation: Generation, addr: PoolAddr, out: &mut [u8]) -> Crc {
        let gap = size_of::<Header>() + self.count() * SLOT
            ..size_of::<Header>() + usize::from(self.0.header.heap.get());
        out.copy_from_slice(self.0.as_bytes());
        // What was removed does not get out.
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

/// The first two bytes of a suffix as a number that sorts like it.
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
mod tests;
