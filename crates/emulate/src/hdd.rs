//! A rotating disk of 7200 revolutions a minute whose capacity is that of the file.
//!
//! **Surface.** The addresses are one spiral from the outer edge to the inner. At the fraction x of
//! the capacity the medium passes at r(x) = 220 - 110 x MB/s. Everything before offset o therefore
//! passes in T(o) = C / 110 MB/s * ln(220 / r(o/C)) seconds, C being the capacity. A transfer of
//! [a, b) takes T(b) - T(a), and o is under the head whenever the time is T(o) modulo one
//! revolution (8.33 ms): a head that goes on where it stands goes on at once, one that is late by a
//! moment waits for nearly a revolution.
//!
//! The spiral has no gaps: what lies ahead by less than a revolution passes by itself, as tracks of
//! a real disk are skewed so that the next one begins where the head arrives.
//!
//! **Seek.** To anything else, over the fraction d of the stroke: 0.8 + 9.426 sqrt(d) + 6.774 d
//! milliseconds; that is 0.8 ms to the next track, 8.5 ms over a third, 17 ms over all. Positioning
//! is the seek and the rotation that is left after it.
//!
//! **Queue.** One request is in service at a time. The disk sees the 32 oldest requests and serves
//! next the one with the shortest positioning; one that 64 others have overtaken goes first.
//!
//! **Reading ahead.** After a read, the disk reads on while no request needs the head elsewhere, 4
//! MiB at most beyond what was asked for. What a read finds there is sent at 550 MB/s after 60
//! microseconds, and a read that continues there is as fast as the medium.
//!
//! **Writes** are not cached: they are done when they are on the medium, as on a disk whose write
//! cache is switched off, and a flush has nothing to do. So a stream of writes is fast only if the
//! next one is there when one is done.
//!
//! Left out: errors, spare sectors, several platters, head switches (part of the rates), vibration,
//! standby.

use std::collections::VecDeque;

use base::Instant;

use crate::request::{Access, Ticket};

/// Seconds a revolution takes.
pub(super) const REVOLUTION: f64 = 60.0 / 7200.0;
/// Bytes a second at the outer edge, and at the inner.
pub(super) const OUTER: f64 = 220e6;
pub(super) const INNER: f64 = 110e6;
/// Requests that the disk chooses from.
pub(super) const QUEUE: usize = 32;
/// A request that so many have overtaken is next.
const PATIENCE: u32 = 64;
/// Bytes read ahead.
const AHEAD: u64 = 4 << 20;
/// A read that is answered from what was read ahead: seconds, and bytes a second.
const HIT: f64 = 60e-6;
const LINK: f64 = 550e6;
/// Being late by so many seconds is being in time: rounding to nanoseconds, and the gap before a
/// sector.
const TOLERANCE: f64 = 2e-6;

/// Seconds to another track, over the fraction `distance` of the stroke.
pub(super) fn seek(distance: f64) -> f64 {
    (0.8 + 9.426 * distance.sqrt() + 6.774 * distance) * 1e-3
}

struct QueuedRequest {
    ticket: Ticket,
    read: bool,
    offset: u64,
    end: u64,
    arrived: Instant,
    overtaken: u32,
}

/// The state that a read has left behind: [start, from) was read by the time `since` (seconds), and
/// the head reads on up to `limit`.
#[derive(Clone, Copy)]
struct ReadAhead {
    start: u64,
    from: u64,
    since: f64,
    limit: u64,
}

pub(super) struct Hdd {
    capacity: u64,
    /// The position of the head, if the disk does not read ahead.
    head: u64,
    ahead: Option<ReadAhead>,
    queue: VecDeque<QueuedRequest>,
    serving: Option<(Ticket, Instant)>,
    /// The time since which the disk has had nothing in service.
    free_at: Instant,
}

/// The service of a request from a moment on, in seconds: what choosing goes by, when it is done,
/// what is read ahead then.
struct Plan {
    positioning: f64,
    done: f64,
    ahead: Option<ReadAhead>,
}

impl Hdd {
    pub(super) fn new(size_bytes: u64) -> Hdd {
        Hdd {
            capacity: size_bytes.max(1),
            head: 0,
            ahead: None,
            queue: VecDeque::new(),
            serving: None,
            free_at: Instant(0),
        }
    }

    pub(super) fn submit(
        &mut self,
        now: Instant,
        ticket: Ticket,
        access: Access,
        offset: u64,
        len: usize,
    ) {
        let (offset, len) = match access {
            // Nothing is volatile: it is done as soon as it is asked for, but not before what is in
            // service.
            Access::Flush => (u64::MAX, 0),
            _ => (offset.min(self.capacity), len as u64),
        };
        let end = offset.saturating_add(len).min(self.capacity.max(offset));
        let read = access == Access::Read;
        self.queue.push_back(QueuedRequest {
            ticket,
            read,
            offset,
            end,
            arrived: now,
            overtaken: 0,
        });
        self.start();
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.serving.map(|(_, at)| at)
    }

    pub(super) fn take_done(&mut self, now: Instant, done: &mut Vec<Ticket>) {
        while let Some((ticket, at)) = self.serving.filter(|(_, at)| *at <= now) {
            done.push(ticket);
            self.serving = None;
            self.free_at = at;
            self.start();
        }
    }

