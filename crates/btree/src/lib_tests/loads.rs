//! Steps that are run until all they need is resident: one read for all who want a node.

use std::cell::{Cell, RefCell, RefMut};
use std::ops::DerefMut;
use std::rc::Rc;

use base::{Duration, Instant, Slice};
use rt::{Backend, Completion, Op as Operation, OpId, Order, Rt};

use super::*;

struct OnlyTime(Instant);

impl Backend for OnlyTime {
    fn submit(&mut self, _: OpId, op: Operation) {
        panic!("nothing to do {op:?} with");
    }
    fn wait(&mut self, until: Option<Instant>, _: &mut Vec<Completion>) -> Instant {
        self.0 = self.0.max(until.expect("a deadlock: nothing will ever happen"));
        self.0
    }
    fn now(&self) -> Instant {
        self.0
    }
}

/// A tree on a disk that takes a millisecond for a read, and a hundred for one that gives way.
#[derive(Clone)]
struct Shelf(Rc<Inner>, bool);

struct Inner {
    rt: Rt,
    state: RefCell<(Tree, Store)>,
    disk: BTreeMap<PoolAddr, Vec<u8>>,
    /// Reads that fail from now on.
    failing: Cell<u32>,
    reads: Cell<u32>,
}

impl Loader for Shelf {
    type State = (Tree, Store);
    type Error = String;
    type Pin = ();

    fn state(&mut self) -> impl DerefMut<Target = (Tree, Store)> {
        RefMut::map(self.0.state.borrow_mut(), |state| state)
    }

    fn store(state: &mut (Tree, Store)) -> &mut Store {
        &mut state.1
    }

    fn pin(_: &(Tree, Store), _: &Fault) {}

    const REASON: rt::Reason = rt::Reason::Tree;

    fn rt(&self) -> Rt {
        self.0.rt.clone()
    }

    fn gives_way(&self) -> bool {
        self.1
    }

    async fn read(&mut self, fault: &Fault, _: &()) -> Result<Slice, String> {
        self.0.reads.set(self.0.reads.get() + 1);
        let takes = if self.1 { 100 } else { 1 };
        self.0.rt.sleep(Duration::from_millis(takes)).await;
        if self.0.failing.get() > 0 {
            self.0.failing.set(self.0.failing.get() - 1);
            return Err("unreadable".to_owned());
        }
        Ok(self.0.rt.bufs().copy_of(&self.0.disk[&fault.ptr.addr]).freeze())
    }

    fn refused(_: &Fault, why: NodeError) -> String {
        why.to_string()
    }
}

async fn look(mut shelf: Shelf) -> Result<usize, String> {
    resident(&mut shelf, |(tree, store)| match tree.get(store, &7u64.to_be_bytes())? {
        Some(value) => Ok(value.len()),
        None => Err(Stop::Error("not there".to_owned())),
    })
    .await
}

fn shelf() -> (Rt, Shelf) {
    let mut w = ascending(10_000);
    commit(&mut w);
    let rt = Rt::new(Box::new(OnlyTime(Instant(0))), Order::Seeded(1), 4);
    let state = RefCell::new((Tree::open(ID, w.durable), Store::new(0)));
    let inner =
        Inner { rt: rt.clone(), state, disk: w.disk, failing: Cell::new(0), reads: Cell::new(0) };
    (rt, Shelf(Rc::new(inner), false))
}

#[test]
fn all_who_want_a_node_share_one_read() {
    let (rt, shelf) = shelf();
    let tasks: Vec<_> = (0..10).map(|_| rt.spawn(look(shelf.clone()))).collect();
    rt.block_on(async move {
        for t in tasks {
            assert_eq!(t.await, Some(Ok(12)));
        }
    });
    let height = u32::from(shelf.0.state.borrow().0.height());
    assert_eq!(shelf.0.reads.get(), height);
}

#[test]
fn a_read_that_fails_is_an_error_to_all_who_wait_for_it_and_to_nobody_later() {
    let (rt, shelf) = shelf();
    shelf.0.failing.set(1);
    let tasks: Vec<_> = (0..10).map(|_| rt.spawn(look(shelf.clone()))).collect();
    let later = shelf.clone();
    rt.block_on(async move {
        for t in tasks {
            assert_eq!(t.await, Some(Err("unreadable".to_owned())));
        }
        assert_eq!(later.0.reads.get(), 1);
        assert_eq!(look(later).await, Ok(12));
    });
}

#[test]
fn a_read_that_is_dropped_is_made_by_the_next() {
    let (rt, shelf) = shelf();
    let (r, other) = (rt.clone(), shelf.clone());
    let waits = rt.block_on(async move {
        let (one, two) = (other.clone(), other);
        let mut first = Box::pin(look(one));
        // It has begun to read, and is not waited for any longer than another has begun to wait for
        // it.
        let short = rt::sync::within(&mut first, r.sleep(Duration::from_micros(500))).await;
        assert!(short.is_none());
        let second = r.spawn(look(two));
        r.yield_now().await;
        drop(first);
        second.await
    });
    assert_eq!(waits, Some(Some(Ok(12))));
    assert_eq!(shelf.0.reads.get(), 1 + u32::from(shelf.0.state.borrow().0.height()));
}

/// Who must not wait reads a node itself that a background load is under way for. Others that must
/// not wait share that read, and those of the background share theirs.
#[test]
fn no_client_waits_for_a_read_that_gives_way() {
    let (rt, shelf) = shelf();
    let slow = Shelf(shelf.0.clone(), true);
    let background: Vec<_> = (0..2).map(|_| rt.spawn(look(slow.clone()))).collect();
    let (r, inner) = (rt.clone(), shelf.0.clone());
    let height = u64::from(inner.state.borrow().0.height());
    rt.block_on(async move {
        r.sleep(Duration::from_micros(500)).await;
        assert_eq!(inner.reads.get(), 1);
        let clients: Vec<_> = (0..2).map(|_| r.spawn(look(shelf.clone()))).collect();
        let from = r.now();
        for client in clients {
            assert_eq!(client.await, Some(Ok(12)));
        }
        assert_eq!(r.now().since(from), Duration::from_millis(height), "a read for each level");
        assert_eq!(u64::from(inner.reads.get()), 1 + height);
        for task in background {
            assert_eq!(task.await, Some(Ok(12)));
        }
        let took = r.now().since(Instant(0));
        assert_eq!(took, Duration::from_millis(100), "what clients have read is there");
        assert_eq!(u64::from(inner.reads.get()), 1 + height);
    });
}

/// A load of the background that fails is no error to it, where a client has read the node.
#[test]
fn a_background_read_that_fails_where_a_client_has_the_node_is_no_error() {
    let (rt, shelf) = shelf();
    let background = rt.spawn(look(Shelf(shelf.0.clone(), true)));
    let (r, inner) = (rt.clone(), shelf.0.clone());
    rt.block_on(async move {
        r.sleep(Duration::from_micros(500)).await;
        assert_eq!(look(shelf).await, Ok(12));
        inner.failing.set(1);
        assert_eq!(background.await, Some(Ok(12)));
        assert_eq!(inner.failing.get(), 0);
    });
}
