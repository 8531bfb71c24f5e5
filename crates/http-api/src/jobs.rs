//! Long work that was asked for: it runs on after its request was answered, and its end is kept.
//!
//! The progress of a job follows from what the status says of the cache. The total is the largest
//! number of dirty bytes since the start of the job. Bytes that are not dirty any more are done,
//! and so are those that were carried since: a pass carries all its bytes before any of them is
//! clean. Whatever clients write meanwhile counts as the work of the job, too. The engine counts
//! nothing for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use model::job::{self, JobProgress, JobState};
use model::{Answer, Failure, FailureKind, Request, request};
use tokio::task::{AbortHandle, JoinHandle};

use crate::engine::{Engine, Outcome, ask};

/// The number of jobs that are kept.
const KEPT: usize = 64;
/// The number of jobs that run at a time.
const RUNNING: usize = 8;

struct Job {
    id: u64,
    /// The request to the engine.
    request: Request,
    began: Instant,
    progress: Option<Progress>,
    waits: Option<AbortHandle>,
    /// The outcome of the job, and the seconds that it took.
    ended: Option<(Outcome, f64)>,
}

/// The bytes that the cache has to write back, and those that it has carried since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Writeback {
    pub dirty: u64,
    pub carried: u64,
}

/// The progress of a job that writes back, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Progress {
    done: u64,
    total: u64,
    carried_before: u64,
}

impl Progress {
    fn begin(now: Writeback) -> Progress {
        Progress { done: 0, total: now.dirty, carried_before: now.carried }
    }

    fn note(&mut self, now: Writeback) {
        self.total = self.total.max(now.dirty);
        let carried = now.carried.saturating_sub(self.carried_before).min(self.total);
        self.done = self.done.max(self.total - now.dirty).max(carried);
    }

    fn end(&mut self) {
        self.done = self.total;
    }
}

/// The way to give a job up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cancel {
    /// The wait for the job ends. Work that the engine has begun goes on to its end.
    Wait,
    /// The engine is asked for this first, and may refuse.
    Ask(request::CacheCancel),
}

impl Job {
    fn shown(&self) -> job::Job {
        let seconds =
            self.ended.as_ref().map_or_else(|| self.began.elapsed().as_secs_f64(), |e| e.1);
        let progress =
            self.progress.map(|p| JobProgress { done_bytes: p.done, total_bytes: p.total });
        let (state, outcome, error) = match &self.ended {
            None => (JobState::Running, None, None),
            Some((Ok(Answer::Gc(gc)), _)) => (JobState::Done, Some((**gc).clone()), None),
            Some((Ok(_), _)) => (JobState::Done, None, None),
            Some((Err(e), _)) if e.kind == FailureKind::Cancelled => {
                (JobState::Cancelled, None, None)
            }
            Some((Err(e), _)) => (JobState::Failed, None, Some(e.clone())),
        };
        let request = self.request.word().to_owned();
        job::Job { job: self.id, request, state, seconds, progress, outcome, error }
    }
}

/// The request that gives a job up, if the engine has to be asked for that.
fn cancel_of(request: &Request) -> Option<request::CacheCancel> {
    match request {
        Request::CacheDetach(_) => Some(request::CacheCancel { volume: None }),
        Request::SetCacheMode(mode) => {
            Some(request::CacheCancel { volume: Some(mode.volume.clone()) })
        }
        _ => None,
    }
}

#[derive(Default)]
struct KeptJobs {
    last: u64,
    jobs: VecDeque<Job>,
}

/// All jobs; clones are the same.
#[derive(Clone, Default)]
pub struct Jobs(Arc<Mutex<KeptJobs>>);

