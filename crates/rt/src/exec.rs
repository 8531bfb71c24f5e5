//! Tasks, timers, and the slots of operations in flight.
//!
//! Everything runs on one thread. There is one lock: a [`Waker`] must be `Send`, so a mutex
//! protects the list of woken tasks ([`crate::ready`]). It is never contended.
//!
//! An operation has a slot from submission to completion. If its future is dropped before, the slot
//! stays behind as an orphan, and the backend keeps the buffers until the operation completes. The
//! number of slots is bounded. Further operations wait in order in a backlog inside this module, so
//! that submitting cannot fail.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use base::{BufPool, Duration, Instant, Prng};
use ledger::{Ledger, Moment, Story};
use pin_project_lite::pin_project;

use crate::ready::{ReadyQueue, TaskWaker};
use crate::seam::{Backend, Completion, DeviceKind, FileId, Op, OpId};
use crate::sync::{OneShot, OneShotSender, oneshot};
use crate::thread::Thread;

/// The order in which ready tasks run.
#[derive(Clone, Debug)]
pub enum Order {
    /// The order in which they became ready.
    Fifo,
    /// The same. Random numbers follow from this seed, which no other process has.
    Live(u64),
    /// A random order that follows from this seed.
    Seeded(u64),
}

/// The largest number of polls in a row. Then the background has its turn, even if more tasks are
/// ready.
const POLLS_PER_TURN: usize = 128;

/// The longest time between two looks at the world while tasks are ready, but for the poll that
/// exceeds it. A poll may take a tenth of a millisecond, and many tasks may be ready.
const TURN: Duration = Duration::from_micros(200);

/// The clock is read after so many polls: reading it costs a fair part of a short poll.
const TIMED_POLLS: usize = 2;

/// The largest number of polls of background tasks in a row, and how long they take at most,
/// together. Each look for completions costs about as much as a request: with a few polls between
/// two looks, requests come one by one, and so do their replies.
const BACKGROUND_POLLS: usize = 64;
const BACKGROUND_SLICE: Duration = Duration::from_micros(150);

pub(crate) type Body = Pin<Box<dyn Future<Output = ()>>>;

/// A place for a task. Its waker outlives the task and is used by the next task in the same place.
/// A stale waker therefore may wake that task without a reason, which tasks must tolerate.
struct Task {
    /// `None` while the task is polled, and while the place is free.
    body: Option<Body>,
    wake: Arc<TaskWaker>,
    /// The same waker as the task sees it. It is moved out while the task is polled, so that a poll
    /// does not change reference counts.
    waker: Option<Waker>,
    /// The request, or the job, that it works for.
    story: Option<Story>,
}

pin_project! {
    // A task that sends what its future is to a handle. An `async` block would have the future
    // twice: as what it captures, and as what it waits for.
    struct Sends<F: Future> {
        #[pin]
        future: F,
        to: Option<OneShotSender<F::Output>>,
    }
}

impl<F: Future> Future for Sends<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.future.poll(cx).map(|value| {
            if let Some(to) = this.to.take() {
                to.send(value);
            }
        })
    }
}

type Callback = Box<dyn FnOnce(Completion)>;

