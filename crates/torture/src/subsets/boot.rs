//! One boot of [`Subsets`]: a start, as [`super::history`] allows it, and what happens then.

use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, StorageError};
use model::device::DeviceState;
use model::moves::MovesState;
use pool::{CreateOptions, DeviceFile, Pool};
use rt::Rt;
use sim::{Fault, FlushLoss, Times};
use volume::Volumes;

use super::history::{AllowedOutcomes, DeviceKnowledge, Id};
use super::{BLOCKS, Subsets};
use crate::content::{self, SectorContent};
use crate::front::{Failure, Front};

const VOLUME: &str = "v";
/// The number of the volume in its content.
const NUMBER: u32 = 1;
/// Seconds until everything is at rest.
const REST_S: u64 = 1800;

/// A start that was served.
struct ServedStart {
    rt: Rt,
    pool: Pool,
    front: Front,
    there: Vec<usize>,
    /// The history that is going on.
    id: Id,
    /// Devices that have failed, or may have, and the history that each knows at least.
    left: Vec<(usize, Id)>,
}

impl Subsets {
    pub(super) async fn live(self: Rc<Subsets>, rt: Rt, there: Vec<usize>, first: bool) {
        let files = self.files(&there);
        if first {
            self.create(&rt, &files).await;
        }
        let Some(mut served) = self.start(&rt, files, there).await else { return };
        let rounds = self.env.below(12);
        let turn = self.env.below(12);
        for round in 0..rounds {
            self.work(&mut served).await;
            if round == turn {
                self.happen(&mut served).await;
            }
        }
        if self.env.one_in(2) || self.moving.borrow().is_some() {
            self.rest(&mut served).await;
        }
        self.end(served).await;
    }

    fn files(&self, there: &[usize]) -> Vec<DeviceFile> {
        let devices = self.devices.borrow();
        let moving = self.moving.borrow().clone();
        there.iter().map(|d| devices[*d].file.clone()).chain(moving).collect()
    }

    async fn create(&self, rt: &Rt, files: &[DeviceFile]) {
        let env = &self.env;
        let options = CreateOptions {
            name: "torture".to_owned(),
            copies: env.settings.copies,
            group_bytes: Some(env.settings.group_bytes),
        };
        let ids: Vec<[u8; 16]> = (0..=files.len()).map(|_| env.id()).collect();
        if let Err(e) = pool::create(rt, files, &options, &ids).await {
            env.fail(format!("the pool cannot be created: {e}"));
        }
        let opened = Pool::open(rt, files.to_vec(), env.settings.pool.clone()).await;
        let made = async {
            let (pool, _) = opened?;
            pool.create_volume(VOLUME, BLOCKS as u64 * BLOCK_U64, 4096).await?;
            pool.close().await
        };
        if let Err(e) = made.await {
            env.fail(format!("the volume cannot be made: {e}"));
        }
    }

