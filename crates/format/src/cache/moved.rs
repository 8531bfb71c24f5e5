//! Pages of the bucket table that do not stand in their place, as that took no write: they stand in
//! spare blocks, each of which has one slot of one page.

/// Spare blocks.
pub const SPARES: usize = 7;

/// The content of each spare block: 0 for nothing, or 1 more than the number of the slot, of which
/// a page has two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MovedPages(pub [u32; SPARES]);

fn number(page: u32, slot: u8) -> u32 {
    2 * page + u32::from(slot) + 1
}

impl MovedPages {
    /// The spare block that has this slot of a page.
    pub fn spare_of(&self, page: u32, slot: u8) -> Option<usize> {
        self.0.iter().position(|has| *has == number(page, slot))
    }

    /// A spare block has this slot of a page from now on, and no other one does.
    pub fn put(&mut self, spare: usize, page: u32, slot: u8) {
        self.clear(page, slot);
        self.0[spare] = number(page, slot);
    }

    /// No spare block has this slot of a page.
    pub fn clear(&mut self, page: u32, slot: u8) {
        let of = number(page, slot);
        self.0.iter_mut().filter(|has| **has == of).for_each(|has| *has = 0);
    }

    /// The number of spare blocks in use.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|has| **has != 0).count()
    }

    /// True if all pages stand in their places.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if there are so many pages at least, and no slot is in two blocks.
    pub fn is_sound(&self, pages: u32) -> bool {
        let in_use = || self.0.iter().filter(|has| **has != 0);
        in_use().all(|has| u64::from(*has) <= 2 * u64::from(pages))
            && in_use().all(|has| self.0.iter().filter(|other| *other == has).count() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_in_one_spare_block_at_most() {
        let mut moved = MovedPages::default();
        assert!(moved.is_empty() && moved.is_sound(1));
        moved.put(2, 5, 1);
        moved.put(6, 5, 0);
        assert_eq!((moved.spare_of(5, 1), moved.spare_of(5, 0)), (Some(2), Some(6)));
        moved.put(0, 5, 1);
        assert_eq!((moved.spare_of(5, 1), moved.len()), (Some(0), 2));
        assert!(moved.is_sound(6) && !moved.is_sound(5));
        moved.clear(5, 0);
        assert_eq!((moved.spare_of(5, 0), moved.len()), (None, 1));
        assert!(!MovedPages([1, 0, 0, 0, 1, 0, 0]).is_sound(9));
    }
}
