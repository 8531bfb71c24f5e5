//! The dashboard: a page and its files, which are a part of the binary.
//!
//! Fault model: what the page shows comes from clients and devices, such as names of volumes. So it
//! may run no script but its own files, and may make no element of text (`CSP`). It holds nothing
//! that is secret, so it needs no token; what it asks for does.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

/// A file of the page.
pub struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! script {
    ($name:literal) => {
        File {
            path: concat!("/page/", $name),
            kind: SCRIPT,
            text: include_str!(concat!("../page/", $name)),
        }
    };
}

const FILES: &[File] = &[
    File { path: "/", kind: HTML, text: include_str!("../page/index.html") },
    File { path: "/page/style.css", kind: CSS, text: include_str!("../page/style.css") },
    File { path: "/page/icon.svg", kind: "image/svg+xml", text: include_str!("../page/icon.svg") },
    script!("main.js"),
    script!("addresses.js"),
    script!("advice.js"),
    script!("api.js"),
    script!("cache.js"),
    script!("charts.js"),
    script!("clients.js"),
    script!("devices.js"),
    script!("dialogs.js"),
    script!("elements.js"),
    script!("events.js"),
    script!("explain.js"),
    script!("health.js"),
    script!("history.js"),
    script!("jobs.js"),
    script!("settings.js"),
    script!("units.js"),
    script!("volumes.js"),
];

/// Of all answers with a file.
const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    // A browser asks whether it has changed: the next version of the binary has other files.
    ("cache-control", "no-cache"),
];

/// The file of this path.
pub fn find(method: &Method, path: &str) -> Option<&'static File> {
    let reads = method == Method::GET || method == Method::HEAD;
    FILES.iter().find(|file| reads && file.path == path)
}

impl File {
    /// The file; without it where the client has it.
    pub fn response(&self, asked: &HeaderMap) -> Response<Body> {
        let tag = self.tag();
        let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let same = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag));
        let (status, body) = match same {
            true => (StatusCode::NOT_MODIFIED, Body::empty()),
            false => (StatusCode::OK, Body::from(self.text)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }

    /// Returns a tag that differs where the text does (FNV-1a).
    fn tag(&self) -> String {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        format!("\"{:016x}\"", self.text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_served_once() {
        let kept = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/page")).unwrap();
        assert_eq!(kept.count(), FILES.len());
        for file in FILES {
            let response = file.response(&HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK);
            let mut asked = HeaderMap::new();
            asked.insert(header::IF_NONE_MATCH, response.headers()[header::ETAG].clone());
            let again = file.response(&asked);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            assert!(find(&Method::GET, file.path).is_some());
            assert!(find(&Method::POST, file.path).is_none());
        }
    }

    #[test]
    fn files_name_each_other_and_no_other_place() {
        for file in FILES.iter().filter(|file| file.path != "/page/icon.svg") {
            for (number, line) in file.text.lines().enumerate() {
                let at = format!("{}:{}: {line}", file.path, number + 1);
                assert!(line.chars().count() <= 100, "{at}");
                for mark in ["://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("] {
                    // The name of SVG elements is no place that anything is loaded from.
                    assert!(!line.contains(mark) || line.contains("www.w3.org/2000/svg"), "{at}");
                }
                let imported = line.split_once("from \"./").and_then(|(_, l)| l.split_once('"'));
                if let Some((name, _)) = imported {
                    assert!(FILES.iter().any(|f| f.path == format!("/page/{name}")), "{at}");
                }
            }
        }
    }
}
