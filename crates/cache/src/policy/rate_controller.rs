//! Control of the rate at which passes write back.
//!
//! **Rate.** A PI controller on the dirty bytes above their target. Dirty data is an integrating
//! plant (it grows by what clients write and shrinks by what is written back), for which the two
//! gains below are overdamped. The rate is between `min` and `max` at all times. The integral
//! cannot wind up: it does not grow while the rate is at its upper bound, nor shrink at its lower
//! one, and stays within `0..=max`. While clients ask for nothing the rate may go up to
//! `idle_rate`, by a factor of about 2.6 each second: an idle cache once let its rate leap from 4
//! MB/s to 0.9 TB/s.
//!
//! **Pacing.** [`BytePacer`] spreads what is written evenly at that rate.
//!
//! Both are pure: time is passed in, may stand still and may jump.

use base::{Duration, Instant};

/// Bytes a second for each byte above the target: an excess is gone in this many seconds, and a
/// few.
const PROPORTIONAL: f64 = 1.0 / 10.0;
/// Bytes a second, each second, for each byte above the target. A ninth of the square of the other:
/// damping 1.5.
const INTEGRAL: f64 = PROPORTIONAL * PROPORTIONAL / 9.0;
/// The rate is computed anew after this time.
const PERIOD: Duration = Duration::from_millis(100);
/// No more than this is integrated at once, however long ago it was asked last.
const LONGEST_STEP: Duration = Duration::from_secs(1);
/// The time for which a pacer saves up credit.
const BURST: Duration = Duration::from_millis(50);
/// Rates of write-back, in bytes a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSettings {
    /// At least this, also when little is dirty.
    pub min: u64,
    /// At most this, always.
    pub max: u64,
    /// Up to this while clients ask for nothing.
    pub idle_rate: u64,
}

impl Default for RateSettings {
    fn default() -> Self {
        RateSettings { min: 4 << 20, max: 1 << 30, idle_rate: 64 << 20 }
    }
}

impl RateSettings {
    /// Removes contradictions from these settings: `max` wins over the others.
    fn agreed(self) -> RateSettings {
        let max = self.max.max(1);
        let min = self.min.clamp(1, max);
        RateSettings { min, max, idle_rate: self.idle_rate.clamp(min, max) }
    }
}

/// The state of the controller after its last update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerState {
    /// Bytes a second.
    pub rate: u64,
    /// Dirty bytes.
    pub dirty: u64,
    /// Dirty bytes it aims at.
    pub target: u64,
    /// The proportional part, bytes a second.
    pub proportional: f64,
    /// The integral part, bytes a second.
    pub integral: f64,
    /// When the rate is computed next.
    pub next_update: Instant,
}

/// Sets the rate of write-back.
#[derive(Debug)]
pub struct Controller {
    settings: RateSettings,
    state: ControllerState,
    updated: Option<Instant>,
    /// The rate that is allowed now while clients ask for nothing, bytes a second; `None`: they are
    /// at work.
    idle: Option<f64>,
    /// The settings have changed since the rate was computed.
    reset: bool,
}

impl Controller {
    /// A controller at rest.
    pub fn new(settings: RateSettings) -> Controller {
        let settings = settings.agreed();
        let state = ControllerState {
            rate: settings.min,
            dirty: 0,
            target: 0,
            proportional: 0.0,
            integral: 0.0,
            next_update: Instant(0),
        };
        Controller { settings, state, updated: None, idle: None, reset: false }
    }

    /// From now on these settings hold: the rate is between their bounds at once, and computed anew
    /// with the next update.
    pub fn set(&mut self, settings: RateSettings) {
        self.settings = settings.agreed();
        let RateSettings { min, max, .. } = self.settings;
        self.state.rate = self.state.rate.clamp(min, max);
        self.state.integral = self.state.integral.min(max as f64);
        self.reset = true;
    }

    /// The rate from now on, in bytes a second. May be called as often as desired.
    pub fn update(&mut self, now: Instant, dirty: u64, target: u64, foreground_idle: bool) -> u64 {
        let idle_changed = foreground_idle != self.idle.is_some();
        let step = match self.updated {
            Some(then) => now.since(then),
            None => PERIOD,
        };
        if step < PERIOD && !idle_changed && !self.reset {
            return self.state.rate;
        }
        self.reset = false;
        let dt = step.min(LONGEST_STEP).as_secs_f64();
        let (min, max) = (self.settings.min as f64, self.settings.max as f64);
        let error = dirty as f64 - target as f64;
        let proportional = error * PROPORTIONAL;
        let wanted = proportional + self.state.integral;
        let winds_up = error > 0.0 && wanted >= max || error < 0.0 && wanted <= min;
        if !winds_up {
            self.state.integral = (self.state.integral + error * INTEGRAL * dt).clamp(0.0, max);
        }
        let mut rate = (proportional + self.state.integral).clamp(min, max);
        self.idle = match (foreground_idle, self.idle) {
            (false, _) => None,
            (true, None) => Some(self.state.rate as f64),
            (true, Some(allowed)) => {
                Some((allowed * (1.0 + dt)).min(self.settings.idle_rate as f64))
            }
        };
        if let Some(allowed) = self.idle {
            rate = rate.max(allowed.min(self.settings.idle_rate as f64));
        }
        self.updated = Some(self.updated.map_or(now, |then| then.max(now)));
        self.state = ControllerState {
            rate: (rate as u64).clamp(self.settings.min, self.settings.max),
            dirty,
            target,
            proportional,
            integral: self.state.integral,
            next_update: now.after(PERIOD),
        };
        self.state.rate
    }

    /// The state after the last update.
    pub fn state(&self) -> ControllerState {
        self.state
    }
}

/// Spreads bytes evenly over time.
#[derive(Debug, Default)]
pub struct BytePacer {
    /// Bytes let through that time has not paid for yet; negative: credit, of [`BURST`] at most.
    debt: f64,
    /// The rate at which the debt is paid off: the lowest since it was taken.
    rate: f64,
    last: Instant,
}

impl BytePacer {
    /// A pacer without debt or credit.
    pub fn new() -> BytePacer {
        BytePacer::default()
    }

    /// When the next bytes may go, at `rate` bytes a second from now on; zero: at once. After a
    /// fall of the rate, a run does not wait longer for those before it: their debt is paid off in
    /// the same time as before.
    pub fn due(&mut self, now: Instant, rate: u64) -> Duration {
        let rate = rate.max(1) as f64;
        if rate < self.rate && self.debt > 0.0 {
            self.debt *= rate / self.rate;
            self.rate = rate;
        }
        let earned = now.since(self.last).as_secs_f64() * rate;
        self.last = self.last.max(now);
        self.debt = (self.debt - earned).max(-rate * BURST.as_secs_f64());
        Duration::try_from_secs_f64(self.debt.max(0.0) / rate).unwrap_or(Duration::MAX)
    }

    /// Notes that `bytes` bytes go, at `rate` bytes a second.
    pub fn charge(&mut self, bytes: u64, rate: u64) {
        self.debt += bytes as f64;
        self.rate = rate.max(1) as f64;
    }
}

#[cfg(test)]
#[path = "rate_controller_tests.rs"]
mod tests;