pub(crate) struct State {
    backend: RefCell<Box<dyn Backend>>,
    bufs: BufPool,
    tasks: RefCell<Vec<Task>>,
    free_tasks: RefCell<Vec<usize>>,
    woken: Arc<ReadyQueue>,
    /// Tasks that were taken from `woken` and run before the rest, so that one lock serves many
    /// tasks. Used only with [`Order::Fifo`].
    ready: RefCell<VecDeque<usize>>,
    /// The task that is polled is one of the background.
    in_background: Cell<bool>,
    /// A task that is not of the background has yielded: the runtime looks at the world.
    yielded: Cell<bool>,
    /// The story of the task that is polled.
    pub(crate) story: RefCell<Option<Story>>,
    pub(crate) ledger: Ledger,
    pub(crate) thread: RefCell<Thread>,
    pub(crate) moment: Cell<Moment>,
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

/// A handle on the runtime. Clones refer to the same runtime.
#[derive(Clone)]
pub struct Rt(pub(crate) Rc<State>);

impl Rt {
    /// Creates a runtime on `backend` with at most `slots` operations in flight.
    pub fn new(backend: Box<dyn Backend>, order: Order, slots: usize) -> Rt {
        let now = backend.now();
        let (seeded, seed) = match order {
            Order::Fifo => (false, now.0 ^ 0x5EED),
            Order::Live(seed) => (false, seed),
            Order::Seeded(seed) => (true, seed),
        };
        Rt(Rc::new(State {
            backend: RefCell::new(backend),
            bufs: BufPool::new(64 << 20),
            tasks: RefCell::new(Vec::new()),
            free_tasks: RefCell::new(Vec::new()),
            woken: Arc::default(),
            ready: RefCell::new(VecDeque::new()),
            in_background: Cell::new(false),
            yielded: Cell::new(false),
            story: RefCell::new(None),
            ledger: Ledger::default(),
            thread: RefCell::new(Thread::new(now)),
            moment: Cell::new(Moment::at(now)),
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

    /// The buffer pool of this shard.
    pub fn bufs(&self) -> &BufPool {
        &self.0.bufs
    }

    /// The time of the last [`Backend::wait`]. It is cheap, and constant while a task runs.
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// The precise time, for measuring what a task does between two awaits.
    pub fn precise_now(&self) -> Instant {
        self.0.backend.borrow().now()
    }

    /// The kind of the file, or of the device below it.
    pub fn kind(&self, file: FileId) -> DeviceKind {
        self.0.backend.borrow().kind(file)
    }

    /// Returns 64 random bits, which follow from the seed under [`Order::Seeded`]. Not for secrets.
    pub fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next_u64()
    }

    /// Runs `future` as a new task. Dropping the handle leaves the task running.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (tx, rx) = oneshot();
        self.detach(Sends { future, to: Some(tx) });
        JoinHandle(rx)
    }

    /// Runs `future` as a new task that has no handle. It is one of the background if the task that
    /// calls this is.
    pub fn detach(&self, future: impl Future<Output = ()> + 'static) {
        self.start(Box::pin(future), self.0.in_background.get(), self.story());
    }

    /// Runs `future` as a new task of the job of this name. What it waits for, and how long it
    /// keeps the thread busy, is told of requests that wait for it.
    pub fn detach_job(&self, job: &'static str, future: impl Future<Output = ()> + 'static) {
        self.start(Box::pin(future), self.0.in_background.get(), Some(self.job(job)));
    }

    /// Runs `future` as a new task of the background and of a job, as all tasks are that it starts.
    /// Such tasks run when no other is ready; a few of them do whenever the runtime looks for
    /// completions. Under [`Order::Seeded`] they are like all others.
    pub fn detach_background(&self, job: &'static str, future: impl Future<Output = ()> + 'static) {
        self.start(Box::pin(future), true, Some(self.job(job)));
    }

    pub(crate) fn start(&self, body: Body, background: bool, story: Option<Story>) {
        if self.0.dead.get() {
            return;
        }
        let mut tasks = self.0.tasks.borrow_mut();
        let task = self.0.free_tasks.borrow_mut().pop().unwrap_or_else(|| {
            let task = tasks.len();
            let wake = Arc::new(TaskWaker {
                task,
                queued: AtomicBool::new(false),
                background: AtomicBool::new(false),
                woken: self.0.woken.clone(),
            });
            let waker = Some(Waker::from(wake.clone()));
            tasks.push(Task { body: None, waker, wake, story: None });
            task
        });
        tasks[task].body = Some(body);
        tasks[task].story = story;
        tasks[task].wake.background.store(background && !self.0.seeded, Ordering::Relaxed);
        tasks[task].wake.wake_by_ref();
    }

    /// Runs all tasks until `future` ends. Returns `None` if the runtime was [killed](Rt::kill)
    /// meanwhile.
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
            if polls < POLLS_PER_TURN && self.poll_one(false) {
                polls += 1;
                let late = polls % TIMED_POLLS == 0 && self.has_polled_for(TURN);
                if late {
                    // Gathered entries are submitted first, too.
                    self.settle_before_others();
                }
                if self.0.yielded.take() || late {
                    self.turn(true, &mut done);
                }
                continue;
            }
            let busy = polls >= POLLS_PER_TURN;
            polls = 0;
            // A task that yields again and again must not hold back a task that waits in `settled`.
            let settling = self.end_settling();
            if settling && !busy {
                continue;
            }
            let ready = self.poll_background() && self.has_ready();
            self.turn(busy || ready, &mut done);
        }
    }

