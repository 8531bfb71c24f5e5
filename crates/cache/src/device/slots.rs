//! The slots of superblocks: which one counts.
//!
//! A checkpoint writes two superblocks of its generation, the second when the first is durable, and
//! only then overwrites what the checkpoint before needed. So a crash spoils one slot at most, and
//! one bad sector loses nothing. The first of a pair has an even number. Where an open finds only
//! that, the next checkpoint writes its twin before anything else. So it is known where the
//! pair after any superblock stands, and no crash spoils both of its slots: where both are bad they
//! may hide a checkpoint that has ended, and the older one is not believed.

use base::{ErrorKind, Result, StorageError};
use format::FormatError;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use queue::{Class, Device};

use crate::device::file::CacheFile;
use crate::device::superblock_origin::{FoundSuperblocks, Mark};

/// The content of a slot.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a few are made when a cache is opened")]
pub enum Slot {
    /// A superblock.
    Whole(CacheSuperblock),
    /// A block that cannot be read, or is damaged; with the reason.
    Bad(String),
    /// No superblock was ever written there.
    Empty(String),
}

impl Slot {
    /// Classifies a slot by the result of its read. Returns an error for a valid superblock that
    /// this program does not support.
    pub fn of(read: std::result::Result<&[u8], String>) -> std::result::Result<Slot, FormatError> {
        let block = match read {
            Ok(block) => block,
            Err(why) => return Ok(Slot::Bad(why)),
        };
        match CacheSuperblock::decode(block) {
            Ok(sb) => Ok(Slot::Whole(sb)),
            Err(
                e @ (FormatError::Version { .. }
                | FormatError::Features { .. }
                | FormatError::Older(_)),
            ) => Err(e),
            Err(e) if block.iter().all(|&b| b == 0) => Ok(Slot::Empty(e.to_string())),
            Err(e) => Ok(Slot::Bad(e.to_string())),
        }
    }

    fn whole(&self) -> Option<&CacheSuperblock> {
        if let Slot::Whole(sb) = self { Some(sb) } else { None }
    }

    fn why(&self) -> Option<&str> {
        if let Slot::Bad(why) | Slot::Empty(why) = self { Some(why) } else { None }
    }
}

/// The newest superblock in these slots.
pub(crate) fn newest(slots: &[Slot]) -> Option<&CacheSuperblock> {
    slots.iter().filter_map(Slot::whole).max_by_key(|sb| sb.sequence)
}

/// True if a whole pair that is newer than `best` may have stood where slots are bad.
pub fn newer_may_be_lost(slots: &[Slot], best: &CacheSuperblock) -> bool {
    let end = best.sequence | 1;
    [end + 1, end + 2].iter().all(|n| matches!(slots[(n % SLOTS) as usize], Slot::Bad(_)))
}

/// Reads all slots. An error of the device if none can be read: that says nothing of what is there.
pub(crate) async fn read_slots(path: &str, device: &Device) -> Result<Vec<Slot>> {
    let (mut slots, mut unread) = (Vec::new(), Vec::new());
    for slot in 0..SLOTS {
        let read = device.read_blocks(Class::Commit, CacheSuperblock::offset_of(slot), 1).await;
        unread.extend(read.get(0).err());
        let slot = Slot::of(read.get(0).map_err(|e| e.to_string()));
        slots.push(slot.map_err(|e| StorageError::new(ErrorKind::Newer, format!("{path}: {e}")))?);
    }
    match unread.first() {
        Some(&e) if unread.len() == slots.len() => {
            Err(StorageError::from_io(e, format!("{path}: the superblocks of the cache")))
        }
        _ => Ok(slots),
    }
}

/// The newest superblock that counts.
pub(crate) async fn read_superblock(file: &CacheFile, device: &Device) -> Result<CacheSuperblock> {
    Ok(read_superblocks(file, device).await?.0)
}

/// The newest superblock that counts; and all that stands there.
pub(crate) async fn read_superblocks(
    file: &CacheFile,
    device: &Device,
) -> Result<(CacheSuperblock, FoundSuperblocks)> {
    let slots = read_slots(&file.path, device).await?;
    let Some(best) = newest(&slots) else {
        let why = slots.iter().find_map(Slot::why).unwrap_or_default();
        return Err(StorageError::new(
            ErrorKind::Foreign,
            format!("{} holds no cache of Forebay: {why}", file.path),
        ));
    };
    if newer_may_be_lost(&slots, best) {
        let text = format!(
            "{}: the cache's superblocks behind number {} are bad, two in a row: a newer \
             checkpoint may have been there, and this one \
             does not count then; try again, restore the device, or go on from the pool's older \
             image without the cache: --forget-cache",
            file.path, best.sequence
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    let is_bad = |(_, slot): &(u64, &Slot)| matches!(slot, Slot::Bad(_));
    let found = FoundSuperblocks {
        best: Mark::of(best),
        marks: slots.iter().filter_map(Slot::whole).map(Mark::of).collect(),
        unread: (0..).zip(&slots).filter(is_bad).map(|(number, _)| number).collect(),
    };
    Ok((best.clone(), found))
}
