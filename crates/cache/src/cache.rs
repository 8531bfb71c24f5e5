//! An open cache: its flows, built one on the other, and the requests that it takes.

use std::rc::Rc;

use base::{BlockRange, Epoch, Lba, Result, Slice, SliceList, VolumeId};
use model::scrub::CacheScrubPart;
use pool::Pool;
use rt::sync::Permit;

use crate::checkpoint::checkpoint::Checkpointer;
use crate::core::Core;
use crate::health::fail::Failures;
use crate::health::writer_watch::WriterWatch;
use crate::io::direct::{DirectWriter, DropGuard};
use crate::io::journal_clock::JournalClock;
use crate::io::part_reader::PartReader;
use crate::io::parts::Patch;
use crate::io::pool_commits::PoolCommits;
use crate::io::promote::Promoter;
use crate::io::read::Reader;
use crate::io::volume_ends::VolumeEnds;
use crate::io::write::Writer;
use crate::scrub::Scrubber;
use crate::settings::Settings;
use crate::space::compact::Compactor;
use crate::space::contents::BucketContents;
use crate::space::evict::Evictor;
use crate::space::gc::Collector;
use crate::space::mover::Mover;
use crate::space::pacer::Pacer;
use crate::space::request_room::Room;
use crate::space::survivors::SurvivorMover;
use crate::space::throttle::Throttle;
use crate::transfer::block_part::BlockPart;
use crate::transfer::bucket_io::BucketIo;
use crate::transfer::journal_writer::JournalWriter;
use crate::writeback::all_kept::KeptBlocks;
use crate::writeback::detach_drain::{Drain, Drainer};
use crate::writeback::drain_gate::Change;
use crate::writeback::kept::Keeper;
use crate::writeback::pass::Carrier;
use crate::writeback::pass_runner::PassRunner;
use crate::writeback::run_carrier::RunCarrier;
use crate::writeback::staged::StagedCopies;
use crate::writeback::take_cut::CutTaker;

/// The flows of an open cache, in the order in which they are built: none knows one below it here.
pub(crate) struct Flows {
    pub core: Core,
    pub failures: Rc<Failures>,
    pub watch: Rc<WriterWatch>,
    pub journal: Rc<JournalWriter>,
    pub commits: Rc<PoolCommits>,
    pub room: Rc<Room>,
    pub pacer: Rc<Pacer>,
    pub throttle: Rc<Throttle>,
    pub checkpointer: Rc<Checkpointer>,
    pub promoter: Rc<Promoter>,
    pub reader: Rc<Reader>,
    pub cut_taker: Rc<CutTaker>,
    pub passes: Rc<PassRunner>,
    pub writer: Rc<Writer>,
    pub direct: Rc<DirectWriter>,
    pub drainer: Rc<Drainer>,
    pub ends: Rc<VolumeEnds>,
    pub compactor: Rc<Compactor>,
    pub survivors: Rc<SurvivorMover>,
    pub evictor: Rc<Evictor>,
    pub collector: Rc<Collector>,
    pub scrubber: Rc<Scrubber>,
    pub journal_clock: Rc<JournalClock>,
}

impl Flows {
    fn over(core: Core) -> Flows {
        let failures = Failures::new(&core);
        let watch = WriterWatch::new(&core, &failures);
        let bucket_io = BucketIo::new(&core, &watch);
        let journal = JournalWriter::new(&core, &failures, &watch);
        let commits = PoolCommits::new(&core, &journal);
        let room = Room::new(&core, &failures, &journal);
        let pacer = Pacer::new(&core);
        let throttle = Throttle::new(&core, &failures, &room, &pacer);
        let checkpointer = Checkpointer::new(&core, &failures, &watch, &journal, &room);
        let promoter = Promoter::new(&core, &bucket_io, &room);
        let part_reader = PartReader::new(&core, &bucket_io, &room, &promoter);
        let reader = Reader::new(&core, &failures, &bucket_io, &room, &promoter, &part_reader);
        let keeper = Keeper::new(&core, &failures, &room);
        let cut_taker = CutTaker::new(&core, &room);
        let staged = StagedCopies::new(&core);
        let runs = RunCarrier::new(&core, &failures, &bucket_io, &room, &keeper, &staged);
        let carrier = Carrier::new(&core, &failures, &journal, &pacer, &keeper, &cut_taker, &runs);
        let passes = PassRunner::new(&core, &carrier);
        let writer = Writer::new(&core, &failures, &bucket_io, &room, &throttle, &reader, &passes);
        let direct = DirectWriter::new(&core, &journal, &room, &promoter, &passes);
        let drainer = Drainer::new(&core, &passes);
        let ends = VolumeEnds::new(&core, &room);
        let mover = Mover::new(&core, &bucket_io, &room);
        let contents = BucketContents::new(&core);
        let compactor = Compactor::new(&core, &failures, &room, &mover, &contents);
        let survivors = SurvivorMover::new(&core, &failures, &watch, &room, &mover, &contents);
        let evictor = Evictor::new(&core, &failures, &journal, &room, &survivors);
        let collector = Collector::new(&core, &failures, &room, &mover);
        let scrubber = Scrubber::new(&core, &failures, &bucket_io, &reader);
        let journal_clock = JournalClock::new(&core, &failures, &journal);
        Flows {
            core,
            failures,
            watch,
            journal,
            commits,
            room,
            pacer,
            throttle,
            checkpointer,
            promoter,
            reader,
            cut_taker,
            passes,
            writer,
            direct,
            drainer,
            ends,
            compactor,
            survivors,
            evictor,
            collector,
            scrubber,
            journal_clock,
        }
    }
}

