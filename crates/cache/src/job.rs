//! The cache's jobs, as requests that wait for them name them.

/// Carries dirty data to the pool.
pub(crate) const WRITE_BACK: &str = "write-back";
/// Garbage collection.
pub(crate) const COLLECTION: &str = "collection";
/// Puts what is left of thin buckets together.
pub(crate) const COMPACTION: &str = "compaction";
/// Keeps blocks that were hit when their bucket goes.
pub(crate) const SURVIVORS: &str = "survivors";
/// Makes the index durable.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// Evicts buckets ahead of need.
pub(crate) const RECLAIM: &str = "reclaim";
/// Keeps what was read from the pool.
pub(crate) const PROMOTION: &str = "promotion";
/// Makes the journal durable.
pub(crate) const JOURNAL: &str = "journal";
/// Verifies what is in it.
pub(crate) const SCRUB: &str = "scrub";
/// Looks whether another process writes to its device.
pub(crate) const LOOK: &str = "look at the cache";
