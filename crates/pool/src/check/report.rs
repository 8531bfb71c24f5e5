//! What a check found.

use std::rc::Rc;

use base::{Crc, Epoch, VolumeId};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// How much of a report's list of problems is kept, if nothing else is asked for.
pub const LISTED: usize = 200;

/// How bad a problem is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// One copy is bad, another is good: nothing is lost, and it is healed when it is read.
    DamagedCopy,
    /// Something is lost or contradicts itself.
    Error,
}

/// What a problem is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A device as a whole.
    Device,
    /// A superblock slot.
    Superblock,
    /// A page of the volume or group table.
    Table,
    /// The record of a block group.
    Group,
    /// The record of a volume.
    Volume,
    /// A page of a block group's bitmap.
    Bitmap,
    /// A node of a tree.
    Node,
    /// An extent of a volume's mapping.
    Extent,
    /// A checksum record.
    Checksum,
    /// The content of a data block.
    Data,
    /// Blocks that are allocated and not referred to.
    Space,
    /// A bucket of a cache.
    Bucket,
    /// The journal of a cache.
    Journal,
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of structure it is about.
    pub subject: Subject,
    /// Which one.
    pub place: String,
    /// The device with the bad copy, if it is about one copy only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What is wrong with it.
    pub what: String,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: &'static str,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::DamagedCopy => "damaged copy",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}", self.place)?;
        if let Some(d) = &self.device {
            write!(f, " on {d}")?;
        }
        write!(f, ": {}", self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A superblock slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Slot {
    /// A superblock.
    Ok {
        /// Its sequence number.
        sequence: u64,
        /// The transaction it commits.
        generation: u64,
    },
    /// Never written.
    Empty,
    /// Something else, or nothing that can be read.
    Damaged {
        /// Why.
        why: String,
    },
}

/// A device as it was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceReport {
    /// Where it is; empty if it is missing.
    pub path: String,
    /// `online`, `failed`, `stale` or `missing`.
    pub state: &'static str,
    /// Its superblock slots; none if it is missing.
    pub slots: Vec<Slot>,
}

/// How much was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counts {
    /// Table pages.
    pub table_pages: u64,
    /// Bitmap pages.
    pub bitmap_pages: u64,
    /// Block groups in use.
    pub groups: u64,
    /// Volumes, those that are being deleted included.
    pub volumes: u64,
    /// Staging volumes, likewise.
    pub stagings: u64,
    /// Nodes of trees.
    pub nodes: u64,
    /// Extents of volumes.
    pub extents: u64,
    /// Checksum records.
    pub checksum_records: u64,
    /// Blocks of volumes.
    pub data_blocks: u64,
    /// Copies of nodes and data blocks that were read and were good.
    pub good_copies: u64,
    /// Bytes of data that were verified against their checksum, all copies counted.
    pub verified_bytes: u64,
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The pool's name.
    pub pool: String,
    /// Its uuid, in hexadecimal digits.
    pub uuid: String,
    /// The last committed transaction.
    pub generation: u64,
    /// The newest superblock.
    pub sequence: u64,
    /// Copies of every block.
    pub copies: u8,
    /// True if a device is missing, failed or stale: only what the others hold was checked.
    pub degraded: bool,
    /// True if the content of data blocks was verified too.
    pub data: bool,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
    /// How much was looked at.
    pub counts: Counts,
    /// Problems of [`Severity::Error`].
    pub errors: u64,
    /// Problems of [`Severity::DamagedCopy`].
    pub damaged_copies: u64,
    /// Problems of [`Severity::Note`].
    pub notes: u64,
    /// The first problems; the counts above tell how many there are.
    pub problems: Vec<Problem>,
    /// The uuid of the cache that is attached to it, in hexadecimal digits.
    pub cache: Option<String>,
    /// What that cache has to fit.
    #[serde(skip)]
    pub image: Image,
}

/// What a cache in front of the pool has to fit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Image {
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// The cache that is attached to it.
    pub cache_uuid: Option<[u8; 16]>,
    /// An entry of its journal that was durable when the pool last committed.
    pub cache_journal: u64,
    /// Its clean keys do not count.
    pub clean_void: bool,
    /// The epoch of the last cut that was published.
    pub published: Epoch,
    /// Its volumes: number, name, bytes. `None` if not all of the table could be read.
    pub volumes: Option<Vec<(VolumeId, String, u64)>>,
    /// No volume ever had this number, or a higher one.
    pub next_volume: u32,
    /// What staging volumes hold. `None` if something that may tell of it could not be read.
    pub staged: Option<Rc<Staged>>,
}

/// The checksums of the blocks in staging volumes, by the volume they are for, the epoch, and the
/// block.
pub type Staged = FxHashMap<(VolumeId, Epoch, u64), Crc>;

impl Report {
    /// True if nothing is wrong; there may be notes.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.damaged_copies == 0
    }
}

/// Takes problems in: counts all, keeps the first.
#[derive(Debug)]
pub struct Log<C = Counts> {
    /// How much was looked at.
    pub counts: C,
    totals: [u64; 3],
    problems: Vec<Problem>,
    listed: usize,
}

impl<C: Default> Log<C> {
    /// Keeps up to `listed` problems.
    pub fn new(listed: usize) -> Self {
        Log { counts: C::default(), totals: [0; 3], problems: Vec::new(), listed }
    }

    /// Takes one in.
    pub fn add(&mut self, problem: Problem) {
        self.totals[problem.severity as usize] += 1;
        if self.problems.len() < self.listed {
            self.problems.push(problem);
        }
    }

    /// Something that is lost or contradicts itself.
    pub fn error(
        &mut self,
        subject: Subject,
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        let (place, what) = (place.into(), what.into());
        self.add(Problem { severity: Severity::Error, subject, place, device: None, what, remedy });
    }

    /// Something worth knowing.
    pub fn note(&mut self, subject: Subject, place: impl Into<String>, what: impl Into<String>) {
        let (place, what) = (place.into(), what.into());
        self.add(Problem {
            severity: Severity::Note,
            subject,
            place,
            device: None,
            what,
            remedy: "",
        });
    }

    /// A bad copy of something that has a good one.
    pub fn copy(
        &mut self,
        subject: Subject,
        place: &str,
        device: &str,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        let (place, device, what) = (place.to_owned(), Some(device.to_owned()), what.into());
        self.add(Problem { severity: Severity::DamagedCopy, subject, place, device, what, remedy });
    }

    /// How many of a kind there were.
    pub fn total(&self, severity: Severity) -> u64 {
        self.totals[severity as usize]
    }

    /// Those that were kept.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}
