//! The process, its clients and its volumes.

use crate::metrics::family::Each::{Http, Once, Op, Volume, VolumeHits, VolumeOp};
use crate::metrics::family::{Each, Family, Kind, US, count, gauge, info, latency, row};

/// Metrics of this part.
pub const FAMILIES: &[Family] = &[
    info("forebay_build_info", Each::Texts(&["version", "io_backend"]), "/server", "the program"),
    gauge("forebay_uptime_seconds", Once, "/server/uptime_seconds", "since the server started"),
    gauge("forebay_resident_memory_bytes", Once, "/server/resident_bytes", "memory of the process"),
    gauge(
        "forebay_payload_memory_bytes",
        Once,
        "/server/payload_bytes",
        "data of requests being worked on",
    ),
    gauge("forebay_buffer_memory_bytes", Once, "/memory/buffer_bytes", "buffers in use"),
    gauge(
        "forebay_problem",
        Each::Problem,
        "",
        "1 for each thing that is wrong; page is its section in docs/operations.md",
    ),
    // Clients.
    gauge("forebay_nbd_connections", Once, "/server/connections", "NBD connections"),
    count(
        "forebay_nbd_connections_accepted_total",
        Once,
        "/server/connections_accepted",
        "NBD connections accepted",
    ),
    count(
        "forebay_nbd_connections_refused_total",
        Once,
        "/server/connections_refused",
        "NBD connections closed, as there were too many",
    ),
    count(
        "forebay_nbd_tls_handshakes_total",
        Once,
        "/server/tls_handshakes",
        "handshakes of TLS that were done",
    ),
    count(
        "forebay_nbd_tls_handshakes_failed_total",
        Once,
        "/server/tls_handshakes_failed",
        "handshakes of TLS that failed",
    ),
    gauge(
        "forebay_tls_expiry_timestamp_seconds",
        Each::TlsFile,
        "/ends_at",
        "when a certificate, or the list of those that were revoked, ends",
    ),
    gauge(
        "forebay_nbd_requests_in_flight",
        Once,
        "/server/requests_in_flight",
        "requests of clients being worked on",
    ),
    count("forebay_requests_total", Op, "/count", "requests of clients, of all volumes together"),
    count(
        "forebay_request_bytes_total",
        Op,
        "/bytes",
        "bytes that clients asked for, of all volumes together",
    ),
    latency(
        "forebay_request_latency_seconds",
        Op,
        "from the arrival of a request to its end, of all volumes together",
    ),
    gauge(
        "forebay_admission_waiting",
        Once,
        "/admission/waiting",
        "requests that wait for a limit or for their share",
    ),
    count(
        "forebay_admission_limit_waits_total",
        Once,
        "/admission/waited_for_limit",
        "requests that had to wait for the limit of their volume",
    ),
    count(
        "forebay_admission_share_waits_total",
        Once,
        "/admission/waited_for_share",
        "requests that had to wait for their share beside other volumes",
    ),
    gauge(
        "forebay_slow_requests",
        Once,
        "/slow_requests/requests",
        "requests that ended in the last ten minutes and took more than 20 ms, to an eighth",
    ),
    gauge(
        "forebay_slow_requests_under_way",
        Once,
        "/slow_requests/under_way",
        "requests that have taken more than 20 ms and have not ended, of the oldest 4096",
    ),
    row(
        "forebay_slow_requests_longest_under_way_seconds",
        Kind::Gauge,
        Once,
        "/slow_requests/longest_under_way_us",
        US,
        "how long the oldest of them has taken up to now",
    ),
    gauge(
        "forebay_slow_requests_by_cause",
        Each::Cause,
        "/requests",
        "those that ended by what they waited for longest, as forebay explain says it",
    ),
    // Volumes.
    info(
        "forebay_volume_info",
        Each::VolumeText("cache_mode"),
        "",
        "a volume, and what the cache does for it",
    ),
    gauge("forebay_volume_size_bytes", Volume, "/size_bytes", "size of a volume"),
    gauge(
        "forebay_volume_allocated_bytes",
        Volume,
        "/allocated_bytes",
        "what a volume takes of the pool, one copy counted",
    ),
    count("forebay_volume_requests_total", VolumeOp, "/count", "requests of clients to a volume"),
    count(
        "forebay_volume_request_bytes_total",
        VolumeOp,
        "/bytes",
        "bytes that clients asked a volume for",
    ),
    latency(
        "forebay_volume_request_latency_seconds",
        VolumeOp,
        "from the arrival of a request to its end",
    ),
    count(
        "forebay_volume_cache_hits_total",
        VolumeHits,
        "/hits",
        "blocks of a volume that were found in the cache",
    ),
    count(
        "forebay_volume_cache_misses_total",
        VolumeHits,
        "/misses",
        "blocks of a volume that were read from the pool",
    ),
    // This server itself.
    gauge("forebay_http_connections", Http, "/connections", "HTTP connections"),
    count("forebay_http_requests_total", Http, "/requests", "HTTP requests"),
    count(
        "forebay_http_refused_total",
        Http,
        "/refused",
        "HTTP requests refused for their host or token",
    ),
    gauge("forebay_http_streams", Http, "/streams", "streams of events"),
    gauge("forebay_jobs_running", Http, "/jobs", "long work asked for over HTTP that runs"),
];
