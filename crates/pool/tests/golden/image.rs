//! Golden images: what is in them, and the text they are kept as.
//!
//! An image is one text file a device. Its first line is `size BYTES`; every other line is a block
//! that is not all zeros: its offset, then its bytes from the start, as hexadecimal digits or as
//! `hh*n`, n times the byte hh.

use base::{BLOCK, BLOCK_U64, Lba, SliceList};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{FileId, Op, Order, Rt};
use sim::{DiskModel, World};

/// Devices, and copies of each block.
pub const DEVICES: usize = 2;
/// Bytes of each.
pub const SIZE: u64 = 12 << 20;
/// Runs of fewer equal bytes stand as they are.
const SHORTEST_RUN: usize = 6;

/// What block `lba` of a volume holds: which version was written last; 0: a hole.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn version(volume: &str, lba: u64) -> u64 {
    match (volume, lba) {
        ("plain", 0..40) => 2,
        ("plain", 100..200) => 0,
        ("plain", 0..1200) if lba % 2 == 0 => 1,
        ("other", 1000..1100) => 1,
        _ => 0,
    }
}

/// The content of a block.
pub fn block(volume: &str, lba: u64, version: u64, out: &mut [u8]) {
    out.fill(0);
    if version > 0 {
        out.fill((lba % 251) as u8);
        out[..8].copy_from_slice(&lba.to_le_bytes());
        out[8] = version as u8;
        out[9] = volume.as_bytes()[0];
    }
}

/// The devices of a world with [`DEVICES`] disks.
pub fn files() -> Vec<DeviceFile> {
    let file = |n: u32| DeviceFile { path: format!("disk{n}"), file: FileId(n), size_bytes: SIZE };
    (0..DEVICES as u32).map(file).collect()
}

/// Runs `f` in a boot of `world`.
pub fn boot<T: 'static, F: Future<Output = T> + 'static>(
    world: &World,
    f: impl FnOnce(Rt) -> F,
) -> T {
    let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
    let out = rt.block_on(f(rt.clone())).expect("it was not killed");
    rt.kill();
    out
}

/// Makes the pool that [`version`] tells of.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn make() -> World {
    let world = World::new(1);
    for _ in 0..DEVICES {
        world.add_disk(DiskModel::nvme(SIZE));
    }
    boot(&world, |rt| async move {
        let options = CreateOptions {
            name: "golden".into(),
            copies: DEVICES as u8,
            group_bytes: Some(1 << 20),
        };
        let ids: Vec<[u8; 16]> = (0..=DEVICES as u8).map(|i| [0xA0 + i; 16]).collect();
        pool::create(&rt, &files(), &options, &ids).await.expect("create");
        let (pool, _) = Pool::open(&rt, files(), Settings::default()).await.expect("open");
        let plain = pool.create_volume("plain", 64 << 20, 512).await.expect("volume");
        let gone = pool.create_volume("gone", 1 << 30, 4096).await.expect("volume");
        let other = pool.create_volume("other", 1 << 30, 4096).await.expect("volume");
        let write = async |id, name: &str, lba: u64, version| {
            let mut buf = rt.bufs().take(BLOCK);
            block(name, lba, version, &mut buf);
            pool.write(id, Lba(lba), &buf.freeze()).await.expect("write");
        };
        for lba in (0..1200).step_by(2) {
            write(plain, "plain", lba, 1).await;
        }
        for lba in 0..100 {
            write(gone, "gone", lba, 1).await;
        }
        pool.commit().await.expect("commit");
        for lba in 0..40 {
            write(plain, "plain", lba, 2).await;
        }
        pool.discard(plain, Lba(100), Lba(200)).await.expect("discard");
        pool.delete_volume(gone).await.expect("delete");
        for lba in 1000..1100 {
            write(other, "other", lba, 1).await;
        }
        pool.close().await.expect("close");
    });
    world
}

/// A device as text.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn to_text(world: &World, disk: FileId) -> String {
    let mut out = format!("size {SIZE}\n");
    for offset in (0..SIZE).step_by(BLOCK) {
        let bytes = world.contents(disk, offset, BLOCK);
        if bytes.iter().all(|&b| b == 0) {
            continue;
        }
        out.push_str(&offset.to_string());
        let mut literal = false;
        for run in bytes.chunk_by(|a, b| a == b) {
            if run.len() >= SHORTEST_RUN {
                out.push_str(&format!(" {:02x}*{}", run[0], run.len()));
                literal = false;
                continue;
            }
            if !literal {
                out.push(' ');
            }
            literal = true;
            run.iter().for_each(|b| out.push_str(&format!("{b:02x}")));
        }
        out.push('\n');
    }
    out
}

/// Writes a device's text to a new disk of `world`.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn from_text(world: &World, text: &str) {
    let mut lines = text.lines();
    let size = lines
        .next()
        .and_then(|l| l.strip_prefix("size "))
        .expect("its size")
        .parse()
        .expect("a number");
    let file = world.add_disk(DiskModel::nvme(size));
    let blocks: Vec<(u64, Vec<u8>)> = lines.map(parse_line).collect();
    boot(world, |rt| async move {
        for (offset, bytes) in blocks {
            assert_eq!((bytes.len(), offset % BLOCK_U64), (BLOCK, 0));
            let data = SliceList::from_iter([rt.bufs().copy_of(&bytes).freeze()]);
            rt.op(Op::Write { file, offset, data, fua: true }).await.result.expect("write");
        }
    });
}

/// A line of an image: offset and bytes.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn parse_line(line: &str) -> (u64, Vec<u8>) {
    let mut words = line.split(' ');
    let offset = words.next().expect("an offset").parse().expect("a number");
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("hexadecimal digits");
    let mut bytes = Vec::with_capacity(BLOCK);
    for word in words {
        match word.split_once('*') {
            Some((hex, n)) => {
                bytes.resize(bytes.len() + n.parse::<usize>().expect("a number"), byte(hex))
            }
            None => bytes.extend((0..word.len() / 2).map(|i| byte(&word[2 * i..2 * i + 2]))),
        }
    }
    (offset, bytes)
}
