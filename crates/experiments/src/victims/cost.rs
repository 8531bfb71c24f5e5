//! The cost of choosing victims.

/// The counters of a choice of victims.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Cost {
    pub victims: u64,
    /// Comparisons of priorities; ours has none, and counts looks at a bucket.
    pub looks: u64,
    /// All steps: these, and entries of a heap or links that were moved.
    pub steps: u64,
    /// The most steps between two victims.
    pub longest: u64,
}
