//! Scrubs, as users see them: the pool's and the cache's part are one. The cache's begins, rests,
//! goes on and is cancelled with the pool's; where it outlasts that, it is asked itself.

use cache::Cache;
use model::Failure;
use model::scrub::{ScrubState, ScrubStatus};

use super::Shard;

impl Shard {
    pub(super) async fn scrub_status(&self) -> ScrubStatus {
        let pool = self.volumes.pool().scrubs().scrub_status().await;
        ScrubStatus { pool, cache: self.volumes.cache().map(|cache| cache.scrub_part()) }
    }

    pub(super) async fn start_scrub(
        &self,
        device: Option<String>,
        rate: Option<u64>,
    ) -> Result<ScrubStatus, Failure> {
        let pool = self.volumes.pool();
        let device = match device {
            Some(name) => Some(self.devices.name_of(pool, &name).await),
            None => None,
        };
        match self.outlasting() {
            Some((_, ScrubState::Paused)) => {
                let text = "the scrub of the cache is paused; resume it or cancel it first";
                return Err(Failure::invalid(text));
            }
            Some(_) => {
                let text = "a scrub of the cache runs still; see forebay scrub status";
                return Err(Failure::invalid(text));
            }
            None => {}
        }
        pool.scrubs().start_scrub(pool::ScrubOptions { device, rate }).await?;
        tracing::info!("scrub started");
        Ok(self.scrub_status().await)
    }

    pub(super) async fn pause_scrub(&self) -> Result<ScrubStatus, Failure> {
        match self.outlasting() {
            Some((cache, _)) => cache.pause_scrub()?,
            None => self.volumes.pool().scrubs().pause_scrub().await?,
        }
        Ok(self.scrub_status().await)
    }

    pub(super) async fn resume_scrub(&self, rate: Option<u64>) -> Result<ScrubStatus, Failure> {
        match self.outlasting() {
            Some((cache, _)) => cache.resume_scrub(rate)?,
            None => self.volumes.pool().scrubs().resume_scrub(rate).await?,
        }
        Ok(self.scrub_status().await)
    }

    pub(super) async fn cancel_scrub(&self) -> Result<ScrubStatus, Failure> {
        match self.outlasting() {
            Some((cache, _)) => cache.cancel_scrub()?,
            None => self.volumes.pool().scrubs().cancel_scrub().await?,
        }
        tracing::info!("scrub cancelled");
        Ok(self.scrub_status().await)
    }

    /// The cache, and what its part does, if that is not over and the pool's is.
    fn outlasting(&self) -> Option<(Cache, ScrubState)> {
        let pools = self.volumes.pool().scrubs().newest_scrub().state;
        if matches!(pools, ScrubState::Running | ScrubState::Paused) {
            return None;
        }
        let cache = self.volumes.cache()?;
        let state = cache.scrub_part().state;
        matches!(state, ScrubState::Running | ScrubState::Paused).then_some((cache, state))
    }
}
