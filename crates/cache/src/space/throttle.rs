//! Admission of writers: [`crate::policy::writer_delay`] decides, this file makes them wait.
//!
//! A writer that is admitted keeps its room until it has taken its blocks. So writers that arrive
//! together are not admitted to more room than there is.

use base::{Instant, Result, VolumeId};
use format::cache::journal::blocks_for;
use rt::Reason;
use rt::sync::either;

use crate::Cache;
use crate::job;
use crate::policy::writer_delay::{Load, Next, PATIENCE};
use crate::settings::LagPolicy;
use crate::space::admission::AdmittedRoom;
use crate::store::buckets::census::Stream;
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::taken::most_extents;

/// Parts of the share of the room at which writers begin to be slowed. From the first on write-back
/// goes faster than the controller says, from the second on as fast as it can.
const HURRIES: (f64, f64) = (0.6, 0.9);

impl Cache {
    /// Waits until a write of `blocks` blocks may go on. Returns the room for its records.
    pub(crate) async fn admit(
        &self,
        volume: VolumeId,
        blocks: u64,
    ) -> Result<(AdmittedRoom, JournalRoom)> {
        self.check_failed()?;
        let now = self.rt().now();
        self.clients().note_request(now);
        let load = self.load(now);
        let admitted = match self.admission().pass_at_once(now, blocks, &load) {
            Some(admitted) => admitted,
            None => Box::pin(self.wait_in_line(volume, blocks)).await?,
        };
        self.check_failed()?;
        let room = self
            .room_for_request(blocks_for(most_extents(blocks), blocks as usize), nodes_for(blocks))
            .await?;
        Ok((admitted, room))
    }

    async fn wait_in_line(&self, volume: VolumeId, blocks: u64) -> Result<AdmittedRoom> {
        let let_in = self.admission().line_up(volume, blocks);
        self.pressed();
        self.share_device();
        let admitted = self.rt().waits_for_job(Reason::Throttle, job::WRITE_BACK, let_in).await;
        admitted.ok_or_else(|| self.hopeless())
    }

    /// Lets writers in.
    pub(crate) async fn admitter(&self) {
        let admission = self.admission();
        // Since when there is no room.
        let mut without_room = None;
        while !self.health().is_closed() && !self.has_failed() {
            let (arrived, room) = (admission.arrived(), self.wakes().room.wait());
            let now = self.rt().now();
            let load = self.load(now);
            let next = admission.next(now, &load);
            if !matches!(next, Next::Room) {
                without_room = None;
            }
            match next {
                Next::Pass(to, blocks) => admission.let_in(to, blocks),
                Next::Empty => arrived.await,
                Next::At(when) => {
                    either(either(self.rt().sleep_until(when), room), arrived).await;
                }
                Next::Room
                    if self
                        .check_hopeful(*without_room.get_or_insert_with(|| self.begin_waiting()))
                        .is_err() =>
                {
                    // All waiting writers fail at once: there will be no room for any of them.
                    admission.refuse_all();
                }
                Next::Room => {
                    self.wakes().wanted();
                    either(either(self.rt().sleep(PATIENCE), room), arrived).await;
                }
            }
        }
        // Each writer finds out by itself why the cache is of no use.
        loop {
            let arrived = admission.arrived();
            admission.let_all_in();
            if self.health().is_closed() {
                return;
            }
            arrived.await;
        }
    }

    /// The present load: how much can be written before anything has to be published, and the age
    /// of the pool's image.
    pub(crate) fn load(&self, now: Instant) -> Load {
        let reserve = self.node_reserve();
        let st = self.state();
        let census = st.buckets.census();
        let bucket = u64::from(st.buckets.capacity(Stream::Writes));
        let usable = (census.free + census.clean).saturating_sub(reserve);
        let room = u64::from(usable) * bucket + u64::from(st.buckets.left_open(Stream::Writes));
        let all = u64::from(st.buckets.count().saturating_sub(reserve)) * bucket;
        let (lump, soon) = {
            let passes = self.writeback().passes();
            (passes.cuts().lump(), passes.carried())
        };
        let age = match self.settings().max_lag_policy {
            LagPolicy::Aim => None,
            LagPolicy::Strict => {
                let age = self.writeback().passes().age(now).unwrap_or_default();
                Some(age.as_secs_f64() / self.settings().max_lag.as_secs_f64())
            }
        };
        Load { room, all, lump, soon, reserved: self.admission().reserved(), age }
    }

    /// The need of write-back: 0 where there is much room, 1 well before writers are slowed.
    pub(crate) fn pressure(&self) -> f64 {
        if self.admission().has_line() {
            return 1.0;
        }
        let begin = self.admission().begin();
        let gone = self.load(self.rt().now()).gone() / begin;
        ((gone - HURRIES.0) / (HURRIES.1 - HURRIES.0)).clamp(0.0, 1.0)
    }

    /// Tells the queue of the cache's device, and the pool, whether write-back has time. It has
    /// none while writers are slowed or are about to be, while a task waits until everything is
    /// published, and while the pool's image is too old.
    pub(crate) fn share_device(&self) {
        let begin = self.admission().begin();
        let needed = self.admission().has_line()
            || self.writeback().passes().is_urgent()
            || self.is_late()
            || self.load(self.rt().now()).gone() > 0.9 * begin;
        self.device().queue().set_background_patient(!needed);
        self.pool().hurry_pass(needed);
    }
}
