//! What a device can take.

/// What a device can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in flight.
    pub depth: usize,
    /// Requests are merged up to this many bytes; a single one may be larger.
    pub max_request_bytes: usize,
    /// Requests are merged up to this many pieces.
    pub max_segments: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: 128, max_request_bytes: 1 << 20, max_segments: 256 }
    }
}
