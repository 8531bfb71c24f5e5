//! Synchronisation between tasks of one thread. Waiting tasks are served in the order of arrival.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct OneShotState<T> {
    value: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// The sending half of [`oneshot`].
pub struct OneShotSender<T>(Rc<RefCell<OneShotState<T>>>);

/// A value that will arrive once. It yields `None` if the sender was dropped without sending.
pub struct OneShot<T>(Rc<RefCell<OneShotState<T>>>);

/// A channel for one value.
pub fn oneshot<T>() -> (OneShotSender<T>, OneShot<T>) {
    let state = Rc::new(RefCell::new(OneShotState { value: None, closed: false, waker: None }));
    (OneShotSender(state.clone()), OneShot(state))
}

impl<T> OneShotSender<T> {
    /// Sends the value and wakes the task that waits for it.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for OneShotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut s = self.0.borrow_mut();
            s.closed = true;
            s.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl<T> Future for OneShot<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut s = self.0.borrow_mut();
        if let Some(v) = s.value.take() {
            return Poll::Ready(Some(v));
        }
        if s.closed {
            return Poll::Ready(None);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Wakes all waiting tasks whenever it is notified. A task must check its condition before it waits
/// and again afterwards.
#[derive(Clone, Default)]
pub struct Event(Rc<EventState>);

#[derive(Default)]
struct EventState {
    rings: Cell<u64>,
    /// The tasks that wait, by number, in the order of arrival.
    waiting: RefCell<Vec<(u64, Waker)>>,
    /// Numbers that were given out.
    numbers: Cell<u64>,
}

/// A wait for an event. Where it is dropped before that comes, the event forgets it: a task may
/// wait for a time or an event as often as it likes, though the event never comes.
struct Wait {
    event: Rc<EventState>,
    seen: u64,
    number: Option<u64>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.event.rings.get() != self.seen {
            return Poll::Ready(());
        }
        let event = self.event.clone();
        let mut waiting = event.waiting.borrow_mut();
        // Numbers rise from place to place.
        let place = |n: u64| waiting.binary_search_by_key(&n, |(of, _)| *of).ok();
        match self.number.and_then(place) {
            Some(place) => waiting[place].1.clone_from(cx.waker()),
            None => {
                let number = event.numbers.get();
                event.numbers.set(number + 1);
                self.number = Some(number);
                waiting.push((number, cx.waker().clone()));
            }
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(number) = self.number.filter(|_| self.event.rings.get() == self.seen) else {
            return;
        };
        let mut waiting = self.event.waiting.borrow_mut();
        if let Ok(place) = waiting.binary_search_by_key(&number, |(of, _)| *of) {
            waiting.remove(place);
        }
    }
}

impl Event {
    /// Creates an event.
    pub fn new() -> Event {
        Event::default()
    }

    /// Wakes all tasks that wait now.
    pub fn notify(&self) {
        self.0.rings.set(self.0.rings.get() + 1);
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Waits for the next [`Event::notify`] after this call. Calls count from here, not from the
    /// first poll.
    pub fn wait(&self) -> impl Future<Output = ()> + use<> {
        Wait { event: self.0.clone(), seen: self.0.rings.get(), number: None }
    }
}

/// The outcome of work that one task does for all tasks that want it meanwhile. Clones are the same
/// outcome; the task that works keeps the [`Worker`].
pub struct Shared<T>(Rc<SharedState<T>>);

struct SharedState<T> {
    outcome: RefCell<Option<T>>,
    is_running: Cell<bool>,
    ended: Event,
}

/// Tells those who wait how the work has ended; dropped, that it was given up.
pub struct Worker<T>(Shared<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T: Clone> Shared<T> {
    /// Work that begins now.
    pub fn begin() -> (Shared<T>, Worker<T>) {
        let shared = Shared(Rc::new(SharedState {
            outcome: RefCell::new(None),
            is_running: Cell::new(true),
            ended: Event::new(),
        }));
        (shared.clone(), Worker(shared))
    }

    /// The work has not ended, and was not given up.
    pub fn is_running(&self) -> bool {
        self.0.is_running.get()
    }

    /// Waits for the outcome of the work; `None` if it was given up.
    pub async fn wait(self) -> Option<T> {
        if self.is_running() {
            self.0.ended.wait().await;
        }
        self.0.outcome.borrow().clone()
    }
}

impl<T> Worker<T> {
    /// All who wait get this outcome.
    pub fn end(self, outcome: T) {
        *self.0.0.outcome.borrow_mut() = Some(outcome);
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.0.0.is_running.set(false);
        self.0.0.ended.notify();
    }
}

/// Waits until the first of two futures ends. The other one is dropped.
pub async fn either(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|cx| {
        if a.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(cx) }
    })
    .await;
}

/// Waits for `a` until `b` ends. Returns `None` if `b` ends first; then the caller may wait for `a`
/// again.
pub async fn within<T>(
    a: &mut (impl Future<Output = T> + Unpin),
    b: impl Future<Output = ()>,
) -> Option<T> {
    let mut b = std::pin::pin!(b);
    std::future::poll_fn(|cx| match Pin::new(&mut *a).poll(cx) {
        Poll::Ready(t) => Poll::Ready(Some(t)),
        Poll::Pending => b.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// A counting semaphore. Tasks get permits in the order of arrival, however many each of them
/// wants.
#[derive(Clone)]
pub struct Semaphore(Rc<SemState>);

struct SemState {
    free: Cell<u64>,
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    wants: u64,
    granted: Cell<bool>,
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Permits, which return to their semaphore on drop.
pub struct Permit {
    of: Semaphore,
    n: u64,
}

impl Semaphore {
    /// Creates a semaphore with `permits` free permits.
    pub fn new(permits: u64) -> Semaphore {
        Semaphore(Rc::new(SemState {
            free: Cell::new(permits),
            waiting: RefCell::new(VecDeque::new()),
        }))
    }

    /// Number of free permits.
    pub fn free(&self) -> u64 {
        self.0.free.get()
    }

    /// Takes `n` permits if they are free and no task waits.
    pub fn try_acquire(&self, n: u64) -> Option<Permit> {
        if self.0.free.get() < n || !self.0.waiting.borrow().is_empty() {
            return None;
        }
        self.0.free.set(self.0.free.get() - n);
        Some(Permit { of: self.clone(), n })
    }

    /// Takes `n` permits and waits its turn for them. Waits for ever if `n` exceeds the permits of
    /// the semaphore; the caller must bound `n`.
    pub async fn acquire(&self, n: u64) -> Permit {
        if let Some(p) = self.try_acquire(n) {
            return p;
        }
        let waiter = Rc::new(Waiter {
            wants: n,
            granted: Cell::new(false),
            gone: Cell::new(false),
            waker: RefCell::new(None),
        });
        self.0.waiting.borrow_mut().push_back(waiter.clone());
        let mut guard = PermitWait { sem: self, waiter, taken: false };
        std::future::poll_fn(|cx| {
            if guard.waiter.granted.get() {
                return Poll::Ready(());
            }
            *guard.waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        guard.taken = true;
        Permit { of: self.clone(), n }
    }

    fn release(&self, n: u64) {
        self.0.free.set(self.0.free.get() + n);
        loop {
            let waker = {
                let mut waiting = self.0.waiting.borrow_mut();
                let Some(first) = waiting.front() else { return };
                if first.gone.get() {
                    waiting.pop_front();
                    continue;
                }
                if first.wants > self.0.free.get() {
                    return;
                }
                self.0.free.set(self.0.free.get() - first.wants);
                first.granted.set(true);
                let waker = first.waker.borrow_mut().take();
                waiting.pop_front();
                waker
            };
            if let Some(w) = waker {
                w.wake();
            }
        }
    }
}

/// Leaves the queue if the future of `acquire` is dropped.
struct PermitWait<'a> {
    sem: &'a Semaphore,
    waiter: Rc<Waiter>,
    taken: bool,
}

impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        self.waiter.gone.set(true);
        if self.waiter.granted.get() {
            self.sem.release(self.waiter.wants);
        } else {
            self.sem.release(0);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.release(self.n);
    }
}

/// A queue from many tasks to one. It is not bounded. Senders bound themselves, with a semaphore.
#[derive(Clone)]
pub struct Channel<T>(Rc<ChannelState<T>>);

struct ChannelState<T> {
    items: RefCell<VecDeque<T>>,
    closed: Cell<bool>,
    event: Event,
}

impl<T> Default for Channel<T> {
    fn default() -> Self {
        Channel(Rc::new(ChannelState {
            items: RefCell::new(VecDeque::new()),
            closed: Cell::new(false),
            event: Event::new(),
        }))
    }
}

impl<T> Channel<T> {
    /// Creates an empty, open channel.
    pub fn new() -> Channel<T> {
        Channel::default()
    }

    /// Adds an item. If the channel is [closed](Channel::close), the item is dropped.
    pub fn send(&self, item: T) {
        if !self.0.closed.get() {
            self.0.items.borrow_mut().push_back(item);
            self.0.event.notify();
        }
    }

    /// Waits for the next item. Returns `None` once the channel is closed and empty.
    pub async fn recv(&self) -> Option<T> {
        loop {
            if let Some(item) = self.try_recv() {
                return Some(item);
            }
            if self.0.closed.get() {
                return None;
            }
            self.0.event.wait().await;
        }
    }

    /// The next item, if there is one now.
    pub fn try_recv(&self) -> Option<T> {
        self.0.items.borrow_mut().pop_front()
    }

    /// Closes the channel for new items, and wakes its receiver.
    pub fn close(&self) {
        self.0.closed.set(true);
        self.0.event.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_forgets_those_that_do_not_wait_any_more() {
        let event = Event::new();
        let mut cx = Context::from_waker(Waker::noop());
        let waiting = || event.0.waiting.borrow().len();
        let mut stays = std::pin::pin!(event.wait());
        for _ in 0..3 {
            assert!(stays.as_mut().poll(&mut cx).is_pending());
            let mut leaves = Box::pin(event.wait());
            assert!(leaves.as_mut().poll(&mut cx).is_pending());
            assert_eq!(waiting(), 2);
            drop(leaves);
            assert_eq!(waiting(), 1);
        }
        event.notify();
        assert_eq!(waiting(), 0);
        assert!(stays.as_mut().poll(&mut cx).is_ready());
    }
}
