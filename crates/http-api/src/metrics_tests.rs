//! The table, its document, and the text of a status.

use std::collections::BTreeSet;

use model::device::{DeviceErrors, DeviceKind, DeviceState, DeviceStatus, SitsOut};
use model::health::Problem;
use model::io::{IoByClass, IoOfClass, IoOfKind, Quantiles, RequestsByKind};
use model::scrub::{LostBlocks, PoolScrub};
use model::status::{
    CommitStatus, IoBackend, PoolState, PoolStatus, ServerStatus, SlowCause, SlowRequests, TlsFile,
    TlsStatus,
};
use model::volume::{CacheMode, Volume, VolumeIo, VolumeOfStatus};
use model::wait::{Layer, Reason};

use super::family::Kind;
use super::*;

fn row(family: &Family) -> String {
    let labels: Vec<String> = family.samples.labels().iter().map(|l| format!("`{l}`")).collect();
    format!(
        "| `{}` | {} | {} | {} |",
        family.name,
        family.kind.word(),
        labels.join(", "),
        family.help
    )
}

/// docs/metrics.md has these rows and no others, in this order. The rows are printed where they
/// differ: they can be taken over.
#[test]
fn the_document_has_the_table() {
    let text = include_str!("../../../docs/metrics.md");
    let kept: Vec<&str> = text.lines().filter(|line| line.starts_with("| `forebay_")).collect();
    let made: Vec<String> = families::all().map(row).collect();
    assert!(kept == made, "docs/metrics.md should have:\n{}", made.join("\n"));
}

#[test]
fn names_are_single_and_say_their_kind() {
    let mut seen = BTreeSet::new();
    for family in families::all() {
        assert!(seen.insert(family.name), "{} is there twice", family.name);
        assert_eq!(
            family.name.ends_with("_total"),
            family.kind == Kind::Counter,
            "{}",
            family.name
        );
        assert_eq!(family.name.ends_with("_info"), family.kind == Kind::Info, "{}", family.name);
    }
}

fn io() -> IoOfKind {
    IoOfKind {
        count: 3,
        bytes: 12288,
        latency_sum_us: 1500.0,
        latency_at_most: vec![1, 2],
        ..Default::default()
    }
}

fn device() -> DeviceStatus {
    let moves = IoOfClass { in_flight: 5, read: io(), ..Default::default() };
    let queue = QueueStatus {
        kind: DeviceKind::Ssd,
        io: IoByClass { moves, ..Default::default() },
        ..Default::default()
    };
    DeviceStatus {
        id: "d0".to_owned(),
        path: "/secret".to_owned(),
        state: DeviceState::Failed,
        sits_out: Some(SitsOut::default()),
        errors: DeviceErrors { read: 1, write: 0, checksum: 2, healed: 4 },
        queue: Some(queue),
        ..Default::default()
    }
}

fn volume() -> VolumeOfStatus {
    let read =
        VolumeIo { count: 3, bytes: 12288, latency_sum_us: 1500.0, latency_at_most: vec![1, 2] };
    let volume = Volume {
        name: "a \"b\"\n\\".to_owned(),
        size_bytes: 7,
        cache_mode: CacheMode::None,
        ..Default::default()
    };
    let requests = Some(RequestsOfVolume { read, ..Default::default() });
    VolumeOfStatus { volume, requests, ..Default::default() }
}

fn status() -> Status {
    let full = Problem { page: "pool-full".into(), ..Default::default() };
    let revoked = TlsFile {
        file: "ca-crl.pem".to_owned(),
        path: "/secret".to_owned(),
        ends_at: 5,
        ..Default::default()
    };
    let missing =
        DeviceStatus { id: "d1".to_owned(), state: DeviceState::Missing, ..Default::default() };
    let cause = SlowCause { layer: Layer::Pool, reason: Reason::Heal, requests: 9 };
    Status {
        latency_bounds_us: vec![10, 25000],
        server: ServerStatus {
            version: "1".to_owned(),
            io_backend: IoBackend::Posix,
            connections: 2,
            ..Default::default()
        },
        tls: Some(TlsStatus { files: vec![revoked], refused: None }),
        health: vec![full.clone(), full],
        requests: RequestsByKind { read: io(), ..Default::default() },
        volumes: vec![volume()],
        commit: CommitStatus {
            duration_ms: Quantiles { p50: 1.0, p99: 2.0, p999: 3.0, max: 4.0 },
            ..Default::default()
        },
        pool: PoolStatus {
            name: "p".to_owned(),
            uuid: "u".to_owned(),
            state: PoolState::Degraded,
            scrub: PoolScrub { lost_blocks: vec![LostBlocks::default(); 3], ..Default::default() },
            devices: vec![device(), missing],
            ..Default::default()
        },
        slow_requests: SlowRequests { causes: vec![cause], ..Default::default() },
        ..Default::default()
    }
}

