//! Devices that are needed fail while they are in use, and are well again after the boot: see
//! [`crate::failures`].

use std::rc::Rc;

use base::{BLOCK_U64, Duration, SECTOR};
use rt::{FileId, Rt};
use sim::{Fault, FaultRates, FlushLoss, Times};

use crate::content;
use crate::ending::end;
use crate::faults::Devices;
use crate::settings::{Ending, FailingDevices, FailureMode};

impl Devices {
    /// Devices that are needed fail at some operations of this boot, until it ends.
    pub async fn fail(self: Rc<Devices>, rt: Rt) {
        let env = &self.env;
        let Some((how, whose)) = env.settings.failures.needed else { return };
        if env.one_in(4) {
            return;
        }
        // One after the other, rarely: what follows the first is what counts.
        for _ in 0..1 + env.below(3) {
            let span = [30, 300, 3000][env.below(3) as usize];
            let operations = env.below(span);
            env.world.after_operations(operations).await;
            let files = self.those(whose);
            if files.is_empty() {
                continue;
            }
            env.note(format!("{files:?} fail: {how:?}"));
            env.failing.set(true);
            env.device_failed.set(true);
            env.model.borrow_mut().excuse_lag();
            env.spoilt.borrow_mut().note_end();
            for file in &files {
                self.fail_one(*file, how);
            }
            env.count(
                match how {
                    FailureMode::Flush(_) => "needed devices: flushes that failed once",
                    FailureMode::Flushes(_) => "needed devices: flushes that fail for good",
                    FailureMode::Once => "needed devices: one operation fails",
                    FailureMode::ButDone => {
                        "needed devices: one operation is done and reported as failed"
                    }
                    FailureMode::Away => "needed devices: away for a time",
                    FailureMode::Dies => "needed devices: died, to come back at the next boot",
                    FailureMode::Full => "needed devices: no space under them",
                    FailureMode::Range => "needed devices: a part takes no writes",
                    FailureMode::Hangs => "needed devices: hang until the process is killed",
                    FailureMode::PowerAlone => "needed devices: lost their power alone",
                },
                files.len() as u64,
            );
            if how == FailureMode::Full {
                env.host_full.set(true);
            }
            let for_a_time = match how {
                FailureMode::Away | FailureMode::Hangs | FailureMode::PowerAlone => true,
                FailureMode::Full => env.one_in(2),
                _ => false,
            };
            if for_a_time {
                let time = [100, 10_000, 2_000_000][env.below(3) as usize];
                rt.sleep(Duration::from_micros(1 + env.below(time))).await;
                if how == FailureMode::Hangs {
                    // A device that is needed and does not answer is only left by the process.
                    end(env, &rt, Ending::Kill).await;
                }
                self.heal(&files);
                env.note(format!("{files:?} are back"));
            }
            if how == FailureMode::PowerAlone {
                let fault = Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::Nothing };
                files.iter().for_each(|file| _ = env.world.inject(*file, fault));
            }
        }
    }

    fn fail_one(&self, file: FileId, how: FailureMode) {
        let fault = match how {
            FailureMode::Flush(loses) => Fault::FailFlush { times: Times::Next(1), loses },
            FailureMode::Flushes(loses) => Fault::FailFlush { times: Times::Always, loses },
            FailureMode::Once => Fault::FailNext,
            FailureMode::ButDone => Fault::FailNextButDo,
            FailureMode::Away => Fault::Unreachable,
            FailureMode::Dies => Fault::Dead,
            FailureMode::Full => Fault::Full(true),
            FailureMode::Range => self.unwritable_part(file),
            FailureMode::Hangs => Fault::StuckForever,
            FailureMode::PowerAlone => Fault::Dead,
        };
        self.env.world.inject(file, fault);
        self.failed.borrow_mut().push(file);
    }

    /// A part that takes no writes: some blocks or much of the device, near what was written last.
    fn unwritable_part(&self, file: FileId) -> Fault {
        let env = &self.env;
        let recent = env.world.recent_writes(file);
        let near = match recent.len() as u64 {
            0 => 0,
            n => recent[env.below(n) as usize].0,
        };
        let blocks = [1, 16, 4096][env.below(3) as usize];
        let offset = near.saturating_sub(env.below(blocks) * BLOCK_U64);
        Fault::FailWrites { offset, len: blocks * BLOCK_U64 }
    }

    fn those(&self, whose: FailingDevices) -> Vec<FileId> {
        let pool = self.files.iter().map(|f| f.file);
        let cache = self.cache().map(|c| c.file);
        match whose {
            // Always the same one: a mirror goes on without it, and has no other copy from then on.
            FailingDevices::OneOfPool => pool
                .skip((self.env.settings.seed % self.files.len() as u64) as usize)
                .take(1)
                .collect(),
            FailingDevices::AllOfPool => pool.collect(),
            FailingDevices::Cache => cache.into_iter().collect(),
            FailingDevices::All => pool.chain(cache).collect(),
        }
    }

    fn heal(&self, files: &[FileId]) {
        for file in files {
            self.env.world.revive(*file);
            self.env.world.inject(*file, Fault::TakeWrites);
            self.env.world.inject(*file, Fault::Full(false));
        }
        self.failed.borrow_mut().retain(|f| !files.contains(f));
    }

    /// Heals the devices that failed in the boot before; most of the time also those whose flushes
    /// failed for good, or that had no space or a range that takes no writes. Devices that were
    /// away are there again: a mirror that has gone on without one must not be left alone with it.
    pub fn heal_failed(&self, all: bool) {
        let files = self.failed.borrow().clone();
        let how = self.env.settings.failures.needed.map(|(how, _)| how);
        let for_good =
            matches!(how, Some(FailureMode::Flushes(_) | FailureMode::Full | FailureMode::Range));
        let stay = !all && for_good && self.env.one_in(4);
        if files.is_empty() || stay {
            return;
        }
        self.heal(&files);
        self.env.note(format!("{files:?} are well again"));
    }

    /// Some devices still fail, from the boot before.
    pub fn still_fail(&self) -> bool {
        !self.failed.borrow().is_empty()
    }

    /// There is still no space under some, from the boot before.
    pub fn still_full(&self) -> bool {
        self.still_fail()
            && matches!(self.env.settings.failures.needed, Some((FailureMode::Full, _)))
    }

    /// As `rates`, and reads fail by chance.
    pub fn with_flaky_reads(&self, rates: FaultRates) -> FaultRates {
        FaultRates { transient_read: self.env.settings.failures.flaky_reads, ..rates }
    }

    /// Only reads fail, by chance, on all devices.
    pub fn only_flaky_reads(&self) {
        let rates = self.with_flaky_reads(FaultRates::default());
        let cache = self.cache().map(|c| c.file);
        self.all()
            .iter()
            .map(|f| f.file)
            .chain(cache)
            .for_each(|f| self.env.world.set_rates(f, rates));
    }

    /// Sectors of blocks that were written to the cache a short time ago cannot be read any more.
    pub fn spoil_cache(&self) {
        let (env, most) = (&self.env, self.env.settings.failures.unreadable);
        let (Some(cache), true) = (self.cache(), most > 0) else { return };
        let recent = env.world.recent_writes(cache.file);
        for _ in 0..env.below(4 * most + 1) {
            let back = 1 + env.below(1 + env.below(recent.len() as u64));
            let Some((offset, len)) = recent.len().checked_sub(back as usize).map(|i| recent[i])
            else {
                continue;
            };
            let at = offset + env.below(len / SECTOR as u64) * SECTOR as u64;
            // A sector that holds no data of clients is another fault, with another outcome.
            let holds = env.world.contents(cache.file, at, SECTOR);
            if content::place_of(&holds).is_none() {
                continue;
            }
            env.note(format!("a sector of the cache's data cannot be read, at {at}"));
            env.count("faults: unreadable data of the cache", 1);
            env.world.inject(cache.file, Fault::ReadError { offset: at, len: SECTOR as u64 });
            env.spoilt.borrow_mut().insert(at, &holds);
            env.model.borrow_mut().excuse_lag();
        }
    }
}
