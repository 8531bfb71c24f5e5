//! Volume records and their mappings.

use std::collections::BTreeSet;

use base::{BLOCK_U64, Epoch, VolumeId};
use format::page::{GroupKind, VolumeRecord, VolumeState};
use format::records::MappedExtent;
use format::tree::mapping_tree_id;

use super::PoolChecker;
use super::space::owner_hash;
use super::walk::Walk;
use crate::report::{Phase, Subject, range};

impl PoolChecker<'_> {
    /// Checks all volumes and walks their mappings.
    pub(crate) async fn volumes(&mut self, volumes: &[VolumeRecord]) {
        let (mut ids, mut names, mut stagings) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for v in volumes {
            match v.staged {
                None => self.log.counts.volumes += 1,
                Some(_) => self.log.counts.stagings += 1,
            }
            let place = place_of(v);
            if !ids.insert(v.id) {
                self.log.error(
                    Subject::Volume,
                    &place,
                    "another volume has its number",
                    "restore from a backup",
                );
            }
            if v.id.0 >= self.src.best.next_volume {
                let what =
                    format!("its number is not below {}, the next one", self.src.best.next_volume);
                self.log.error(Subject::Volume, &place, what, "restore from a backup");
            }
            if let Some(staged) = v.staged.filter(|_| v.state == VolumeState::Live) {
                if !stagings.insert(staged) {
                    let what = "another staging volume is for the same volume and epoch";
                    self.log.error(Subject::Volume, &place, what, "restore from a backup");
                }
                let (volume, epoch) = staged;
                self.needless_staging(&place, volume, epoch, volumes);
            } else if v.state == VolumeState::Live && !names.insert(v.name.as_str()) {
                self.log.error(
                    Subject::Volume,
                    &place,
                    "another volume has its name",
                    "rename one of them",
                );
            }
        }
        for (n, v) in volumes.iter().enumerate() {
            self.progress(Phase::Volumes, n as u64, volumes.len() as u64);
            self.mapping(v).await;
        }
    }

    /// Tells of a staging volume that nothing will be taken over from.
    fn needless_staging(
        &mut self,
        place: &str,
        volume: VolumeId,
        epoch: Epoch,
        volumes: &[VolumeRecord],
    ) {
        let is_it =
            |v: &VolumeRecord| v.id == volume && v.state == VolumeState::Live && v.staged.is_none();
        let why = if self.all_volumes && !volumes.iter().any(is_it) {
            "its volume is not there"
        } else if epoch <= self.src.best.published {
            "its epoch is published"
        } else if self.src.best.cache_uuid.is_none() {
            "the pool has no cache"
        } else {
            return;
        };
        self.log.note(
            Subject::Volume,
            place,
            format!("{why}: it is deleted when the pool is opened"),
        );
    }

    async fn mapping(&mut self, v: &VolumeRecord) {
        let place = place_of(v);
        let mut walk =
            Walk::new(mapping_tree_id(v.id), format!("the mapping of {place}"), v.mapping, false);
        if v.state == VolumeState::Deleting {
            walk = walk.of_deleted();
        }
        let end_of_volume = v.size_bytes.div_ceil(BLOCK_U64);
        let (mut blocks, mut beyond, mut end) = (0u64, 0u64, 0u64);
        let mut sound = true;
        while let Some(leaf) = walk.next_leaf(self).await {
            for i in 0..leaf.count() {
                let Some(e) = MappedExtent::decode(&leaf.key(i), leaf.value(i)) else {
                    let what = format!("a record with the key {:?} is no extent", leaf.key(i));
                    self.log.error(Subject::Extent, &place, what, "restore from a backup");
                    sound = false;
                    continue;
                };
                self.log.counts.extents += 1;
                if e.lba.0 < end {
                    let what =
                        format!("the extent at block {} begins inside the one before", e.lba);
                    self.log.error(Subject::Extent, &place, what, "restore from a backup");
                }
                end = e.end().max(end);
                blocks += u64::from(e.len);
                beyond += e.end().saturating_sub(end_of_volume.max(e.lba.0));
                self.extent(v, &place, &e);
            }
        }
        let whole = walk.is_whole() && sound;
        self.whole &= whole;
        if !walk.is_whole() && v.state == VolumeState::Deleting && self.plan.is_wanted() {
            self.plan.dropped.push(v.id);
        }
        if whole && blocks != v.allocated_blocks {
            let what =
                format!("its extents have {blocks} blocks, its record says {}", v.allocated_blocks);
            self.log.error(Subject::Volume, &place, what, "restore from a backup");
        }
        if beyond > 0 && v.state == VolumeState::Live {
            let what = format!(
                "{beyond} blocks behind its end: a crash cut a shrink short; resizing it frees them"
            );
            self.log.note(Subject::Volume, &place, what);
        }
    }

    /// One extent against the space.
    fn extent(&mut self, v: &VolumeRecord, place: &str, e: &MappedExtent) {
        let place = || format!("{place}, {}", range(e.lba.0, e.end()));
        let at = format!("{} blocks at block {} of the pool", e.len, e.addr);
        let Some((group, block)) = self.space.locate(e.addr, e.len, GroupKind::Data) else {
            let what = format!("mapped to {at}, which are not inside one data group");
            self.log.error(Subject::Extent, place(), what, "restore from a backup");
            return;
        };
        let claim = self.space.claim(group, block, e.len);
        if let Some((_, epoch)) = v.staged.filter(|_| v.state == VolumeState::Live) {
            self.staged_at.extend((block..block + e.len).map(|b| ((group as u32, b), epoch)));
        }
        if claim.shared > 0 {
            let what = format!("{} of the {at} are referred to twice", claim.shared);
            self.log.error(
                Subject::Extent,
                place(),
                what,
                "one of the two holds the other's data; restore both",
            );
        }
        if claim.free > 0 {
            let what = format!("{} of the {at} are not allocated", claim.free);
            let remedy = "do not write to this pool: they may be given to something else";
            self.log.error(Subject::Extent, place(), what, remedy);
        }
        self.log.counts.data_blocks += u64::from(e.len - claim.shared);
        let owner = v.owner().0;
        let hash = |n: u32| owner_hash(block + n, owner, e.lba.0 + u64::from(n));
        let sum = (0..e.len).fold(0u64, |sum, n| sum.wrapping_add(hash(n)));
        let g = &mut self.space.groups[group];
        g.owners = g.owners.wrapping_add(sum);
    }
}

/// Returns the name of a volume in a report.
pub(super) fn place_of(v: &VolumeRecord) -> String {
    let name = match v.staged {
        None => format!("{:?}", v.name),
        Some((volume, epoch)) => format!("staging of volume {volume}, epoch {epoch}"),
    };
    match v.state {
        VolumeState::Live => format!("volume {} ({name})", v.id),
        VolumeState::Deleting => format!("volume {} ({name}, deleted)", v.id),
    }
}
