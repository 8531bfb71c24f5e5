//! Chunks that moves fill: their writes reach the device in ascending order, as a zoned device
//! would need them. What else is written to that device meanwhile goes elsewhere.

use std::collections::BTreeMap;

use base::ByteRange;
use pool::Pool;
use rt::FileId;
use sim::Ascending;

/// The order of writes to the devices of the pool.
#[derive(Default)]
pub(crate) struct WriteOrders {
    orders: BTreeMap<FileId, Ascending>,
    /// The first write that was out of order, in words.
    wrong: Option<String>,
}

impl WriteOrders {
    /// Notes a write to a device of a pool that is open.
    pub fn note(&mut self, pool: &Pool, file: FileId, write: ByteRange) {
        let fills = pool.moves().fills().into_iter().filter(|f| f.file == file);
        let fills = fills.map(|f| (f.place, f.number));
        if let Err(text) = self.orders.entry(file).or_default().note(fills, write) {
            self.wrong.get_or_insert(text);
        }
    }

    /// A boot begins: no chunk is being filled, and fills are numbered anew. Returns how many
    /// writes were followed in the boot before.
    pub fn begin_boot(&mut self) -> u64 {
        std::mem::take(&mut self.orders).values().map(Ascending::followed).sum()
    }

    /// The first write that was out of order.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }
}
