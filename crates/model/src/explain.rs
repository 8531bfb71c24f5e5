//! Why requests were slow, and where their time went.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wait::{Layer, Reason, RequestClass};

/// Why requests were slow.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The length from which on a request is slow, in microseconds.
    pub slower_than_us: f64,
    /// Requests that are slow and have not ended.
    pub under_way: UnderWay,
    /// By class; classes without a request are left out.
    pub classes: Vec<ExplainedClass>,
    /// The slowest requests, the longest first; at most 10.
    pub slowest: Vec<SlowRequest>,
}

/// Requests that are slow and have not ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct UnderWay {
    /// The number of these requests.
    pub requests: u64,
    /// There may be more, as only the oldest 4096 requests are looked at.
    pub more: bool,
    /// The time that the oldest has taken up to now, in microseconds; 0 if there is none.
    pub longest_us: f64,
    /// All this in plain words; null if there is none.
    pub text: Option<String>,
    /// The oldest, the longest first; at most 5.
    pub oldest: Vec<RequestStory>,
}

/// A request, and where its time went.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestStory {
    /// The volume's name; null if it was deleted, or the request had no volume.
    pub volume: Option<String>,
    /// The volume's number; null if the request had no volume.
    pub volume_id: Option<u32>,
    /// The class of the request.
    pub class: RequestClass,
    /// The first byte in the volume.
    pub offset: u64,
    /// The number of bytes.
    pub length_bytes: u64,
    /// The time that the request took, or has taken up to now, in microseconds.
    pub duration_us: f64,
    /// The parts of the time of the request; together they are its duration.
    pub parts: Vec<WaitPartInWords>,
}

/// A slow request that has ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SlowRequest {
    /// The request, and where its time went.
    #[serde(flatten)]
    pub story: RequestStory,
    /// Seconds since the request ended.
    pub ended_seconds_ago: u64,
}

/// A reason for which a request waited.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// The reason for which the request itself waited.
    pub stage: Reason,
    /// The reason that the wait came down to in the end; the same as stage if there is no other.
    pub reason: Reason,
    /// The layer in which the reason lies.
    pub layer: Layer,
    /// The device, if the reason is one of a device.
    pub device: Option<String>,
    /// The holder whose work the request waited for: a class of I/O or a job; null if that is not
    /// known or does not matter.
    pub holder: Option<String>,
}

/// A part of the time of requests.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitPart {
    /// The reason for the wait.
    #[serde(flatten)]
    pub wait: Wait,
    /// The time, in microseconds.
    pub us: f64,
}

/// A part of the time of one request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitPartInWords {
    /// The part.
    #[serde(flatten)]
    pub part: WaitPart,
    /// The same in words, after "waited for".
    pub text: String,
}

/// The requests of one class.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedClass {
    /// The class.
    pub class: RequestClass,
    /// Requests.
    pub requests: u64,
    /// The longest, in microseconds.
    pub longest_us: f64,
    /// The times that shares of the requests took: half, 99 %, 99.9 % and all.
    pub percentiles: Vec<ExplainedShare>,
    /// Slow requests.
    pub slow_requests: u64,
    /// The reasons for which slow requests waited longest, the most frequent first.
    pub causes: Vec<ExplainedCause>,
    /// The holders whose work slow requests waited for, the longest first.
    pub holders: Vec<ExplainedHolder>,
    /// All this in plain words.
    pub verdict: String,
}

/// A length that a share of the requests does not exceed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedShare {
    /// The share, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// The length, in microseconds, to an eighth.
    pub us: f64,
    /// The parts of the time of requests of that length, on average, the longest first.
    pub mean_parts: Vec<WaitPart>,
}

/// A reason for which some slow requests waited longest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedCause {
    /// The reason for the wait.
    #[serde(flatten)]
    pub wait: Wait,
    /// The number of requests.
    pub requests: u64,
    /// The same in words, after "waited for".
    pub text: String,
    /// The bytes a second that the device moved meanwhile for the holder; null if that is not
    /// known.
    pub bytes_per_second: Option<u64>,
}

/// A holder whose work slow requests waited for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedHolder {
    /// A class of I/O, or a job.
    pub name: String,
    /// The time that slow requests waited for the holder, all together, in microseconds.
    pub us: f64,
    /// The share of the time of all slow requests, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
}
