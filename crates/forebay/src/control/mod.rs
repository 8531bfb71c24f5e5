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
//! * [`client`]: the commands' side; [`words`]: what it tells people

pub mod client;
pub mod server;
mod words;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CommandError;

/// The protocol's version.
pub const VERSION: u64 = 1;
/// The longest request line, in bytes.
pub const MAX_LINE: u64 = 64 << 10;

/// What can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The server, its pool, its volumes.
    Status {},
    /// The clients that are connected over NBD.
    Clients {},
    /// The volumes alone.
    VolumeList {},
    /// Where the first data of a volume is, in the pool or in the cache; null if there is none.
    VolumeData {
        /// Its name.
        name: String,
    },
    /// A new volume.
    VolumeCreate {
        /// Its name.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// Its logical sector: 512 or 4096.
        sector_bytes: u32,
    },
    /// Another size for a volume.
    VolumeResize {
        /// Its name.
        name: String,
        /// Its new size.
        size_bytes: u64,
        /// It may become smaller: what is behind the new size is lost.
        #[serde(default)]
        shrink: bool,
        /// Also smaller while clients have it open.
        #[serde(default)]
        force: bool,
    },
    /// How much clients may ask of a volume: what is absent stays as it is.
    VolumeLimit {
        /// Its name.
        name: String,
        /// Requests a second; 0: as many as they like.
        iops: Option<u32>,
        /// Bytes a second; 0: as many as they like.
        bytes_per_second: Option<u64>,
        /// Milliseconds of each rate that an idle volume saves up.
        burst_ms: Option<u32>,
    },
    /// Whether clients may change a volume.
    VolumeReadOnly {
        /// Its name.
        name: String,
        /// They may not.
        read_only: bool,
    },
    /// The end of a volume.
    VolumeDelete {
        /// Its name.
        name: String,
        /// Also while clients have it open.
        #[serde(default)]
        force: bool,
    },
    /// A new cache in front of the pool.
    CacheAttach {
        /// Its file or block device, as the server sees it.
        path: PathBuf,
        /// Its size, if it is a file that is not there yet.
        size_bytes: Option<u64>,
        /// The content of the device may be overwritten.
        #[serde(default)]
        force: bool,
    },
    /// Everything written back, and the cache taken out.
    CacheDetach {},
    /// What the cache does for a volume.
    CacheMode {
        /// The volume's name.
        volume: String,
        /// What it is to do.
        mode: pool::CacheMode,
    },
    /// Everything written back; the cache stays.
    CacheFlush {},
    /// A detach, or the change of a volume's mode, given up while it still writes back.
    CacheCancel {
        /// The volume's name; absent: the detach.
        volume: Option<String>,
    },
    /// A pass of garbage collection over the cache.
    Gc {},
    /// The scrub that runs, or the last one.
    ScrubStatus {},
    /// A new scrub.
    ScrubStart {
        /// The path of the only device to read.
        device: Option<String>,
        /// Bytes a second that it may read of each copy.
        rate: Option<u64>,
    },
    /// The scrub that runs rests.
    ScrubPause {},
    /// The one that rests goes on.
    ScrubResume {
        /// Bytes a second that it may read of each copy.
        rate: Option<u64>,
    },
    /// The end of the scrub that runs or rests.
    ScrubCancel {},
    /// A new device of the pool.
    DeviceAdd {
        /// It, as on a command line.
        device: String,
        /// Path or uuid of the one whose data moves to it.
        replaces: Option<String>,
        /// The content of the device may be overwritten.
        force: bool,
        /// It takes the place of one that stays out of use.
        #[serde(default)]
        spare: bool,
    },
    /// A device that has grown, or is to.
    DeviceResize {
        /// Its path or uuid.
        device: String,
        /// The size that its file is to have; absent: the one that it has.
        size_bytes: Option<u64>,
    },
    /// Chunks moved until all devices are filled to the same share.
    DevicesBalance {},
    /// Everything moved from a device, which then is none of the pool any more.
    DeviceRemove {
        /// Its path or uuid.
        device: String,
    },
    /// A device out of use until it is taken into use again.
    DeviceOffline {
        /// Its path or uuid.
        device: String,
    },
    /// A device in use again that was away.
    DeviceOnline {
        /// Its path or uuid, or the path where it is now.
        device: String,
    },
    /// Another number of copies.
    PoolCopies {
        /// Of every block.
        copies: u8,
    },
    /// What is moved between devices.
    MovesStatus {},
    /// Devices that are about to be removed stay.
    MovesCancel {},
    /// Nothing is moved, or it goes on.
    MovesPause {
        /// It rests.
        paused: bool,
    },
    /// Why requests were slow.
    Explain {
        /// Of this volume only.
        volume: Option<String>,
        /// Of this class only.
        class: Option<String>,
        /// How far to look back.
        since_seconds: u64,
        /// From which length on they are slow.
        slower_than_us: u64,
    },
    /// All that the server goes by.
    Config {},
    /// All settings, or one.
    Settings {
        /// Its name.
        key: Option<String>,
    },
    /// Another value for a setting.
    Set {
        /// Its name.
        key: String,
        /// Its value, as the configuration file has it.
        value: String,
        /// Write it to the configuration file, too.
        save: bool,
    },
}

