//! Scrub: every copy of every block is read and verified, and what is bad is healed.
//!
//! A scrub goes over table pages, then the mapping tree of each volume, then each block group: its
//! bitmap pages, the nodes of its checksum tree, and its data in physical order; then superblocks.
//! One walk of a group's checksum tree serves all copies: a leaf is read once, and says what the
//! next few hundred blocks must be ([`walk`](crate::transfer::walk)). Runs of neighbours are read
//! from all copies at once, a bounded number of bytes in flight for each ([`verify`]).
//!
//! **What others change meanwhile** is neither missed nor reported. A block is verified if the
//! bitmap of the last commit has it, by the live record of its checksum. Both are looked up in one
//! step, with a [pin](crate::space::Pin). So the block is not used anew before its copies were read
//! and, if need be, written again. A block that is being written has no bit yet; the next scrub
//! verifies it. A page or a superblock that is bad is healed while no commit runs ([`tables`]).
//!
//! **Progress is durable.** The place, the counters and the blocks that are lost stand in each
//! superblock ([`crate::findings`]), so after a restart or a kill a scrub goes on at the place that
//! the last commit recorded. The next one begins by itself ([`schedule`]).
//!
//! **Lost blocks.** A block is lost if no copy is good. A failed read counts only if the devices
//! with the copies answer before and after that read; otherwise the scrub waits. Chunks that are
//! behind are asked last. A device that is away may have a good copy: then the block is not lost,
//! and the scrub is not complete. If no copy of a node is good, the part of the pool below the node
//! is passed over. That is known until a scrub of all devices passes over nothing.
//!
//! **Devices that go.** A scrub of all devices goes on without a device that is away or behind, and
//! is not complete. Such a scrub does not put off the next one: that begins a day later, or after
//! `scrub.every` while the device stays away. A scrub of one device is cancelled if that device is
//! removed from the pool.
//!
//! **Rate.** With a rate a scrub reads for an eighth of a second, drops its pins, rests, and looks
//! up the next blocks anew. So a scrub that rests keeps no freed block from being used again.

use std::rc::Rc;

pub(crate) mod load;
pub(crate) mod lost_again;
mod progress;
mod schedule;
pub(crate) mod scrub_flow;
pub(crate) mod tables;
pub(crate) mod trees;
pub(crate) mod verify;
pub(crate) mod window;

use base::{ErrorKind, Instant, Result, StorageError};
use model::scrub::PoolScrub;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::findings::{NewestScrub, ScrubOptions};
use crate::scrub::lost_again::LostBlockPruner;
use crate::scrub::progress::{left_to_scrub, note_left_to_scrub, pass_scrubbed};

/// Commands to a scrub, and its status.
pub struct Scrubs {
    core: Core,
    commits: Rc<Commits>,
    lost: Rc<LostBlockPruner>,
}

impl Scrubs {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        commits: &Rc<Commits>,
        lost: &Rc<LostBlockPruner>,
    ) -> Rc<Scrubs> {
        Rc::new(Scrubs { core: core.clone(), commits: commits.clone(), lost: lost.clone() })
    }

    /// Starts a scrub. That is durable when this returns. Fails if one runs or is paused, or if the
    /// device is not there.
    pub async fn start_scrub(&self, options: ScrubOptions) -> Result<()> {
        // Work that an earlier scrub has in flight is not counted for this one.
        loop {
            let changed = self.core.state().scrub.changed();
            if !self.core.state().scrub.is_ending() {
                break;
            }
            changed.await;
        }
        let device = match &options.device {
            None => None,
            Some(name) => Some(self.row_of(name)?),
        };
        let now = self.core.unix_time(self.core.now());
        {
            let mut st = self.core.state_mut();
            st.scrub.start(device, 0, now)?;
            pass_scrubbed(&mut st);
            st.devices.begin_scrub(device.map(usize::from));
            st.space.supply_mut().use_again(Instant(u64::MAX));
            st.note_scrub_lacks();
        }
        self.core.state_mut().scrub.set_rate(options.rate);
        self.note_scrub().await
    }

    /// Pauses the scrub that runs. Fails if none does.
    pub async fn pause_scrub(&self) -> Result<()> {
        let now = self.core.unix_time(self.core.now());
        self.core.state_mut().scrub.pause(now)?;
        self.note_scrub().await
    }

    /// Resumes the scrub that is paused, at `rate` bytes a second if it is given. Fails if none is.
    pub async fn resume_scrub(&self, rate: Option<u64>) -> Result<()> {
        self.core.state_mut().scrub.resume()?;
        if rate.is_some() {
            self.core.state_mut().scrub.set_rate(rate);
        }
        self.note_scrub().await
    }

    /// Cancels the scrub that runs or is paused; the next one begins anew. Fails if there is none.
    pub async fn cancel_scrub(&self) -> Result<()> {
        let now = self.core.unix_time(self.core.now());
        {
            let mut st = self.core.state_mut();
            note_left_to_scrub(&mut st);
            st.scrub.cancel(now)?;
        }
        self.note_scrub().await
    }

    /// Status of the scrub that runs, or of the last one. Blocks that were written again are
    /// removed from the list of lost blocks first, also where that is not committed yet.
    pub async fn scrub_status(&self) -> PoolScrub {
        self.lost.drop_found_again().await;
        self.known_scrub_status()
    }

    /// The same, without looking at the lost blocks again.
    pub(crate) fn known_scrub_status(&self) -> PoolScrub {
        let st = self.core.state();
        let device = |row: usize| st.devices.path(row).to_owned();
        let volume = |id: base::VolumeId| {
            let v = st.forest.volume(id);
            v.map_or_else(|| format!("volume {id}"), |v| v.record().name.clone())
        };
        let (now, every) = (self.core.now(), self.core.settings().scrub_every.as_secs());
        st.scrub.status(now, self.core.unix_time(now), every, left_to_scrub(&st), device, volume)
    }

    /// Makes a change of the scrub's state durable.
    async fn note_scrub(&self) -> Result<()> {
        self.core.state_mut().note_in_superblock();
        self.commits.commit().await
    }

    /// The row of a device that is in use, by its path.
    fn row_of(&self, path: &str) -> Result<u8> {
        let st = self.core.state();
        let found = st.devices.iter().position(|d| d.live().is_some() && d.path() == path);
        found.map(|row| row as u8).ok_or_else(|| {
            let known: Vec<&str> =
                st.devices.iter().filter(|d| d.live().is_some()).map(|d| d.path()).collect();
            let text =
                format!("{path} is no device of this pool in use; these are: {}", known.join(", "));
            StorageError::new(ErrorKind::NotFound, text)
        })
    }

    /// The newest scrub, for what is scrubbed along with the pool.
    pub fn newest_scrub(&self) -> NewestScrub {
        self.core.state().scrub.newest(self.core.settings().scrub_rate)
    }
}
