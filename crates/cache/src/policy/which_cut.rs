//! When the open epoch is sealed, and which cut a pass carries.

use crate::policy::writer_delay::LUMP;

/// More cuts than this are never kept: each has nodes of the index that no other has.
pub(crate) const MAX_SEALED: usize = 32;

/// The cut that a pass carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CutChoice {
    /// The oldest that there is.
    Oldest,
    /// A new one, taken now, with all that is dirty.
    Newest,
}

/// Dirty blocks of the open epoch that no cut has, at which it is sealed while a pass runs: `set`
/// if that is not 0, else an eighth of the cache. A pass rewrites the leaves of the pool's trees
/// that it touches, of random blocks one for every few, so smaller cuts cost much of the pool's
/// speed. It is at least four buckets, because smaller cuts free next to nothing.
pub(crate) fn seal_at(data_blocks: u64, bucket_blocks: u32, set: u64) -> u64 {
    match set {
        0 => (data_blocks / LUMP).max(4 * u64::from(bucket_blocks)),
        set => set,
    }
}

/// The input of the decision whether the open epoch should be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealInput {
    /// Dirty blocks in the open epoch that are in no cut.
    pub fresh: u64,
    /// Cuts that there are.
    pub cuts: usize,
    /// Nodes of the index that are held for all cuts, and for the newest of them.
    pub held: (u64, u64),
    /// Blocks of the cache.
    pub data_blocks: u64,
}

/// True if the open epoch, in which `least` blocks should be dirty that no cut has, should be
/// sealed while a pass runs. While more nodes than a thirty-second of the cache are held, another
/// cut may come only when eight times as many such blocks are dirty as nodes are held for the last
/// one.
pub(crate) fn should_seal(s: SealInput, least: u64) -> bool {
    let (all, newest) = s.held;
    let cheap = all * 32 <= s.data_blocks || s.fresh >= 8 * newest;
    s.cuts < MAX_SEALED && s.fresh >= least && cheap
}

/// The cut that a pass carries. `sealed`: how many cuts there are; `dirty`: dirty blocks of a cache
/// of `data_blocks`; `pressure`: the percentage of these above which room is short; `all`: a task
/// waits until everything is published.
pub(crate) fn next(
    sealed: usize,
    dirty: u64,
    data_blocks: u64,
    pressure: u8,
    all: bool,
) -> CutChoice {
    let pressed = dirty * 100 > data_blocks * u64::from(pressure);
    if sealed > 0 && pressed && !all { CutChoice::Oldest } else { CutChoice::Newest }
}
