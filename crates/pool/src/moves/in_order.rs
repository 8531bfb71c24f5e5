//! Writes of a move reach its devices in the order of addresses.
//!
//! Runs are read side by side, and their reads end in any order. Each run has a [`Turn`]: its write
//! is handed to the devices' queues after the writes of all runs before it. The queues keep the
//! order of the writes of moves (`crates/queue/src/elevator.rs`). So the writes are ascending, and
//! several of them may be in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use base::Result;
use rt::sync::Event;

/// The writes of one move, in order.
#[derive(Clone, Default)]
pub(super) struct Line(Rc<Inner>);

#[derive(Default)]
struct Inner {
    /// The number of turns that were given out, and the number of the current one.
    given: Cell<u64>,
    now: Cell<u64>,
    /// Later turns that have ended already, as their runs need no write.
    over: RefCell<BTreeSet<u64>>,
    moved: Event,
}

/// A place in the line; over when it is dropped.
pub(super) struct Turn(Line, u64);

impl Line {
    /// The turn after all that were given out.
    pub fn next(&self) -> Turn {
        let number = self.0.given.get();
        self.0.given.set(number + 1);
        Turn(self.clone(), number)
    }

    fn end(&self, number: u64) {
        let mut over = self.0.over.borrow_mut();
        over.insert(number);
        while over.remove(&self.0.now.get()) {
            self.0.now.set(self.0.now.get() + 1);
        }
        self.0.moved.notify();
    }
}

impl Turn {
    /// Waits until it is this one's turn.
    pub async fn comes(&self) {
        loop {
            let moved = self.0.0.moved.wait();
            if self.0.0.now.get() == self.1 {
                return;
            }
            moved.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// Begins all of these writes, ends the turn `last_of` if there is one, and waits for the writes to
/// end. Returns the first error.
pub(super) async fn write_all(
    writes: impl IntoIterator<Item = impl Future<Output = Result<()>>>,
    mut last_of: Option<Turn>,
) -> Result<()> {
    let mut writes: Vec<Option<Pin<Box<_>>>> =
        writes.into_iter().map(|write| Some(Box::pin(write))).collect();
    let mut outcome = Ok(());
    poll_fn(|cx| {
        for place in &mut writes {
            let Some(write) = place else { continue };
            if let Poll::Ready(ended) = write.as_mut().poll(cx) {
                outcome = std::mem::replace(&mut outcome, Ok(())).and(ended);
                *place = None;
            }
        }
        last_of = None;
        if writes.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_whatever_the_order_of_their_ends() {
        let line = Line::default();
        let turns: Vec<Turn> = (0..4).map(|_| line.next()).collect();
        let now = || line.0.now.get();
        let mut turns = turns.into_iter();
        let (a, b, c, d) = (turns.next(), turns.next(), turns.next(), turns.next());
        assert_eq!(now(), 0);
        drop(c);
        assert_eq!(now(), 0, "two are before it");
        drop(a);
        assert_eq!(now(), 1);
        drop(b);
        assert_eq!(now(), 3, "the third is over already");
        drop(d);
        assert!(line.0.over.borrow().is_empty());
    }
}
