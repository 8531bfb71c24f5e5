//! Slow devices for experiments, demonstrations and benchmarks: the seam over another backend, in
//! which some files answer no sooner than the device that is emulated would have answered.
//!
//! [`Emulation`] is the model: plain and deterministic. It is told of requests
//! ([`Emulation::submit`]), says when the next one is done ([`Emulation::next_at`]) and which are
//! ([`Emulation::take_done`]). [`Emulations`] makes the backend: a request goes to the real file
//! when its model has done it, so that it takes the time of both. What a file holds, its durability
//! and its errors are those of the real file. What is above the seam knows nothing of it.
//!
//! * [`hdd`]: a disk of 7200 revolutions a minute, without a write cache
//! * [`ssd`]: an SSD on a SATA link
//!
//! Each says at its top what it computes, and what it leaves out. Discards are not modelled: they
//! take what they really take.

mod backend;
mod hdd;
mod model;
mod request;
mod ssd;
#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;

pub use backend::Emulations;
pub use model::{Emulate, Emulation};
pub use request::{Access, Ticket};
