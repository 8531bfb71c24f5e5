//! Repair of a cache: what the check finds bad in one copy and good in another is written again.
//!
//! | what is bad | where its good copy is |
//! | --- | --- |
//! | a superblock slot | the other superblock of its pair, which differs in the number only |
//! | a copy of an entry of the journal | the other ring |
//! | a copy of a node of the index | the same place of the twin of its bucket |
//! | a clean block | the pool; what it has must have the checksum that the key says |
//!
//! A dirty block is nowhere else: it is named. A page of the bucket table with one bad slot is
//! what a crash may leave, and the next checkpoint writes it; so it is left as it is. Power may
//! fail at any moment: only what is bad is written over.

use std::collections::BTreeSet;

use base::{BLOCK, Buf, ErrorKind, Result, SECTOR, Slice, SliceList, StorageError, crc32c};
use cache::CacheFile;
use cache::raw::{EntryCopy, read_copy};
use format::cache::superblock::CacheSuperblock;
use pool::DeviceFile;
use pool::offline_repair::Repair;
use queue::{Class, Device, Limits};
use rt::Rt;

use super::check::plan::{CacheRepairPlan, Fix, MOST};
use super::check::{CacheReport, check_for};
use crate::pool::check::Image;
use crate::repair::{Outcome, RepairTally, Repairs};
use crate::report::{CheckOptions, Phase, Progress};

/// The number of copies that are written before a flush.
const BATCH: usize = 256;

/// Repairs the cache on `file`, in front of the pool on `files` that `image` is of; nothing else
/// may use them meanwhile. `dry_run`: says what would be done, and writes nothing.
pub async fn repair(
    rt: &Rt,
    file: &CacheFile,
    image: &Image,
    files: Vec<DeviceFile>,
    options: &CheckOptions,
    dry_run: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome<CacheReport>> {
    let options = &CheckOptions { data: true, ..*options };
    let (before, mut plan) =
        check_for(CacheRepairPlan::new(MOST), rt, file, image, options, progress).await;
    let mut repairs = Repairs { dry_run, refused: plan.unsound.take(), ..Repairs::default() };
    let (mut tally, mut tried) = (RepairTally::default(), BTreeSet::new());
    let mut after = None;
    loop {
        let fixes: Vec<Fix> =
            plan.fixes.into_iter().filter(|fix| tried.insert(fix.offset())).collect();
        fixes.iter().for_each(|fix| tally.bad(&file.path, fix.kind()));
        if fixes.is_empty() || dry_run || repairs.refused.is_some() {
            break;
        }
        let mut writer = Writer::new(rt, file, &files);
        let done = writer.write_all(&fixes, &mut tally, progress).await;
        writer.close();
        done?;
        let (report, next) =
            check_for(CacheRepairPlan::new(MOST), rt, file, image, options, progress).await;
        let sound = next.unsound.is_none();
        (plan, after) = (next, Some(report));
        if !sound {
            break;
        }
    }
    tally.tell(&mut repairs);
    Ok(Outcome { before, after, repairs })
}

/// Writes to a cache's device what its pool, or another place of it, has.
struct Writer<'a> {
    rt: &'a Rt,
    device: Device,
    path: String,
    files: &'a [DeviceFile],
    /// Open since it was needed first.
    pool: Option<Repair>,
}

