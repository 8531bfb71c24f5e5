//! A fixed-length bitmap that is searched a word at a time.

/// A bitmap of a fixed number of bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

impl Bitmap {
    /// Returns a bitmap of `len` clear bits.
    pub fn new(len: usize) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64)], len }
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bits at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bit `i`. Panics if `i` is not below [`Bitmap::len`].
    pub fn get(&self, i: usize) -> bool {
        assert!(i < self.len);
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Sets or clears the bits `[start, start + n)` and returns how many of them changed. Panics if
    /// the range reaches past the end.
    pub fn assign(&mut self, start: usize, n: usize, value: bool) -> usize {
        assert!(start + n <= self.len, "bits [{start}, {start} + {n}) of {}", self.len);
        let mut changed = 0;
        let (mut i, end) = (start, start + n);
        while i < end {
            let bit = i % 64;
            let take = (64 - bit).min(end - i);
            let mask = if take == 64 { u64::MAX } else { ((1u64 << take) - 1) << bit };
            let w = &mut self.words[i / 64];
            let new = if value { *w | mask } else { *w & !mask };
            changed += (*w ^ new).count_ones() as usize;
            *w = new;
            i += take;
        }
        changed
    }

    /// Number of set bits.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The first bit at or after `from` that equals `value`.
    pub fn find(&self, from: usize, value: bool) -> Option<usize> {
        if from >= self.len {
            return None;
        }
        let flip = if value { 0 } else { u64::MAX };
        let mut w = from / 64;
        let mut word = (self.words[w] ^ flip) & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                let i = w * 64 + word.trailing_zeros() as usize;
                return (i < self.len).then_some(i);
            }
            w += 1;
            word = *self.words.get(w)? ^ flip;
        }
    }

    /// The first run of clear bits at or after `from`, as (start, length). The length is at most
    /// `max`.
    pub fn find_free_run(&self, from: usize, max: usize) -> Option<(usize, usize)> {
        let start = self.find(from, false)?;
        let end = self.find(start, true).unwrap_or(self.len).min(start + max);
        Some((start, end - start))
    }

    /// The bits as 64-bit words, least significant bit first. Bits past the end are clear.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Overwrites the words from word `at` on. Panics if the words reach past the end, or if a bit
    /// past the end is set.
    pub fn set_words(&mut self, at: usize, words: &[u64]) {
        self.words[at..at + words.len()].copy_from_slice(words);
        let spare = self.len % 64;
        assert!(
            spare == 0 || self.words.last().is_none_or(|w| w >> spare == 0),
            "a bit past the end"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_vector_of_bools(
            len in 1usize..300,
            ops in proptest::collection::vec((0usize..300, 0usize..120, any::<bool>()), 1..40),
        ) {
            let mut b = Bitmap::new(len);
            let mut model = vec![false; len];
            for (start, n, value) in ops {
                let start = start % len;
                let n = n.min(len - start);
                let want = model[start..start + n].iter().filter(|&&x| x != value).count();
                prop_assert_eq!(b.assign(start, n, value), want);
                model[start..start + n].fill(value);
                prop_assert_eq!(b.count(), model.iter().filter(|&&x| x).count());
                for from in 0..=len {
                    for v in [false, true] {
                        prop_assert_eq!(b.find(from, v), (from..len).find(|&i| model[i] == v));
                    }
                }
            }
            let mut again = Bitmap::new(len);
            again.set_words(0, b.words());
            prop_assert_eq!(again, b);
        }
    }

    #[test]
    fn free_runs_are_found_and_bounded() {
        let mut b = Bitmap::new(100);
        b.assign(0, 100, true);
        b.assign(60, 10, false);
        assert_eq!(b.find_free_run(0, 64), Some((60, 10)));
        assert_eq!(b.find_free_run(65, 3), Some((65, 3)));
        assert_eq!(b.find_free_run(70, 3), None);
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn words_with_a_bit_past_the_end_are_refused() {
        Bitmap::new(3).set_words(0, &[8]);
    }
}
