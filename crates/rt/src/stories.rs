//! Requests and jobs: for whom a task works, and what it waits for.
//!
//! A task works for a request, for a job, or for nothing that is told of; the tasks that it starts
//! work for the same. What it waits for is entered in its story ([`Rt::waits`]).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use base::VolumeId;
use ledger::{Ledger, Moment, Reason, RequestClass, Story, Token, WaitCause};
use pin_project_lite::pin_project;

use crate::exec::Rt;
use crate::thread::LONG;

impl Rt {
    /// The ledger in which the time of requests is told.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The request or job that the present task works for.
    pub fn story(&self) -> Option<Story> {
        self.0.story.borrow().clone()
    }

    /// The job of this name.
    pub fn job(&self, name: &'static str) -> Story {
        self.0.ledger.job(name, self.moment())
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
    pub fn request(&self, kind: RequestClass, offset: u64, len: u64) -> Request {
        let moment = self.moment();
        self.0.thread.borrow_mut().requested(moment.now);
        let waited = moment.late >= LONG;
        let began = if waited { moment.before() } else { moment };
        let story = self.ledger().begin(kind, offset, len, began);
        if waited {
            // Tells the time up to now.
            let wait = story.enter(Reason::Turn.into(), moment);
            story.leave(wait, moment);
        }
        Request { rt: self.clone(), story, replying: None }
    }

    /// From now on whom the task works for waits for `what`, until what is returned is dropped.
    pub fn tell(&self, what: impl Into<WaitCause>) -> WaitGuard {
        WaitGuard(self.story().map(|story| {
            let token = story.enter(what.into(), self.moment());
            (self.clone(), story, token)
        }))
    }

    /// Waits for `future`; told as a wait for `what`, if it has to wait at all.
    pub fn waits<F: Future>(&self, what: impl Into<WaitCause>, future: F) -> Waiting<'_, F> {
        Waiting {
            rt: self,
            story: None,
            on: WaitTarget::Cause(what.into()),
            inner: future,
            told: None,
        }
    }

    /// Does work of a job on the way of a task that works for something else.
    pub fn as_job<F: Future>(&self, job: &'static str, work: F) -> InStory<'_, F> {
        InStory { rt: self, story: self.job(job), work }
    }

    /// As [`Rt::waits`], for what a job does.
    pub fn waits_for_job<F: Future>(
        &self,
        reason: Reason,
        job: &'static str,
        future: F,
    ) -> Waiting<'_, F> {
        Waiting {
            rt: self,
            story: None,
            on: WaitTarget::Job(reason, job),
            inner: future,
            told: None,
        }
    }
}

/// The reason for a wait.
#[derive(Clone, Copy)]
enum WaitTarget {
    Cause(WaitCause),
    /// The work of the job of this name.
    Job(Reason, &'static str),
}

// The futures here are no `async fn`s: these keep their arguments twice, and what wraps a future
// that wraps another would be as large as all of them together, again and again.
pin_project! {
    /// A wait of a story: of the one given, or of the request or job that the present task works
    /// for. Most waits are over at once, and nothing is told of them.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Waiting<'a, F> {
        rt: &'a Rt,
        story: Option<&'a Story>,
        on: WaitTarget,
        #[pin]
        inner: F,
        // Set once the future has had to wait; ends the wait in the story, if there is one.
        told: Option<WaitGuard>,
    }
}

impl<F: Future> Future for Waiting<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if this.told.is_some() {
            let poll = this.inner.poll(cx);
            if poll.is_ready() {
                *this.told = None;
            }
            return poll;
        }
        let story = match *this.story {
            Some(story) => Some(story.clone()),
            None => this.rt.story(),
        };
        // Waits that are entered on the way stand inside of this one.
        let depth = story.as_ref().map_or(0, Story::depth);
        let poll = this.inner.poll(cx);
        if poll.is_pending() {
            let (rt, moment) = (*this.rt, this.rt.moment());
            *this.told = Some(WaitGuard(story.map(|story| {
                let token = match *this.on {
                    WaitTarget::Cause(what) => story.enter_at(depth, what, moment),
                    WaitTarget::Job(reason, job) => {
                        story.enter_job_at(depth, reason, &rt.job(job), moment)
                    }
                };
                (rt.clone(), story, token)
            })));
        }
        poll
    }
}

pin_project! {
    /// Work for a request or a job, on the way of a task that works for something else.
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct InStory<'a, F> {
        rt: &'a Rt,
        story: Story,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for InStory<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let own = this.rt.0.story.replace(Some(this.story.clone()));
        let poll = this.work.poll(cx);
        this.rt.0.story.replace(own);
        poll
    }
}

/// A wait that is told in a story, if there is one, until this is dropped.
pub struct WaitGuard(Option<(Rt, Story, Token)>);

impl WaitGuard {
    /// Changes the wait: from now on it is for something else.
    pub fn turn(&self, what: impl Into<WaitCause>) {
        if let Some((rt, story, token)) = &self.0 {
            story.turn(token, what.into(), rt.moment());
        }
    }
}

impl Drop for WaitGuard {
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
    /// Notes which volume it is about.
    pub fn set_volume(&self, volume: VolumeId) {
        self.story.set_volume(volume);
    }

    /// Waits for `future` before the request has a task of its own.
    pub fn waits<F: Future>(&self, what: impl Into<WaitCause>, future: F) -> Waiting<'_, F> {
        let (rt, story) = (&self.rt, Some(&self.story));
        Waiting { rt, story, on: WaitTarget::Cause(what.into()), inner: future, told: None }
    }

    /// Does a part of its work in a task that works for something else.
    pub fn works<F: Future>(&self, work: F) -> InStory<'_, F> {
        InStory { rt: &self.rt, story: self.story.clone(), work }
    }

    /// All is done, but for the client to take the reply.
    pub fn replies(&mut self) {
        let what = WaitCause::from(Reason::Reply);
        self.replying.get_or_insert_with(|| self.story.enter(what, self.rt.moment()));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.rt.ledger().end(&self.story, self.rt.moment());
    }
}
