//! The HTTP status of a failure, and responses.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use model::{Failure, FailureKind};
use serde::Serialize;
use serde_json::json;

/// The status that a client sees.
pub fn status_of(kind: FailureKind) -> StatusCode {
    match kind {
        FailureKind::Invalid => StatusCode::BAD_REQUEST,
        FailureKind::Unauthorized => StatusCode::UNAUTHORIZED,
        FailureKind::Forbidden => StatusCode::FORBIDDEN,
        FailureKind::NotFound => StatusCode::NOT_FOUND,
        FailureKind::NoMethod => StatusCode::METHOD_NOT_ALLOWED,
        FailureKind::Timeout => StatusCode::REQUEST_TIMEOUT,
        FailureKind::Exists | FailureKind::Refused | FailureKind::Cancelled => StatusCode::CONFLICT,
        FailureKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FailureKind::NoJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        FailureKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        FailureKind::Stopping | FailureKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
        FailureKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// The response to a request that was not carried out.
pub fn failed(e: &Failure) -> Response<Body> {
    let mut response = json_response(status_of(e.kind), &json!({ "error": e }));
    if e.kind == FailureKind::Unauthorized {
        let scheme = header::HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// A response whose body is `value`.
pub fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(text) => text_response(status, "application/json", text + "\n"),
        Err(e) => {
            let text = format!("an answer cannot be written as JSON: {e}\n");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", text)
        }
    }
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
    fn a_client_without_a_token_is_told_how_to_prove_itself() {
        let response = failed(&Failure::new(FailureKind::Unauthorized, "no"));
        assert_eq!(response.status().as_u16(), 401);
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
