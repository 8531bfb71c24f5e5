//! Shows any structure of a pool as data that can be written as JSON. It is as read-only as
//! [`crate::pool::check`].
//!
//! Structures are handed out one by one, so that a dump of any size needs little memory. What is
//! damaged in all copies is said to be unreadable, and the dump goes on.

mod item;

use base::{BLOCK, ErrorKind, GroupId, PoolAddr, Result, StorageError};
use format::FormatError;
use format::page::{GroupKind, VolumeRecord};
use format::records::{Checksums, DeadRun, MappedExtent};
use format::superblock::{SLOT_COPIES, SLOTS, Superblock};
use format::tree::{checksum_tree_id, deadlist_tree_id, mapping_tree_id};
use pool::DeviceFile;
use queue::{Class, Device, Limits};
use rt::Rt;

pub use item::{DeviceItem, PoolItem, PoolSuperblockItem};

use crate::items::{NodeItem, SlotItem, crc_text, hex};
use crate::pool::check::{PoolChecker, Walk};

/// The structures that can be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolStructure {
    /// All superblock slots of all devices.
    Superblock,
    /// The volume table.
    Volumes,
    /// The group table.
    Groups,
    /// A group's bitmap.
    Bitmap(u32),
    /// The nodes of a volume's mapping; the volume by name or number.
    Mapping(String),
    /// The extents of a volume or a snapshot.
    Extents(String),
    /// The records of the deadlist of a volume or a snapshot.
    Deadlist(String),
    /// The nodes and records of a group's checksum tree.
    Checksums(u32),
    /// All copies of a pool block, and the node in it if there is one.
    Node(u64),
}

impl PoolStructure {
    /// The words for the structures, and their arguments, for usage texts.
    pub const USAGE: &str = "superblock | volumes | groups | bitmap GROUP | mapping VOLUME | \
                             extents VOLUME | deadlist VOLUME | checksums GROUP | node ADDRESS";

    /// Reads a word and, where one is needed, its argument. `None`: there is no such word.
    pub fn parse(
        word: &str,
        argument: Option<&str>,
    ) -> std::result::Result<Option<PoolStructure>, String> {
        // As it is written, with what it needs.
        let mut all = PoolStructure::USAGE.split(" | ");
        let needs = all.find(|one| one.split(' ').next() == Some(word)).unwrap_or_default();
        let needed = needs.split_once(' ').map_or("", |(_, what)| what);
        let no_argument = |what| match argument {
            None => Ok(what),
            Some(more) => Err(format!("{word} takes nothing behind it, and {more:?} is there")),
        };
        let text = || {
            let missing = || format!("{needed} is missing: forebay dump {needs}");
            argument.map(str::to_owned).ok_or_else(missing)
        };
        let number = || {
            let text = text()?;
            text.parse::<u64>().map_err(|_| {
                format!("{text:?} is not a number, as {needed} is: forebay dump {needs}")
            })
        };
        let group = || Ok::<u32, String>(number()?.try_into().unwrap_or(u32::MAX));
        Ok(Some(match word {
            "superblock" => no_argument(PoolStructure::Superblock)?,
            "volumes" => no_argument(PoolStructure::Volumes)?,
            "groups" => no_argument(PoolStructure::Groups)?,
            "bitmap" => PoolStructure::Bitmap(group()?),
            "mapping" => PoolStructure::Mapping(text()?),
            "extents" => PoolStructure::Extents(text()?),
            "deadlist" => PoolStructure::Deadlist(text()?),
            "checksums" => PoolStructure::Checksums(group()?),
            "node" => PoolStructure::Node(number()?),
            _ => return Ok(None),
        }))
    }
}

/// Hands `what` of the pool on `files` to `out`, structure by structure.
pub async fn dump(
    rt: &Rt,
    files: Vec<DeviceFile>,
    what: &PoolStructure,
    out: &mut dyn FnMut(PoolItem),
) -> Result<()> {
    if *what == PoolStructure::Superblock {
        superblocks(rt, &files, out).await;
        return Ok(());
    }
    let mut ignored = |_| ();
    let (mut checker, volumes) = PoolChecker::load(rt, files, &mut ignored).await?;
    let outcome = checker.dump(&volumes, what, out).await;
    checker.close();
    outcome
}

