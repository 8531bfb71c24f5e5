//! Age of the pool's image, and the warning when it is older than it should be.

use std::time::Duration;

use super::pass_state::AgeNews;
use crate::Cache;
use crate::settings::LagPolicy;

impl Cache {
    /// The time by which the pool's image is older than the volumes, at most.
    pub(crate) fn age(&self) -> Duration {
        self.writeback().passes().age(self.rt().now()).unwrap_or_default()
    }

    /// True if the pool's image is older than it should be: a pass is to be as fast as it can.
    pub(crate) fn is_late(&self) -> bool {
        self.age() > self.settings().max_lag
    }

    /// Warns of an image that is older than it should be, and logs when it is not any more.
    pub(crate) fn watch_age(&self) {
        let (age, most, now) = (self.age(), self.settings().max_lag, self.rt().now());
        let news = self.writeback().passes_mut().age_news(age, most, now);
        match news {
            None => return,
            Some(AgeNews::InTime) => {
                tracing::info!(cache = %self.path(), "the pool image is within max_lag again");
                return;
            }
            Some(AgeNews::TooOld) => {}
        }
        let what = match self.settings().max_lag_policy {
            LagPolicy::Aim => {
                "writers are not slowed for it (max_lag_policy = \"strict\" does that)"
            }
            LagPolicy::Strict => "writers are slowed to the speed of the pool",
        };
        tracing::warn!(
            cache = %self.path(),
            "write-back lags: the pool image is {} s old (max_lag {} s); losing the cache would \
             lose these writes; {what}",
            age.as_secs(), most.as_secs()
        );
    }
}
