//! Repair of a pool that is not served, for what the offline check has found.
//!
//! Three things can be done, and none of them takes a guess:
//!
//! | what is wrong | what is done |
//! | --- | --- |
//! | a copy of a block is bad | it is written again from a copy that is verified, in its place |
//! | a superblock slot is bad | the newest superblock is written to each slot in turn |
//! | blocks are allocated that nothing refers to | a commit frees them, as any other commit would |
//!
//! **Power may fail at any moment.** A write in place goes only to a copy that is bad, and the
//! newest state says what it should be: half of it is as bad as before, and the good copy is not
//! touched. Superblocks and commits are those of an open pool: a crash leaves the state before, or
//! after.
//!
//! Nothing else goes on in a pool that is opened for this: no scrub, no move, no commit by a clock.
//! All its devices have to be there. A device that is away gets what it lacks when the pool is
//! served.

use base::{BLOCK, Buf, Crc, ErrorKind, PoolAddr, Result, StorageError, VolumeId, crc32c};
use format::page::{PageId, PageVersion, open_page};
use queue::Class;
use rt::Rt;

use crate::commit::Committer;
use crate::core::Core;
use crate::devices::{DeviceFile, PoolDevice};
use crate::open::{PageCopy, load};
use crate::pool::Pool;
use crate::settings::Settings;
use crate::space::Run;

/// The place of a copy of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Spot {
    /// The device's row.
    pub device: usize,
    /// The offset on the device in bytes.
    pub offset: u64,
}

/// The content that a block has to have.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// Data or a node with this checksum, which is recorded by what refers to the block.
    Block(Crc),
    /// The version of a page that the newest superblock or the group's record says.
    Page(PageId, PageVersion),
}

impl Content {
    fn is_in(&self, block: &[u8]) -> bool {
        match self {
            Content::Block(crc) => crc32c(block) == *crc,
            Content::Page(id, version) => {
                open_page(id, block).is_ok_and(|(found, _)| found == *version)
            }
        }
    }
}

/// A copy that is bad, and one that is good.
#[derive(Clone, Copy, Debug)]
pub struct BadCopy {
    /// The bad one.
    pub bad: Spot,
    /// The good one.
    pub good: Spot,
    /// The content that both copies have to have.
    pub content: Content,
}

/// The outcome of rewriting a bad copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RewriteOutcome {
    /// The copy was written, flushed and read back, and is good.
    Yes,
    /// The copy was good when it was read again, and was not written.
    WasGood,
    /// The copy is as bad as before, for this reason.
    No(String),
}

/// A pool that is open for repair. Nothing was written yet.
pub struct Repair {
    pool: Pool,
    lacking: Option<Vec<PageCopy>>,
}

impl Repair {
    /// Opens a pool on its devices, all of which have to be there and up to date.
    pub async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Result<Repair> {
        let settings = Settings::default();
        let loaded = load(rt, files, &settings).await?;
        let repair =
            Repair { pool: Pool::over(rt, settings, loaded.state), lacking: loaded.lacking };
        let away = repair.pool.core().state().devices.iter().position(is_away);
        match away {
            None => {
                repair.pool.core().state_mut().standing.open();
                repair.pool.flows().watch.begin_looking();
                Ok(repair)
            }
            Some(row) => {
                repair.close();
                Err(StorageError::new(
                    ErrorKind::Missing,
                    format!("device {row} of the pool is missing or out of use"),
                ))
            }
        }
    }

    /// The pool, to be read.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Lets go of the devices.
    pub fn close(&self) {
        self.pool.core().set_closed();
    }

