//! Parts of checks that pools and caches share: what to look at, how far they have come, and what
//! they have found.

use base::BLOCK_U64;
use serde::Serialize;

/// The number of problems that a report lists, if nothing else is asked for.
const LISTED: usize = 200;

/// The options of a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Read and verify all data too, on all copies.
    pub data: bool,
    /// Problems that the report lists; all are counted.
    pub listed: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { data: false, listed: LISTED }
    }
}

/// A part of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Of a pool: superblocks and tables.
    Tables,
    /// Of a pool: bitmaps, by block group.
    Bitmaps,
    /// Of a pool: mappings, by volume.
    Volumes,
    /// Of a pool: checksums, and data if asked for, by block group.
    Groups,
    /// Of a cache: the bucket table, by page.
    Buckets,
    /// Of a cache: the index as of the checkpoint.
    Index,
    /// Of a cache: the journal.
    Journal,
    /// Of a cache: the index with the journal applied, and data if asked for.
    Keys,
    /// Of a repair: bad copies, which are written again.
    Repair,
}

/// The progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The phase that is under way.
    pub phase: Phase,
    /// The number of items that are done.
    pub done: u64,
    /// The number of all items, about.
    pub total: u64,
}

/// The severity of a problem.
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

/// The kind of structure that a problem is about.
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
    /// The severity.
    pub severity: Severity,
    /// The kind of structure that the problem is about.
    pub subject: Subject,
    /// The structure, as reports call it.
    pub place: String,
    /// The device with the bad copy, if it is about one copy only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The description of what is wrong with the structure.
    pub what: String,
    /// The advice on what to do; empty if there is nothing to do.
    pub remedy: &'static str,
    /// The blocks of a volume, if it is about these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
    /// The number of problems that this one counts as: more than one where neighbours were put
    /// together.
    pub counted: u64,
}

/// Blocks of a volume next to each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Blocks {
    /// The volume's number.
    pub volume: u32,
    /// The volume's name, if that is known.
    pub name: Option<String>,
    /// The first block.
    pub first: u64,
    /// The number of blocks.
    pub count: u64,
}

impl Blocks {
    /// Returns the name of the blocks in a report.
    pub(crate) fn place(&self) -> String {
        let name = self.name.as_ref().map_or(String::new(), |name| format!(" ({name:?})"));
        format!("volume {}{name}, {}", self.volume, range(self.first, self.end()))
    }

    fn end(&self) -> u64 {
        self.first + self.count
    }

    /// True if the others begin where these end, or the other way round.
    fn touch(&self, other: &Blocks) -> bool {
        let next = self.end() == other.first || other.end() == self.first;
        next && self.volume == other.volume
    }
}

/// Blocks of a volume, up to before `end`, and the bytes that these are.
pub(crate) fn range(first: u64, end: u64) -> String {
    let bytes =
        format!("(bytes {} to {})", first.saturating_mul(BLOCK_U64), end.saturating_mul(BLOCK_U64));
    match end - first {
        1 => format!("block {first} {bytes}"),
        _ => format!("blocks {first} to {} {bytes}", end - 1),
    }
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
        /// The superblock's sequence number.
        sequence: u64,
        /// The transaction it commits.
        generation: u64,
    },
    /// Never written.
    Empty,
    /// Something else, or nothing that can be read.
    Damaged {
        /// The reason.
        why: String,
    },
}

/// The findings of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Findings<C> {
    /// The counters of what was looked at.
    pub counts: C,
    /// Problems of [`Severity::Error`].
    pub errors: u64,
    /// Problems of [`Severity::DamagedCopy`].
    pub damaged_copies: u64,
    /// Problems of [`Severity::Note`].
    pub notes: u64,
    /// The first problems; the counts above tell how many there are. Neighbouring blocks of a
    /// volume are one.
    pub problems: Vec<Problem>,
}

impl<C> Findings<C> {
    /// True if nothing is wrong; there may be notes.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.damaged_copies == 0
    }
}

/// Takes problems in: counts all, keeps the first.
pub(crate) struct Log<C> {
    /// The counters of what was looked at.
    pub counts: C,
    totals: [u64; 3],
    /// The first error that may be about more than the place where it was found.
    unsound: Option<String>,
    /// The problems that are kept, each with its text for several blocks that are put together.
    problems: Vec<(Problem, String)>,
    listed: usize,
}

impl<C: Default> Log<C> {
    /// Keeps up to `listed` problems.
    pub fn new(listed: usize) -> Self {
        let counts = C::default();
        Log { counts, totals: [0; 3], unsound: None, problems: Vec::new(), listed }
    }

    fn add(&mut self, problem: Problem, brief: String) {
        self.totals[problem.severity as usize] += problem.counted;
        if self.problems.len() < self.listed {
            self.problems.push((problem, brief));
        }
    }

