//! Slow requests say what they waited for.
//!
//! In virtual time the engine works in no time, so all of a request's time is that of waits. Time
//! that belongs to no wait is that of one which the engine did not tell.

use base::{Duration, Instant};
use ledger::explain::{Question, RequestReport, explain};
use ledger::{Reason, SlowRequest};
use rt::Rt;

use crate::env::Env;

/// Requests that take longer are slow.
const SLOW: Duration = Duration::from_millis(10);
/// Of the slow ones so many in a hundred name what they waited for most, and of each that is kept
/// whole so much of its time is named.
const NAMED: u64 = 99;

/// The run fails if slow requests of this boot do not say what they waited for.
pub(crate) fn check(env: &Env, rt: &Rt) {
    let slower_than_ns = SLOW.as_nanos() as u64;
    let question = Question { volume: None, kind: None, since: Instant(0), slower_than_ns };
    let answer = explain(rt.ledger(), &question, rt.moment());
    for of in &answer.kinds {
        let untold = of.causes.iter().filter(|c| c.cause.what.reason == Reason::Turn);
        let untold: u64 = untold.map(|c| c.count).sum();
        env.count("slow requests", of.slow);
        if untold * 100 > of.slow * (100 - NAMED) {
            env.fail(format!(
                "{untold} of {} slow {} do not say what they waited for\n{:#?}",
                of.slow,
                of.kind.plural(),
                answer.slowest
            ));
        }
    }
    if let Some(RequestReport { slow, parts }) =
        answer.slowest.iter().find(|told| is_untold(&told.slow))
    {
        env.fail(format!("a slow request does not say what it waited for\n{slow:?}\n{parts:#?}"));
    }
}

fn is_untold(slow: &SlowRequest) -> bool {
    let untold = slow.parts.iter().filter(|p| p.cause.what.reason == Reason::Turn);
    untold.map(|p| p.ns).sum::<u64>() * 100 > slow.ns * (100 - NAMED)
}
