//! Group commit: all tasks that wait for a FLUSH share one entry of the journal and one flush of
//! the device. If blocks were written past the cache, the FLUSH also waits for a commit of the
//! pool, at the same time.

use base::{ErrorKind, IoError, RecordSeq, Result, SliceList, StorageError, VolumeId};
use queue::{Class, Device};
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
        let target = self.state().journal.pushed();
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
    /// entry and one flush, and its room is held.
    pub(crate) async fn durable(&self, target: RecordSeq, class: Class) -> Result<()> {
        loop {
            if self.state().journal.durable() >= target {
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

    async fn group_commit(&self, class: Class) -> Result<()> {
        // Before the records are taken: what they rely on was durable by then.
        let pool_seen = self.pool().committed();
        let ready = self.state_mut().journal.take_ready(pool_seen, self.rt().bufs());
        let Some(last) = ready.last().map(|entry| (entry.sequence, entry.last)) else {
            // All records were taken by group commits before, and each of these made them durable
            // or ended the cache. Otherwise the caller would loop for ever.
            let st = self.state();
            assert!(
                st.journal.durable() >= st.journal.pushed(),
                "records were taken and never became durable"
            );
            return Ok(());
        };
        let mut writes = Vec::with_capacity(ready.len());
        for entry in ready {
            for offset in entry.offsets {
                let (device, data) =
                    (self.device().queue().clone(), SliceList::from_iter([entry.bytes.clone()]));
                writes.push(
                    self.rt().spawn(async move { write_entry(&device, class, offset, data).await }),
                );
            }
        }
        let mut outcome = Ok(());
        for write in writes {
            outcome = outcome.and(write.await.unwrap_or(Err(IoError::CANCELED)));
        }
        if let Err(e) = outcome {
            let text =
                format!("cache device {}: writing the journal: {e}; restart forebay", self.path());
            let e = StorageError::new(ErrorKind::Io, text);
            self.fail(&e);
            return Err(e);
        }
        let durable = self.flush_device(class, "flush of the journal").await?;
        let mut st = self.state_mut();
        st.journal.note_durable(durable, last.0, last.1);
        let durable = st.journal.durable();
        st.buckets.journal_durable(durable);
        Ok(())
    }

    /// Half of the ring is taken.
    pub(crate) fn journal_is_crowded(&self) -> bool {
        let (used, all) = self.state().journal.usage();
        used * 2 >= all
    }

    /// The same, or somebody waits for room in the ring that a checkpoint would make.
    pub(crate) fn journal_wants_checkpoint(&self) -> bool {
        let st = self.state();
        let waited_for =
            st.journal.room().has_line() && st.journal.room().wants_checkpoint(st.journal.blocks());
        drop(st);
        waited_for || self.journal_is_crowded()
    }

    /// Makes what was written durable from time to time, also unasked, so that replay has
    /// little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        while !self.health().is_closed() {
            self.sleep_by(|s| s.journal_interval).await;
            let target = self.state().journal.pushed();
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

/// Writes a copy of an entry; once more if that fails, as a cache whose journal cannot be written
/// is of no use any more.
async fn write_entry(
    device: &Device,
    class: Class,
    offset: u64,
    data: SliceList,
) -> std::result::Result<(), IoError> {
    match device.write(class, offset, data.clone()).await {
        Err(e) if !e.is_gone() => device.write(class, offset, data).await,
        outcome => outcome,
    }
}
