//! Faults: at rates while the pool is open, some at chosen moments, and what happens to devices
//! between two boots.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, StorageError};
use cache::CacheFile;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::DeviceFile;
use pool::raw::Geometry;
use rt::{FileId, Rt};
use sim::{DiskSnapshot, Fault, FaultRates};

use crate::env::Env;
use crate::fill_order;
use crate::members::members;
use crate::settings::{CacheDamage, Damage};
use crate::spoilt::SpoiltBlocks;

/// A device that is added has a disk that is longer by this: it can grow.
const GROWS: u64 = 16 << 20;

/// A device that was added, and how large it may become.
struct AddedDevice {
    file: DeviceFile,
    most_bytes: u64,
}

/// The devices as they are between and during boots.
pub(crate) struct Devices {
    pub(crate) env: Rc<Env>,
    pub files: Vec<DeviceFile>,
    /// Devices that were added since.
    added: RefCell<Vec<AddedDevice>>,
    /// The cache's.
    cache: RefCell<Option<CacheFile>>,
    empty_cache: Option<DiskSnapshot>,
    /// The device of the cache was struck, under whichever cache.
    cache_is_bad: Cell<bool>,
    dead: RefCell<Vec<bool>>,
    /// The devices that failed in this boot, or the one before, though they are needed.
    pub failed: RefCell<Vec<FileId>>,
    snapshots: RefCell<Vec<Option<DiskSnapshot>>>,
    /// The victim that hangs.
    hanging: Cell<Option<usize>>,
    /// As devices of the pool were before they had anything.
    empty: Vec<DiskSnapshot>,
    /// As the cache's device was some boots before.
    older_cache: RefCell<Option<DiskSnapshot>>,
}

impl Devices {
    pub fn new(env: &Rc<Env>) -> Devices {
        let files: Vec<_> = env
            .settings
            .devices
            .iter()
            .enumerate()
            .map(|(i, model)| {
                let file = env.world.add_disk(model.clone());
                fill_order::follow(env, file);
                DeviceFile { path: format!("disk{i}"), file, size_bytes: model.size_bytes }
            })
            .collect();
        let n = files.len();
        let all: Vec<_> = files.iter().map(|f| f.file).collect();
        env.world.watch_idle(&all);
        env.pool_files.replace(all);
        let cache = env.settings.cache.as_ref().map(|plan| {
            let file = env.world.add_disk(plan.disk.clone());
            SpoiltBlocks::follow(&env.spoilt, &env.world, file);
            CacheFile { path: "cache".to_owned(), file, size_bytes: plan.disk.size_bytes }
        });
        let empty = files.iter().map(|f| env.world.snapshot_disk(f.file)).collect();
        let empty_cache = cache.as_ref().map(|c| env.world.snapshot_disk(c.file));
        Devices {
            env: env.clone(),
            files,
            added: RefCell::default(),
            cache: RefCell::new(cache),
            empty_cache,
            cache_is_bad: Cell::new(false),
            dead: RefCell::new(vec![false; n]),
            failed: RefCell::default(),
            snapshots: RefCell::new(vec![None; n]),
            hanging: Cell::new(None),
            empty,
            older_cache: RefCell::default(),
        }
    }

    /// The cache's device.
    pub fn cache(&self) -> Option<CacheFile> {
        self.cache.borrow().clone()
    }

    fn is_victim(&self, d: usize) -> bool {
        self.env.settings.victims.contains(&d)
    }

    /// The number of the victim that has this path.
    pub fn victim_of(&self, path: &str) -> Option<usize> {
        self.env.settings.victims.iter().copied().find(|d| path == format!("disk{d}"))
    }

    /// All devices that there ever were.
    pub fn all(&self) -> Vec<DeviceFile> {
        let added = self.added.borrow();
        self.files.iter().chain(added.iter().map(|a| &a.file)).cloned().collect()
    }

    /// The devices that the pool has, of all that there ever were.
    pub fn members(&self) -> Vec<DeviceFile> {
        if self.added.borrow().is_empty() {
            return self.files.clone();
        }
        members(&self.env.world, &self.all())
    }

    /// A device that belongs to no pool yet.
    pub fn another(&self) -> DeviceFile {
        let (env, added) = (&self.env, &mut self.added.borrow_mut());
        let models = &env.settings.devices;
        let largest = models.iter().max_by_key(|model| model.size_bytes);
        let mut model = largest.unwrap_or(&models[0]).clone();
        model.size_bytes += env.below(4) << 20;
        let size_bytes = model.size_bytes;
        model.size_bytes += GROWS;
        let file = env.world.add_disk(model.clone());
        env.world.watch_idle_too(file);
        fill_order::follow(env, file);
        let path = format!("disk{}", self.files.len() + added.len());
        let device = DeviceFile { path, file, size_bytes };
        added.push(AddedDevice { file: device.clone(), most_bytes: model.size_bytes });
        env.pool_files.borrow_mut().push(file);
        device
    }

