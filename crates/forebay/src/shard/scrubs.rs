//! Scrubs, as users see them: the pool's and the cache's part are one. The cache's begins, rests,
//! goes on and is cancelled with the pool's; where it outlasts that, it is asked itself.

use cache::Cache;
use pool::ScrubState;
use serde_json::json;

use super::Shard;
use crate::control::{Answer, RequestError};

impl Shard {
    pub(super) async fn scrub_status(&self) -> Answer {
        let mut status = json!(self.volumes.pool().scrub_status().await);
        status["cache"] = json!(self.volumes.cache().map(|cache| cache.scrub_part()));
        Ok(status)
    }

    pub(super) async fn start_scrub(&self, device: Option<String>, rate: Option<u64>) -> Answer {
        let pool = self.volumes.pool();
        let device = match device {
            Some(name) => Some(self.devices.name_of(pool, &name).await),
            None => None,
        };
        match self.outlasting() {
            Some((_, "paused")) => {
                let text = "the scrub of the cache is paused; resume it or cancel it first";
                return Err(RequestError::invalid(text));
            }
            Some(_) => {
                let text = "a scrub of the cache runs still; see forebay scrub status";
                return Err(RequestError::invalid(text));
            }
            None => {}
        }
        pool.start_scrub(pool::ScrubOptions { device, rate }).await?;
        tracing::info!("scrub started");
        self.scrub_status().await
    }

    pub(super) async fn pause_scrub(&self) -> Answer {
        match self.outlasting() {
            Some((cache, _)) => cache.pause_scrub()?,
            None => self.volumes.pool().pause_scrub().await?,
        }
        self.scrub_status().await
    }

    pub(super) async fn resume_scrub(&self, rate: Option<u64>) -> Answer {
        match self.outlasting() {
            Some((cache, _)) => cache.resume_scrub(rate)?,
            None => self.volumes.pool().resume_scrub(rate).await?,
        }
        self.scrub_status().await
    }

    pub(super) async fn cancel_scrub(&self) -> Answer {
        match self.outlasting() {
            Some((cache, _)) => cache.cancel_scrub()?,
            None => self.volumes.pool().cancel_scrub().await?,
        }
        tracing::info!("scrub cancelled");
        self.scrub_status().await
    }

    /// The cache, and what its part does, if that is not over and the pool's is.
    fn outlasting(&self) -> Option<(Cache, &'static str)> {
        let pools = self.volumes.pool().newest_scrub().state;
        if matches!(pools, ScrubState::Running | ScrubState::Paused) {
            return None;
        }
        let cache = self.volumes.cache()?;
        let state = cache.scrub_part().state;
        matches!(state, "running" | "paused").then_some((cache, state))
    }
}
