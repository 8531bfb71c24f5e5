//! The slowest requests of a kind in a minute, each with its whole story.

use base::{Instant, VolumeId};
use smallvec::SmallVec;

use crate::reason::Kind;
use crate::story::Part;

/// As many are kept.
const SLOWEST: usize = 16;

/// One slow request, whole.
#[derive(Clone, Debug)]
pub struct Slow {
    /// When it ended; if it is under way, when it was looked at.
    pub ended: Instant,
    /// How long it took, up to then.
    pub ns: u64,
    /// Its volume.
    pub volume: Option<VolumeId>,
    /// What was asked for.
    pub kind: Kind,
    /// The range in bytes: offset and length.
    pub range: (u64, u64),
    /// Where its time went, the longest part first.
    pub parts: SmallVec<[Part; 6]>,
}

/// The slowest of the requests that were offered.
#[derive(Default)]
pub(crate) struct Slowest {
    kept: Vec<Slow>,
    /// The shortest of these, once there are as many as are kept.
    least_ns: u64,
}

impl Slowest {
    /// Keeps a request that took `ns`, if it is one of the slowest so far.
    pub fn offer(&mut self, ns: u64, slow: impl FnOnce() -> Slow) {
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
    pub fn kept(&self) -> &[Slow] {
        &self.kept
    }
}
