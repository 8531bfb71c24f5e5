//! The doorkeeper: a block is promoted when it is read a second time.

use base::{Lba, VolumeId};

/// Remembers, by a fixed number of fingerprints, what was read lately.
pub(crate) struct Doorkeeper(Vec<u32>);

impl Doorkeeper {
    pub fn new(entries: usize) -> Doorkeeper {
        Doorkeeper(vec![0; entries.next_power_of_two()])
    }

    /// Notes a read that begins with this block. Returns true if one was noted before, as far as is
    /// remembered.
    pub fn touch(&mut self, volume: VolumeId, lba: Lba) -> bool {
        let hash = base::prng::mix64(base::prng::mix64(u64::from(volume.0) + 1) ^ lba.0);
        let (place, print) = (hash as usize & (self.0.len() - 1), (hash >> 32) as u32 | 1);
        let before = std::mem::replace(&mut self.0[place], print);
        before == print
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: VolumeId = VolumeId(1);

    #[test]
    fn the_second_touch() {
        let mut t = Doorkeeper::new(1 << 10);
        assert!(!t.touch(V, Lba(7)));
        assert!(t.touch(V, Lba(7)));
        assert!(!t.touch(VolumeId(2), Lba(7)));
    }
}
