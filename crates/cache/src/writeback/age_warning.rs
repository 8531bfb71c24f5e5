//! Age of the pool's image, and the warning when it is older than it should be.

use super::pass_state::AgeNews;
use crate::core::Core;
use crate::settings::LagPolicy;

/// Warns of an image that is older than it should be, and logs when it is not any more.
pub(crate) fn watch_age(core: &Core) {
    let (age, most, now) = (core.levels().age(), core.settings().max_lag, core.rt().now());
    let news = core.writeback().passes_mut().age_news(age, most, now);
    match news {
        None => return,
        Some(AgeNews::InTime) => {
            tracing::info!(cache = %core.path(), "the pool image is within max_lag again");
            return;
        }
        Some(AgeNews::TooOld) => {}
    }
    let what = match core.settings().max_lag_policy {
        LagPolicy::Aim => "writers are not slowed for it (max_lag_policy = \"strict\" does that)",
        LagPolicy::Strict => "writers are slowed to the speed of the pool",
    };
    tracing::warn!(
        cache = %core.path(),
        "write-back lags: the pool image is {} s old (max_lag {} s); losing the cache would \
         lose these writes; {what}",
        age.as_secs(), most.as_secs()
    );
}
