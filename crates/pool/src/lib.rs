//! The pool: devices, block groups, trees and transactions; checksummed, mirrored, copy-on-write.
//!
//! **State.** Components with private fields, from the bottom up; none knows those below it in this
//! list:
//!
//! | folder | what it keeps |
//! | --- | --- |
//! | [`host_log`] | what was answered and is not durable yet, in memory that outlives the process |
//! | [`history`] | which open this is, and which histories its commits go on from |
//! | [`devices`] | the rows of the device table, their queues, errors and chunks; whether the pool may be written |
//! | [`space`] | block groups, bitmaps, allocation, freed blocks that reads are about, reservations |
//! | [`attached`] | the contract with the cache in front |
//! | [`findings`] | how far a scrub is, and what it has found; how far moves of chunks are |
//! | [`txn`] | transactions, generations, table pages, requests for commits |
//! | [`forest`] | volumes, mapping and checksum trees, and the one edit of them |
//!
//! The components meet in [`state`]; [`core`] is the handle to it. State changes between awaits
//! only.
//!
//! **Flows**, which are above all of the state. Each is an object that holds the core and the flows
//! below it; [`pool`] builds all of them, from the bottom up:
//!
//! | folder | what goes on there |
//! | --- | --- |
//! | [`transfer`] | copies of blocks are read, verified, healed and written; nodes and bitmaps are loaded and written |
//! | [`io`] | the way of a read, a write, a discard |
//! | [`writeback`] | passes, staging volumes, what a cache asks |
//! | [`commit`] | makes a transaction durable |
//! | [`scrub`] | every copy is read, verified and healed |
//! | [`moves`] | devices are added, replaced and removed: chunks move between them |
//! | [`volumes`] | the list of volumes |
//! | [`open`] | finds and judges the devices, reads the tables, makes new pools |
//! | [`pool`] | the flows of an open pool, and what it does for others |
//! | [`start`] | the first commit of an open |
//! | [`admin`] | settings, status |
//! | [`offline_repair`] | writes bad copies again and frees what has leaked, in a pool that is not served |
//!
//! [`raw`] has the readers that the offline tools share with [`open`].
//!
//! Fault model: any one device may lie, lose, tear, rot, stall or vanish; with two copies or more
//! nothing that was committed is lost, and wrong bytes are never returned. Power may fail at any
//! moment: the pool is then as of its last commit.

mod admin;
mod attached;
mod commit;
mod core;
mod devices;
pub mod error;
mod findings;
mod forest;
mod history;
mod host_log;
mod io;
mod moves;
pub mod offline_repair;
mod open;
mod pool;
pub mod raw;
mod scrub;
pub mod settings;
mod snapshots;
mod space;
mod start;
mod state;
mod transfer;
mod txn;
mod volumes;
mod writeback;

pub use admin::status;
pub use attached::{CacheJournal, CacheMark, JournalDurable, Link};
pub use devices::DeviceFile;
pub use devices::watch_times::LookSchedule;
pub use error::Step;
pub use findings::{NewestScrub, ScrubOptions};
pub use format::page::{CacheMode, VolumeLimit};
pub use format::superblock::scrub::ScrubState;
pub use host_log::{HostLog, SurvivingRecords};
pub use io::Blocks;
pub use moves::Fill;
pub use moves::place_keeper::PlaceKeeper;
pub use open::{check_create, create};
pub use pool::Pool;
pub use start::ReadyPool;

pub use settings::{CreateOptions, NAME_RULE, Settings, is_name};
pub use snapshots::{SnapshotInfo, Snapshots};
pub use space::Reservation;
pub use txn::WantedSnapshot;
pub use volumes::VolumeInfo;
pub use writeback::{HandedOverPass, Pass, PassPart};

/// Blocks of the largest run that a scrub reads.
pub const SCRUB_RUN_BLOCKS: u32 = transfer::walk::RUN_BLOCKS;
/// Bytes that a scrub has in flight of each copy.
pub const SCRUB_WINDOW_BYTES: u64 = scrub::window::WINDOW_BYTES;