/// Why a request was not carried out.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[error("{message}")]
pub struct RequestError {
    /// For programs: `invalid`, `not-found`, `exists`, `refused`, `no-space`, `failed`, `busy`,
    /// `cancelled`, `stopping`.
    pub kind: String,
    /// For people.
    pub message: String,
}

impl RequestError {
    /// An error of `kind` that reads `message`.
    pub fn new(kind: &str, message: impl Into<String>) -> RequestError {
        RequestError { kind: kind.to_owned(), message: message.into() }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> RequestError {
        RequestError::new("invalid", message)
    }

    /// The server is about to end.
    pub fn stopping() -> RequestError {
        RequestError::new("stopping", "the server is stopping")
    }
}

impl From<base::StorageError> for RequestError {
    fn from(e: base::StorageError) -> Self {
        let kind = match e.kind {
            base::ErrorKind::Invalid => "invalid",
            base::ErrorKind::NotFound => "not-found",
            base::ErrorKind::Exists => "exists",
            base::ErrorKind::NoSpace => "no-space",
            base::ErrorKind::Foreign
            | base::ErrorKind::Stale
            | base::ErrorKind::Newer
            | base::ErrorKind::Loses => "refused",
            base::ErrorKind::GivenUp => "cancelled",
            _ => "failed",
        };
        RequestError::new(kind, e.context)
    }
}

impl From<CommandError> for RequestError {
    fn from(e: CommandError) -> Self {
        RequestError::new("failed", e.to_string())
    }
}

/// What a request leads to.
pub type Answer = Result<Value, RequestError>;

/// Reads a request line.
pub fn decode_request(line: &[u8]) -> Result<Request, RequestError> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|e| RequestError::invalid(format!("not JSON: {e}")))?;
    let Value::Object(mut fields) = value else {
        return Err(RequestError::invalid("a request is a JSON object"));
    };
    match fields.remove("version") {
        Some(v) if v == VERSION => {}
        Some(v) => {
            let text =
                format!("version {v} of the control protocol is not spoken here, only {VERSION}");
            return Err(RequestError::invalid(text));
        }
        None => return Err(RequestError::invalid("a request has a version")),
    }
    serde_json::from_value(Value::Object(fields)).map_err(|e| RequestError::invalid(e.to_string()))
}

/// Writes a request line, with its end.
pub fn encode_request(request: &Request) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(request)?;
    value["version"] = VERSION.into();
    Ok(line_of(&value))
}

