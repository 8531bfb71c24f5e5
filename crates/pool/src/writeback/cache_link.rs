//! The interface of the pool for its cache.

use std::rc::Rc;

use base::{Duration, EntrySeq, Epoch, OpenId, Result};

use crate::attached::Link;
use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::txn::logged::LoggedChange;
use crate::volumes::Volumes;

/// The contract with the cache in front of the pool.
pub struct CacheLink {
    pub(super) core: Core,
    commits: Rc<Commits>,
    volumes: Rc<Volumes>,
}

impl CacheLink {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, commits: &Rc<Commits>, volumes: &Rc<Volumes>) -> Rc<CacheLink> {
        Rc::new(CacheLink {
            core: core.clone(),
            commits: commits.clone(),
            volumes: volumes.clone(),
        })
    }

    /// The cache that is attached, as the superblock says: it may hold what the pool does not.
    pub fn cache_uuid(&self) -> Option<[u8; 16]> {
        self.core.state().attached.uuid()
    }

    /// An entry of its journal that must be there; 0: not known.
    pub fn cache_journal(&self) -> EntrySeq {
        self.core.state().attached.mark().map_or(EntrySeq(0), |m| m.entry)
    }

    /// The entry of its journal that durable superblocks of the pool name; 0: none.
    pub fn named_entry(&self) -> EntrySeq {
        self.core.state().attached.named()
    }

    /// The open of the pool in which it was opened last, as superblocks say; 0: not known.
    pub fn cache_opened(&self) -> OpenId {
        self.core.state().attached.mark().map_or(OpenId(0), |m| m.opened)
    }

    /// True if clean keys of it do not count: it had failed, and the pool went on.
    pub fn clean_void(&self) -> bool {
        self.core.state().attached.mark().is_some_and(|m| m.clean_void)
    }

    /// The attached cache has dropped all of its clean keys, durably: those that it takes from now
    /// on count. The next commit says so.
    pub fn clean_keys_dropped(&self) {
        let mut st = self.core.state_mut();
        st.attached.trust_clean_keys();
        st.note_in_superblock();
    }

    /// Superblocks say of the cache that is linked what its journal has, and that it was opened in
    /// this open of the pool. Durable when it returns. The cache goes on with these devices from
    /// now on, whatever the others say, so it is a change.
    pub async fn name_cache(&self) -> Result<()> {
        self.core.state_mut().need_superblock();
        self.commits.commit().await
    }

    /// The cache leaves this as its last word: the next commit says it, if superblocks do not yet.
    pub fn note_cache_closed(&self, last: &Link) {
        let Link::Closed(Ok(Some(mark))) = last else { return };
        let mut st = self.core.state_mut();
        if st.attached.named() < mark.entry {
            st.note_in_superblock();
        }
    }

    /// From now on commits wait for this journal: see [`CacheJournal`](crate::CacheJournal).
    pub fn link_journal(&self, link: Link) {
        self.core.state_mut().attached.set_link(link);
    }

    /// Attaches a cache, or detaches it; durable when it returns.
    pub async fn set_cache_uuid(&self, uuid: Option<[u8; 16]>) -> Result<()> {
        let now = self.core.unix_time(self.core.rt().now());
        if uuid.is_some() {
            self.core.state_mut().attached.set_taken_at(now);
        }
        self.replace_cache(uuid);
        self.commits.commit().await
    }

    /// Staging volumes of another cache are deleted.
    fn replace_cache(&self, uuid: Option<[u8; 16]>) {
        let ended = {
            let mut st = self.core.state_mut();
            let other = st.attached.set_uuid(uuid);
            st.need_superblock();
            st.end_stagings(|_, _| other)
        };
        self.volumes.reap_each(ended);
    }

    /// Detaches the cache with the next commit, whenever that is: the pool has all that it had.
    pub fn drop_cache(&self) {
        self.replace_cache(None);
        self.core.state_mut().log_of_cache(&LoggedChange::DropCache);
    }

    /// The epoch of the last published cut; 0: none.
    pub fn published(&self) -> Epoch {
        self.core.state().attached.published().epoch
    }

    /// When that cut was taken, or the cache attached if none was published yet, in seconds of Unix
    /// time; `None`: not known.
    pub fn published_at(&self) -> Option<u64> {
        let at = self.core.state().attached.published().taken_at;
        (at > 0).then_some(u64::from(at))
    }

    /// How old that cut is now, by the clock; `None`: not known, as a clock was wrong, then or now.
    pub fn published_ago(&self) -> Option<Duration> {
        let now = u64::from(self.core.unix_time(self.core.now()));
        let ago = now.checked_sub(self.published_at()?)?;
        (now > 0).then_some(Duration::from_secs(ago))
    }
}
