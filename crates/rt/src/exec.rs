//! Tasks, timers and the slots of operations in flight.
//!
//! One thread, no locks but one: a waker must be `Send`, so the list of tasks that were woken is behind a mutex, which is
//! never contended. An operation has a slot from submission to completion; a future that is dropped before leaves its
//! slot behind as an orphan that keeps the buffers until the kernel gives them back. Slots are bounded: what exceeds them
//! waits in order in a backlog, inside this module, so submitting cannot fail.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use base::{BufPool, Duration, Instant, Prng};

use crate::seam::{Backend, Completion, FileId, Op, OpId};
use crate::sync::{OneShot, oneshot};

/// In which order tasks that are ready run.
#[derive(Clone, Debug)]
pub enum Order {
    /// As they became ready.
    Fifo,
    /// Picked by chance, from this seed.
    Seeded(u64),
}

/// After so many polls in a row completions are looked at, ready tasks or not.
const POLLS_PER_TURN: usize = 128;

#[allow(clippy::disallowed_types, reason = "a Waker must be Send; never contended")]
type Woken = std::sync::Mutex<VecDeque<usize>>;

struct TaskWaker {
    task: usize,
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        Wake::wake_by_ref(&self);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            lock(&self.woken).push_back(self.task);
        }
    }
}

#[allow(clippy::disallowed_types, reason = "see Woken")]
fn lock(woken: &Woken) -> std::sync::MutexGuard<'_, VecDeque<usize>> {
    woken.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// A place for a task. Its waker outlives the task and serves the next one: a waker that is still about then wakes that one for nothing, which
/// tasks bear.
struct Task {
    /// Absent while it is being polled, and between two tasks.
    body: Option<Body>,
    wake: Arc<TaskWaker>,
    /// The same as the task sees it; absent while it is being polled, so that a poll counts no reference up and down.
    waker: Option<Waker>,
}

type Callback = Box<dyn FnOnce(Completion)>;

struct State {
    backend: RefCell<Box<dyn Backend>>,
    bufs: BufPool,
    tasks: RefCell<Vec<Task>>,
    free_tasks: RefCell<Vec<usize>>,
    woken: Arc<Woken>,
    /// What was taken from `woken` and is polled before the rest: one lock for many tasks. Only in [`Order::Fifo`].
    ready: RefCell<VecDeque<usize>>,
    slots: RefCell<Slots>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_timer: Cell<u64>,
    settle: RefCell<Vec<Waker>>,
    now: Cell<Instant>,
    rng: RefCell<Prng>,
    seeded: bool,
    dead: Cell<bool>,
}

struct Slots {
    callbacks: Vec<Option<Callback>>,
    free: Vec<usize>,
    backlog: VecDeque<(Op, Callback)>,
}

/// A handle on the runtime; clones are the same runtime.
#[derive(Clone)]
pub struct Rt(Rc<State>);

impl Rt {
    /// A runtime over `backend` with at most `slots` operations in flight.
    pub fn new(backend: Box<dyn Backend>, order: Order, slots: usize) -> Rt {
        let now = backend.now();
        let (seeded, seed) = match order {
            Order::Fifo => (false, now.0 ^ 0x5EED),
            Order::Seeded(seed) => (true, seed),
        };
        Rt(Rc::new(State {
            backend: RefCell::new(backend),
            bufs: BufPool::new(64 << 20),
            tasks: RefCell::new(Vec::new()),
            free_tasks: RefCell::new(Vec::new()),
            woken: Arc::new(Woken::new(VecDeque::new())),
            ready: RefCell::new(VecDeque::new()),
            slots: RefCell::new(Slots {
                callbacks: (0..slots).map(|_| None).collect(),
                free: (0..slots).rev().collect(),
                backlog: VecDeque::new(),
            }),
            timers: RefCell::new(BTreeMap::new()),
            next_timer: Cell::new(0),
            settle: RefCell::new(Vec::new()),
            now: Cell::new(now),
            rng: RefCell::new(Prng::new(seed)),
            seeded,
            dead: Cell::new(false),
        }))
    }

