//! Changes of the direct transaction, as records of the pool's host log.

use base::{Crc, Lba, PoolAddr, VolumeId};
use format::page::Chunk;
use smallvec::SmallVec;

use crate::space::Run;

/// Kinds of frames.
const MAP: u8 = 1;
const UNMAP: u8 = 2;
const DROP_CACHE: u8 = 3;

/// Blocks that were written, and the chunks in which they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlacedRun {
    pub run: Run,
    pub chunks: SmallVec<[Chunk; 3]>,
}

/// A change that was entered into the trees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LoggedChange {
    /// Blocks from `lba` on are what was written to these runs.
    Map { volume: VolumeId, lba: Lba, runs: Vec<PlacedRun>, crcs: Vec<Crc> },
    /// Blocks read as zeros.
    Unmap { volume: VolumeId, lba: Lba, end: Lba },
    /// The pool goes on without its cache: it has all that the cache had.
    DropCache,
}

impl LoggedChange {
    /// The kind of its frame; the payload is appended to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            LoggedChange::Map { volume, lba, runs, crcs } => {
                encode_map(out, *volume, *lba, runs.iter().map(|r| (r.run, &r.chunks[..])), crcs)
            }
            LoggedChange::Unmap { volume, lba, end } => {
                out.extend_from_slice(&volume.0.to_le_bytes());
                out.extend_from_slice(&lba.0.to_le_bytes());
                out.extend_from_slice(&end.0.to_le_bytes());
                UNMAP
            }
            LoggedChange::DropCache => DROP_CACHE,
        }
    }

    /// Decodes a record; `None`: it is none.
    pub fn decode(kind: u8, payload: &[u8]) -> Option<LoggedChange> {
        let mut from = RecordReader(payload);
        let logged = match kind {
            MAP => {
                let (volume, lba) = (VolumeId(from.u32()?), Lba(from.u64()?));
                let mut runs = Vec::new();
                let mut blocks = 0u64;
                for _ in 0..from.u16()? {
                    let run = Run { addr: PoolAddr(from.u64()?), len: from.u32()? };
                    blocks += u64::from(run.len);
                    let mut chunks = SmallVec::new();
                    for _ in 0..from.u8()? {
                        let (device, chunk) = (from.u16()?, from.u32()?);
                        chunks.push(Chunk { device, chunk, behind: from.u8()? != 0 });
                    }
                    runs.push(PlacedRun { run, chunks });
                }
                if blocks * 4 != from.0.len() as u64 {
                    return None;
                }
                let mut crcs = Vec::with_capacity(blocks as usize);
                while let Some(crc) = from.u32() {
                    crcs.push(crc);
                }
                LoggedChange::Map { volume, lba, runs, crcs }
            }
            UNMAP => LoggedChange::Unmap {
                volume: VolumeId(from.u32()?),
                lba: Lba(from.u64()?),
                end: Lba(from.u64()?),
            },
            DROP_CACHE => LoggedChange::DropCache,
            _ => return None,
        };
        from.0.is_empty().then_some(logged)
    }
}

/// As [`LoggedChange::encode`] of a [`LoggedChange::Map`], without making one.
pub(crate) fn encode_map<'a>(
    out: &mut Vec<u8>,
    volume: VolumeId,
    lba: Lba,
    runs: impl ExactSizeIterator<Item = (Run, &'a [Chunk])>,
    crcs: &[Crc],
) -> u8 {
    out.extend_from_slice(&volume.0.to_le_bytes());
    out.extend_from_slice(&lba.0.to_le_bytes());
    out.extend_from_slice(&(runs.len() as u16).to_le_bytes());
    for (run, chunks) in runs {
        out.extend_from_slice(&run.addr.0.to_le_bytes());
        out.extend_from_slice(&run.len.to_le_bytes());
        out.push(chunks.len() as u8);
        for c in chunks {
            out.extend_from_slice(&c.device.to_le_bytes());
            out.extend_from_slice(&c.chunk.to_le_bytes());
            out.push(c.behind.into());
        }
    }
    crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
    MAP
}

struct RecordReader<'a>(&'a [u8]);

impl RecordReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn records_come_back_as_they_were_and_nothing_else_does() {
        let run = |addr, len| PlacedRun {
            run: Run { addr: PoolAddr(addr), len },
            chunks: smallvec![Chunk::new(1, 5), Chunk { device: 2, chunk: 9, behind: true }],
        };
        let all = [
            LoggedChange::Map {
                volume: VolumeId(3),
                lba: Lba(1 << 30),
                runs: vec![run(7, 2), run(100, 1)],
                crcs: vec![1, 2, 3],
            },
            LoggedChange::Unmap { volume: VolumeId(4), lba: Lba(2), end: Lba(5) },
            LoggedChange::DropCache,
        ];
        for logged in &all {
            let mut payload = Vec::new();
            let kind = logged.encode(&mut payload);
            assert_eq!(LoggedChange::decode(kind, &payload).as_ref(), Some(logged));
            for short in 0..payload.len() {
                assert_eq!(LoggedChange::decode(kind, &payload[..short]), None, "{short} bytes");
            }
            payload.push(0);
            assert_eq!(LoggedChange::decode(kind, &payload), None);
            assert_eq!(LoggedChange::decode(99, &payload), None);
        }
    }
}
