//! One suite that every backend of the seam passes: io_uring, epoll and threads, the simulation.
//!
//! A backend's own tests implement [`Harness`] (how to make files and sockets in its world) and call [`run`]. Cases use only what
//! the seam promises: transfers may be short, completions come in any order, results of operations that raced with a close are
//! not looked at. Every case gets a world of its own and panics, naming what was broken, when it fails.
//!
//! * [`files`]: reading, writing, flushing, discarding
//! * [`sockets`]: connections, transfers, closing
//! * [`runtime`]: slots, orphans, timers

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use base::Duration;
use rt::{FileId, Rt, SocketId};

pub mod files;
pub mod runtime;
pub mod sockets;

/// How many slots the runtime of a harness should have: fewer than some cases have operations.
pub const SLOTS: usize = 16;

/// A world with one backend: a runtime over it, and what a server's set-up code would do.
pub trait Harness {
    /// The runtime over the backend, of [`SLOTS`] slots; always the same one.
    fn rt(&self) -> Rt;
    /// Opens a new file of `len` bytes (a multiple of 4096), all zeros, for reading and writing.
    fn file(&mut self, len: u64) -> FileId;
    /// Opens a listening socket.
    fn listener(&mut self) -> SocketId;
    /// Connects to `listener` and gives the client's end, which is a socket of the same backend. Must not wait for the accept.
    fn connect(&mut self, listener: SocketId) -> SocketId;
}

/// A case: what it shows, and how.
pub type Case = (&'static str, fn(&mut dyn Harness));

/// Runs every case in a world of its own.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Harness>) {
    for (name, case) in files::CASES.iter().chain(sockets::CASES).chain(runtime::CASES) {
        println!("conformance: {name}");
        let mut world = make();
        case(&mut *world);
        world.rt().kill();
    }
}

/// Runs `future`; panics if it is not done in good time.
fn on<T: 'static>(rt: &Rt, future: impl Future<Output = T> + 'static) -> T {
    let clock = rt.clone();
    let limited = async move {
        let mut late = pin!(clock.sleep(Duration::from_secs(60)));
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(value);
            }
            assert!(late.as_mut().poll(cx).is_pending(), "stuck: not done after a minute");
            Poll::Pending
        })
        .await
    };
    let Some(value) = rt.block_on(limited) else { panic!("the runtime was killed") };
    value
}

/// Bytes that tell where they belong: different for every `seed` and position.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut prng = base::Prng::new(seed);
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&prng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
