//! The flow of a scrub: over everything in order, a bounded number of bytes in flight, at a rate.

use std::collections::VecDeque;

use base::{BLOCK_U64, BlockRange, Duration, ErrorKind, GroupId, Instant, Result, StorageError};
use format::page::GroupKind;
use format::superblock::scrub::{ScrubPlace, ScrubStage};
use queue::Class;
use rt::JoinHandle;
use rt::sync::either;

use crate::pool::Pool;
use crate::space::Pin;
use crate::transfer::walk::{Leaf, ReadRun, Walk, pinned, runs};

/// The job's name.
const JOB: &str = "scrub";
/// Bytes in flight of each copy: 4 MiB are too few for a fast device, 16 MiB add little.
pub(crate) const WINDOW_BYTES: u64 = 8 << 20;
/// Leaves of a checksum tree that are read ahead at once.
const AHEAD: usize = 16;
/// The place is made durable this often.
const NOTED: Duration = Duration::from_secs(30);
/// The place moves at least this often.
const MOVED: Duration = Duration::from_secs(5);
/// The time between two looks whether the next scrub is due.
const LOOK: Duration = Duration::from_secs(60);
/// The pause of a scrub after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Why a scrub stops before its end.
pub(super) enum Stop {
    /// The scrub was paused or cancelled, or the pool was closed.
    Ended,
    /// The scrub cannot go on now.
    Failed(StorageError),
}

impl From<StorageError> for Stop {
    fn from(e: StorageError) -> Stop {
        Stop::Failed(e)
    }
}

/// With a rate it reads for this part of a second, and this many blocks at least, and rests.
const PARTS_OF_A_SECOND: u64 = 8;
const LEAST_AT_ONCE: u64 = 16;

/// The outcome of a part of a scrub.
pub(super) type Went = std::result::Result<(), Stop>;

/// Runs that are being verified, in order.
pub(super) struct Window {
    pool: Pool,
    turn: u64,
    flights: VecDeque<(JoinHandle<Result<()>>, u64)>,
    bytes: u64,
    /// Bytes of each copy that were read, and for which it has not rested yet, so that the rate is
    /// kept; as of that moment.
    owed: f64,
    owed_at: Instant,
    /// When the place was made durable last, and when it moved.
    noted: Instant,
    reached: Instant,
}

impl Window {
    fn new(pool: &Pool, turn: u64) -> Window {
        Window {
            pool: pool.clone(),
            turn,
            flights: VecDeque::new(),
            bytes: 0,
            owed: 0.0,
            owed_at: pool.now(),
            noted: pool.now(),
            reached: pool.now(),
        }
    }

    /// True if the place should move now, though then nothing is in flight for a moment.
    fn lags(&self) -> bool {
        self.pool.now().since(self.reached) > MOVED
    }

