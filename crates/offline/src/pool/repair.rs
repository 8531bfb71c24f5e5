//! Repair of a pool: what the check finds bad in one copy and good in another is written again, and
//! blocks to which nothing refers are freed.
//!
//! The check decides, [`pool::offline_repair`] writes, and the check looks once more: what it says
//! in the end is what the devices hold. Nothing is guessed:
//!
//! - What has no good copy is named and left as it is. So is what may hang on it: where a part of
//!   the trees cannot be read, it is not known what has leaked, and nothing is freed. A deleted
//!   volume is not missed: if a part of its mapping is lost, the volume is forgotten, and what it
//!   held has leaked.
//! - Where structures contradict each other, or the tables are not all there, a good checksum does
//!   not show that a copy is the right one for its place. Then nothing is written at all.
//! - A device that is away may have the good copy. All of them have to be there.

use std::collections::BTreeSet;

use base::{ErrorKind, Result, StorageError};
use pool::DeviceFile;
use pool::offline_repair::{Repair, RewriteOutcome, Spot};
use rt::Rt;

use super::check::plan::{MOST, PoolRepairPlan};
use super::check::{Report, check_for};
use crate::repair::{Outcome, RepairTally, Repairs};
use crate::report::{CheckOptions, Phase, Progress, Subject};

/// Copies that are written before a flush.
const BATCH: usize = 256;

