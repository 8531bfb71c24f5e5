//! An open pool: its flows, built one on the other, and what it does for others.

use std::rc::Rc;

use base::{
    BLOCK_U64, Crc, Generation, Lba, OpenId, Result, SharedPlace, Slice, SliceList, StorageError,
    VolumeId,
};
use format::page::{CacheMode, VolumeLimit};
use queue::Class;
use rt::Rt;

use crate::commit::commit_flow::CommitRun;
use crate::commit::commit_requests::Commits;
use crate::commit::deadlists::Deadlists;
use crate::commit::pages::PageWriter;
use crate::commit::superblocks::Superblocks;
use crate::core::Core;
use crate::io::Blocks;
use crate::io::read::Reader;
use crate::io::read_ahead::ReadAhead;
use crate::io::taken_runs::RunWriter;
use crate::io::wait_for_room::PoolRoom;
use crate::io::write::Writer;
use crate::moves::Moves;
use crate::moves::admit::MoveTerms;
use crate::moves::copy::ChunkCopier;
use crate::moves::join::Joiner;
use crate::moves::last_word::RemovalNotifier;
use crate::moves::mover::Mover;
use crate::moves::place_keeper::PlaceKeeper;
use crate::moves::reattach::Reattacher;
use crate::moves::resync::Resyncer;
use crate::moves::spares::Spares;
use crate::open::recover::Recovery;
use crate::open::superblock_sync::SuperblockSync;
use crate::scrub::Scrubs;
use crate::scrub::load::ScrubLoader;
use crate::scrub::lost_again::LostBlockPruner;
use crate::scrub::scrub_flow::Scrubber;
use crate::scrub::tables::TableScrub;
use crate::scrub::trees::TreeScrub;
use crate::scrub::verify::Verifier;
use crate::settings::Settings;
use crate::snapshots::Snapshots;
use crate::space::Reservation;
use crate::state::State;
use crate::transfer::copies::CopyReader;
use crate::transfer::heal::Healer;
use crate::transfer::load::NodeLoader;
use crate::transfer::node_writer::NodeWrites;
use crate::transfer::sums_ahead::SumReadAhead;
use crate::transfer::wait_for_reads::ReadDrain;
use crate::transfer::write_copies::CopyWriter;
use crate::transfer::writer_watch::WriterWatch;
use crate::volumes::{VolumeInfo, Volumes};
use crate::writeback::Pass;
use crate::writeback::cache_link::CacheLink;
use crate::writeback::pass::Passes;
use crate::writeback::spill::Spiller;

/// The flows of an open pool, in the order in which they are built: none knows one below it here.
pub(crate) struct Flows {
    pub core: Core,
    pub watch: Rc<WriterWatch>,
    pub copies: Rc<CopyReader>,
    #[cfg(test)]
    pub loader: Rc<NodeLoader>,
    pub commits: Rc<Commits>,
    pub run: Rc<CommitRun>,
    pub room: Rc<PoolRoom>,
    pub writer: Rc<Writer>,
    pub reader: Rc<Reader>,
    pub volumes: Rc<Volumes>,
    pub snapshots: Rc<Snapshots>,
    pub cache_link: Rc<CacheLink>,
    pub passes: Rc<Passes>,
    pub scrubs: Rc<Scrubs>,
    pub scrubber: Rc<Scrubber>,
    #[cfg(test)]
    pub copier: Rc<ChunkCopier>,
    pub moves: Rc<Moves>,
    pub returns: Rc<Reattacher>,
    pub spares: Rc<Spares>,
    pub mover: Rc<Mover>,
    pub superblock_sync: Rc<SuperblockSync>,
    pub recovery: Rc<Recovery>,
    pub places: Rc<PlaceKeeper>,
}

