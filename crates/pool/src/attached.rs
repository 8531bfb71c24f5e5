//! The cache that is attached to the pool, as its superblock says.

use crate::Pool;
use crate::error::Result;

impl Pool {
    /// The cache that is attached: it may hold what the pool does not.
    pub fn cache_uuid(&self) -> Option<[u8; 16]> {
        self.state().cache_uuid
    }

    /// An entry of its journal that must be there; 0: not known.
    pub fn cache_journal(&self) -> u64 {
        self.state().cache_journal()
    }

    /// True if clean keys of it do not count: it had failed, and the pool went on.
    pub fn clean_void(&self) -> bool {
        self.state().clean_void()
    }

    /// The attached cache has dropped all of its clean keys, durably: those that it takes from now on count. The next commit says so.
    pub fn clean_keys_dropped(&self) {
        let mut st = self.state_mut();
        if let Some(mark) = &mut st.cache_mark {
            mark.clean_void = false;
        }
        st.open.superblock = true;
    }

    /// Attaches a cache, or detaches it; durable when it returns.
    pub async fn set_cache_uuid(&self, uuid: Option<[u8; 16]>) -> Result<()> {
        let now = self.unix_time(self.rt().now());
        if uuid.is_some() {
            self.state_mut().published.taken_at = now;
        }
        self.replace_cache(uuid);
        self.commit().await
    }

    /// Whatever was written past another cache than this counts no more.
    fn replace_cache(&self, uuid: Option<[u8; 16]>) {
        let ended = {
            let mut st = self.state_mut();
            let other = st.cache_uuid != uuid;
            st.cache_uuid = uuid;
            if other {
                st.cache_mark = None;
            }
            st.open.superblock = true;
            st.end_stagings(|_| other)
        };
        self.reap_each(ended);
    }

    /// Detaches the cache with the next commit, whenever that is: the pool has all that it had.
    pub fn drop_cache(&self) {
        self.replace_cache(None);
    }
}