    /// Writes bad copies again. Fails if a device cannot be flushed: what it holds of them is not
    /// known then.
    pub async fn rewrite(&self, copies: &[BadCopy]) -> Result<Vec<RewriteOutcome>> {
        let rt = self.pool.core().rt();
        let tasks: Vec<_> = copies
            .iter()
            .map(|&copy| {
                let core = self.pool.core().clone();
                rt.spawn(async move { write_again(&core, &copy).await })
            })
            .collect();
        let mut outcomes = Vec::with_capacity(copies.len());
        for task in tasks {
            outcomes.push(task.await.unwrap_or(Err(StorageError::ended()))?);
        }
        let mut rows: Vec<usize> = copies
            .iter()
            .zip(&outcomes)
            .filter_map(|(c, o)| (*o == RewriteOutcome::Yes).then_some(c.bad.device))
            .collect();
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            flush_repaired(self.pool.core(), row).await?;
        }
        let tasks: Vec<_> = copies
            .iter()
            .zip(&outcomes)
            .filter(|(_, o)| **o == RewriteOutcome::Yes)
            .map(|(&copy, _)| {
                let core = self.pool.core().clone();
                rt.spawn(async move { repaired(&core, copy.bad, &copy.content).await })
            })
            .collect();
        let mut tasks = tasks.into_iter();
        for outcome in outcomes.iter_mut().filter(|o| **o == RewriteOutcome::Yes) {
            let Some(task) = tasks.next() else { break };
            if let Err(why) = task.await.unwrap_or_else(|| Err("it was not read back".into())) {
                let text = format!("{why}, after it was written; replace the device");
                *outcome = RewriteOutcome::No(text);
            }
        }
        Ok(outcomes)
    }

    /// Brings all devices to the newest superblock, once; a sync that failed is not forgotten.
    async fn sync(&mut self) -> Result<()> {
        self.pool.flows().superblock_sync.sync_superblocks(self.lacking.clone()).await?;
        self.lacking = None;
        Ok(())
    }

    /// Takes deleted volumes out of the table, by a commit, whatever they still hold: nothing
    /// refers to that any more.
    pub async fn forget(&mut self, volumes: &[VolumeId]) -> Result<()> {
        self.sync().await?;
        self.pool.core().state_mut().begin_open();
        for &id in volumes {
            self.pool.core().state_mut().forget_volume(id)?;
        }
        Committer::new(&self.pool.flows().run).run().await
    }

    /// Frees blocks that are allocated and that nothing refers to, by a commit; and writes every
    /// superblock slot anew if `slots` says so.
    pub async fn commit(&mut self, leaked: &[(PoolAddr, u32)], slots: bool) -> Result<()> {
        if leaked.is_empty() && !slots {
            return Ok(());
        }
        self.sync().await?;
        self.pool.core().state_mut().begin_open();
        if !leaked.is_empty() {
            {
                let mut st = self.pool.core().state_mut();
                let blocks = st.space.geometry().group_blocks;
                let open = st.txns.open_mut();
                leaked.iter().for_each(|&(addr, len)| open.note_free(Run { addr, len }, blocks));
            }
            Committer::new(&self.pool.flows().run).run().await?;
        }
        if slots {
            self.pool.flows().superblock_sync.renew_slots().await?;
        }
        Ok(())
    }
}

fn is_away(device: &PoolDevice) -> bool {
    !device.is_removed() && device.live().is_none()
}

/// Writes a bad copy again from a good one; both are read first. Not durable when it returns.
async fn write_again(core: &Core, copy: &BadCopy) -> Result<RewriteOutcome> {
    if repaired(core, copy.bad, &copy.content).await.is_ok() {
        return Ok(RewriteOutcome::WasGood);
    }
    let good = match repaired(core, copy.good, &copy.content).await {
        Ok(good) => good,
        Err(why) => return Ok(RewriteOutcome::No(format!("the good copy: {why}"))),
    };
    let Some(disk) = core.disk(copy.bad.device) else {
        return Ok(RewriteOutcome::No("its device is out of use".into()));
    };
    let data = base::SliceList::from_iter([good.freeze()]);
    let written = disk.write(core.permit()?, Class::Commit, copy.bad.offset, data).await;
    Ok(match written {
        Ok(()) => RewriteOutcome::Yes,
        Err(e) => RewriteOutcome::No(format!("it cannot be written: {e}; replace the device")),
    })
}

/// Reads a copy, if it is what it should be.
async fn repaired(core: &Core, at: Spot, content: &Content) -> std::result::Result<Buf, String> {
    let Some(disk) = core.disk(at.device) else {
        return Err("its device is out of use".into());
    };
    match disk.read_new(Class::Commit, at.offset, BLOCK).await {
        (Ok(()), block) if content.is_in(&block) => Ok(block),
        (Ok(()), _) => Err("it is not what it should be".into()),
        (Err(e), _) => Err(format!("it cannot be read: {e}")),
    }
}

async fn flush_repaired(core: &Core, row: usize) -> Result<()> {
    let (permit, disk) = (core.permit()?, core.disk(row));
    let outcome = match disk {
        Some(disk) => disk.flush(permit, Class::Commit).await,
        None => Err(base::IoError::NO_DEVICE),
    };
    outcome.map_err(|e| {
        let path = core.state().devices.path(row).to_owned();
        let text = format!(
            "{path}: a flush failed ({e}), so what was written to it may not be there. Only \
             bad copies were written: nothing is lost. See to the device, or replace it, and \
             run the repair again"
        );
        StorageError::new(ErrorKind::Io, text)
    })
}
