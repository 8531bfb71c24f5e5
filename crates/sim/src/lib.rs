//! The seam simulated: virtual time, disks with faults, a wire. One seed is one exact history.
//!
//! # What it explores
//!
//! * **Order**: operations in flight complete in any order, after latencies drawn from the disk's model.
//! * **Loss of power**: at any nanosecond. Every sector (512 bytes) then holds its stable version or any later one that was
//!   written and not flushed, or was in flight: all of them, none, each by chance, a prefix of each write, or all up to a
//!   moment. So writes are lost, reordered, torn, or applied though never acknowledged. A flush makes stable what had completed before it was
//!   submitted; a write with FUA is stable when it completes; a discard is a write of zeros, whole, in part, or not at all.
//! * **Death of the process** alone: what was in flight is done or not, the disk's cache stays.
//! * **Faults of disks**, asked for or at random rates: see [`Fault`]. The bytes that should have been there are kept: see
//!   [`World::pristine`] and [`World::faulted`].
//! * **Flushes that fail** as `fsync` does on Linux: what they covered and lost stays readable, and no later flush makes it
//!   stable; a cut of power takes it, a kill takes it or not, writing it again makes it a write like any other.
//! * **The wire**: transfers cut anywhere, full buffers, latency, closed and vanished peers.
//!
//! What is not modelled: two processes on one disk, and a disk that forgets what it acknowledged as flushed (that is a lost write).
//! A flush that reports success and did nothing is the same: [`Fault::LoseNextWrite`], for all that it covered.
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
//! Time moves only when every task waits; when nothing can ever happen again, `wait` panics with a message that begins with
//! `deadlock`. [`World::history_hash`] compares two runs; [`World::set_trace`] prints one.
//!
//! * `table`: pages, shared; `store`: versions of sectors, power cuts, damage
//! * `disk`: time and faults of one disk; `wire`: connections; `world`: events, history, the backend

mod disk;
mod fault;
mod store;
mod table;
mod wire;
mod world;

pub use disk::DiskModel;
pub use fault::{Fault, FaultCounts, FaultRates, Loses, Times};
pub use store::DiskSnapshot;
pub use wire::WireModel;
pub use world::World;
