//! Counters of the HTTP server itself.

/// This crate's own counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HttpCounters {
    /// Connections that are open.
    pub connections: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused for their host or token.
    pub refused: u64,
    /// Connections that were refused, as all places were taken.
    pub connections_refused: u64,
    /// Connections that were closed for others, as they had not asked for anything.
    pub connections_crowded_out: u64,
    /// Streams of events that are open.
    pub streams: u64,
    /// Jobs that run.
    pub jobs: u64,
}
