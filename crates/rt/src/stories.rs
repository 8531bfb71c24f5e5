//! Requests and jobs: for whom a task works, and what it waits for.
//!
//! A task works for a request, for a job, or for nothing that is told of; the tasks that it starts
//! work for the same. What it waits for is entered in its story ([`Rt::waits`]).

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use base::{Duration, Instant};
use ledger::{Kind, Ledger, Moment, Reason, Story, Token, What};

use crate::exec::Rt;
use crate::thread::LONG;

impl Rt {
    /// Where the time of requests is told.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The request or job that the present task works for.
    pub fn story(&self) -> Option<Story> {
        self.0.story.borrow().clone()
    }

    /// The job of this name.
    pub fn job(&self, name: &'static str) -> Story {
        self.0.ledger.job(name, self.now())
    }

    /// The present time, with how late it is.
    pub fn moment(&self) -> Moment {
        self.0.moment.get()
    }

    /// Runs `work` as a new task that works for a request.
    pub fn detach_for<F: Future<Output = ()> + 'static>(
        &self,
        request: Request,
        work: impl FnOnce(Request) -> F,
    ) {
        let story = request.story.clone();
        self.start(Box::pin(work(request)), false, Some(story));
    }

    /// A request that has just arrived; or a while ago, if the thread could not look for long.
    pub fn request(&self, kind: Kind, offset: u64, len: u64) -> Request {
        let moment = self.moment();
        self.0.thread.borrow_mut().requested(moment.now);
        let late = if moment.late >= LONG { moment.late } else { Duration::ZERO };
        let began = Instant(moment.now.0.saturating_sub(late.as_nanos() as u64));
        let story = Story::of_request(kind, offset, len, began);
        if !late.is_zero() {
            // Tells the time up to now.
            let wait = story.enter(Reason::Turn.into(), moment);
            story.leave(wait, moment);
        }
        Request { rt: self.clone(), story, replying: None }
    }

    /// From now on whom the task works for waits for `what`, until what is returned is dropped.
    pub fn tell(&self, what: impl Into<What>) -> Told {
        Told(self.story().map(|story| {
            let token = story.enter(what.into(), self.moment());
            (self.clone(), story, token)
        }))
    }

    /// Waits for `future`; told as a wait for `what`.
    pub async fn waits<T>(&self, what: impl Into<What>, future: impl Future<Output = T>) -> T {
        let _told = self.tell(what);
        future.await
    }

    /// Does work of a job on the way of a task that works for something else.
    pub async fn as_job<F: Future>(&self, job: &'static str, work: F) -> F::Output {
        let work = pin!(work);
        AsStory { rt: self, story: self.job(job), work }.await
    }

    /// The same, for what a job does.
    pub async fn waits_for_job<T>(
        &self,
        reason: Reason,
        job: &'static str,
        future: impl Future<Output = T>,
    ) -> T {
        let _told = Told(self.story().map(|story| {
            let token = story.enter_job(reason, &self.job(job), self.moment());
            (self.clone(), story, token)
        }));
        future.await
    }
}

/// Work for a request or a job, on the way of a task that works for something else.
struct AsStory<'a, F> {
    rt: &'a Rt,
    story: Story,
    work: Pin<&'a mut F>,
}

impl<F: Future> Future for AsStory<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let own = self.rt.0.story.replace(Some(self.story.clone()));
        let poll = self.work.as_mut().poll(cx);
        self.rt.0.story.replace(own);
        poll
    }
}

/// A wait that is told in a story, if there is one, until this is dropped.
pub struct Told(Option<(Rt, Story, Token)>);

impl Told {
    /// It waits for something else now.
    pub fn turn(&self, what: impl Into<What>) {
        if let Some((rt, story, token)) = &self.0 {
            story.turn(token, what.into(), rt.moment());
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some((rt, story, token)) = self.0.take() {
            story.leave(token, rt.moment());
        }
    }
}

/// A request of a client, from its arrival until this is dropped: then it is answered, and counted
/// in the ledger.
pub struct Request {
    rt: Rt,
    story: Story,
    replying: Option<Token>,
}

impl Request {
    /// Waits for `future` before the request has a task of its own.
    pub async fn waits<T>(&self, what: impl Into<What>, future: impl Future<Output = T>) -> T {
        let token = self.story.enter(what.into(), self.rt.moment());
        let _told = Told(Some((self.rt.clone(), self.story.clone(), token)));
        future.await
    }

    /// Does a part of its work in a task that works for something else.
    pub async fn works<F: Future>(&self, work: F) -> F::Output {
        let work = pin!(work);
        AsStory { rt: &self.rt, story: self.story.clone(), work }.await
    }

    /// All is done, but for the client to take the reply.
    pub fn replies(&mut self) {
        let what = What::from(Reason::Reply);
        self.replying.get_or_insert_with(|| self.story.enter(what, self.rt.moment()));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.rt.ledger().end(&self.story, self.rt.moment());
    }
}
