//! Messages from other threads to the shard: a bounded channel, and a byte on a pair of sockets
//! that wakes the shard through its seam.
//!
//! The byte is sent after the message, so the thread that has received it finds the message. A full
//! pair of sockets holds bytes enough to wake the shard already.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::task::Poll;

use posix::Handles;
use rt::{Completion, FileId, Op, Rt, SocketId};

/// Messages that wait; who sends more waits.
const CAPACITY: usize = 64;
/// Bytes of the pair that are taken at once.
const BELL_BYTES: usize = 4096;

/// The shard's end.
pub struct Mailbox<T> {
    rt: Rt,
    bell: SocketId,
    messages: Receiver<T>,
    /// Messages that somebody who waited for another one has passed over.
    kept: VecDeque<T>,
    /// The receive of a byte that is under way: it stays so though no task waits for it any more.
    ring: Option<Pin<Box<dyn Future<Output = Completion>>>>,
}

/// The other threads' end.
pub struct Sender<T> {
    messages: SyncSender<T>,
    bell: Arc<UnixStream>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { messages: self.messages.clone(), bell: self.bell.clone() }
    }
}

/// A mailbox of the shard that runs on `rt`.
pub fn mailbox<T>(rt: &Rt, handles: &Handles) -> io::Result<(Sender<T>, Mailbox<T>)> {
    let (theirs, ours) = UnixStream::pair()?;
    theirs.set_nonblocking(true)?;
    let bell = handles.adopt_socket(ours.into())?;
    let (sender, messages) = sync_channel(CAPACITY);
    let mailbox = Mailbox { rt: rt.clone(), bell, messages, kept: VecDeque::new(), ring: None };
    Ok((Sender { messages: sender, bell: Arc::new(theirs) }, mailbox))
}

/// Closes a file, for which its file system may take long.
pub async fn close_file(rt: &Rt, handles: &Handles, file: FileId) -> io::Result<()> {
    spawn_blocking(rt, handles, handles.closing(file)?).await?
}

/// Does work that may block in a thread of its own; the shard goes on meanwhile.
pub async fn spawn_blocking<T: Send + 'static>(
    rt: &Rt,
    handles: &Handles,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, mut mailbox) = mailbox(rt, handles)?;
    let spawned = std::thread::Builder::new()
        .name("blocking".into())
        .spawn(move || sender.send(work()).is_ok());
    let done = match spawned {
        Ok(_) => mailbox.next().await.ok_or_else(|| io::Error::other("the thread ended early")),
        Err(e) => Err(e),
    };
    rt.op(Op::Close { socket: mailbox.bell }).await;
    done
}

impl<T> Sender<T> {
    /// Sends a message; waits while there are too many. The message comes back if the shard has
    /// ended.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.messages.send(message).map_err(|e| e.0)?;
        self.ring();
        Ok(())
    }

    /// Sends a message, and never waits. It comes back if there are too many, or if the shard has
    /// ended.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.messages.try_send(message)?;
        self.ring();
        Ok(())
    }

    fn ring(&self) {
        match (&*self.bell).write(&[1]) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => {
                tracing::debug!("the shard does not listen any more: {e}")
            }
            _ => {}
        }
    }
}

impl<T> Mailbox<T> {
    /// The next message; `None` when all senders are gone.
    pub async fn next(&mut self) -> Option<T> {
        match self.kept.pop_front() {
            Some(message) => Some(message),
            None => self.newest().await,
        }
    }

