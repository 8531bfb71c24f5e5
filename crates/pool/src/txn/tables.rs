//! The pages of the volume and the group table: which slot of each is the committed one.

use std::collections::BTreeSet;

use format::page::{PageVersion, page_digest};

/// A page of the volume or group table.
#[derive(Clone, Copy, Default)]
pub(crate) struct TablePage {
    pub version: PageVersion,
    /// The slot that holds the committed version.
    pub slot: u8,
}

/// All table pages as of the last commit.
pub(crate) struct Tables {
    pages: Vec<TablePage>,
    /// Pages to be written whatever they say: a slot of theirs holds what a crash left.
    forced: BTreeSet<u32>,
    /// A sum over all pages, which superblocks have.
    digest: u64,
}

impl Tables {
    pub fn new(pages: Vec<TablePage>, forced: BTreeSet<u32>, digest: u64) -> Tables {
        Tables { pages, forced, digest }
    }

    /// The sum over the committed pages.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The sum once `pages` are written as this version.
    pub fn digest_with(&self, pages: &BTreeSet<u32>, version: PageVersion) -> u64 {
        pages.iter().fold(self.digest, |digest, &page| {
            let old = page_digest(page, self.pages[page as usize].version);
            digest.wrapping_sub(old).wrapping_add(page_digest(page, version))
        })
    }

    /// Pages that the next commit must write, once.
    pub fn take_forced(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.forced)
    }

    /// The next commit is to write this page, whatever it says.
    pub fn force(&mut self, page: u32) {
        self.forced.insert(page);
    }

    /// The slot that holds the committed version of a page, and which that is.
    pub fn committed(&self, page: u32) -> (u8, PageVersion) {
        let p = &self.pages[page as usize];
        (p.slot, p.version)
    }

    /// The slot that the next version of a page goes to.
    pub fn next_slot(&self, page: u32) -> u8 {
        1 - self.pages[page as usize].slot
    }

    /// A commit is durable that has written `pages`.
    pub fn complete(&mut self, pages: &BTreeSet<u32>, version: PageVersion) {
        self.digest = self.digest_with(pages, version);
        for &page in pages {
            let p = &mut self.pages[page as usize];
            *p = TablePage { version, slot: 1 - p.slot };
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Generation;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is the sum over all pages, anew each time, and which slot each commit wrote.
        #[test]
        fn digest_and_slots_follow_commits(
            commits in prop::collection::vec(prop::collection::btree_set(0u32..8, 0..6), 1..20),
        ) {
            let sum = |model: &[(PageVersion, u8)]| {
                let each = model.iter().enumerate();
                each.map(|(i, p)| page_digest(i as u32, p.0)).fold(0, u64::wrapping_add)
            };
            let mut model = vec![(PageVersion::default(), 0u8); 8];
            let first = sum(&model);
            let mut tables = Tables::new(vec![TablePage::default(); 8], BTreeSet::from([3]), first);
            prop_assert_eq!(tables.take_forced().len(), 1);
            prop_assert!(tables.take_forced().is_empty());
            for (n, pages) in commits.into_iter().enumerate() {
                let generation = Generation(2 * n as u64 + 1);
                let version = PageVersion { generation, attempt: n as u32 % 3 };
                for &page in &pages {
                    prop_assert_eq!(tables.next_slot(page), 1 - model[page as usize].1);
                    model[page as usize] = (version, 1 - model[page as usize].1);
                }
                let next = tables.digest_with(&pages, version);
                tables.complete(&pages, version);
                prop_assert_eq!(tables.digest(), next);
                prop_assert_eq!(next, sum(&model));
            }
        }
    }
}