/// Repairs the pool on `files`, which nothing else may use meanwhile; all data is read. `dry_run`:
/// says what would be done, and writes nothing. Refuses what is no pool, and one of which a device
/// is away.
pub async fn repair(
    rt: &Rt,
    files: Vec<DeviceFile>,
    options: &CheckOptions,
    dry_run: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome<Report>> {
    let options = &CheckOptions { data: true, ..*options };
    let (before, mut plan, (missing, stale)) =
        check_for(PoolRepairPlan::new(MOST), rt, files.clone(), options, progress).await?;
    if !(missing.is_empty() && stale.is_empty()) {
        return Err(refusal(&missing, &stale));
    }
    let mut work = Work::new(&before, Repairs { dry_run, ..Repairs::default() });
    work.take_in(&plan);
    let unsound = plan.unsound.take();
    let mut after = None;
    if let Some(what) = unsound {
        work.repairs.refused = Some(what);
    } else if !dry_run {
        while work.is_left(&plan) {
            let mut repair = Repair::open(rt, files.clone()).await?;
            let done = work.round(&mut repair, &plan, progress).await;
            repair.close();
            done?;
            let (report, next, _) =
                check_for(PoolRepairPlan::new(MOST), rt, files.clone(), options, progress).await?;
            let sound = next.unsound.is_none();
            (plan, after) = (next, Some(report));
            if !sound {
                break;
            }
            work.take_in(&plan);
        }
        work.count_slots(&plan);
    }
    work.tally.tell(&mut work.repairs);
    Ok(Outcome { before, after, repairs: work.repairs })
}

fn refusal(missing: &[String], stale: &[String]) -> StorageError {
    let mut text =
        "nothing was written, as a good copy may be on a device that is not in use".to_owned();
    if !missing.is_empty() {
        text += &format!(
            ". Missing: {}. Give all devices of the pool; if one is lost, serve the pool without \
             it, and type forebay device replace ID NEW --wait",
            missing.join(", ")
        );
    }
    if !stale.is_empty() {
        text += &format!(
            ". Out of use, as the pool went on without: {}. Serve the pool with it: it is brought \
             up to date by itself, or by forebay device online PATH if it was taken out of use. \
             When forebay device list shows it online, forebay scrub start --wait heals all copies",
            stale.join(", ")
        );
    }
    StorageError::new(ErrorKind::Missing, text)
}

/// A repair that goes on.
struct Work {
    /// The names of the devices, by row.
    names: Vec<String>,
    repairs: Repairs,
    tally: RepairTally,
    /// Bad copies that were counted.
    known: BTreeSet<Spot>,
    /// Bad copies that were tried. None is tried twice.
    tried: BTreeSet<Spot>,
    /// Bad superblock slots at first, by device; and whether they were tried.
    slots: Vec<String>,
    tried_slots: bool,
    tried_leaks: bool,
    tried_drops: bool,
}

impl Work {
    fn new(report: &Report, repairs: Repairs) -> Work {
        Work {
            names: report.devices.iter().map(|d| d.path.clone()).collect(),
            repairs,
            tally: RepairTally::default(),
            known: BTreeSet::new(),
            tried: BTreeSet::new(),
            slots: Vec::new(),
            tried_slots: false,
            tried_leaks: false,
            tried_drops: false,
        }
    }

    fn name(&self, at: Spot) -> String {
        self.names.get(at.device).cloned().unwrap_or_else(|| format!("device {}", at.device))
    }

    /// Counts what a check has found and the ones before it have not.
    fn take_in(&mut self, plan: &PoolRepairPlan) {
        for (kind, copy) in &plan.copies {
            if self.known.insert(copy.bad) {
                self.tally.bad(&self.name(copy.bad), *kind);
            }
        }
        if !self.tried_slots && self.slots.is_empty() {
            self.slots = plan.slots.clone();
            self.slots.iter().for_each(|path| self.tally.bad(path, Subject::Superblock));
        }
        if !self.tried_drops {
            self.repairs.forgotten_volumes = plan.dropped.len() as u64;
        }
        if !self.tried_leaks {
            self.repairs.leaked_blocks = plan.leaked.iter().map(|l| u64::from(l.1)).sum();
        }
    }

    /// True if there is something that was not tried.
    fn is_left(&self, plan: &PoolRepairPlan) -> bool {
        plan.copies.iter().any(|(_, copy)| !self.tried.contains(&copy.bad))
            || (!self.tried_slots && !plan.slots.is_empty())
            || (!self.tried_leaks && !plan.leaked.is_empty())
            || (!self.tried_drops && !plan.dropped.is_empty())
    }

    /// Does what was not tried.
    async fn round(
        &mut self,
        repair: &mut Repair,
        plan: &PoolRepairPlan,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let copies: Vec<_> =
            plan.copies.iter().filter(|(_, copy)| self.tried.insert(copy.bad)).collect();
        let (mut done, total) = (0, copies.len() as u64);
        for batch in copies.chunks(BATCH) {
            progress(Progress { phase: Phase::Repair, done, total });
            let bad: Vec<_> = batch.iter().map(|(_, copy)| *copy).collect();
            for ((kind, copy), outcome) in batch.iter().zip(repair.rewrite(&bad).await?) {
                let name = self.name(copy.bad);
                match outcome {
                    RewriteOutcome::Yes | RewriteOutcome::WasGood => {
                        self.tally.repaired(&name, *kind)
                    }
                    RewriteOutcome::No(why) => {
                        self.tally.failed(&name, *kind, copy.bad.offset, why)
                    }
                }
            }
            done += batch.len() as u64;
        }
        if !std::mem::replace(&mut self.tried_drops, true) && !plan.dropped.is_empty() {
            // The next check finds the blocks that the forgotten volumes held: nothing refers to
            // them then.
            return repair.forget(&plan.dropped).await;
        }
        let slots = !std::mem::replace(&mut self.tried_slots, true) && !plan.slots.is_empty();
        let leaked = match std::mem::replace(&mut self.tried_leaks, true) {
            false => &plan.leaked[..],
            true => &[],
        };
        repair.commit(leaked, slots).await?;
        self.repairs.freed_blocks += leaked.iter().map(|l| u64::from(l.1)).sum::<u64>();
        Ok(())
    }

    /// Superblock slots that are not bad any more were repaired.
    fn count_slots(&mut self, last: &PoolRepairPlan) {
        let mut left = last.slots.clone();
        for path in std::mem::take(&mut self.slots) {
            match left.iter().position(|l| *l == path) {
                Some(at) => {
                    left.swap_remove(at);
                    let why = "it is bad after it was written; replace the device".to_owned();
                    self.tally.failed(&path, Subject::Superblock, 0, why);
                }
                None => self.tally.repaired(&path, Subject::Superblock),
            }
        }
    }
}
