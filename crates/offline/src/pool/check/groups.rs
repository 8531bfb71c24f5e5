//! The groups' checksum trees: every block of a volume has a checksum, for exactly that volume's
//! block; and the data itself.

use base::checksum::block_crcs;
use base::{BLOCK, Crc, GroupId, PoolAddr, VolumeId, crc32c};
use format::page::{Chunk, GroupKind, VolumeRecord, VolumeState};
use format::records::{Checksums, MappedExtent};
use format::tree::{checksum_tree_id, mapping_tree_id};
use pool::offline_repair::Content;

use super::PoolChecker;
use super::source::Copy;
use super::space::owner_hash;
use super::volumes::place_of;
use super::walk::Walk;
use crate::report::{Blocks, Phase, Subject, range};

/// Groups whose owners are compared block by block if their sums differ; there are hardly ever any.
const COMPARED: usize = 16;
const LOST: &str = "its content is lost; restore it from a backup";

/// Blocks of a group next to each other that belong to consecutive blocks of a volume, with their
/// checksums.
struct Piece {
    offset: u32,
    volume: u32,
    lba: u64,
    crcs: Vec<Crc>,
}

/// The fault of a copy of a block.
#[derive(Clone)]
enum CopyFault {
    /// The checksum is the first one, and should be the second.
    Sum(Crc, Crc),
    Unreadable(String),
}

impl CopyFault {
    fn of(got: Crc, want: Crc) -> Option<CopyFault> {
        (got != want).then_some(CopyFault::Sum(got, want))
    }

    /// Of this block, and of several that are bad in the same way.
    fn texts(&self) -> (String, String) {
        match self {
            CopyFault::Sum(got, want) => (
                format!("checksum {got:08x}, expected {want:08x}"),
                "its checksum is wrong".to_owned(),
            ),
            CopyFault::Unreadable(why) => (why.clone(), why.clone()),
        }
    }
}

