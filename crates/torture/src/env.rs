//! The state that all parts of a run share: the world, the model, the story, chance.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK_U64, Prng};
use cache::Cache;
use model::cache::CacheState;
use model::status::PoolState;
use pool::{Pool, VolumeLimit};
use rt::sync::Event;
use rt::{FileId, Rt, SocketId};
use sim::World;
use volume::Volumes;

use crate::filled::WriteOrders;
use crate::model::Model;
use crate::settings::{Damage, Moment, Settings};
use crate::spoilt::SpoiltBlocks;
use crate::story::{Coverage, FailurePlace, Story, StoryEvent};
use crate::unreachable::UnreachableData;

/// An operation that takes longer than this, in virtual time, hangs.
const PATIENCE_NS: u64 = 900 * 1_000_000_000;

pub(crate) struct Env {
    pub settings: Settings,
    pub world: World,
    pub model: RefCell<Model>,
    pub story: Rc<RefCell<Story>>,
    pub coverage: RefCell<Coverage>,
    rng: RefCell<Prng>,
    /// Operations answered in this boot.
    pub answered: Cell<u64>,
    /// Clients are to end.
    pub stopping: Cell<bool>,
    /// Clients ask for nothing.
    pub resting: Cell<bool>,
    /// The host was full in this boot: ENOSPC may come at any time.
    pub host_full: Cell<bool>,
    /// When the pool was last seen to be full, in this boot.
    pub full_at: Cell<Option<u64>>,
    /// The open pool, for its counters.
    pub pool: RefCell<Option<Pool>>,
    /// The pool's cache, if it is open.
    pub cache: RefCell<Option<Cache>>,
    /// When it began, what, and over how many bytes.
    in_flight: RefCell<BTreeMap<u64, (u64, &'static str, u64)>>,
    /// The cache's device was struck since it was made.
    pub cache_struck: Cell<bool>,
    /// A cache was struck in this boot that is detached by now: requests that it failed may still
    /// be answered.
    pub was_struck: Cell<bool>,
    /// Devices that are needed have failed in this boot: requests may fail until it ends.
    pub failing: Cell<bool>,
    /// One has at some time.
    pub device_failed: Cell<bool>,
    /// The pool is being opened, or the last boot ended while it was.
    pub opening: Cell<bool>,
    /// Such an open may have left out a device, and none has ended well since.
    pub cut_open: Cell<bool>,
    /// Blocks of the cache's device that cannot be read, of those that hold data.
    pub spoilt: Rc<RefCell<SpoiltBlocks>>,
    /// True if what this boot's start cannot read stands in another place too: the start is not
    /// refused.
    pub spared: Cell<bool>,
    /// Nodes of trees of which no copy can be read.
    pub unreachable: RefCell<UnreachableData>,
    /// FLUSHes and durable writes that were answered well in this boot.
    flushes: Cell<u64>,
    flushed: Event,
    /// Beginnings and ends of changes of modes and of the cache, and beginnings of those of sizes,
    /// in this boot.
    changes: Cell<u64>,
    changed: Event,
    /// The cache's device had died, and serves again as it was when that happened.
    pub cache_returned: Cell<bool>,
    /// The cache's device answers flushes and makes nothing durable.
    pub cache_lies: Cell<bool>,
    /// The cache's device has lied, and power has taken some of what was flushed.
    pub cache_lied: Cell<bool>,
    /// The cache was seen to be set aside though its device answers: bad sectors have retired its
    /// buckets.
    pub cache_worn: Cell<bool>,
    /// Dirty blocks of the cache were lost.
    pub cache_lost_blocks: Cell<bool>,
    /// When the last operation was answered, or the boot began.
    last_answer: Cell<u64>,
    /// The order of writes to chunks that moves fill.
    pub filled: RefCell<WriteOrders>,
    /// The numbers of copies that the pool may keep of every block; the last is what was asked for
    /// last.
    pub copies: RefCell<Vec<u8>>,
    /// The devices of the pool.
    pub pool_files: RefCell<Vec<FileId>>,
    /// The limits that volumes may have, by the numbers of the volumes in the pool; the last is
    /// what was asked for last.
    pub limits: RefCell<BTreeMap<u32, Vec<Option<VolumeLimit>>>>,
}

impl Env {
    pub fn new(settings: Settings, world: World, story: Rc<RefCell<Story>>) -> Env {
        let rng = Prng::new(settings.seed ^ 0xE27);
        let copies = RefCell::new(vec![settings.copies]);
        let mut model = Model::new();
        let failures = &settings.failures;
        if failures.lost_nodes > 0 || failures.unreadable > 0 || settings.damage != Damage::None {
            model.blocks_may_be_lost();
        }
        Env {
            settings,
            world,
            model: RefCell::new(model),
            story,
            coverage: RefCell::default(),
            rng: RefCell::new(rng),
            answered: Cell::new(0),
            stopping: Cell::new(false),
            resting: Cell::new(false),
            host_full: Cell::new(false),
            full_at: Cell::new(None),
            pool: RefCell::new(None),
            cache: RefCell::new(None),
            filled: RefCell::default(),
            copies,
            pool_files: RefCell::default(),
            in_flight: RefCell::default(),
            cache_struck: Cell::new(false),
            was_struck: Cell::new(false),
            failing: Cell::new(false),
            device_failed: Cell::new(false),
            opening: Cell::new(false),
            cut_open: Cell::new(false),
            spoilt: Rc::default(),
            spared: Cell::new(false),
            unreachable: RefCell::default(),
            flushes: Cell::new(0),
            flushed: Event::new(),
            changes: Cell::new(0),
            changed: Event::new(),
            cache_returned: Cell::new(false),
            cache_lies: Cell::new(false),
            cache_lied: Cell::new(false),
            cache_worn: Cell::new(false),
            cache_lost_blocks: Cell::new(false),
            last_answer: Cell::new(0),
            limits: RefCell::default(),
        }
    }