#[test]
fn a_status_becomes_samples() {
    let http = HttpCounters { connections: 1, ..Default::default() };
    let text = render(&status(), &http, Format::Plain, true);
    for line in [
        "forebay_build_info{version=\"1\",io_backend=\"posix\"} 1",
        "forebay_nbd_connections 2",
        "forebay_tls_expiry_timestamp_seconds{file=\"ca-crl.pem\"} 5",
        "forebay_problem{page=\"pool-full\"} 1",
        "# TYPE forebay_requests_total counter",
        "forebay_requests_total{op=\"read\"} 3",
        "# TYPE forebay_request_latency_seconds histogram",
        "forebay_request_latency_seconds_bucket{op=\"read\",le=\"0.00001\"} 1",
        "forebay_request_latency_seconds_bucket{op=\"read\",le=\"0.025\"} 2",
        "forebay_request_latency_seconds_bucket{op=\"read\",le=\"+Inf\"} 3",
        "forebay_request_latency_seconds_sum{op=\"read\"} 0.0015",
        "forebay_request_latency_seconds_count{op=\"read\"} 3",
        "forebay_volume_size_bytes{volume=\"a \\\"b\\\"\\n\\\\\"} 7",
        "forebay_volume_requests_total{volume=\"a \\\"b\\\"\\n\\\\\",op=\"read\"} 3",
        "forebay_commit_duration_seconds{quantile=\"0.99\"} 0.002",
        "forebay_commit_duration_max_seconds 0.004",
        "forebay_pool_state{state=\"online\"} 0",
        "forebay_pool_state{state=\"degraded\"} 1",
        "forebay_lost_extents 3",
        "forebay_device_info{device=\"d0\",path=\"/secret\",kind=\"ssd\"} 1",
        "forebay_device_info{device=\"d1\",path=\"\"} 1",
        "forebay_device_state{device=\"d0\",state=\"failed\"} 1",
        "forebay_device_sits_out{device=\"d0\"} 1",
        "forebay_device_sits_out{device=\"d1\"} 0",
        "forebay_device_errors_total{device=\"d0\",error=\"checksum\"} 2",
        "forebay_queue_in_flight{device=\"d0\",class=\"move\"} 5",
        "forebay_device_request_bytes_total{device=\"d0\",class=\"move\",op=\"read\"} 12288",
        "forebay_slow_requests_by_cause{layer=\"pool\",reason=\"heal\"} 9",
        "forebay_http_connections 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("forebay_cache_"), "there is no cache");
    assert!(!text.contains("op=\"write\",le="), "nothing was written");
    assert!(!text.contains("forebay_resident_memory_bytes"), "the kernel does not tell");
    assert!(!text.contains("forebay_queue_waiting{device=\"d1\"}"), "it has no queue");
    assert_eq!(text.matches("# TYPE forebay_problem ").count(), 1);
    assert_eq!(text.matches("forebay_problem{").count(), 1);
    let text = render(&status(), &http, Format::Plain, false);
    assert!(!text.contains("secret"), "names of files are for clients with a token");
}

#[test]
fn openmetrics_leaves_suffixes_to_samples() {
    let text = render(&status(), &HttpCounters::default(), Format::Open, true);
    for line in [
        "# TYPE forebay_request_bytes counter",
        "# UNIT forebay_request_bytes bytes",
        "forebay_request_bytes_total{op=\"read\"} 12288",
        "# TYPE forebay_build info",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("\n# EOF\n"));
}