    /// The result of `future`, unless a message for which `ends` holds comes first: then it is
    /// dropped. Other messages are kept.
    pub async fn unless<R>(
        &mut self,
        ends: impl Fn(&T) -> bool,
        future: impl Future<Output = R>,
    ) -> Option<R> {
        let mut future = pin!(future);
        let mut told = pin!(async {
            while let Some(message) = self.newest().await {
                if ends(&message) {
                    return;
                }
                self.kept.push_back(message);
            }
            pending().await
        });
        poll_fn(|cx| match told.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(cx).map(Some),
        })
        .await
    }

    /// The next message that was not received yet.
    async fn newest(&mut self) -> Option<T> {
        loop {
            match self.messages.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let rung = self.ring.get_or_insert_with(|| {
                let bufs = [self.rt.bufs().take(BELL_BYTES)].into_iter().collect();
                Box::pin(self.rt.op(Op::Recv {
                    socket: self.bell,
                    buf: bufs,
                    start: 0,
                    fill: false,
                }))
            });
            let rung = rung.await;
            self.ring = None;
            if !matches!(rung.result, Ok(n) if n > 0) {
                return self.messages.try_recv().ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::world::{IoChoice, World};

    #[test]
    fn messages_arrive_in_order_from_another_thread() {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let (sender, mut mailbox) = mailbox(&world.rt, &world.handles).unwrap();
        let thread = std::thread::Builder::new()
            .spawn(move || (0..10_000).all(|i| sender.send(i).is_ok()))
            .unwrap();
        let got = world.rt.block_on(async move {
            let mut got = Vec::new();
            while let Some(i) = mailbox.next().await {
                got.push(i);
            }
            got
        });
        assert!(thread.join().unwrap());
        assert_eq!(got, Some((0..10_000).collect::<Vec<i32>>()));
    }

    #[test]
    fn who_waits_for_one_message_keeps_the_others() {
        for io in [IoChoice::Auto, IoChoice::Posix] {
            let world = World::new(io, &[]).unwrap();
            let (sender, mut mailbox) = mailbox(&world.rt, &world.handles).unwrap();
            let rt = world.rt.clone();
            let got = world.rt.block_on(async move {
                let soon = mailbox.unless(|&i| i == 9, rt.sleep(Duration::from_millis(1))).await;
                let sending = move || [1, 2, 9, 3].into_iter().all(|i| sender.send(i).is_ok());
                let thread = std::thread::Builder::new().spawn(sending).unwrap();
                let never = mailbox.unless(|&i| i == 9, pending::<()>()).await;
                let mut got = Vec::new();
                while let Some(i) = mailbox.next().await {
                    got.push(i);
                }
                assert!(thread.join().unwrap());
                (soon, never, got)
            });
            assert_eq!(got, Some((Some(()), None, vec![1, 2, 3])));
        }
    }

    #[test]
    fn a_full_mailbox_gives_back_what_cannot_wait() {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let (sender, mailbox) = mailbox(&world.rt, &world.handles).unwrap();
        assert!((0..CAPACITY).all(|i| sender.try_send(i).is_ok()));
        assert_eq!(sender.try_send(7), Err(TrySendError::Full(7)));
        drop(mailbox);
    }

    #[test]
    fn a_shard_that_has_ended_gives_messages_back() {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let (sender, mailbox) = mailbox(&world.rt, &world.handles).unwrap();
        drop(mailbox);
        assert_eq!(sender.send(5), Err(5));
        assert_eq!(sender.try_send(5), Err(TrySendError::Disconnected(5)));
    }

    #[test]
    fn a_call_that_blocks_holds_nothing_up() {
        for io in [IoChoice::Auto, IoChoice::Posix] {
            let world = World::new(io, &[]).unwrap();
            let (go, wait) = sync_channel::<u32>(1);
            let (rt, handles) = (world.rt.clone(), world.handles.clone());
            let done = world.rt.block_on(async move {
                let r = rt.clone();
                drop(rt.spawn(async move {
                    r.sleep(Duration::from_millis(1)).await;
                    go.send(7).unwrap();
                }));
                let waits = move || wait.recv_timeout(Duration::from_secs(10));
                let first = spawn_blocking(&rt, &handles, waits).await.unwrap();
                let panics = spawn_blocking::<u32>(&rt, &handles, || panic!("as it should")).await;
                (first, panics.is_err())
            });
            assert_eq!(done, Some((Ok(7), true)));
        }
    }
}
