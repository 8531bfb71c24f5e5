//! Parts of dumps that pools and caches share: nodes of trees, and how numbers are written.

use format::node::{NodePage, NodePtr, NodeRef, RootPtr};
use format::tree::tree_name;
use serde::Serialize;

/// A slot of superblocks, of which each says what `S` shows.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct SlotItem<S> {
    pub device: String,
    pub slot: u64,
    pub offset: u64,
    /// Why it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub superblock: Option<S>,
}

impl<S> SlotItem<S> {
    /// Makes the item of a slot of a device, from what was read there.
    pub(crate) fn new(
        device: &str,
        slot: u64,
        offset: u64,
        read: Result<S, String>,
    ) -> SlotItem<S> {
        let (superblock, error) = match read {
            Ok(superblock) => (Some(superblock), None),
            Err(e) => (None, Some(e)),
        };
        SlotItem { device: device.to_owned(), slot, offset, error, superblock }
    }
}

/// A node of a tree.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct NodeItem {
    pub tree: String,
    pub level: u8,
    pub address: u64,
    pub generation: u64,
    pub crc: String,
    pub records: usize,
    pub body_bytes_used: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<RootItem>,
}

impl NodeItem {
    /// The node `page`, which was found at `r`.
    pub(crate) fn new(r: &NodeRef, page: &NodePage) -> NodeItem {
        let children = if page.level() > 0 { page.count() } else { 0 };
        NodeItem {
            tree: tree_name(r.tree),
            level: page.level(),
            address: r.ptr.addr.0,
            generation: r.ptr.generation.0,
            crc: crc_text(r.ptr.crc),
            records: page.count(),
            body_bytes_used: page.used(),
            keys: (0..page.count()).map(|i| hex(&page.key(i))).collect(),
            children: (0..children).map(|i| pointer(&page.pointer(i), None)).collect(),
        }
    }
}

/// A reference to a node.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "fields are named as in docs/format.md, which explains them")]
pub struct RootItem {
    pub address: u64,
    pub generation: u64,
    pub crc: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u8>,
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A checksum, as everywhere in a dump.
pub(crate) fn crc_text(crc: u32) -> String {
    format!("{crc:08x}")
}

fn pointer(ptr: &NodePtr, height: Option<u8>) -> RootItem {
    RootItem { address: ptr.addr.0, generation: ptr.generation.0, crc: crc_text(ptr.crc), height }
}

/// A reference to a root.
pub(crate) fn root(r: Option<RootPtr>) -> Option<RootItem> {
    r.map(|r| pointer(&r.ptr, Some(r.height)))
}
