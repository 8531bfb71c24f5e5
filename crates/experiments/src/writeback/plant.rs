//! Clients before a cache, and an array behind it, millisecond by millisecond.

use base::{BLOCK_U64, Duration, Histogram, Instant, Prng};

use super::array::{Array, Job, Region};

/// A millisecond, in which requests come and write-back goes on.
const TICK: Duration = Duration::from_millis(1);
/// Requests of clients at once.
const DEPTH: u64 = 32;
/// The time that a write takes if the cache takes it.
const SERVICE: Duration = Duration::from_micros(375);

/// The rate at which clients write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// This number of writes a second, if the clients can.
    Rate(u64),
    AsFastAsItGoes,
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub seconds: u64,
    pub writes: Load,
    /// Reads of the array a second.
    pub reads: u64,
}

/// A client's write that the cache has let through.
pub(super) enum PassedWrite {
    /// Into the cache. It came then.
    Cached(Instant),
    /// Past it, to this block of the array.
    Direct(Instant, u64),
}

/// A cache with a policy of write-back.
pub(super) trait WritebackPolicy {
    /// A request of clients comes, of any kind.
    fn request(&mut self, now: Instant);
    /// A client writes a block. `None`: it has to wait, and passes in a later step.
    fn write(&mut self, now: Instant, block: u64) -> Option<PassedWrite>;
    /// A millisecond: lets writes through that wait, and begins to write back.
    fn step(&mut self, now: Instant, array: &mut Array, passed: &mut Vec<PassedWrite>);
    /// A block was written back.
    fn written_back(&mut self);
    /// The rate of write-back, in bytes a second.
    fn rate(&self) -> f64;
}

/// The measurements of a run.
#[derive(Default)]
pub(super) struct WritebackMeasurements {
    /// By second: the rate of write-back, and what was written back, in bytes; clients' writes.
    pub rates: Vec<f64>,
    pub written: Vec<f64>,
    pub writes: Vec<u64>,
    /// The latencies of requests.
    pub write: Histogram,
    pub read: Histogram,
    /// Seconds in which writes waited and none ended.
    pub stalled: u64,
}

/// Runs all phases, one after the other. Clients write to this region.
pub(super) fn run<P: WritebackPolicy>(
    policy: P,
    region: Region,
    phases: &[Phase],
) -> WritebackMeasurements {
    let mut plant = WritebackPlant {
        policy,
        region,
        array: Array::new(),
        now: Instant(0),
        rng: Prng::new(2019),
        waiting: 0,
        direct: 0,
        owed: (0.0, 0.0),
        written: 0,
        seen: WritebackMeasurements::default(),
    };
    for phase in phases {
        plant.owed = (0.0, 0.0);
        (0..phase.seconds).for_each(|_| plant.second(phase));
    }
    plant.seen
}

struct WritebackPlant<P> {
    policy: P,
    region: Region,
    array: Array,
    now: Instant,
    rng: Prng,
    /// Writes that wait at the cache's door, and those that went past it.
    waiting: u64,
    direct: u64,
    /// Writes and reads that are due and have not come: clients catch up with them.
    owed: (f64, f64),
    /// Blocks written back.
    written: u64,
    seen: WritebackMeasurements,
}

impl<P: WritebackPolicy> WritebackPlant<P> {
    fn second(&mut self, phase: &Phase) {
        let (ended, written) = (self.seen.write.count(), self.written);
        (0..Duration::from_secs(1).as_nanos() / TICK.as_nanos()).for_each(|_| self.tick(phase));
        let ended = self.seen.write.count() - ended;
        self.seen.rates.push(self.policy.rate());
        self.seen.written.push(((self.written - written) * BLOCK_U64) as f64);
        self.seen.writes.push(ended);
        self.seen.stalled += u64::from(ended == 0 && self.waiting + self.direct > 0);
    }

    fn tick(&mut self, phase: &Phase) {
        self.now = self.now.after(TICK);
        let mut done = Vec::new();
        self.array.take_done(self.now, &mut done);
        done.into_iter().for_each(|job| self.ended(job));
        let mut passed = Vec::new();
        self.policy.step(self.now, &mut self.array, &mut passed);
        self.waiting -= passed.len() as u64;
        passed.into_iter().for_each(|one| self.passed(one));
        self.owed.1 += phase.reads as f64 * TICK.as_secs_f64();
        while self.owed.1 >= 1.0 {
            self.owed.1 -= 1.0;
            self.policy.request(self.now);
            let block = Region::ALL.any(&mut self.rng);
            self.array.submit(self.now, block, Job::Read(self.now));
        }
        // As many as the cache's device serves in a tick.
        let mut left = DEPTH * TICK.as_nanos() as u64 / SERVICE.as_nanos() as u64;
        match phase.writes {
            Load::Rate(rate) => self.owed.0 += rate as f64 * TICK.as_secs_f64(),
            Load::AsFastAsItGoes => self.owed.0 = left as f64,
        }
        while left > 0 && self.owed.0 >= 1.0 && self.waiting + self.direct < DEPTH {
            self.owed.0 -= 1.0;
            left -= 1;
            self.policy.request(self.now);
            match self.policy.write(self.now, self.region.any(&mut self.rng)) {
                Some(one) => self.passed(one),
                None => self.waiting += 1,
            }
        }
    }

    /// The array has done something.
    fn ended(&mut self, job: Job) {
        match job {
            Job::WriteBack => {
                self.policy.written_back();
                self.written += 1;
            }
            Job::Write(came) => {
                self.seen.write.record(self.now.since(came));
                self.direct -= 1;
            }
            Job::Read(came) => self.seen.read.record(self.now.since(came)),
        }
    }

    fn passed(&mut self, one: PassedWrite) {
        match one {
            PassedWrite::Cached(came) => self.seen.write.record(self.now.since(came) + SERVICE),
            PassedWrite::Direct(came, block) => {
                self.array.submit(self.now, block, Job::Write(came));
                self.direct += 1;
            }
        }
    }
}
