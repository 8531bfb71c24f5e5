//! How long disks were idle.

/// Measures the time in which all watched disks were idle.
#[derive(Default)]
pub(crate) struct Idle {
    watched: Vec<u32>,
    in_flight: u64,
    since: u64,
    total: u64,
}

impl Idle {
    /// Begins while nothing is in flight.
    pub fn new(watched: Vec<u32>, now: u64) -> Idle {
        Idle { watched, since: now, ..Idle::default() }
    }

    pub fn begins(&mut self, disk: u32, now: u64) {
        if self.watched.contains(&disk) {
            if self.in_flight == 0 {
                self.total += now - self.since;
            }
            self.in_flight += 1;
        }
    }

    pub fn ends(&mut self, disk: u32, now: u64) {
        if self.watched.contains(&disk) {
            self.in_flight -= 1;
            self.since = now;
        }
    }

    /// Records that nothing is in flight any more.
    pub fn stop(&mut self, now: u64) {
        self.total = self.at(now);
        (self.in_flight, self.since) = (0, now);
    }

    pub fn at(&self, now: u64) -> u64 {
        if self.in_flight == 0 { self.total + (now - self.since) } else { self.total }
    }
}
