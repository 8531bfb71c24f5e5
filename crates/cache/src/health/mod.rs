//! Failures of the cache device, and the steps that follow them.
//!
//! | event | action of the cache |
//! | --- | --- |
//! | the file system under the cache is full | a write of data fails, and the status says so (`io/write.rs`) |
//! | one copy of a superblock, an entry, a node or a table page is bad | the other copy counts; a bad node is written again (`core/nodes.rs`) |
//! | both copies are bad, or the journal has a gap before something durable | the cache is refused |
//! | a node or a table page cannot be written in its place | a node goes to other buckets, a page to a spare block; if these take no write either, the use of the cache ends |
//! | a clean block is bad | it is read from the pool, and its bucket is retired (`io/read.rs`) |
//! | a dirty block is bad | reads of it fail, the status names it, and it stays dirty |
//! | a write of data fails | it is tried in two other buckets; a bucket with errors is not used again |
//! | the pool cannot reach a part of a volume | passes keep its blocks dirty in the cache (`writeback/kept.rs`) |
//! | a flush of the device fails once | the use of the device ends (`device/flush_barrier.rs`) |
//! | the use ends, and the pool has everything | the cache is set aside: the next commit of the pool says that it has no cache |
//! | the use ends, and the pool lacks something | volumes that write back get errors; all others go around the cache ([`crate::lifecycle::failed_dirty`]) |

pub(crate) mod fail;
pub(crate) mod writer_watch;