    /// Opens the pool on these devices, if that may be, and compares what it holds.
    async fn start(
        &self,
        rt: &Rt,
        files: Vec<DeviceFile>,
        there: Vec<usize>,
    ) -> Option<ServedStart> {
        let env = &self.env;
        let before: Vec<DeviceKnowledge> = {
            let devices = self.devices.borrow();
            there.iter().map(|d| devices[*d].knows.clone()).collect()
        };
        let away = self.devices.borrow().len() - there.len();
        let knows: Vec<&DeviceKnowledge> = before.iter().collect();
        let expected = self.histories.borrow().expected(&knows, away, self.spare());
        env.note(format!("they know {before:?}: {expected:?}"));
        // A crash may leave any of them in the history that begins now.
        let id = (!expected.serve.is_empty())
            .then(|| self.histories.borrow_mut().go_on(expected.serve.iter().copied().collect()));
        for (d, was) in there.iter().zip(&before) {
            let mut devices = self.devices.borrow_mut();
            devices[*d].knows.one_of.extend(id);
            devices[*d].knows.whole &= was.one_of.len() == 1;
        }
        let contents = |files: &[DeviceFile]| -> Vec<_> {
            files.iter().map(|f| env.world.contents(f.file, 0, 1 << 20)).collect()
        };
        let held = contents(&files);
        let outcome = Pool::open(rt, files.clone(), env.settings.pool.clone()).await;
        let (pool, warnings) = match outcome {
            Ok(opened) => opened,
            Err(e) => {
                self.refused(&expected, &e);
                if contents(&files) != held {
                    env.fail(format!("a start that was refused has written: {e}"));
                }
                for (d, was) in there.iter().zip(before) {
                    self.devices.borrow_mut()[*d].knows = was;
                }
                return None;
            }
        };
        warnings.iter().for_each(|w| env.note(format!("open warns: {w}")));
        let Some(id) = id else {
            env.fail(format!("devices that went apart were served together: {before:?}"))
        };
        env.count("starts by some of the devices", u64::from(away > 0));
        *env.pool.borrow_mut() = Some(pool.clone());
        let volumes = Volumes::with_cache(&pool, None);
        let Some(volume) = volumes.open(VOLUME) else { env.fail("the volume is gone") };
        let front = Front::Direct(volume, rt.clone());
        let served = ServedStart { rt: rt.clone(), pool, front, there, id, left: Vec::new() };
        let found = match self.read_all(&served).await {
            Ok(found) => found,
            Err(e) => env.fail(format!("a read failed: {}", e.text)),
        };
        self.compare(&served, &before, &expected, found);
        Some(served)
    }

    fn refused(&self, expected: &AllowedOutcomes, e: &StorageError) {
        let env = &self.env;
        env.note(format!("refused: {:?}: {e}", e.kind));
        env.count("starts refused", 1);
        let right = matches!(
            e.kind,
            ErrorKind::Missing | ErrorKind::Damaged | ErrorKind::SplitBrain | ErrorKind::Foreign
        );
        if !expected.refuse || !right {
            env.fail(format!(
                "a start was refused, and should serve {expected:?}: {:?}: {e}",
                e.kind
            ));
        }
        env.count("starts refused that must be", u64::from(expected.serve.is_empty()));
    }

    /// Fails if the volume holds what none of the histories allows. From now on the devices that
    /// are there know the history that goes on.
    fn compare(
        &self,
        served: &ServedStart,
        before: &[DeviceKnowledge],
        expected: &AllowedOutcomes,
        found: Vec<u64>,
    ) {
        let env = &self.env;
        let outcome = self.histories.borrow_mut().found(served.id, &found);
        if let Err((block, text)) = outcome {
            env.fail(format!(
                "block {block} holds write {}: {text}; the start had {before:?}, and may serve \
                 {expected:?}",
                found[block]
            ));
        }
        let parents = self.histories.borrow().parents(served.id).to_vec();
        for (d, was) in served.there.iter().zip(before) {
            let knows = &mut self.devices.borrow_mut()[*d].knows;
            // Of several that it may know it is at one, and the others may be at another: then it
            // is only brought up to date.
            knows.whole = was.whole && was.one_of == parents && parents.len() == 1;
            if knows.whole {
                knows.one_of = vec![served.id];
            }
        }
        env.count("starts compared", 1);
    }

    async fn read_all(&self, served: &ServedStart) -> Result<Vec<u64>, Failure> {
        let env = &self.env;
        let bytes = served.front.read(0, (BLOCKS * BLOCK) as u64).await?;
        let number = |(i, block): (usize, &[u8])| {
            let sectors = block.chunks_exact(base::SECTOR);
            let first = (i * BLOCK / base::SECTOR) as u64;
            let all: Vec<SectorContent> =
                (first..).zip(sectors).map(|(n, s)| content::identify(s, NUMBER, n)).collect();
            match &all[0] {
                found if all.iter().any(|f| f != found) => {
                    env.fail(format!("block {i} is a mixture: {all:?}"))
                }
                SectorContent::Zero => 0,
                SectorContent::Write(number) => *number,
                SectorContent::Wrong(text) => env.fail(format!("block {i} holds {text}")),
            }
        };
        Ok(bytes.chunks_exact(BLOCK).enumerate().map(number).collect())
    }

