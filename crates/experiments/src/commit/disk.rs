//! A disk that counts what a commit writes to its tables.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::BLOCK_U64;
use format::page::{GroupRecord, PageId, PageKind, decode_groups, open_page};
use pool::DeviceFile;
use pool::raw::Geometry;
use rt::Backend;
use sim::CompactDisks;

/// Superblocks stand before the tables.
const TABLES_AT: u64 = 1 << 20;

/// The counters of what was written to the tables.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Tables {
    pub bitmap_pages: u64,
    pub record_pages: u64,
    /// Group records that have changed while the number of used blocks has not.
    pub same_used: u64,
}

/// A disk in memory, in virtual time.
pub(super) struct MemoryDisk {
    disks: CompactDisks,
    pub file: DeviceFile,
    tables: Rc<Cell<Tables>>,
}

impl MemoryDisk {
    /// A disk for a pool of this uuid.
    pub fn new(size_bytes: u64, pool_uuid: [u8; 16], geometry: Geometry) -> MemoryDisk {
        let (disks, tables) = (CompactDisks::default(), Rc::new(Cell::new(Tables::default())));
        let file = DeviceFile { path: "disk".into(), file: disks.add(size_bytes), size_bytes };
        let mut count =
            Count { pool_uuid, geometry, records: BTreeMap::new(), tables: tables.clone() };
        disks.look(move |_, offset, block| count.note(offset, block));
        MemoryDisk { disks, file, tables }
    }

    pub fn backend(&self) -> Box<dyn Backend> {
        Box::new(self.disks.clone())
    }

    /// Returns the counters of what was written to the tables so far.
    pub fn tables(&self) -> Tables {
        self.tables.get()
    }
}

struct Count {
    pool_uuid: [u8; 16],
    geometry: Geometry,
    records: BTreeMap<u64, Vec<GroupRecord>>,
    tables: Rc<Cell<Tables>>,
}

impl Count {
    /// Counts a page of the tables that is written.
    fn note(&mut self, offset: u64, block: &[u8]) {
        if offset < TABLES_AT || offset >= self.geometry.data_start() {
            return;
        }
        let slots = (offset - TABLES_AT) / BLOCK_U64;
        let (page, slot) = (slots / 2, (slots % 2) as u8);
        let mut tables = self.tables.get();
        if page >= u64::from(self.geometry.table_pages()) {
            tables.bitmap_pages += 1;
            return self.tables.set(tables);
        }
        let kind = PageKind::Groups;
        let id = PageId { pool_uuid: self.pool_uuid, kind, page, slot };
        // The others are pages of volumes, or zeros from the creation.
        let Ok((_, payload)) = open_page(&id, block) else { return };
        let Ok(records) = decode_groups(payload) else { return };
        tables.record_pages += 1;
        if let Some(before) = self.records.get(&page) {
            let pairs = records.iter().zip(before);
            let same = pairs.filter(|(new, old)| new != old && new.used == old.used).count();
            tables.same_used += same as u64;
        }
        self.records.insert(page, records);
        self.tables.set(tables);
    }
}
