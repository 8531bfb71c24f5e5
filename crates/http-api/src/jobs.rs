//! Long work that was asked for: it runs on after its request was answered, and its end is kept.
//!
//! How far a job is follows from what the status says of the cache. The most dirty bytes that there
//! were since its start are all. What is not dirty any more is done, and so is what was carried
//! since: a pass carries all that it has before any of that is clean. Whatever clients write
//! meanwhile counts as its work, too. The engine counts nothing for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinHandle};

use crate::engine::{Answer, Engine, ask};
use crate::failure::Failure;

/// Jobs that are kept.
const KEPT: usize = 64;
/// Jobs that run at a time.
const RUNNING: usize = 8;

struct Job {
    id: u64,
    verb: &'static str,
    /// What it is asked for by: the request to the engine.
    request: Value,
    began: Instant,
    progress: Option<Progress>,
    waits: Option<AbortHandle>,
    /// What it led to, and after how many seconds.
    ended: Option<(Answer, f64)>,
}

/// What the cache has to write back, and has written back since it was opened, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Writeback {
    pub dirty: u64,
    pub carried: u64,
}

/// What a job writes back, in bytes.
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

/// How a job can be given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cancel {
    /// The wait for it ends. What the engine has begun it carries on to its end.
    Wait,
    /// The engine is asked for this first, and may refuse.
    Ask(Value),
}

impl Job {
    fn to_json(&self) -> Value {
        let seconds =
            self.ended.as_ref().map_or_else(|| self.began.elapsed().as_secs_f64(), |e| e.1);
        let mut shown = json!({ "job": self.id, "request": self.verb, "seconds": seconds });
        shown["progress"] = self
            .progress
            .map_or(Value::Null, |p| json!({ "done_bytes": p.done, "total_bytes": p.total }));
        match &self.ended {
            None => shown["state"] = json!("running"),
            Some((Ok(outcome), _)) => {
                shown["state"] = json!("done");
                shown["outcome"] = outcome.clone();
            }
            Some((Err(e), _)) if e.kind == "cancelled" => shown["state"] = json!("cancelled"),
            Some((Err(e), _)) => {
                shown["state"] = json!("failed");
                shown["error"] = e.to_json();
            }
        }
        shown
    }
}

#[derive(Default)]
struct Kept {
    last: u64,
    jobs: VecDeque<Job>,
}

/// All jobs; clones are the same.
#[derive(Clone, Default)]
pub struct Jobs(Arc<Mutex<Kept>>);

