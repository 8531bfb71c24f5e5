//! A pool on simulated disks, and ways to damage it that no device has.

use std::future::Future;

use base::{BLOCK, BLOCK_U64, Bitmap, GroupId, Lba, PoolAddr, Result, SECTOR, SliceList, VolumeId};
use format::node::{NodePage, NodePtr, NodeRef, RootPtr, decode};
use format::page::{
    GROUPS_PER_PAGE, GroupKind, GroupRecord, PageId, PageKind, PageVersion, VolumeRecord,
    decode_bitmap, decode_groups, decode_volumes, encode_bitmap, encode_groups, encode_volumes,
    open_page, payload_mut, seal_page,
};
use format::records::{MappedExtent, mapping_key};
use format::superblock::{SLOTS, Superblock};
use format::tree::mapping_tree_id;
use offline::pool::check::{Report, check};
use offline::pool::dump::{PoolItem, PoolStructure, dump};
use offline::pool::repair::repair;
use offline::repair::Outcome;
use offline::{CheckOptions, Phase, Progress};
use pool::raw::Geometry;
use pool::{DeviceFile, Pool};
use rt::{Op, Rt};
use sim::{Fault, World};
use testkit::{MIB, Mirror, Rules};

/// A pool that is not open.
pub struct Lab(Mirror);

/// The committed version of a page.
pub struct Version {
    pub offset: u64,
    pub payload: Vec<u8>,
    id: PageId,
    version: PageVersion,
}

impl Lab {
    /// Two volumes on `disks` disks with `copies` copies; some of what was written is overwritten,
    /// discarded, deleted.
    pub fn new(disks: usize, copies: u8) -> Lab {
        Lab(Mirror::new(7, (disks, copies), |pool| async move {
            let a = pool.create_volume("a", 32 * MIB, 512).await.expect("volume");
            let b = pool.create_volume("b", 8 * MIB, 4096).await.expect("volume");
            let gone = pool.create_volume("gone", 8 * MIB, 4096).await.expect("volume");
            for i in 0..700u64 {
                fill(&pool, a, i * 3, 1 + i % 2, i as u8).await;
            }
            fill(&pool, b, 0, 600, 9).await;
            fill(&pool, gone, 100, 300, 11).await;
            pool.commit().await.expect("commit");
            for i in 0..100u64 {
                fill(&pool, a, i * 7, 1, 200).await;
            }
            pool.discard(b, Lba(50), Lba(123)).await.expect("discard");
            pool.delete_volume(gone).await.expect("delete");
            for _ in 0..4 {
                fill(&pool, a, 4000, 1, 77).await;
                pool.commit().await.expect("commit");
            }
            a
        }))
    }

    pub fn world(&self) -> &World {
        &self.0.world
    }

    pub fn files(&self) -> Vec<DeviceFile> {
        self.0.files.clone()
    }

    pub fn run<T: 'static, F: Future<Output = T> + 'static>(&self, f: impl FnOnce(Rt) -> F) -> T {
        self.0.run(|rt, _| f(rt))
    }

    /// What the devices answer.
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// All bytes of all disks.
    pub fn contents(&self) -> Vec<Vec<u8>> {
        let disks = self.0.files.iter();
        disks.map(|f| self.world().contents(f.file, 0, f.size_bytes as usize)).collect()
    }

    /// Repairs the pool on these disks, or says what would be done.
    pub fn try_repair(&self, files: Vec<DeviceFile>, dry_run: bool) -> Result<Outcome<Report>> {
        let before = self.contents();
        let outcome = self.run(move |rt| async move {
            repair(&rt, files, &CheckOptions::default(), dry_run, &mut |_| ()).await
        });
        assert!(!dry_run || self.contents() == before, "a dry run wrote");
        outcome
    }

    /// Repairs the pool.
    pub fn repair(&self) -> Outcome<Report> {
        self.try_repair(self.files(), false).expect("a pool")
    }

    /// What a repair would do.
    pub fn dry_run(&self) -> Outcome<Report> {
        self.try_repair(self.files(), true).expect("a pool")
    }

    pub fn try_check(&self, files: Vec<DeviceFile>, data: bool) -> Result<Report> {
        let before = self.contents();
        let report = self.run(move |rt| async move {
            let mut phases = Vec::new();
            let options = CheckOptions { data, ..CheckOptions::default() };
            let report = check(&rt, files, &options, &mut |p: Progress| phases.push(p.phase)).await;
            assert!(report.is_err() || phases.contains(&Phase::Groups));
            report
        });
        assert!(self.contents() == before, "a check wrote");
        report
    }

