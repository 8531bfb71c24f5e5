//! The seam simulated: virtual time, disks with faults, a network. One seed is one exact history.
//!
//! # What it explores
//!
//! * **Order**: operations in flight complete in any order, after latencies drawn from the model of
//!   the disk.
//! * **Loss of power** at any nanosecond. Every sector (512 bytes) then holds its stable version,
//!   or any later version that was written and not flushed or was in flight. The simulation draws
//!   which versions survive: all, none, each sector by chance, a prefix of each write, or
//!   everything up to a moment. So writes are lost, reordered, torn, or applied though they were
//!   never acknowledged. A flush makes the writes stable that had completed before it was
//!   submitted. A write with FUA is stable when it completes. A discard writes zeros to all of its
//!   range, to a part of it, or to nothing.
//! * **Death of the process** alone: an operation in flight is done or not, and the disk's cache
//!   stays.
//! * **Faults of disks**, requested or at random rates: see [`Fault`]. The simulation also keeps
//!   the bytes that the disk would hold without the fault: see [`World::pristine`] and
//!   [`World::faulted`].
//! * **Flushes that fail** as `fsync` does on Linux. Reads still see the writes that the flush
//!   lost, and no later flush makes them stable. A power cut loses them; a kill loses them or not.
//!   Writing a sector again makes it an ordinary write.
//! * **The network**: transfers of any length, full buffers, latency, closed and vanished peers.
//!
//! Not modelled: two processes on one disk, and a disk that loses data after it has acknowledged a
//! flush. The latter is a lost write, as is a flush that reports success and does nothing: use
//! [`Fault::LoseNextWrite`] for every write that it covers.
//!
//! # How to use it
//!
//! ```
//! use base::{BufPool, SliceList};
//! use rt::{Op, Order, Rt};
//! use sim::{DiskModel, World};
//!
//! let world = World::new(42);
//! let disk = world.add_disk(DiskModel::nvme(1 << 20));
//! let rt = Rt::new(world.backend(), Order::Seeded(42), 64);
//! let (r, w) = (rt.clone(), world.clone());
//! let ended = rt.block_on(async move {
//!     let data = SliceList::from_iter([r.bufs().zeroed(4096).freeze()]);
//!     r.op(Op::Write { file: disk, offset: 0, data, fua: false }).await;
//!     w.power_cut();
//!     r.kill();
//!     r.yield_now().await;
//! });
//! assert_eq!(ended, None);
//! // The next boot: the same disks, a new runtime.
//! let rt = Rt::new(world.backend(), Order::Seeded(43), 64);
//! # drop(rt);
//! ```
//!
//! Time advances only when all tasks wait. If nothing can ever happen again, `wait` panics with a
//! message that begins with `deadlock`. [`World::history_hash`] compares two runs;
//! [`World::set_trace`] prints one.
//!
//! * `table`: shared pages
//! * `store`: versions of sectors, power cuts, damage
//! * `disk`: time and faults of one disk
//! * `fault`, `model`: kinds of faults and of disks
//! * `host`: memory that a process leaves when it dies
//! * `wire`: connections
//! * `world`: events, history, the backend
//! * `ascending`: whether what fills a part of a disk is in ascending order

mod ascending;
mod compact;
mod disk;
mod fault;
mod glimpse;
mod host;
mod idle;
mod model;
mod store;
mod table;
mod trace;
mod wire;
mod world;

pub use ascending::Ascending;
pub use compact::CompactDisks;
pub use fault::{Fault, FaultCounts, FaultRates, FlushLoss, Times};
pub use host::Host;
pub use model::{DiskModel, Latency};
pub use store::DiskSnapshot;
pub use wire::WireModel;
pub use world::World;
