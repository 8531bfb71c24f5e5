//! What stays from one pass of write-back to the next.

use std::time::Duration;

use base::{BLOCK_U64, Epoch, Instant, Result, StorageError};

use super::cuts::Cuts;
use crate::policy::controller::{Controller, ControllerState, Pacer};
use crate::settings::Settings;

/// What stays between passes.
pub(crate) struct Passes {
    pub cuts: Cuts,
    pub tries: Tries,
    pub controller: Controller,
    pacer: Pacer,
    /// Somebody waits for all of it: no pacing.
    pub urgent: u32,
    pub count: u64,
    /// How often all that was dirty at a moment has been published since, one after the other; and
    /// the epoch that was open at the last of these moments.
    pub turns: u64,
    pub turn: Epoch,
    /// What the pool's image is missing began then.
    pub dirty_since: Option<Instant>,
    pub last_error: Option<StorageError>,
    /// When it was told of last that the image is too old; `None`: it is not.
    pub told_late: Option<Instant>,
    /// Passes have failed since.
    pub failing_since: Option<Instant>,
    pub bytes: u64,
    /// Blocks of the cut that were carried.
    pub carried: u64,
    /// The rate at which it waits before it carries more, in bytes a second.
    pub sleeps_at: Option<u64>,
}

impl Passes {
    pub fn new(settings: &Settings) -> Passes {
        Passes {
            cuts: Cuts::default(),
            tries: Tries::default(),
            controller: Controller::new(settings.writeback.clone()),
            pacer: Pacer::new(),
            urgent: 0,
            count: 0,
            turns: 0,
            turn: Epoch(0),
            dirty_since: None,
            last_error: None,
            told_late: None,
            failing_since: None,
            bytes: 0,
            carried: 0,
            sleeps_at: None,
        }
    }

    /// Lets a pass carry so many bytes at `rate` bytes a second; or says how long it has to wait.
    pub fn take_turn(&mut self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let urgent = self.urgent > 0;
        let wait = if urgent { Duration::ZERO } else { self.pacer.due(now, rate) };
        self.sleeps_at = (!wait.is_zero()).then_some(rate);
        if wait.is_zero() {
            // What is urgent is not paid for: the pass after it would stand still for it.
            if !urgent {
                self.pacer.charge(bytes, rate);
            }
            self.bytes += bytes;
            self.carried += bytes / BLOCK_U64;
        }
        wait
    }

    pub fn rate(&self) -> ControllerState {
        self.controller.state()
    }
}

/// The passes that were tried, by number.
#[derive(Default)]
pub(crate) struct Tries {
    /// The last that has begun.
    pub begun: u64,
    /// The last that has ended, and how.
    pub last: Option<(u64, Result<()>)>,
}

impl Tries {
    /// How the last pass ended, if it began after so many had.
    pub fn after(&self, begun: u64) -> Option<Result<()>> {
        self.last.clone().filter(|&(number, _)| number > begun).map(|(_, outcome)| outcome)
    }
}
