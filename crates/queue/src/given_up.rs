//! A device that is given up: those that wait for it hear at once that it is gone, though it still
//! has their requests. It may hang for ever.
//!
//! The requests that it has may yet take effect, so it takes no others until they have ended. A
//! flow that had begun before may go on to its next request later, also where the device had none
//! when it was given up. So handles of before send nothing any more ([`Device`](crate::Device)).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rt::sync::OneShot;

/// The tasks that wait for requests to a device, and whether the device is given up.
#[derive(Default)]
pub(crate) struct DeviceWaiters {
    /// The device is given up, and has requests from before.
    still: Cell<bool>,
    /// The number of times that the device was given up.
    times: Cell<u64>,
    /// Places of the tasks that wait, and the free ones among them.
    waiting: RefCell<(Vec<Option<Waker>>, Vec<usize>)>,
}

/// The end of a request; `None`: the device was given up first.
pub(crate) struct RequestEnd<'a, T> {
    end: OneShot<T>,
    all: &'a DeviceWaiters,
    seen: u64,
    place: Option<usize>,
}

impl DeviceWaiters {
    /// True while a device that was given up has requests from before.
    pub fn still(&self) -> bool {
        self.still.get()
    }

    /// The number of times that the device was given up.
    pub fn times(&self) -> u64 {
        self.times.get()
    }

    /// The device is given up.
    pub fn begin(&self) {
        self.still.set(true);
        self.times.set(self.times.get() + 1);
        for waker in self.waiting.borrow_mut().0.iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }

    /// The device has nothing from before any more.
    pub fn end(&self) {
        self.still.set(false);
    }

    /// Waits for the end of a request, or until the device is given up.
    pub fn or<T>(&self, end: OneShot<T>) -> RequestEnd<'_, T> {
        RequestEnd { end, all: self, seen: self.times.get(), place: None }
    }
}

impl<T> Future for RequestEnd<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let all = self.all;
        let end = Pin::new(&mut self.end).poll(cx);
        if let Poll::Ready(Some(end)) = end {
            return Poll::Ready(Some(end));
        }
        if all.times.get() != self.seen {
            return Poll::Ready(None);
        }
        if end.is_ready() {
            // The runtime was killed: the task never runs again.
            return Poll::Pending;
        }
        let (wakers, free) = &mut *all.waiting.borrow_mut();
        let place = self.place.or_else(|| free.pop()).unwrap_or(wakers.len());
        if place == wakers.len() {
            wakers.push(None);
        }
        wakers[place] = Some(cx.waker().clone());
        self.place = Some(place);
        Poll::Pending
    }
}

impl<T> Drop for RequestEnd<'_, T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let (wakers, free) = &mut *self.all.waiting.borrow_mut();
            wakers[place] = None;
            free.push(place);
        }
    }
}

#[cfg(test)]
#[path = "given_up_tests.rs"]
mod tests;
