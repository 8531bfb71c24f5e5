//! A cache that has failed while it held what the pool lacks: the volumes that do not write back go
//! on with the pool.
//!
//! The journal of such a cache cannot be written any more, so it never learns of the clean blocks
//! that were dropped from the index for direct writes. When the cache is opened again they would be
//! there again, and hide newer blocks of the pool. Therefore:
//!
//! 1. From the moment at which it has failed, every commit of the pool says in the superblock that
//!    no clean key of this cache counts ([`crate::io::pool_commits`]). Dirty keys still count:
//!    only volumes that write back have any. Only passes write to the pool for these volumes, and
//!    passes end when the journal cannot be written.
//! 2. Volumes that do not write back are served by the pool alone, so the cache's index is not
//!    asked about them again before the next open.
//! 3. When it is opened again, all clean keys are dropped before it serves requests
//!    ([`drop_all_clean`]). The pool withdraws its statement only when a checkpoint without
//!    them is durable.
//!
//! After a power cut in between there are the pool's statement and the keys of the last checkpoint:
//! a key that was clean is still clean, the counters of buckets are those of that checkpoint, and
//! all of this is done again. Buckets that became empty may hold nodes by then that no checkpoint
//! knows of; they are never read as data.

use base::Result;
use queue::Class;

use crate::checkpoint::checkpoint::Checkpointer;
use crate::core::Core;
use crate::space::request_room::Room;
use crate::store::index_walk::IndexWalk;
use crate::store::key::Body;
use crate::store::state::State;

/// Drops all keys of blocks that the pool has, stale keys among them. The pool then says that
/// clean keys count again. To be called while the cache is being opened: nothing else runs, and
/// the journal is empty.
pub(crate) async fn drop_all_clean(
    core: &Core,
    room: &Room,
    checkpointer: &Checkpointer,
) -> Result<()> {
    let (mut walk, mut dropped) = (IndexWalk::over_all(), 0);
    while walk.goes_on() {
        let leaf = |st: &mut State| walk.next_leaf(&st.index, &st.buckets);
        for e in core.resident(Class::Commit, leaf).await? {
            if core.state().index.unpublished(&e).is_some() {
                continue;
            }
            let range = e.range();
            // Not journaled: after a crash it is there again, and dropped again.
            core.resident(Class::Commit, |st| {
                if matches!(e.body, Body::Data { .. }) && !e.is_stale(&st.buckets) {
                    dropped += e.len();
                }
                st.drop_unlogged(e.volume, range)
            })
            .await?;
        }
        let changed = core.state().index.dirty_nodes();
        if changed >= core.settings().dirty_nodes {
            room.make_room_for_nodes()?;
            checkpointer.checkpoint_now().await?;
        }
        core.rt().yield_now().await;
    }
    room.make_room_for_nodes()?;
    checkpointer.checkpoint_now().await?;
    core.pool().cache_link().clean_keys_dropped();
    tracing::warn!(
        cache = %core.path(), blocks = dropped,
        "the cache had failed, and the pool went on without it: its clean blocks were dropped"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::{BLOCK, Lba, StorageError};
    use pool::Pool;

    use super::*;
    use crate::Cache;
    use crate::testkit::{Lab, settings};

    fn broken() -> StorageError {
        StorageError::new(base::ErrorKind::Io, "broken")
    }

    /// Returns how a commit of the pool ends after a failure of the cache with dirty blocks in it,
    /// and what the pool says of clean keys when it is opened again. `late`: the first commit comes
    /// when the cache is closed.
    fn commit(late: bool) -> (Result<()>, bool) {
        let lab = Lab::new();
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let every = std::time::Duration::from_secs(3600);
            let slow = pool::Settings { commit_interval: every, ..pool::Settings::default() };
            let (pool, _) = Pool::open(&rt, files.clone(), slow).await.unwrap();
            let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
            let (a, b) = (pool.find_volume("a").unwrap().id, pool.find_volume("b").unwrap().id);
            let mut block = rt.bufs().take(BLOCK);
            block.fill(5);
            let block = block.freeze();
            cache.write(a, Lba(0), &block).await.unwrap();
            cache.flows().failures.fail(&broken());
            assert!(!cache.is_aside(), "it holds a dirty block");
            pool.write(b, Lba(90), &block).await.unwrap();
            let mut outcome = if late { Ok(()) } else { pool.commit().await };
            cache.close().await.unwrap_err();
            drop(cache);
            outcome = outcome.and(pool.close().await);
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            (outcome, pool.cache_link().clean_void())
        })
    }

    #[test]
    fn commits_go_on_when_the_cache_has_failed() {
        for late in [false, true] {
            let (outcome, void) = commit(late);
            assert!(outcome.is_ok() && void, "late {late}: {outcome:?}, {void}");
        }
    }
}
