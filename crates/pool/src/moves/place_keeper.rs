//! Keeps on every device where the devices of the pool and its cache are
//! ([`format::places`]): a start finds by it what is not named.
//!
//! The record stands between superblocks and tables, where nothing else is written. It is written
//! when it says something new; devices out of use keep what they had.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use base::{Duration, ErrorKind, IoError, Result, SliceList, StorageError};
use format::places::{Place, Places, SLOT_BYTES, SLOTS};
use queue::Class;
use rt::sync::within;

use crate::core::Core;
use crate::devices::Disk;
use crate::transfer::writer_watch::WriterWatch;

/// For so long a command waits for devices that do not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Keeps the record of places.
pub struct PlaceKeeper {
    core: Core,
    watch: Rc<WriterWatch>,
}

impl PlaceKeeper {
    /// Makes the flow out of the core and the flow that it calls.
    pub(crate) fn new(core: &Core, watch: &Rc<WriterWatch>) -> Rc<PlaceKeeper> {
        Rc::new(PlaceKeeper { core: core.clone(), watch: watch.clone() })
    }

    /// Keeps these places, instead of those that were kept before. Durable on at least one device
    /// when it returns, on all devices in use that answer soon. Nothing of a pool that is closed.
    ///
    /// # Errors
    ///
    /// No device has taken the record.
    pub async fn keep(&self, rows: Vec<Place>) -> Result<()> {
        if self.core.is_closed() {
            return Ok(());
        }
        let permit = self.watch.permit_to_write().await?;
        let core = self.core.clone();
        let read = move |disk: Disk| {
            let core = core.clone();
            async move { newest(&core, &disk).await }
        };
        let found = self.ask_all(self.live(), read).await;
        let sequence = found.iter().filter_map(|(_, kept)| Some(kept.as_ref()?.sequence)).max();
        let (pool_uuid, sequence) =
            (self.core.state().identity.uuid, sequence.map_or(1, |s| s.wrapping_add(1)));
        let is_kept = |kept: &Option<Places>| kept.as_ref().is_some_and(|kept| kept.rows == rows);
        let (kept, old): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, had)| is_kept(had));
        let record = Places { pool_uuid, sequence, rows };
        let core = self.core.clone();
        let write = move |disk: Disk| {
            let mut block = core.rt().bufs().take(SLOT_BYTES);
            record.encode(&mut block);
            let data = SliceList::from_iter([block.freeze()]);
            let at = Places::offset_of(record.sequence);
            async move { disk.write_durable(permit, Class::Commit, at, data).await }
        };
        let rows = old.into_iter().map(|(row, _)| row).collect();
        let written = self.ask_all(rows, write).await;
        let failed = written.iter().filter_map(|(row, outcome)| Some((*row, outcome.err()?)));
        let failed: Vec<(usize, IoError)> = failed.collect();
        for (row, e) in &failed {
            tracing::warn!("device {row} does not keep where the devices of the pool are: {e}");
        }
        match written.len() - failed.len() + kept.len() {
            0 => Err(StorageError::new(
                ErrorKind::Io,
                "no device of the pool has kept where its devices are; the next start may not \
                 find them by itself",
            )),
            _ => Ok(()),
        }
    }

    fn live(&self) -> Vec<usize> {
        self.core.state().devices.live_rows()
    }

    /// Asks the devices of these rows, all at once. Returns what was answered soon.
    async fn ask_all<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        rows: Vec<usize>,
        mut ask: impl FnMut(Disk) -> F,
    ) -> Vec<(usize, T)> {
        let answers = Rc::new(RefCell::new(Vec::new()));
        let mut asked = Vec::new();
        for row in rows {
            let Some(disk) = self.core.state().devices.to_write(row).1 else { continue };
            let (answer, answers) = (ask(disk), answers.clone());
            asked.push(self.core.rt().spawn(async move {
                let answer = answer.await;
                answers.borrow_mut().push((row, answer));
            }));
        }
        let mut all = std::pin::pin!(async {
            for one in asked {
                _ = one.await;
            }
        });
        within(&mut all, self.core.rt().sleep(PATIENCE)).await;
        answers.take()
    }
}

/// The record of this pool that a device has.
async fn newest(core: &Core, disk: &Disk) -> Option<Places> {
    let mut newest: Option<Places> = None;
    for slot in 0..SLOTS {
        let (read, bytes) = disk.read_new(Class::Commit, Places::offset_of(slot), SLOT_BYTES).await;
        let own = core.state().identity.uuid;
        let found = read.ok().and_then(|()| Places::decode(&bytes).ok());
        let found = found.filter(|found| found.pool_uuid == own);
        newest = newest.into_iter().chain(found).max_by_key(|found| found.sequence);
    }
    newest
}