impl Flows {
    fn over(core: Core) -> Flows {
        let watch = WriterWatch::new(&core);
        let copy_writer = CopyWriter::new(&core, &watch);
        let healer = Healer::new(&core, &watch, &copy_writer);
        let copies = CopyReader::new(&core, &healer);
        let loader = NodeLoader::new(&core, &watch, &copies);
        let nodes = NodeWrites::new(&core, &copy_writer, &loader);
        let reads = ReadDrain::new(&core);
        let commits = Commits::new(&core);
        let pages = PageWriter::new(&core, &copy_writer);
        let superblocks = Superblocks::new(&core, &watch);
        let deadlists = Deadlists::new(&core, &copies, &loader, &nodes);
        let run = CommitRun::new(
            &core,
            &watch,
            &loader,
            &commits,
            &pages,
            &superblocks,
            &nodes,
            &deadlists,
        );
        let sums = SumReadAhead::new(&core, &loader);
        let room = PoolRoom::new(&core, &loader, &reads, &commits, &sums);
        let runs = RunWriter::new(&core, &copy_writer);
        let writer = Writer::new(&core, &loader, &room, &runs);
        let ahead = ReadAhead::new(&core, &copies, &loader);
        let reader = Reader::new(&core, &copies, &loader, &ahead);
        let volumes = Volumes::new(&core, &commits, &writer);
        let snapshots = Snapshots::new(&core, &commits);
        let cache_link = CacheLink::new(&core, &commits, &volumes);
        let spiller = Spiller::new(&core, &commits, &nodes);
        let passes = Passes::new(&core, &loader, &commits, &sums, &room, &runs, &volumes, &spiller);
        let verifier = Verifier::new(&core, &healer, &copies);
        let lost = LostBlockPruner::new(&core, &loader, &reader);
        let scrubs = Scrubs::new(&core, &commits, &lost);
        let scrub_loader = ScrubLoader::new(&core, &copies, &loader);
        let tables = TableScrub::new(&core, &loader, &commits, &verifier, &scrub_loader);
        let trees = TreeScrub::new(&core, &loader, &scrub_loader);
        let scrubber = Scrubber::new(
            &core,
            &loader,
            &commits,
            &lost,
            &scrubs,
            &scrub_loader,
            &tables,
            &trees,
            &verifier,
        );
        let copier = ChunkCopier::new(&core, &copy_writer, &copies, &loader);
        let terms = MoveTerms::new(&core);
        let joiner = Joiner::new(&core, &watch, &commits);
        let last_words = RemovalNotifier::new(&core, &watch, &commits);
        let resyncer = Resyncer::new(&core, &reads, &commits, &copier);
        let moves = Moves::new(&core, &commits, &terms, &joiner);
        let returns = Reattacher::new(&core, &reads, &commits, &joiner, &last_words, &moves);
        let spares = Spares::new(&core, &moves);
        let mover =
            Mover::new(&core, &reads, &commits, &room, &copier, &terms, &joiner, &resyncer, &moves);
        let superblock_sync = SuperblockSync::new(&core, &copy_writer, &superblocks);
        let recovery = Recovery::new(&core, &healer, &copies, &loader, &cache_link);
        let places = PlaceKeeper::new(&core, &watch);
        Flows {
            core,
            watch,
            copies,
            #[cfg(test)]
            loader,
            commits,
            run,
            room,
            writer,
            reader,
            volumes,
            snapshots,
            cache_link,
            passes,
            scrubs,
            scrubber,
            #[cfg(test)]
            copier,
            moves,
            returns,
            spares,
            mover,
            superblock_sync,
            recovery,
            places,
        }
    }
}

/// An open pool; clones are the same pool.
#[derive(Clone)]
pub struct Pool(Rc<Flows>);

impl Pool {
    /// The flows over a state. Nothing runs yet.
    pub(crate) fn over(rt: &Rt, settings: Settings, state: State) -> Pool {
        Pool(Rc::new(Flows::over(Core::over(rt, settings, state))))
    }

    /// The core, on which the flows are built.
    pub(crate) fn core(&self) -> &Core {
        &self.0.core
    }

    /// The flows.
    pub(crate) fn flows(&self) -> &Flows {
        &self.0
    }

