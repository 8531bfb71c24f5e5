//! Edits of a node: in place where there is room, else by rebuilding or splitting it.

use zerocopy::FromZeros;

use super::{
    BODY, Block, Key, MAGIC, MAX_VALUE, NodePage, NodePtr, RECORD, SLOT, encode_pointer, head_of,
};

/// The record does not fit into the node; the caller splits the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeFull;

/// The two halves of a node.
pub struct Split {
    /// The node with the keys below `separator`.
    pub left: NodePage,
    /// The shortest key that is above all keys of `left` and not above any key of `right`.
    pub separator: Key,
    /// The node with the other keys.
    pub right: NodePage,
    /// Number of records (or children) in `left`.
    pub at: usize,
}

/// A record that is copied from one node to another.
#[derive(Clone, Copy)]
struct CopiedRecord<'a> {
    key: Key,
    value: &'a [u8],
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The length of the common prefix of a node that holds `entries`.
fn prefix_len(level: u8, entries: &[CopiedRecord<'_>]) -> usize {
    match (level, entries) {
        (0, [first, .., last]) | (1.., [_, first, .., last]) => common(&first.key, &last.key),
        (0, [only]) | (1.., [_, only]) => only.key.len(),
        _ => 0,
    }
}

/// Bytes of the body that `entries` need if `prefix` bytes of each key are in the header.
fn size(level: u8, entries: &[CopiedRecord<'_>], prefix: usize) -> usize {
    let keys: usize =
        entries.iter().skip(usize::from(level > 0)).map(|e| e.key.len() - prefix).sum();
    entries.iter().map(|e| SLOT + RECORD + e.value.len()).sum::<usize>() + keys
}

fn fits(level: u8, entries: &[CopiedRecord<'_>]) -> bool {
    size(level, entries, prefix_len(level, entries)) <= BODY
}

/// Builds a node of `entries`, which must fit. The first key of an inner node is dropped.
fn build(level: u8, entries: &[CopiedRecord<'_>]) -> NodePage {
    let mut page = NodePage::empty(level);
    if let Some(longest) = entries.last() {
        let len = prefix_len(level, entries);
        page.0.header.prefix_len = len as u8;
        page.0.header.prefix[..len].copy_from_slice(&longest.key[..len]);
    }
    for (i, e) in entries.iter().enumerate() {
        let dropped = if level > 0 && i == 0 { e.key.len() } else { page.prefix().len() };
        page.place(i, &e.key[dropped..], e.value);
    }
    page
}

impl NodePage {
    fn empty(level: u8) -> NodePage {
        let mut block = Box::new(Block::new_zeroed());
        block.header.magic = MAGIC.into();
        block.header.level = level;
        block.header.heap = (BODY as u16).into();
        NodePage(block)
    }

    /// A leaf with one record.
    pub fn leaf(key: &[u8], value: &[u8]) -> NodePage {
        assert!(!key.is_empty() && value.len() <= MAX_VALUE);
        build(0, &[CopiedRecord { key: Key::new(key), value }])
    }

    fn entries(&self) -> Vec<CopiedRecord<'_>> {
        let mut all = Vec::with_capacity(self.count() + 1);
        all.extend(
            (0..self.count()).map(|i| CopiedRecord { key: self.key(i), value: self.value(i) }),
        );
        all
    }

    fn gap(&self) -> usize {
        usize::from(self.0.header.heap.get()) - self.count() * SLOT
    }

    /// Adds a record as slot `i`. The gap between slots and records must have room for it.
    fn place(&mut self, i: usize, suffix: &[u8], value: &[u8]) {
        let len = RECORD + suffix.len() + value.len();
        let count = self.count();
        let Block { header, body } = &mut *self.0;
        let at = usize::from(header.heap.get()) - len;
        body.copy_within(i * SLOT..count * SLOT, (i + 1) * SLOT);
        let slot = &mut body[i * SLOT..][..SLOT];
        slot[..2].copy_from_slice(&(at as u16).to_le_bytes());
        slot[2..].copy_from_slice(&head_of(suffix).to_le_bytes());
        let record = &mut body[at..at + len];
        record[0] = suffix.len() as u8;
        record[1..RECORD].copy_from_slice(&(value.len() as u16).to_le_bytes());
        record[RECORD..][..suffix.len()].copy_from_slice(suffix);
        record[RECORD + suffix.len()..].copy_from_slice(value);
        header.heap = (at as u16).into();
        header.count = (count as u16 + 1).into();
        header.live = (header.live.get() + len as u16).into();
    }

    /// Inserts a record as slot `i`, its place in the order of keys. If it does not fit, nothing
    /// changes.
    pub fn insert(&mut self, i: usize, key: &[u8], value: &[u8]) -> Result<(), NodeFull> {
        assert!(!key.is_empty() && value.len() <= MAX_VALUE && (i > 0 || self.level() == 0));
        if let Some(suffix) = key.strip_prefix(self.prefix()) {
            let need = SLOT + RECORD + suffix.len() + value.len();
            if need <= self.gap() {
                self.place(i, suffix, value);
                return Ok(());
            }
            if self.used() + need > BODY {
                return Err(NodeFull);
            }
        }
        // Rebuilding closes holes between records and shortens the prefix if necessary.
        let mut all = self.entries();
        all.insert(i, CopiedRecord { key: Key::new(key), value });
        if !fits(self.level(), &all) {
            return Err(NodeFull);
        }
        let new = build(self.level(), &all);
        *self = new;
        Ok(())
    }

    /// Inserts a child as slot `i`, which must not be 0. The child holds the keys from `key` on.
    pub fn insert_child(&mut self, i: usize, key: &[u8]) -> Result<(), NodeFull> {
        self.insert(i, key, &encode_pointer(&NodePtr::default()))
    }

    /// Replaces value `i` of a leaf. If the new value does not fit, nothing changes.
    pub fn replace(&mut self, i: usize, value: &[u8]) -> Result<(), NodeFull> {
        let old = self.value(i).len();
        if old == value.len() {
            let at = self.value_at(i);
            self.0.body[at..at + old].copy_from_slice(value);
            return Ok(());
        }
        if self.used() - old + value.len() > BODY {
            return Err(NodeFull);
        }
        let key = self.key(i);
        self.remove(i);
        self.insert(i, &key, value)
    }

    fn value_at(&self, i: usize) -> usize {
        let at = self.offset(i);
        at + RECORD + usize::from(self.0.body[at])
    }

    /// Sets the pointer to child `i` of an inner node.
    pub fn set_pointer(&mut self, i: usize, ptr: &NodePtr) {
        let at = self.value_at(i);
        let bytes = encode_pointer(ptr);
        self.0.body[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Removes record `i`. If it was child 0 of an inner node, child 1 takes over its keys.
    pub fn remove(&mut self, i: usize) {
        let (at, len, count) = (self.offset(i), self.record_len(i), self.count());
        let inner = self.level() > 0;
        let Block { header, body } = &mut *self.0;
        body.copy_within((i + 1) * SLOT..count * SLOT, i * SLOT);
        header.count = (count as u16 - 1).into();
        header.live = (header.live.get() - len as u16).into();
        if count == 1 {
            *self = NodePage::empty(self.level());
            return;
        }
        if at == usize::from(header.heap.get()) {
            header.heap = ((at + len) as u16).into();
        }
        if inner && i == 0 {
            self.drop_first_key();
        }
    }

    /// Makes the first key of an inner node empty. The front of the record is cut off, and the
    /// value stays in place.
    fn drop_first_key(&mut self) {
        let at = self.offset(0);
        let Block { header, body } = &mut *self.0;
        let suffix = usize::from(body[at]);
        body.copy_within(at + 1..at + RECORD, at + suffix + 1);
        body[at + suffix] = 0;
        body[..2].copy_from_slice(&((at + suffix) as u16).to_le_bytes());
        body[2..SLOT].fill(0);
        header.live = (header.live.get() - suffix as u16).into();
    }

    /// Splits the node while adding a record: as a new slot `i`, or in place of record `i` if
    /// `replace` is set. The caller sets `run` if keys arrive in order, so that more keys will
    /// follow this one. The split then leaves a full node behind.
    pub fn split(&self, i: usize, key: &[u8], value: &[u8], replace: bool, run: bool) -> Split {
        let mut all = self.entries();
        let entry = CopiedRecord { key: Key::new(key), value };
        if replace {
            all[i] = entry;
        } else {
            all.insert(i, entry);
        }
        let (level, n) = (self.level(), all.len());
        let at_end = !replace && i + 1 == n;
        let wish = if at_end { i } else { i + 1 };
        let balanced = balance(level, &all);
        // If every other record keeps its size, the balanced halves fit. If the new key shortens
        // the prefix, it is below or above all others. Splitting it off gives the others back the
        // prefix with which they fitted.
        let first = if run || at_end { wish } else { balanced };
        let at = [first, balanced, i, i + 1]
            .into_iter()
            .find(|&m| m > 0 && m < n && fits(level, &all[..m]) && fits(level, &all[m..]))
            .unwrap_or_else(|| unreachable!("a node of {n} records cannot be split"));
        let (left, right) = all.split_at(at);
        let (below, above) = (left[at - 1].key, right[0].key);
        let separator =
            if level == 0 { Key::new(&above[..common(&below, &above) + 1]) } else { above };
        Split { left: build(level, left), separator, right: build(level, right), at }
    }

    /// Like [`NodePage::split`], for adding a child as slot `i` of an inner node.
    pub fn split_with_child(&self, i: usize, key: &[u8]) -> Split {
        self.split(i, key, &encode_pointer(&NodePtr::default()), false, false)
    }
}

/// The split position at which the two halves are nearest in size.
fn balance(level: u8, all: &[CopiedRecord<'_>]) -> usize {
    let prefix = prefix_len(level, all);
    let half = size(level, all, prefix) / 2;
    let mut sum = 0;
    let at = all.iter().enumerate().position(|(i, e)| {
        let key = if level > 0 && i == 0 { 0 } else { e.key.len() - prefix };
        sum += SLOT + RECORD + key + e.value.len();
        sum >= half
    });
    (at.unwrap_or(0) + 1).min(all.len() - 1)
}

/// Merges two neighbours that `separator` divides. Returns `None` if the records would use more
/// than `limit` bytes of a body.
pub fn merge(
    left: &NodePage,
    separator: &[u8],
    right: &NodePage,
    limit: usize,
) -> Option<NodePage> {
    let level = left.level();
    let mut all = left.entries();
    let middle = all.len();
    all.extend(right.entries());
    if level > 0 {
        all[middle].key = Key::new(separator);
    }
    (size(level, &all, prefix_len(level, &all)) <= limit).then(|| build(level, &all))
}

/// An inner node with two children that `separator` divides.
pub fn new_root(level: u8, separator: &[u8]) -> NodePage {
    let pointer = encode_pointer(&NodePtr::default());
    let entry = |key| CopiedRecord { key, value: &pointer };
    build(level, &[entry(Key::EMPTY), entry(Key::new(separator))])
}
