//! The status again and again, and what has changed since, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use futures_util::stream;
use model::Status;
use model::job::Job;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::changes::{Observation, changes, unix_time};
use crate::engine::Engine;
use crate::jobs::Jobs;
use crate::snapshot::Snapshot;

struct Stream {
    engine: Arc<dyn Engine>,
    snapshot: Arc<Snapshot>,
    jobs: Jobs,
    /// The status and the jobs that were seen last.
    seen: Option<(Arc<Status>, Vec<Job>)>,
    stopped: watch::Receiver<bool>,
    ticks: Interval,
    number: u64,
    ended: bool,
    /// The permit that counts this stream among all streams.
    _place: OwnedSemaphorePermit,
}

/// A response that does not end by itself: an event `status` at once and then in each `every`, and
/// before that an event `change` for each thing that has changed since the last one.
pub fn events(
    engine: Arc<dyn Engine>,
    snapshot: Arc<Snapshot>,
    jobs: Jobs,
    stopped: watch::Receiver<bool>,
    every: Duration,
    place: OwnedSemaphorePermit,
) -> Response<Body> {
    let mut ticks = interval(every);
    // A client that was slow gets one event, not all that it missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = Stream {
        engine,
        snapshot,
        jobs,
        seen: None,
        stopped,
        ticks,
        number: 0,
        ended: false,
        _place: place,
    };
    let body = Body::from_stream(stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Stream {
    async fn next(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        tokio::select! {
            _ = self.stopped.wait_for(|stop| *stop) => return None,
            _ = self.ticks.tick() => {}
        }
        match self.snapshot.get(&self.engine).await {
            Ok(status) => {
                let now = (status, self.jobs.list());
                let told = self.seen.as_ref().map(|seen| {
                    let before = Observation { status: &seen.0, jobs: &seen.1 };
                    changes(before, Observation { status: &now.0, jobs: &now.1 }, unix_time())
                });
                let mut text = String::new();
                for change in told.into_iter().flatten() {
                    text += &self.event("change", &change);
                }
                text += &self.event("status", &*now.0);
                self.seen = Some(now);
                Some(text)
            }
            Err(e) => {
                self.ended = true;
                Some(self.event("error", &e))
            }
        }
    }

    fn event(&mut self, kind: &str, data: &impl Serialize) -> String {
        self.number += 1;
        let data = serde_json::to_string(data).unwrap_or_default();
        format!("id: {}\nevent: {kind}\ndata: {data}\n\n", self.number)
    }
}
