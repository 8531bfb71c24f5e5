//! The interface of the pool for its cache.

use base::{EntrySeq, Epoch, Instant, OpenId, Result};

use crate::attached::Link;
use crate::pool::Pool;
use crate::space::Reservation;
use crate::txn::logged::Logged;

impl Pool {
    /// The cache that is attached, as the superblock says: it may hold what the pool does not.
    pub fn cache_uuid(&self) -> Option<[u8; 16]> {
        self.state().attached.uuid()
    }

    /// An entry of its journal that must be there; 0: not known.
    pub fn cache_journal(&self) -> EntrySeq {
        self.state().attached.mark().map_or(EntrySeq(0), |m| m.entry)
    }

    /// The entry of its journal that durable superblocks of the pool name; 0: none.
    pub fn named_entry(&self) -> EntrySeq {
        self.state().attached.named()
    }

    /// The open of the pool in which it was opened last, as superblocks say; 0: not known.
    pub fn cache_opened(&self) -> OpenId {
        self.state().attached.mark().map_or(OpenId(0), |m| m.opened)
    }

    /// True if clean keys of it do not count: it had failed, and the pool went on.
    pub fn clean_void(&self) -> bool {
        self.state().attached.mark().is_some_and(|m| m.clean_void)
    }

    /// The attached cache has dropped all of its clean keys, durably: those that it takes from now
    /// on count. The next commit says so.
    pub fn clean_keys_dropped(&self) {
        let mut st = self.state_mut();
        st.attached.trust_clean_keys();
        st.note_in_superblock();
    }

    /// Superblocks say of the cache that is linked what its journal has, and that it was opened in
    /// this open of the pool. Durable when it returns.
    pub async fn name_cache(&self) -> Result<()> {
        self.state_mut().note_in_superblock();
        self.commit().await
    }

    /// The cache leaves this as its last word: the next commit says it, if superblocks do not yet.
    pub fn note_cache_closed(&self, last: &Link) {
        let Link::Closed(Ok(Some(mark))) = last else { return };
        let mut st = self.state_mut();
        if st.attached.named() < mark.entry {
            st.note_in_superblock();
        }
    }

    /// From now on commits wait for this journal: see [`CacheJournal`](crate::CacheJournal).
    pub fn link_journal(&self, link: Link) {
        self.state_mut().attached.set_link(link);
    }

    /// Attaches a cache, or detaches it; durable when it returns.
    pub async fn set_cache_uuid(&self, uuid: Option<[u8; 16]>) -> Result<()> {
        let now = self.unix_time(self.rt().now());
        if uuid.is_some() {
            self.state_mut().attached.set_taken_at(now);
        }
        self.replace_cache(uuid);
        self.commit().await
    }

    /// Staging volumes of another cache are deleted.
    fn replace_cache(&self, uuid: Option<[u8; 16]>) {
        let ended = {
            let mut st = self.state_mut();
            let other = st.attached.set_uuid(uuid);
            st.need_superblock();
            st.end_stagings(|_, _| other)
        };
        self.reap_each(ended);
    }

    /// Detaches the cache with the next commit, whenever that is: the pool has all that it had.
    pub fn drop_cache(&self) {
        self.replace_cache(None);
        self.state_mut().log_of_cache(&Logged::DropCache);
    }

    /// The epoch of the last published cut; 0: none.
    pub fn published(&self) -> Epoch {
        self.state().attached.published().epoch
    }

    /// When that cut was taken, or the cache attached if none was published yet, in seconds of Unix
    /// time; `None`: not known.
    pub fn published_at(&self) -> Option<u64> {
        let at = self.state().attached.published().taken_at;
        (at > 0).then_some(u64::from(at))
    }

    /// In seconds of Unix time; 0: not known.
    pub(crate) fn unix_time(&self, at: Instant) -> u32 {
        match self.settings().unix_time_at_zero {
            0 => 0,
            zero => u32::try_from(zero + at.since(Instant(0)).as_secs()).unwrap_or(0),
        }
    }

    /// Sets room aside for `blocks` blocks that write-back will write.
    pub fn reserve(&self, blocks: u64) -> Result<Reservation> {
        self.state().reserve(blocks)
    }

    /// Sets room aside that had been set aside before the pool was opened. Direct writes left it
    /// free then, so nothing is checked.
    pub fn take_over(&self, blocks: u64) -> Reservation {
        self.state().space.take_over(blocks)
    }
}
