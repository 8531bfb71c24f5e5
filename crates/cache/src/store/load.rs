//! Reading nodes of the index: from their place, or where that is bad from the place of the copy.

use base::{CacheAddr, Result, Slice, crc32c};
use btree::{Fault, NodePtr};
use queue::{Class, Device};

use crate::device::layout::Layout;
use crate::error::damaged;
use crate::store::index::node_addr;

/// A copy of a node that is bad.
pub struct BadCopy {
    pub addr: CacheAddr,
    pub why: String,
}

/// Reads the block that a fault asks for. Where it is bad, the one at `copy` is read. Returns the
/// node's bytes, and the place that was bad.
pub async fn read_node(
    device: &Device,
    layout: &Layout,
    fault: &Fault,
    copy: Option<CacheAddr>,
    class: Class,
) -> Result<(Slice, Option<BadCopy>)> {
    let addr = node_addr(fault.ptr.addr);
    let why = match read_place(device, layout, &fault.ptr, addr, class).await {
        Ok(bytes) => return Ok((bytes, None)),
        Err(why) => why,
    };
    let Some(copy) = copy else { return Err(damaged(fault, why)) };
    match read_place(device, layout, &fault.ptr, copy, class).await {
        Ok(bytes) => Ok((bytes, Some(BadCopy { addr, why }))),
        Err(other) => {
            let both = format!("{why}; and its copy at block {copy}: {other}");
            Err(damaged(fault, both))
        }
    }
}

/// Reads a node from one of its places.
pub(crate) async fn read_place(
    device: &Device,
    layout: &Layout,
    ptr: &NodePtr,
    addr: CacheAddr,
    class: Class,
) -> std::result::Result<Slice, String> {
    if addr.0 >= layout.data_blocks() {
        return Err("its address is outside of the cache".to_owned());
    }
    let read = device.read_blocks(class, layout.offset_of(addr), 1).await;
    match read.error(0) {
        Some(e) => Err(e.to_string()),
        None if crc32c(&read.buf) == ptr.crc => Ok(read.buf.freeze()),
        None => Err("something else stands there".to_owned()),
    }
}