    /// An added device of this path is longer from now on, if it is not as long as it can be;
    /// returns its new size.
    pub fn grow(&self, path: &str) -> Option<u64> {
        let mut added = self.added.borrow_mut();
        let a =
            added.iter_mut().find(|a| a.file.path == path && a.file.size_bytes < a.most_bytes)?;
        let longer = a.file.size_bytes + ((1 + self.env.below(8)) << 20);
        a.file.size_bytes = longer.min(a.most_bytes);
        Some(a.file.size_bytes)
    }

    /// True if a pool may be refused with this error, and must be opened without a victim then: one
    /// that has lost its only superblock belongs to no pool. Split brain is no such reason: those
    /// that are no victims are always there, so there are never two sides.
    pub fn may_refuse(&self, e: &StorageError) -> bool {
        let names_victim = || {
            self.env.settings.victims.iter().any(|d| e.context.starts_with(&format!("disk{d}:")))
        };
        e.kind == ErrorKind::Foreign && self.env.settings.damage == Damage::Budget && names_victim()
    }

    /// True if a device may be lost for good, by this error: it is a victim, and has lost all its
    /// superblocks.
    pub fn may_be_lost(&self, path: &str, e: &StorageError) -> bool {
        self.victim_of(path).is_some() && matches!(e.kind, ErrorKind::Foreign | ErrorKind::Io)
    }

    /// Counts what happened to the devices that there are.
    pub fn count_faults(&self) {
        let env = &self.env;
        let caches = self.cache().into_iter().map(|c| c.file);
        for f in self.all().iter().map(|f| f.file).chain(caches) {
            let c = env.world.fault_counts(f);
            env.count("faults: bit rot", c.bit_rot);
            env.count("faults: unreadable sectors", c.unreadable_sectors);
            env.count("faults: misdirected writes", c.misdirected_writes);
            env.count("faults: lost writes", c.lost_writes);
            env.count("faults: short transfers", c.short_transfers);
            env.count("faults: transient errors", c.transient_errors);
            env.count("faults: stuck", c.stuck);
            env.count("faults: dead devices", c.dead);
            env.count("faults: devices out of reach", c.unreachable);
            env.count("faults: failed flushes", c.failed_flushes);
            env.count("faults: sectors that a failed flush lost", c.lost_sectors);
            env.count("faults: done and reported as failed", c.failed_but_done);
            env.count("faults: reads that failed once", c.transient_reads);
            env.count("faults: no space on the host", c.no_space);
            env.count("faults: failed discards", c.failed_discards);
            env.count("faults: writes that a part refused", c.write_errors);
        }
    }

    /// No fault happens by itself, no device hangs, or is full.
    pub fn calm(&self) {
        self.answer_again();
        for f in self.all() {
            self.env.world.set_rates(f.file, FaultRates::default());
            self.env.world.inject(f.file, Fault::Full(false));
            self.env.world.set_delay(f.file, Duration::ZERO);
        }
        if let Some(cache) = self.cache() {
            self.env.world.set_rates(cache.file, FaultRates::default());
        }
    }

    /// Everyone is there again.
    pub fn revive_all(&self) {
        for d in 0..self.files.len() {
            self.revive(d);
        }
        self.heal_failed(true);
    }

    fn revive(&self, d: usize) {
        if std::mem::take(&mut self.dead.borrow_mut()[d]) {
            self.env.world.revive(self.files[d].file);
            self.env.count("pool devices that died and came back", 1);
            self.env.note(format!("disk{d} is back"));
        }
    }

    /// Lets happen what happens while the pool is closed. Returns the devices of the next boot.
    pub fn between_boots(&self) -> Vec<DeviceFile> {
        let env = &self.env;
        self.calm();
        self.heal_failed(false);
        let faults = env.settings.faults;
        let mut there = Vec::new();
        for mut file in self.members() {
            let Some(d) = self.victim_of(&file.path) else {
                there.push(file);
                continue;
            };
            if env.one_in(2) {
                self.revive(d);
            }
            if faults.stale && !self.dead.borrow()[d] {
                self.turn_back(d);
            }
            if faults.at_rest && env.one_in(2) {
                self.rot(d, 1 + env.below(12));
            }
            if faults.swapped && env.one_in(4) {
                self.swap(d);
            }
            if faults.truncated && env.one_in(3) {
                let cut = (1 + env.below(file.size_bytes >> 20)) << 20;
                file.size_bytes = file.size_bytes.saturating_sub(cut);
                env.count("boots with a device that is shorter than it was", 1);
                env.note(format!("{} has {} bytes", file.path, file.size_bytes));
            }
            let absent = faults.absent && env.settings.damage == Damage::Budget && env.one_in(3);
            if absent {
                env.count("boots without a device", 1);
                env.note(format!("disk{d} is absent"));
            } else {
                there.push(file);
            }
        }
        there
    }

