//! FLUSH: it waits for a group commit of the journal ([`super::group_commit`]). If blocks were
//! written past the cache, it also waits for a commit of the pool, at the same time.

use base::{RecordSeq, Result, VolumeId};
use queue::Class;
use rt::Reason;

use crate::Cache;
use crate::job;

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

    /// Waits until the journal's record `target`, and all before it, is durable, with what
    /// these records are about. That takes the device and nothing else: all that wait share one
    /// entry and one flush, and room for it is reserved.
    pub(crate) async fn durable(&self, target: RecordSeq, class: Class) -> Result<()> {
        loop {
            if self.state().journal().durable() >= target {
                return Ok(());
            }
            self.check_failed()?;
            match self.group_commits().begin() {
                Some(_turn) => {
                    // A job's work: all requests that wait for it tell what it waits for.
                    let rt = self.rt();
                    let commit = rt.as_job(job::JOURNAL, self.group_commit(class));
                    rt.waits_for_job(Reason::Journal, job::JOURNAL, commit).await?;
                }
                None => {
                    let moved = self.group_commits().moved();
                    self.rt().waits_for_job(Reason::Journal, job::JOURNAL, moved).await;
                }
            }
        }
    }

    /// Half of the ring is taken.
    pub(crate) fn journal_is_crowded(&self) -> bool {
        let (used, all) = self.state().journal().usage();
        used * 2 >= all
    }

    /// The same, or somebody waits for room in the ring that a checkpoint would make.
    pub(crate) fn journal_wants_checkpoint(&self) -> bool {
        let st = self.state();
        let waited_for = st.journal().room().has_line()
            && st.journal().room().wants_checkpoint(st.journal().blocks());
        drop(st);
        waited_for || self.journal_is_crowded()
    }

    /// Makes what was written durable from time to time, also unasked, so that replay has
    /// little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        while !self.health().is_closed() {
            self.sleep_by(|s| s.journal_interval).await;
            let target = self.state().journal().pushed();
            if self.durable(target, Class::Commit).await.is_err() && self.check_failed().is_err() {
                return;
            }
            if let Err(e) = self.write_watermark().await {
                tracing::warn!(cache = %self.path(), "the journal's watermark was not written, \
                    tried again with the next tick: {e}");
            }
            self.give_back_nodes().await;
            self.watch_age();
        }
    }
}
