//! Bytes of memory for payloads, which all exports share. Limits and shares have admitted a request
//! before (`volume/src/admission.rs`).
//!
//! Requests that wait stand in a line for each export. These are served by start-time fair queueing
//! (Goyal, Vin, Cheng 1996) by bytes, so that an export whose clients ask for much does not make
//! another wait for more than the request that is next.
//!
//! An export holds at most seven times what it leaves free (dynamic thresholds, Choudhury and
//! Hahne 1998): one alone holds seven eighths of the bytes, two together fourteen of fifteen
//! parts, and so on. So something is free for one that holds nothing, however many there are whose
//! clients do not take their replies. Only a request that meets nothing at all may take more, as
//! the largest one may have to.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rt::sync::{OneShotSender, oneshot};

/// An export holds at most so many times the bytes that are free.
const TIMES: u64 = 7;
/// A request of an export that holds nothing passes others that wait if it is at most this part of
/// the bytes that are free.
const SMALL: u64 = 8;

/// Requests of one export that wait.
struct Line<T> {
    number: u64,
    /// The start tag of the next request that arrives, unless the clock is ahead of it.
    next_start: u64,
    /// The start tag, the bytes and the sender that tells each of these requests.
    waiting: VecDeque<(u64, u64, T)>,
}

/// The bytes and the lines: a pure state machine.
struct Stock<T> {
    total: u64,
    free: u64,
    held: BTreeMap<u64, u64>,
    lines: Vec<Line<T>>,
    /// The start tag of the request that was served last.
    clock: u64,
}

impl<T> Stock<T> {
    fn new(total: u64) -> Stock<T> {
        Stock { total, free: total, held: BTreeMap::new(), lines: Vec::new(), clock: 0 }
    }

    fn held(&self, line: u64) -> u64 {
        self.held.get(&line).copied().unwrap_or_default()
    }

    /// True if a line may take so many bytes now.
    fn may_take(&self, line: u64, bytes: u64) -> bool {
        let Some(left) = self.free.checked_sub(bytes) else { return false };
        self.free == self.total || self.held(line) + bytes <= left.saturating_mul(TIMES)
    }

    /// Takes bytes for a request of this line, if it may have them and no request waits.
    fn take_at_once(&mut self, line: u64, bytes: u64) -> bool {
        let takes = self.lines.is_empty() && self.may_take(line, bytes);
        if takes {
            self.take(line, bytes);
        }
        takes
    }

    fn take(&mut self, line: u64, bytes: u64) {
        self.free -= bytes;
        *self.held.entry(line).or_default() += bytes;
    }

