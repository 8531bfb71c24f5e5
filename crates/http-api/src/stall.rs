//! A connection that ends when its client takes nothing for too long.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The stream of a connection.
pub struct StallGuard<S> {
    stream: S,
    limit: Duration,
    /// Runs while the client takes nothing.
    deadline: Pin<Box<Sleep>>,
    stalled: bool,
}

impl<S> StallGuard<S> {
    /// Ends with an error of kind `TimedOut` when nothing can be written for `limit`.
    pub fn new(stream: S, limit: Duration) -> StallGuard<S> {
        StallGuard { stream, limit, deadline: Box::pin(sleep(limit)), stalled: false }
    }

    /// Passes the outcome of a step of writing on, or fails with `TimedOut` once nothing could be
    /// written for the limit.
    fn judge<T>(&mut self, cx: &mut Context<'_>, step: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.stalled = false;
            return step;
        }
        if !self.stalled {
            self.stalled = true;
            self.deadline.as_mut().reset(Instant::now() + self.limit);
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let step = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, step)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, step)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let step = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, step)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_client_that_takes_nothing_ends_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
            let mut stream = StallGuard::new(ours, Duration::from_millis(30));
            let data = vec![0; 65536];
            let e = loop {
                let step = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &data));
                if let Err(e) = step.await {
                    break e;
                }
            };
            assert_eq!(e.kind(), ErrorKind::TimedOut);
        });
    }
}
