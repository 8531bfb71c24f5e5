//! Reading the tables: of every page the version that the newest superblock means.

use std::collections::BTreeSet;

use base::{BLOCK, ErrorKind, Generation, Result, StorageError};
use format::FormatError;
use format::page::{
    GroupRecord, PageId, PageKind, VolumeRecord, decode_groups, decode_volumes, open_page,
    page_digest,
};
use format::superblock::Superblock;
use queue::Class;
use rt::Rt;

use crate::devices::{DeviceEvent, PoolDevice};
use crate::space::Geometry;
use crate::txn::TablePage;

/// Pages, volume table, group records.
#[derive(Default)]
pub(super) struct FoundTables {
    pub pages: Vec<TablePage>,
    pub volumes: Vec<Option<VolumeRecord>>,
    pub groups: Vec<GroupRecord>,
    /// Pages of which a slot holds what must not be found again: what a crash left, whole or torn,
    /// or an old version on one device.
    pub forced: BTreeSet<u32>,
    /// Copies of pages that devices which are behind do not have.
    pub lacking: Vec<PageCopy>,
    /// The highest generation of a page, also of one that a crash left: no other commit may have
    /// it. Where the next one lost a write, what the crash left would be taken for that.
    pub highest: Generation,
}

/// A copy of a table page of the newest commit, for a device that does not have it.
#[derive(Clone)]
pub(crate) struct PageCopy {
    /// The device's row.
    pub device: usize,
    /// The offset on the device in bytes where the copy goes.
    pub offset: u64,
    pub block: Vec<u8>,
}

/// Reads the tables that `best` names; `behind`: a device in use has not its commit.
pub(super) async fn read(
    rt: &Rt,
    geometry: Geometry,
    best: &Superblock,
    devices: &mut [PoolDevice],
    behind: bool,
) -> Result<FoundTables> {
    let mut loader = Loader { rt, geometry, best, devices, behind, tables: FoundTables::default() };
    loader.read().await?;
    Ok(loader.tables)
}

struct Loader<'a> {
    rt: &'a Rt,
    geometry: Geometry,
    best: &'a Superblock,
    devices: &'a mut [PoolDevice],
    /// A device in use is behind: copies that are lacking are noted.
    behind: bool,
    tables: FoundTables,
}

/// Pages read by one request.
const PAGES_PER_READ: u32 = 128;

impl Loader<'_> {
    /// Of every table page the newest version that is not newer than the superblock, from any
    /// device that has it.
    async fn read(&mut self) -> Result<()> {
        let total = self.geometry.table_pages();
        let mut at = 0;
        while at < total {
            let n = PAGES_PER_READ.min(total - at);
            let versions = self.read_part(at, n).await;
            for i in 0..n {
                let page = at + i;
                let (entry, payload) = self.choose(page, &versions, i)?;
                let what = |e: FormatError| {
                    StorageError::new(ErrorKind::Damaged, format!("table page {page}: {e}"))
                };
                match self.geometry.kind_of_table_page(page) {
                    PageKind::Volumes => {
                        self.tables.volumes.extend(decode_volumes(payload).map_err(what)?)
                    }
                    _ => self.tables.groups.extend(decode_groups(payload).map_err(what)?),
                }
                self.tables.pages.push(entry);
            }
            at += n;
        }
        self.tables.groups.truncate(self.geometry.group_capacity as usize);
        let pages = self.tables.pages.iter().enumerate();
        let digest = pages.fold(0u64, |d, (i, p)| d.wrapping_add(page_digest(i as u32, p.version)));
        if digest != self.best.tables_digest {
            let text = "the tables are not those of the newest superblock: a page is older on \
                        every device that \
                        is there; a write was lost, or a device is missing that holds it";
            return Err(StorageError::new(ErrorKind::Damaged, text));
        }
        Ok(())
    }

    /// The bytes of `n` pages from `at` on, from every device in use; a device that cannot be read
    /// contributes nothing.
    async fn read_part(&mut self, at: u32, n: u32) -> Vec<(usize, Vec<u8>)> {
        let mut versions = Vec::new();
        let offset = self.geometry.page_offset(u64::from(at), 0);
        for (row, d) in self.devices.iter_mut().enumerate() {
            let Some(queue) = d.live().cloned() else { continue };
            let len = n as usize * 2 * BLOCK;
            let (outcome, buf) = queue.read(Class::Commit, offset, self.rt.bufs().take(len)).await;
            let mut bytes = vec![0; len];
            match outcome {
                Ok(()) => bytes.copy_from_slice(&buf),
                Err(_) => {
                    // Perhaps not all of it: slot by slot.
                    d.count(DeviceEvent::ReadError);
                    for (i, slot) in bytes.chunks_exact_mut(BLOCK).enumerate() {
                        let offset = offset + (i * BLOCK) as u64;
                        let (outcome, buf) =
                            queue.read(Class::Commit, offset, self.rt.bufs().take(BLOCK)).await;
                        match outcome {
                            Ok(()) => slot.copy_from_slice(&buf),
                            Err(_) => _ = self.tables.forced.insert(at + i as u32 / 2),
                        }
                    }
                }
            }
            versions.push((row, bytes));
        }
        versions
    }

    fn choose<'v>(
        &mut self,
        page: u32,
        versions: &'v [(usize, Vec<u8>)],
        i: u32,
    ) -> Result<(TablePage, &'v [u8])> {
        let kind = self.geometry.kind_of_table_page(page);
        let id = PageId { pool_uuid: self.best.pool_uuid, kind, page: u64::from(page), slot: 0 };
        let mut chosen: Option<(TablePage, &[u8], &[u8])> = None;
        let mut seen = Vec::with_capacity(versions.len());
        for (device, bytes) in versions {
            let mut best_here = None;
            for slot in 0..2u8 {
                let from = (i as usize * 2 + usize::from(slot)) * BLOCK;
                let block = &bytes[from..from + BLOCK];
                let Ok((version, payload)) = open_page(&id.in_slot(slot), block) else {
                    // Perhaps torn by the crash. The sectors that it lacks may be the same in the
                    // next version: were power to fail while that is written, the torn one could be
                    // whole all at once, and no longer above the superblock's generation.
                    if block.iter().any(|&byte| byte != 0) {
                        self.tables.forced.insert(page);
                    }
                    continue;
                };
                self.tables.highest = self.tables.highest.max(version.generation);
                if version.generation.0 > self.best.generation {
                    self.tables.forced.insert(page);
                    continue;
                }
                best_here = best_here.max(Some(version));
                if chosen.as_ref().is_none_or(|(c, ..)| c.version < version) {
                    chosen = Some((TablePage { version, slot }, payload, block));
                }
            }
            seen.push((*device, best_here));
        }
        let Some((entry, payload, block)) = chosen else {
            let text = format!("table page {page}: no good copy on any device");
            return Err(StorageError::new(ErrorKind::Damaged, text));
        };
        for (device, _) in seen.into_iter().filter(|(_, newest)| *newest != Some(entry.version)) {
            self.tables.forced.insert(page);
            if self.behind {
                let offset = self.geometry.page_offset(u64::from(page), entry.slot);
                self.tables.lacking.push(PageCopy { device, offset, block: block.to_vec() });
            }
        }
        Ok((entry, payload))
    }
}
