//! Settings of an open cache: plain data.

use std::time::Duration;

use base::{ErrorKind, Result, StorageError};
use format::cache::journal::MAX_ENTRY_BLOCKS;
use model::cache::Policy;

use crate::policy::gc_pace::Limits;

/// Which reads are kept after a miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Promote {
    /// No reads.
    Never,
    /// All reads.
    #[default]
    First,
    /// Reads of blocks that were read before, not long ago.
    Second,
}

impl Promote {
    /// All choices.
    pub const ALL: [Promote; 3] = [Promote::Never, Promote::First, Promote::Second];

    /// The name of the choice in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Promote::Never => "never",
            Promote::First => "first",
            Promote::Second => "second",
        }
    }
}

/// The treatment of writers when the pool's image is older than it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LagPolicy {
    /// Writers are not slowed: write-back goes as fast as the pool can, and the age is shown.
    #[default]
    Aim,
    /// Writers are slowed, though never below the speed of write-back.
    Strict,
}

impl LagPolicy {
    /// All choices.
    pub const ALL: [LagPolicy; 2] = [LagPolicy::Aim, LagPolicy::Strict];

    /// The name of the choice in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            LagPolicy::Aim => "aim",
            LagPolicy::Strict => "strict",
        }
    }
}

/// Settings of an open cache. All but five may change while it is open ([`crate::Cache::set`]).
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy by which victims are chosen. Never changes.
    pub policy: Policy,
    /// Clean nodes of the index that are kept in memory; a node takes 4 KiB. Never changes.
    pub resident_nodes: usize,
    /// Changed nodes from which on a checkpoint begins. Never changes.
    pub dirty_nodes: u64,
    /// The time after which records that are in memory alone become durable also without a FLUSH.
    pub journal_interval: Duration,
    /// Blocks of the journal's largest entry, 4 to 64. What is in memory becomes one entry of up to
    /// so many blocks, or several, which are written at once; a crash may keep any of them. Never
    /// changes.
    pub journal_entry_blocks: u32,
    /// The age that the pool's image should not exceed.
    pub max_lag: Duration,
    /// The treatment of writers when the image is older than `max_lag`.
    pub max_lag_policy: LagPolicy,
    /// Share of the cache that dirty data is held to, in percent.
    pub dirty_target_percent: u8,
    /// Share of the cache's room, in percent, that may be gone before a write waits for as long as
    /// one ever does while there is room; writers are slowed from four fifths of it on
    /// ([`crate::policy::writer_delay`]).
    pub dirty_limit_percent: u8,
    /// Dirty blocks with which a cut is taken while another is carried; 0: about as many as an
    /// eighth of the cache has.
    pub seal_blocks: u64,
    /// With more of the cache dirty than this, in percent, the oldest cut is carried; else the
    /// newest.
    pub pressure_percent: u8,
    /// Bytes a second that a pass writes back at least, at most, and while no client asks for
    /// anything.
    pub writeback: crate::policy::rate_controller::RateSettings,
    /// Garbage collection gives others a turn when it has run for this long and has looked at
    /// `gc_min_nodes` leaves.
    pub gc_slice: Duration,
    /// The leaves of the index that garbage collection looks at before each pause, at least.
    pub gc_min_nodes: u64,
    /// Garbage collection pauses for this long, or for less where need be ([`crate::gc_pace`]).
    pub gc_pause: Duration,
    /// Which reads are kept after a miss.
    pub promote: Promote,
    /// Reads of at most this many blocks are kept.
    pub promote_blocks: u64,
    /// From so many bytes on a stream is sequential: its reads are not kept, nor are its writes
    /// where the volume writes to the pool directly; 0: no stream is sequential.
    pub sequential_cutoff: u64,
    /// Limits of the device's queue. Never change.
    pub device: queue::Limits,
    /// The time that foreground requests of the device should take at most.
    pub targets: queue::Targets,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: Policy::default(),
            resident_nodes: 12_288,
            dirty_nodes: 16_384,
            journal_interval: Duration::from_secs(1),
            journal_entry_blocks: MAX_ENTRY_BLOCKS,
            max_lag: Duration::from_secs(30),
            max_lag_policy: LagPolicy::Aim,
            dirty_target_percent: 40,
            dirty_limit_percent: 95,
            seal_blocks: 0,
            pressure_percent: 33,
            writeback: crate::policy::rate_controller::RateSettings::default(),
            gc_slice: Duration::from_micros(200),
            gc_min_nodes: 1,
            gc_pause: Duration::from_millis(1),
            promote: Promote::First,
            promote_blocks: 64,
            sequential_cutoff: 4 << 20,
            device: queue::Limits::default(),
            targets: queue::Targets::default(),
        }
    }
}

impl Settings {
    /// The settings of garbage collection.
    pub(crate) fn gc(&self) -> Limits {
        Limits { slice: self.gc_slice, min_nodes: self.gc_min_nodes, pause: self.gc_pause }
    }

    /// Fails, naming the setting, if `new` changes one that never changes while a cache is open.
    pub(crate) fn check_change(&self, new: &Settings) -> Result<()> {
        let fixed = [
            ("policy", self.policy != new.policy),
            ("resident_nodes", self.resident_nodes != new.resident_nodes),
            ("dirty_nodes", self.dirty_nodes != new.dirty_nodes),
            ("journal_entry_blocks", self.journal_entry_blocks != new.journal_entry_blocks),
            ("device", self.device != new.device),
        ];
        match fixed.iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((name, _)) => {
                let text = format!("{name} does not change while the cache is open");
                Err(StorageError::new(ErrorKind::Invalid, text))
            }
        }
    }
}