    /// The devices that answer.
    pub fn alive(&self) -> Vec<DeviceFile> {
        let dead = self.dead.borrow();
        let is_dead = |file: &DeviceFile| {
            self.files.iter().zip(&*dead).any(|(f, dead)| *dead && f.file == file.file)
        };
        self.members().into_iter().filter(|file| !is_dead(file)).collect()
    }

    /// A pool is created: what devices had before is of another pool, and no fault of this one.
    pub fn forget_snapshots(&self) {
        self.snapshots.borrow_mut().fill(None);
    }

    /// Takes a snapshot, or puts one back.
    fn turn_back(&self, d: usize) {
        let env = &self.env;
        let mut snapshots = self.snapshots.borrow_mut();
        match (&snapshots[d], env.below(3)) {
            (None, 0) => snapshots[d] = Some(env.world.snapshot_disk(self.files[d].file)),
            (Some(old), 0) => {
                env.world.restore_disk(self.files[d].file, old);
                env.count("stale devices put back", 1);
                env.note(format!("disk{d} is as it was some boots before"));
                snapshots[d] = None;
            }
            _ => {}
        }
    }

    /// Another device is in its place, which has never held anything. It stays there.
    fn swap(&self, d: usize) {
        self.revive(d);
        self.env.world.restore_disk(self.files[d].file, &self.empty[d]);
        self.snapshots.borrow_mut()[d] = None;
        self.env.count("devices with another in their place", 1);
        self.env.note(format!("another device is in the place of disk{d}"));
    }

    /// Bit rot and unreadable sectors.
    fn rot(&self, d: usize, n: u64) {
        let env = &self.env;
        let file = self.files[d].file;
        env.note(format!("{n} places of disk{d} rot"));
        for _ in 0..n {
            let fault = if env.settings.damage == Damage::Beyond {
                self.fault_behind_the_superblocks(d)
            } else if env.one_in(2) {
                Fault::BitRotAnywhere
            } else {
                Fault::ReadErrorAnywhere
            };
            env.world.inject(file, fault);
            env.count("places rotten at rest", 1);
        }
    }

    /// All copies of the newest superblock gone at once is what a pool cannot notice: it is then as
    /// of the commit before.
    fn fault_behind_the_superblocks(&self, d: usize) -> Fault {
        const MIB: u64 = 1 << 20;
        let env = &self.env;
        let sizes: Vec<u64> = self.files.iter().map(|f| f.size_bytes).collect();
        let start = Geometry::choose(&sizes, Some(env.settings.group_bytes)).data_start();
        let size = self.files[d].size_bytes;
        let (from, to) = match env.below(8) {
            0 => (MIB, start),
            1..=4 => (start, (start + 3 * MIB).min(size)),
            _ => (start, size),
        };
        let offset = from + env.below((to - from) / 512) * 512;
        if env.one_in(2) {
            Fault::BitRot { offset, len: 512 }
        } else {
            Fault::ReadError { offset, len: 512 }
        }
    }

    /// Sets the rates for a boot.
    pub fn unleash(&self) {
        let faults = self.env.settings.faults;
        for (d, f) in self.all().iter().enumerate() {
            let victims = self.env.settings.failures.victims;
            let rates = if self.is_victim(d) {
                FaultRates {
                    failed_flush: victims.failed_flush,
                    failed_but_done: victims.failed_but_done,
                    ..faults.rates
                }
            } else {
                faults.harmless
            };
            self.env.world.set_rates(f.file, self.with_flaky_reads(rates));
        }
        if let (Some(cache), Some(plan)) = (self.cache(), &self.env.settings.cache) {
            self.env.world.set_rates(cache.file, self.with_flaky_reads(plan.harmless));
        }
    }

