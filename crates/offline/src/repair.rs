//! Parts of repairs that pools and caches share.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::Subject;

/// The number of failures that are told one by one; all are counted.
const LISTED: usize = 50;

/// The outcome of a repair, or of its dry run, for one kind of structure on one device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RepairCount {
    /// The path of the device.
    pub device: String,
    /// The kind of structure.
    pub kind: Subject,
    /// Copies that were bad and of which another copy was good.
    pub bad: u64,
    /// Of these, how many are good now: they were written again, and read back. None in a dry run.
    pub repaired: u64,
}

/// A copy that is as bad as before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// The path of the device.
    pub device: String,
    /// The kind of structure.
    pub kind: Subject,
    /// The offset of the copy on the device, in bytes.
    pub offset: u64,
    /// The reason.
    pub why: String,
}

/// The result of a repair, or of its dry run.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Repairs {
    /// Nothing was written: this is what would be done.
    pub dry_run: bool,
    /// Why nothing was, or would be, written at all.
    pub refused: Option<String>,
    /// Bad copies, by device and kind.
    pub copies: Vec<RepairCount>,
    /// Copies that could not be written again: the first of them.
    pub failures: Vec<Failure>,
    /// Blocks of the pool that are allocated and that nothing refers to.
    pub leaked_blocks: u64,
    /// Of these, how many were freed.
    pub freed_blocks: u64,
    /// Deleted volumes of which a part of the mapping is lost. They are forgotten, so that nothing
    /// refers to what they held.
    pub forgotten_volumes: u64,
}

impl Repairs {
    /// Copies that are bad, and of which another copy is good.
    pub fn bad(&self) -> u64 {
        self.copies.iter().map(|m| m.bad).sum()
    }

    /// Copies that were bad, and are good now.
    pub fn repaired(&self) -> u64 {
        self.copies.iter().map(|m| m.repaired).sum()
    }

    /// True if there was, or is, nothing to do.
    pub fn is_empty(&self) -> bool {
        self.bad() == 0 && self.leaked_blocks == 0 && self.forgotten_volumes == 0
    }
}

/// The outcome of a repair, where checks report `R`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<R> {
    /// The report of the check before the repair.
    pub before: R,
    /// The report of the check after the repair, if anything was written.
    pub after: Option<R>,
    /// The repairs that were done, or would be.
    pub repairs: Repairs,
}

impl<R> Outcome<R> {
    /// Returns the report that holds now: the one after the repair, if there is one.
    pub fn now(&self) -> &R {
        self.after.as_ref().unwrap_or(&self.before)
    }
}

/// Counts what is repaired.
#[derive(Default)]
pub(crate) struct RepairTally {
    copies: BTreeMap<(String, Subject), (u64, u64)>,
    failures: Vec<Failure>,
}

impl RepairTally {
    /// A bad copy was found.
    pub fn bad(&mut self, device: &str, kind: Subject) {
        self.copies.entry((device.to_owned(), kind)).or_default().0 += 1;
    }

    /// One of these was repaired.
    pub fn repaired(&mut self, device: &str, kind: Subject) {
        self.copies.entry((device.to_owned(), kind)).or_default().1 += 1;
    }

    /// One of these was not.
    pub fn failed(&mut self, device: &str, kind: Subject, offset: u64, why: String) {
        if self.failures.len() < LISTED {
            self.failures.push(Failure { device: device.to_owned(), kind, offset, why });
        }
    }

    /// Enters what was counted.
    pub fn tell(self, repairs: &mut Repairs) {
        let mended =
            |((device, kind), (bad, repaired))| RepairCount { device, kind, bad, repaired };
        repairs.copies.extend(self.copies.into_iter().map(mended));
        repairs.failures.extend(self.failures);
    }
}
