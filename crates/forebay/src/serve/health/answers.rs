//! Answers that would not outlive the server's process.

use model::cache::{CacheState, CacheStatus};
use model::status::{PoolState, PoolStatus};

/// Answers of the pool would not outlive the process. A pool that takes no writes gives none.
/// Returns the problem, and a remedy.
pub fn of_pool(pool: &PoolStatus) -> Option<(String, String)> {
    let takes_writes = pool.trouble.is_none() && pool.state != PoolState::Failed;
    pool.answers_at_risk.as_deref().filter(|_| takes_writes).map(problem)
}

/// The same of the cache.
pub fn of_cache(cache: &CacheStatus) -> Option<(String, String)> {
    let takes_writes = cache.state == CacheState::Serving;
    cache.answers_at_risk.as_deref().filter(|_| takes_writes).map(problem)
}

fn problem(why: &str) -> (String, String) {
    let what = format!(
        "a write that is answered and not flushed is lost if the server's process dies: {why}"
    );
    let todo = "make room for it: then the line goes by itself; or name another directory \
                (io.host_log) and restart forebay; clients that flush lose nothing";
    (what, todo.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_while_writes_are_taken() {
        let why = || Some("/dev/shm: no space".to_owned());
        let pool = |state| PoolStatus { state, answers_at_risk: why(), ..Default::default() };
        let told = of_pool(&pool(PoolState::Online)).expect("told");
        assert!(told.0.contains("/dev/shm: no space"), "{told:?}");
        assert_eq!(of_pool(&pool(PoolState::Failed)), None);
        let trouble = Some("flush: EIO".to_owned());
        assert_eq!(of_pool(&PoolStatus { trouble, ..pool(PoolState::Online) }), None);
        assert_eq!(of_pool(&PoolStatus::default()), None);
        let cache = |state| CacheStatus { state, answers_at_risk: why(), ..Default::default() };
        assert_eq!(of_cache(&cache(CacheState::Serving)), Some(told));
        assert_eq!(of_cache(&cache(CacheState::Failed)), None);
        assert_eq!(of_cache(&cache(CacheState::Aside)), None);
        assert_eq!(of_cache(&CacheStatus::default()), None);
    }
}
