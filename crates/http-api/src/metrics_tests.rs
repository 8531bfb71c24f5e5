//! The table, its document, and the text of a status.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;

fn row(family: &Family) -> String {
    let labels: Vec<String> = family.each.labels().iter().map(|l| format!("`{l}`")).collect();
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
        assert!(family.at.is_empty() || family.at.starts_with('/'), "{}", family.name);
    }
}

fn status() -> Value {
    let op = json!({
        "count": 3, "bytes": 12288, "latency_sum_us": 1500.0, "latency_at_most": [1, 2],
    });
    json!({
        "latency_bounds_us": [10, 25000],
        "server": { "version": "1", "io_backend": "posix", "connections": 2 },
        "tls": { "files": [{ "file": "ca-crl.pem", "path": "/secret", "ends_at": 5 }] },
        "health": [{ "page": "pool-full" }, { "page": "pool-full" }],
        "requests": { "read": op, "write": { "count": 0, "bytes": 0 } },
        "volumes": [{
            "name": "a \"b\"\n\\", "size_bytes": 7, "cache_mode": "none",
            "requests": { "read": op },
        }],
        "commit": { "duration_ms": { "p50": 1.0, "p99": 2.0, "p999": 3.0, "max": 4.0 } },
        "pool": {
            "name": "p", "uuid": "u", "state": "degraded",
            "scrub": { "lost_blocks": [1, 2, 3] },
            "devices": [{
                "id": "d0", "path": "/secret", "state": "failed", "sits_out": {},
                "errors": { "read": 1, "write": 0, "checksum": 2, "healed": 4 },
                "queue": { "kind": "ssd", "io": { "move": { "in_flight": 5, "read": op } } },
            }],
        },
        "slow_requests": { "causes": [{ "layer": "pool", "reason": "heal", "requests": 9 }] },
    })
}

#[test]
fn a_status_becomes_samples() {
    let http = json!({ "connections": 1 });
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
        "forebay_device_state{device=\"d0\",state=\"failed\"} 1",
        "forebay_device_sits_out{device=\"d0\"} 1",
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
    assert_eq!(text.matches("# TYPE forebay_problem ").count(), 1);
    assert_eq!(text.matches("forebay_problem{").count(), 1);
    let text = render(&status(), &http, Format::Plain, false);
    assert!(!text.contains("secret"), "names of files are for clients with a token");
}

#[test]
fn openmetrics_leaves_suffixes_to_samples() {
    let text = render(&status(), &Value::Null, Format::Open, true);
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

#[test]
fn nonsense_has_no_samples() {
    for status in [Value::Null, json!([]), json!({ "pool": 7, "volumes": {}, "requests": [] })] {
        let text = render(&status, &Value::Null, Format::Plain, true);
        assert!(!text.contains("forebay_pool_capacity_bytes"), "{text}");
    }
}