impl Writer<'_> {
    fn new<'a>(rt: &'a Rt, file: &CacheFile, files: &'a [DeviceFile]) -> Writer<'a> {
        let device = Device::new(rt, file.file, Limits::default());
        device.set_name(&format!("cache {}", file.path));
        Writer { rt, device, path: file.path.clone(), files, pool: None }
    }

    fn close(&self) {
        self.device.close();
        if let Some(pool) = &self.pool {
            pool.close();
        }
    }

    async fn write_all(
        &mut self,
        fixes: &[Fix],
        tally: &mut RepairTally,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let (mut done, total) = (0, fixes.len() as u64);
        // After a kill, what was read may stand in a volatile cache only.
        self.flush().await?;
        for batch in fixes.chunks(BATCH) {
            progress(Progress { phase: Phase::Repair, done, total });
            let mut written = Vec::new();
            for fix in batch {
                match self.write(fix).await? {
                    Ok(()) => written.push(fix),
                    Err(why) => tally.failed(&self.path, fix.kind(), fix.offset(), why),
                }
            }
            if !written.is_empty() {
                self.flush().await?;
            }
            for fix in written {
                if self.is_good(fix).await {
                    tally.repaired(&self.path, fix.kind());
                } else {
                    let why = "it is bad after it was written; replace the device".to_owned();
                    tally.failed(&self.path, fix.kind(), fix.offset(), why);
                }
            }
            done += batch.len() as u64;
        }
        Ok(())
    }

    /// Writes one thing; or says why not.
    async fn write(&mut self, fix: &Fix) -> Result<std::result::Result<(), String>> {
        let content = match self.content(fix).await? {
            Ok(content) => content,
            Err(why) => return Ok(Err(why)),
        };
        let data = SliceList::from_iter([content]);
        let written = self.device.write(Class::Commit, fix.offset(), data).await;
        Ok(written.map_err(|e| format!("it cannot be written: {e}; replace the device")))
    }

    /// Returns the right content of a copy, from a good copy that is verified; or why it cannot be
    /// had.
    async fn content(&mut self, fix: &Fix) -> Result<std::result::Result<Slice, String>> {
        let gone = |what: &str| Ok(Err(format!("the good copy: {what}")));
        match fix {
            Fix::Superblock(sb) => {
                let mut block = self.rt.bufs().zeroed(BLOCK);
                sb.encode(&mut block);
                Ok(Ok(block.freeze()))
            }
            Fix::Entry { good, blocks, of, sequence, .. } => {
                if !matches!(
                    read_copy(&self.device, *good, of, *sequence).await,
                    EntryCopy::Entry(_)
                ) {
                    return gone("it is bad too, now that it is read again");
                }
                let len = *blocks as usize * BLOCK;
                match self.device.read_new(Class::Commit, *good, len).await {
                    (Ok(()), bytes) => Ok(Ok(bytes.freeze())),
                    (Err(e), _) => gone(&e.to_string()),
                }
            }
            Fix::Node { good, crc, .. } => {
                let read = self.device.read_blocks(Class::Commit, *good, 1).await;
                match read.error(0) {
                    None if crc32c(&read.buf) == *crc => Ok(Ok(read.buf.freeze())),
                    None => gone("it is bad too, now that it is read again"),
                    Some(e) => gone(&e.to_string()),
                }
            }
            Fix::Data { volume, lba, crc, sectors, .. } => {
                let read = self.pool().await?.pool().read(*volume, *lba, 1).await;
                let mut block = match read {
                    Ok(slices) => one_block(self.rt, &slices),
                    Err(e) => return gone(&e.to_string()),
                };
                for (i, sector) in block.chunks_exact_mut(SECTOR).enumerate() {
                    if sectors.bits() >> i & 1 == 0 {
                        sector.fill(0);
                    }
                }
                if crc32c(&block) != *crc {
                    return gone("what the pool has is something else");
                }
                Ok(Ok(block.freeze()))
            }
        }
    }

    async fn pool(&mut self) -> Result<&Repair> {
        if self.pool.is_none() {
            self.pool = Some(Repair::open(self.rt, self.files.to_vec()).await?);
        }
        match &self.pool {
            Some(pool) => Ok(pool),
            None => unreachable!("it was opened just now"),
        }
    }

    async fn is_good(&self, fix: &Fix) -> bool {
        if let Fix::Entry { bad, of, sequence, .. } = fix {
            return matches!(
                read_copy(&self.device, *bad, of, *sequence).await,
                EntryCopy::Entry(_)
            );
        }
        let read = self.device.read_blocks(Class::Commit, fix.offset(), 1).await;
        let Ok(block) = read.get(0) else { return false };
        match fix {
            Fix::Superblock(sb) => CacheSuperblock::decode(block).is_ok_and(|read| read == **sb),
            Fix::Data { crc, .. } | Fix::Node { crc, .. } => crc32c(block) == *crc,
            Fix::Entry { .. } => false,
        }
    }

    async fn flush(&self) -> Result<()> {
        self.device.flush(Class::Commit).await.map_err(|e| {
            let text = format!(
                "{}: a flush failed ({e}), so what was written to it may not be there. Only bad \
                 copies were written: nothing is lost. See to the device and run the repair again",
                self.path
            );
            StorageError::new(ErrorKind::Io, text)
        })
    }
}

/// A block of its own, of what was read.
fn one_block(rt: &Rt, slices: &SliceList) -> Buf {
    let mut block = rt.bufs().zeroed(BLOCK);
    let bytes = slices.iter().flat_map(|s| s.iter());
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    block
}
