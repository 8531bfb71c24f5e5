//! Starts by any of a pool's devices, with older copies of some, and chunks that move to another
//! device: what must be served, and what must be refused.
//!
//! A mirror of two or three devices holds one small volume. Each boot has some of the devices. Now
//! and then one of them dies, or fails a flush, while the volume is written, and a device is
//! replaced. Boots end by a close, or by a cut of power at any operation. Between two of them
//! devices may become as they were before: one of them, or all. [`history`] says what a start may
//! do:
//!
//! * the newest history of the devices that are there is served, exactly, if enough of them have
//!   it;
//! * where too few have it, that is served or nothing; a start that refuses has changed nothing;
//! * devices that went apart are never served together.
//!
//! A device that all of a boot has brought up to date has everything: it is enough alone, where the
//! pool keeps a copy on each device. So what a move, a return or a resync has left out is found.

mod boot;
mod history;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::prng::mix64;
use pool::DeviceFile;
use rt::{FileId, Order, Rt};
use sim::{DiskSnapshot, World};

use crate::env::Env;
use crate::members::members;
use crate::run::Summary;
use crate::settings::{Ending, Settings};
use crate::story::Story;

use history::{Content, DeviceKnowledge, Histories, Id};

/// Blocks of the volume.
const BLOCKS: usize = 96;
/// Boots of a run.
const BOOTS: u64 = 14;
/// The number of states of all devices that are kept.
const MOST_SAVED: usize = 3;

/// A device, and what it knows.
struct Device {
    file: DeviceFile,
    knows: DeviceKnowledge,
}

type SavedDisks = Vec<(DiskSnapshot, DeviceKnowledge)>;

/// The state of a run.
struct Subsets {
    env: Rc<Env>,
    devices: RefCell<Vec<Device>>,
    histories: RefCell<Histories>,
    saved: RefCell<Vec<SavedDisks>>,
    /// A device is being replaced by this one: the next start has all devices.
    moving: RefCell<Option<DeviceFile>>,
    /// No fault begins any more in this boot.
    calm: Rc<Cell<bool>>,
    /// Numbers of writes.
    writes: Cell<u64>,
    /// Devices that failed while the volume was served.
    failed: RefCell<Vec<FileId>>,
}

pub(crate) fn run(settings: Settings, story: Rc<RefCell<Story>>, trace: bool) -> Summary {
    let world = World::new(settings.seed);
    world.set_trace(trace);
    let env = Rc::new(Env::new(settings, world.clone(), story));
    let run = Rc::new(Subsets::new(&env));
    for boot in 0..=BOOTS {
        // In the end all are there, or as many as are not apart.
        run.boot(boot, boot == BOOTS);
        run.between_boots();
    }
    let coverage = env.coverage.borrow().clone();
    let hash = coverage.0.values().fold(world.history_hash(), |h, n| mix64(h ^ n));
    Summary { hash, virtual_ns: world.now().0, coverage }
}

impl Subsets {
    fn new(env: &Rc<Env>) -> Subsets {
        let mut histories = Histories::default();
        let first = histories.first(Content::new(BLOCKS));
        let device = |(i, model): (usize, &sim::DiskModel)| {
            let (path, size_bytes) = (format!("disk{i}"), model.size_bytes);
            let file = DeviceFile { path, file: env.world.add_disk(model.clone()), size_bytes };
            Device { file, knows: DeviceKnowledge { one_of: vec![first], whole: true } }
        };
        Subsets {
            env: env.clone(),
            devices: RefCell::new(env.settings.devices.iter().enumerate().map(device).collect()),
            histories: RefCell::new(histories),
            saved: RefCell::default(),
            moving: RefCell::default(),
            calm: Rc::default(),
            writes: Cell::new(0),
            failed: RefCell::default(),
        }
    }

    /// As many devices may lack something as there are copies beside one.
    fn spare(&self) -> usize {
        usize::from(self.env.settings.copies) - 1
    }