    /// Some writes, a flush most of the time, and a read of all.
    async fn work(&self, served: &mut ServedStart) {
        let env = &self.env;
        self.histories.borrow_mut().change(served.id);
        for _ in 0..1 + env.below(12) {
            let (block, number) = (env.below(BLOCKS as u64) as usize, self.writes.get() + 1);
            self.writes.set(number);
            for id in served.left.iter().map(|l| l.1).chain([served.id]) {
                self.histories.borrow_mut().content(id).write(block, number);
            }
            let mut data = served.rt.bufs().take(BLOCK);
            content::fill(&mut data, NUMBER, (block * BLOCK / base::SECTOR) as u64, number);
            let at = (block * BLOCK) as u64;
            self.must(served.front.write(at, data.freeze(), false).await, "a write");
        }
        if !env.one_in(3) {
            self.flush(served).await;
        }
        if env.one_in(3) {
            let found = self.read_all(served).await;
            let found = found.unwrap_or_else(|e| env.fail(format!("a read failed: {}", e.text)));
            for (block, number) in found.into_iter().enumerate() {
                let newest = self.histories.borrow_mut().content(served.id).newest(block);
                if number != newest {
                    env.fail(format!("block {block} holds write {number}, not {newest}"));
                }
            }
        }
        served.rt.sleep(Duration::from_micros(env.below(20_000))).await;
    }

    async fn flush(&self, served: &ServedStart) {
        self.must(served.front.flush().await, "a flush");
        self.histories.borrow_mut().flushed(served.id);
        self.env.note("flushed");
    }

    fn must(&self, outcome: Result<(), Failure>, what: &str) {
        if let Err(e) = outcome {
            self.env.fail(format!("{what} failed: {}", e.text));
        }
    }

    /// Something happens to a device that is not needed.
    async fn happen(&self, served: &mut ServedStart) {
        let env = &self.env;
        let devices = self.devices.borrow().len();
        let all_whole = served.there.iter().all(|d| self.devices.borrow()[*d].knows.whole);
        let is_moving = self.moving.borrow().is_some();
        if served.there.len() < devices || !all_whole || is_moving {
            return;
        }
        if env.one_in(2) {
            return self.replace(served).await;
        }
        let d = served.there[env.below(served.there.len() as u64) as usize];
        let file = self.devices.borrow()[d].file.clone();
        let fault = self.fault();
        env.note(format!("{} fails: {fault:?}", file.path));
        env.count("devices that failed", 1);
        self.leaves(served, d);
        env.world.inject(file.file, fault);
        self.failed.borrow_mut().push(file.file);
        for _ in 0..env.below(4) {
            self.work(served).await;
        }
        if env.one_in(2) {
            env.note(format!("{} is well again", file.path));
            env.world.revive(file.file);
        }
    }

    fn fault(&self) -> Fault {
        let env = &self.env;
        let loses = [FlushLoss::Part, FlushLoss::All, FlushLoss::All, FlushLoss::Nothing]
            [env.below(4) as usize];
        match env.below(5) {
            0 => Fault::Dead,
            1 => Fault::Unreachable,
            2 => Fault::FailNext,
            _ => Fault::FailFlush { times: Times::Next(1), loses },
        }
    }

    /// A device may be left behind from now on: it knows the history so far, and some of what
    /// comes.
    fn leaves(&self, served: &mut ServedStart, d: usize) {
        let before = served.id;
        served.id = self.histories.borrow_mut().go_on(vec![before]);
        self.histories.borrow_mut().change(served.id);
        served.left.push((d, before));
        for there in &served.there {
            let knows = &mut self.devices.borrow_mut()[*there].knows;
            knows.one_of = vec![served.id];
            if *there == d {
                *knows = DeviceKnowledge { one_of: vec![before, served.id], whole: false };
            }
        }
    }

