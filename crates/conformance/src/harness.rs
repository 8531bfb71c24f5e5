//! The harness that a backend's tests implement, and what the cases share.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use base::Duration;
use rt::{FileId, Rt, SocketId};

/// Number of slots of a harness's runtime. Some cases have more operations.
pub const SLOTS: usize = 16;

/// A world with one backend: its runtime, and the work of a server's set-up code.
pub trait Harness {
    /// The runtime on the backend, with [`SLOTS`] slots. It is always the same one.
    fn rt(&self) -> Rt;
    /// Opens a new file for reading and writing. It has `len` zero bytes, a multiple of 4096.
    fn file(&mut self, len: u64) -> FileId;
    /// Opens a listening socket.
    fn listener(&mut self) -> SocketId;
    /// Connects to `listener` and returns the client's end, a socket of the same backend. It must
    /// not wait for the accept.
    fn connect(&mut self, listener: SocketId) -> SocketId;
}

/// A case: what it shows, and its function.
pub type Case = (&'static str, fn(&mut dyn Harness));

/// Runs `future`. Panics if it takes more than a minute.
pub(crate) fn on<T: 'static>(rt: &Rt, future: impl Future<Output = T> + 'static) -> T {
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

/// Random bytes that follow from `seed`, so that every seed and position can be told apart.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut prng = base::Prng::new(seed);
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&prng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
