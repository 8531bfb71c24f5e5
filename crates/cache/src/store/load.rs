//! Reading nodes of the index.

use base::{Result, Slice};
use btree::Fault;
use queue::{Class, Device};

use crate::device::layout::Layout;
use crate::error::damaged;
use crate::store::index::node_addr;

/// Reads the block that a fault asks for.
pub async fn read_node(
    device: &Device,
    layout: &Layout,
    fault: &Fault,
    class: Class,
) -> Result<Slice> {
    let addr = node_addr(fault.ptr.addr);
    if addr.0 >= layout.data_blocks() {
        return Err(damaged(fault, "its address is outside of the cache"));
    }
    let read = device.read_blocks(class, layout.offset_of(addr), 1).await;
    match read.error(0) {
        None => Ok(read.buf.freeze()),
        Some(e) => Err(damaged(fault, e)),
    }
}