impl Jobs {
    fn with<T>(&self, work: impl FnOnce(&mut KeptJobs) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a job; with what there is to write back, if the job does that. Returns its number,
    /// and the task that waits for its end. Errors: `busy` where too many run.
    pub fn start(
        &self,
        engine: &Arc<dyn Engine>,
        request: Request,
        now: Option<Writeback>,
    ) -> Result<(u64, JoinHandle<Outcome>), Failure> {
        let id = self.with(|kept| {
            if kept.jobs.iter().filter(|job| job.ended.is_none()).count() >= RUNNING {
                let text = format!("{RUNNING} jobs run already: wait until one has ended");
                return Err(Failure::new(FailureKind::Busy, text));
            }
            kept.last += 1;
            if kept.jobs.len() == KEPT {
                // At least one of them does not run.
                let oldest = kept.jobs.iter().position(|job| job.ended.is_some());
                oldest.map(|at| kept.jobs.remove(at));
            }
            kept.jobs.push_back(Job {
                id: kept.last,
                request: request.clone(),
                began: Instant::now(),
                progress: now.map(Progress::begin),
                waits: None,
                ended: None,
            });
            Ok(kept.last)
        })?;
        let (jobs, engine) = (self.clone(), engine.clone());
        let running = tokio::spawn(async move {
            let answer = ask(&engine, request).await;
            jobs.end(id, answer.clone());
            answer
        });
        self.with(|kept| {
            if let Some(job) = kept.jobs.iter_mut().find(|job| job.id == id) {
                job.waits = Some(running.abort_handle());
            }
        });
        Ok((id, running))
    }

    fn end(&self, id: u64, answer: Outcome) {
        self.with(|kept| {
            let found = kept.jobs.iter_mut().find(|job| job.id == id && job.ended.is_none());
            if let Some(job) = found {
                if let (Ok(_), Some(progress)) = (&answer, &mut job.progress) {
                    progress.end();
                }
                job.ended = Some((answer, job.began.elapsed().as_secs_f64()));
            }
        });
    }

    /// Returns the way to give a job up. Errors: there is none of this number, or it has ended;
    /// another one that asks for the same came before it.
    pub fn how_to_cancel(&self, id: u64) -> Result<Cancel, Failure> {
        self.with(|kept| {
            let found = kept.jobs.iter().find(|job| job.id == id);
            let job = found.ok_or_else(|| none(id))?;
            if job.ended.is_some() {
                return Err(Failure::new(
                    FailureKind::Refused,
                    format!("job {id} has ended already"),
                ));
            }
            let Some(cancel) = cancel_of(&job.request) else { return Ok(Cancel::Wait) };
            let same = |other: &&Job| {
                let asks = cancel_of(&other.request).as_ref() == Some(&cancel);
                asks && other.ended.is_none() && other.id < id
            };
            if let Some(first) = kept.jobs.iter().find(same) {
                let text = format!("job {id} waits for job {}: cancel that one first", first.id);
                return Err(Failure::new(FailureKind::Refused, text));
            }
            Ok(Cancel::Ask(cancel))
        })
    }

    /// Gives a job up: nothing waits for its end any more.
    pub fn cancel(&self, id: u64) {
        self.end(id, Err(Failure::cancelled()));
        let waits = |kept: &mut KeptJobs| {
            let job = kept.jobs.iter_mut().find(|job| job.id == id);
            job.and_then(|job| job.waits.take())
        };
        if let Some(waits) = self.with(waits) {
            waits.abort();
        }
    }

    /// Notes how much there is to write back now.
    pub fn note(&self, now: Writeback) {
        self.with(|kept| {
            for job in kept.jobs.iter_mut().filter(|job| job.ended.is_none()) {
                if let Some(progress) = &mut job.progress {
                    progress.note(now);
                }
            }
        });
    }

    /// All jobs, the oldest first.
    pub fn list(&self) -> Vec<job::Job> {
        self.with(|kept| kept.jobs.iter().map(Job::shown).collect())
    }

    /// One job. Errors: there is none of this number.
    pub fn find(&self, id: u64) -> Result<job::Job, Failure> {
        let found = self.with(|kept| kept.jobs.iter().find(|job| job.id == id).map(Job::shown));
        found.ok_or_else(|| none(id))
    }

    /// The number of jobs that run.
    pub fn running(&self) -> usize {
        self.with(|kept| kept.jobs.iter().filter(|job| job.ended.is_none()).count())
    }
}

fn none(id: u64) -> Failure {
    Failure::new(FailureKind::NotFound, format!("there is no job {id} any more"))
}

#[cfg(test)]
mod tests {
    use model::cache::GcStatus;
    use model::volume::CacheMode;

    use super::*;
    use crate::engine::Reply;

    /// Answers at once with so many passes, or never.
    struct Quick(Option<u64>);

    impl Engine for Quick {
        fn ask(&self, _: Request, reply: Reply) {
            match self.0 {
                Some(passes) => reply(Ok(GcStatus { passes, ..GcStatus::default() }.into())),
                // A reply that is dropped is an answer too.
                None => std::mem::forget(reply),
            }
        }
    }

