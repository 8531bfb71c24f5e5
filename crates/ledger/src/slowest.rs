//! The slowest requests of a kind in a minute, each with its whole story.

use base::{Instant, VolumeId};
use smallvec::SmallVec;

use crate::story::Part;
use model::wait::RequestClass;

/// As many are kept.
const SLOWEST: usize = 16;

/// One slow request, whole.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// When it ended; if it is under way, when it was looked at.
    pub ended: Instant,
    /// The time that the request took, up to then, in nanoseconds.
    pub ns: u64,
    /// The volume of the request.
    pub volume: Option<VolumeId>,
    /// The kind of the request.
    pub kind: RequestClass,
    /// The range in bytes: offset and length.
    pub range: (u64, u64),
    /// The parts of the time of the request, the longest first.
    pub parts: SmallVec<[Part; 6]>,
}

/// The slowest of the requests that were offered.
#[derive(Default)]
pub(crate) struct SlowestRequests {
    kept: Vec<SlowRequest>,
    /// The shortest of these, once there are as many as are kept.
    least_ns: u64,
}

impl SlowestRequests {
    /// Keeps a request that took `ns`, if it is one of the slowest so far.
    pub fn offer(&mut self, ns: u64, slow: impl FnOnce() -> SlowRequest) {
        if self.kept.len() < SLOWEST {
            self.kept.push(slow());
        } else if ns > self.least_ns {
            if let Some(least) = self.kept.iter_mut().min_by_key(|s| s.ns) {
                *least = slow();
            }
        } else {
            return;
        }
        if self.kept.len() == SLOWEST {
            self.least_ns = self.kept.iter().map(|s| s.ns).min().unwrap_or(0);
        }
    }

    /// The slowest requests, in no order.
    pub fn kept(&self) -> &[SlowRequest] {
        &self.kept
    }
}