    fn runtime(&self, boot: u64) -> Rt {
        let seed = mix64(self.env.settings.seed ^ boot << 32);
        self.env.reset();
        Rt::new(self.env.world.backend(), Order::Seeded(seed), self.env.settings.slots)
    }

    /// The devices of a boot: their places in the list.
    fn pick(&self) -> Vec<usize> {
        let (env, n) = (&self.env, self.devices.borrow().len());
        if self.moving.borrow().is_some() || env.one_in(3) {
            return (0..n).collect();
        }
        let some: Vec<usize> = (0..n).filter(|_| env.one_in(2)).collect();
        if some.is_empty() { vec![env.below(n as u64) as usize] } else { some }
    }

    fn boot(self: &Rc<Subsets>, number: u64, last: bool) {
        let env = self.env.clone();
        let there =
            if number == 0 { (0..self.devices.borrow().len()).collect() } else { self.pick() };
        self.calm.set(false);
        let rt = self.runtime(number);
        let ending = match env.below(6) {
            _ if number == 0 || last => Ending::Close,
            0 | 1 => Ending::Close,
            _ => Ending::PowerCut,
        };
        let span = [20, 100, 600, 4000][env.below(4) as usize];
        env.note(format!("boot {number} with {there:?}, {ending:?}"));
        if ending != Ending::Close {
            let (r, e, operations) = (rt.clone(), env.clone(), env.below(span));
            drop(rt.spawn(async move {
                e.world.after_operations(operations).await;
                e.note(format!("{ending:?} after {operations} operations"));
                e.count("boots that ended at an operation", 1);
                e.world.power_cut();
                r.kill();
                std::future::pending::<()>().await;
            }));
        }
        let (this, r) = (self.clone(), rt.clone());
        let outcome = rt.block_on(async move { this.live(r, there, number == 0).await });
        rt.kill();
        env.count(if outcome.is_some() { "closes" } else { "power cuts" }, 1);
    }

    /// Devices that failed are well again. Some become as they were some boots before.
    fn between_boots(&self) {
        let env = &self.env;
        for file in self.failed.borrow_mut().drain(..) {
            env.world.revive(file);
        }
        if let Some(file) = &*self.moving.borrow() {
            env.world.revive(file.file);
            return;
        }
        if env.one_in(3) {
            let now = |d: &Device| (env.world.snapshot_disk(d.file.file), d.knows.clone());
            let state = self.devices.borrow().iter().map(now).collect();
            let mut saved = self.saved.borrow_mut();
            if saved.len() == MOST_SAVED {
                saved.remove(env.below(MOST_SAVED as u64) as usize);
            }
            saved.push(state);
        }
        let (copies, saved) = (env.settings.older_copies, self.saved.borrow());
        if copies == 0 || saved.is_empty() || !env.one_in(copies) {
            return;
        }
        let old = &saved[env.below(saved.len() as u64) as usize];
        let (all, only) = (env.one_in(2), env.below(old.len() as u64) as usize);
        for (i, device) in self.devices.borrow_mut().iter_mut().enumerate() {
            if all || i == only {
                env.note(format!(
                    "{} becomes as it was when it knew {:?}",
                    device.file.path, old[i].1
                ));
                env.count("devices that became as they were", 1);
                env.world.restore_disk(device.file.file, &old[i].0);
                device.knows = old[i].1.clone();
            }
        }
    }

    /// A device was replaced, and all has moved: which devices the pool has now.
    fn moved(&self, new: DeviceFile, id: Id) {
        let mut devices = self.devices.borrow_mut();
        let knows = DeviceKnowledge { one_of: vec![id], whole: true };
        devices.push(Device { file: new, knows });
        let files: Vec<DeviceFile> = devices.iter().map(|d| d.file.clone()).collect();
        let stay: Vec<String> =
            members(&self.env.world, &files).into_iter().map(|f| f.path).collect();
        devices.retain(|d| stay.contains(&d.file.path));
        if devices.len() != self.env.settings.devices.len() {
            self.env.fail(format!("a device was replaced, and these are of the pool: {stay:?}"));
        }
        // The saved states are of another list of devices.
        self.saved.borrow_mut().clear();
    }
}
