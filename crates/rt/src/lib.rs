//! The runtime of one shard: an executor for tasks on one thread, timers, operations, and the one
//! seam to the world.
//!
//! The engine reaches the world only through [`Backend`], and time passes only in
//! [`Backend::wait`]. An [`Rt`] is a cheap handle that tasks clone. In production, ready tasks run
//! in the order in which they became ready. With a seed ([`Order::Seeded`]) the runtime picks among
//! ready tasks at random, so that one seed is one exact history.
//!
//! * [`seam`]: operations, completions, the backend trait
//! * [`exec`]: tasks, timers, slots
//! * `ready`: the tasks that wait for their turn
//! * `stories`: for whom a task works, and what it waits for
//! * `thread`: how the thread spends its time
//! * [`sync`]: events, one-shots, semaphores and queues for tasks of one thread

pub mod exec;
mod ready;
pub mod seam;
mod stories;
pub mod sync;
#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
mod thread;

pub use exec::{JoinHandle, Order, Rt};
pub use seam::{Backend, Completion, DeviceKind, FileId, Op, OpId, Payload, SocketId, ThreadTime};
pub use stories::{Request, WaitGuard};

/// The types that stories are made of.
pub use ledger::{Holder, PlaceId, Reason, RequestClass, WaitCause, advice};
