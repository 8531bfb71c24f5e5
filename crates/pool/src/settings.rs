//! Settings: plain data, separate from the parts that use them.

use base::{Duration, ErrorKind, Result, StorageError};
use format::superblock::MAX_NAME;

/// The settings of an open pool. Most of them may change meanwhile ([`crate::Pool::set`]).
#[derive(Clone, Debug)]
pub struct Settings {
    /// A commit happens at least this often while there is something to commit. May change.
    pub commit_interval: Duration,
    /// A commit begins when this many nodes are dirty. A write-back pass writes its nodes when it
    /// has this many. May change.
    pub dirty_nodes: u64,
    /// Nodes of trees kept in memory while they are clean.
    pub cached_nodes: usize,
    /// Block groups whose bitmaps are kept in memory. May change: it counts at the end of a commit.
    pub loaded_groups: usize,
    /// Unix time at the runtime's time zero, in seconds; 0: not known. It is shown to people, and
    /// says when a scrub is due; nothing else depends on it.
    pub unix_time_at_zero: u64,
    /// Limits of each device's queue.
    pub device: queue::Limits,
    /// A scrub begins by itself this long after the last one has ended; zero: none does. May
    /// change.
    pub scrub_every: Duration,
    /// Minutes since midnight, UTC, at which a scrub begins that is due; `None`: at any time. May
    /// change.
    pub scrub_at: Option<u16>,
    /// Bytes a second that a scrub reads of each copy at most, if it was not started with a rate of
    /// its own; 0: as fast as the devices let it. May change.
    pub scrub_rate: u64,
    /// A scrub reads through gaps of up to this many bytes between blocks. May change.
    pub scrub_gap: u64,
    /// On disks that rotate, data is read ahead of clients that read in order, up to this many
    /// bytes; 0: none is. May change.
    pub read_ahead: u64,
    /// A device whose reads are slow beside those of others, or that errs often, is for this long
    /// read only where no other device has a good copy; zero: this never happens. May change.
    pub sit_out: Duration,
    /// A spare takes the place of a device that was out of use for this long; zero: none does by
    /// itself. May change.
    pub spare_after: Duration,
    /// The time that each device's foreground requests should take at most. May change.
    pub targets: queue::Targets,
    /// If only devices are there that are out of use, by what they say themselves: the newest of
    /// them is taken back into use as it was when it left. What was written since, on others, is
    /// given up. It counts at an open.
    pub take_back: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            commit_interval: Duration::from_secs(5),
            dirty_nodes: 6144,
            cached_nodes: 24_576,
            loaded_groups: 256,
            unix_time_at_zero: 0,
            device: queue::Limits::default(),
            scrub_every: Duration::from_secs(30 * 86_400),
            scrub_at: None,
            scrub_rate: 0,
            scrub_gap: 128 << 10,
            read_ahead: 512 << 10,
            sit_out: Duration::from_secs(600),
            spare_after: Duration::from_secs(600),
            targets: queue::Targets::default(),
            take_back: false,
        }
    }
}

impl Settings {
    /// Fails, naming the setting, if `new` changes one that never changes while a pool is open.
    pub(crate) fn check_change(&self, new: &Settings) -> Result<()> {
        let fixed = [
            ("cached_nodes", self.cached_nodes != new.cached_nodes),
            ("unix_time_at_zero", self.unix_time_at_zero != new.unix_time_at_zero),
            ("device", self.device != new.device),
        ];
        match fixed.iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((name, _)) => {
                let text = format!("{name} does not change while the pool is open");
                Err(StorageError::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// The properties of a new pool.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The pool's name, up to 64 bytes.
    pub name: String,
    /// Copies of every block, 1 to 3; never more than there are devices.
    pub copies: u8,
    /// Bytes in a block group; chosen by the pool's size if absent. A multiple of 256 KiB, 1 MiB to
    /// 1 GiB.
    pub group_bytes: Option<u64>,
}

/// True if a new pool or a new volume can have this name. Not `.` and `..`: in a path and in an
/// address they name something else. Not what looks like another name: see [`NAME_RULE`].
pub fn is_name(name: &str) -> bool {
    let fits = !name.is_empty() && name.len() <= MAX_NAME && name == name.trim();
    let odd =
        |c: char| c.is_control() || c.is_whitespace() && c != ' ' || is_ignorable(c) || c == '/';
    fits && name != "." && name != ".." && !name.contains(odd)
}

const _: () = assert!(MAX_NAME == 64, "see NAME_RULE");

/// The rule for the name of a new pool or volume, in words.
pub const NAME_RULE: &str = "1 to 64 bytes that can be seen: no control characters, nothing of no \
                             width, no blank but a space, and none at an end; no '/', not '.' or \
                             '..'";

/// Characters that programs show as nothing: `Default_Ignorable_Code_Point` of Unicode 16
/// (DerivedCoreProperties.txt), and the interlinear annotation characters.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Checks a name for a pool or a volume.
/// Error: the name cannot be that of a snapshot, which stands behind an at sign.
pub(crate) fn check_snapshot_name(name: &str) -> Result<()> {
    if is_name(name) && !name.contains('@') && !name.contains("..") {
        return Ok(());
    }
    let text = format!(
        "{name:?} cannot be the name of a snapshot: {NAME_RULE}; no '@', and not two dots in a row"
    );
    Err(StorageError::new(ErrorKind::Invalid, text))
}

pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!("{name:?} cannot be the name of a {what}: {NAME_RULE}");
    Err(StorageError::new(ErrorKind::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_seen_and_told_from_others() {
        for name in ["vm1", "vm 1", "Übung", "e\u{301}", "仮想", "...", &"x".repeat(64)] {
            assert!(is_name(name), "{name:?}");
        }
        let (zero_width, no_break, mark) = ("vm\u{200b}1", "vm\u{a0}1", "\u{feff}vm1");
        let (turned, line, tag) = ("vm\u{202e}1", "vm\u{2028}1", "vm1\u{e0041}");
        for name in [zero_width, no_break, mark, turned, line, tag, " vm1", "vm1 ", "", ".", ".."] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(!is_name("a/b") && !is_name("a\nb") && !is_name(&"x".repeat(65)));
    }
}