    /// Takes the next request into service, if none is and one waits.
    fn start(&mut self) {
        if self.serving.is_some() {
            return;
        }
        let Some(first) = self.queue.front() else { return };
        let start = self.free_at.max(first.arrived);
        let t = start.0 as f64 * 1e-9;
        let mut best: Option<(usize, Plan)> = None;
        // Requests that have not arrived by then cannot be chosen: service may begin before the
        // model is told the time.
        for (i, q) in
            self.queue.iter().enumerate().take(QUEUE).take_while(|(_, q)| q.arrived <= start)
        {
            let plan = self.plan(t, q);
            if q.overtaken >= PATIENCE {
                best = Some((i, plan));
                break;
            }
            if best.as_ref().is_none_or(|(_, b)| plan.positioning < b.positioning) {
                best = Some((i, plan));
            }
        }
        let Some((chosen, plan)) = best else { unreachable!("the first request has arrived") };
        self.queue.iter_mut().take(chosen).for_each(|q| q.overtaken += 1);
        let Some(request) = self.queue.remove(chosen) else { unreachable!("it was just chosen") };
        let at = Instant((plan.done * 1e9).ceil() as u64).max(start);
        self.serving = Some((request.ticket, at));
        if request.offset != u64::MAX {
            self.head = request.end;
            self.ahead = plan.ahead;
        }
    }

    fn plan(&self, t: f64, q: &QueuedRequest) -> Plan {
        if q.offset == u64::MAX {
            return Plan { positioning: 0.0, done: t, ahead: self.ahead };
        }
        if let Some(a) = self.ahead.filter(|_| q.read)
            && let Some(plan) = self.plan_ahead(t, q, a)
        {
            return plan;
        }
        let positioning = self.positioning(t, self.head_at(t), q.offset);
        let done = t + positioning + self.passing(q.offset, q.end);
        let begun = ReadAhead {
            start: q.end.saturating_sub(AHEAD).max(q.offset),
            from: q.end,
            since: done,
            limit: q.end + AHEAD,
        };
        Plan { positioning, done, ahead: q.read.then_some(begun) }
    }

    /// A read that begins in what has been read ahead.
    fn plan_ahead(&self, t: f64, q: &QueuedRequest, a: ReadAhead) -> Option<Plan> {
        let (frontier, stopped) = self.frontier(t, a);
        if !(a.start..=frontier).contains(&q.offset) {
            return None;
        }
        let sent = t + HIT + (q.end - q.offset) as f64 / LINK;
        let start = q.end.saturating_sub(AHEAD).max(a.start);
        if q.end <= frontier {
            let limit = if stopped { a.limit } else { a.limit.max(q.end + AHEAD) };
            return Some(Plan {
                positioning: 0.0,
                done: sent,
                ahead: Some(ReadAhead { start, limit, ..a }),
            });
        }
        // The request needs more than is there: the head goes on where it is, or comes back to
        // where it stopped.
        let (positioning, on) = if stopped {
            let positioning = self.positioning(t, frontier, frontier);
            (positioning, t + positioning + self.passing(frontier, q.end))
        } else {
            (0.0, a.since + self.passing(a.from, q.end))
        };
        let ahead = ReadAhead { start, from: q.end, since: on, limit: q.end + AHEAD };
        Some(Plan { positioning, done: on.max(sent), ahead: Some(ahead) })
    }

    /// The end of what the disk has read ahead, and whether that is as far as it goes.
    fn frontier(&self, t: f64, a: ReadAhead) -> (u64, bool) {
        let limit = a.limit.min(self.capacity).max(a.from);
        let at = self.at(self.passed(a.from) + (t - a.since).max(0.0));
        (at.clamp(a.from, limit), at >= limit)
    }

    fn head_at(&self, t: f64) -> u64 {
        self.ahead.map_or(self.head, |a| self.frontier(t, a).0)
    }

    /// Seconds until `to` is under the head that stands over `from` now. Slightly negative if it
    /// has just begun to pass.
    fn positioning(&self, t: f64, from: u64, to: u64) -> f64 {
        let away = from.abs_diff(to) as f64 / self.capacity as f64;
        let ahead = self.passed(to) - self.passed(from);
        let seek = if (0.0..REVOLUTION).contains(&ahead) { 0.0 } else { seek(away) };
        let wait = (self.passed(to) - (t + seek)).rem_euclid(REVOLUTION);
        seek + if wait > REVOLUTION - TOLERANCE { wait - REVOLUTION } else { wait }
    }

    fn passing(&self, from: u64, to: u64) -> f64 {
        self.passed(to) - self.passed(from)
    }

    /// T: seconds in which everything before `offset` passes.
    pub(super) fn passed(&self, offset: u64) -> f64 {
        let x = (offset as f64 / self.capacity as f64).min(1.0);
        let slower = OUTER - INNER;
        self.capacity as f64 / slower * (OUTER / (OUTER - slower * x)).ln()
    }

    /// The inverse of T.
    pub(super) fn at(&self, passed: f64) -> u64 {
        let slower = OUTER - INNER;
        let x = (1.0 - (-passed * slower / self.capacity as f64).exp()) * OUTER / slower;
        (x.min(1.0) * self.capacity as f64) as u64
    }
}
