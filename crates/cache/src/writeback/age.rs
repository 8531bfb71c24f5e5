//! How old the pool's image is, and the warning when it is older than it should be.

use std::time::Duration;

use crate::Cache;
use crate::settings::LagPolicy;

/// The warning is repeated after this time while the image stays too old.
const AGAIN: Duration = Duration::from_secs(60);

impl Cache {
    /// How much older than the volumes the pool's image is at most.
    pub(crate) fn age(&self) -> Duration {
        self.0.passes.borrow().age(self.0.rt.now()).unwrap_or_default()
    }

    /// True if the pool's image is older than it should be: a pass is to be as fast as it can.
    pub(crate) fn is_late(&self) -> bool {
        self.age() > self.settings().max_lag
    }

    /// Warns of an image that is older than it should be, and logs when it is not any more.
    pub(crate) fn watch_age(&self) {
        let (age, most, now) = (self.age(), self.settings().max_lag, self.0.rt.now());
        let told = self.0.passes.borrow().told_late;
        // An age a little above the limit is not logged: the pass that is under way publishes soon.
        let late = age > most + most / 4;
        match told {
            None if late => {}
            Some(then) if late && now.since(then) >= AGAIN => {}
            Some(_) if age <= most => {
                tracing::info!(cache = %self.0.path, "the pool's image is no older than max_lag \
                    again");
                self.0.passes.borrow_mut().told_late = None;
                return;
            }
            _ => return,
        }
        self.0.passes.borrow_mut().told_late = Some(now);
        let what = match self.settings().max_lag_policy {
            LagPolicy::Aim => {
                "writers are not slowed for it (max_lag_policy = \"strict\" does that)"
            }
            LagPolicy::Strict => "writers are slowed to the speed of the pool",
        };
        tracing::warn!(
            cache = %self.0.path,
            "the pool's image is {} s older than the volumes, max_lag is {} s: the pool takes \
             less than is written, and a loss of the cache would cost that much; {what}",
            age.as_secs(), most.as_secs()
        );
    }
}
