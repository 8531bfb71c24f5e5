//! The host log of a pool or of a cache: what was answered and is not durable yet, in memory of the
//! host that outlives the process.
//!
//! A client takes the death of the server for a lost connection: it reconnects, and believes that
//! what was answered is there, as it is with a kernel's page cache. So a change is recorded here
//! before it is answered. When the process dies, the next start finds the records and enters what
//! the devices do not have yet. A loss of power takes the log, and with it what no FLUSH covered.
//!
//! **Invariants.**
//! 1. The log has every change that is in the open transaction or in the one that is being
//!    committed (of a cache: every record of the journal that no durable entry has).
//! 2. A log counts for the incarnation whose number the devices say as the last one, and for no
//!    other.
//! 3. The log of an incarnation is removed only when the next one is durable, or when all of it is.
//! 4. Where something was lost that may be in the log (a flush has failed), the log is void: what a
//!    device has forgotten must not be entered for having once been in its volatile cache.
//! 5. A log that ran out of memory is void. A new one is begun, and counts once all is durable that
//!    it does not have.
//! 6. A log goes on from what was durable when it was written: devices that were put back to an
//!    older state since get nothing of it.
//!
//! The bytes are in [`format::host_log`].

mod survived;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::{HOST_MEMORY_MAX, HostMemory, HostMemoryId, IoError, SharedPlace};
use format::host_log::{
    AREA, COUNTS_ALL, COUNTS_AT, COUNTS_NOTHING, COUNTS_VOID, DURABLE_AT, FRAME_HEAD, HEAD_AT,
    Header, SKIP, TAIL_AT, encode_frame, frame_bytes, left_of_lap, offset_of,
};

pub use survived::SurvivingRecords;

/// A log that ran out of memory is begun anew at the latest when so many stamps became durable.
const MOST_RESTS: u32 = 256;
/// Memory is backed in steps of so many bytes.
const STEP: usize = 256 << 10;
/// With so many bytes of records a commit is asked for.
const MUCH: u64 = 16 << 20;
/// With so many, changes wait for it.
const CROWDED: u64 = 40 << 20;

/// A log that is being written; clones are the same. Without memory it keeps nothing.
#[derive(Clone, Default)]
pub struct HostLog(Rc<RefCell<Recorder>>);

#[derive(Default)]
struct Recorder {
    live: Option<LiveLog>,
    /// Why the log keeps nothing, though it was asked to.
    lost: Option<String>,
    /// The place of the log; none, if the log is void for good.
    home: Option<Home>,
    /// The newest stamp of a record, kept or not.
    newest: u64,
    /// A log that ran out of memory is begun anew after so many stamps have become durable; and how
    /// many that were the last time.
    rests: (u32, u32),
}

#[derive(Clone)]
struct Home {
    place: SharedPlace,
    owner: [u8; 16],
    id: HostMemoryId,
}

struct LiveLog {
    memory: Box<dyn HostMemory>,
    /// The log lacks records up to this stamp, and counts when that is durable.
    lacks_upto: Option<u64>,
    head: u64,
    tail: u64,
    /// The ends of runs of frames with the same stamp, in their order.
    runs: VecDeque<(u64, u64)>,
    frame: Vec<u8>,
}

impl HostLog {
    /// Begins the log of an incarnation, which goes on from what is durable up to this stamp.
    /// Error: the host has no memory for it; it is tried again by and by.
    pub fn begin(
        &self,
        place: &SharedPlace,
        owner: [u8; 16],
        id: HostMemoryId,
        durable: u64,
    ) -> Result<(), IoError> {
        let home = Home { place: place.clone(), owner, id };
        let made = LiveLog::make(&home, durable, None);
        let mut st = self.0.borrow_mut();
        st.newest = st.newest.max(durable);
        st.home = Some(home);
        match made {
            Ok(live) => {
                (st.live, st.lost) = (Some(live), None);
                Ok(())
            }
            Err(e) => {
                st.live = None;
                st.lost = Some(format!("the host has no memory for it in {}: {e}", place.name()));
                Err(e)
            }
        }
    }

    /// A record of this stamp is not kept.
    pub fn miss(&self, stamp: u64) {
        let mut st = self.0.borrow_mut();
        st.newest = st.newest.max(stamp);
    }

    /// True if records are kept.
    pub fn is_live(&self) -> bool {
        self.0.borrow().live.is_some()
    }

    /// Why no records are kept, though they should be.
    pub fn lost(&self) -> Option<String> {
        self.0.borrow().lost.clone()
    }

    /// No records are kept, though they should be, for this reason.
    pub fn note_lost(&self, why: &str) {
        self.0.borrow_mut().lost = Some(why.to_owned());
    }

    /// Keeps a record until what `stamp` names is durable. Stamps never become smaller.
    pub fn append(&self, kind: u8, stamp: u64, payload: &[u8]) {
        let mut st = self.0.borrow_mut();
        st.newest = st.newest.max(stamp);
        let Some(live) = &mut st.live else { return };
        if let Err(e) = live.append(kind, stamp, payload) {
            let text = format!("the host has no memory left for it: {e}");
            if live.lacks_upto.is_none() {
                tracing::error!("what is answered does not outlive the process any more: {text}");
            }
            live.void();
            st.live = None;
            st.lost = Some(text);
        }
    }

