//! Reads an image by the offsets of docs/format.md alone, without any code of the pool: what is
//! written there is what is on the disk.

use crate::image;

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

struct Disk {
    bytes: Vec<u8>,
    data_start: usize,
    group_blocks: usize,
    volume_pages: usize,
    group_pages: usize,
    generation: usize,
    row: usize,
}

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    bytes[at..at + len].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))
}

fn big_endian(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |n, &b| n << 8 | usize::from(b))
}

fn is_sealed(block: &[u8]) -> bool {
    number(block, 4092, 4) == base::crc32c(&block[..4092]) as usize
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Disk {
    fn new(text: &str) -> (Disk, usize) {
        let mut bytes = vec![0; image::SIZE as usize];
        for (offset, block) in testkit::image_blocks(text) {
            bytes[offset as usize..][..BLOCK].copy_from_slice(&block);
        }
        let slots = (0..4).map(|slot| &bytes[(slot + 1) * 65536..][..BLOCK]);
        let newest = slots.clone().max_by_key(|b| number(b, 72, 8)).expect("four");
        for (slot, block) in slots.enumerate() {
            assert!(
                &block[..8] == b"FOREBAY1" && is_sealed(block) && number(block, 72, 8) % 4 == slot
            );
        }
        assert_eq!((number(newest, 8, 4), number(newest, 12, 4), number(newest, 32, 8)), (1, 1, 0));
        assert_eq!((number(newest, 114, 2), newest[116]), (image::DEVICES, image::DEVICES as u8));
        assert_eq!(&newest[192..192 + usize::from(newest[117])], b"golden");
        let row = number(newest, 112, 2);
        assert_eq!(newest[256 + row * 48..][..16], newest[56..72]);
        assert_eq!(newest[256 + row * 48 + 32], 1);
        assert!(number(newest, 120, 8) < number(newest, 80, 8));
        let (group_blocks, capacity) = (number(newest, 96, 4), number(newest, 100, 4));
        let (volume_pages, group_pages) = (number(newest, 104, 4), capacity.div_ceil(25));
        let pages = volume_pages + group_pages + capacity * group_blocks.div_ceil(32256);
        let data_start = (MIB + pages * 8192).next_multiple_of(MIB);
        let digest = number(newest, 88, 8);
        let generation = number(newest, 80, 8);
        (
            Disk { bytes, data_start, group_blocks, volume_pages, group_pages, generation, row },
            digest,
        )
    }

    /// The block of a page for which `counts` is true of its generation, the newest if there are
    /// two.
    fn page(&self, number_of_page: usize, kind: u8, counts: impl Fn(usize) -> bool) -> &[u8] {
        let slots =
            (0..2).map(|slot| &self.bytes[MIB + number_of_page * 8192 + slot * BLOCK..][..BLOCK]);
        let good = slots.filter(|b| &b[..4] == b"FBPG" && is_sealed(b) && counts(number(b, 16, 8)));
        let block = good.max_by_key(|b| number(b, 16, 8)).expect("a version that counts");
        assert_eq!((block[4], number(block, 8, 8)), (kind, number_of_page));
        block
    }

    fn table_page(&self, page: usize) -> &[u8] {
        let kind = if page < self.volume_pages { 1 } else { 2 };
        self.page(page, kind, |generation| generation <= self.generation)
    }

    fn group(&self, group: usize) -> &[u8] {
        &self.table_page(self.volume_pages + group / 25)[56 + group % 25 * 160..][..160]
    }

    /// A block, from this disk.
    fn block(&self, address: usize) -> &[u8] {
        let (group, block) = (address / self.group_blocks, address % self.group_blocks);
        let record = self.group(group);
        let chunks = (0..usize::from(record[1])).map(|i| &record[8 + i * 8..][..8]);
        let chunk =
            chunks.clone().find(|c| number(c, 0, 2) == self.row).expect("every disk has a copy");
        let generation = number(record, 56 + block / 32256 * 8, 8);
        let pages = self.group_blocks.div_ceil(32256);
        let page = self.volume_pages + self.group_pages + group * pages + block / 32256;
        let bits = &self.page(page, 3, |g| g == generation)[56..56 + 4032];
        assert!(bits[block % 32256 / 8] >> (block % 8) & 1 == 1, "block {address} is allocated");
        &self.bytes[self.data_start + (number(chunk, 4, 4) * self.group_blocks + block) * BLOCK..]
            [..BLOCK]
    }

    /// All records of the tree that a 24-byte reference is to.
    fn records(&self, tree: usize, reference: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut out = Vec::new();
        if reference[20] > 0 {
            self.node(tree, &reference[..20], reference[20] - 1, &mut out);
        }
        out
    }

    fn node(&self, tree: usize, pointer: &[u8], level: u8, out: &mut Vec<(Vec<u8>, Vec<u8>)>) {
        let block = self.block(number(pointer, 0, 8));
        assert_eq!(base::crc32c(block) as usize, number(pointer, 16, 4));
        assert!(&block[..4] == b"FBnd" && block[4] == level && number(block, 16, 8) == tree);
        assert!(block[24..32] == pointer[8..16] && block[32..40] == pointer[..8]);
        let (prefix, body) = (&block[40..40 + usize::from(block[5])], &block[72..]);
        let mut live = 0;
        for i in 0..number(block, 6, 2) {
            let at = number(body, i * 4, 2);
            assert!(at >= number(block, 8, 2));
            let (suffix_len, len) = (usize::from(body[at]), number(body, at + 1, 2));
            let (suffix, value) =
                (&body[at + 3..][..suffix_len], &body[at + 3 + suffix_len..][..len]);
            let head = [0, 1].map(|n| suffix.get(n).copied().unwrap_or(0));
            assert_eq!(number(body, i * 4 + 2, 2), big_endian(&head));
            live += 3 + suffix_len + len;
            if level > 0 {
                self.node(tree, value, level - 1, out);
            } else {
                out.push(([prefix, suffix].concat(), value.to_vec()));
            }
        }
        assert_eq!(live, number(block, 10, 2));
    }
}

#[test]
fn version_1_is_as_documented() {
    for text in crate::V1 {
        let (disk, digest) = Disk::new(text);
        let tables = disk.volume_pages + disk.group_pages;
        let sum = (0..tables).fold(0u64, |sum, page| {
            let generation = number(disk.table_page(page), 16, 8) as u64;
            sum.wrapping_add(mix(mix(page as u64 + 1) ^ generation))
        });
        assert_eq!(sum as usize, digest);
        let mut volumes = 0;
        for place in 0..disk.volume_pages * 21 {
            let record = &disk.table_page(place / 21)[56 + place % 21 * 192..][..192];
            if record[4] == 0 {
                continue;
            }
            volumes += 1;
            assert_eq!(record[4], 1);
            let id = number(record, 0, 4);
            let name =
                std::str::from_utf8(&record[48..48 + usize::from(record[6])]).expect("UTF-8");
            let (shift, size) = if name == "plain" { (9, 64 << 20) } else { (12, 1 << 30) };
            assert_eq!((record[5], number(record, 8, 8)), (shift, size));
            let mut found = std::collections::BTreeMap::new();
            for (key, value) in disk.records((1 << 32) + id, &record[24..48]) {
                for n in 0..number(&value, 6, 2) {
                    found.insert(big_endian(&key) + n, number(&value, 0, 6) + n);
                }
            }
            assert_eq!(found.len(), number(record, 16, 8));
            let mut want = vec![0; BLOCK];
            for lba in 0..1300 {
                let version = image::version(name, lba);
                assert_eq!(
                    found.contains_key(&(lba as usize)),
                    version > 0,
                    "block {lba} of {name}"
                );
                let Some(&address) = found.get(&(lba as usize)) else { continue };
                image::block(name, lba, version, &mut want);
                assert!(disk.block(address) == want, "block {lba} of {name}");
                assert_checksum(&disk, address, id, lba as usize, &want);
            }
        }
        assert_eq!(volumes, 2);
    }
}

fn assert_checksum(disk: &Disk, address: usize, volume: usize, lba: usize, content: &[u8]) {
    let (group, block) = (address / disk.group_blocks, address % disk.group_blocks);
    let records = disk.records((2 << 32) + group, &disk.group(group)[32..56]);
    let before = records.iter().rfind(|(key, _)| big_endian(key) <= block);
    let (key, value) = before.expect("a record that speaks of it");
    let n = block - big_endian(key);
    assert_eq!((number(value, 0, 4), number(value, 4, 8) + n), (volume, lba));
    assert_eq!(number(value, 12 + n * 4, 4), base::crc32c(content) as usize);
}
