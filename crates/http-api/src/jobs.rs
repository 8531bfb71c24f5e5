//! Long work that was asked for: it runs on after its request was answered, and its end is kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::engine::{Answer, Engine, ask};
use crate::failure::Failure;

/// Jobs that are kept.
const KEPT: usize = 64;
/// Jobs that run at a time.
const RUNNING: usize = 8;

struct Job {
    id: u64,
    verb: &'static str,
    began: Instant,
    /// What it led to, and after how many seconds.
    ended: Option<(Answer, f64)>,
}

impl Job {
    fn to_json(&self) -> Value {
        let seconds =
            self.ended.as_ref().map_or_else(|| self.began.elapsed().as_secs_f64(), |e| e.1);
        let mut shown = json!({ "job": self.id, "request": self.verb, "seconds": seconds });
        match &self.ended {
            None => shown["state"] = json!("running"),
            Some((Ok(outcome), _)) => {
                shown["state"] = json!("done");
                shown["outcome"] = outcome.clone();
            }
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

    /// Starts one. Returns its number, and what waits for its end. Errors: `busy` where too many
    /// run.
    pub fn start(
        &self,
        engine: &Arc<dyn Engine>,
        verb: &'static str,
        request: Value,
    ) -> Result<(u64, tokio::task::JoinHandle<Answer>), Failure> {
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
            kept.jobs.push_back(Job { id: kept.last, verb, began: Instant::now(), ended: None });
            Ok(kept.last)
        })?;
        let (jobs, engine) = (self.clone(), engine.clone());
        let running = tokio::spawn(async move {
            let answer = ask(&engine, request).await;
            jobs.end(id, answer.clone());
            answer
        });
        Ok((id, running))
    }

    fn end(&self, id: u64, answer: Answer) {
        self.with(|kept| {
            if let Some(job) = kept.jobs.iter_mut().find(|job| job.id == id) {
                job.ended = Some((answer, job.began.elapsed().as_secs_f64()));
            }
        });
    }

    /// All of them, the oldest first.
    pub fn list(&self) -> Value {
        self.with(|kept| kept.jobs.iter().map(Job::to_json).collect())
    }

    /// One of them.
    pub fn find(&self, id: u64) -> Option<Value> {
        self.with(|kept| kept.jobs.iter().find(|job| job.id == id).map(Job::to_json))
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.with(|kept| kept.jobs.iter().filter(|job| job.ended.is_none()).count())
    }
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
                let (id, running) = jobs.start(&quick, "gc", json!(n)).unwrap();
                assert_eq!((id, running.await.unwrap()), (n, Ok(json!(n))));
            }
            let all = jobs.list();
            assert_eq!(all.as_array().unwrap().len(), KEPT);
            assert!(jobs.find(36).is_none());
            let one = jobs.find(37).unwrap();
            assert_eq!((&one["state"], &one["outcome"]), (&json!("done"), &json!(37)));
            let never = Arc::new(Quick(false)) as Arc<dyn Engine>;
            for _ in 0..RUNNING {
                jobs.start(&never, "gc", json!(0)).unwrap();
            }
            assert_eq!(jobs.start(&never, "gc", json!(0)).unwrap_err().kind, "busy");
            assert_eq!(jobs.running(), RUNNING);
            assert_eq!(jobs.find(108).unwrap()["state"], "running");
        });
    }
}
