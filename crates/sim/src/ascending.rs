//! Whether parts of a disk are written in ascending order, as a zoned device demands.

use std::collections::BTreeMap;

/// A part of a disk that is being filled: its first byte, and the first behind it.
pub type Place = (u64, u64);

#[derive(Default)]
struct Part {
    number: u64,
    /// The first byte behind what was written.
    at: u64,
    /// The ranges that were written, joined.
    written: BTreeMap<u64, u64>,
}

/// Follows the writes to parts of a disk while they are filled. Nothing may be written for the
/// first time below what was written already. To write the same again is allowed: that is what
/// becomes of a write that failed, or was short.
#[derive(Default)]
pub struct Ascending {
    parts: BTreeMap<Place, Part>,
    followed: u64,
}

impl Ascending {
    /// A write of `[offset, end)` begins while these parts are being filled, each with a number of
    /// this time of filling it. What is wrong with it, if anything.
    pub fn note(
        &mut self,
        filled: impl IntoIterator<Item = (Place, u64)>,
        (offset, end): (u64, u64),
    ) -> Result<(), String> {
        for (place, number) in filled {
            if end <= place.0 || place.1 <= offset {
                continue;
            }
            let part = self.parts.entry(place).or_default();
            if part.number != number {
                *part = Part { number, ..Part::default() };
            }
            self.followed += 1;
            if offset < part.at && !part.holds((offset, end.min(part.at))) {
                return Err(format!(
                    "a write of {offset} to {end} comes after one up to {}, in {} to {} that a \
                     move fills",
                    part.at, place.0, place.1
                ));
            }
            part.add((offset, end));
        }
        Ok(())
    }

    /// Writes that were followed.
    pub fn followed(&self) -> u64 {
        self.followed
    }
}

impl Part {
    /// True if all of this was written.
    fn holds(&self, (offset, end): (u64, u64)) -> bool {
        let before = self.written.range(..=offset).next_back();
        before.is_some_and(|(_, upto)| end <= *upto)
    }

    fn add(&mut self, (offset, end): (u64, u64)) {
        self.at = self.at.max(end);
        let joins = self.written.range_mut(..=offset).next_back();
        match joins.filter(|(_, upto)| offset <= **upto) {
            Some((_, upto)) => *upto = end.max(*upto),
            None => drop(self.written.insert(offset, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_write_below_another_is_found_and_a_second_one_is_none() {
        let mut order = Ascending::default();
        let parts = [((100, 200), 1), ((300, 400), 2)];
        let mut note = |parts: &[(Place, u64)], write| order.note(parts.iter().copied(), write);
        for write in [(100, 110), (110, 120), (150, 160), (0, 50), (300, 310), (210, 220)] {
            assert_eq!(note(&parts, write), Ok(()));
        }
        assert_eq!(note(&parts, (105, 120)), Ok(()), "again");
        assert_eq!(note(&parts, (155, 170)), Ok(()), "again, and what follows");
        assert!(note(&parts, (130, 140)).is_err());
        assert!(note(&parts, (145, 155)).is_err());
        assert_eq!(note(&[], (130, 140)), Ok(()), "nothing is filled now");
        assert_eq!(note(&[((100, 200), 3)], (130, 140)), Ok(()), "it is filled anew");
        assert!(note(&[((100, 200), 3)], (120, 130)).is_err());
        assert_eq!(order.followed(), 10);
    }
}