/// Writes a reply line, with its end.
pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    let value = match answer {
        Ok(ok) => serde_json::json!({ "version": VERSION, "ok": ok }),
        Err(e) => {
            let error = serde_json::json!({ "kind": e.kind, "message": e.message });
            serde_json::json!({ "version": VERSION, "error": error })
        }
    };
    line_of(&value)
}

/// Reads a reply line; absent if it is none.
pub fn decode_answer(line: &[u8]) -> Option<Answer> {
    let mut value: Value = serde_json::from_slice(line).ok()?;
    if let Some(ok) = value.get_mut("ok") {
        return Some(Ok(ok.take()));
    }
    serde_json::from_value(value.get_mut("error")?.take()).ok().map(Err)
}

fn line_of(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_travel() {
        let name = || "a\n\"b".to_owned();
        for request in [
            Request::Status {},
            Request::VolumeList {},
            Request::VolumeData { name: name() },
            Request::VolumeCreate { name: name(), size_bytes: u64::MAX, sector_bytes: 512 },
            Request::VolumeResize { name: name(), size_bytes: 0, shrink: true, force: true },
            Request::VolumeDelete { name: name(), force: false },
            Request::VolumeReadOnly { name: name(), read_only: true },
            Request::Clients {},
            Request::VolumeLimit {
                name: name(),
                iops: Some(0),
                bytes_per_second: Some(u64::MAX),
                burst_ms: None,
            },
            Request::CacheAttach { path: "/a b".into(), size_bytes: None, force: false },
            Request::CacheAttach { path: name().into(), size_bytes: Some(1), force: true },
            Request::CacheDetach {},
            Request::CacheMode { volume: name(), mode: pool::CacheMode::WriteAround },
            Request::CacheFlush {},
            Request::Gc {},
            Request::ScrubStatus {},
            Request::ScrubStart { device: Some(name()), rate: Some(1) },
            Request::ScrubPause {},
            Request::ScrubResume { rate: None },
            Request::ScrubCancel {},
            Request::DeviceAdd {
                device: "/a,emulate=hdd".into(),
                replaces: None,
                force: true,
                spare: false,
            },
            Request::DeviceAdd {
                device: name(),
                replaces: Some(name()),
                force: false,
                spare: false,
            },
            Request::DeviceAdd { device: name(), replaces: None, force: false, spare: true },
            Request::DeviceResize { device: name(), size_bytes: Some(1) },
            Request::DevicesBalance {},
            Request::DeviceRemove { device: name() },
            Request::DeviceOffline { device: name() },
            Request::DeviceOnline { device: name() },
            Request::PoolCopies { copies: 3 },
            Request::MovesStatus {},
            Request::MovesCancel {},
            Request::MovesPause { paused: true },
            Request::Config {},
            Request::Settings { key: None },
            Request::Settings { key: Some(name()) },
            Request::Set { key: name(), value: "7s".into(), save: true },
        ] {
            let line = encode_request(&request).unwrap();
            assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
            assert_eq!(decode_request(&line), Ok(request));
        }
    }

    #[test]
    fn answers_travel() {
        for answer in
            [Ok(serde_json::json!({ "a": [1, 2] })), Ok(Value::Null), Err(RequestError::stopping())]
        {
            assert_eq!(decode_answer(&encode_answer(&answer)), Some(answer));
        }
        assert_eq!(decode_answer(b"[]"), None);
        assert_eq!(decode_answer(b"{\"version\":1}"), None);
    }

    /// Found by the fuzzer: a number of 66 digits was read as another one than it was written as.
    #[test]
    fn numbers_are_what_they_were_when_they_have_travelled() {
        let line = format!("{{\"ok\":{{\"a\":[{}]}}}}", "6".repeat(66));
        let answer = decode_answer(line.as_bytes()).expect("an answer");
        assert_eq!(decode_answer(&encode_answer(&answer)), Some(answer));
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
            assert!(e.kind == "invalid" && e.message.contains(word), "{line}: {e}");
        }
    }
}