impl PoolChecker<'_> {
    /// Walks all checksum trees, those of groups that are not used for data any more too: their
    /// nodes are kept for the next use.
    pub(crate) async fn checksums(&mut self, volumes: &[VolumeRecord]) {
        let owners = volumes.iter().filter(|v| v.staged.is_none() && v.snapshot.is_none());
        self.names = owners.map(|v| (v.id.0, v.name.clone())).collect();
        let total = self.space.groups.len() as u64;
        let mut differing = Vec::new();
        for i in 0..self.space.groups.len() {
            self.progress(Phase::Groups, i as u64, total);
            if !self.checksum_tree(i).await {
                differing.push(i);
            }
        }
        if !differing.is_empty() {
            self.compare_owners(&differing, volumes).await;
        }
    }

    /// One group; false if what its records say about owners is not what the extents say.
    async fn checksum_tree(&mut self, group: usize) -> bool {
        let record = &self.space.groups[group].record;
        let is_data = record.kind == GroupKind::Data;
        let place = format!("block group {group}");
        let id = checksum_tree_id(GroupId(group as u32));
        let mut walk = Walk::new(id, format!("the checksums of {place}"), record.checksums, false);
        let (mut sum, mut covered, mut end) = (0u64, 0u64, 0u32);
        while let Some(leaf) = walk.next_leaf(self).await {
            if !is_data {
                continue;
            }
            let mut pieces = Vec::new();
            for i in 0..leaf.count() {
                let key = leaf.key(i);
                let r = Checksums::decode(&key, leaf.value(i));
                let Some(r) = r.filter(|r| r.offset + r.len() <= self.space.geometry.group_blocks)
                else {
                    let what = format!(
                        "a record with the key {key:?} is no checksum record of this group"
                    );
                    self.log.error(Subject::Checksum, &place, what, "restore from a backup");
                    continue;
                };
                self.log.counts.checksum_records += 1;
                if r.offset < end {
                    let what =
                        format!("the record at block {} begins inside the one before", r.offset);
                    self.log.error(Subject::Checksum, &place, what, "restore from a backup");
                }
                end = end.max(r.offset + r.len());
                self.spoken_for(group, &r, &mut pieces);
            }
            self.note_staged(group, &pieces);
            for p in &pieces {
                covered += p.crcs.len() as u64;
                let blocks = (0u32..).zip(&p.crcs);
                sum = blocks.fold(sum, |s, (n, _)| {
                    s.wrapping_add(owner_hash(p.offset + n, p.volume, p.lba + u64::from(n)))
                });
            }
            if self.options.data {
                self.data(group, pieces).await;
            }
        }
        self.whole &= walk.is_whole();
        let g = &self.space.groups[group];
        // A tree that could not be read says nothing about owners; that was reported.
        !is_data
            || !walk.is_whole()
            || !g.owners_known
            || (sum == g.owners && covered == g.referred.count() as u64)
    }

    /// Keeps the checksums of blocks of staging volumes.
    fn note_staged(&mut self, group: usize, pieces: &[Piece]) {
        if self.staged_at.is_empty() {
            return;
        }
        for p in pieces {
            for (n, crc) in (0u32..).zip(&p.crcs) {
                if let Some(&epoch) = self.staged_at.get(&(group as u32, p.offset + n)) {
                    self.staged.insert((VolumeId(p.volume), epoch, p.lba + u64::from(n)), *crc);
                }
            }
        }
    }

    /// The parts of a record that speak of blocks that are referred to.
    fn spoken_for(&self, group: usize, r: &Checksums<'_>, out: &mut Vec<Piece>) {
        let referred = &self.space.groups[group].referred;
        let mut open = false;
        for i in 0..r.len() {
            let used = referred.get((r.offset + i) as usize);
            let Some(crc) = r.crc(i).filter(|_| used) else {
                open = false;
                continue;
            };
            match out.last_mut().filter(|_| open) {
                Some(p) => p.crcs.push(crc),
                None => {
                    let (offset, lba) = (r.offset + i, r.lba.0 + u64::from(i));
                    out.push(Piece { offset, volume: r.volume.0, lba, crcs: vec![crc] });
                    open = true;
                }
            }
        }
    }

    /// Reads and verifies every copy of the blocks of some pieces.
    async fn data(&mut self, group: usize, pieces: Vec<Piece>) {
        let chunks = self.space.groups[group].record.chunks.clone();
        let tasks: Vec<_> = pieces
            .into_iter()
            .map(|p| {
                let addr = self.space.geometry.join(GroupId(group as u32), p.offset);
                let (src, chunks, n) = (self.src.clone(), chunks.clone(), p.crcs.len());
                (p, self.src.rt().spawn(async move { src.read_copies(&chunks, addr, n).await }))
            })
            .collect();
        for (p, task) in tasks {
            let copies = task.await.unwrap_or_default();
            let mut bad: Vec<Vec<Option<CopyFault>>> = Vec::with_capacity(copies.len());
            for (d, outcome) in &copies {
                bad.push(match outcome {
                    Ok(buf) => block_crcs(buf)
                        .zip(&p.crcs)
                        .map(|(got, want)| CopyFault::of(got, *want))
                        .collect(),
                    Err(_) => self.singly(group, *d, &p).await,
                });
            }
            for n in 0..p.crcs.len() {
                let mut good_on: Vec<usize> = copies
                    .iter()
                    .zip(&bad)
                    .filter_map(|(c, b)| b[n].is_none().then_some(c.0))
                    .collect();
                let all_good = good_on.len() == copies.len() && !good_on.is_empty();
                if good_on.is_empty() {
                    let at = self.space.geometry.join(GroupId(group as u32), p.offset + n as u32);
                    good_on.extend(self.behind(&chunks, at, p.crcs[n]).await);
                }
                self.log.counts.good_copies += good_on.len() as u64;
                self.log.counts.verified_bytes += (good_on.len() * BLOCK) as u64;
                if all_good {
                    continue;
                }
                let block = p.offset + n as u32;
                let blocks = Blocks {
                    volume: p.volume,
                    name: self.names.get(&p.volume).cloned(),
                    first: p.lba + n as u64,
                    count: 1,
                };
                let verdicts = copies
                    .iter()
                    .zip(&bad)
                    .filter_map(|(c, b)| Some((c.0, b[n].as_ref()?.texts())));
                if let Some(&good) = good_on.first() {
                    let at = |d| self.src.spot(&chunks, block, d);
                    let good = at(good);
                    for (d, (what, brief)) in verdicts {
                        if let (Some(bad), Some(good)) = (at(d), good) {
                            let content = Content::Block(p.crcs[n]);
                            self.plan.copy(Subject::Data, bad, good, content);
                        }
                        let name = self.src.name(d);
                        let heals = "it is healed when it is read";
                        self.log.content(blocks.clone(), Some(&name), what, brief, heals);
                    }
                } else {
                    // Groups have their devices in any order.
                    let mut why: Vec<_> =
                        verdicts.map(|(d, why)| (self.src.name(d), why)).collect();
                    why.sort();
                    let (what, brief): (Vec<_>, Vec<_>) = why
                        .into_iter()
                        .map(|(d, (what, brief))| (format!("{d}: {what}"), format!("{d}: {brief}")))
                        .unzip();
                    let [what, brief] =
                        [what, brief].map(|all| format!("no good copy ({})", all.join("; ")));
                    self.log.content(blocks, None, what, brief, LOST);
                }
            }
        }
    }

    /// A device that is behind and has this block: it was written before the device was away.
    async fn behind(&self, chunks: &[Chunk], addr: PoolAddr, crc: Crc) -> Option<usize> {
        let copies = self.src.read_behind(chunks, addr).await;
        let good = |c: &Copy| c.1.as_ref().is_ok_and(|block| crc32c(block) == crc);
        copies.iter().find(|c| good(c)).map(|c| c.0)
    }

    /// After a read of several blocks failed on a device: what is wrong with each of them there.
    async fn singly(&self, group: usize, device: usize, p: &Piece) -> Vec<Option<CopyFault>> {
        let mut out = Vec::with_capacity(p.crcs.len());
        let chunk =
            self.space.groups[group].record.chunks.iter().find(|c| usize::from(c.device) == device);
        for (n, want) in (0u32..).zip(&p.crcs) {
            let offset =
                chunk.map_or(0, |c| self.space.geometry.chunk_offset(c.chunk, p.offset + n));
            out.push(match self.src.read(device, offset, BLOCK).await {
                Ok(buf) => CopyFault::of(crc32c(&buf), *want),
                Err(e) => Some(CopyFault::Unreadable(e.to_string())),
            });
        }
        out
    }

    /// Finds the blocks whose extent and checksum record disagree, in groups where their sums do.
    async fn compare_owners(&mut self, groups: &[usize], volumes: &[VolumeRecord]) {
        for &group in groups.iter().skip(COMPARED) {
            let what = "its checksum records are not about the blocks that the volumes have here";
            self.log.error(
                Subject::Checksum,
                format!("block group {group}"),
                what,
                "restore from a backup",
            );
        }
        let groups = &groups[..groups.len().min(COMPARED)];
        let blocks = self.space.geometry.group_blocks as usize;
        for &group in groups {
            // Volume 0 is none.
            let mut owners = vec![(0u32, 0u64); blocks];
            let id = checksum_tree_id(GroupId(group as u32));
            let mut walk =
                Walk::new(id, String::new(), self.space.groups[group].record.checksums, true);
            while let Some(leaf) = walk.next_leaf(self).await {
                for i in 0..leaf.count() {
                    let key = leaf.key(i);
                    let Some(r) = Checksums::decode(&key, leaf.value(i)) else { continue };
                    for n in 0..r.len() {
                        if let Some(o) = owners.get_mut((r.offset + n) as usize) {
                            *o = (r.volume.0, r.lba.0 + u64::from(n));
                        }
                    }
                }
            }
            let is_whole = |v: &&VolumeRecord| v.snapshot.is_none() || v.state == VolumeState::Live;
            for v in volumes.iter().filter(is_whole) {
                self.compare_volume(group, &owners, v).await;
            }
        }
    }

    async fn compare_volume(&mut self, group: usize, owners: &[(u32, u64)], v: &VolumeRecord) {
        let tree = v.snapshot.map_or(v.id, |origin| origin.volume);
        let mut walk = Walk::new(mapping_tree_id(tree), String::new(), v.mapping, true);
        while let Some(leaf) = walk.next_leaf(self).await {
            for i in 0..leaf.count() {
                let Some(e) = MappedExtent::decode(&leaf.key(i), leaf.value(i)) else { continue };
                let Some((_, block)) =
                    self.space.locate(e.addr, e.len, GroupKind::Data).filter(|(g, _)| *g == group)
                else {
                    continue;
                };
                for n in 0..e.len {
                    let (volume, lba) = owners[(block + n) as usize];
                    let want = e.lba.0 + u64::from(n);
                    if (volume, lba) == (v.owner().0, want) {
                        continue;
                    }
                    let place = format!("{}, {}", place_of(v), range(want, want + 1));
                    let addr = e.addr.plus(u64::from(n));
                    let what = match volume {
                        0 => format!("block {addr} of the pool has no checksum"),
                        _ => format!(
                            "the checksum of block {addr} of the pool is for block {lba} of \
                             volume {volume}"
                        ),
                    };
                    self.log.error(Subject::Checksum, place, what, LOST);
                }
            }
        }
    }
}
