//! Tests of the executor on a backend where only time passes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::{Duration, Instant};

use crate::seam::{Backend, Completion, FileId, Op, OpId, Payload};
use crate::sync::{Channel, Event, Semaphore};
use crate::{Order, Rt};

struct OnlyTime(Instant);

impl Backend for OnlyTime {
    fn submit(&mut self, _: OpId, op: Op) {
        panic!("this backend cannot do {op:?}");
    }
    fn wait(&mut self, until: Option<Instant>, _: &mut Vec<Completion>) -> Instant {
        self.0 = self.0.max(until.expect("deadlock: no timer is set"));
        self.0
    }
    fn now(&self) -> Instant {
        self.0
    }
}

fn rt(order: Order) -> Rt {
    Rt::new(Box::new(OnlyTime(Instant(0))), order, 4)
}

#[test]
fn sleeps_end_in_order_of_time() {
    let rt = rt(Order::Fifo);
    let log = Rc::new(RefCell::new(Vec::new()));
    for ms in [30, 10, 20] {
        let (rt2, log) = (rt.clone(), log.clone());
        drop(rt.spawn(async move {
            rt2.sleep(Duration::from_millis(ms)).await;
            log.borrow_mut().push((ms, rt2.now()));
        }));
    }
    let rt2 = rt.clone();
    rt.block_on(async move { rt2.sleep(Duration::from_millis(40)).await });
    let at = |ms: u64| (ms, Instant(ms * 1_000_000));
    assert_eq!(*log.borrow(), [at(10), at(20), at(30)]);
}

#[test]
fn one_seed_gives_one_order() {
    let run = |seed| {
        let rt = rt(Order::Seeded(seed));
        let log = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|i| {
                let (rt2, log) = (rt.clone(), log.clone());
                rt.spawn(async move {
                    rt2.yield_now().await;
                    log.borrow_mut().push(i);
                })
            })
            .collect();
        rt.block_on(async move {
            for t in tasks {
                t.await;
            }
        });
        log.take()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(3), (0..20).collect::<Vec<_>>());
}

#[test]
fn semaphore_hands_over_in_order_and_survives_dropped_waiters() {
    let rt = rt(Order::Fifo);
    let sem = Semaphore::new(2);
    let log = Rc::new(RefCell::new(Vec::new()));
    let held = sem.try_acquire(2).expect("free");
    let (s, l, r) = (sem.clone(), log.clone(), rt.clone());
    rt.block_on(async move {
        let mut dropped = Box::pin(s.acquire(2));
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(
                dropped.as_mut().poll(cx).is_pending()
            ))
            .await
        );
        for want in [2u64, 1, 1] {
            let (s, l) = (s.clone(), l.clone());
            drop(r.spawn(async move {
                let _p = s.acquire(want).await;
                l.borrow_mut().push(want);
            }));
        }
        r.settled().await;
        assert!(s.try_acquire(1).is_none());
        drop(dropped);
        drop(held);
        r.settled().await;
    });
    assert_eq!(*log.borrow(), [2, 1, 1]);
    assert_eq!(sem.free(), 2);
}

#[test]
fn a_channel_an_event_and_a_join_deliver() {
    let rt = rt(Order::Fifo);
    let ch = Channel::new();
    let (c, r) = (ch.clone(), rt.clone());
    let sum = rt.spawn(async move {
        let mut sum = 0;
        while let Some(x) = c.recv().await {
            sum += x;
        }
        sum
    });
    let got = rt.block_on(async move {
        let ev = Event::new();
        let waiting = ev.wait();
        ev.notify();
        waiting.await;
        (1..=4).for_each(|x| ch.send(x));
        r.yield_now().await;
        ch.close();
        sum.await
    });
    assert_eq!(got, Some(Some(10)));
}

