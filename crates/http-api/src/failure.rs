//! Why something was not done: a word for programs, a text for people, and the HTTP status.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use serde_json::{Value, json};

/// All kinds of failures, with the status that a client sees. The engine has `invalid`,
/// `not-found`, `exists`, `refused`, `no-space`, `failed`, `busy`, `stopping` and `cancelled`.
pub const KINDS: &[(&str, StatusCode)] = &[
    ("invalid", StatusCode::BAD_REQUEST),
    ("unauthorized", StatusCode::UNAUTHORIZED),
    ("forbidden", StatusCode::FORBIDDEN),
    ("not-found", StatusCode::NOT_FOUND),
    ("no-method", StatusCode::METHOD_NOT_ALLOWED),
    ("timeout", StatusCode::REQUEST_TIMEOUT),
    ("exists", StatusCode::CONFLICT),
    ("refused", StatusCode::CONFLICT),
    ("cancelled", StatusCode::CONFLICT),
    ("too-large", StatusCode::PAYLOAD_TOO_LARGE),
    ("no-json", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ("failed", StatusCode::INTERNAL_SERVER_ERROR),
    ("stopping", StatusCode::SERVICE_UNAVAILABLE),
    ("busy", StatusCode::SERVICE_UNAVAILABLE),
    ("no-space", StatusCode::INSUFFICIENT_STORAGE),
];

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// For programs: one of [`KINDS`].
    pub kind: String,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A failure of `kind` that reads `message`.
    pub fn new(kind: &str, message: impl Into<String>) -> Failure {
        Failure { kind: kind.to_owned(), message: message.into() }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new("invalid", message)
    }

    /// The server is about to end.
    pub fn stopping() -> Failure {
        Failure::new("stopping", "the server is stopping")
    }

    /// Somebody has given the job up.
    pub fn cancelled() -> Failure {
        Failure::new("cancelled", "the job was cancelled")
    }

    /// The status that a client sees.
    pub fn status(&self) -> StatusCode {
        let known = KINDS.iter().find(|known| known.0 == self.kind);
        known.map_or(StatusCode::INTERNAL_SERVER_ERROR, |known| known.1)
    }

    /// As a client sees it, without the status.
    pub fn to_json(&self) -> Value {
        json!({ "kind": self.kind, "message": self.message })
    }

    /// The whole response.
    pub fn response(&self) -> Response<Body> {
        let mut response = json_response(self.status(), &json!({ "error": self.to_json() }));
        if self.kind == "unauthorized" {
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// A response whose body is `value`.
pub fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    text_response(status, "application/json", format!("{value}\n"))
}

/// A response of this content type.
pub fn text_response(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_the_engine_has_its_status() {
        for (kind, status) in [
            ("invalid", 400),
            ("not-found", 404),
            ("exists", 409),
            ("refused", 409),
            ("cancelled", 409),
            ("no-space", 507),
            ("stopping", 503),
            ("failed", 500),
        ] {
            assert_eq!(Failure::new(kind, "").response().status().as_u16(), status);
        }
    }
}