    /// A device is replaced under load. The new one fails at some operation of that, or nothing
    /// does.
    async fn replace(&self, served: &mut ServedStart) {
        let env = &self.env;
        let d = served.there[env.below(served.there.len() as u64) as usize];
        let old = self.devices.borrow()[d].file.path.clone();
        let model = env.settings.devices.iter().max_by_key(|m| m.size_bytes);
        let Some(model) = model.cloned() else { return };
        let (path, size_bytes) = (format!("disk{}", self.writes.get() + 10), model.size_bytes);
        let file = DeviceFile { path, file: env.world.add_disk(model), size_bytes };
        env.note(format!("{old} is replaced by {}", file.path));
        env.count("devices replaced", 1);
        *self.moving.borrow_mut() = Some(file.clone());
        if let Err(e) = served.pool.moves().replace_device(&old, file.clone(), env.id()).await {
            env.fail(format!("{old} cannot be replaced: {:?}: {e}", e.kind));
        }
        if env.one_in(4) {
            return;
        }
        // The moves that follow are short: each of them flushes the new device some times.
        let (world, fault) = (env.world.clone(), self.fault());
        let writes = env.below([12, 60, 300][env.below(3) as usize]);
        let (e, rt, calm) = (env.clone(), served.rt.clone(), self.calm.clone());
        drop(served.rt.spawn(async move {
            world.after_writes(file.file, writes).await;
            if calm.get() {
                return;
            }
            e.note(format!("{} fails: {fault:?}", file.path));
            e.count("devices that failed while chunks moved to them", 1);
            world.inject(file.file, fault);
            rt.sleep(Duration::from_micros(e.below(2_000_000))).await;
            world.revive(file.file);
            e.note(format!("{} is well again", file.path));
        }));
    }

    /// All devices that are there come into use, with all that they lack.
    async fn rest(&self, served: &mut ServedStart) {
        let env = &self.env;
        let failed = self.failed.borrow().clone();
        failed.iter().for_each(|f| env.world.revive(*f));
        // A device that chunks move to may fail until all have moved.
        self.wait_for_rest(served).await;
        self.calm.set(true);
        let moving = self.moving.borrow().as_ref().map(|f| f.file);
        for file in failed.into_iter().chain(moving) {
            env.world.disarm(file);
            env.world.revive(file);
        }
        // No fault begins from now on. The engine sees by a flush what has struck already: a device
        // that died for a moment, say, which has lost what was not flushed.
        self.work(served).await;
        self.flush(served).await;
        self.wait_for_rest(served).await;
        self.at_rest(served).await;
    }

    /// Waits until all devices that are there are in use, and nothing moves.
    async fn wait_for_rest(&self, served: &ServedStart) {
        for _ in 0..REST_S {
            let status = served.pool.status();
            let rests = status.pool.devices.iter().all(|d| match d.state {
                DeviceState::Online => true,
                DeviceState::Missing => !self.is_there(served, &d.path),
                _ => false,
            });
            if rests && served.pool.moves().moves_status().state == MovesState::None {
                return;
            }
            served.rt.sleep(Duration::from_secs(1)).await;
        }
        let states: Vec<_> =
            served.pool.status().pool.devices.into_iter().map(|d| (d.path, d.state)).collect();
        self.env.fail(format!("no rest: {states:?}, {:?}", served.pool.moves().moves_status()));
    }

    fn is_there(&self, served: &ServedStart, path: &str) -> bool {
        let devices = self.devices.borrow();
        served.there.iter().any(|d| devices[*d].file.path == path)
    }

    /// All devices that are there have everything.
    async fn at_rest(&self, served: &mut ServedStart) {
        self.env.note("at rest");
        self.env.count("boots that came to rest", 1);
        self.flush(served).await;
        served.left.clear();
        for d in &served.there {
            self.devices.borrow_mut()[*d].knows =
                DeviceKnowledge { one_of: vec![served.id], whole: true };
        }
        let moved = self.moving.borrow_mut().take();
        if let Some(file) = moved {
            self.moved(file, served.id);
            served.there = (0..self.devices.borrow().len()).collect();
            self.env.count("devices that were replaced", 1);
        }
    }

    async fn end(&self, served: ServedStart) {
        match served.pool.close().await {
            Ok(()) => self.histories.borrow_mut().flushed(served.id),
            Err(e) => self.env.fail(format!("the pool cannot be closed: {e}")),
        }
    }
}