async fn superblocks(rt: &Rt, files: &[DeviceFile], out: &mut dyn FnMut(PoolItem)) {
    for f in files {
        let queue = Device::new(rt, f.file, Limits::default());
        for slot in 0..SLOTS {
            let mut first = None;
            for copy in 0..SLOT_COPIES as u64 {
                let offset = Superblock::offset_of(slot) + copy * BLOCK as u64;
                let (outcome, block) =
                    queue.read(Class::Foreground, offset, rt.bufs().take(BLOCK)).await;
                let read = outcome.map(|()| Superblock::decode(&block));
                // The second one is told of where it says something else.
                let silent =
                    matches!(read, Ok(Err(FormatError::Magic(_)))) || first.as_ref() == Some(&read);
                if copy > 0 && silent {
                    continue;
                }
                first = Some(read.clone());
                let read = match read {
                    Ok(Ok(sb)) => Ok(PoolSuperblockItem::from(&sb)),
                    Ok(Err(e)) => Err(e.to_string()),
                    Err(e) => Err(e.to_string()),
                };
                out(PoolItem::Superblock(Box::new(SlotItem::new(&f.path, slot, offset, read))));
            }
        }
        queue.close();
    }
}

impl PoolChecker<'_> {
    async fn dump(
        &mut self,
        volumes: &[VolumeRecord],
        what: &PoolStructure,
        out: &mut dyn FnMut(PoolItem),
    ) -> Result<()> {
        match what {
            PoolStructure::Superblock => {}
            PoolStructure::Volumes => volumes.iter().for_each(|v| out(PoolItem::from(v))),
            PoolStructure::Groups => self.dump_groups(out),
            PoolStructure::Bitmap(group) => self.dump_bitmap(*group, out)?,
            PoolStructure::Mapping(name) => {
                let v = find(volumes, name)?;
                self.dump_tree(
                    Walk::new(tree_of(v), String::new(), v.mapping, true),
                    out,
                    |_, _| {},
                )
                .await;
            }
            PoolStructure::Extents(name) => {
                let v = find(volumes, name)?;
                let mut walk = Walk::new(tree_of(v), String::new(), v.mapping, true);
                while let Some(leaf) = walk.next_leaf(self).await {
                    for e in (0..leaf.count())
                        .filter_map(|i| MappedExtent::decode(&leaf.key(i), leaf.value(i)))
                    {
                        let (group, offset) = self.space.geometry.split(e.addr);
                        let (lba, address) = (e.lba.0, e.addr.0);
                        out(PoolItem::Extent {
                            lba,
                            blocks: e.len,
                            address,
                            group: group.0,
                            offset,
                            birth: e.birth.0,
                        });
                    }
                }
                whole(&walk, out);
            }
            PoolStructure::Deadlist(name) => {
                let v = find(volumes, name)?;
                let tree = deadlist_tree_id(v.owner());
                let mut walk = Walk::new(tree, String::new(), v.deadlist, true);
                while let Some(leaf) = walk.next_leaf(self).await {
                    (0..leaf.count())
                        .filter_map(|i| DeadRun::decode(&leaf.key(i), leaf.value(i)))
                        .for_each(|run| out(PoolItem::from(run)));
                }
                whole(&walk, out);
            }
            PoolStructure::Checksums(group) => {
                let g = &self.space.groups[self.group(*group)?];
                let (root, allocated) = (g.record.checksums, g.allocated.clone());
                let walk = Walk::new(checksum_tree_id(GroupId(*group)), String::new(), root, true);
                self.dump_tree(walk, out, |(key, value), out| {
                    let Some(r) = Checksums::decode(key, value) else { return };
                    let crcs = (0..r.len()).filter_map(|i| r.crc(i)).map(crc_text).collect();
                    let is_used = |b: u32| {
                        allocated
                            .as_ref()
                            .is_some_and(|a| (b as usize) < a.len() && a.get(b as usize))
                    };
                    let allocated =
                        (0..r.len()).map(|i| is_used(r.offset.saturating_add(i))).collect();
                    out(PoolItem::Checksums {
                        offset: r.offset,
                        volume: r.volume.0,
                        lba: r.lba.0,
                        crcs,
                        allocated,
                    });
                })
                .await;
            }
            PoolStructure::Node(addr) => self.dump_block(PoolAddr(*addr), out).await?,
        }
        Ok(())
    }

    fn dump_groups(&self, out: &mut dyn FnMut(PoolItem)) {
        let pages = self.space.geometry.pages_per_group() as usize;
        let mut free = 0;
        for (i, g) in self.space.groups.iter().enumerate() {
            if g.record.kind == GroupKind::Free && g.record.checksums.is_none() {
                free += 1;
            } else {
                out(item::group(i as u32, &g.record, pages));
            }
        }
        out(PoolItem::Free { groups: free });
    }

    fn dump_bitmap(&self, group: u32, out: &mut dyn FnMut(PoolItem)) -> Result<()> {
        let g = &self.space.groups[self.group(group)?];
        let Some(bits) = &g.allocated else {
            let what = if g.record.kind == GroupKind::Free {
                "a free group has no bitmap"
            } else {
                "it cannot be read"
            };
            out(PoolItem::Unreadable {
                what: format!("the bitmap of block group {group}: {what}"),
            });
            return Ok(());
        };
        let mut allocated = Vec::new();
        let mut at = 0;
        while let Some(start) = bits.find(at, true) {
            let end = bits.find(start, false).unwrap_or(bits.len());
            allocated.push((start as u32, (end - start) as u32));
            at = end;
        }
        out(PoolItem::Bitmap { group, used_blocks: g.record.used, allocated });
        Ok(())
    }

    /// The row of a block group that is in use, or may come to be.
    fn group(&self, group: u32) -> Result<usize> {
        let (row, can_be) = (group as usize, u64::from(group) < self.most_groups());
        let found = self.space.groups.get(row);
        let found = found.filter(|g| can_be || g.record.kind != GroupKind::Free);
        found.map(|_| row).ok_or_else(|| no_group(group))
    }

    /// Returns the number of block groups that find room on the devices. The tables have room for
    /// more.
    fn most_groups(&self) -> u64 {
        let sb = &self.src.best;
        let chunks: u64 = sb.devices.iter().map(|d| d.chunks).sum();
        chunks / u64::from(sb.copies.max(1))
    }

    /// All nodes of a tree, and what `record` makes of its leaves' records.
    async fn dump_tree(
        &mut self,
        mut walk: Walk,
        out: &mut dyn FnMut(PoolItem),
        record: impl Fn((&[u8], &[u8]), &mut dyn FnMut(PoolItem)),
    ) {
        while let Some((r, page)) = walk.next_node(self).await {
            out(PoolItem::Node(NodeItem::new(&r, &page)));
            if page.level() == 0 {
                (0..page.count()).for_each(|i| record((&page.key(i), page.value(i)), out));
            }
        }
        whole(&walk, out);
    }

    async fn dump_block(&self, addr: PoolAddr, out: &mut dyn FnMut(PoolItem)) -> Result<()> {
        let geometry = self.space.geometry;
        let (group, block) = geometry.split(addr);
        let g = self.space.groups.get(group.0 as usize).filter(|_| geometry.contains(addr));
        let Some(g) = g.filter(|g| g.record.kind != GroupKind::Free) else {
            let text = format!("block {addr} is in no block group that is in use");
            return Err(StorageError::new(ErrorKind::NotFound, text));
        };
        let mut found = None;
        for (d, outcome) in self.src.read_copies(&g.record.chunks, addr, 1).await {
            let chunk = g.record.chunks.iter().find(|c| usize::from(c.device) == d);
            let offset = chunk.map_or(0, |c| geometry.chunk_offset(c.chunk, block));
            let crc = outcome.as_ref().ok().map(|b| crc_text(base::crc32c(b)));
            let begins = outcome.as_ref().map_or(String::new(), |b| hex(&b[..64]));
            let error = outcome.as_ref().err().map(|e| e.to_string());
            out(PoolItem::Copy {
                address: addr.0,
                device: self.src.name(d),
                offset,
                error,
                crc,
                begins,
            });
            if let (None, Ok(bytes)) = (&found, &outcome) {
                found = item::node_in(bytes);
            }
        }
        found.into_iter().for_each(out);
        Ok(())
    }
}