    /// Strikes now and then, until the boot ends.
    pub async fn strike(self: Rc<Devices>, rt: Rt) {
        let env = self.env.clone();
        let faults = env.settings.faults;
        while !env.stopping.get() {
            rt.sleep(Duration::from_micros(500 + env.below(100_000))).await;
            if env.stopping.get() {
                return;
            }
            if env.settings.cache.is_some() && env.cache.borrow().is_some() && env.one_in(8) {
                self.strike_cache();
            }
            if env.cache.borrow().is_some()
                && env.one_in(if env.settings.failures.often { 2 } else { 32 })
            {
                self.spoil_cache();
            }
            let d = env.below(self.files.len() as u64) as usize;
            let file = self.files[d].file;
            match env.below(4) {
                0 if faults.die && self.is_victim(d) => self.die_or_return(d),
                3 if faults.hang && self.is_victim(d) && env.one_in(2) => self.hang(&rt, d).await,
                1 if faults.full => self.fill(&rt, file).await,
                2 if env.beyond() && env.one_in(4) => {
                    let fault = self.fault_behind_the_superblocks(d);
                    env.world.inject(file, fault);
                    env.count("places rotten while open", 1);
                }
                _ => {}
            }
        }
    }

    /// Something happens to the device of the cache, which is attached.
    pub fn strike_cache(&self) {
        let env = &self.env;
        let (Some(file), Some(plan)) = (self.cache(), &env.settings.cache) else { return };
        let places = self.places(file.file, plan.damage);
        if plan.damage == CacheDamage::Dies {
            env.note("the cache's device dies");
            env.count("cache devices that died", 1);
            env.world.inject(file.file, Fault::Dead);
            env.cache_struck.set(true);
            env.model.borrow_mut().excuse_lag();
        }
        if plan.damage == CacheDamage::Lies && !env.cache_lies.replace(true) {
            env.note("the cache's device lies from now on");
            env.count("cache devices that lie", 1);
            env.world.inject(file.file, Fault::Lie);
        }
        let Some((from, to)) = places else { return };
        let offset = from + env.below((to - from) / 512) * 512;
        let fault = if env.one_in(2) {
            Fault::BitRot { offset, len: 512 }
        } else {
            Fault::ReadError { offset, len: 512 }
        };
        env.note(format!("a place of the cache's device rots: {:?}, {offset}", plan.damage));
        env.count("cache: places rotten", 1);
        env.world.inject(file.file, fault);
        env.cache_struck.set(true);
        self.cache_is_bad.set(true);
        env.model.borrow_mut().excuse_lag();
    }

    /// As [`Devices::strike_cache`], while it is closed.
    pub fn strike_cache_at_rest(&self) {
        match self.env.settings.cache.as_ref().map(|plan| plan.damage) {
            Some(CacheDamage::Older) => self.turn_cache_back(),
            Some(CacheDamage::Dies | CacheDamage::Lies) | None => {}
            Some(_) => self.strike_cache(),
        }
    }

    /// Takes a snapshot of the cache's device, or puts one back.
    fn turn_cache_back(&self) {
        let (env, mut older) = (&self.env, self.older_cache.borrow_mut());
        let Some(cache) = self.cache() else { return };
        match older.take() {
            Some(old) if env.one_in(2) => {
                env.world.restore_disk(cache.file, &old);
                env.count("older copies of a cache put back", 1);
                env.note("the cache is as it was some boots before");
                env.cache_struck.set(true);
                env.model.borrow_mut().excuse_lag();
            }
            Some(old) => *older = Some(old),
            None => *older = Some(env.world.snapshot_disk(cache.file)),
        }
    }

    /// Returns the range in bytes in which the cache's device is struck, as its superblocks tell.
    fn places(&self, file: FileId, damage: CacheDamage) -> Option<(u64, u64)> {
        let slots = (0..SLOTS).map(CacheSuperblock::offset_of);
        let whole = |at| CacheSuperblock::decode(&self.env.world.contents(file, at, BLOCK)).ok();
        let (at, sb) =
            slots.filter_map(|at| Some((at, whole(at)?))).max_by_key(|(_, sb)| sb.sequence)?;
        let journal = sb.journal_start * BLOCK_U64;
        // The ring stands twice.
        let buckets = journal + 2 * u64::from(sb.journal_blocks) * BLOCK_U64;
        let used = u64::from(sb.replay_position + 16).min(u64::from(sb.journal_blocks)) * BLOCK_U64;
        match damage {
            CacheDamage::None | CacheDamage::Dies | CacheDamage::Older | CacheDamage::Lies => None,
            CacheDamage::Superblocks => Some((at, at + BLOCK_U64)),
            CacheDamage::Table => Some((sb.table_start * BLOCK_U64, journal)),
            CacheDamage::Journal => Some((journal, journal + used)),
            CacheDamage::Buckets => Some((
                buckets,
                buckets + u64::from(sb.bucket_count) * u64::from(sb.bucket_blocks) * BLOCK_U64,
            )),
        }
    }

