//! Volume records and their mappings.

use std::collections::BTreeSet;

use base::{BLOCK_U64, Epoch, Generation, VolumeId};
use format::page::{GroupKind, VolumeRecord, VolumeState};
use format::records::{DeadAge, DeadRun, MappedExtent};
use format::tree::{deadlist_tree_id, mapping_tree_id};

use super::PoolChecker;
use super::space::{DeadClaim, owner_hash};
use super::walk::Walk;
use crate::report::{Phase, Subject, range};

impl PoolChecker<'_> {
    /// Checks all volumes and walks their mappings.
    pub(crate) async fn volumes(&mut self, volumes: &[VolumeRecord]) {
        let (mut ids, mut names, mut stagings) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for v in volumes {
            match (v.snapshot, v.staged) {
                (Some(_), _) => self.log.counts.snapshots += 1,
                (None, None) => self.log.counts.volumes += 1,
                (None, Some(_)) => self.log.counts.stagings += 1,
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
            } else if v.state == VolumeState::Live
                && !names.insert((v.snapshot.map(|origin| origin.volume), v.name.as_str()))
            {
                self.log.error(
                    Subject::Volume,
                    &place,
                    "another volume has its name",
                    "rename one of them",
                );
            }
            self.origin(v, volumes);
        }
        let (snapshots, heads): (Vec<_>, Vec<_>) =
            volumes.iter().partition(|v| v.snapshot.is_some());
        // What a volume has is told first; of snapshots the rest is looked at.
        let in_order = heads.iter().chain(&snapshots);
        for (n, v) in in_order.enumerate() {
            self.progress(Phase::Volumes, n as u64, volumes.len() as u64);
            match v.snapshot {
                None => self.mapping(v).await,
                Some(_) if v.state == VolumeState::Live => self.mapping(v).await,
                // Parts of it may be free already.
                Some(_) => {}
            }
        }
        self.drop_with_snapshots(volumes);
        for v in volumes.iter().filter(|v| v.deadlist.is_some()) {
            self.deadlist(v, volumes).await;
        }
        self.undead();
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
        let tree = v.snapshot.map_or(v.id, |origin| origin.volume);
        let mut walk =
            Walk::new(mapping_tree_id(tree), format!("the mapping of {place}"), v.mapping, false);
        if v.snapshot.is_some() {
            walk = walk.of_snapshot();
        }
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
        // Where a snapshot shares a node with others, no more is known of what it has.
        let whole = (walk.is_whole() || v.snapshot.is_some()) && sound;
        self.whole &= whole;
        if !walk.is_whole() && v.state == VolumeState::Deleting && self.plan.is_wanted() {
            self.plan.dropped.push(v.id);
        }
        if whole && walk.is_whole() && blocks != v.allocated_blocks {
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
        let (newest, of) = match v.snapshot {
            Some(origin) => (origin.birth, "the snapshot"),
            None => (self.src.best.birth, "the superblock"),
        };
        if e.birth > newest {
            let what = format!("it was born in {}, and {of} is of {newest}", e.birth);
            self.log.error(Subject::Extent, place(), what, "restore from a backup");
        }
        if v.snapshot.is_some() {
            self.past_extent(v, e, group, block);
            return;
        }
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

impl PoolChecker<'_> {
    /// The volume of a snapshot is there.
    fn origin(&mut self, v: &VolumeRecord, volumes: &[VolumeRecord]) {
        let Some(origin) = v.snapshot else { return };
        let is_it = |other: &VolumeRecord| other.id == origin.volume && other.snapshot.is_none();
        let is_kept = v.state == VolumeState::Live;
        if is_kept && self.all_volumes && !volumes.iter().any(is_it) {
            let what = format!("it is a snapshot of volume {}, which is not there", origin.volume);
            self.log.error(Subject::Volume, place_of(v), what, "restore from a backup");
        }
    }

    /// A deleted volume is dropped with its deleted snapshots, and not while it has others.
    fn drop_with_snapshots(&mut self, volumes: &[VolumeRecord]) {
        let of = |id: VolumeId| {
            volumes.iter().filter(move |v| v.snapshot.is_some_and(|origin| origin.volume == id))
        };
        let is_kept = |v: &VolumeRecord| v.state == VolumeState::Live;
        self.plan.dropped.retain(|&id| !of(id).any(is_kept));
        let all: Vec<VolumeId> = self.plan.dropped.clone();
        self.plan.dropped.extend(all.into_iter().flat_map(of).map(|v| v.id));
    }

    /// An extent of a snapshot: what was met before is shared.
    fn past_extent(&mut self, v: &VolumeRecord, e: &MappedExtent, group: usize, block: u32) {
        let mut free = 0;
        for n in 0..e.len {
            let (claim, is_new) = self.space.claim_past(group, block + n);
            free += claim.free;
            if is_new {
                self.log.counts.data_blocks += 1;
                let hash = owner_hash(block + n, v.owner().0, e.lba.0 + u64::from(n));
                let g = &mut self.space.groups[group];
                g.owners = g.owners.wrapping_add(hash);
            }
        }
        if free > 0 {
            let place = format!("{}, {}", place_of(v), range(e.lba.0, e.end()));
            let what = format!(
                "{free} of the {} blocks at block {} of the pool are not allocated",
                e.len, e.addr
            );
            let remedy = "do not write to this pool: they may be given to something else";
            self.log.error(Subject::Extent, place, what, remedy);
        }
    }

    /// The deadlist of a volume or a snapshot: each block is in a snapshot, and in no volume.
    async fn deadlist(&mut self, v: &VolumeRecord, volumes: &[VolumeRecord]) {
        let place = format!("the deadlist of {}", place_of(v));
        let until = v.snapshot.map_or(Generation(u64::MAX), |origin| origin.generation);
        let of_it = |s: &&VolumeRecord| {
            s.snapshot.is_some_and(|o| o.volume == v.owner() && o.generation < until)
        };
        let older: Vec<&VolumeRecord> = volumes.iter().filter(of_it).collect();
        // One that is being deleted may have less than its lists say, and the others more.
        let is_draining = volumes.iter().any(|s| {
            let is_of_it = s.snapshot.is_some_and(|o| o.volume == v.owner());
            is_of_it && s.state == VolumeState::Deleting
        });
        let origins = older.iter().filter_map(|s| s.snapshot);
        let before = origins.max_by_key(|origin| origin.generation);
        let mut walk = Walk::new(deadlist_tree_id(v.owner()), place.clone(), v.deadlist, false);
        while let Some(leaf) = walk.next_leaf(self).await {
            for i in 0..leaf.count() {
                let Some(run) = DeadRun::decode(&leaf.key(i), leaf.value(i)) else {
                    let what = format!("a record with the key {:?} makes no sense", leaf.key(i));
                    self.log.error(Subject::Space, &place, what, "restore from a backup");
                    continue;
                };
                self.log.counts.dead_runs += 1;
                let is_kept = before.is_some_and(|before| match run.age {
                    DeadAge::Data(birth) => birth <= before.birth,
                    DeadAge::Node(generation) => generation <= before.generation,
                });
                if !is_kept && !is_draining {
                    let what = format!(
                        "{:?} at block {} of the pool is younger than all older snapshots",
                        run.age, run.addr
                    );
                    self.log.error(Subject::Space, &place, what, "the space is lost");
                }
                self.dead_run(&place, &run, is_draining);
            }
        }
        self.whole &= walk.is_whole();
    }

    fn dead_run(&mut self, place: &str, run: &DeadRun, is_draining: bool) {
        let kind = match run.age {
            DeadAge::Data(_) => GroupKind::Data,
            DeadAge::Node(_) => GroupKind::Metadata,
        };
        let Some((group, block)) = self.space.locate(run.addr, run.len, kind) else {
            let what = format!("{} blocks at {} are not inside one group", run.len, run.addr);
            self.log.error(Subject::Space, place, what, "restore from a backup");
            return;
        };
        for n in 0..run.len {
            let what = match self.space.claim_dead(group, block + n) {
                DeadClaim::OfSnapshot => continue,
                DeadClaim::OfNone if is_draining || !self.whole => {
                    self.space.groups[group].owners_known &= kind != GroupKind::Data;
                    continue;
                }
                DeadClaim::OfNone => "no snapshot has it",
                DeadClaim::OfVolume => "a volume has it",
                DeadClaim::Twice => "it stands in a deadlist twice",
                DeadClaim::Free => "it is not allocated",
            };
            let what = format!("block {} of the pool: {what}", run.addr.plus(n.into()));
            self.log.error(Subject::Space, place, what, "restore from a backup");
        }
    }

    /// Blocks that snapshots alone have, and no deadlist.
    fn undead(&mut self) {
        if !self.whole {
            return;
        }
        for group in 0..self.space.groups.len() {
            let Some((count, first)) = self.space.undead(group) else { continue };
            let what = format!(
                "{count} blocks are in a snapshot and in no volume, and no deadlist has them; the \
                 first is {first}"
            );
            let remedy = "their space comes back when the snapshot is deleted and this is repaired";
            self.log.lost(Subject::Space, format!("block group {group}"), what, remedy);
        }
    }
}

/// Returns the name of a volume in a report.
pub(super) fn place_of(v: &VolumeRecord) -> String {
    let name = match (v.snapshot, v.staged) {
        (Some(origin), _) => format!("snapshot {:?} of volume {}", v.name, origin.volume),
        (None, None) => format!("{:?}", v.name),
        (None, Some((volume, epoch))) => format!("staging of volume {volume}, epoch {epoch}"),
    };
    match v.state {
        VolumeState::Live => format!("volume {} ({name})", v.id),
        VolumeState::Deleting => format!("volume {} ({name}, deleted)", v.id),
    }
}