    /// A number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// The id of a new device.
    pub fn id(&self) -> [u8; 16] {
        std::array::from_fn(|_| self.below(256) as u8)
    }

    pub fn count(&self, name: &'static str, n: u64) {
        self.coverage.borrow_mut().add(name, n);
    }

    pub fn note(&self, text: impl Into<String>) {
        self.story.borrow_mut().add(self.world.now().0, StoryEvent::Note(text.into()));
    }

    /// An operation begins; `len` is 0 where it has no range.
    pub fn begins(&self, op: u64, volume: u32, what: &'static str, offset: u64, len: u64) {
        let now = self.world.now().0;
        self.in_flight.borrow_mut().insert(op, (now, what, len));
        self.story.borrow_mut().add(now, StoryEvent::Begins { op, volume, what, offset, len });
    }

    pub fn ends(&self, op: u64, how: impl Into<String>) {
        self.in_flight.borrow_mut().remove(&op);
        self.last_answer.set(self.world.now().0);
        self.answered.set(self.answered.get() + 1);
        self.story.borrow_mut().add(self.world.now().0, StoryEvent::Ends { op, how: how.into() });
    }

    /// Returns the number of bytes that operations under way are about, each no more than `most`.
    pub fn bytes_in_flight(&self, most: u64) -> u64 {
        self.in_flight.borrow().values().map(|(_, _, len)| *len.min(&most)).sum()
    }

    /// The run has failed.
    pub fn fail(&self, text: impl Into<String>) -> ! {
        panic!("{}", text.into())
    }

    /// The run has failed over what was seen at one place.
    pub fn fail_at(&self, volume: u32, block: u64, text: &str) -> ! {
        self.story.borrow_mut().about = Some(FailurePlace { volume, block });
        panic!("block {block} of volume {volume} (of the model's numbers):\n{text}")
    }

    /// Fails if something has been under way, or missing in the pool, for too long.
    pub fn check_patience(&self) {
        self.model.borrow_mut().look();
        let too_old = self.model.borrow_mut().too_old.take();
        if let Some(text) = too_old {
            let cache = self.cache.borrow().as_ref().map(Cache::status);
            self.fail(format!("{text}\n{cache:?}"));
        }
        let now = self.world.now().0;
        let old = self
            .in_flight
            .borrow()
            .iter()
            .find(|(_, (at, ..))| at + PATIENCE_NS < now)
            .map(|(op, w)| (*op, *w));
        if let Some((op, (at, what, _))) = old {
            let cache = self.cache.borrow().as_ref().map(Cache::status);
            let moves = self.pool.borrow().as_ref().map(|pool| pool.moves().moves_status());
            self.fail(format!(
                "op {op}, {what}, hangs: it began at {at} ns, now it is {now} ns\n{moves:?}\n\
                 {cache:?}"
            ));
        }
        let last = self.last_answer.get();
        if last + PATIENCE_NS < now {
            self.fail(format!("nothing was answered since {last} ns, now it is {now} ns"));
        }
    }

    /// A boot begins or ends.
    pub fn reset(&self) {
        self.answered.set(0);
        self.flushes.set(0);
        self.changes.set(0);
        self.last_answer.set(self.world.now().0);
        self.stopping.set(false);
        self.resting.set(false);
        self.host_full.set(false);
        self.was_struck.set(false);
        self.failing.set(false);
        self.full_at.set(None);
        self.in_flight.borrow_mut().clear();
        self.check_fills();
        let followed = self.filled.borrow_mut().begin_boot();
        self.count("writes to chunks that moves fill", followed);
        self.pool.borrow_mut().take();
        self.cache.borrow_mut().take();
        self.model.borrow_mut().close_cache();
    }

    /// The run fails if a move has written a chunk out of order.
    pub fn check_fills(&self) {
        if let Some(wrong) = self.filled.borrow().wrong() {
            self.fail(wrong.to_owned());
        }
    }

    /// Devices may answer so that clients see errors.
    pub fn beyond(&self) -> bool {
        self.settings.damage == Damage::Beyond
    }

