//! All metrics. docs/metrics.md has a row for each.

mod cache;
mod pool;
mod server;

use super::family::Family;

/// All of them, in the order in which they are exported.
pub fn all() -> impl Iterator<Item = &'static Family> {
    [server::FAMILIES, pool::FAMILIES, cache::FAMILIES].into_iter().flatten()
}
