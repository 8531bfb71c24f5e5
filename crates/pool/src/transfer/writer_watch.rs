//! Looks whether another process writes to the pool: the superblocks on its devices are read, and
//! judged ([`writers`](crate::devices::superblock_origin)).
//!
//! 1. Before a slot is written, it is read. So no process overwrites the superblock of another
//!    unseen. A commit does it while its nodes are written, so nothing waits for it.
//! 2. Before anything else is written, all slots were read within the last second. So a process
//!    that was idle, or stood still, while another one took the pool over writes nothing more.
//! 3. All slots are read a few times within the first seconds after an open.
//!
//! This process writes nothing more, for good, where another one has written: neither knows which
//! blocks the other one has taken. A look that a device does not answer holds up nothing for long:
//! what is sent to that device waits anyway, and the look counts when it is answered.

use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, Generation, Result, StorageError};
use format::FormatError;
use format::superblock::{SLOT_COPIES, SLOTS, Superblock};
use queue::Class;
use rt::Reason;
use rt::sync::{either, within};

use crate::core::Core;
use crate::devices::Tenure;
use crate::devices::standing::Permit;
use crate::devices::superblock_origin::{FoundIdentity, SuperblockOrigin};
use crate::devices::watch_times::SlotPlace;

/// The name of this work.
const JOB: &str = "look";
/// For so long a write waits for devices that do not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// When all slots are looked at after an open.
const AFTER_OPEN: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(7)];

/// A superblock that stands on a device.
enum Read {
    Superblock(Box<Superblock>),
    /// A superblock that this version cannot read.
    Newer(FormatError),
}

/// Looks for another process that writes to the devices.
pub(crate) struct WriterWatch {
    core: Core,
}

impl WriterWatch {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<WriterWatch> {
        Rc::new(WriterWatch { core: core.clone() })
    }

    /// The door of what is written outside of commits: a look was taken not long ago, or is now.
    pub(crate) async fn permit_to_write(&self) -> Result<Permit> {
        let permit = self.core.permit()?;
        if self.core.looks().counts(self.core.now()) {
            return Ok(permit);
        }
        self.core.rt().waits_for_job(Reason::Look, JOB, Box::pin(self.wait_for_look())).await;
        self.core.permit()
    }

    async fn wait_for_look(&self) {
        loop {
            let ended = self.core.looks().ended();
            if self.core.is_closed()
                || self.core.permit().is_err()
                || self.core.looks().counts(self.core.now())
            {
                return;
            }
            ended.await;
        }
    }

    /// Takes looks: when they are asked for, and a few after an open, as the process that has the
    /// pool open since before may have been in the midst of a commit.
    pub(crate) fn begin_looking(self: &Rc<Self>) {
        let this = self.clone();
        self.core.rt().detach_job(JOB, async move {
            let mut due =
                AFTER_OPEN.iter().map(|after| this.core.now().after(*after)).collect::<Vec<_>>();
            loop {
                let asked = this.core.looks().asked();
                if this.core.is_closed() {
                    return;
                }
                let now = this.core.now();
                let is_due = due.first().is_some_and(|then| *then <= now);
                if is_due || this.core.looks().is_asked() {
                    due.retain(|then| *then > now);
                    this.look_around().await;
                    continue;
                }
                match due.first() {
                    Some(then) => either(asked, this.core.rt().sleep_until(*then)).await,
                    None => asked.await,
                }
            }
        });
    }

    /// Looks at all slots.
    async fn look_around(self: &Rc<Self>) {
        let rows = self.core.state().devices.live_rows();
        let places =
            rows.into_iter().flat_map(|row| (0..SLOTS).map(move |slot| SlotPlace { row, slot }));
        self.look_for_a_while(places.collect()).await;
        self.core.looks().note(self.core.now());
    }

    /// Looks into these slots, as far as the devices answer soon. What comes later is judged all
    /// the same.
    async fn look_for_a_while(self: &Rc<Self>, places: Vec<SlotPlace>) {
        let mut all = std::pin::pin!(self.look_at(places));
        within(&mut all, self.core.rt().sleep(PATIENCE)).await;
    }

    /// Looks into the slot in which the superblock of `sequence` is to be written.
    pub(crate) async fn look_before(self: &Rc<Self>, sequence: u64) -> Result<()> {
        let rows = self.core.state().devices.live_rows();
        let place = |row| SlotPlace { row, slot: sequence % SLOTS };
        self.look_for_a_while(rows.into_iter().map(place).collect()).await;
        self.core.permit()?;
        self.core.state_mut().writers.note_may_write(sequence);
        Ok(())
    }

