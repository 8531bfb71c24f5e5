//! The sending half of a connection: messages from many tasks, gathered into few sends by one.
//!
//! Unbounded by itself: who pushes holds permits, which the message carries and which return when
//! it is sent or dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::SliceList;

use crate::codec::reply::Head;
use crate::link::Link;
use crate::wire::Disconnected;

/// A batch ends with the message that brings it to so many bytes or views.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_SLICES: usize = 256;
/// Messages of which the heads fit into one page.
const BATCH_HEADS: usize = base::BLOCK / Head::MAX;

/// A message: its head, then data; `P` is dropped when it is sent, or cannot be.
pub(crate) struct Message<P> {
    pub head: Head,
    pub data: SliceList,
    pub permits: P,
}

pub(crate) struct Outbox<P> {
    link: Rc<Link>,
    queue: RefCell<VecDeque<Message<P>>>,
    waker: RefCell<Option<Waker>>,
    ended: Cell<bool>,
}

impl<P: 'static> Outbox<P> {
    pub fn new(link: Rc<Link>) -> Outbox<P> {
        Outbox {
            link,
            queue: RefCell::new(VecDeque::new()),
            waker: RefCell::new(None),
            ended: Cell::new(false),
        }
    }

    /// Adds a message; if the connection is closed, drops it.
    pub fn push(&self, message: Message<P>) {
        if self.link.is_closed() {
            return;
        }
        self.queue.borrow_mut().push_back(message);
        self.wake();
    }

    /// The sender ends once it has sent what there is.
    pub fn end(&self) {
        self.ended.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(w) = self.waker.borrow_mut().take() {
            w.wake();
        }
    }

    /// Waits for messages; false at the end.
    async fn filled(&self) -> bool {
        std::future::poll_fn(|cx| {
            if !self.queue.borrow().is_empty() {
                return Poll::Ready(true);
            }
            if self.ended.get() {
                return Poll::Ready(false);
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Sends until the end, or until the connection breaks: then it is closed and the messages are
    /// dropped. `in_flight` says how many requests have not been answered or wait here with their
    /// answer.
    pub async fn run(&self, in_flight: impl Fn() -> u64) {
        let mut permits = Vec::new();
        while self.filled().await {
            // While other requests may be about to be answered, their answers go along. With none
            // left there is nothing to wait for.
            if in_flight() > self.queue.borrow().len() as u64 {
                self.link.rt().settled().await;
            }
            let batch = self.gather(&mut permits);
            let sent = self.link.send_all(batch).await;
            permits.clear();
            if sent == Err(Disconnected) {
                self.link.close();
            }
            if self.link.is_closed() {
                // Permits wake others when they are dropped; not while the queue is borrowed.
                let rest = std::mem::take(&mut *self.queue.borrow_mut());
                drop(rest);
            }
        }
    }

    /// Takes messages from the front of the queue as one list of views: heads that follow each
    /// other share a view.
    fn gather(&self, permits: &mut Vec<P>) -> SliceList {
        let mut queue = self.queue.borrow_mut();
        let count = queue.len().min(BATCH_HEADS);
        let mut heads = self.link.rt().bufs().take(count * Head::MAX);
        // The number of bytes of heads that stand before each message's data.
        let mut data: Vec<(usize, SliceList)> = Vec::new();
        let (mut head_bytes, mut bytes, mut slices) = (0, 0, 0);
        for _ in 0..count {
            if bytes >= BATCH_BYTES || slices >= BATCH_SLICES {
                break;
            }
            let Some(m) = queue.pop_front() else { break };
            let head = m.head.bytes();
            heads[head_bytes..head_bytes + head.len()].copy_from_slice(head);
            head_bytes += head.len();
            permits.push(m.permits);
            if !m.data.is_empty() {
                bytes += m.data.iter().map(|s| s.len()).sum::<usize>();
                slices += m.data.len() + 1;
                data.push((head_bytes, m.data));
            }
        }
        let heads = heads.freeze();
        let mut list = SliceList::with_capacity(slices + 1);
        let mut from = 0;
        for (to, views) in data {
            list.push(heads.slice(from, to - from));
            list.extend(views);
            from = to;
        }
        if from < head_bytes {
            list.push(heads.slice(from, head_bytes - from));
        }
        list
    }
}