    /// Clients may see errors: over the devices, or over the cache.
    pub fn errors_allowed(&self) -> bool {
        self.failures_allowed() || !self.spoilt.borrow().is_empty()
    }

    /// The same, but for data of the cache that cannot be read.
    pub fn failures_allowed(&self) -> bool {
        self.beyond() || self.cache_struck.get() || self.was_struck.get() || self.failing.get()
    }

    /// True if no device of the pool has ever lost, changed or refused anything.
    pub fn never_struck(&self) -> bool {
        let well = |&file: &FileId| {
            let c = self.world.fault_counts(file);
            let lost = c.bit_rot + c.unreadable_sectors + c.misdirected_writes + c.lost_writes;
            let refused = c.transient_errors + c.failed_flushes + c.failed_but_done;
            let away = c.dead + c.unreachable + c.transient_reads + c.no_space + c.lost_sectors;
            lost + refused + away == 0
        };
        self.settings.victims.is_empty() && self.pool_files.borrow().iter().all(well)
    }

    /// The same, of a read of these bytes of a volume: where only data of the cache cannot be read,
    /// it costs no block but those that stood there.
    pub fn may_be_unreadable(&self, volume: u32, offset: u64, len: u64) -> bool {
        let blocks = offset / BLOCK_U64..(offset + len).div_ceil(BLOCK_U64);
        self.failures_allowed()
            || self.cannot_reach(volume)
            || self.unreachable.borrow().checksums()
            || self.spoilt.borrow().meets(volume, blocks)
    }

    /// A node of the volume's mapping cannot be read in this boot.
    pub fn cannot_reach(&self, volume: u32) -> bool {
        self.unreachable.borrow().has(volume)
    }

    /// A flush was answered.
    pub fn note_flush(&self) {
        self.flushes.set(self.flushes.get() + 1);
        self.flushed.notify();
    }

    /// A change of a mode or of the cache begins or ends, or one of a volume's size begins.
    pub fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
        self.changed.notify();
    }

    /// Waits until so many were noted in this boot.
    async fn after_changes(&self, n: u64) {
        loop {
            let wait = self.changed.wait();
            if self.changes.get() >= n {
                return;
            }
            wait.await;
        }
    }

    /// Waits until so many flushes were answered in this boot.
    async fn after_flushes(&self, n: u64) {
        loop {
            let wait = self.flushed.wait();
            if self.flushes.get() >= n {
                return;
            }
            wait.await;
        }
    }

    /// Waits for a moment of this boot. `cache`: the device of the cache.
    pub async fn reach(&self, moment: Moment, cache: Option<FileId>) {
        match (moment, cache) {
            (Moment::CacheWrite(n), Some(cache)) => self.world.after_writes(cache, n).await,
            (Moment::CacheSuperblock(n), Some(cache)) => {
                self.world.after_durable_writes(cache, n).await
            }
            (Moment::Flush(n), _) => self.after_flushes(n).await,
            (Moment::FlushAfterChange(changes, n), _) => {
                self.after_changes(changes).await;
                self.after_flushes(self.flushes.get() + n).await;
            }
            (Moment::OperationAfterChange(changes, n), _) => {
                self.after_changes(changes).await;
                self.world.after_operations(n).await;
            }
            (Moment::Operation(n) | Moment::CacheWrite(n) | Moment::CacheSuperblock(n), _) => {
                self.world.after_operations(n).await
            }
        }
    }

    /// Counts what the open pool has counted.
    pub fn take_counters(&self) {
        let Some(pool) = self.pool.borrow().clone() else { return };
        let s = pool.status();
        self.count("blocks that were moved", s.pool.moves.copied_bytes / BLOCK_U64);
        let mut c = self.coverage.borrow_mut();
        c.add("commits", s.commit.count);
        c.add("commits that failed and were tried again", s.commit.failed);
        c.add("nodes written", s.commit.nodes);
        c.add("node misses", s.memory.node_misses);
        c.add("group updates skipped", s.commit.block_group_updates.skipped);
        for d in &s.pool.devices {
            c.add("blocks healed", d.errors.healed);
            c.add("checksum errors found", d.errors.checksum);
            c.add("read errors seen", d.errors.read);
            c.add("write errors seen", d.errors.write);
        }
        c.add("boots that ended degraded", u64::from(s.pool.state == PoolState::Degraded));
        c.add("boots that ended failed", u64::from(s.pool.state == PoolState::Failed));
        drop(c);
        self.take_cache_counters();
    }

    /// Counts what the open cache has counted.
    pub fn take_cache_counters(&self) {
        if let Some(cache) = &*self.cache.borrow() {
            let status = cache.status();
            self.coverage.borrow_mut().add_cache(&status);
            if status.state != CacheState::Serving && !self.spoilt.borrow().is_empty() {
                self.cache_worn.set(true);
            }
            if status.lost > 0 {
                self.cache_lost_blocks.set(true);
            }
        }
    }
}

/// One boot, with the pool open.
pub(crate) struct Boot {
    pub env: Rc<Env>,
    pub rt: Rt,
    pub volumes: Volumes,
    pub listener: SocketId,
}