fn whole(walk: &Walk, out: &mut dyn FnMut(PoolItem)) {
    if !walk.is_whole() {
        out(PoolItem::Unreadable { what: "a part of the tree; run forebay check".to_owned() });
    }
}

fn no_group(group: u32) -> StorageError {
    StorageError::new(ErrorKind::NotFound, format!("there is no block group {group}"))
}

/// The number of the mapping tree of a volume or a snapshot.
fn tree_of(v: &VolumeRecord) -> u64 {
    mapping_tree_id(v.snapshot.map_or(v.id, |origin| origin.volume))
}

/// A volume by name, a snapshot as VOLUME@NAME, or either by number.
fn find<'v>(volumes: &'v [VolumeRecord], name: &str) -> Result<&'v VolumeRecord> {
    let volume = |name: &str| {
        let mut all = volumes.iter().filter(|v| v.staged.is_none() && v.snapshot.is_none());
        all.find(|v| v.name == name)
    };
    let snapshot = || {
        let (of, own) = name.rsplit_once('@')?;
        let of = volume(of)?.id;
        let is_it = |v: &&VolumeRecord| v.snapshot.is_some_and(|origin| origin.volume == of);
        volumes.iter().filter(is_it).find(|v| v.name == own)
    };
    let by_name = volume(name).or_else(snapshot);
    let number = name.parse::<u32>().ok();
    by_name.or_else(|| volumes.iter().find(|v| Some(v.id.0) == number)).ok_or_else(|| {
        StorageError::new(ErrorKind::NotFound, format!("there is no volume {name:?}"))
    })
}
