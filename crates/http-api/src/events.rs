//! The status again and again, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::snapshot::Snapshot;

struct Stream {
    engine: Arc<dyn Engine>,
    snapshot: Arc<Snapshot>,
    stopped: watch::Receiver<bool>,
    ticks: Interval,
    number: u64,
    ended: bool,
    /// Its place among all streams.
    _place: OwnedSemaphorePermit,
}

/// A response that does not end by itself: an event `status` at once and then in each `every`.
pub fn events(
    engine: Arc<dyn Engine>,
    snapshot: Arc<Snapshot>,
    stopped: watch::Receiver<bool>,
    every: Duration,
    place: OwnedSemaphorePermit,
) -> Response<Body> {
    let mut ticks = interval(every);
    // A client that was slow gets one event, not all that it missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream =
        Stream { engine, snapshot, stopped, ticks, number: 0, ended: false, _place: place };
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
        self.number += 1;
        let (kind, data) = match self.snapshot.get(&self.engine).await {
            Ok(status) => ("status", status.to_string()),
            Err(e) => {
                self.ended = true;
                ("error", e.to_json().to_string())
            }
        };
        Some(format!("id: {}\nevent: {kind}\ndata: {data}\n\n", self.number))
    }
}
