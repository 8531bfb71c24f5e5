//! What is in a golden image: a story, as text beside the image. A reader of the image replays
//! the story on plain bytes, and knows what each volume must hold.
//!
//! ```text
//! volume NAME SIZE SECTOR MODE IOPS BYTES-PER-SECOND READ-ONLY    0: no limit; 1: read-only
//! write NAME OFFSET LENGTH TAG
//! discard NAME OFFSET LENGTH
//! zeroes NAME OFFSET LENGTH
//! ```
//!
//! A write puts its tag into each byte. But the first eight bytes of the write, and of each block
//! in it, are their own offset in the volume, little-endian. Everything else of a volume is zeros.

use std::collections::BTreeMap;

use base::{BLOCK_U64, Slice};
use volume::Volume;

/// One line of a story that changes what a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step<'a> {
    pub does: Does,
    pub volume: &'a str,
    pub offset: u64,
    pub len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    Write(u8),
    Discard,
    Zeroes,
}

/// What a volume is, besides what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About<'a> {
    pub name: &'a str,
    pub size: u64,
    pub sector: u32,
    pub mode: &'a str,
    pub iops: u32,
    pub bytes_per_second: u64,
    pub read_only: bool,
}

pub fn write(volume: &str, offset: u64, len: u64, tag: u8) -> Step<'_> {
    Step { does: Does::Write(tag), volume, offset, len }
}

pub fn discard(volume: &str, offset: u64, len: u64) -> Step<'_> {
    Step { does: Does::Discard, volume, offset, len }
}

pub fn zeroes(volume: &str, offset: u64, len: u64) -> Step<'_> {
    Step { does: Does::Zeroes, volume, offset, len }
}

impl Step<'_> {
    /// What a write has; all zeros else.
    fn bytes(&self) -> Vec<u8> {
        let Does::Write(tag) = self.does else { return vec![0; self.len as usize] };
        let mut bytes = vec![tag; self.len as usize];
        for at in (0..self.len).filter(|at| *at == 0 || (self.offset + at) % BLOCK_U64 == 0) {
            let stamp = (self.offset + at).to_le_bytes();
            let end = bytes.len().min(at as usize + stamp.len());
            bytes[at as usize..end].copy_from_slice(&stamp[..end - at as usize]);
        }
        bytes
    }

    /// Does it.
    #[allow(dead_code, reason = "the example makes images, the test reads them")]
    pub async fn take(&self, volume: &Volume) {
        let outcome = match self.does {
            Does::Write(_) => {
                let mut buf = base::BufPool::new(0).take(self.len as usize);
                buf.copy_from_slice(&self.bytes());
                let data: Slice = buf.freeze();
                volume.write(self.offset, data).await
            }
            Does::Discard => volume.discard(self.offset, self.len).await,
            Does::Zeroes => volume.write_zeroes(self.offset, self.len, false, None).await,
        };
        outcome.unwrap_or_else(|e| panic!("{self:?}: {e}"));
    }

    #[allow(dead_code, reason = "the example makes images, the test reads them")]
    pub fn text(&self) -> String {
        let (verb, tag) = match self.does {
            Does::Write(tag) => ("write", format!(" {tag}")),
            Does::Discard => ("discard", String::new()),
            Does::Zeroes => ("zeroes", String::new()),
        };
        format!("{verb} {} {} {}{tag}\n", self.volume, self.offset, self.len)
    }
}

impl About<'_> {
    #[allow(dead_code, reason = "the example makes images, the test reads them")]
    pub fn text(&self) -> String {
        let limits = format!("{} {}", self.iops, self.bytes_per_second);
        let (name, read_only) = (self.name, u8::from(self.read_only));
        format!("volume {name} {} {} {} {limits} {read_only}\n", self.size, self.sector, self.mode)
    }
}

/// All that a story tells: of each volume what it is, and what it holds.
pub fn told(story: &str) -> BTreeMap<&str, (About<'_>, Vec<u8>)> {
    let mut volumes = BTreeMap::new();
    for line in story.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let n = |i: usize| words[i].parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
        let name = words[1];
        let does = match words[0] {
            "volume" => {
                let about = About {
                    name,
                    size: n(2),
                    sector: n(3) as u32,
                    mode: words[4],
                    iops: n(5) as u32,
                    bytes_per_second: n(6),
                    read_only: n(7) == 1,
                };
                volumes.insert(name, (about, vec![0; n(2) as usize]));
                continue;
            }
            "write" => Does::Write(n(4) as u8),
            "discard" => Does::Discard,
            "zeroes" => Does::Zeroes,
            _ => panic!("{line}"),
        };
        let step = Step { does, volume: name, offset: n(2), len: n(3) };
        let held = &mut volumes.get_mut(name).unwrap_or_else(|| panic!("{line}: no volume")).1;
        held[step.offset as usize..][..step.len as usize].copy_from_slice(&step.bytes());
    }
    volumes
}