#[test]
fn kill_drops_tasks_and_ends_block_on() {
    let rt = rt(Order::Fifo);
    let alive = Rc::new(());
    let (a, r, r2) = (alive.clone(), rt.clone(), rt.clone());
    drop(rt.spawn(async move {
        let _a = a;
        std::future::pending::<()>().await;
    }));
    let out = rt.block_on(async move {
        r2.yield_now().await;
        r.kill();
        std::future::pending::<u8>().await
    });
    assert_eq!(out, None);
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn settled_ends_even_if_a_task_is_always_ready() {
    let rt = rt(Order::Fifo);
    let r = rt.clone();
    drop(rt.spawn(async move {
        loop {
            r.yield_now().await;
        }
    }));
    let r = rt.clone();
    assert_eq!(rt.block_on(async move { r.settled().await }), Some(()));
}

/// Long work in slices: what comes between two of them does not wait for them all.
#[test]
fn the_world_is_looked_at_between_two_slices() {
    struct Looked(OnlyTime, Rc<Cell<u32>>);
    impl Backend for Looked {
        fn submit(&mut self, id: OpId, op: Op) {
            self.0.submit(id, op);
        }
        fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
            self.1.set(self.1.get() + 1);
            self.0.wait(until, done)
        }
        fn now(&self) -> Instant {
            self.0.now()
        }
    }
    for order in [Order::Fifo, Order::Seeded(5)] {
        let looks = Rc::new(Cell::new(0));
        let rt = Rt::new(Box::new(Looked(OnlyTime(Instant(0)), looks.clone())), order, 4);
        let r = rt.clone();
        rt.block_on(async move {
            for slices in 0..50 {
                assert!(looks.get() >= slices, "{} looks in {slices} slices", looks.get());
                r.yield_now().await;
            }
        });
    }
}

/// A backend whose clock goes on while tasks run. Each look at the world is noted.
struct Running {
    clock: Rc<Cell<u64>>,
    looks: Rc<RefCell<Vec<u64>>>,
}

impl Backend for Running {
    fn submit(&mut self, _: OpId, op: Op) {
        panic!("this backend cannot do {op:?}");
    }
    fn wait(&mut self, until: Option<Instant>, _: &mut Vec<Completion>) -> Instant {
        let until = until.expect("deadlock: no timer is set");
        self.clock.set(self.clock.get().max(until.0));
        self.looks.borrow_mut().push(self.clock.get());
        Instant(self.clock.get())
    }
    fn now(&self) -> Instant {
        Instant(self.clock.get())
    }
}

/// Many tasks are ready, and each poll takes long: neither requests nor what was gathered to be
/// submitted wait for all of them.
#[test]
fn a_turn_is_bounded_in_time_however_many_tasks_are_ready() {
    for order in [Order::Fifo, Order::Seeded(5)] {
        let seeded = matches!(order, Order::Seeded(_));
        let (clock, looks) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let backend = Running { clock: clock.clone(), looks: looks.clone() };
        let rt = Rt::new(Box::new(backend), order, 4);
        let (r, now) = (rt.clone(), clock.clone());
        let gathered = rt.spawn(async move {
            let asked = now.get();
            r.settled().await;
            now.get() - asked
        });
        let poll = 100_000;
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let now = clock.clone();
                rt.spawn(async move { now.set(now.get() + poll) })
            })
            .collect();
        let waited = rt.block_on(async move {
            for task in tasks {
                task.await;
            }
            gathered.await
        });
        let looks = looks.borrow();
        let longest = looks.windows(2).map(|w| w[1] - w[0]).max().expect("looks");
        assert!(longest <= 4 * poll, "{longest} ns without a look at the world");
        assert!(looks.len() > 25, "{} looks", looks.len());
        let waited = waited.flatten().expect("it ends");
        assert!(seeded || waited <= 4 * poll, "{waited} ns until what was gathered is submitted");
    }
}