    /// Verifies runs as soon as there is room. It does not rest for the rate: what is pinned is not
    /// used again, and where room is short clients would wait for that. So [`Window::rest`] comes
    /// before it, without a pin.
    pub async fn verify(&mut self, runs: Vec<(ReadRun, Pin)>) -> Went {
        for (run, pin) in runs {
            let bytes = u64::from(run.len()) * BLOCK_U64;
            self.check()?;
            self.owed += bytes as f64;
            while self.bytes > 0 && self.bytes + bytes > WINDOW_BYTES {
                self.end_first().await?;
            }
            let pool = self.pool.clone();
            let flight = self.pool.rt().spawn(async move { pool.verify_run(run, pin).await });
            self.flights.push_back((flight, bytes));
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Waits for everything in flight, and records that all before this place is verified. Others
    /// get a turn, as thousands of groups in a row may have nothing to be verified.
    pub async fn reach(&mut self, stage: ScrubStage, index: u32, block: u32) -> Went {
        while !self.flights.is_empty() {
            self.end_first().await?;
        }
        self.check()?;
        self.pool.state_mut().scrub_goes_to(ScrubPlace { stage, index, block });
        self.reached = self.pool.now();
        self.pool.rt().yield_now().await;
        if self.pool.now().since(self.noted) > NOTED {
            self.noted = self.pool.now();
            self.pool.state_mut().note_in_superblock();
        }
        Ok(())
    }

    async fn end_first(&mut self) -> Went {
        if let Some((flight, bytes)) = self.flights.pop_front() {
            self.bytes -= bytes;
            flight.await.unwrap_or_else(|| Err(StorageError::ended()))?;
        }
        Ok(())
    }

    /// Waits for everything in flight, whatever becomes of it.
    async fn drain(&mut self) {
        for (flight, _) in std::mem::take(&mut self.flights) {
            flight.await;
        }
    }

    /// Fails if the scrub does not run any more.
    fn check(&self) -> Went {
        let runs = self.pool.state().scrub.turn() == Some(self.turn) && !self.pool.is_closed();
        if runs { Ok(()) } else { Err(Stop::Ended) }
    }

    fn rate(&self) -> u64 {
        let own = self.pool.state().scrub.rate();
        own.unwrap_or_else(|| self.pool.settings().scrub_rate)
    }

    /// Blocks of a leaf that are read before it rests: what the rate lets it read in a while, so
    /// that it does not go in bursts.
    fn at_once(&self) -> usize {
        match self.rate() {
            0 => usize::MAX,
            rate => (rate / BLOCK_U64 / PARTS_OF_A_SECOND).max(LEAST_AT_ONCE) as usize,
        }
    }

    /// `bytes` bytes of each copy are to be read without [`Window::verify`].
    pub fn owes(&mut self, bytes: u64) {
        self.owed += bytes as f64;
    }

    /// Waits until it has rested for everything that was read, as the rate wants it. To be called
    /// without a pin.
    pub async fn rest(&mut self) -> Went {
        loop {
            self.check()?;
            let changed = self.pool.state().scrub.changed();
            let rate = self.rate() as f64;
            self.pay(rate);
            if rate == 0.0 || self.owed == 0.0 {
                self.owed = 0.0;
                return Ok(());
            }
            let due = self.owed_at.after(Duration::from_secs_f64(self.owed / rate));
            either(self.pool.rt().sleep_until(due), changed).await;
            // The time rested until now counts at the rate that held meanwhile.
            self.pay(rate);
        }
    }

    fn pay(&mut self, rate: f64) {
        let now = self.pool.now();
        let paid = now.since(self.owed_at).as_secs_f64() * rate;
        // A rest is over to the nanosecond, not to the fraction of a byte.
        self.owed = if paid + 1.0 > self.owed { 0.0 } else { self.owed - paid };
        self.owed_at = now;
    }
}

impl Pool {
    /// Begins to scrub in the background whenever a scrub runs; one that ran when the pool was
    /// closed or killed goes on.
    pub(crate) fn begin_scrubbing(&self) {
        let pool = self.clone();
        self.state_mut().pass_scrubbed();
        self.rt().detach_background(JOB, async move {
            while !pool.is_closed() {
                let changed = pool.state().scrub.changed();
                let turn = pool.state().scrub.turn();
                let Some(turn) = turn else {
                    pool.start_when_due().await;
                    either(changed, pool.rt().sleep(LOOK)).await;
                    continue;
                };
                pool.state_mut().scrub.set_at_work(true);
                let went = pool.scrub(turn).await;
                pool.state_mut().scrub.set_at_work(false);
                match went {
                    Ok(()) | Err(Stop::Ended) => {}
                    Err(Stop::Failed(e)) => {
                        tracing::error!("scrub error: {e}; retrying in 5 s");
                        pool.rt().sleep(AGAIN).await;
                    }
                }
            }
        });
    }

    /// Goes on from where the scrub is. Nothing of it is in flight afterwards.
    async fn scrub(&self, turn: u64) -> Went {
        self.state_mut().note_scrub_lacks();
        let mut window = Window::new(self, turn);
        let went = self.scrub_all(&mut window).await;
        window.drain().await;
        went
    }

    async fn scrub_all(&self, window: &mut Window) -> Went {
        let place = self.state().scrub.place();
        if place.stage == ScrubStage::Tables {
            self.scrub_tables(window).await?;
            window.reach(ScrubStage::Volumes, 0, 0).await?;
        }
        if place.stage <= ScrubStage::Volumes {
            self.scrub_volumes(window, place.index).await?;
            window.reach(ScrubStage::Groups, 0, 0).await?;
        }
        let (mut at, mut block) = match place.stage {
            ScrubStage::Groups => (place.index, place.block),
            _ => (0, 0),
        };
        while at < self.state().space.geometry().group_capacity {
            self.scrub_group(window, GroupId(at), block).await?;
            (at, block) = (at + 1, 0);
            window.reach(ScrubStage::Groups, at, 0).await?;
        }
        self.scrub_superblocks().await?;
        self.state_mut().note_scrub_lacks();
        let now = self.unix_time(self.now());
        if !self.state_mut().scrub.complete(window.turn, now) {
            return Err(Stop::Ended);
        }
        self.state_mut().note_in_superblock();
        {
            let mut st = self.state_mut();
            let only = st.scrub.device();
            st.devices.end_scrub(only);
        }
        self.read_lost_again().await;
        let status = self.scrub_status().await;
        tracing::info!(
            bytes = status.verified_bytes,
            bad = status.bad,
            healed = status.healed,
            lost = status.lost,
            away = status.away,
            "a scrub has ended"
        );
        self.commit().await?;
        Ok(())
    }

    /// Bitmap pages, checksum tree and data of a group.
    async fn scrub_group(&self, window: &mut Window, id: GroupId, from: u32) -> Went {
        let kind = self.state().space.group_kind(id);
        // A group that holds no data any more keeps the nodes of its tree, for its next use.
        if from == 0 && kind != GroupKind::Data {
            self.scrub_sums(window, id).await?;
        }
        if kind == GroupKind::Free {
            return Ok(());
        }
        window.check()?;
        if let Err(e) = self.surely(async || self.load_maps(id).await).await? {
            tracing::error!(group = id.0, "scrub: a block group is passed over: {e}");
            self.state_mut().scrub.lost(None);
            return Ok(());
        }
        if from == 0 {
            if let Err(e) = self.scrub_bitmaps(id).await? {
                tracing::error!(group = id.0, "scrub: a block group is passed over: {e}");
                self.state_mut().scrub.lost(None);
                return Ok(());
            }
            if kind == GroupKind::Data {
                self.scrub_sums(window, id).await?;
            }
        }
        if kind != GroupKind::Data {
            return Ok(());
        }
        let group_blocks = self.state().space.geometry().group_blocks;
        let gap = (self.settings().scrub_gap / BLOCK_U64) as u32;
        let (mut walk, mut at) = (Walk::new(id, from, group_blocks), from);
        loop {
            window.rest().await?;
            self.read_leaves(&walk).await;
            let mut step = |st: &mut crate::state::State| {
                let pin = st.space.pin();
                Ok((walk.next_leaf(st, at)?, pin))
            };
            let found = self.surely(async || self.resident(Class::Scrub, &mut step).await).await?;
            let (leaf, pin) = match found {
                Ok(found) => found,
                Err(e) => {
                    tracing::error!(
                        group = id.0,
                        block = at,
                        "scrub: the rest of a block group is passed over, its checksums cannot be \
                         read: {e}"
                    );
                    self.state_mut().scrub.lost(None);
                    return Ok(());
                }
            };
            match leaf {
                Leaf::End => return Ok(()),
                Leaf::NoMaps => {
                    drop(pin);
                    if let Err(e) = self.surely(async || self.load_maps(id).await).await? {
                        tracing::error!(
                            group = id.0,
                            "scrub: the rest of a block group is passed over: {e}"
                        );
                        self.state_mut().scrub.lost(None);
                        return Ok(());
                    }
                }
                Leaf::Blocks(mut blocks, mut upto) => {
                    match blocks.get(window.at_once()).map(|next| next.addr) {
                        Some(next) => {
                            blocks.truncate(window.at_once());
                            upto = self.state().space.geometry().split(next).1;
                            walk = Walk::new(id, upto, group_blocks);
                        }
                        None => self.state_mut().scrub.count_leaf(),
                    }
                    let runs = pinned(&self.state(), runs(blocks, group_blocks, gap), pin);
                    window.verify(runs).await?;
                    at = upto;
                    if window.lags() {
                        window.reach(ScrubStage::Groups, id.0, at).await?;
                    }
                    self.rt().yield_now().await;
                }
            }
        }
    }

    /// Loads what a scrub needs to verify blocks: their checksums, or bitmaps. The inner error:
    /// that is bad, and not only out of reach. Then what depends on it is passed over, and counted
    /// as lost, so the scrub does not report that all is well. The outer error: the pool has
    /// failed, or a device answered nothing. Then the scrub tries again later.
    pub(super) async fn surely<T>(
        &self,
        mut load: impl AsyncFnMut() -> Result<T>,
    ) -> std::result::Result<Result<T>, Stop> {
        if let Ok(loaded) = load().await {
            return Ok(Ok(loaded));
        }
        // A failed read counts only if the data cannot be read between two answers of the devices.
        self.permit()?;
        self.all_answer(Class::Scrub).await?;
        let outcome = load().await;
        if outcome.is_err() {
            self.permit()?;
            self.all_answer(Class::Scrub).await?;
        }
        Ok(outcome)
    }

    /// Brings the next leaves into memory, several at once. A leaf that cannot be read is reported
    /// by the step that needs it.
    async fn read_leaves(&self, walk: &Walk) {
        let (missing, pin) = {
            let st = self.state();
            (walk.ahead(&st, AHEAD), st.space.pin())
        };
        self.load_nodes(Class::Scrub, self.pin_nodes(missing, pin), false).await;
    }

    /// Takes blocks from the list of those that are lost which can be read.
    async fn read_lost_again(&self) {
        let extents = self.state().scrub.extents().to_vec();
        for e in extents {
            let mut keep = Vec::new();
            for i in 0..u64::from(e.blocks) {
                let read = self.read_for(Class::Scrub, e.volume, e.lba.plus(i), 1).await;
                keep.push(read.is_err());
            }
            let mut st = self.state_mut();
            if st.scrub.retain(&e, &keep) {
                st.note_in_superblock();
            }
        }
    }

    /// Takes lost blocks from the list that are not lost any more: they were written again, or
    /// discarded.
    pub(super) async fn drop_found_again(&self) {
        let extents = self.state().scrub.extents().to_vec();
        for e in extents {
            let range = BlockRange::of(e.lba, e.blocks.into());
            let found = self
                .resident(Class::Scrub, |st| st.forest.extents(e.volume, range, usize::MAX))
                .await;
            // A volume that is gone has lost nothing. Of one whose tree cannot be read all blocks
            // stay in the list.
            let keep: Vec<bool> = match &found {
                Ok(now) => (0..u64::from(e.blocks))
                    .map(|i| {
                        let (lba, addr) = (e.lba.0 + i, e.addr.0 + i);
                        now.iter().any(|m| {
                            m.lba.0 <= lba && lba < m.end() && m.addr.0 + (lba - m.lba.0) == addr
                        })
                    })
                    .collect(),
                Err(err) => {
                    let gone = err.kind == ErrorKind::NotFound;
                    vec![!gone; e.blocks as usize]
                }
            };
            let mut st = self.state_mut();
            if st.scrub.retain(&e, &keep) {
                st.note_in_superblock();
            }
        }
    }
}
