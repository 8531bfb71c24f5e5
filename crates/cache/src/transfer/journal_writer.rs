//! Group commit: all tasks that wait for a FLUSH share one entry of the journal and one flush of
//! the device.

use std::rc::Rc;

use base::{RecordSeq, Result, SliceList};
use queue::Class;
use rt::Reason;

use crate::core::Core;
use crate::device::cache_device::{all_written, ends_the_cache, write_vital};
use crate::health::fail::Failures;
use crate::health::writer_watch::WriterWatch;
use crate::job;

/// Makes the records of the journal durable.
pub(crate) struct JournalWriter {
    pub(super) core: Core,
    pub(super) failures: Rc<Failures>,
    pub(super) watch: Rc<WriterWatch>,
}

impl JournalWriter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        watch: &Rc<WriterWatch>,
    ) -> Rc<JournalWriter> {
        Rc::new(JournalWriter {
            core: core.clone(),
            failures: failures.clone(),
            watch: watch.clone(),
        })
    }

    /// See [`crate::Cache::flush`].
    pub(crate) async fn flush(&self) -> Result<()> {
        let target = self.core.state().journal().pushed();
        self.durable(target, Class::Foreground).await
    }

    /// Waits until the journal's record `target`, and all before it, is durable, with what
    /// these records are about. That takes the device and nothing else: all that wait share one
    /// entry and one flush, and room for it is reserved.
    pub(crate) async fn durable(&self, target: RecordSeq, class: Class) -> Result<()> {
        loop {
            if self.core.state().journal().durable() >= target {
                return Ok(());
            }
            self.failures.check_failed()?;
            match self.core.group_commits().begin() {
                Some(_turn) => {
                    // A job's work: all requests that wait for it tell what it waits for.
                    let rt = self.core.rt();
                    let commit = rt.as_job(job::JOURNAL, self.group_commit(class));
                    rt.waits_for_job(Reason::Journal, job::JOURNAL, commit).await?;
                }
                None => {
                    let moved = self.core.group_commits().moved();
                    self.core.rt().waits_for_job(Reason::Journal, job::JOURNAL, moved).await;
                }
            }
        }
    }

    /// Writes the records that were pushed before, and makes them durable.
    async fn group_commit(&self, class: Class) -> Result<()> {
        self.watch.check_alone().await?;
        // Before the records are taken: what they rely on was durable by then.
        let entry = self.core.pool().cache_link().named_entry();
        let before = self.core.state_mut().close_entries();
        let (mut writes, mut last) = (Vec::new(), None);
        loop {
            let ready = self.core.state_mut().take_entries(before, entry, self.core.rt().bufs());
            let Some(newest) = ready.last() else { break };
            let more = newest.sequence.0 + 1 < before.0;
            last = Some((newest.sequence, newest.last));
            for entry in ready {
                for offset in entry.offsets {
                    let queue = self.core.device().queue().clone();
                    let data = SliceList::from_iter([entry.bytes.clone()]);
                    let write = async move { write_vital(&queue, class, offset, data).await };
                    writes.push(self.core.rt().spawn(write));
                }
            }
            if !more {
                break;
            }
            self.core.rt().yield_now().await;
        }
        let Some(last) = last else {
            // All records were taken by group commits before, and each of these made them durable
            // or ended the cache. Otherwise the caller would loop for ever.
            let st = self.core.state();
            assert!(
                st.journal().durable() >= st.journal().pushed(),
                "records were taken and never became durable"
            );
            return Ok(());
        };
        if let Err(e) = all_written(writes).await {
            let e = ends_the_cache(self.core.path(), "writing the journal", e);
            self.failures.fail(&e);
            return self.failures.check_failed();
        }
        let durable = self.failures.flush_device(class, "flush of the journal").await?;
        // No client is told that something is durable of which no start will ever know.
        self.failures.check_failed()?;
        self.core.state_mut().note_durable(durable, last.0, last.1);
        Ok(())
    }
}
