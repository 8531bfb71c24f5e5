//! Superblocks, whose cache it is, and the bucket table.

use base::BLOCK_U64;
use cache::raw::{Layout, choose_slot, newer_may_be_lost, open_slot, read_slots};
use format::FormatError;
use format::cache::bucket::BucketRecord;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use format::page::page_digest;

use super::checker::{CacheChecker, GIVE_UP};
use super::report::PoolRelation;
use crate::items::hex;
use crate::report::{Phase, Severity, Slot, Subject};

/// Pages read at once.
const BATCH: u32 = 32;

impl CacheChecker<'_> {
    /// All slots, and the newest superblock. Error: one of them is of a version, or has features,
    /// that this program does not know. The others are old then, and nothing else is looked at.
    pub(super) async fn superblocks(
        &mut self,
        size_bytes: u64,
    ) -> (Vec<Slot>, Result<Option<CacheSuperblock>, FormatError>) {
        let mut slots = Vec::new();
        let mut newer = None;
        let mut found = Vec::new();
        let mut best: Option<CacheSuperblock> = None;
        let (mut all, mut without) = (Vec::new(), 0);
        for slot in 0..SLOTS {
            let read = self.src.block(CacheSuperblock::offset_of(slot)).await;
            let as_opened =
                cache::raw::Slot::of(read.as_ref().map(|b| &b[..]).map_err(Clone::clone));
            match as_opened {
                Ok(slot) => found.push(slot),
                Err(e) => newer = Some(e),
            }
            let damaged = |why: String| Slot::Damaged { why };
            let is_behind = CacheSuperblock::offset_of(slot) + BLOCK_U64 > size_bytes;
            let has_none =
                |b: &base::Buf| matches!(CacheSuperblock::decode(b), Err(FormatError::Magic(_)));
            without += u64::from(is_behind || read.as_ref().is_ok_and(has_none));
            slots.push(match read.map(|b| (CacheSuperblock::decode(&b), b)) {
                Err(e) => damaged(e),
                Ok((Ok(sb), _)) => {
                    let whole = Slot::Ok { sequence: sb.sequence, generation: sb.generation.0 };
                    all.push(sb.clone());
                    if best.as_ref().is_none_or(|b| b.sequence < sb.sequence) {
                        best = Some(sb);
                    }
                    whole
                }
                Ok((Err(FormatError::Magic(_)), b)) if b.iter().all(|&b| b == 0) => Slot::Empty,
                Ok((Err(e), _)) => damaged(e.to_string()),
            });
        }
        self.holds_none = without == SLOTS;
        if let Some(newer) = newer {
            return (slots, Err(newer));
        }
        if let Some(best) = best.as_ref().filter(|sb| self.is_attached(sb)) {
            for (number, slot) in (0..).zip(&slots) {
                let before = self.log.total(Severity::DamagedCopy);
                self.log.judge_slot(&self.src.path, number, SLOTS, slot, best.sequence);
                if self.log.total(Severity::DamagedCopy) > before {
                    self.plan.slot(number, best.sequence, &all);
                }
            }
            if newer_may_be_lost(&found, best) {
                let what = "two newer ones in a row are bad: a newer checkpoint may have been \
                            there, and this one does not count then";
                self.log.error(
                    Subject::Superblock,
                    format!("superblock number {}", best.sequence),
                    what,
                    GIVE_UP,
                );
            }
        }
        (slots, Ok(best))
    }

    /// True if this is the pool's cache: of any other cache nothing counts, and no slot is damage.
    fn is_attached(&self, sb: &CacheSuperblock) -> bool {
        sb.pool_uuid == self.image.pool_uuid && self.image.cache_uuid == Some(sb.uuid)
    }

    /// Tells what the device is to the pool. If another device was named, that is no fault of the
    /// pool's cache. Where the pool has no cache, nothing that stands on the device is a fault.
    pub(super) fn standing(
        &mut self,
        sb: &Result<Option<CacheSuperblock>, FormatError>,
    ) -> PoolRelation {
        let path = self.src.path.clone();
        let attached = self.image.cache_uuid;
        let holds_none = self.holds_none;
        let mut error = |what: String, remedy| {
            match attached {
                Some(_) => self.log.error(Subject::Device, &path, what, remedy),
                None => self.log.note(Subject::Device, &path, what),
            }
            PoolRelation::Foreign
        };
        let sb = match sb {
            Ok(sb) => sb.as_ref(),
            // The cache of a newer format is all right, and the error says what to do.
            Err(newer) => return error(newer.to_string(), ""),
        };
        let Some(sb) = sb else {
            if holds_none {
                self.log.note(Subject::Device, path, "it holds no cache of Forebay");
                return PoolRelation::Foreign;
            }
            return error("no superblock of a cache can be read".into(), GIVE_UP);
        };
        if sb.pool_uuid != self.image.pool_uuid {
            let what = format!("it is the cache of another pool, {}", hex(&sb.pool_uuid));
            self.log.note(Subject::Device, path, what);
            return PoolRelation::Foreign;
        }
        match attached {
            Some(uuid) if uuid == sb.uuid => PoolRelation::Attached,
            Some(uuid) => {
                let what = format!(
                    "it is not the cache that is attached to the pool: that is {}",
                    hex(&uuid)
                );
                self.log.note(Subject::Device, path, what);
                PoolRelation::Foreign
            }
            None => {
                let what = "it is not attached to the pool any more: nothing in it counts";
                self.log.note(Subject::Device, path, what);
                PoolRelation::Detached
            }
        }
    }

    /// The bucket table; `None` if a part of it is lost.
    pub(super) async fn table(
        &mut self,
        sb: &CacheSuperblock,
        layout: &Layout,
    ) -> Option<Vec<BucketRecord>> {
        let mut records = Vec::with_capacity(layout.buckets as usize);
        let (mut whole, mut digest, mut at) = (true, 0u64, 0);
        while at < layout.pages() {
            self.progress(Phase::Buckets, at.into(), layout.pages().into());
            let end = (at + BATCH).min(layout.pages());
            let read = |page| {
                let (src, layout) = (self.src.clone(), *layout);
                self.src.rt.spawn(async move { read_slots(&src.device, &layout, page).await })
            };
            let pages: Vec<_> = (at..end).map(|page| (page, read(page))).collect();
            for (page, read) in pages {
                let slots = read.await.unwrap_or_default();
                self.log.counts.table_pages += 1;
                let Some(found) = choose_slot(&slots, layout, sb.uuid, page, sb.generation) else {
                    whole = false;
                    let place = format!("page {page} of the bucket table");
                    self.log.error(
                        Subject::Table,
                        place,
                        "no slot has a version of it that counts",
                        GIVE_UP,
                    );
                    continue;
                };
                for (slot, block) in slots.iter().enumerate() {
                    let never = block.as_ref().is_some_and(|b| b.iter().all(|&b| b == 0));
                    if let (false, Err(why)) =
                        (never, open_slot(block.as_ref(), layout, sb.uuid, page, slot as u8))
                    {
                        let what =
                            format!("{why}; the other slot counts: a crash may have torn it");
                        self.log.note(
                            Subject::Table,
                            format!("page {page} of the bucket table, slot {slot}"),
                            what,
                        );
                    }
                }
                digest = digest.wrapping_add(page_digest(page, found.generation));
                records.extend(found.records);
            }
            at = end;
        }
        if whole && sb.table_digest != 0 && digest != sb.table_digest {
            whole = false;
            let what =
                "it is not that of the newest checkpoint: a page of it is older than it should be";
            self.log.error(Subject::Table, "bucket table", what, GIVE_UP);
        }
        whole.then_some(records)
    }
}
