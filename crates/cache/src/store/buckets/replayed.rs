//! Contradictions between counters and keys.
//!
//! While the journal is replayed over a checkpoint, the counters come from the disk, and so do the
//! keys that change them. If these contradict each other, the disk is wrong and not the program. So
//! the contradiction is noted, and is an error of the replay. At any other time the same is a fault
//! of the program, and ends it.

use base::BucketId;

use super::table::Table;

/// Whether a contradiction may come from the disk.
#[derive(Default)]
pub(super) enum Source {
    #[default]
    Memory,
    /// The first contradiction that was met.
    Disk(Option<String>),
}

impl Source {
    /// True while the journal is replayed.
    pub fn is_disk(&self) -> bool {
        matches!(self, Source::Disk(_))
    }

    /// Blocks of this bucket are about to be named, or not to be named any more. False: that
    /// contradicts what is known of it, so nothing may be changed.
    pub fn check_blocks(&mut self, table: &Table, id: BucketId, more: u32, less: u32) -> bool {
        let b = table.bucket(id);
        let live = u32::from(b.live);
        if self.is_disk() && b.kind.is_of_index() {
            self.contradicts(format!("{id:?} has nodes of the index, and blocks of a volume"));
        } else if live + more > table.geometry().bucket_blocks() {
            self.contradicts(format!(
                "{id:?} has more live blocks than blocks: {more} more than {live}"
            ));
        } else if live < less {
            self.contradicts(format!(
                "{id:?} has fewer live blocks than are removed: {live}, not {less}"
            ));
        } else {
            return true;
        }
        false
    }

    /// Notes a contradiction during a replay; at any other time, panics.
    pub fn contradicts(&mut self, what: String) {
        match self {
            Source::Memory => panic!("{what}"),
            Source::Disk(first) => drop(first.get_or_insert(what)),
        }
    }

    /// The first contradiction in what was replayed.
    pub fn first_contradiction(&mut self) -> Option<String> {
        match self {
            Source::Memory => None,
            Source::Disk(first) => first.take(),
        }
    }
}
