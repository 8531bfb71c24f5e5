//! Group commit: all who wait for a FLUSH share one entry of the journal and one flush of the device.

use std::cell::{Cell, RefCell};

use base::{IoError, SliceList};
use pool::{ErrorKind, PoolError, Result};
use queue::Class;
use rt::JoinHandle;

use crate::Cache;

/// After so many FLUSHes, each of which came after one write, the next write is expected to have one too.
const EXPECTED: u8 = 3;
/// Records of what counts as one write.
const FEW: u64 = 2;

/// Entries that are being written, and whether to write them before a FLUSH asks: where each write is followed by one, the entry is on its way while
/// the client learns of its write, and the FLUSH finds it written.
#[derive(Default)]
pub(crate) struct Ahead {
    /// In order. Whoever commits next waits for them.
    writing: RefCell<Vec<Writing>>,
    /// The last record of the last FLUSH.
    flushed: Cell<u64>,
    /// FLUSHes of one write each, in a row.
    single: Cell<u8>,
}

struct Writing {
    sequence: u64,
    records: u64,
    done: JoinHandle<std::result::Result<(), IoError>>,
}

impl Cache {
    /// Makes all writes that completed before durable.
    pub async fn flush(&self) -> Result<()> {
        let (target, pushed) = {
            let mut st = self.state_mut();
            (st.journal.close(), st.journal.pushed())
        };
        let ahead = &self.0.ahead;
        match pushed - ahead.flushed.replace(pushed) {
            0 => {}
            1..=FEW => ahead.single.set((ahead.single.get() + 1).min(EXPECTED)),
            _ => ahead.single.set(0),
        }
        self.durable(target, Class::Foreground).await
    }

    /// To be called after a write: begins to write its entry if a FLUSH is expected.
    pub(crate) fn journal_ahead(&self) {
        let ahead = &self.0.ahead;
        if ahead.single.get() < EXPECTED || self.0.flushing.get() {
            return;
        }
        if !ahead.writing.borrow().is_empty() {
            // No FLUSH has come for the last one.
            ahead.single.set(0);
            return;
        }
        self.state_mut().journal.close();
        // If the ring is full, whoever commits sees to it.
        let _ = self.begin_entries(Class::Foreground);
    }

    /// Begins to write the entries that are closed; false if the ring has no room for one.
    fn begin_entries(&self, class: Class) -> bool {
        loop {
            let ready = self.state_mut().journal.take_ready(self.0.rt.bufs());
            let entry = match ready {
                Ok(Some(entry)) => entry,
                Ok(None) => return true,
                Err(()) => return false,
            };
            let (device, data) = (self.0.device.clone(), SliceList::from_iter([entry.bytes]));
            let done = self.0.rt.spawn(async move { device.write(class, entry.offset, data).await });
            let writing = Writing { sequence: entry.sequence, records: entry.records, done };
            self.0.ahead.writing.borrow_mut().push(writing);
        }
    }

    /// Waits until the journal's entry `target`, and what its records are about, is durable.
    pub(crate) async fn durable(&self, target: u64, class: Class) -> Result<()> {
        loop {
            self.check_failed()?;
            if self.state().journal.durable() >= target {
                return Ok(());
            }
            if self.0.flushing.get() {
                self.0.flushed.wait().await;
                continue;
            }
            self.0.flushing.set(true);
            let outcome = self.group_commit(class).await;
            self.0.flushing.set(false);
            self.0.flushed.notify();
            outcome?;
        }
    }

    async fn group_commit(&self, class: Class) -> Result<()> {
        let (target, all) = {
            let mut st = self.state_mut();
            (st.journal.close(), st.journal.pushed())
        };
        let blocked = !self.begin_entries(class);
        let writing = std::mem::take(&mut *self.0.ahead.writing.borrow_mut());
        let mut last = None;
        let mut outcome = Ok(());
        for w in writing {
            last = Some((w.sequence, w.records));
            outcome = outcome.and(w.done.await.unwrap_or(Err(IoError::CANCELED)));
        }
        if outcome.is_ok() && (last.is_some() || !blocked) {
            outcome = self.0.device.flush(class).await;
        }
        if let Err(e) = outcome {
            let text = format!("cache device {}: writing the journal: {e}; restart forebay", self.0.path);
            let e = PoolError::new(ErrorKind::Io, text);
            self.fail(&e);
            return Err(e);
        }
        if let Some((sequence, records)) = if blocked { last } else { Some((target, all)) } {
            let freed = {
                let mut st = self.state_mut();
                st.journal.note_durable(sequence, records);
                let durable = st.journal.durable_records();
                st.buckets.journal_durable(durable)
            };
            if freed {
                self.0.room.notify();
            }
        }
        if self.journal_is_crowded() {
            self.0.checkpoint_wanted.notify();
        }
        if blocked {
            // The ring is full of what no checkpoint has: one must come first.
            self.checkpoint_one().await?;
        }
        Ok(())
    }

    /// Half of the ring is taken.
    pub(crate) fn journal_is_crowded(&self) -> bool {
        let (used, all) = self.state().journal.usage();
        used * 2 >= all
    }

    /// Makes what was written durable from time to time, also if nobody asks, so that replay has little to verify and buckets become free.
    pub(crate) async fn journal_clock(&self) {
        while !self.0.closed.get() {
            self.0.rt.sleep(self.0.settings.journal_interval).await;
            let target = self.state_mut().journal.close();
            if self.durable(target, Class::Commit).await.is_err() {
                return;
            }
            while self.state_mut().drain_limbo(256) {
                self.0.rt.yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{BLOCK, Lba};

    use super::*;
    use crate::check::tests::Lab;

    #[test]
    fn an_entry_is_written_before_the_flush_that_is_expected() {
        Lab::new().with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            let block = cache.pool().bufs().zeroed(BLOCK).freeze();
            let counts = |cache: &Cache| {
                let stats = cache.state().journal.stats;
                (stats.entries, stats.commits)
            };
            for i in 0..u64::from(EXPECTED) {
                let (entries, commits) = counts(&cache);
                cache.write(a, Lba(i), &block).await.expect("write");
                assert_eq!(counts(&cache), (entries, commits), "not yet");
                cache.flush().await.expect("flush");
                assert_eq!(counts(&cache), (entries + 1, commits + 1));
            }
            for i in 0..3 {
                let (entries, commits) = counts(&cache);
                cache.write(a, Lba(i), &block).await.expect("write");
                assert_eq!(counts(&cache), (entries + 1, commits), "its entry is on its way");
                cache.flush().await.expect("flush");
                assert_eq!(counts(&cache), (entries + 1, commits + 1), "and is not written again");
            }
            let (entries, commits) = counts(&cache);
            for i in 0..5 {
                cache.write(a, Lba(i), &block).await.expect("write");
            }
            assert_eq!(counts(&cache), (entries + 1, commits), "one was in vain, and no other is");
            cache.flush().await.expect("flush");
            assert_eq!(counts(&cache), (entries + 2, commits + 1));
        });
    }
}