#[test]
fn the_background_runs_beside_others_a_little_and_alone_as_it_likes() {
    let rt = rt(Order::Fifo);
    let polls = Rc::new(Cell::new(0));
    let (r, counted) = (rt.clone(), polls.clone());
    rt.detach_background("test", async move {
        // What it starts is of the background too.
        let (r2, counted2) = (r.clone(), counted.clone());
        r.detach(async move {
            loop {
                counted2.set(counted2.get() + 1);
                r2.yield_now().await;
            }
        });
        loop {
            counted.set(counted.get() + 1);
            r.yield_now().await;
        }
    });
    let (r, counted) = (rt.clone(), polls.clone());
    rt.block_on(async move {
        for _ in 0..10_000 {
            r.yield_now().await;
        }
        let beside = counted.get();
        assert!((100..5_100).contains(&beside), "{beside} polls beside 10,000 others");
        // Others are not held up: what is settled is settled, whatever waits in the background.
        let before = counted.get();
        r.settled().await;
        assert!(counted.get() <= before + 4, "it is told before the background goes on");
    });
    rt.kill();
}

#[test]
fn tasks_work_for_the_request_that_started_them_and_jobs_for_themselves() {
    let rt = rt(Order::Fifo);
    let r = rt.clone();
    rt.block_on(async move {
        assert!(r.story().is_none());
        let request = r.request(crate::RequestClass::Write, 0, 4096);
        let (done, ended) = crate::sync::oneshot();
        let rt = r.clone();
        r.detach_for(request, |request| async move {
            let own = rt.clone();
            let part = rt.spawn(async move { own.story().is_some_and(|s| s.job_name().is_none()) });
            assert_eq!(part.await, Some(true));
            let own = rt.clone();
            let work = async move {
                own.yield_now().await;
                own.story().and_then(|s| s.job_name())
            };
            let named = rt.waits_for_job(crate::Reason::Commit, "a job", rt.as_job("a job", work));
            assert_eq!(named.await, Some("a job"));
            // Its own again.
            assert!(rt.story().is_some_and(|s| s.job_name().is_none()));
            drop(request);
            done.send(());
        });
        ended.await;
        let rt = r.clone();
        let (done, ended) = crate::sync::oneshot();
        r.detach_job("another", async move {
            let own = rt.clone();
            let name = rt.spawn(async move { own.story().and_then(|s| s.job_name()) });
            assert_eq!(name.await, Some(Some("another")));
            done.send(());
        });
        ended.await;
        assert!(r.story().is_none());
        let question = ledger::explain::Question {
            volume: None,
            kind: None,
            since: r.now(),
            slower_than_ns: 0,
        };
        let kinds = ledger::explain::explain(r.ledger(), &question, r.moment()).kinds;
        assert_eq!(
            kinds.iter().map(|k| (k.kind, k.count)).collect::<Vec<_>>(),
            [(crate::RequestClass::Write, 1)]
        );
    });
}

/// A backend that does flushes one after the other, and tells in which order they came.
struct OneByOne {
    order: Rc<RefCell<Vec<u32>>>,
    begun: VecDeque<OpId>,
}

impl Backend for OneByOne {
    fn submit(&mut self, id: OpId, op: Op) {
        let Op::Flush { file } = op else { panic!("this backend cannot do {op:?}") };
        self.order.borrow_mut().push(file.0);
        self.begun.push_back(id);
    }
    fn wait(&mut self, _: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let ended = |id| Completion { id, result: Ok(0), payload: Payload::None };
        done.extend(self.begun.pop_front().map(ended));
        Instant(0)
    }
    fn now(&self) -> Instant {
        Instant(0)
    }
}

#[test]
fn operations_begin_in_order_where_there_are_more_than_slots() {
    let order = Rc::default();
    let backend = OneByOne { order: Rc::clone(&order), begun: VecDeque::new() };
    let rt = Rt::new(Box::new(backend), Order::Fifo, 2);
    let flush = |n| Op::Flush { file: FileId(n) };
    // A queue hands the next request over when one has ended.
    let again = rt.clone();
    rt.submit(flush(0), move |_| again.submit(flush(4), |_| ()));
    for n in 1..3 {
        rt.submit(flush(n), |_| ());
    }
    let last = rt.op(flush(3));
    rt.block_on(async move { drop(last.await) });
    rt.block_on(rt.op(flush(5)));
    assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 5]);
}
