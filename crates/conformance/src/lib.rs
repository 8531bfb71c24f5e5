//! The conformance suite, which every backend of the seam passes: io_uring, epoll and threads, and
//! the simulation.
//!
//! The tests of a backend implement [`Harness`], which creates files and sockets in the backend's
//! world, and call [`run`]. A case relies only on what the seam promises. Transfers may be short,
//! and completions come in any order. Results of operations that race with a close are not checked.
//! Every case gets its own world. A case that fails panics and names the broken promise.
//!
//! * [`harness`]: what a backend's tests implement, and what the cases share
//! * [`files`]: reads, writes, flushes, discards
//! * [`sockets`]: connections, transfers, closing
//! * [`runtime`]: slots, orphans, timers

pub mod files;
pub mod harness;
pub mod runtime;
pub mod sockets;

pub use harness::{Case, Harness, SLOTS};

/// Runs every case in its own world.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Harness>) {
    for (name, case) in files::CASES.iter().chain(sockets::CASES).chain(runtime::CASES) {
        println!("conformance: {name}");
        let mut world = make();
        case(&mut *world);
        world.rt().kill();
    }
}