    /// The buffers of this shard.
    pub fn bufs(&self) -> &BufPool {
        &self.0.bufs
    }

    /// The time as of the last `wait`: cheap, constant while a task runs.
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// The precise time, for measuring what a task does between two awaits.
    pub fn precise_now(&self) -> Instant {
        self.0.backend.borrow().now()
    }

    /// True if transfers of a file only copy memory.
    pub fn in_memory(&self, file: FileId) -> bool {
        self.0.backend.borrow().in_memory(file)
    }

    /// 64 random bits: by the seed under [`Order::Seeded`]. Not for secrets.
    pub fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next_u64()
    }

    /// Runs `future` as a task of its own. Dropping the handle leaves the task running.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (tx, rx) = oneshot();
        self.detach(async move { tx.send(future.await) });
        JoinHandle(rx)
    }

    /// Runs `future` as a task of its own that nobody waits for.
    pub fn detach(&self, future: impl Future<Output = ()> + 'static) {
        if self.0.dead.get() {
            return;
        }
        let body: Body = Box::pin(future);
        let mut tasks = self.0.tasks.borrow_mut();
        let task = self.0.free_tasks.borrow_mut().pop().unwrap_or_else(|| {
            let task = tasks.len();
            let wake = Arc::new(TaskWaker {
                task,
                queued: AtomicBool::new(false),
                woken: self.0.woken.clone(),
            });
            tasks.push(Task { body: None, waker: Some(Waker::from(wake.clone())), wake });
            task
        });
        tasks[task].body = Some(body);
        tasks[task].wake.wake_by_ref();
    }

    /// Runs everything until `future` is done. `None` if the runtime was [killed](Rt::kill) meanwhile.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        drop(self.spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        }));
        let mut done = Vec::new();
        let mut polls = 0;
        loop {
            if self.0.dead.get() {
                return None;
            }
            if let Some(value) = result.borrow_mut().take() {
                return Some(value);
            }
            if polls < POLLS_PER_TURN && self.poll_one() {
                polls += 1;
                continue;
            }
            let busy = polls >= POLLS_PER_TURN;
            polls = 0;
            // A task that yields for as long as it has work must not hold back who waits for a moment of rest.
            let waiting = std::mem::take(&mut *self.0.settle.borrow_mut());
            let settling = !waiting.is_empty();
            waiting.into_iter().for_each(Waker::wake);
            if settling && !busy {
                continue;
            }
            self.turn(busy, &mut done);
        }
    }

    /// Ends this runtime as a loss of power would: no task runs again, nothing more reaches the backend. Tasks are dropped, and
    /// what their destructors submit is ignored.
    pub fn kill(&self) {
        self.0.dead.set(true);
        loop {
            let tasks: Vec<_> =
                self.0.tasks.borrow_mut().iter_mut().filter_map(|t| t.body.take()).collect();
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        let callbacks: Vec<_> =
            self.0.slots.borrow_mut().callbacks.iter_mut().filter_map(Option::take).collect();
        let backlog = std::mem::take(&mut self.0.slots.borrow_mut().backlog);
        drop((callbacks, backlog));
    }

    /// Takes the number of a task that is ready.
    fn next_ready(&self) -> Option<usize> {
        if self.0.seeded {
            let mut woken = lock(&self.0.woken);
            if woken.len() < 2 {
                return woken.pop_front();
            }
            let i = self.0.rng.borrow_mut().below(woken.len() as u64) as usize;
            return woken.swap_remove_back(i);
        }
        let mut ready = self.0.ready.borrow_mut();
        if ready.is_empty() {
            std::mem::swap(&mut *ready, &mut *lock(&self.0.woken));
        }
        ready.pop_front()
    }

    /// Polls one ready task; false if there is none.
    fn poll_one(&self) -> bool {
        let Some(task) = self.next_ready() else { return false };
        let (mut body, waker) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let t = &mut tasks[task];
            t.wake.queued.store(false, Ordering::Relaxed);
            let Some(body) = t.body.take() else { return true };
            (body, t.waker.take().unwrap_or_else(|| Waker::from(t.wake.clone())))
        };
        let poll = body.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = self.0.tasks.borrow_mut();
        tasks[task].waker = Some(waker);
        if poll.is_pending() && !self.0.dead.get() {
            tasks[task].body = Some(body);
        } else {
            drop(tasks);
            // Before its number is free: what the task owned may spawn and wake as it goes.
            drop(body);
            self.0.free_tasks.borrow_mut().push(task);
        }
        true
    }

    /// Waits for the world once: completions, then timers.
    fn turn(&self, only_look: bool, done: &mut Vec<Completion>) {
        let until = if only_look {
            Some(self.now())
        } else {
            self.0.timers.borrow().keys().next().map(|k| k.0)
        };
        let now = self.0.backend.borrow_mut().wait(until, done);
        self.0.now.set(now);
        for completion in done.drain(..) {
            let callback = {
                let mut slots = self.0.slots.borrow_mut();
                let slot = completion.id.0 as usize;
                let callback = slots.callbacks[slot].take();
                slots.free.push(slot);
                callback
            };
            if let Some(callback) = callback {
                callback(completion);
            }
        }
        loop {
            let next = {
                let mut slots = self.0.slots.borrow_mut();
                if slots.free.is_empty() { None } else { slots.backlog.pop_front() }
            };
            let Some((op, callback)) = next else { break };
            self.submit(op, callback);
        }
        let mut timers = self.0.timers.borrow_mut();
        while let Some(entry) = timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            entry.remove().wake();
        }
    }

    /// Starts `op`; `callback` runs at its completion, outside of any task. It must not block and should only note and wake.
    pub fn submit(&self, op: Op, callback: impl FnOnce(Completion) + 'static) {
        self.submit_boxed(op, Box::new(callback));
    }

    fn submit_boxed(&self, op: Op, callback: Callback) {
        if self.0.dead.get() {
            return;
        }
        let mut slots = self.0.slots.borrow_mut();
        match slots.free.pop() {
            Some(slot) => {
                slots.callbacks[slot] = Some(callback);
                drop(slots);
                self.0.backend.borrow_mut().submit(OpId(slot as u64), op);
            }
            None => slots.backlog.push_back((op, callback)),
        }
    }

    /// Starts `op` at once and waits for its completion.
    pub fn op(&self, op: Op) -> impl Future<Output = Completion> + use<> {
        let (tx, rx) = oneshot();
        self.submit(op, move |c| tx.send(c));
        // A sender that is dropped unsent means that the runtime was killed: this task never runs again.
        async move {
            match rx.await {
                Some(c) => c,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until `when`.
    pub async fn sleep_until(&self, when: Instant) {
        Sleep { rt: self.clone(), when, key: None }.await;
    }

    /// Waits for `d`.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now().after(d)).await;
    }

    /// Waits until no other task is ready: the moment before the runtime would wait for the world. What is gathered until then
    /// is submitted together (plug). Where tasks are always ready (long work that yields) it waits a bounded number of polls.
    pub async fn settled(&self) {
        let mut asked = false;
        std::future::poll_fn(|cx| {
            if asked {
                return Poll::Ready(());
            }
            asked = true;
            self.0.settle.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Lets other ready tasks run first: for long work, cut into slices.
    pub async fn yield_now(&self) {
        let mut asked = false;
        std::future::poll_fn(|cx| {
            if asked {
                return Poll::Ready(());
            }
            asked = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// The result of a spawned task; `None` if it was dropped unfinished.
pub struct JoinHandle<T>(OneShot<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Option<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx)
    }
}

struct Sleep {
    rt: Rt,
    when: Instant,
    key: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.when {
            return Poll::Ready(());
        }
        let key = *match self.key {
            Some(ref key) => key,
            None => {
                let n = self.rt.0.next_timer.get();
                self.rt.0.next_timer.set(n + 1);
                let key = (self.when, n);
                self.key.insert(key)
            }
        };
        self.rt.0.timers.borrow_mut().insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.rt.0.timers.borrow_mut().remove(&key);
        }
    }
}