/// An open cache; clones are the same.
#[derive(Clone)]
pub struct Cache(Rc<Flows>);

impl Cache {
    /// The flows on a core. Nothing runs yet.
    pub(crate) fn over(core: Core) -> Cache {
        Cache(Rc::new(Flows::over(core)))
    }

    /// The core, on which the flows are built.
    pub(crate) fn core(&self) -> &Core {
        &self.0.core
    }

    /// The flows.
    pub(crate) fn flows(&self) -> &Flows {
        &self.0
    }

    /// The pool behind it.
    pub fn pool(&self) -> &Pool {
        self.0.core.pool()
    }

    /// A copy of the settings that hold now.
    pub fn current_settings(&self) -> Settings {
        self.0.core.current_settings()
    }

    /// The open epoch: what is written now belongs to the cut of this number.
    pub fn epoch(&self) -> Epoch {
        self.0.core.epoch()
    }

    /// True if the cache device has failed: what this cache alone has cannot be read, and the cache
    /// does not learn of further writes.
    pub fn has_failed(&self) -> bool {
        self.0.core.has_failed()
    }

    /// The pool goes on alone from now on, and says so with its next commit: the pool must have all
    /// that this cache had, and clients may ask for nothing meanwhile. The device is not waited
    /// for. Nothing is written to the cache any more, so whatever the pool changes, a crash before
    /// that commit leaves both as they are now.
    pub fn leave(&self) {
        self.0.failures.leave()
    }

    /// All that waits for the device of a cache that has [left](Cache::leave) fails at once: the
    /// device may hang.
    pub fn give_up_device(&self) {
        self.0.failures.give_up_device()
    }

    /// Writes whole blocks to the pool; with `keep` they are kept here too, as clean, when the pool
    /// has committed them.
    pub async fn write_direct(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: &Slice,
        keep: bool,
    ) -> Result<()> {
        self.0.direct.write_direct(volume, lba, data, keep).await
    }

    /// Unmaps blocks in the pool.
    pub async fn discard_direct(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        self.0.direct.discard_direct(volume, lba, end).await
    }

