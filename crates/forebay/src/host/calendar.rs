//! The calendar's time. It is told to people and compared with what files say of it. Nothing that
//! the engine does depends on it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rt::Rt;

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    since_1970().as_secs() as i64
}

/// Unix time at the runtime's time zero, in seconds.
pub fn unix_time_at_zero(rt: &Rt) -> u64 {
    since_1970().saturating_sub(rt.now().since(base::Instant(0))).as_secs()
}

fn since_1970() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "told to people, decides nothing")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