    /// All records up to this stamp are needless.
    pub fn note_durable(&self, stamp: u64) {
        let st = &mut *self.0.borrow_mut();
        if st.live.is_none() {
            st.begin_again(stamp);
        }
        let counts = st.live.as_mut().is_some_and(|live| live.note_durable(stamp));
        if counts {
            tracing::info!("what is answered outlives the process again");
            (st.lost, st.rests) = (None, (0, 0));
        }
    }

    /// Something is lost that may be in the log, so nothing of it counts any more.
    pub fn void(&self, why: &str) {
        let mut st = self.0.borrow_mut();
        if st.home.take().is_some() {
            st.live.take().iter_mut().for_each(LiveLog::void);
            st.lost = Some(why.to_owned());
        }
    }

    /// All that was recorded is durable, and nothing follows.
    pub fn end(&self) {
        *self.0.borrow_mut() = Recorder::default();
    }

    /// Bytes of records.
    fn bytes(&self) -> u64 {
        self.0.borrow().live.as_ref().map_or(0, |live| live.head - live.tail)
    }

    /// True if so much is recorded that a commit should make some of it needless.
    pub(crate) fn has_much(&self) -> bool {
        self.bytes() >= MUCH
    }

    /// True if so much is recorded that changes should wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.bytes() >= CROWDED
    }
}

impl Recorder {
    /// Begins a log anew that ran out of memory, if that is not tried too often.
    fn begin_again(&mut self, durable: u64) {
        let Some(home) = self.home.as_ref().filter(|_| self.lost.is_some()) else { return };
        let (left, last) = &mut self.rests;
        if *left > 0 {
            *left -= 1;
            return;
        }
        self.live = LiveLog::make(home, durable, Some(self.newest)).ok();
        *last = (*last * 2).clamp(1, MOST_RESTS);
        *left = *last;
    }
}

impl LiveLog {
    fn make(home: &Home, durable: u64, lacks_upto: Option<u64>) -> Result<LiveLog, IoError> {
        let mut memory = home.place.create(home.owner, home.id)?;
        memory.back(STEP)?;
        let is_void = lacks_upto.is_some();
        let header = Header::encode(home.owner, home.id.incarnation, (durable, is_void));
        memory.write(0, &header);
        let (runs, frame) = (VecDeque::new(), Vec::new());
        Ok(LiveLog { memory, lacks_upto, head: 0, tail: 0, runs, frame })
    }

    fn append(&mut self, kind: u8, stamp: u64, payload: &[u8]) -> Result<(), IoError> {
        let bytes = frame_bytes(payload.len()) as u64;
        if self.head == self.tail && offset_of(self.head) > STEP {
            self.go_to_next_lap();
        }
        let left = left_of_lap(self.head);
        let skipped = if left < bytes { left } else { 0 };
        if self.head + skipped + bytes - self.tail > AREA {
            return Err(IoError::NO_SPACE);
        }
        if skipped > 0 {
            if skipped >= FRAME_HEAD as u64 {
                self.store(SKIP, 0, &[])?;
            }
            self.head += skipped;
        }
        self.store(kind, stamp, payload)?;
        self.head += bytes;
        self.memory.publish(HEAD_AT, self.head);
        match self.runs.back_mut() {
            Some((last, end)) if *last == stamp => *end = self.head,
            _ => self.runs.push_back((stamp, self.head)),
        }
        Ok(())
    }

    /// Goes on at the beginning of the memory, which is backed. To be called while it is empty.
    fn go_to_next_lap(&mut self) {
        self.head += left_of_lap(self.head);
        self.tail = self.head;
        let counts = if self.lacks_upto.is_some() { COUNTS_VOID } else { COUNTS_ALL };
        if counts == COUNTS_ALL {
            self.memory.publish(COUNTS_AT, COUNTS_NOTHING);
        }
        self.memory.publish(HEAD_AT, self.head);
        self.memory.publish(TAIL_AT, self.tail);
        self.memory.publish(COUNTS_AT, counts);
    }

    /// Stores a frame at the head, which is not moved.
    fn store(&mut self, kind: u8, stamp: u64, payload: &[u8]) -> Result<(), IoError> {
        let at = offset_of(self.head);
        self.frame.clear();
        encode_frame(self.head, kind, stamp, payload, &mut self.frame);
        let end = at + self.frame.len();
        if end > self.memory.backed() {
            self.memory.back(end.next_multiple_of(STEP).min(HOST_MEMORY_MAX))?;
        }
        self.memory.write(at, &self.frame);
        Ok(())
    }

    /// Returns whether the log counts from now on, and did not before.
    fn note_durable(&mut self, stamp: u64) -> bool {
        let before = self.tail;
        while let Some(&(of, end)) = self.runs.front()
            && of <= stamp
        {
            self.tail = end;
            self.runs.pop_front();
        }
        if self.tail != before {
            self.memory.publish(TAIL_AT, self.tail);
        }
        self.memory.publish(DURABLE_AT, stamp);
        let is_whole = self.lacks_upto.take_if(|upto| *upto <= stamp).is_some();
        if is_whole {
            self.memory.publish(COUNTS_AT, COUNTS_ALL);
        }
        is_whole
    }

    fn void(&mut self) {
        self.memory.publish(COUNTS_AT, COUNTS_VOID);
    }
}