    /// Commands that add, change and remove devices.
    pub fn moves(&self) -> &Rc<Moves> {
        &self.0.moves
    }

    /// Commands that take devices out of use, and back.
    pub fn returns(&self) -> &Rc<Reattacher> {
        &self.0.returns
    }

    /// Commands to snapshots.
    pub fn snapshots(&self) -> &Rc<Snapshots> {
        &self.0.snapshots
    }

    /// Commands to spares.
    pub fn spares(&self) -> &Rc<Spares> {
        &self.0.spares
    }

    /// The record of where the devices are.
    pub fn places(&self) -> &Rc<PlaceKeeper> {
        &self.0.places
    }

    /// Commands to a scrub.
    pub fn scrubs(&self) -> &Rc<Scrubs> {
        &self.0.scrubs
    }

    /// The contract with the cache in front.
    pub fn cache_link(&self) -> &Rc<CacheLink> {
        &self.0.cache_link
    }

    /// Bytes that data can still take, about.
    pub fn available_bytes(&self) -> u64 {
        let st = self.0.core.state();
        st.space.room().left_for_data(&st.devices, &st.demand()) * BLOCK_U64
    }

    /// Bytes that data can come to take once all that is being given back is free, about: a request
    /// for more finds no room, however long it waits. Where there are snapshots, it is not known
    /// what they alone have: then what is free now.
    pub fn attainable_bytes(&self) -> u64 {
        if self.snapshots().any() {
            return self.available_bytes();
        }
        let st = self.0.core.state();
        let live = st.forest.volumes().filter(|v| v.is_live());
        let live = live.map(|v| v.record().allocated_blocks).sum();
        st.space.room().attainable(&st.devices, live) * BLOCK_U64
    }

    /// The place where the host keeps memory that outlives the process, if this pool uses it.
    pub fn host_place(&self) -> Option<SharedPlace> {
        self.0.core.host_place()
    }

    /// True if changes were entered that the last incarnation had answered and not made durable.
    pub fn has_recovered(&self) -> bool {
        self.0.core.has_recovered()
    }

    /// Why what is answered does not outlive the process, though it should.
    pub fn host_log_lost(&self) -> Option<String> {
        self.0.core.host_log_lost()
    }

    /// Logs and records why answered changes do not outlive the process, though they should.
    pub fn keeps_no_answers(&self, why: &str) {
        self.0.core.keeps_no_answers(why)
    }

    /// The clean keys of the attached cache do not count: it does not know of all that was dropped
    /// from its index. The next commit says so.
    pub fn void_clean_keys(&self) {
        self.0.core.void_clean_keys()
    }

    /// The runtime that it is on.
    pub fn rt(&self) -> &Rt {
        self.0.core.rt()
    }