    /// Ends this runtime as a power failure would. No task runs again, and nothing more reaches the
    /// backend. Tasks are dropped, and what their destructors submit is ignored.
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

    /// True if the last look at the world was so long ago. A simulation has no clock that goes on
    /// while a task runs: there it is never so.
    fn has_polled_for(&self, time: Duration) -> bool {
        self.precise_now().since(self.now()) >= time
    }

    /// Wakes the tasks that wait in [`Rt::settled`]. False: there are none.
    fn end_settling(&self) -> bool {
        let waiting = std::mem::take(&mut *self.0.settle.borrow_mut());
        let any = !waiting.is_empty();
        waiting.into_iter().for_each(Waker::wake);
        any
    }

    /// The same; they run before all that is ready. Under [`Order::Seeded`] the seed says when.
    fn settle_before_others(&self) {
        let before = self.0.woken.of(false).len();
        if self.end_settling() && !self.0.seeded {
            let mut ready = self.0.ready.borrow_mut();
            let mut woken = self.0.woken.of(false);
            woken.drain(before..).rev().for_each(|task| ready.push_front(task));
        }
    }

    fn has_ready(&self) -> bool {
        let any =
            [false, true].into_iter().any(|background| !self.0.woken.of(background).is_empty());
        any || !self.0.ready.borrow().is_empty()
    }

    /// Takes the next ready task.
    fn next_ready(&self, background: bool) -> Option<usize> {
        if background {
            return self.0.woken.of(true).pop_front();
        }
        if self.0.seeded {
            let mut woken = self.0.woken.of(false);
            if woken.len() < 2 {
                return woken.pop_front();
            }
            let i = self.0.rng.borrow_mut().below(woken.len() as u64) as usize;
            return woken.swap_remove_back(i);
        }
        let mut ready = self.0.ready.borrow_mut();
        if ready.is_empty() {
            std::mem::swap(&mut *ready, &mut *self.0.woken.of(false));
        }
        ready.pop_front()
    }

    /// Polls tasks of the background for a while; false if none was ready.
    fn poll_background(&self) -> bool {
        if !self.poll_one(true) {
            return false;
        }
        let end = self.precise_now().after(BACKGROUND_SLICE);
        let mut polls = 1;
        while polls < BACKGROUND_POLLS && self.precise_now() < end && self.poll_one(true) {
            polls += 1;
        }
        true
    }

    /// Polls one ready task. Returns false if there is none.
    fn poll_one(&self, background: bool) -> bool {
        let Some(task) = self.next_ready(background) else { return false };
        let (mut body, waker) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let t = &mut tasks[task];
            t.wake.queued.store(false, Ordering::Relaxed);
            let Some(body) = t.body.take() else { return true };
            // The class of the task itself: the place may have had another task when it was woken.
            self.0.in_background.set(t.wake.background.load(Ordering::Relaxed));
            self.0.story.replace(t.story.take());
            (body, t.waker.take().unwrap_or_else(|| Waker::from(t.wake.clone())))
        };
        let job = self.0.story.borrow().as_ref().and_then(Story::job);
        let began = job.map(|job| (job, self.precise_now()));
        let poll = body.as_mut().poll(&mut Context::from_waker(&waker));
        if let Some((job, began)) = began {
            let took = self.precise_now().since(began);
            self.0.thread.borrow_mut().job_ran(job, took);
        }
        self.0.in_background.set(false);
        let story = self.0.story.take();
        let mut tasks = self.0.tasks.borrow_mut();
        tasks[task].waker = Some(waker);
        if poll.is_pending() && !self.0.dead.get() {
            tasks[task].body = Some(body);
            tasks[task].story = story;
        } else {
            drop(tasks);
            drop(story);
            // Drop the body before its place becomes free: destructors may spawn and wake tasks.
            drop(body);
            self.0.free_tasks.borrow_mut().push(task);
        }
        true
    }

