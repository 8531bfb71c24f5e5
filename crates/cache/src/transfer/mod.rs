//! Bytes to the cache's device and from it: blocks of buckets, and entries of the journal.

pub(crate) mod block_part;
pub(crate) mod bucket_io;
pub(crate) mod journal_writer;
pub(crate) mod journal_writer_state;
mod watermark;
