//! The process, its clients and its volumes.

use model::io::IoOfKind;
use model::volume::VolumeIo;

use crate::metrics::family::MetricSource::{Histogram, Maybe, Number, Texts};
use crate::metrics::family::Samples::{
    Cause, Http, Once, Op, Problem, TlsFile, Volume, VolumeHits, VolumeOp,
};
use crate::metrics::family::{Family, US, count, gauge, info, latency};

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    info(
        "forebay_build_info",
        Once(Texts(&["version", "io_backend"], |s| {
            vec![&s.server.version, s.server.io_backend.word()]
        })),
        "the program",
    ),
    gauge(
        "forebay_uptime_seconds",
        Once(Number(|s| s.server.uptime_seconds as f64)),
        "since the server started",
    ),
    gauge(
        "forebay_resident_memory_bytes",
        Once(Maybe(|s| s.server.resident_bytes.map(|n| n as f64))),
        "memory of the process",
    ),
    gauge(
        "forebay_payload_memory_bytes",
        Once(Number(|s| s.server.payload_bytes as f64)),
        "data of requests being worked on",
    ),
    gauge(
        "forebay_buffer_memory_bytes",
        Once(Number(|s| s.memory.buffer_bytes as f64)),
        "buffers in use",
    ),
    gauge(
        "forebay_problem",
        Problem,
        "1 for each thing that is wrong; page is its section in docs/operations.md",
    ),
    // Clients.
    gauge(
        "forebay_nbd_connections",
        Once(Number(|s| s.server.connections as f64)),
        "NBD connections",
    ),
    count(
        "forebay_nbd_connections_accepted_total",
        Once(Number(|s| s.server.connections_accepted as f64)),
        "NBD connections accepted",
    ),
    count(
        "forebay_nbd_connections_refused_total",
        Once(Number(|s| s.server.connections_refused as f64)),
        "NBD connections closed, as there were too many",
    ),
    count(
        "forebay_nbd_connections_crowded_out_total",
        Once(Number(|s| s.server.connections_crowded_out as f64)),
        "NBD connections closed for others, as they had not said which volume they want",
    ),
    count(
        "forebay_nbd_tls_handshakes_total",
        Once(Number(|s| s.server.tls_handshakes as f64)),
        "handshakes of TLS that were done",
    ),
    count(
        "forebay_nbd_tls_handshakes_failed_total",
        Once(Number(|s| s.server.tls_handshakes_failed as f64)),
        "handshakes of TLS that failed",
    ),
    gauge(
        "forebay_tls_expiry_timestamp_seconds",
        TlsFile(Number(|f| f.ends_at as f64)),
        "when a certificate, or the list of those that were revoked, ends",
    ),
    gauge(
        "forebay_nbd_requests_in_flight",
        Once(Number(|s| s.server.requests_in_flight as f64)),
        "requests of clients being worked on",
    ),
    count(
        "forebay_requests_total",
        Op(Number(|io| io.count as f64)),
        "requests of clients, of all volumes together",
    ),
    count(
        "forebay_request_bytes_total",
        Op(Number(|io| io.bytes as f64)),
        "bytes that clients asked for, of all volumes together",
    ),
    latency(
        "forebay_request_latency_seconds",
        Op(Histogram(IoOfKind::latencies)),
        "from the arrival of a request to its end, of all volumes together",
    ),
    gauge(
        "forebay_admission_waiting",
        Once(Number(|s| s.admission.waiting as f64)),
        "requests that wait for a limit or for their share",
    ),
    count(
        "forebay_admission_limit_waits_total",
        Once(Number(|s| s.admission.waited_for_limit as f64)),
        "requests that had to wait for the limit of their volume",
    ),
    count(
        "forebay_admission_share_waits_total",
        Once(Number(|s| s.admission.waited_for_share as f64)),
        "requests that had to wait for their share beside other volumes",
    ),
    gauge(
        "forebay_slow_requests",
        Once(Number(|s| s.slow_requests.requests as f64)),
        "requests that ended in the last ten minutes and took more than 20 ms, to an eighth",
    ),
    gauge(
        "forebay_slow_requests_under_way",
        Once(Number(|s| s.slow_requests.under_way as f64)),
        "requests that have taken more than 20 ms and have not ended, of the oldest 4096",
    ),
    gauge(
        "forebay_slow_requests_longest_under_way_seconds",
        Once(Number(|s| s.slow_requests.longest_under_way_us * US)),
        "how long the oldest of them has taken up to now",
    ),
    gauge(
        "forebay_slow_requests_by_cause",
        Cause(Number(|c| c.requests as f64)),
        "those that ended by what they waited for longest, as forebay explain says it",
    ),
    // Volumes.
    info(
        "forebay_volume_info",
        Volume(Texts(&["cache_mode"], |v| vec![v.cache_mode.word()])),
        "a volume, and what the cache does for it",
    ),
    gauge("forebay_volume_size_bytes", Volume(Number(|v| v.size_bytes as f64)), "size of a volume"),
    gauge(
        "forebay_volume_allocated_bytes",
        Volume(Number(|v| v.allocated_bytes as f64)),
        "what a volume takes of the pool, one copy counted",
    ),
    count(
        "forebay_volume_requests_total",
        VolumeOp(Number(|io| io.count as f64)),
        "requests of clients to a volume",
    ),
    count(
        "forebay_volume_request_bytes_total",
        VolumeOp(Number(|io| io.bytes as f64)),
        "bytes that clients asked a volume for",
    ),
    latency(
        "forebay_volume_request_latency_seconds",
        VolumeOp(Histogram(VolumeIo::latencies)),
        "from the arrival of a request to its end",
    ),
    count(
        "forebay_volume_cache_hits_total",
        VolumeHits(Number(|v| v.hits as f64)),
        "blocks of a volume that were found in the cache",
    ),
    count(
        "forebay_volume_cache_misses_total",
        VolumeHits(Number(|v| v.misses as f64)),
        "blocks of a volume that were read from the pool",
    ),
    // This server itself.
    gauge("forebay_http_connections", Http(Number(|h| h.connections as f64)), "HTTP connections"),
    count("forebay_http_requests_total", Http(Number(|h| h.requests as f64)), "HTTP requests"),
    count(
        "forebay_http_refused_total",
        Http(Number(|h| h.refused as f64)),
        "HTTP requests refused for their host or token",
    ),
    count(
        "forebay_http_connections_refused_total",
        Http(Number(|h| h.connections_refused as f64)),
        "HTTP connections closed, as there were too many",
    ),
    count(
        "forebay_http_connections_crowded_out_total",
        Http(Number(|h| h.connections_crowded_out as f64)),
        "HTTP connections closed for others, as they had not asked for anything",
    ),
    gauge("forebay_http_streams", Http(Number(|h| h.streams as f64)), "streams of events"),
    gauge(
        "forebay_jobs_running",
        Http(Number(|h| h.jobs as f64)),
        "long work asked for over HTTP that runs",
    ),
];
