//! What a device already holds, by the signatures of common formats: so that a pool is not made
//! over somebody's data unasked.
//!
//! Sources: util-linux's libblkid superblock probes, and each format's own documentation. Absence
//! of a signature proves nothing about the content; presence is reason enough to ask.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use format::cache::superblock as cache;
use format::superblock::{SLOT_STEP, SLOTS};

/// A signature that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// What it belongs to, for people.
    pub what: &'static str,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: usize,
}

/// A signature that stands at one place.
struct Fixed {
    what: &'static str,
    offset: u64,
    magic: &'static [u8],
}

const fn fixed(what: &'static str, offset: u64, magic: &'static [u8]) -> Fixed {
    Fixed { what, offset, magic }
}

const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const FOREBAY: &[u8] = b"FOREBAY1";
const FOREBAY_CACHE: &[u8] = b"FBCACHE1";
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
const GPT: &[u8] = b"EFI PART";
const BOOT: &[u8] = b"\x55\xaa";
const ZFS_UBERBLOCK: [u64; 2] = [0x00ba_b10c, 0x0cb1_ba00_0000_0000];

const FIXED: &[Fixed] = &[
    fixed("an XFS file system", 0, b"XFSB"),
    fixed("a btrfs file system", 0x10040, b"_BHRfS_M"),
    fixed("an f2fs file system", 0x400, b"\x10\x20\xf5\xf2"),
    fixed("an ISO 9660 image", 0x8001, b"CD001"),
    fixed("a squashfs file system", 0, b"hsqs"),
    fixed("a bcachefs file system", 0x1018, BCACHEFS),
    fixed("a bcache device", 0x1018, BCACHE),
    fixed("a LUKS encrypted device", 0, b"LUKS\xba\xbe"),
    fixed("a LUKS encrypted device", 0x4000, b"SKUL\xba\xbe"),
    fixed("a member of an md RAID", 0, MD),
    fixed("a member of an md RAID", 0x1000, MD),
    fixed("a swap area", 0xff6, b"SWAPSPACE2"),
    fixed("a swap area", 0xff6, b"SWAP-SPACE"),
    fixed("a swap area", 0xfff6, b"SWAPSPACE2"),
    fixed("an NTFS file system", 3, b"NTFS    "),
    fixed("an exFAT file system", 3, b"EXFAT   "),
    fixed("a FAT file system", 54, b"FAT12   "),
    fixed("a FAT file system", 54, b"FAT16   "),
    fixed("a FAT file system", 82, b"FAT32   "),
    fixed("a GPT partition table", 512, GPT),
    fixed("a GPT partition table", 4096, GPT),
    fixed("a qcow2 image", 0, b"QFI\xfb"),
    fixed("a VMDK image", 0, b"KDMV"),
    fixed("a VHDX image", 0, b"vhdxfile"),
];

/// What a device of a pool is called.
const A_POOL: &str = "a Forebay pool";
/// What a cache is called.
pub const A_CACHE: &str = "a Forebay cache";

/// All signatures on a device of `size_bytes`. A range that cannot be read holds none.
pub fn find(file: &File, size_bytes: u64) -> Vec<Signature> {
    let probe = Probe { file, size_bytes };
    let mut found = Vec::new();
    for slot in 0..SLOTS {
        found.extend(probe.magic(A_POOL, SLOT_STEP * (slot + 1), FOREBAY));
    }
    for slot in 0..cache::SLOTS {
        found.extend(probe.magic(A_CACHE, cache::SLOT_STEP * (slot + 1), FOREBAY_CACHE));
    }
    found.extend(FIXED.iter().filter_map(|f| probe.magic(f.what, f.offset, f.magic)));
    found.extend(probe.ext());
    found.extend((0..4).filter_map(|sector| probe.lvm(sector * 512)));
    found.extend(probe.at_end());
    found.extend(probe.zfs());
    // Every boot sector ends like a partition table.
    if !found.iter().any(|s| s.what.contains("FAT") || s.what.contains("NTFS")) {
        found.extend(probe.magic("an MBR partition table", 510, BOOT));
    }
    found
}

/// Whether a device holds a superblock of a pool, or what is left of one. One that cannot be read
/// may hold one.
pub fn of_pool(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let readable = file.read_at(&mut [0; 4096], SLOT_STEP).is_ok();
    // What stands at the end does not matter.
    !readable || find(&file, 0).iter().any(|one| one.what == A_POOL)
}

/// Overwrites the signatures with zeros, durably.
pub fn wipe(file: &File, found: &[Signature]) -> io::Result<()> {
    for s in found {
        file.write_all_at(&vec![0; s.len], s.offset)?;
    }
    file.sync_all()
}

/// What was found, each kind once, as a list for people.
pub fn describe(found: &[Signature]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    for s in found {
        if !kinds.contains(&s.what) {
            kinds.push(s.what);
        }
    }
    kinds.join(", ")
}

struct Probe<'a> {
    file: &'a File,
    size_bytes: u64,
}

