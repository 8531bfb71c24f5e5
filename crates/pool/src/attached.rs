//! The cache in front of the pool, as the pool knows it: the contract between the two.
//!
//! 1. **Commits wait for the cache's journal.** Before a commit is durable, the journal has to have
//!    all that the cache said of it: keys that were dropped for direct writes. A [`CacheJournal`]
//!    makes that durable. [`Link`] says whether a cache is attached: a live one, one that is closed
//!    and has left its last word, or none.
//! 2. **Each superblock has a [`CacheMark`]**: an entry of the journal that must be found at the
//!    next open, and whether the clean keys of the cache count.
//! 3. **A cut is published by a commit**: the superblock says up to which epoch the pool has
//!    everything ([`PublishedCut`]), and so which keys of the cache are clean.
//! 4. **Room for what is dirty** in the cache is a [`Reservation`](crate::Reservation) that the
//!    cache holds. A write-back pass takes it over and spends it.
//!
//! The flows are in [`writeback`](crate::writeback): passes, and the staging volumes of older
//! versions.

mod journal;
mod mark;

use base::{EntrySeq, Epoch, OpenId};

pub use journal::{CacheJournal, JournalDurable, Link};
pub use mark::CacheMark;

/// The cut of a cache that the pool's image is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PublishedCut {
    pub epoch: Epoch,
    /// In seconds of Unix time; 0: not known.
    pub taken_at: u32,
}

/// The pool's side of the contract.
pub(crate) struct Attached {
    uuid: Option<[u8; 16]>,
    /// The state of the cache's journal, as far as commits know it.
    mark: Option<CacheMark>,
    /// The entry that durable superblocks name; 0: none.
    named: EntrySeq,
    /// The last published cut, and the one that the running commit publishes.
    published: PublishedCut,
    publishing: Option<PublishedCut>,
    link: Link,
}

impl Attached {
    /// As the superblock says; the cache itself has yet to come.
    pub fn new(mark: Option<CacheMark>, published: PublishedCut) -> Attached {
        let (uuid, named) = (mark.map(|m| m.uuid), mark.map_or(EntrySeq(0), |m| m.entry));
        Attached { uuid, mark, named, published, publishing: None, link: Link::None }
    }

    /// The cache that is attached: it may hold what the pool does not.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }

    /// The mark of the attached cache, as superblocks record it.
    pub fn mark(&self) -> Option<CacheMark> {
        self.mark.filter(|m| Some(m.uuid) == self.uuid)
    }

    /// The entry of its journal that durable superblocks name; 0: none.
    pub fn named(&self) -> EntrySeq {
        self.named
    }

    /// Attaches a cache, or none; true if that is another one than before.
    pub fn set_uuid(&mut self, uuid: Option<[u8; 16]>) -> bool {
        let other = self.uuid != uuid;
        self.uuid = uuid;
        if other {
            self.mark = None;
            self.named = EntrySeq(0);
        }
        other
    }

    /// Records what the cache has said of its journal.
    pub fn set_mark(&mut self, mark: CacheMark) {
        self.mark = Some(mark);
    }

    /// The clean keys of the cache count again.
    pub fn trust_clean_keys(&mut self) {
        if let Some(mark) = &mut self.mark {
            mark.clean_void = false;
        }
    }

    /// The clean keys of the cache do not count.
    pub fn void_clean_keys(&mut self) {
        let Some(uuid) = self.uuid else { return };
        let unknown = CacheMark { uuid, entry: EntrySeq(0), opened: OpenId(0), clean_void: true };
        self.mark = Some(CacheMark { clean_void: true, ..self.mark().unwrap_or(unknown) });
    }

    /// The link to the cache's journal, by which commits make the journal durable.
    pub fn link(&self) -> &Link {
        &self.link
    }

    pub fn set_link(&mut self, link: Link) {
        self.link = link;
    }

    /// The last published cut.
    pub fn published(&self) -> PublishedCut {
        self.published
    }

    /// A cache was attached now, with nothing in it.
    pub fn set_taken_at(&mut self, unix_time: u32) {
        self.published.taken_at = unix_time;
    }

    /// The cut that the next superblock says: that of the running commit, if it publishes one.
    pub fn next_published(&self) -> PublishedCut {
        self.publishing.unwrap_or(self.published)
    }

    /// A commit begins that publishes this.
    pub fn begin_publishing(&mut self, cut: Option<PublishedCut>) {
        self.publishing = cut;
    }

    /// The commit is durable.
    pub fn end_publishing(&mut self) {
        self.published = self.next_published();
        self.publishing = None;
        self.named = self.mark().map_or(EntrySeq(0), |m| m.entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: CacheMark = CacheMark {
        uuid: [1; 16],
        entry: base::EntrySeq(7),
        opened: base::OpenId(5),
        clean_void: true,
    };

    fn cut(epoch: u32) -> PublishedCut {
        PublishedCut { epoch: Epoch(epoch), taken_at: 0 }
    }

    #[test]
    fn a_cut_is_published_when_its_commit_is_durable() {
        let mut attached = Attached::new(Some(MARK), cut(3));
        attached.begin_publishing(Some(cut(4)));
        assert_eq!((attached.published(), attached.next_published()), (cut(3), cut(4)));
        attached.end_publishing();
        assert_eq!(attached.published(), cut(4));
        attached.begin_publishing(None);
        attached.end_publishing();
        assert_eq!(attached.published(), cut(4));
    }

    #[test]
    fn the_mark_is_of_the_attached_cache_only() {
        let mut attached = Attached::new(Some(MARK), cut(0));
        attached.trust_clean_keys();
        assert_eq!(attached.mark(), Some(CacheMark { clean_void: false, ..MARK }));
        assert!(!attached.set_uuid(Some([1; 16])) && attached.mark().is_some());
        assert!(attached.set_uuid(Some([2; 16])) && attached.mark().is_none());
        // A commit that began before has asked the other cache.
        attached.set_mark(MARK);
        assert_eq!(attached.mark(), None);
    }
}
