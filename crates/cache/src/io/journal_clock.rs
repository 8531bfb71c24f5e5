//! The journal's clock: what is done at every tick.

use std::rc::Rc;

use queue::Class;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::transfer::journal_writer::JournalWriter;
use crate::writeback::age_warning::watch_age;

/// Does what is due at each tick of the journal's clock.
pub(crate) struct JournalClock {
    core: Core,
    failures: Rc<Failures>,
    journal: Rc<JournalWriter>,
}

impl JournalClock {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        journal: &Rc<JournalWriter>,
    ) -> Rc<JournalClock> {
        Rc::new(JournalClock {
            core: core.clone(),
            failures: failures.clone(),
            journal: journal.clone(),
        })
    }

    /// Makes what was written durable from time to time, also unasked, so that replay has
    /// little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        let mut fails = false;
        while !self.core.health().is_closed() {
            self.core.sleep_by(|s| s.journal_interval).await;
            if self.core.health().is_closed() {
                return;
            }
            let target = self.core.state().journal().pushed();
            if self.journal.durable(target, Class::Commit).await.is_err()
                && self.failures.check_failed().is_err()
            {
                return;
            }
            match self.journal.write_watermark().await {
                // The next one is as good. Of a row of failures the first is logged.
                Err(e) if !std::mem::replace(&mut fails, true) => {
                    tracing::warn!(cache = %self.core.path(), "the journal's watermark was not \
                        written, tried again with each tick: {e}");
                }
                Err(_) => {}
                Ok(()) => fails = false,
            }
            self.core.give_back_nodes().await;
            watch_age(&self.core);
        }
    }
}