    /// Looks into these slots of these devices, all at once. Ends the pool's standing if need be,
    /// also where the caller waits no longer.
    async fn look_at(self: &Rc<Self>, places: Vec<SlotPlace>) {
        let look = |place: SlotPlace| {
            let this = self.clone();
            self.core.rt().spawn(async move {
                this.look_into(place.row, place.slot).await;
                this.core.looks().end_read(place);
            })
        };
        let places = places.into_iter().filter(|place| self.core.looks().begin_read(*place));
        let looks: Vec<_> = places.map(look).collect();
        for one in looks {
            one.await;
        }
    }

    async fn look_into(&self, row: usize, slot: u64) {
        let (of, disk) = self.core.state().devices.to_write(row);
        let Some(disk) = disk else { return };
        for copy in 0..SLOT_COPIES as u64 {
            let at = Superblock::offset_of(slot) + copy * BLOCK_U64;
            let (outcome, block) = disk.read_new(Class::Commit, at, BLOCK).await;
            if outcome.is_err() {
                continue;
            }
            let found = match Superblock::decode(&block) {
                Ok(sb) => Read::Superblock(Box::new(sb)),
                Err(e @ (FormatError::Version { .. } | FormatError::Features { .. })) => {
                    Read::Newer(e)
                }
                // Torn, perhaps by a write that is under way, or damaged.
                Err(_) => continue,
            };
            return self.judge_found(row, of, &found);
        }
    }

    fn judge_found(&self, row: usize, of: Tenure, found: &Read) {
        let mut st = self.core.state_mut();
        let Some(d) = st.devices.row(row).filter(|d| d.tenure() == of && d.live().is_some()) else {
            return;
        };
        let whose = match found {
            Read::Superblock(sb) => {
                let (pool, device) = (st.identity.uuid, d.record().uuid);
                let newest = st.txns.sequence();
                st.writers.judge(FoundIdentity::of(sb), pool, device, d.found(), newest)
            }
            Read::Newer(_) => SuperblockOrigin::OtherWriter,
        };
        let path = d.path().to_owned();
        match whose {
            SuperblockOrigin::Known => {}
            SuperblockOrigin::OtherDevice => {
                let text = format!(
                    "{path} is another device by now, or was made one of another pool: nothing \
                     more is written to it"
                );
                tracing::error!("{text}");
                if st.fail_devices(&[row]) {
                    drop(st);
                    self.core.note_dropped();
                } else {
                    st.end_standing(StorageError::new(ErrorKind::Foreign, text));
                }
            }
            SuperblockOrigin::OtherWriter => {
                let text = another_writer(&path, found, st.txns.generations().open);
                st.writers.note_other();
                st.end_standing(StorageError::new(ErrorKind::Foreign, text));
            }
        }
    }

    /// See [`crate::Pool::other_writer`].
    pub(crate) fn other_writer(&self) -> Option<StorageError> {
        let st = self.core.state();
        st.writers.has_other().then(|| st.standing.ended().cloned()).flatten()
    }

    /// See [`crate::Pool::end_for_other_writer`].
    pub(crate) fn end_for_other_writer(&self, why: StorageError) {
        let mut st = self.core.state_mut();
        st.writers.note_other();
        st.end_standing(why);
    }
}

/// The text about the other process.
fn another_writer(path: &str, found: &Read, own: Generation) -> String {
    let own = own.0 >> 32;
    let theirs = match found {
        Read::Superblock(sb) => {
            let (theirs, commit) = (sb.generation >> 32, sb.generation & u64::from(u32::MAX));
            match theirs.cmp(&own) {
                std::cmp::Ordering::Less => format!(
                    "an earlier start of a server, number {theirs} of this pool, which still runs \
                     (its commit {commit})"
                ),
                _ => format!(
                    "a later start of a server, number {theirs} of this pool (its commit {commit})"
                ),
            }
        }
        Read::Newer(e) => format!("a newer version of Forebay ({e})"),
    };
    format!(
        "{path}: another process writes to this pool at the same time, {theirs}; this one is start \
         number {own}. Both reach the same disk, from two machines or by two names of it. Stop \
         both, see that one alone can reach the disk, then run forebay check --data before one is \
         started"
    )
}