    /// Adds a problem that is about no blocks of a volume, or not about their content.
    fn add_one(
        &mut self,
        severity: Severity,
        subject: Subject,
        place: String,
        device: Option<String>,
        what: String,
        remedy: &'static str,
    ) {
        let (blocks, counted) = (None, 1);
        let problem = Problem { severity, subject, place, device, what, remedy, blocks, counted };
        self.add(problem, String::new());
    }

    /// Content of a volume: lost, or of one copy on a device. Neighbours of which `brief` says the
    /// same are one problem; `what` is said of what stays alone.
    pub fn content(
        &mut self,
        blocks: Blocks,
        device: Option<&str>,
        what: String,
        brief: String,
        remedy: &'static str,
    ) {
        let severity = if device.is_some() { Severity::DamagedCopy } else { Severity::Error };
        let is_same = |(p, said): &&mut (Problem, String)| {
            p.blocks.as_ref().is_some_and(|b| b.touch(&blocks))
                && (p.severity, p.remedy) == (severity, remedy)
                && p.device.as_deref() == device
                && *said == brief
        };
        if let Some((p, said)) = self.problems.iter_mut().rev().find(is_same) {
            self.totals[severity as usize] += blocks.count;
            p.counted += blocks.count;
            p.what.clone_from(said);
            if let Some(b) = &mut p.blocks {
                b.first = b.first.min(blocks.first);
                b.count += blocks.count;
            }
            return;
        }
        let problem = Problem {
            severity,
            subject: Subject::Data,
            place: String::new(),
            device: device.map(str::to_owned),
            what,
            remedy,
            counted: blocks.count,
            blocks: Some(blocks),
        };
        self.add(problem, brief);
    }

    /// Something that contradicts itself or something else, or that the rest stands on and is
    /// lost: what else was found may be wrong too.
    pub fn error(
        &mut self,
        subject: Subject,
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        let (place, what) = (place.into(), what.into());
        self.unsound.get_or_insert_with(|| format!("{place}: {what}"));
        self.lost(subject, place, what, remedy);
    }

    /// Something that is lost, or has leaked: nothing else is wrong for it.
    pub fn lost(
        &mut self,
        subject: Subject,
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        let (place, what) = (place.into(), what.into());
        self.add_one(Severity::Error, subject, place, None, what, remedy);
    }

    /// Something worth knowing.
    pub fn note(&mut self, subject: Subject, place: impl Into<String>, what: impl Into<String>) {
        let (place, what) = (place.into(), what.into());
        self.add_one(Severity::Note, subject, place, None, what, "");
    }

    /// Judges slot `number` of the superblocks on `path`, of which there are `slots`; the newest
    /// superblock has the sequence number `newest`. Returns true if the slot is the next to be
    /// written: it holds what a loss of power tore, at worst.
    pub fn judge_slot(
        &mut self,
        path: &str,
        number: u64,
        slots: u64,
        slot: &Slot,
        newest: u64,
    ) -> bool {
        const REWRITTEN: &str = "it will be overwritten";
        let place = format!("superblock slot {number}");
        let is_next = (newest + 1) % slots == number;
        match slot {
            Slot::Damaged { why } if is_next => {
                let what = format!("{why}; it is the next to be written: a crash may have torn it");
                self.note(Subject::Superblock, format!("{place} on {path}"), what);
            }
            Slot::Damaged { why } => {
                self.copy(Subject::Superblock, &place, path, why.clone(), REWRITTEN)
            }
            Slot::Empty if newest >= slots && !is_next => {
                self.copy(Subject::Superblock, &place, path, "it is empty", REWRITTEN);
            }
            Slot::Empty | Slot::Ok { .. } => {}
        }
        is_next
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
        let (place, device) = (place.to_owned(), Some(device.to_owned()));
        self.add_one(Severity::DamagedCopy, subject, place, device, what.into(), remedy);
    }

    /// Returns the number of problems of a severity.
    pub fn total(&self, severity: Severity) -> u64 {
        self.totals[severity as usize]
    }

    /// The first error that may be about more than the place where it was found.
    pub fn unsound(&self) -> Option<&str> {
        self.unsound.as_deref()
    }

    /// Returns the findings of the report.
    pub fn into_findings(self) -> Findings<C> {
        let named = |(mut p, _): (Problem, String)| {
            if let Some(blocks) = &p.blocks {
                p.place = blocks.place();
            }
            p
        };
        Findings {
            errors: self.total(Severity::Error),
            damaged_copies: self.total(Severity::DamagedCopy),
            notes: self.total(Severity::Note),
            counts: self.counts,
            problems: self.problems.into_iter().map(named).collect(),
        }
    }
}
