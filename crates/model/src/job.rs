//! Long work that was asked for over HTTP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::GcStatus;
use crate::failure::Failure;
use crate::words::words;

words! {
    /// The state of a job.
    JobState {
        /// The job is under way.
        Running = "running",
        /// The job has ended, and everything is done.
        Done = "done",
        /// The job has ended with an error.
        Failed = "failed",
        /// The job was given up.
        Cancelled = "cancelled",
    }
}

/// The progress of a job that writes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobProgress {
    /// Bytes that are written back.
    pub done_bytes: u64,
    /// Bytes that are to be written back, with those.
    pub total_bytes: u64,
}

/// Long work that runs, or has ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// The number of the job.
    pub job: u64,
    /// The verb of the request.
    pub request: String,
    /// The state of the job.
    pub state: JobState,
    /// The time that the job has run, in seconds.
    pub seconds: f64,
    /// The progress of the write-back; null of a job that writes nothing back.
    pub progress: Option<JobProgress>,
    /// The state of garbage collection when the job was done; absent of a job that is not done, or
    /// that does something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<GcStatus>,
    /// Why the job failed; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The number of a job that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct JobStarted {
    /// The number of the job.
    pub job: u64,
}
