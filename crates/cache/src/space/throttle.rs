//! Admission of writers: [`crate::policy::writer_delay`] decides, this file makes them wait.
//!
//! A writer that is admitted keeps its room until it has taken its blocks. So writers that arrive
//! together are not admitted to more room than there is.

use std::rc::Rc;

use base::{Result, VolumeId};
use format::cache::journal::blocks_for;
use rt::Reason;
use rt::sync::either;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::job;
use crate::policy::writer_delay::{NextStep, PATIENCE};
use crate::space::pacer::Pacer;
use crate::space::request_room::Room;
use crate::space::writer_line::AdmittedRoom;
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::taken::most_extents;

/// Lets writers in, one after the other where room is short.
pub(crate) struct Throttle {
    core: Core,
    failures: Rc<Failures>,
    room: Rc<Room>,
    pacer: Rc<Pacer>,
}

impl Throttle {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        room: &Rc<Room>,
        pacer: &Rc<Pacer>,
    ) -> Rc<Throttle> {
        Rc::new(Throttle {
            core: core.clone(),
            failures: failures.clone(),
            room: room.clone(),
            pacer: pacer.clone(),
        })
    }

    /// Waits until a write of `blocks` blocks may go on. Returns the room for its records.
    pub(crate) async fn admit(
        &self,
        volume: VolumeId,
        blocks: u64,
    ) -> Result<(AdmittedRoom, JournalRoom)> {
        self.failures.check_failed()?;
        let now = self.core.rt().now();
        self.core.clients().note_request(now);
        let load = self.core.levels().load(now);
        let admitted = match self.core.admission().pass_at_once(now, blocks, &load) {
            Some(admitted) => admitted,
            None => Box::pin(self.wait_in_line(volume, blocks)).await?,
        };
        self.failures.check_failed()?;
        let room = self
            .room
            .room_for_request(blocks_for(most_extents(blocks), blocks as usize), nodes_for(blocks))
            .await?;
        Ok((admitted, room))
    }

    async fn wait_in_line(&self, volume: VolumeId, blocks: u64) -> Result<AdmittedRoom> {
        let let_in = self.core.admission().line_up(volume, blocks);
        self.core.pressed();
        self.pacer.share_device();
        let admitted =
            self.core.rt().waits_for_job(Reason::Throttle, job::WRITE_BACK, let_in).await;
        admitted.ok_or_else(|| self.room.hopeless())
    }

    /// Lets writers in.
    pub(crate) async fn admitter(&self) {
        let admission = self.core.admission();
        // Since when there is no room.
        let mut without_room = None;
        while !self.core.health().is_closed() && !self.core.has_failed() {
            let (arrived, room) = (admission.arrived(), self.core.wakes().room.wait());
            let now = self.core.rt().now();
            let load = self.core.levels().load(now);
            let next = admission.next(now, &load);
            if !matches!(next, NextStep::Room) {
                without_room = None;
            }
            match next {
                NextStep::Pass(to, blocks) => admission.let_in(to, blocks),
                NextStep::Empty => arrived.await,
                NextStep::At(when) => {
                    either(either(self.core.rt().sleep_until(when), room), arrived).await;
                }
                NextStep::Room
                    if self
                        .room
                        .check_hopeful(
                            *without_room.get_or_insert_with(|| self.core.levels().begin_waiting()),
                        )
                        .is_err() =>
                {
                    // All waiting writers fail at once: there will be no room for any of them.
                    admission.refuse_all();
                }
                NextStep::Room => {
                    self.core.wakes().wanted();
                    either(either(self.core.rt().sleep(PATIENCE), room), arrived).await;
                }
            }
        }
        // Each writer finds out by itself why the cache is of no use.
        loop {
            let arrived = admission.arrived();
            admission.let_all_in();
            if self.core.health().is_closed() {
                return;
            }
            arrived.await;
        }
    }
}
