//! Changes of a seed, as libFuzzer makes them, without what it knows of coverage.

use base::Prng;

/// The longest input.
pub const MAX_LEN: usize = 8 << 10;

const NUMBERS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];

/// Changes `bytes` in one to eight places; `other` is another seed.
pub fn mutate(rng: &mut Prng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(8) {
        once(rng, bytes, other);
    }
    bytes.truncate(MAX_LEN);
}

fn once(rng: &mut Prng, bytes: &mut Vec<u8>, other: &[u8]) {
    let len = bytes.len() as u64;
    // Most of what counts stands at the beginning.
    let near = |rng: &mut Prng, len: u64| {
        let within = if rng.one_in(2) { len.min(64) } else { len };
        if within == 0 { 0 } else { rng.below(within) as usize }
    };
    let at = near(rng, len);
    match rng.below(8) {
        0 if len > 0 => bytes[at] ^= 1 << rng.below(8),
        1 if len > 0 => bytes[at] = rng.next_u64() as u8,
        2 => bytes.insert(at, rng.next_u64() as u8),
        3 => bytes.truncate(at),
        4 => {
            let end = at + near(rng, len - at as u64);
            drop(bytes.drain(at..end));
        }
        5 => {
            let end = (at + 1 + near(rng, 64)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            let to = near(rng, len);
            drop(bytes.splice(to..to, copy));
        }
        6 => {
            let width = 1 << rng.below(4);
            let mut number = NUMBERS[rng.below(NUMBERS.len() as u64) as usize].to_le_bytes();
            if rng.one_in(2) {
                number[..width].reverse();
            }
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        _ => {
            let from = near(rng, other.len() as u64);
            let end = (from + 1 + near(rng, 256)).min(other.len());
            let to = (at + (end - from)).min(bytes.len());
            drop(bytes.splice(at..to, other[from..end].iter().copied()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_of_the_generator_changes_something_and_stays_short() {
        for len in [0, 1, 7, 4096, 2 * MAX_LEN] {
            let mut changed = 0;
            for seed in 0..1000 {
                let mut bytes = vec![5; len];
                mutate(&mut Prng::new(seed), &mut bytes, b"other");
                assert!(bytes.len() <= MAX_LEN);
                changed += u32::from(bytes != vec![5; len]);
            }
            assert!(changed > 700, "{changed} of 1000 of {len} bytes");
        }
    }
}