    pub fn check(&self) -> Report {
        self.try_check(self.files(), true).expect("a pool")
    }

    /// The items of a dump.
    pub fn dump(&self, what: PoolStructure) -> Result<Vec<PoolItem>> {
        let files = self.files();
        self.run(move |rt| async move {
            let mut items = Vec::new();
            dump(&rt, files, &what, &mut |i| items.push(i)).await.map(|()| items)
        })
    }

    pub fn strike(&self, disk: usize, fault: Fault) {
        assert!(self.world().inject(self.0.files[disk].file, fault));
    }

    pub fn rot(&self, disk: usize, offset: u64) {
        self.strike(disk, Fault::BitRot { offset, len: SECTOR as u64 });
    }

    /// A block of the first disk.
    fn block(&self, offset: u64) -> Vec<u8> {
        self.world().contents(self.0.files[0].file, offset, BLOCK)
    }

    /// Writes a block to a disk.
    pub fn put_block(&self, disk: usize, offset: u64, block: Vec<u8>) {
        self.put(vec![(disk, offset)], block);
    }

    /// Writes a block to each of these disks.
    fn put(&self, places: Vec<(usize, u64)>, block: Vec<u8>) {
        let files = self.files();
        self.run(move |rt| async move {
            for (disk, offset) in places {
                let data = SliceList::from_iter([rt.bufs().copy_of(&block).freeze()]);
                let write = Op::Write { file: files[disk].file, offset, data, fua: true };
                rt.op(write).await.result.expect("write");
            }
        });
    }

    /// The newest superblock.
    pub fn superblock(&self) -> Superblock {
        let copies = (0..SLOTS).map(Superblock::offset_of).flat_map(|at| [at, at + BLOCK_U64]);
        let all = copies.filter_map(|at| Superblock::decode(&self.block(at)).ok());
        all.max_by_key(|sb| sb.sequence).expect("one of them")
    }

    pub fn geometry(&self) -> Geometry {
        Geometry::of(&self.superblock())
    }

    /// The newest version of a page that the newest superblock knows.
    pub fn committed(&self, kind: PageKind, page: u64) -> Version {
        let (sb, geometry) = (self.superblock(), self.geometry());
        let slots = (0..2).filter_map(|slot| {
            let id = PageId { pool_uuid: sb.pool_uuid, kind, page, slot };
            let offset = geometry.page_offset(page, slot);
            let block = self.block(offset);
            let (version, payload) = open_page(&id, &block).ok()?;
            let payload = payload.to_vec();
            let found = Version { offset, payload, id, version };
            (version.generation.0 <= sb.generation).then_some(found)
        });
        slots.max_by_key(|v| v.version).expect("one of them")
    }

    /// Writes another content in place of a version of a page, to all disks.
    pub fn put_page(&self, version: &Version, encode: impl FnOnce(&mut [u8])) {
        let mut block = vec![0; BLOCK];
        encode(payload_mut(&mut block));
        seal_page(&version.id, version.version, &mut block);
        let disks = 0..self.0.files.len();
        self.put(disks.map(|disk| (disk, version.offset)).collect(), block);
    }

    /// Where a page of the volume table is on the second disk.
    pub fn committed_page_of_volumes(&self) -> (usize, u64) {
        (1, self.committed(PageKind::Volumes, 0).offset)
    }

    /// The records of all groups.
    pub fn groups(&self) -> Vec<GroupRecord> {
        let g = self.geometry();
        let pages = g.volume_pages..g.table_pages();
        let page = |page: u32| self.committed(PageKind::Groups, page.into()).payload;
        pages.flat_map(|p| decode_groups(&page(p)).expect("whole")).collect()
    }

    /// The records of all volumes. They are in the first page.
    pub fn volumes(&self) -> Vec<VolumeRecord> {
        let page = self.committed(PageKind::Volumes, 0);
        decode_volumes(&page.payload).expect("whole").into_iter().flatten().collect()
    }

    /// A group in use that is partly used, and the first page of its bitmap.
    pub fn a_bitmap(&self, kind: GroupKind) -> (GroupId, Version) {
        let used = |g: &GroupRecord| g.kind == kind && g.used > 0 && g.used < 200;
        let group = self.groups().iter().position(used).expect("a group that is partly used");
        let group = GroupId(group as u32);
        (group, self.committed(PageKind::Bitmap, self.geometry().bitmap_page(group, 0)))
    }