    /// Waits for the backend once, then runs the callbacks of completions and wakes timers that are
    /// due.
    fn turn(&self, poll: bool, done: &mut Vec<Completion>) {
        let until =
            if poll { Some(self.now()) } else { self.0.timers.borrow().keys().next().map(|k| k.0) };
        let until = self.0.thread.borrow().wakes_by(self.now(), until);
        let asked = self.precise_now();
        let now = self.0.backend.borrow_mut().wait(until, done);
        self.0.now.set(now);
        let ran = || self.0.backend.borrow().ran();
        self.0.moment.set(self.0.thread.borrow_mut().turned(asked, until, now, ran));
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
        self.start_backlog();
        let mut timers = self.0.timers.borrow_mut();
        while let Some(entry) = timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            entry.remove().wake();
        }
    }

    /// Starts `op`. `callback` runs when it completes, outside of any task. The callback must not
    /// block, and should only record the result and wake tasks.
    pub fn submit(&self, op: Op, callback: impl FnOnce(Completion) + 'static) {
        self.submit_boxed(op, Box::new(callback));
    }

    fn submit_boxed(&self, op: Op, callback: Callback) {
        if self.0.dead.get() {
            return;
        }
        // Through the backlog, also where a slot is free: a callback that submits must not overtake
        // what waits.
        self.0.slots.borrow_mut().backlog.push_back((op, callback));
        self.start_backlog();
    }

    /// Starts operations of the backlog, in order, while slots are free.
    fn start_backlog(&self) {
        loop {
            let (slot, op) = {
                let mut slots = self.0.slots.borrow_mut();
                let Some(&slot) = slots.free.last() else { return };
                let Some((op, callback)) = slots.backlog.pop_front() else { return };
                slots.free.pop();
                slots.callbacks[slot] = Some(callback);
                (slot, op)
            };
            self.0.backend.borrow_mut().submit(OpId(slot as u64), op);
        }
    }

    /// Starts `op` at once and waits for its completion.
    pub fn op(&self, op: Op) -> impl Future<Output = Completion> + use<> {
        let (tx, rx) = oneshot();
        self.submit(op, move |c| tx.send(c));
        // The sender is dropped without a value only if the runtime is killed. Then this task never
        // runs again.
        async move {
            match rx.await {
                Some(c) => c,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the time `when`.
    pub async fn sleep_until(&self, when: Instant) {
        Sleep { rt: self.clone(), when, key: None }.await;
    }

    /// Waits for the duration `d`.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now().after(d)).await;
    }

    /// Waits until no other task is ready, which is the moment before the runtime would wait for
    /// the backend. Operations that are gathered until then are submitted together (plugging). If
    /// tasks are always ready, because long work yields again and again, it waits for a bounded
    /// number of polls, and for a bounded time where these are long.
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

    /// Lets other ready tasks run first, and what has come meanwhile. Long work calls it between
    /// slices.
    pub async fn yield_now(&self) {
        let mut asked = false;
        std::future::poll_fn(|cx| {
            if asked {
                return Poll::Ready(());
            }
            asked = true;
            // The background looks at the clock instead.
            self.0.yielded.set(!self.0.in_background.get());
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Waits for the result of a spawned task. Returns `None` if the task was dropped before its end.
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
