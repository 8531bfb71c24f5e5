//! The watermark of the journal: which entry is the last one that is durable, when none follows it.
//!
//! An entry names the last one that was durable when it was written. Of the newest entry nothing on
//! the device tells whether it, and the data of its records, were flushed or are what a crash left.
//! While requests keep coming that is so for a moment only: the next entry tells. When none comes,
//! the watermark does, once, at the next turn of the journal's clock.

use base::{BLOCK, Result, SliceList, StorageError};
use format::cache::watermark::{WATERMARK_SLOTS, Watermark};
use queue::Class;

use crate::transfer::journal_writer::JournalWriter;

impl JournalWriter {
    /// Says which entry is durable, if no later one is about to say it.
    pub(crate) async fn write_watermark(&self) -> Result<()> {
        let (identity, durable) = {
            let st = self.core.state();
            let durable = st.journal().durable_entry();
            if st.journal().newest_entry() > durable
                || durable <= self.core.group_commits().watermark()
            {
                return Ok(());
            }
            (st.journal().identity(), durable)
        };
        self.watch.check_alone().await?;
        let mark = Watermark { uuid: identity.uuid, incarnation: identity.incarnation, durable };
        let mut block = self.core.rt().bufs().zeroed(BLOCK);
        mark.encode(&mut block);
        let block = block.freeze();
        for slot in 0..WATERMARK_SLOTS {
            // One after the other: never are both torn.
            let data = SliceList::from_iter([block.clone()]);
            let outcome = self
                .core
                .device()
                .queue()
                .write(Class::Commit, Watermark::offset_of(slot), data)
                .await;
            outcome.map_err(|e| {
                StorageError::from_io(e, format_args!("cache device {}", self.core.path()))
            })?;
        }
        self.failures.flush_device(Class::Commit, "flush of the journal's watermark").await?;
        self.core.group_commits().note_watermark(durable);
        Ok(())
    }
}
