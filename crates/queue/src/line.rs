//! The requests that wait for a device, in the order in which they go.

use std::collections::VecDeque;

use base::{ByteRange, Instant};

use crate::elevator::Elevator;
use crate::request::{MergedRequest, Request, RunLimits};
use crate::write_gate::WriteAllowance;

/// The requests that wait for a device.
pub(crate) enum Line<W> {
    /// In order of arrival: for devices to which places mean little.
    Arrival(VecDeque<Request<W>>),
    /// By place: for rotating ones.
    Place(Box<Elevator<W>>),
}

impl<W> Line<W> {
    pub fn new(by_place: bool) -> Line<W> {
        if by_place {
            Line::Place(Box::new(Elevator::new()))
        } else {
            Line::Arrival(VecDeque::new())
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Line::Arrival(line) => line.len(),
            Line::Place(line) => line.len(),
        }
    }

    /// True if a request may go now.
    pub fn is_ready(&self, may: WriteAllowance) -> bool {
        match self {
            Line::Arrival(line) => !line.is_empty(),
            Line::Place(line) => line.is_ready(may),
        }
    }

    /// True if a request of several pieces has begun, and is next with the others of them.
    pub fn owes(&self) -> bool {
        match self {
            Line::Arrival(_) => false,
            Line::Place(line) => line.owes(),
        }
    }

    pub fn push(&mut self, request: Request<W>) {
        match self {
            Line::Arrival(line) => line.push_back(request),
            Line::Place(line) => line.push(request),
        }
    }

    /// Puts a request in front that is in flight: it is asked for again.
    pub fn push_again(&mut self, request: Request<W>) {
        match self {
            Line::Arrival(line) => line.push_front(request),
            Line::Place(line) => line.push_again(request),
        }
    }

    /// Takes what goes next, with what continues it.
    pub fn take(
        &mut self,
        now: Instant,
        limits: &RunLimits,
        may: WriteAllowance,
    ) -> Option<MergedRequest<W>> {
        let line = match self {
            Line::Arrival(line) => line,
            Line::Place(line) => return line.take(now, limits, may),
        };
        let mut run = MergedRequest::of(line.pop_front()?);
        while let Some(next) = line.front()
            && run.takes(next, limits)
            && let Some(next) = line.pop_front()
        {
            run.push(next);
        }
        Some(run)
    }

    /// A write of this place has ended.
    pub fn write_ended(&mut self, place: ByteRange) {
        if let Line::Place(line) = self {
            line.write_ended(place);
        }
    }

    /// The requests that have waited longest, of each kind.
    pub fn oldest(&self) -> impl Iterator<Item = &Request<W>> {
        let (arrival, place) = match self {
            Line::Arrival(line) => (line.front(), None),
            Line::Place(line) => (None, Some(line.oldest())),
        };
        arrival.into_iter().chain(place.into_iter().flatten())
    }
}
