//! Golden images: devices as text, as they are kept in the repository.
//!
//! An image is one text file a device. Its first line is `size BYTES`; every other line is a block
//! that is not all zeros: its offset, then its bytes from the start, as hexadecimal digits or as
//! `hh*n`, n times the byte hh.

use std::fmt::Write;

use base::{BLOCK, BLOCK_U64, SliceList};
use rt::{FileId, Op, Order};
use sim::{DiskModel, World};

use crate::setup::boot;

/// Runs of fewer equal bytes stand as they are.
const SHORTEST_RUN: usize = 6;

/// What a disk of `world` holds durably, as text.
pub fn image_of(world: &World, disk: FileId, size_bytes: u64) -> String {
    let mut out = format!("size {size_bytes}\n");
    for offset in (0..size_bytes).step_by(BLOCK) {
        let bytes = world.contents(disk, offset, BLOCK);
        if bytes.iter().all(|&b| b == 0) {
            continue;
        }
        out.push_str(&offset.to_string());
        let mut literal = false;
        for run in bytes.chunk_by(|a, b| a == b) {
            if run.len() >= SHORTEST_RUN {
                write!(out, " {:02x}*{}", run[0], run.len()).expect("a string takes all");
                literal = false;
                continue;
            }
            if !literal {
                out.push(' ');
            }
            literal = true;
            run.iter().for_each(|b| write!(out, "{b:02x}").expect("a string takes all"));
        }
        out.push('\n');
    }
    out
}

/// The bytes of the device that an image is of.
pub fn image_size(text: &str) -> u64 {
    let first = text.lines().next().and_then(|l| l.strip_prefix("size "));
    first.expect("its size").parse().expect("a number")
}

/// The blocks of an image: offset and bytes of each.
pub fn image_blocks(text: &str) -> impl Iterator<Item = (u64, Vec<u8>)> {
    text.lines().skip(1).map(parse_line)
}

/// Adds a disk to `world` that holds what an image says.
pub fn disk_of_image(world: &World, text: &str) -> FileId {
    let file = world.add_disk(DiskModel::nvme(image_size(text)));
    let blocks: Vec<(u64, Vec<u8>)> = image_blocks(text).collect();
    let put = async move |rt: rt::Rt| {
        for (offset, bytes) in blocks {
            assert_eq!((bytes.len(), offset % BLOCK_U64), (BLOCK, 0), "a whole block");
            let data = SliceList::from_iter([rt.bufs().copy_of(&bytes).freeze()]);
            rt.op(Op::Write { file, offset, data, fua: true }).await.result.expect("write");
        }
    };
    boot(world.backend(), Order::Fifo, put).expect("alive");
    file
}

fn parse_line(line: &str) -> (u64, Vec<u8>) {
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
