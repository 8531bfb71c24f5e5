//! The time for which disks were idle.

/// Measures the time in which all watched disks were idle.
#[derive(Default)]
pub(crate) struct IdleTime {
    watched: Vec<u32>,
    in_flight: u64,
    since: u64,
    total: u64,
}

impl IdleTime {
    /// Begins while nothing is in flight.
    pub fn new(watched: Vec<u32>, now: u64) -> IdleTime {
        IdleTime { watched, since: now, ..IdleTime::default() }
    }

    /// One more disk is watched, which has nothing in flight.
    pub fn watch(&mut self, disk: u32) {
        self.watched.push(disk);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_watched_later_counts_from_then_on() {
        let mut idle = IdleTime::new(vec![1], 0);
        idle.begins(2, 10);
        idle.ends(2, 20);
        assert_eq!(idle.at(20), 20, "it is not watched");
        idle.watch(2);
        idle.begins(2, 30);
        idle.begins(1, 40);
        idle.ends(1, 50);
        assert_eq!(idle.at(60), 30, "one of them is busy");
        idle.ends(2, 70);
        assert_eq!(idle.at(80), 40);
    }
}
