//! FLUSH: it waits for a group commit of the journal ([`super::group_commit`]). If blocks were
//! written past the cache, it also waits for a commit of the pool, at the same time.

use base::{Result, VolumeId};
use queue::Class;

use crate::Cache;

impl Cache {
    /// Makes all writes that completed before durable.
    pub async fn flush(&self) -> Result<()> {
        self.flush_of(None).await
    }

    /// Makes all writes of a volume that completed before durable.
    pub async fn flush_volume(&self, volume: VolumeId) -> Result<()> {
        self.clients().note_flush(volume);
        self.flush_of(Some(volume)).await
    }

    async fn flush_of(&self, volume: Option<VolumeId>) -> Result<()> {
        let staged = self.staged_in(volume).map(|_| {
            let pool = self.pool().clone();
            self.rt().spawn(async move { pool.commit().await })
        });
        let target = self.state().journal().pushed();
        let outcome = self.durable(target, Class::Foreground).await;
        match staged {
            Some(commit) => {
                outcome.and(commit.await.unwrap_or_else(|| Err(base::StorageError::ended())))
            }
            None => outcome,
        }
    }
}