    fn give_back(&mut self, line: u64, bytes: u64) {
        self.free += bytes;
        if let Some(held) = self.held.get_mut(&line) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&line);
            }
        }
    }

    /// Adds a request to its line.
    fn push(&mut self, line: u64, bytes: u64, to: T) {
        let place = self.lines.iter().position(|l| l.number == line).unwrap_or_else(|| {
            let next_start = self.clock;
            self.lines.push(Line { number: line, next_start, waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        let line = &mut self.lines[place];
        let start = line.next_start.max(self.clock);
        line.next_start = start + bytes;
        line.waiting.push_back((start, bytes, to));
    }

    /// The line whose first request gets its bytes next: the one with the least start tag. A line
    /// that holds something, and may not have more, waits for itself, and all others pass it. Where
    /// one that holds nothing has to wait for bytes of others, only what is small passes it, so
    /// that these come together.
    fn next_line(&self) -> Option<usize> {
        let first = |place: usize| self.lines[place].waiting.front().map(|w| (w.0, w.1, place));
        let waiting = || (0..self.lines.len()).filter_map(first);
        let may_take = |place: usize, bytes| self.may_take(self.lines[place].number, bytes);
        let holds = |place: usize| self.held(self.lines[place].number) > 0;
        let (_, bytes, place) =
            waiting().filter(|w| may_take(w.2, w.1) || !holds(w.2)).min_by_key(|w| (w.0, w.2))?;
        if may_take(place, bytes) {
            return Some(place);
        }
        let passes = |w: &(u64, u64, usize)| !holds(w.2) && w.1 <= self.free / SMALL;
        Some(waiting().filter(passes).min_by_key(|w| (w.0, w.2))?.2)
    }

    /// The next request that gets its bytes, if one may have them.
    fn next(&mut self) -> Option<(T, u64, u64)> {
        let place = self.next_line()?;
        let line = &mut self.lines[place];
        let (start, bytes, to) = line.waiting.pop_front()?;
        let number = line.number;
        // One that passed others may have a later tag than these.
        self.clock = self.clock.max(start);
        // A line that is empty stays until the clock has come to what it had: a client that always
        // has one request is no new one each time.
        self.lines.retain(|l| !l.waiting.is_empty() || l.next_start > self.clock);
        if self.lines.iter().all(|l| l.waiting.is_empty()) {
            self.lines.clear();
            self.clock = 0;
        }
        self.take(number, bytes);
        Some((to, number, bytes))
    }
}

struct State {
    stock: RefCell<Stock<OneShotSender<Bytes>>>,
    total: u64,
    /// Bytes are being handed out: what changes meanwhile is seen before that ends.
    handing_out: Cell<bool>,
}

/// Bytes for payloads; clones are the same.
#[derive(Clone)]
pub(super) struct Budget(Rc<State>);

/// Bytes that a payload may take, given back when this is dropped.
pub(super) struct Bytes {
    of: Budget,
    line: u64,
    bytes: u64,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.of.0.stock.borrow_mut().give_back(self.line, self.bytes);
        self.of.hand_out();
    }
}

impl Budget {
    /// A budget of so many bytes. The largest request takes no more.
    pub fn new(total: u64) -> Budget {
        let stock = RefCell::new(Stock::new(total));
        Budget(Rc::new(State { stock, total, handing_out: Cell::new(false) }))
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> u64 {
        self.0.total - self.0.stock.borrow().free
    }

    /// Takes bytes if a request of this line need not wait for them.
    pub fn try_take(&self, line: u64, bytes: u64) -> Option<Bytes> {
        let takes = self.0.stock.borrow_mut().take_at_once(line, bytes);
        takes.then(|| Bytes { of: self.clone(), line, bytes })
    }

    /// Takes bytes, and waits for them if need be. The caller bounds them by the largest request.
    pub async fn take(&self, line: u64, bytes: u64) -> Bytes {
        let (tx, rx) = oneshot();
        self.0.stock.borrow_mut().push(line, bytes, tx);
        self.hand_out();
        match rx.await {
            Some(bytes) => bytes,
            None => unreachable!("a request in line gets its bytes"),
        }
    }

    fn hand_out(&self) {
        // Bytes for a task that is gone come back at once, which leads here again.
        if self.0.handing_out.replace(true) {
            return;
        }
        loop {
            let next = self.0.stock.borrow_mut().next();
            let Some((to, line, bytes)) = next else { break };
            to.send(Bytes { of: self.clone(), line, bytes });
        }
        self.0.handing_out.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Ends the oldest request that holds bytes, again and again; which lines were served.
    fn serve(stock: &mut Stock<u32>, holding: &mut VecDeque<(u64, u64)>, n: usize) -> Vec<u64> {
        let mut served = Vec::new();
        while served.len() < n {
            while let Some((_, line, bytes)) = stock.next() {
                served.push(line);
                holding.push_back((line, bytes));
            }
            let Some((line, bytes)) = holding.pop_front() else { break };
            stock.give_back(line, bytes);
        }
        served
    }

    #[test]
    fn a_line_is_not_behind_all_of_another() {
        let mut stock = Stock::new(32 * MIB);
        let mut holding = VecDeque::new();
        while stock.take_at_once(1, MIB) {
            holding.push_back((1, MIB));
        }
        assert_eq!(holding.len(), 28);
        (0..100).for_each(|i| stock.push(1, MIB, i));
        assert_eq!(serve(&mut stock, &mut holding, 10), [1; 10]);
        stock.push(2, 4096, 0);
        assert_eq!(serve(&mut stock, &mut holding, 2)[..2], [2, 1]);
    }

    #[test]
    fn one_line_leaves_some_to_others() {
        let mut stock = Stock::new(64 * MIB);
        (0..56).for_each(|_| assert!(stock.take_at_once(1, MIB)));
        assert!(!stock.take_at_once(1, MIB));
        (0..9).for_each(|i| stock.push(1, MIB, i));
        assert!(stock.next().is_none());
        for _ in 0..7 {
            stock.push(2, MIB, 0);
            assert_eq!(stock.next(), Some((0, 2, MIB)));
        }
        assert!(stock.next().is_none());
        // Where two lines hold all that they may, a third still gets something, and a fourth.
        for line in 3..6 {
            let bytes = stock.free * 7 / 8;
            assert!(bytes > 4096, "{bytes}");
            stock.push(line, bytes, 0);
            assert_eq!(stock.next(), Some((0, line, bytes)));
        }
        // Where the largest request is all that there is, none of it is kept back.
        let mut stock: Stock<u32> = Stock::new(32 * MIB);
        assert!(stock.take_at_once(1, 32 * MIB));
    }

    /// A large request waits for bytes of clients that do not take their replies. Small ones of
    /// other lines pass it, and it has its turn when the bytes come back.
    #[test]
    fn a_large_request_does_not_stop_small_ones_of_others() {
        let mut stock = Stock::new(64 * MIB);
        (0..40).for_each(|_| assert!(stock.take_at_once(1, MIB)));
        stock.push(2, 32 * MIB, 0);
        assert_eq!(stock.next(), None);
        for line in 3..9 {
            stock.push(line, 64 << 10, 1);
            assert_eq!(stock.next(), Some((1, line, 64 << 10)));
        }
        stock.push(3, 64 << 10, 2);
        stock.push(9, 8 * MIB, 3);
        assert_eq!(stock.next(), None, "one has passed it already, one is not small");
        (0..13).for_each(|_| stock.give_back(1, MIB));
        assert_eq!(stock.next(), Some((0, 2, 32 * MIB)));
    }

    #[test]
    fn lines_get_the_same_bytes() {
        let mut stock = Stock::new(32 * MIB);
        let mut holding = VecDeque::new();
        for i in 0..4000 {
            stock.push(1, 64 << 10, i);
        }
        (0..400).for_each(|i| stock.push(2, MIB, i));
        (0..400).for_each(|i| stock.push(3, MIB, i));
        let served = serve(&mut stock, &mut holding, 1000);
        let bytes = |line: u64| {
            let n = served.iter().filter(|l| **l == line).count() as u64;
            if line == 1 { n * (64 << 10) } else { n * MIB }
        };
        let (least, most) = (bytes(1).min(bytes(2)).min(bytes(3)), bytes(1).max(bytes(2)));
        assert!(most.max(bytes(3)) - least <= 2 * MIB, "{} {} {}", bytes(1), bytes(2), bytes(3));
    }

    #[test]
    fn requests_of_a_line_are_served_in_order_and_large_ones_too() {
        let mut stock = Stock::new(32 * MIB);
        assert!(stock.take_at_once(1, MIB));
        stock.push(1, 32 * MIB, 0);
        stock.push(1, 4096, 1);
        stock.push(2, 32 * MIB, 2);
        assert!(!stock.take_at_once(3, 4096), "it would overtake");
        assert_eq!(stock.next(), None);
        stock.give_back(1, MIB);
        assert_eq!(stock.next(), Some((0, 1, 32 * MIB)));
        assert_eq!(stock.next(), None);
        stock.give_back(1, 32 * MIB);
        assert_eq!(stock.next(), Some((2, 2, 32 * MIB)));
        stock.give_back(2, 32 * MIB);
        assert_eq!(stock.next(), Some((1, 1, 4096)));
        stock.give_back(1, 4096);
        assert_eq!((stock.free, stock.held.len(), stock.lines.len()), (32 * MIB, 0, 0));
    }
}
