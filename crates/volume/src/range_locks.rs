//! Locks on ranges of blocks, granted in the order of arrival.
//!
//! A request waits for every earlier one whose range overlaps its own, granted or still waiting, so
//! none starves. The number of requests in flight is small (it is bounded by the front ends), so a
//! list is searched.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use rt::sync::Event;

struct Entry {
    ticket: u64,
    range: Range<u64>,
    /// Told when the request has ended; made when someone waits.
    done: Option<Event>,
}

/// Locks on ranges of one volume's blocks.
#[derive(Clone, Default)]
pub struct RangeLocks(Rc<State>);

#[derive(Default)]
struct State {
    /// In the order of arrival.
    entries: RefCell<Vec<Entry>>,
    next: Cell<u64>,
}

/// A place in the line for a lock; a lock when it was [granted](RangeGuard::granted). Until it is
/// dropped.
pub struct RangeGuard {
    locks: RangeLocks,
    ticket: u64,
    range: Range<u64>,
}

impl RangeLocks {
    /// Takes a place in the line: those that come later and overlap `range` are kept out from now
    /// on.
    pub fn queue(&self, range: Range<u64>) -> RangeGuard {
        let ticket = self.0.next.get();
        self.0.next.set(ticket + 1);
        self.0.entries.borrow_mut().push(Entry { ticket, range: range.clone(), done: None });
        RangeGuard { locks: self.clone(), ticket, range }
    }

    /// The lock, if no request's range overlaps `range`.
    pub fn try_lock(&self, range: Range<u64>) -> Option<RangeGuard> {
        let entries = self.0.entries.borrow();
        let taken = entries.iter().any(|e| e.range.start < range.end && range.start < e.range.end);
        drop(entries);
        (!taken).then(|| self.queue(range))
    }

    /// Waits until no earlier request's range overlaps `range`, and keeps later ones out.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard {
        let guard = self.queue(range);
        guard.granted().await;
        guard
    }
}

impl RangeGuard {
    /// Waits until no earlier request's range overlaps this one.
    pub async fn granted(&self) {
        loop {
            let wait = {
                let mut entries = self.locks.0.entries.borrow_mut();
                let before = entries.iter_mut().take_while(|e| e.ticket < self.ticket);
                let range = &self.range;
                let mut blockers =
                    before.filter(|e| e.range.start < range.end && range.start < e.range.end);
                blockers.next().map(|e| e.done.get_or_insert_default().wait())
            };
            match wait {
                Some(wait) => wait.await,
                None => return,
            }
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut entries = self.locks.0.entries.borrow_mut();
        if let Some(i) = entries.iter().position(|e| e.ticket == self.ticket) {
            let entry = entries.remove(i);
            drop(entries);
            if let Some(done) = entry.done {
                done.notify();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;
    use rt::{Order, Rt};
    use sim::World;

    #[test]
    fn overlapping_requests_run_one_after_the_other_and_others_do_not_wait() {
        for seed in 0..50 {
            let rt = Rt::new(World::new(seed).backend(), Order::Seeded(seed), 8);
            let locks = RangeLocks::default();
            let held: Rc<RefCell<Vec<Range<u64>>>> = Rc::default();
            let most = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..40)
                .map(|_| {
                    let (rt2, locks, held, most) =
                        (rt.clone(), locks.clone(), held.clone(), most.clone());
                    let start = rt.random() % 30;
                    let range = start..start + 1 + rt.random() % 8;
                    let nap = Duration::from_micros(1 + rt.random() % 50);
                    rt.spawn(async move {
                        let _guard = locks.lock(range.clone()).await;
                        assert!(
                            held.borrow()
                                .iter()
                                .all(|h| h.end <= range.start || range.end <= h.start)
                        );
                        held.borrow_mut().push(range.clone());
                        most.set(most.get().max(held.borrow().len()));
                        rt2.sleep(nap).await;
                        held.borrow_mut().retain(|h| *h != range);
                    })
                })
                .collect();
            let done = rt.block_on(async move {
                for t in tasks {
                    assert!(t.await.is_some());
                }
            });
            assert!(done.is_some() && locks.0.entries.borrow().is_empty());
            assert!(most.get() > 1, "ranges apart are held together");
        }
    }

    #[test]
    fn one_that_stops_waiting_is_out_of_the_way() {
        let rt = Rt::new(World::new(1).backend(), Order::Fifo, 8);
        let locks = RangeLocks::default();
        let rt2 = rt.clone();
        rt.block_on(async move {
            let first = locks.lock(0..10).await;
            let mut second = Box::pin(locks.lock(5..15));
            let pending = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(second.as_mut().poll(cx).is_pending())
            })
            .await;
            assert!(pending);
            let (l, r) = (locks.clone(), rt2.clone());
            let third = rt2.spawn(async move {
                let _g = l.lock(12..13).await;
                r.now()
            });
            rt2.settled().await;
            drop(second);
            assert!(third.await.is_some());
            drop(first);
        });
    }
}
