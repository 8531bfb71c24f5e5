//! The content of writes: every sector says which write of which volume it belongs to, so that a
//! wrong one explains itself.
//!
//! A sector is 64 little-endian words: magic and volume, sector, write, then words that follow from
//! these three. From one alone it is known whether it is whole, and where it should be.

use base::SECTOR;
use base::prng::mix64;

const MAGIC: u64 = 0xF0BA_70A7;
const ZEROS: [u8; SECTOR] = [0; SECTOR];
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fills `bytes`, whole sectors, as write number `write` of `volume` does from sector `first` on.
pub fn fill(bytes: &mut [u8], volume: u32, first: u64, write: u64) {
    for (i, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        encode(sector, volume, first + i as u64, write);
    }
}

fn encode(sector: &mut [u8], volume: u32, number: u64, write: u64) {
    let head = [MAGIC << 32 | u64::from(volume), number, write];
    let key = mix64(head[0] ^ mix64(number ^ mix64(write)));
    for (i, word) in sector.chunks_exact_mut(8).enumerate() {
        let value = if i < 3 { head[i] } else { key ^ (i as u64).wrapping_mul(STEP) };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The volume and the sector whose content this is, as its head says; `None` if it is no content.
pub fn place_of(sector: &[u8]) -> Option<(u32, u64)> {
    let head = word(sector, 0);
    (head >> 32 == MAGIC).then(|| (head as u32, word(sector, 1)))
}

fn word(sector: &[u8], i: usize) -> u64 {
    sector[i * 8..i * 8 + 8].iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b))
}

/// The content of a sector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SectorContent {
    /// Zeros, as of a sector that was never written.
    Zero,
    /// The content that this write wrote to this sector of this volume.
    Write(u64),
    /// Something that was never written there; in words.
    Wrong(String),
}

/// Says what `sector` holds, which was read as sector `number` of `volume`.
pub fn identify(sector: &[u8], volume: u32, number: u64) -> SectorContent {
    if sector == ZEROS {
        return SectorContent::Zero;
    }
    let word = |i: usize| word(sector, i);
    if word(0) >> 32 != MAGIC {
        return SectorContent::Wrong(format!(
            "no content of any volume: it begins with {:016x} {:016x}",
            word(0),
            word(1)
        ));
    }
    let (of, at, write) = (word(0) as u32, word(1), word(2));
    let mut expected = [0; SECTOR];
    encode(&mut expected, of, at, write);
    if let Some(byte) = (0..SECTOR).find(|&i| sector != expected && sector[i] != expected[i]) {
        return SectorContent::Wrong(format!(
            "damaged from byte {byte} on: it begins as write {write} of sector {at} of volume {of}"
        ));
    }
    if (of, at) != (volume, number) {
        return SectorContent::Wrong(format!(
            "what write {write} wrote to sector {at} of volume {of}"
        ));
    }
    SectorContent::Write(write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_say_what_they_are() {
        let mut bytes = vec![0; 3 * SECTOR];
        assert_eq!(identify(&bytes[..SECTOR], 7, 100), SectorContent::Zero);
        fill(&mut bytes, 7, 100, 42);
        for i in 0..3 {
            let sector = &bytes[i * SECTOR..][..SECTOR];
            assert_eq!(identify(sector, 7, 100 + i as u64), SectorContent::Write(42));
            assert_eq!(place_of(sector), Some((7, 100 + i as u64)));
        }
        assert_eq!(place_of(&[0; SECTOR]), None);
        let wrong = |f: SectorContent, text: &str| {
            assert!(matches!(&f, SectorContent::Wrong(t) if t.contains(text)), "{f:?}")
        };
        wrong(identify(&bytes[..SECTOR], 7, 101), "sector 100 of volume 7");
        wrong(identify(&bytes[..SECTOR], 8, 100), "write 42");
        bytes[300] ^= 1;
        wrong(identify(&bytes[..SECTOR], 7, 100), "damaged from byte 300");
        bytes[7] ^= 1;
        wrong(identify(&bytes[..SECTOR], 7, 100), "no content");
    }
}