impl Jobs {
    fn with<T>(&self, work: impl FnOnce(&mut Kept) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts one; with what there is to write back, if it does that. Returns its number, and what
    /// waits for its end. Errors: `busy` where too many run.
    pub fn start(
        &self,
        engine: &Arc<dyn Engine>,
        verb: &'static str,
        request: Value,
        now: Option<Writeback>,
    ) -> Result<(u64, JoinHandle<Answer>), Failure> {
        let id = self.with(|kept| {
            if kept.jobs.iter().filter(|job| job.ended.is_none()).count() >= RUNNING {
                let text = format!("{RUNNING} jobs run already: wait until one has ended");
                return Err(Failure::new("busy", text));
            }
            kept.last += 1;
            if kept.jobs.len() == KEPT {
                // Not all of them run.
                let oldest = kept.jobs.iter().position(|job| job.ended.is_some());
                oldest.map(|at| kept.jobs.remove(at));
            }
            kept.jobs.push_back(Job {
                id: kept.last,
                verb,
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

    fn end(&self, id: u64, answer: Answer) {
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

    /// How this one can be given up. Errors: there is none of this number, or it has ended; another
    /// one that asks for the same came before it.
    pub fn how_to_cancel(&self, id: u64) -> Result<Cancel, Failure> {
        self.with(|kept| {
            let found = kept.jobs.iter().find(|job| job.id == id);
            let job = found.ok_or_else(|| none(id))?;
            if job.ended.is_some() {
                return Err(Failure::new("refused", format!("job {id} has ended already")));
            }
            if !matches!(job.verb, "cache-detach" | "cache-mode") {
                return Ok(Cancel::Wait);
            }
            let volume = &job.request["volume"];
            let same = |other: &&Job| {
                let asks = other.verb == job.verb && other.request["volume"] == *volume;
                asks && other.ended.is_none() && other.id < id
            };
            if let Some(first) = kept.jobs.iter().find(same) {
                let text = format!("job {id} waits for job {}: cancel that one first", first.id);
                return Err(Failure::new("refused", text));
            }
            Ok(Cancel::Ask(json!({ "request": "cache-cancel", "volume": volume })))
        })
    }

    /// Gives one up: nothing waits for its end any more.
    pub fn cancel(&self, id: u64) {
        self.end(id, Err(Failure::cancelled()));
        let waits = |kept: &mut Kept| {
            let job = kept.jobs.iter_mut().find(|job| job.id == id);
            job.and_then(|job| job.waits.take())
        };
        if let Some(waits) = self.with(waits) {
            waits.abort();
        }
    }

    /// There is so much to write back now.
    pub fn note(&self, now: Writeback) {
        self.with(|kept| {
            for job in kept.jobs.iter_mut().filter(|job| job.ended.is_none()) {
                if let Some(progress) = &mut job.progress {
                    progress.note(now);
                }
            }
        });
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> Value {
        self.with(|kept| kept.jobs.iter().map(Job::to_json).collect())
    }

    /// One of them. Errors: there is none of this number.
    pub fn find(&self, id: u64) -> Result<Value, Failure> {
        let found = self.with(|kept| kept.jobs.iter().find(|job| job.id == id).map(Job::to_json));
        found.ok_or_else(|| none(id))
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.with(|kept| kept.jobs.iter().filter(|job| job.ended.is_none()).count())
    }
}

fn none(id: u64) -> Failure {
    Failure::new("not-found", format!("there is no job {id} any more"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Reply;

    /// Answers at once, or never.
    struct Quick(bool);

    impl Engine for Quick {
        fn ask(&self, request: Value, reply: Reply) {
            if self.0 {
                reply(Ok(request));
            } else {
                // It would be dropped, which is an answer too.
                std::mem::forget(reply);
            }
        }
    }

    #[test]
    fn the_last_ones_are_kept_and_few_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, quick) = (Jobs::default(), Arc::new(Quick(true)) as Arc<dyn Engine>);
            for n in 1..=100 {
                let (id, running) = jobs.start(&quick, "gc", json!(n), None).unwrap();
                assert_eq!((id, running.await.unwrap()), (n, Ok(json!(n))));
            }
            let all = jobs.list();
            assert_eq!(all.as_array().unwrap().len(), KEPT);
            assert!(jobs.find(36).is_err());
            let one = jobs.find(37).unwrap();
            assert_eq!((&one["state"], &one["outcome"]), (&json!("done"), &json!(37)));
            let never = Arc::new(Quick(false)) as Arc<dyn Engine>;
            for _ in 0..RUNNING {
                jobs.start(&never, "gc", json!(0), None).unwrap();
            }
            assert_eq!(jobs.start(&never, "gc", json!(0), None).unwrap_err().kind, "busy");
            assert_eq!(jobs.running(), RUNNING);
            assert_eq!(jobs.find(108).unwrap()["state"], "running");
        });
    }

    #[test]
    fn what_is_not_dirty_any_more_is_done() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, never) = (Jobs::default(), Arc::new(Quick(false)) as Arc<dyn Engine>);
            let now = |dirty, carried| Writeback { dirty, carried };
            let start = |verb, now| jobs.start(&never, verb, json!({}), now).unwrap().0;
            let (flush, gc) = (start("cache-flush", Some(now(100, 7))), start("gc", None));
            let progress = |id| {
                let p = &jobs.find(id).unwrap()["progress"];
                Some((p["done_bytes"].as_u64()?, p["total_bytes"].as_u64()?))
            };
            assert_eq!((progress(flush), progress(gc)), (Some((0, 100)), None));
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
            jobs.end(flush, Ok(Value::Null));
            jobs.note(now(90, 999));
            assert_eq!(progress(flush), Some((130, 130)));
        });
    }

    #[test]
    fn a_job_is_given_up_once_and_what_waits_for_it_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (jobs, never) = (Jobs::default(), Arc::new(Quick(false)) as Arc<dyn Engine>);
            let (flush, waits) = jobs.start(&never, "cache-flush", json!({}), None).unwrap();
            assert_eq!(jobs.how_to_cancel(flush), Ok(Cancel::Wait));
            jobs.cancel(flush);
            assert!(waits.await.unwrap_err().is_cancelled());
            // An answer that comes late changes nothing.
            jobs.end(flush, Ok(Value::Null));
            assert_eq!(jobs.find(flush).unwrap()["state"], "cancelled");
            assert_eq!(jobs.how_to_cancel(flush).unwrap_err().kind, "refused");
            assert_eq!(jobs.how_to_cancel(99).unwrap_err().kind, "not-found");
            assert_eq!(jobs.running(), 0);

            let mode = |volume| json!({ "request": "cache-mode", "volume": volume });
            let start = |volume| jobs.start(&never, "cache-mode", mode(volume), None).unwrap().0;
            let (first, second, other) = (start("a"), start("a"), start("b"));
            let ask =
                |volume| Ok(Cancel::Ask(json!({ "request": "cache-cancel", "volume": volume })));
            assert_eq!(jobs.how_to_cancel(first), ask("a"));
            assert!(jobs.how_to_cancel(second).unwrap_err().message.contains("cancel that one"));
            assert_eq!(jobs.how_to_cancel(other), ask("b"));
            // Somebody else had the engine give it up.
            jobs.end(first, Err(Failure::cancelled()));
            assert_eq!(jobs.find(first).unwrap()["state"], "cancelled");
            assert_eq!(jobs.how_to_cancel(second), ask("a"));
        });
    }
}
