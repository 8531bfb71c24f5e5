//! The pages of the volume and the group table: which slot of each is the committed one.

use std::collections::BTreeSet;

use base::Generation;
use format::page::page_digest;

/// A page of the volume or group table.
#[derive(Clone, Copy, Default)]
pub(crate) struct TablePage {
    pub generation: Generation,
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

    /// The sum once `pages` are written in `generation`.
    pub fn digest_with(&self, pages: &BTreeSet<u32>, generation: Generation) -> u64 {
        pages.iter().fold(self.digest, |digest, &page| {
            let old = page_digest(page, self.pages[page as usize].generation);
            digest.wrapping_sub(old).wrapping_add(page_digest(page, generation))
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

    /// The slot that holds the committed version of a page, and its generation.
    pub fn committed(&self, page: u32) -> (u8, Generation) {
        let p = &self.pages[page as usize];
        (p.slot, p.generation)
    }

    /// The slot that the next version of a page goes to.
    pub fn next_slot(&self, page: u32) -> u8 {
        1 - self.pages[page as usize].slot
    }

    /// A commit is durable that has written `pages`.
    pub fn complete(&mut self, pages: &BTreeSet<u32>, generation: Generation) {
        self.digest = self.digest_with(pages, generation);
        for &page in pages {
            let p = &mut self.pages[page as usize];
            *p = TablePage { generation, slot: 1 - p.slot };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is the sum over all pages, anew each time, and which slot each commit wrote.
        #[test]
        fn digest_and_slots_follow_commits(
            commits in prop::collection::vec(prop::collection::btree_set(0u32..8, 0..6), 1..20),
        ) {
            let sum = |pages: &[u64]| {
                let each = pages.iter().enumerate();
                each.map(|(i, &g)| page_digest(i as u32, Generation(g))).fold(0, u64::wrapping_add)
            };
            let mut model = vec![(0u64, 0u8); 8];
            let generations = |model: &[(u64, u8)]| model.iter().map(|p| p.0).collect::<Vec<_>>();
            let first = sum(&generations(&model));
            let mut tables = Tables::new(vec![TablePage::default(); 8], BTreeSet::from([3]), first);
            prop_assert_eq!(tables.take_forced().len(), 1);
            prop_assert!(tables.take_forced().is_empty());
            for (n, pages) in commits.into_iter().enumerate() {
                let generation = 2 * n as u64 + 1;
                for &page in &pages {
                    prop_assert_eq!(tables.next_slot(page), 1 - model[page as usize].1);
                    model[page as usize] = (generation, 1 - model[page as usize].1);
                }
                let next = tables.digest_with(&pages, Generation(generation));
                tables.complete(&pages, Generation(generation));
                prop_assert_eq!(tables.digest(), next);
                prop_assert_eq!(next, sum(&generations(&model)));
            }
        }
    }
}