    /// Drops all that the cache has of a volume, which has nothing dirty here, while its requests
    /// go on. It is durable when this returns, and nothing of the volume is kept until the guard is
    /// dropped.
    pub async fn drop_volume(&self, volume: VolumeId) -> Result<DropGuard<'_>> {
        self.0.direct.drop_volume(volume).await
    }

    /// Lets `change` change `range` of a volume in the pool, when the cache has dropped what it has
    /// of that. To be called [between passes](Cache::between_passes).
    pub async fn change_direct(
        &self,
        volume: VolumeId,
        range: BlockRange,
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.0.direct.change_direct(volume, range, change).await
    }

    /// True if the pool has all of a volume.
    pub fn is_written_back(&self, volume: VolumeId) -> bool {
        self.0.core.levels().is_written_back(volume)
    }

    /// True if the cache has failed while it held nothing that the pool lacks, or is being detached
    /// and was closed: the pool goes on alone.
    pub fn is_aside(&self) -> bool {
        self.0.core.is_aside()
    }

    /// Makes all writes that completed before durable.
    pub async fn flush(&self) -> Result<()> {
        self.0.journal.flush().await
    }

    /// Writes parts of a block, one over the other, none other of which may be written meanwhile.
    /// `known`: what is known of the block, from the write before; returns what is known now.
    pub async fn write_parts(
        &self,
        volume: VolumeId,
        lba: Lba,
        patches: &[Patch],
        known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        self.0.writer.write_parts(volume, lba, patches, known).await
    }

    /// Reads whole blocks of `volume`; the slices are in order.
    pub async fn read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        self.0.reader.read(volume, lba, blocks).await
    }

    /// Brings what reads of `[lba, end)` have to look up into memory.
    pub async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        self.0.reader.prefetch(volume, lba, end).await
    }

    /// The allocated parts of `[lba, end)`, as `Pool::allocated` tells them: the pool's image with
    /// what is not published yet over it.
    pub async fn allocated(
        &self,
        volume: VolumeId,
        lba: Lba,
        end: Lba,
        max: usize,
    ) -> Result<(Vec<(Lba, u64)>, Lba)> {
        self.0.reader.allocated(volume, lba, end, max).await
    }

    /// Writes whole blocks. Every block is visible when this returns, and durable after the next
    /// [`Cache::flush`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        self.0.writer.write(volume, lba, data).await
    }

    /// Makes `[lba, end)` read as zeros.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        self.0.writer.discard(volume, lba, end).await
    }

    /// Waits for the end of the running pass, which is not paced any more; none begins while the
    /// permit is held, and no cut is taken. There may be cuts: see [`Cache::between_cuts`]. A
    /// request that is waited for while the permit is held may wait for a pass.
    pub async fn between_passes(&self) -> Permit {
        self.0.passes.between_passes().await
    }

    /// Forgets all blocks of a volume that was deleted, in slices. To be called [between
    /// passes](Cache::between_passes).
    pub async fn forget(&self, volume: VolumeId) -> Result<()> {
        self.0.ends.forget(volume).await
    }

    /// Forgets the blocks of a volume from `lba` on: it ends there now. To be called [between
    /// passes](Cache::between_passes).
    pub async fn forget_from(&self, volume: VolumeId, lba: Lba) -> Result<()> {
        self.0.ends.forget_from(volume, lba).await
    }

    /// The part of the newest scrub that is the cache's.
    pub fn scrub_part(&self) -> CacheScrubPart {
        self.0.scrubber.scrub_part()
    }

    /// Pauses the part, where the pool's has ended. Fails if it does not run.
    pub fn pause_scrub(&self) -> Result<()> {
        self.0.scrubber.pause_scrub()
    }

    /// Resumes the part, where the pool's has ended, at `rate` bytes a second if it is given. Fails
    /// if it is not paused.
    pub fn resume_scrub(&self, rate: Option<u64>) -> Result<()> {
        self.0.scrubber.resume_scrub(rate)
    }

    /// Cancels the part, where the pool's has ended. Fails if it is over.
    pub fn cancel_scrub(&self) -> Result<()> {
        self.0.scrubber.cancel_scrub()
    }

    /// Collects now, as fast as slices allow; a task that asks while a pass runs waits for a pass
    /// of its own.
    pub async fn collect(&self) -> Result<()> {
        self.0.collector.collect().await
    }

    /// Publishes everything that is dirty now, as fast as the pool takes it.
    pub async fn publish_all(&self) -> Result<()> {
        self.0.passes.publish_all().await
    }

    /// The same for a user, who is told if blocks are lost: of these nothing came to the pool.
    pub async fn write_all_back(&self) -> Result<()> {
        self.0.passes.write_all_back().await
    }

    /// Begins a client's change of a volume that writes back, which costs so much work; waits for
    /// a drain.
    pub async fn begin_change(&self, work: u64) -> Change {
        self.0.drainer.begin_change(work).await
    }

    /// Writes everything back, while clients go on. When it returns the pool has all of `volume`,
    /// or of all, and no client changes anything of a volume that writes back until the drain is
    /// dropped. What cannot be written back is left. `last` is waited for once, before the gate
    /// shuts. `go_on` is asked after each pass: its error ends this. There may be one drain at a
    /// time.
    pub async fn drain<T>(
        &self,
        volume: Option<VolumeId>,
        last: impl Future<Output = T>,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<(Drain, T)> {
        self.0.drainer.drain(volume, last, go_on).await
    }

    /// The blocks that are kept of each volume that is there.
    pub fn kept(&self) -> Vec<(VolumeId, KeptBlocks)> {
        self.0.core.levels().kept()
    }

    /// Fails if something is kept, of one volume or of all.
    pub fn check_kept(&self, volume: Option<VolumeId>) -> Result<()> {
        self.0.core.levels().check_kept(volume)
    }

    /// As [`Cache::between_passes`], and there is no cut while the permit is held. The size of a
    /// volume that writes back changes with this permit only. Otherwise a cut could have blocks
    /// from behind a new end, and a pass would carry them to the volume after it has grown again.
    /// This runs passes that are not paced until there is no cut, and returns the error of one that
    /// fails. If the cache has failed, cuts may be left: of these only one that the pool has
    /// already is still published.
    pub async fn between_cuts(&self) -> Result<Permit> {
        self.0.passes.between_cuts().await
    }
}