    /// A new device is in the place of the cache's, if that was struck; else the same one serves
    /// again.
    pub fn renew_cache(&self) {
        self.older_cache.take();
        if let Some(file) = self.cache() {
            // The cache's device may have died and been detached since.
            self.env.world.revive(file.file);
            // Also if it was another cache's then: a sector that cannot be read stays so until it
            // is written, and what was on its way there would be lost with the next cut of power.
            if (self.cache_is_bad.take() || !self.env.spoilt.borrow().is_empty())
                && let Some(empty) = &self.empty_cache
            {
                self.env.world.restore_disk(file.file, empty);
            }
            self.env.cache_struck.set(false);
            self.env.cache_lies.set(false);
            self.env.cache_lied.set(false);
            self.env.spoilt.borrow_mut().clear();
            self.env.cache_lost_blocks.set(false);
        }
    }

    /// A device for another cache, while the program runs: operations of the one before may still
    /// reach that one's.
    pub fn another_cache(&self) -> Option<CacheFile> {
        let plan = self.env.settings.cache.as_ref()?;
        self.older_cache.take();
        let file = self.env.world.add_disk(plan.disk.clone());
        self.env.world.set_rates(file, self.with_flaky_reads(plan.harmless));
        let cache = CacheFile { path: "cache".to_owned(), file, size_bytes: plan.disk.size_bytes };
        *self.cache.borrow_mut() = Some(cache.clone());
        self.cache_is_bad.set(false);
        self.env.was_struck.set(self.env.errors_allowed());
        self.env.cache_struck.set(false);
        self.env.cache_lies.set(false);
        self.env.cache_lied.set(false);
        SpoiltBlocks::follow(&self.env.spoilt, &self.env.world, file);
        self.env.cache_lost_blocks.set(false);
        Some(cache)
    }

    /// Makes a device slow now and then, until the boot ends.
    pub async fn drag(self: Rc<Devices>, rt: Rt) {
        let env = self.env.clone();
        let Some(slow) = env.settings.slow else { return };
        let micros = |env: &Env| Duration::from_micros(1 + env.below(slow.time.as_micros() as u64));
        while !env.stopping.get() {
            rt.sleep(micros(&env)).await;
            env.count("faults: slow for a time", 1);
            env.note(format!("disk{} is slow", slow.device));
            env.world.set_delay(self.files[slow.device].file, slow.delay);
            rt.sleep(micros(&env)).await;
            env.note(format!("disk{} is as fast as before", slow.device));
            env.world.set_delay(self.files[slow.device].file, Duration::ZERO);
        }
    }

    /// A victim hangs. After a while the user takes it out of use, and all goes on without it. It
    /// answers again later, with all that was asked of it.
    async fn hang(&self, rt: &Rt, d: usize) {
        let (env, file) = (&self.env, self.files[d].file);
        let Some(pool) = env.pool.borrow().clone() else { return };
        env.note(format!("disk{d} hangs"));
        env.count("devices that hang", 1);
        env.model.borrow_mut().excuse_lag();
        env.world.inject(file, Fault::StuckForever);
        self.hanging.set(Some(d));
        let a_while = || {
            let most = [1_000, 50_000, 2_000_000][env.below(3) as usize];
            Duration::from_micros(1 + env.below(most))
        };
        rt.sleep(a_while()).await;
        let taken = pool.returns().offline_device(&self.files[d].path).await;
        env.note(format!("disk{d}, which hangs, is taken out of use: {taken:?}"));
        if taken.is_ok() {
            env.count("devices that hang and are taken out of use", 1);
            rt.sleep(a_while()).await;
        }
        self.answer_again();
    }

    fn answer_again(&self) {
        if let Some(d) = self.hanging.take() {
            self.env.world.revive(self.files[d].file);
            self.env.note(format!("disk{d} answers again"));
        }
    }

    fn die_or_return(&self, d: usize) {
        if self.dead.borrow()[d] {
            self.revive(d);
        } else {
            self.dead.borrow_mut()[d] = true;
            self.env.note(format!("disk{d} dies"));
            self.env.world.inject(self.files[d].file, Fault::Dead);
        }
    }

    async fn fill(&self, rt: &Rt, file: FileId) {
        let env = &self.env;
        env.host_full.set(true);
        env.model.borrow_mut().excuse_lag();
        env.note(format!("the host is full under {file:?}"));
        env.world.inject(file, Fault::Full(true));
        rt.sleep(Duration::from_millis(1 + env.below(300))).await;
        env.world.inject(file, Fault::Full(false));
        env.note(format!("the host has space again under {file:?}"));
    }
}
