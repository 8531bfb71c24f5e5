use super::*;

fn at(us: u64) -> Instant {
    Instant(us * 1_000)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn never() -> Option<ThreadTime> {
    None
}

fn had(used: u64, queued: u64) -> Option<ThreadTime> {
    Some(ThreadTime { used: ms(used), queued: Some(ms(queued)) })
}

fn stopped(time: Duration) -> AwayTimes {
    AwayTimes::of(Reason::NotRunning, time)
}

#[test]
fn what_came_while_the_thread_was_busy_is_late() {
    let mut thread = Thread::new(at(0));
    thread.job_ran(Holder::of("collection"), Duration::from_micros(200));
    thread.job_ran(Holder::of("write-back"), Duration::from_micros(30));
    thread.job_ran(Holder::of("collection"), Duration::from_micros(100));
    // It asked after 400 us, and something was there already.
    let moment = thread.turned(at(400), None, at(401), never);
    assert_eq!((moment.late, moment.holder.name()), (Duration::from_micros(401), "collection"));
    // It slept: what came then was seen at once.
    let moment = thread.turned(at(500), None, at(9_000), never);
    assert_eq!(moment.late, Duration::ZERO);
    // Jobs have had little of it.
    thread.job_ran(Holder::of("collection"), Duration::from_micros(100));
    let moment = thread.turned(at(9_500), None, at(9_501), never);
    assert_eq!((moment.reason, moment.holder.name()), (Reason::Engine, "requests"));
}

#[test]
fn a_process_that_was_stopped_did_not_run() {
    // In a wait that was to end after a millisecond.
    let mut thread = Thread::new(at(0));
    let moment = thread.turned(at(10), Some(at(1_010)), at(500_000), never);
    assert_eq!((moment.reason, moment.late), (Reason::NotRunning, Duration::from_micros(498_990)));
    assert_eq!((moment.away, moment.before().away), (stopped(moment.late), AwayTimes::default()));
    // What had come is seen a moment later, without another sleep.
    let moment = thread.turned(at(500_004), None, at(500_005), never);
    assert_eq!((moment.reason, moment.late), (Reason::NotRunning, Duration::from_micros(498_995)));
    assert_eq!(moment.away, stopped(Duration::from_micros(498_990)));
    // A timer that is a little late says nothing.
    let moment = thread.turned(at(500_006), Some(at(501_000)), at(501_200), never);
    assert_eq!(
        (moment.late, moment.away.since(stopped(ms(498)))),
        (Duration::ZERO, stopped(Duration::from_micros(990)))
    );
    // While it had work: its processor time tells whether it did any.
    for (used, reason) in [(3, Reason::NotRunning), (299, Reason::Engine)] {
        let mut thread = Thread::new(at(0));
        thread.turned(at(5_000), None, at(6_000), || had(1, 0));
        let moment = thread.turned(at(305_999), None, at(306_000), || had(1 + used, 0));
        assert_eq!((moment.reason, moment.late), (reason, ms(300)));
    }
}

#[test]
fn a_thread_that_waits_for_a_processor_is_not_one_that_was_stopped() {
    for slept in [false, true] {
        for (queued, reason) in [(280, Reason::NoProcessor), (100, Reason::NotRunning)] {
            let mut thread = Thread::new(at(0));
            thread.turned(at(5_000), None, at(6_000), || had(1, 70));
            let asked = if slept { 6_010 } else { 306_010 };
            let moment =
                thread.turned(at(asked), Some(at(6_020)), at(306_020), || had(2, 70 + queued));
            assert_eq!(moment.reason, reason);
            assert_eq!(moment.away, AwayTimes::of(reason, moment.late));
            // What had come is seen a moment later.
            let moment = thread.turned(at(306_024), None, at(306_025), || had(2, 70 + queued));
            assert_eq!(moment.reason, reason);
        }
    }
}

#[test]
fn it_looks_at_the_clock_while_clients_are_there() {
    let mut thread = Thread::new(at(0));
    assert_eq!(thread.wakes_by(at(0), None), None);
    assert_eq!(thread.wakes_by(at(0), Some(at(9))), Some(at(9)));
    thread.requested(at(50));
    assert_eq!(thread.wakes_by(at(1_000), None), Some(at(101_000)));
    assert_eq!(thread.wakes_by(at(1_000), Some(at(7_000))), Some(at(7_000)));
    assert_eq!(thread.wakes_by(at(3_000_000), None), None);
}