    /// The pool's uuid.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.core.uuid()
    }

    /// The buffers of the shard.
    pub fn bufs(&self) -> &base::BufPool {
        self.0.core.bufs()
    }

    /// The time as of the last turn of the runtime.
    pub fn now(&self) -> base::Instant {
        self.0.core.now()
    }

    /// A copy of the settings that hold now.
    pub fn current_settings(&self) -> Settings {
        self.0.core.current_settings()
    }

    /// Says whether clients wait for what the write-back pass does, or will soon. If not, its
    /// writes are of the background on the pool's devices.
    pub fn hurry_pass(&self, hurries: bool) {
        self.0.core.hurry_pass(hurries)
    }

    /// True once [`Pool::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.core.is_closed()
    }

    /// True if no commit will succeed any more: nothing but reads goes on.
    pub fn has_ended(&self) -> bool {
        self.0.core.has_ended()
    }

    /// A view of `len` zero bytes, at most as many as one step reads, which takes no memory of its
    /// own.
    pub fn zero_block(&self, len: usize) -> Slice {
        self.0.core.zero_block(len)
    }

    /// The live volumes, in the order of their numbers.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.0.volumes.volumes()
    }

    /// A live volume by name.
    pub fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.0.volumes.find_volume(name)
    }

    /// A live volume by number.
    pub fn volume(&self, id: VolumeId) -> Option<VolumeInfo> {
        self.0.volumes.volume(id)
    }

    /// The name of a volume, for messages; its number, if it has none any more.
    pub fn volume_name(&self, id: VolumeId) -> String {
        self.0.core.volume_name(id)
    }

    /// The size of a live volume in bytes.
    pub fn volume_size(&self, id: VolumeId) -> Option<u64> {
        self.0.volumes.volume_size(id)
    }

    /// Makes a volume of `size` bytes with sectors of 512 or 4096 bytes; durable when it returns.
    pub async fn create_volume(&self, name: &str, size: u64, sector: u32) -> Result<VolumeId> {
        self.0.volumes.create_volume(name, size, sector).await
    }

    /// Changes a volume's size; durable when it returns. What a shrink cuts off is freed, and reads
    /// as zeros if the volume grows again; for that, where the new end is inside a block, `last` is
    /// that block with zeros behind the end. The caller keeps others from writing behind the end.
    pub async fn resize_volume(&self, id: VolumeId, size: u64, last: Option<Slice>) -> Result<()> {
        self.0.volumes.resize_volume(id, size, last).await
    }

    /// Notes what a cache does for a volume; durable when it returns.
    pub async fn set_cache_mode(&self, id: VolumeId, mode: CacheMode) -> Result<()> {
        self.0.volumes.set_cache_mode(id, mode).await
    }

    /// Notes how much clients may ask of a volume; durable with the next commit. The pool
    /// does not enforce the limit. The layer that serves clients does.
    pub fn note_limit(&self, id: VolumeId, limit: Option<VolumeLimit>) -> Result<()> {
        self.0.volumes.note_limit(id, limit)
    }

    /// Gives a volume another name; durable when it returns. Clients that have it open keep it.
    /// Errors: `Exists`; `Invalid` for a name that cannot be.
    pub async fn rename_volume(&self, id: VolumeId, name: &str) -> Result<()> {
        self.0.volumes.rename_volume(id, name).await
    }

    /// Lets clients change a volume, or not; durable when it returns. The pool does
    /// not enforce it. The layer that serves clients does.
    pub async fn set_read_only(&self, id: VolumeId, read_only: bool) -> Result<()> {
        self.0.volumes.set_read_only(id, read_only).await
    }

    /// Whether clients may not change a volume. One that was deleted has no such rule.
    pub fn is_read_only(&self, id: VolumeId) -> bool {
        self.0.volumes.is_read_only(id)
    }

    /// The newest commit that has changed, or will change, what a volume holds. What was read from
    /// it is durable in the pool when that is.
    pub fn edited(&self, id: VolumeId) -> Generation {
        self.0.volumes.edited(id)
    }

    /// Deletes a volume, and its staging volumes: it is gone, durably, when this returns; its
    /// blocks are freed in the background.
    pub async fn delete_volume(&self, id: VolumeId) -> Result<()> {
        self.0.volumes.delete_volume(id).await
    }

    /// Makes everything durable that had completed before the call. Calls at the same time share a
    /// commit.
    pub async fn commit(&self) -> Result<()> {
        self.0.commits.commit().await
    }

    /// The generation of the last durable commit.
    pub fn committed(&self) -> Generation {
        self.0.core.committed()
    }

    /// Waits for the end of the next commit, well or not.
    pub fn commit_ended(&self) -> impl Future<Output = ()> + use<> {
        self.0.core.commit_ended()
    }

    /// Commits and ends the background tasks. The pool must not be used afterwards.
    pub async fn close(&self) -> Result<()> {
        self.0.commits.close().await
    }

    /// Reads `blocks` blocks of `volume` from `lba` on; what was never written is zeros. The slices
    /// are in order and whole blocks each.
    pub async fn read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        self.0.reader.read(volume, lba, blocks).await
    }

    /// As [`Pool::read`], for requests of this class.
    pub async fn read_for(
        &self,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<SliceList> {
        self.0.reader.read_for(class, volume, lba, blocks).await
    }

    /// As [`Pool::read`], and tells what was never written. That is known from the look at the
    /// mapping, and costs nothing more.
    pub async fn read_with_holes(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<Blocks> {
        self.0.reader.read_with_holes(volume, lba, blocks).await
    }

    /// Loads the nodes that reads of `[lba, end)` will need.
    pub async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        self.0.reader.prefetch(volume, lba, end).await
    }

    /// The checksums that the pool has for the blocks of `[lba, lba + blocks)`; `None` where
    /// nothing is mapped. No data is read.
    pub async fn checksums(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Vec<Option<Crc>>> {
        self.0.reader.checksums(volume, lba, blocks).await
    }

    /// The allocated parts of `[lba, end)`: at most `max` of (first block, blocks), in order,
    /// neighbours joined; and up to where they are all of them.
    pub async fn allocated(
        &self,
        volume: VolumeId,
        lba: Lba,
        end: Lba,
        max: usize,
    ) -> Result<(Vec<(Lba, u64)>, Lba)> {
        self.0.reader.allocated(volume, lba, end, max).await
    }

    /// As [`Pool::reserve`]. Where only changes that are under way leave no room, it waits until
    /// these have ended, and direct writes begin no others meanwhile. Where a commit has freed
    /// blocks that reads are still about, it waits once until they are available.
    pub async fn reserve_beside_changes(&self, blocks: u64) -> Result<Reservation> {
        self.0.room.reserve_beside_changes(blocks).await
    }

    /// Writes `data`, whole blocks, to `volume` from `lba` on. Every block is visible to reads that
    /// begin when this returns, and durable after the next [`Pool::commit`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        self.0.writer.write(volume, lba, data).await
    }

    /// Unmaps `[lba, end)` of `volume`, in slices; it reads as zeros then.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        self.0.writer.discard(volume, lba, end).await
    }

    /// The name of this open of the pool: a random number that no other open has, of this pool or
    /// of a copy of it. All superblocks that this open writes have it, from its first commit on.
    pub fn opened(&self) -> OpenId {
        self.0.core.opened()
    }

    /// The open that wrote the newest superblock. Of a pool that is only [ready](Pool::ready): the
    /// last open before this one; 0 if that was of a version before opens had names.
    pub fn last_opened(&self) -> OpenId {
        self.0.core.last_opened()
    }

    /// True once it takes writes: [`crate::ReadyPool::open`] was called.
    pub fn is_open(&self) -> bool {
        self.0.core.is_open()
    }

    /// Fails if a device in use answers nothing. Then what could not be read just now is not known
    /// to be bad.
    pub async fn all_answer(&self, class: Class) -> Result<()> {
        self.0.copies.all_answer(class).await
    }

    /// Another process that writes to the pool as well, if one was found: nothing may be written
    /// any more, not to a cache of the pool either.
    pub fn other_writer(&self) -> Option<StorageError> {
        self.0.watch.other_writer()
    }

    /// Ends the pool's standing, as another process writes to its cache.
    pub fn end_for_other_writer(&self, why: StorageError) {
        self.0.watch.end_for_other_writer(why)
    }

    /// Sets room aside for `blocks` blocks that write-back will write.
    pub fn reserve(&self, blocks: u64) -> Result<Reservation> {
        self.0.core.reserve(blocks)
    }

    /// Sets room aside that had been set aside before the pool was opened. Direct writes left it
    /// free then, so nothing is checked.
    pub fn take_over(&self, blocks: u64) -> Reservation {
        self.0.core.take_over(blocks)
    }

    /// Opens the write-back pass; there is one at a time. It takes all of `room`, and writes no
    /// more blocks than that.
    pub fn begin_pass(&self, room: &mut Reservation) -> Result<Pass> {
        self.0.passes.begin_pass(room)
    }
}
