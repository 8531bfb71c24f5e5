//! The offline check: verifies every structure of a pool, on every copy, and writes nothing.
//!
//! In this order, each step standing on what the steps before have found:
//!
//! 1. superblocks of all devices ([`source`]), volume and group tables, bitmaps ([`tables`])
//! 2. every volume's mapping ([`volumes`]): each node ([`walk`]) and each extent claims its blocks
//!    ([`space`])
//! 3. every group's checksum tree ([`groups`]): each block that a volume has must have a checksum
//!    for that volume's block; if asked for, all data is read and verified too
//! 4. what is allocated and was not claimed has leaked
//!
//! Memory: the group records, two bits a block, some 50 bytes for each block in a staging volume,
//! and a bounded number of nodes and data blocks.
//!
//! Legal, because a crash leaves it and nothing depends on it: the slot of a page or superblock
//! that is written next may hold anything; groups that are not used for data may keep the checksum
//! tree they had; checksum records may speak of free blocks; volumes may have blocks behind their
//! end (a note tells of them).

mod groups;
pub(crate) mod plan;
mod report;
pub(crate) mod source;
mod space;
mod tables;
mod volumes;
mod walk;

use std::rc::Rc;

use base::{Epoch, Result};
use format::cache::pool_seen::PoolStatement;
use format::page::{GroupKind, VolumeRecord, VolumeState};
use pool::DeviceFile;
use rt::Rt;
use rustc_hash::FxHashMap;

pub use report::{DeviceReport, Image, PoolCounts, Report, StagedSums};
pub(crate) use walk::Walk;

use crate::items::hex;
use crate::report::{CheckOptions, Log, Phase, Progress, Subject};
use plan::PoolRepairPlan;
use source::PoolSource;
use space::Space;

/// The state of a check.
pub(crate) struct PoolChecker<'a> {
    pub src: Rc<PoolSource>,
    pub space: Space,
    log: Log<PoolCounts>,
    plan: PoolRepairPlan,
    options: CheckOptions,
    /// False if something could not be read that may refer to blocks: what has leaked cannot be
    /// known then.
    whole: bool,
    /// True if no volume can be missing.
    all_volumes: bool,
    /// Blocks of staging volumes, by group and block there: of which epoch they are.
    staged_at: FxHashMap<(u32, u32), Epoch>,
    /// The same, with their checksums.
    staged: StagedSums,
    /// Names of volumes, by their numbers.
    names: FxHashMap<u32, String>,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> PoolChecker<'a> {
    /// Superblocks, tables and bitmaps; and the volumes.
    async fn begin(
        rt: &Rt,
        files: Vec<DeviceFile>,
        options: &CheckOptions,
        mut plan: PoolRepairPlan,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<(PoolChecker<'a>, Vec<DeviceReport>, Vec<VolumeRecord>)> {
        let mut log = Log::new(options.listed);
        let (src, devices) = PoolSource::open(rt, files, &mut log, &mut plan).await?;
        progress(Progress { phase: Phase::Tables, done: 0, total: 1 });
        let mut tables = tables::read_tables(&src, &mut log, &mut plan).await;
        let all_volumes = tables.whole;
        let mut whole = tables.whole & tables::check_groups(&src, &mut tables.groups, &mut log);
        let mut space = Space::new(src.geometry, std::mem::take(&mut tables.groups));
        let step = |done, total| progress(Progress { phase: Phase::Bitmaps, done, total });
        whole &= tables::read_bitmaps(&src, &mut space, &mut log, &mut plan, step).await;
        let checker = PoolChecker {
            src,
            space,
            log,
            plan,
            options: *options,
            whole,
            all_volumes,
            staged_at: FxHashMap::default(),
            staged: StagedSums::default(),
            names: FxHashMap::default(),
            progress,
        };
        Ok((checker, devices, tables.volumes))
    }

    /// Loads what a dump needs: nothing is reported.
    pub async fn load(
        rt: &Rt,
        files: Vec<DeviceFile>,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<(PoolChecker<'a>, Vec<VolumeRecord>)> {
        let options = CheckOptions { data: false, listed: 0 };
        let (checker, _, volumes) =
            PoolChecker::begin(rt, files, &options, PoolRepairPlan::default(), progress).await?;
        Ok((checker, volumes))
    }

    /// Lets go of the devices.
    pub fn close(&self) {
        self.src.close();
    }

    fn progress(&mut self, phase: Phase, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }

    /// Reports allocated blocks that nothing refers to.
    fn leaks(&mut self) {
        let mut lost = 0u64;
        for i in 0..self.space.groups.len() {
            let Some((count, first)) = self.space.leaked(i) else { continue };
            lost += u64::from(count);
            if !self.whole {
                continue;
            }
            let kind = match self.space.groups[i].record.kind {
                GroupKind::Metadata => "metadata",
                _ => "data",
            };
            let what = format!(
                "{count} {kind} blocks are allocated and nothing refers to them, the first is \
                 {first}"
            );
            if self.plan.is_wanted() {
                self.plan.leaked.extend(self.space.leaked_runs(i));
            }
            self.log.lost(
                Subject::Space,
                format!("block group {i}"),
                what,
                "the space is lost; nothing else is",
            );
        }
        if !self.whole && lost > 0 {
            let what =
                format!("{lost} blocks are allocated and nothing that can be read refers to them");
            self.log.note(Subject::Space, "pool", what);
        }
    }
}

/// Verifies the pool on `files`, offline. Refuses what is no pool at all, as opening it would;
/// everything else is in the report.
pub async fn check(
    rt: &Rt,
    files: Vec<DeviceFile>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    check_for(PoolRepairPlan::default(), rt, files, options, progress)
        .await
        .map(|(report, _, _)| report)
}

/// As [`check`]; and what a repair would do, as `plan` wants it, and the devices that are missing
/// and those that are out of use.
pub(crate) async fn check_for(
    plan: PoolRepairPlan,
    rt: &Rt,
    files: Vec<DeviceFile>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Report, PoolRepairPlan, (Vec<String>, Vec<String>))> {
    let (mut checker, devices, volumes) =
        PoolChecker::begin(rt, files, options, plan, progress).await?;
    checker.volumes(&volumes).await;
    checker.checksums(&volumes).await;
    checker.leaks();
    checker.close();
    let (src, log, mut plan) = (checker.src, checker.log, checker.plan);
    plan.unsound = log.unsound().map(str::to_owned);
    let away = src.away();
    let best = &src.best;
    let is_served = |v: &VolumeRecord| {
        v.state == VolumeState::Live && v.staged.is_none() && v.snapshot.is_none()
    };
    let live = volumes.into_iter().filter(is_served);
    let image = Image {
        pool_uuid: best.pool_uuid,
        cache_uuid: best.cache_uuid,
        cache_says: PoolStatement { entry: best.cache_journal, opened: best.lineage.cache_opened },
        clean_void: best.clean_void,
        published: best.published,
        volumes: checker.all_volumes.then(|| live.map(|v| (v.id, v.name, v.size_bytes)).collect()),
        next_volume: best.next_volume,
        staged: (checker.whole && checker.all_volumes).then(|| Rc::new(checker.staged)),
    };
    let report = Report {
        pool: best.name.clone(),
        uuid: hex(&best.pool_uuid),
        generation: best.generation,
        sequence: best.sequence,
        copies: best.copies,
        degraded: src.degraded(),
        data: options.data,
        devices,
        findings: log.into_findings(),
        cache: best.cache_uuid.map(|uuid| hex(&uuid)),
        image,
    };
    Ok((report, plan, away))
}
