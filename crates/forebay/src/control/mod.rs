//! The control protocol: what commands say to a running server.
//!
//! One JSON object a line over a unix socket, one reply line for each, in order:
//!
//! ```text
//! {"version":1,"request":"status"}
//! {"version":1,"ok":{"pool":{"name":"forebay",...},...}}
//! {"version":1,"request":"volume-create","name":"a","size_bytes":1000,"sector_bytes":512}
//! {"version":1,"error":{"kind":"invalid","message":"..."}}
//! ```
//!
//! Unknown versions, requests and fields are errors; the connection stays usable. A line that is
//! too long ends it.
//!
//! * [`server`]: the thread that listens, and its connections
//! * [`client`]: the commands' side; [`words`]: requests for people

pub mod client;
pub mod server;
pub mod words;

use model::{Answer, Failure, FailureKind, Request};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CommandError;

/// The protocol's version.
pub const VERSION: u64 = 1;
/// The longest request line, in bytes.
pub const MAX_LINE: u64 = 64 << 10;

impl From<CommandError> for Failure {
    fn from(e: CommandError) -> Failure {
        Failure::new(FailureKind::Failed, e.to_string())
    }
}

/// The end of a request: an answer or a failure.
pub type Outcome = Result<Answer, Failure>;

/// Reads a request line.
pub fn decode_request(line: &[u8]) -> Result<Request, Failure> {
    let value: Value =
        serde_json::from_slice(line).map_err(|e| Failure::invalid(format!("not JSON: {e}")))?;
    let Value::Object(mut fields) = value else {
        return Err(Failure::invalid("a request is a JSON object"));
    };
    match fields.remove("version") {
        Some(v) if v == VERSION => {}
        Some(v) => {
            let text =
                format!("version {v} of the control protocol is not spoken here, only {VERSION}");
            return Err(Failure::invalid(text));
        }
        None => return Err(Failure::invalid("a request has a version")),
    }
    serde_json::from_value(Value::Object(fields)).map_err(|e| Failure::invalid(e.to_string()))
}

/// Writes a request line, with its end.
pub fn encode_request(request: &Request) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(request)?;
    value["version"] = VERSION.into();
    let mut line = serde_json::to_vec(&value)?;
    line.push(b'\n');
    Ok(line)
}

/// A reply line. `T` is the answer, or [`Value`] where it is not known yet which one it is.
#[derive(Serialize, Deserialize)]
struct ReplyLine<T> {
    #[serde(default)]
    version: u64,
    #[serde(flatten)]
    reply: Reply<T>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply<T> {
    Ok(T),
    Error(Failure),
}

/// Writes a reply line, with its end.
pub fn encode_answer<T: Serialize>(answer: Result<T, &Failure>) -> serde_json::Result<Vec<u8>> {
    let reply = match answer {
        Ok(answer) => Reply::Ok(answer),
        Err(e) => Reply::Error(e.clone()),
    };
    let mut line = serde_json::to_vec(&ReplyLine { version: VERSION, reply })?;
    line.push(b'\n');
    Ok(line)
}

/// Reads a reply line; `None` if the line is no reply.
pub fn decode_answer(line: &[u8]) -> Option<Result<Value, Failure>> {
    let line: ReplyLine<Value> = serde_json::from_slice(line).ok()?;
    Some(match line.reply {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(e) => Err(e),
    })
}

#[cfg(test)]
mod tests {
    use model::request;
    use model::volume::CacheMode;

    use super::*;

    #[test]
    fn requests_travel() {
        let name = || "a\n\"b".to_owned();
        let requests: Vec<Request> = vec![
            request::Status {}.into(),
            request::VolumeList {}.into(),
            request::VolumeCreate { name: name(), size_bytes: u64::MAX, sector_bytes: 512 }.into(),
            request::VolumeResize { name: name(), size_bytes: 0, shrink: true, force: true }.into(),
            request::VolumeLimit {
                name: name(),
                iops: Some(0),
                bytes_per_second: Some(u64::MAX),
                burst_ms: None,
            }
            .into(),
            request::CacheAttach { path: name().into(), size_bytes: Some(1), force: true }.into(),
            request::SetCacheMode { volume: name(), mode: CacheMode::WriteAround }.into(),
            request::ScrubStart { device: Some(name()), rate: Some(1) }.into(),
            request::DeviceAdd { device: name(), replaces: None, force: false, spare: true }.into(),
            request::MovesPause { paused: true }.into(),
            request::SnapshotList { volume: Some(name()) }.into(),
            request::SnapshotCreate { snapshots: vec![name(), name()] }.into(),
            request::SnapshotRename { snapshot: name(), to: name() }.into(),
            request::SnapshotDelete { snapshot: name(), force: true }.into(),
            request::Settings { key: None }.into(),
            request::Set { key: name(), value: "7s".into(), save: true }.into(),
        ];
        for request in requests {
            let line = encode_request(&request).unwrap();
            assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
            assert_eq!(decode_request(&line), Ok(request));
        }
    }

    #[test]
    fn answers_travel() {
        let e = Failure::stopping();
        for answer in [Ok(serde_json::json!({ "a": [1, 2] })), Ok(Value::Null), Err(&e)] {
            let line = encode_answer(answer.clone()).unwrap();
            assert_eq!(decode_answer(&line), Some(answer.map_err(Failure::clone)));
        }
        assert_eq!(decode_answer(b"[]"), None);
        assert_eq!(decode_answer(b"{\"version\":1}"), None);
    }

    /// Found by the fuzzer: a number of 66 digits was read as another one than it was written as.
    #[test]
    fn numbers_are_what_they_were_when_they_have_travelled() {
        let line = format!("{{\"version\":1,\"ok\":{{\"a\":[{}]}}}}", "6".repeat(66));
        let answer = decode_answer(line.as_bytes()).expect("an answer");
        let again = encode_answer(answer.as_ref()).unwrap();
        assert_eq!(decode_answer(&again), Some(answer));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        for (line, word) in [
            ("", "not JSON"),
            ("[]", "object"),
            ("{}", "version"),
            (r#"{"version":2,"request":"status"}"#, "version 2"),
            (r#"{"version":1}"#, "request"),
            (r#"{"version":1,"request":"format-everything"}"#, "format-everything"),
            (r#"{"version":1,"request":"status","colour":"red"}"#, "colour"),
            (r#"{"version":1,"request":"volume-delete"}"#, "name"),
            (r#"{"version":1,"request":"volume-resize","name":"a","size_bytes":-1}"#, "-1"),
            (r#"{"version":1,"request":"cache-mode","volume":"a","mode":"fast"}"#, "fast"),
            (r#"{"version":1,"request":"set","key":"a","value":"b"}"#, "save"),
        ] {
            let e = decode_request(line.as_bytes()).unwrap_err();
            assert!(e.kind == FailureKind::Invalid && e.message.contains(word), "{line}: {e}");
        }
    }
}
