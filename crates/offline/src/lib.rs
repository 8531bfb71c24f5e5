//! Offline tools: they verify and show pools and caches that are not served.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`pool::check`] | verifies every structure of a pool, on every copy |
//! | [`cache::check`] | verifies every structure of a cache, against what the check of its pool has found |
//! | [`pool::dump`], [`cache::dump`] | show a structure as data that can be written as JSON |
//! | [`pool::repair`] | writes bad copies of a pool again from good ones, and frees what has leaked |
//! | [`report`] | what both checks say: problems, their severity, progress |
//! | [`repair`] | what repairs say: what was done, by device and kind |
//! | [`items`] | what both dumps show: slots of superblocks, nodes of trees |
//!
//! **Checks and dumps write nothing.** Repairs are apart from them, and write through
//! `pool::offline_repair` what a check has found to be sure.
//!
//! **Readers are shared, state is not.** The tools decode with `format`, walk trees with
//! [`btree::Walk`], and read devices as an open does, through `pool::raw` and `cache::raw`: which
//! devices belong together, which slot counts, where the journal ends, and what its replay makes of
//! a checkpoint. So a check and an open do not differ in what they believe. What the engine derives
//! from that while it serves, such as allocation, free buckets and the counters of dirty blocks, is
//! counted again here, from the trees, and compared with what the tables say.
//!
//! **Fault model.** A device may hold anything. The tools refuse what is no pool at all, as an open
//! does. Everything else is a problem in the report, or an item that says what is unreadable, and
//! the tool goes on. Every walk ends, whatever the bytes say.

pub mod cache;
pub mod items;
pub mod pool;
pub mod repair;
pub mod report;

pub use report::{CheckOptions, Phase, Problem, Progress, Severity, Slot, Subject};
