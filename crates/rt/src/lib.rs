//! The runtime of one shard: an executor for tasks of one thread, timers, operations, and the one seam to the world.
//!
//! The engine reaches the world only through [`Backend`]; time moves only in its `wait`. A [`Rt`] is a cheap handle
//! that tasks clone. With a seed ([`Order::Seeded`]) tasks that are ready are picked at random, so that one seed is one
//! exact history; in production they run in the order in which they became ready.
//!
//! * [`seam`]: operations, completions, the backend
//! * [`exec`]: tasks, timers, slots
//! * [`sync`]: events, one-shots, semaphores and queues for tasks of one thread

pub mod exec;
pub mod seam;
pub mod sync;
#[cfg(test)]
mod tests;

pub use exec::{JoinHandle, Order, Rt};
pub use seam::{Backend, Completion, FileId, Op, OpId, Payload, SocketId};
