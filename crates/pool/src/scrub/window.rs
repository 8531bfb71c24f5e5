//! The window of a scrub: what it verifies at the moment, how fast it goes, and how far it is.

use std::collections::VecDeque;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, Instant, Result, StorageError};
use format::superblock::scrub::{ScrubPlace, ScrubStage};
use rt::JoinHandle;
use rt::sync::either;

use super::verify::Verifier;
use crate::scrub::progress::scrub_goes_to;
use crate::space::Pin;
use crate::transfer::walk::ReadRun;

/// Bytes in flight of each copy: 4 MiB are too few for a fast device, 16 MiB add little.
pub(crate) const WINDOW_BYTES: u64 = 8 << 20;
/// The place is made durable this often.
const NOTED: Duration = Duration::from_secs(30);
/// The place moves at least this often.
const MOVED: Duration = Duration::from_secs(5);

/// Why a scrub stops before its end.
pub(super) enum Stop {
    /// The scrub was paused or cancelled, or the pool was closed.
    Ended,
    /// The scrub cannot go on now.
    Failed(StorageError),
}

impl From<StorageError> for Stop {
    fn from(e: StorageError) -> Stop {
        Stop::Failed(e)
    }
}

/// With a rate it reads for this part of a second, and this many blocks at least, and rests.
const PARTS_OF_A_SECOND: u64 = 8;
const LEAST_AT_ONCE: u64 = 16;

/// The outcome of a part of a scrub.
pub(super) type PartResult = std::result::Result<(), Stop>;

/// Runs that are being verified, in order.
pub(super) struct Window {
    verifier: Rc<Verifier>,
    pub turn: u64,
    flights: VecDeque<(JoinHandle<Result<()>>, u64)>,
    bytes: u64,
    /// Bytes of each copy that were read, and for which it has not rested yet, so that the rate is
    /// kept; as of that moment.
    owed: f64,
    owed_at: Instant,
    /// When the place was made durable last, and when it moved.
    noted: Instant,
    reached: Instant,
}

impl Window {
    pub fn new(verifier: &Rc<Verifier>, turn: u64) -> Window {
        Window {
            verifier: verifier.clone(),
            turn,
            flights: VecDeque::new(),
            bytes: 0,
            owed: 0.0,
            owed_at: verifier.core.now(),
            noted: verifier.core.now(),
            reached: verifier.core.now(),
        }
    }

    /// True if the place should move now, though then nothing is in flight for a moment.
    pub fn lags(&self) -> bool {
        self.verifier.core.now().since(self.reached) > MOVED
    }

    /// Verifies runs as soon as there is room. It does not rest for the rate: what is pinned is not
    /// used again, and where room is short clients would wait for that. So [`Window::rest`] comes
    /// before it, without a pin.
    pub async fn verify(&mut self, runs: Vec<(ReadRun, Pin)>) -> PartResult {
        for (run, pin) in runs {
            let bytes = u64::from(run.len()) * BLOCK_U64;
            self.check()?;
            self.owed += bytes as f64;
            while self.bytes > 0 && self.bytes + bytes > WINDOW_BYTES {
                self.end_first().await?;
            }
            let verifier = self.verifier.clone();
            let rt = self.verifier.core.rt();
            let flight = rt.spawn(async move { verifier.verify_run(run, pin).await });
            self.flights.push_back((flight, bytes));
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Waits for everything in flight, and records that all before this place is verified. Others
    /// get a turn, as thousands of groups in a row may have nothing to be verified.
    pub async fn reach(&mut self, stage: ScrubStage, index: u32, block: u32) -> PartResult {
        while !self.flights.is_empty() {
            self.end_first().await?;
        }
        self.check()?;
        scrub_goes_to(&mut self.verifier.core.state_mut(), ScrubPlace { stage, index, block });
        self.reached = self.verifier.core.now();
        self.verifier.core.rt().yield_now().await;
        if self.verifier.core.now().since(self.noted) > NOTED {
            self.noted = self.verifier.core.now();
            self.verifier.core.state_mut().note_in_superblock();
        }
        Ok(())
    }

    async fn end_first(&mut self) -> PartResult {
        if let Some((flight, bytes)) = self.flights.pop_front() {
            self.bytes -= bytes;
            flight.await.unwrap_or_else(|| Err(StorageError::ended()))?;
        }
        Ok(())
    }

    /// Waits for everything in flight, whatever becomes of it.
    pub async fn drain(&mut self) {
        for (flight, _) in std::mem::take(&mut self.flights) {
            flight.await;
        }
    }

    /// Fails if the scrub does not run any more.
    pub fn check(&self) -> PartResult {
        let runs = self.verifier.core.state().scrub.turn() == Some(self.turn)
            && !self.verifier.core.is_closed();
        if runs { Ok(()) } else { Err(Stop::Ended) }
    }

    fn rate(&self) -> u64 {
        let own = self.verifier.core.state().scrub.rate();
        own.unwrap_or_else(|| self.verifier.core.settings().scrub_rate)
    }

    /// Blocks of a leaf that are read before it rests: what the rate lets it read in a while, so
    /// that it does not go in bursts.
    pub fn at_once(&self) -> usize {
        match self.rate() {
            0 => usize::MAX,
            rate => (rate / BLOCK_U64 / PARTS_OF_A_SECOND).max(LEAST_AT_ONCE) as usize,
        }
    }

    /// `bytes` bytes of each copy are to be read without [`Window::verify`].
    pub fn owes(&mut self, bytes: u64) {
        self.owed += bytes as f64;
    }

    /// Waits until it has rested for everything that was read, as the rate wants it. To be called
    /// without a pin.
    pub async fn rest(&mut self) -> PartResult {
        loop {
            self.check()?;
            let changed = self.verifier.core.state().scrub.changed();
            let rate = self.rate() as f64;
            self.pay(rate);
            if rate == 0.0 || self.owed == 0.0 {
                self.owed = 0.0;
                return Ok(());
            }
            let due = self.owed_at.after(Duration::from_secs_f64(self.owed / rate));
            either(self.verifier.core.rt().sleep_until(due), changed).await;
            // The time rested until now counts at the rate that held meanwhile.
            self.pay(rate);
        }
    }

    fn pay(&mut self, rate: f64) {
        let now = self.verifier.core.now();
        let paid = now.since(self.owed_at).as_secs_f64() * rate;
        // A rest is over to the nanosecond, not to the fraction of a byte.
        self.owed = if paid + 1.0 > self.owed { 0.0 } else { self.owed - paid };
        self.owed_at = now;
    }
}
