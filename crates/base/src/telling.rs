//! Which of many like events are logged.

/// True for the first few of `n` like events, then for ever fewer, so that a device that goes bad
/// does not fill the log. All of them are counted somewhere.
pub fn worth_telling(n: u64) -> bool {
    n <= 8 || n.is_power_of_two()
}