    /// Makes a bit of a bitmap this, on all disks.
    pub fn flip(&self, kind: GroupKind, value: bool) -> GroupId {
        let (group, page) = self.a_bitmap(kind);
        let bits = self.geometry().bits_of_page(0) as usize;
        let mut map = Bitmap::new(bits);
        map.set_words(0, &decode_bitmap(&page.payload, bits).expect("whole"));
        let bit = map.find(0, !value).expect("such a bit");
        map.assign(bit, 1, value);
        self.put_page(&page, |payload| encode_bitmap(map.words(), payload));
        group
    }

    /// Allocates a block that nothing refers to, as a fault of the program would.
    pub fn leak(&self, kind: GroupKind) {
        let group = self.flip(kind, true);
        self.craft_group(group, |record| record.used += 1);
    }

    /// Enters what `change` makes of the record of a group, on all disks.
    pub fn craft_group(&self, group: GroupId, change: impl FnOnce(&mut GroupRecord)) {
        let page = self.geometry().page_of_group(group);
        let version = self.committed(PageKind::Groups, page.into());
        let mut records = decode_groups(&version.payload).expect("whole");
        change(&mut records[(group.0 % GROUPS_PER_PAGE) as usize]);
        self.put_page(&version, |payload| encode_groups(&records, payload));
    }

    /// The disks that have a block of the pool, and where.
    pub fn places(&self, addr: PoolAddr) -> Vec<(usize, u64)> {
        let items = self.dump(PoolStructure::Node(addr.0)).expect("a block");
        let place = |i: PoolItem| {
            let PoolItem::Copy { device, offset, .. } = i else { return None };
            Some((self.0.files.iter().position(|f| f.path == device)?, offset))
        };
        items.into_iter().filter_map(place).collect()
    }

    /// The volume "b", its root, and the leaf that this is.
    fn mapping_of_b(&self) -> (VolumeRecord, RootPtr, NodePage) {
        let b = self.volumes().into_iter().find(|v| v.name == "b").expect("there");
        let root = b.mapping.expect("not empty");
        let (disk, offset) = self.places(root.ptr.addr)[0];
        let bytes = self.world().contents(self.0.files[disk].file, offset, BLOCK);
        let r = NodeRef { ptr: root.ptr, level: 0, tree: mapping_tree_id(b.id) };
        (b, root, decode(&bytes, &r).expect("a leaf"))
    }

    /// Where the first block of the volume "b" is.
    pub fn first_of_b(&self) -> PoolAddr {
        let (_, _, leaf) = self.mapping_of_b();
        MappedExtent::decode(&leaf.key(0), leaf.value(0)).expect("an extent").addr
    }

    /// Enters what `change` makes of the first extent of "b" into its mapping, and rewrites all
    /// that is above it, so that all checksums are right.
    pub fn craft_mapping(&self, change: impl FnOnce(&mut MappedExtent)) {
        let (b, root, mut leaf) = self.mapping_of_b();
        let mut e = MappedExtent::decode(&leaf.key(0), leaf.value(0)).expect("an extent");
        change(&mut e);
        let key = mapping_key(e.lba);
        match leaf.search(&key) {
            Ok(i) => leaf.replace(i, &e.value()).expect("room"),
            Err(i) => leaf.insert(i, &key, &e.value()).expect("room"),
        }
        let mut block = vec![0; BLOCK];
        let NodePtr { addr, generation, .. } = root.ptr;
        let crc = leaf.seal(mapping_tree_id(b.id), generation, addr, &mut block);
        self.put(self.places(addr), block);
        let page = self.committed(PageKind::Volumes, 0);
        let mut records = decode_volumes(&page.payload).expect("whole");
        let record = records.iter_mut().flatten().find(|v| v.id == b.id).expect("there");
        record.mapping = Some(RootPtr { ptr: NodePtr { crc, ..root.ptr }, ..root });
        self.put_page(&page, |payload| encode_volumes(&records, payload));
    }
}

/// Writes blocks: of each the next byte.
pub async fn fill(pool: &Pool, volume: VolumeId, lba: u64, blocks: u64, byte: u8) {
    let mut buf = pool.bufs().take((blocks * BLOCK_U64) as usize);
    for (i, b) in buf.chunks_exact_mut(BLOCK).enumerate() {
        b.fill(byte.wrapping_add(i as u8));
    }
    pool.write(volume, Lba(lba), &buf.freeze()).await.expect("write");
}
