//! Whether parts of a disk are written in ascending order, as a zoned device demands.

use std::collections::BTreeMap;

use base::ByteRange;

/// A part of a disk that is being filled.
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
    parts: BTreeMap<ByteRange, Part>,
    followed: u64,
}

impl Ascending {
    /// A write of this range begins while these parts are being filled, each with a number of
    /// this time of filling it. What is wrong with it, if anything.
    pub fn note(
        &mut self,
        filled: impl IntoIterator<Item = (ByteRange, u64)>,
        write: ByteRange,
    ) -> Result<(), String> {
        for (place, number) in filled {
            if !write.overlaps(&place) {
                continue;
            }
            let part = self.parts.entry(place).or_default();
            if part.number != number {
                *part = Part { number, ..Part::default() };
            }
            self.followed += 1;
            let again = ByteRange::new(write.from, write.end.min(part.at));
            if write.from < part.at && !part.holds(again) {
                return Err(format!(
                    "a write of {} to {} comes after one up to {}, in {} to {} that a \
                     move fills",
                    write.from, write.end, part.at, place.from, place.end
                ));
            }
            part.add(write);
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
    fn holds(&self, range: ByteRange) -> bool {
        let before = self.written.range(..=range.from).next_back();
        before.is_some_and(|(_, upto)| range.end <= *upto)
    }

    fn add(&mut self, write: ByteRange) {
        let ByteRange { from, end } = write;
        self.at = self.at.max(end);
        let joins = self.written.range_mut(..=from).next_back();
        match joins.filter(|(_, upto)| from <= **upto) {
            Some((_, upto)) => *upto = end.max(*upto),
            None => drop(self.written.insert(from, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_write_below_another_is_found_and_a_second_one_is_none() {
        let mut order = Ascending::default();
        let parts = [(ByteRange::new(100, 200), 1), (ByteRange::new(300, 400), 2)];
        let anew = [(ByteRange::new(100, 200), 3)];
        let mut note = |parts: &[(ByteRange, u64)], (from, end)| {
            order.note(parts.iter().copied(), ByteRange::new(from, end))
        };
        for write in [(100, 110), (110, 120), (150, 160), (0, 50), (300, 310), (210, 220)] {
            assert_eq!(note(&parts, write), Ok(()));
        }
        assert_eq!(note(&parts, (105, 120)), Ok(()), "again");
        assert_eq!(note(&parts, (155, 170)), Ok(()), "again, and what follows");
        assert!(note(&parts, (130, 140)).is_err());
        assert!(note(&parts, (145, 155)).is_err());
        assert_eq!(note(&[], (130, 140)), Ok(()), "nothing is filled now");
        assert_eq!(note(&anew, (130, 140)), Ok(()), "it is filled anew");
        assert!(note(&anew, (120, 130)).is_err());
        assert_eq!(order.followed(), 10);
    }
}