    fn gc() -> Request {
        request::Gc {}.into()
    }

    #[test]
    fn the_last_ones_are_kept_and_few_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, quick) = (Jobs::default(), Arc::new(Quick(Some(7))) as Arc<dyn Engine>);
            for n in 1..=100 {
                let (id, running) = jobs.start(&quick, gc(), None).unwrap();
                assert_eq!(id, n);
                running.await.unwrap().unwrap();
            }
            assert_eq!(jobs.list().len(), KEPT);
            assert!(jobs.find(36).is_err());
            let one = jobs.find(37).unwrap();
            assert_eq!((one.state, one.outcome.unwrap().passes), (JobState::Done, 7));
            let never = Arc::new(Quick(None)) as Arc<dyn Engine>;
            for _ in 0..RUNNING {
                jobs.start(&never, gc(), None).unwrap();
            }
            let busy = jobs.start(&never, gc(), None).unwrap_err().kind;
            assert_eq!(busy, FailureKind::Busy);
            assert_eq!(jobs.running(), RUNNING);
            assert_eq!(jobs.find(108).unwrap().state, JobState::Running);
        });
    }

    #[test]
    fn what_is_not_dirty_any_more_is_done() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, never) = (Jobs::default(), Arc::new(Quick(None)) as Arc<dyn Engine>);
            let now = |dirty, carried| Writeback { dirty, carried };
            let start = |request, now| jobs.start(&never, request, now).unwrap().0;
            let flush = start(request::CacheFlush {}.into(), Some(now(100, 7)));
            let collection = start(gc(), None);
            let progress = |id| {
                let progress = jobs.find(id).unwrap().progress;
                progress.map(|p| (p.done_bytes, p.total_bytes))
            };
            assert_eq!((progress(flush), progress(collection)), (Some((0, 100)), None));
            // Clients write meanwhile: more is dirty than at the start. What was done stays.
            for (dirty, carried, shown) in [
                (100, 27, (20, 100)),
                (60, 27, (40, 100)),
                (130, 27, (40, 130)),
                (10, 27, (120, 130)),
                (10, 999, (130, 130)),
            ] {
                jobs.note(now(dirty, carried));
                assert_eq!(progress(flush), Some(shown));
            }
            jobs.end(flush, Ok(().into()));
            jobs.note(now(90, 999));
            assert_eq!(progress(flush), Some((130, 130)));
        });
    }

    #[test]
    fn a_job_is_given_up_once_and_what_waits_for_it_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, never) = (Jobs::default(), Arc::new(Quick(None)) as Arc<dyn Engine>);
            let (flush, waits) = jobs.start(&never, request::CacheFlush {}.into(), None).unwrap();
            assert_eq!(jobs.how_to_cancel(flush), Ok(Cancel::Wait));
            jobs.cancel(flush);
            assert!(waits.await.unwrap_err().is_cancelled());
            // An answer that comes late changes nothing.
            jobs.end(flush, Ok(().into()));
            assert_eq!(jobs.find(flush).unwrap().state, JobState::Cancelled);
            let refused = |id| jobs.how_to_cancel(id).unwrap_err();
            assert_eq!(refused(flush).kind, FailureKind::Refused);
            assert_eq!(refused(99).kind, FailureKind::NotFound);
            assert_eq!(jobs.running(), 0);

            let mode = |volume: &str| {
                request::SetCacheMode { volume: volume.into(), mode: CacheMode::None }.into()
            };
            let start = |volume| jobs.start(&never, mode(volume), None).unwrap().0;
            let (first, second, other) = (start("a"), start("a"), start("b"));
            let ask = |volume: &str| {
                Ok(Cancel::Ask(request::CacheCancel { volume: Some(volume.into()) }))
            };
            assert_eq!(jobs.how_to_cancel(first), ask("a"));
            assert!(refused(second).message.contains("cancel that one"));
            assert_eq!(jobs.how_to_cancel(other), ask("b"));
            // Somebody else had the engine give it up.
            jobs.end(first, Err(Failure::cancelled()));
            assert_eq!(jobs.find(first).unwrap().state, JobState::Cancelled);
            assert_eq!(jobs.how_to_cancel(second), ask("a"));
        });
    }
}
