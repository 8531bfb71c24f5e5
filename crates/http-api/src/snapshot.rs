//! The engine's status, asked for seldom though many look at it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::engine::{Engine, ask};
use crate::failure::Failure;

/// A status is shown again for so long.
const FRESH: Duration = Duration::from_millis(200);

/// The last status.
#[derive(Default)]
pub struct Snapshot(Mutex<Option<(Instant, Arc<Value>)>>);

impl Snapshot {
    /// The status, at most [`FRESH`] old. While one is asked for, others wait for the same.
    pub async fn get(&self, engine: &Arc<dyn Engine>) -> Result<Arc<Value>, Failure> {
        let mut last = self.0.lock().await;
        if let Some((at, status)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(status.clone());
        }
        let status = Arc::new(ask(engine, json!({ "request": "status" })).await?);
        *last = Some((Instant::now(), status.clone()));
        Ok(status)
    }
}
