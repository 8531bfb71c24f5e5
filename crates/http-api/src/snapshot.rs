//! The engine's status, asked for seldom though many look at it.

use std::sync::Arc;
use std::time::Duration;

use model::{Failure, Status, request};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::engine::{Engine, ask_for};

/// A status is shown again for so long.
const FRESH: Duration = Duration::from_millis(200);

/// A status, and when it was asked for.
type Last = Option<(Instant, Arc<Status>)>;

/// The last status.
#[derive(Default)]
pub struct Snapshot(Mutex<Last>);

impl Snapshot {
    /// The status, at most [`FRESH`] old. While one is asked for, others wait for the same.
    pub async fn get(&self, engine: &Arc<dyn Engine>) -> Result<Arc<Status>, Failure> {
        let mut last = self.0.lock().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(status.clone());
        }
        Self::ask(&mut last, engine).await
    }

    /// A status that is asked for now, and which others may have for a while. They come in the
    /// order in which the engine made them.
    pub async fn renew(&self, engine: &Arc<dyn Engine>) -> Result<Arc<Status>, Failure> {
        Self::ask(&mut *self.0.lock().await, engine).await
    }

    async fn ask(last: &mut Last, engine: &Arc<dyn Engine>) -> Result<Arc<Status>, Failure> {
        let status = Arc::new(ask_for(engine, request::Status {}).await?);
        *last = Some((Instant::now(), status.clone()));
        Ok(status)
    }

    /// The status has changed: the next one that is asked for shows the change.
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use model::Request;

    use super::*;
    use crate::engine::Reply;

    /// An engine whose uptime says how often it was asked.
    #[derive(Default)]
    struct Counting(AtomicU64);

    impl Engine for Counting {
        fn ask(&self, _: Request, reply: Reply) {
            let mut status = Status::default();
            status.server.uptime_seconds = self.0.fetch_add(1, Ordering::Relaxed);
            reply(Ok(status.into()));
        }
    }

    #[test]
    fn what_is_asked_for_after_a_change_shows_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (engine, status) = (Arc::new(Counting::default()) as _, Snapshot::default());
            let first = status.get(&engine).await.unwrap();
            status.forget().await;
            let second = status.get(&engine).await.unwrap();
            let third = status.renew(&engine).await.unwrap();
            let same = status.get(&engine).await.unwrap();
            let all = [first, second, third, same].map(|seen| seen.server.uptime_seconds);
            assert_eq!(all, [0, 1, 2, 2]);
        });
    }
}
