//! Decoding: from hostile bytes to a [`NodePage`].

use base::{Generation, PoolAddr, crc32c};
use zerocopy::FromBytes;

use super::head_of;
use super::{
    BODY, Block, MAGIC, MAX_HEIGHT, MAX_KEY, MAX_VALUE, NodeError, NodePage, NodeRef, POINTER,
    RECORD, SLOT,
};

/// Decodes the node in `bytes`. It must be exactly the one that `expected` refers to, and valid in
/// every respect.
pub fn decode(bytes: &[u8], expected: &NodeRef) -> Result<NodePage, NodeError> {
    let Ok(block) = Block::read_from_bytes(bytes) else {
        return Err(NodeError::Length(bytes.len()));
    };
    let found = crc32c(bytes);
    if found != expected.ptr.crc {
        return Err(NodeError::Checksum { found, expected: expected.ptr.crc });
    }
    let h = &block.header;
    if h.magic.get() != MAGIC {
        return Err(NodeError::Magic(h.magic.get()));
    }
    if h.address.get() != expected.ptr.addr.0 {
        return Err(NodeError::Address {
            found: PoolAddr(h.address.get()),
            expected: expected.ptr.addr,
        });
    }
    if h.generation.get() != expected.ptr.generation.0 {
        let found = Generation(h.generation.get());
        return Err(NodeError::Generation { found, expected: expected.ptr.generation });
    }
    if h.tree.get() != expected.tree {
        return Err(NodeError::Tree { found: h.tree.get(), expected: expected.tree });
    }
    if h.level != expected.level || usize::from(h.level) >= MAX_HEIGHT {
        return Err(NodeError::Level { found: h.level, expected: expected.level });
    }
    bounds(&block).map_err(NodeError::Malformed)?;
    let page = NodePage(Box::new(block));
    contents(&page, expected.ptr.generation).map_err(NodeError::Malformed)?;
    Ok(page)
}

/// Checks every offset and length, so that the accessors of [`NodePage`] stay inside the body. No
/// two records may share a byte.
fn bounds(block: &Block) -> Result<(), &'static str> {
    let h = &block.header;
    let (count, heap) = (usize::from(h.count.get()), usize::from(h.heap.get()));
    if h.reserved.get() != 0 {
        return Err("reserved bytes are not zero");
    }
    if count == 0 {
        return Err("no records");
    }
    if heap > BODY || count * SLOT > heap {
        return Err("the slots reach into the records");
    }
    let prefix_len = usize::from(h.prefix_len);
    if prefix_len > MAX_KEY || h.prefix[prefix_len..].iter().any(|&b| b != 0) {
        return Err("the prefix is too long or not padded with zeros");
    }
    let mut taken = [0u64; BODY.div_ceil(64)];
    let mut live = 0;
    for slot in block.body[..count * SLOT].chunks_exact(SLOT) {
        let at = usize::from(u16::from_le_bytes([slot[0], slot[1]]));
        if at < heap || at + RECORD > BODY {
            return Err("a record outside of the heap");
        }
        let suffix = usize::from(block.body[at]);
        let value = usize::from(u16::from_le_bytes([block.body[at + 1], block.body[at + 2]]));
        let end = at + RECORD + suffix + value;
        if suffix > MAX_KEY || value > MAX_VALUE || end > BODY {
            return Err("a record that is too long");
        }
        if !claim(&mut taken, at, end) {
            return Err("records overlap");
        }
        live += end - at;
    }
    if live != usize::from(h.live.get()) {
        return Err("the bytes in use do not add up");
    }
    Ok(())
}

/// Marks the bytes `[start, end)`. Returns false if one of them was marked already.
fn claim(taken: &mut [u64], start: usize, end: usize) -> bool {
    let mut at = start;
    while at < end {
        let (word, bit) = (at / 64, at % 64);
        let n = (64 - bit).min(end - at);
        let mask = (u64::MAX >> (64 - n)) << bit;
        if taken[word] & mask != 0 {
            return false;
        }
        taken[word] |= mask;
        at += n;
    }
    true
}

/// Checks keys and values. The bounds must have been checked before.
fn contents(page: &NodePage, generation: Generation) -> Result<(), &'static str> {
    let inner = page.level() > 0;
    let prefix_len = page.prefix().len();
    for i in 0..page.count() {
        let suffix = page.suffix(i);
        if page.head(i) != head_of(suffix) {
            return Err("a slot's head is not its key's");
        }
        let unbounded = inner && i == 0;
        if unbounded && !suffix.is_empty() {
            return Err("an inner node's first key is not empty");
        }
        if !unbounded && !(1..=MAX_KEY).contains(&(prefix_len + suffix.len())) {
            return Err("the length of a key");
        }
        let first = usize::from(inner);
        if i > first && page.suffix(i - 1) >= suffix {
            return Err("the keys do not ascend");
        }
        if inner {
            if page.value(i).len() != POINTER {
                return Err("the length of a pointer");
            }
            if page.pointer(i).generation > generation {
                return Err("a child is younger than its parent");
            }
        }
    }
    Ok(())
}
