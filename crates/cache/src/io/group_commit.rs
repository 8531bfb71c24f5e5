//! Group commit: all tasks that wait for a FLUSH share one entry of the journal and one flush of
//! the device.

use base::{RecordSeq, Result, SliceList};
use queue::Class;
use rt::Reason;

use crate::Cache;
use crate::device::cache_device::{all_written, ends_the_cache, write_vital};
use crate::job;

impl Cache {
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

    /// Writes the records that were pushed before, and makes them durable.
    async fn group_commit(&self, class: Class) -> Result<()> {
        self.check_alone().await?;
        // Before the records are taken: what they rely on was durable by then.
        let entry = self.pool().named_entry();
        let before = self.state_mut().close_entries();
        let (mut writes, mut last) = (Vec::new(), None);
        loop {
            let ready = self.state_mut().take_entries(before, entry, self.rt().bufs());
            let Some(newest) = ready.last() else { break };
            let more = newest.sequence.0 + 1 < before.0;
            last = Some((newest.sequence, newest.last));
            for entry in ready {
                for offset in entry.offsets {
                    let queue = self.device().queue().clone();
                    let data = SliceList::from_iter([entry.bytes.clone()]);
                    let write = async move { write_vital(&queue, class, offset, data).await };
                    writes.push(self.rt().spawn(write));
                }
            }
            if !more {
                break;
            }
            self.rt().yield_now().await;
        }
        let Some(last) = last else {
            // All records were taken by group commits before, and each of these made them durable
            // or ended the cache. Otherwise the caller would loop for ever.
            let st = self.state();
            assert!(
                st.journal().durable() >= st.journal().pushed(),
                "records were taken and never became durable"
            );
            return Ok(());
        };
        if let Err(e) = all_written(writes).await {
            let e = ends_the_cache(self.path(), "writing the journal", e);
            self.fail(&e);
            return self.check_failed();
        }
        let durable = self.flush_device(class, "flush of the journal").await?;
        // No client is told that something is durable of which no start will ever know.
        self.check_failed()?;
        self.state_mut().note_durable(durable, last.0, last.1);
        Ok(())
    }
}