impl Probe<'_> {
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn magic(&self, what: &'static str, offset: u64, magic: &[u8]) -> Option<Signature> {
        let same = self.read(offset, magic.len())? == magic;
        same.then_some(Signature { what, offset, len: magic.len() })
    }

    /// Magic 0xef53 at 0x38 of the superblock at 1024; features tell the versions apart.
    fn ext(&self) -> Option<Signature> {
        let superblock = self.read(0x400, 0x68)?;
        let word = |at: usize| {
            superblock[at..at + 4].iter().rev().fold(0u32, |word, &b| word << 8 | u32::from(b))
        };
        if superblock[0x38..0x3a] != [0x53, 0xef] {
            return None;
        }
        const HAS_JOURNAL: u32 = 0x4;
        const EXTENTS_64BIT_FLEX_BG: u32 = 0x40 | 0x80 | 0x200;
        let what = match (word(0x5c) & HAS_JOURNAL != 0, word(0x60) & EXTENTS_64BIT_FLEX_BG != 0) {
            (_, true) => "an ext4 file system",
            (true, false) => "an ext3 file system",
            (false, false) => "an ext2 file system",
        };
        Some(Signature { what, offset: 0x438, len: 2 })
    }

    /// `LABELONE` at the beginning of one of the first four sectors, type `LVM2 001` at 24.
    fn lvm(&self, offset: u64) -> Option<Signature> {
        let label = self.read(offset, 32)?;
        let same = label.starts_with(b"LABELONE") && &label[24..] == b"LVM2 001";
        same.then_some(Signature { what: "an LVM physical volume", offset, len: 32 })
    }

    /// md 0.90 and 1.0 stand at the end of their device, and so does the backup of a GPT.
    fn at_end(&self) -> Vec<Signature> {
        let md_1_0 = (self.size_bytes / 512).checked_sub(16).map(|sectors| (sectors & !7) * 512);
        let md_0_90 = (self.size_bytes & !0xffff).checked_sub(0x10000);
        let gpt = [512, 4096].map(|sector| self.size_bytes.checked_sub(sector));
        let md =
            [md_1_0, md_0_90].into_iter().flatten().map(|at| ("a member of an md RAID", at, MD));
        let gpt =
            gpt.into_iter().flatten().map(|at| ("the backup of a GPT partition table", at, GPT));
        md.chain(gpt).filter_map(|(what, at, magic)| self.magic(what, at, magic)).collect()
    }

    /// Four labels of 256 KiB, two at each end; the second half of each is a ring of uberblocks, at
    /// least 1 KiB apart.
    fn zfs(&self) -> Vec<Signature> {
        const LABEL: u64 = 256 << 10;
        const RING: u64 = 128 << 10;
        let end = self.size_bytes & !(LABEL - 1);
        let labels = [Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
        let mut found = Vec::new();
        for ring in labels.into_iter().flatten().map(|label| label + RING) {
            let Some(bytes) = self.read(ring, RING as usize) else { continue };
            for (i, uberblock) in bytes.chunks_exact(1024).enumerate() {
                let magic =
                    uberblock[..8].iter().rev().fold(0u64, |word, &b| word << 8 | u64::from(b));
                if ZFS_UBERBLOCK.contains(&magic) {
                    found.push(Signature {
                        what: "a ZFS pool",
                        offset: ring + i as u64 * 1024,
                        len: 8,
                    });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4 << 20;

    fn device(pieces: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        for (at, bytes) in pieces {
            file.write_all_at(bytes, *at).unwrap();
        }
        file
    }

    #[test]
    fn nothing_is_found_on_nothing() {
        assert_eq!(find(&device(&[]), SIZE), []);
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(find(&empty, 0), []);
        assert_eq!(find(&device(&[(1 << 20, &[0x5a; 5000])]), SIZE), []);
    }

    #[test]
    fn every_signature_is_found_named_and_wiped() {
        let mut lvm = *b"LABELONE................LVM2 001";
        lvm[8..24].fill(0);
        let mut cases: Vec<(&str, u64, Vec<u8>)> =
            FIXED.iter().map(|f| (f.what, f.offset, f.magic.to_vec())).collect();
        cases.push(("a Forebay pool", 0x10000, FOREBAY.to_vec()));
        cases.push(("a Forebay pool", 0x40000, FOREBAY.to_vec()));
        cases.push((A_CACHE, 0x4000, FOREBAY_CACHE.to_vec()));
        cases.push((A_CACHE, 0x10000, FOREBAY_CACHE.to_vec()));
        cases.push(("an ext2 file system", 0x438, vec![0x53, 0xef]));
        cases.push(("an LVM physical volume", 512, lvm.to_vec()));
        cases.push(("a member of an md RAID", SIZE - 8192, MD.to_vec()));
        cases.push(("a member of an md RAID", SIZE - 65536, MD.to_vec()));
        cases.push(("the backup of a GPT partition table", SIZE - 512, GPT.to_vec()));
        cases.push(("a ZFS pool", (128 << 10) + 5 * 1024, vec![0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]));
        cases.push(("a ZFS pool", SIZE - (128 << 10), vec![0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]));
        cases.push(("an MBR partition table", 510, BOOT.to_vec()));
        for (what, offset, magic) in cases {
            let file = device(&[(offset, &magic)]);
            let found = find(&file, SIZE);
            assert_eq!(describe(&found), what, "at {offset}");
            wipe(&file, &found).unwrap();
            assert_eq!(find(&file, SIZE), [], "{what} is left at {offset}");
        }
    }

    #[test]
    fn versions_of_ext_are_told_apart() {
        let magic: (u64, &[u8]) = (0x438, &[0x53, 0xef]);
        let journal: (u64, &[u8]) = (0x45c, &[4]);
        let extents: (u64, &[u8]) = (0x460, &[0x40]);
        assert_eq!(describe(&find(&device(&[magic, journal]), SIZE)), "an ext3 file system");
        assert_eq!(
            describe(&find(&device(&[magic, journal, extents]), SIZE)),
            "an ext4 file system"
        );
    }

    #[test]
    fn a_boot_sector_is_no_partition_table() {
        let fat = device(&[(510, BOOT), (82, b"FAT32   ")]);
        assert_eq!(describe(&find(&fat, SIZE)), "a FAT file system");
        let both = device(&[(510, BOOT), (512, GPT), (SIZE - 512, GPT)]);
        let text = describe(&find(&both, SIZE));
        assert_eq!(
            text,
            "a GPT partition table, the backup of a GPT partition table, an MBR partition table"
        );
    }
}
