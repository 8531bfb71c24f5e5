//! The file or block device that a cache is to be made on: whether it may be taken, and opening it.
//!
//! A new cache may take a file that is not there yet, or is empty; a file or device that [is
//! empty](crate::host::emptiness); one that holds a cache in which nothing counts, as the cache
//! itself says, and nothing else. Any other data is taken if the user says that it may be lost. A
//! cache that may hold flushed data is never taken: the devices of the pool that are there may be
//! older than the cache. Nor is anything that a newer version wrote.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use base::{BLOCK, BLOCK_U64, EntrySeq, OpenId};
use cache::CacheFile;
use cache::raw::{Layout, Slot};
use format::FormatError;
use format::cache::journal::{MAX_ENTRY_BLOCKS, blocks_of, decode_entry};
use format::cache::pool_seen::PoolSeen;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use format::superblock::Superblock;
use posix::{Handles, LockedFile, NewFile, OpenFile, sys};

use crate::error::{CommandError, Result};
use crate::host::emptiness::{self, Content, block_at};
use crate::host::world::{OpenError, open, open_unowned};
use crate::units::human_bytes;

/// Opens the file or device of the cache `uuid`, which exists. Blocks, for seconds if need be.
pub fn open_existing(path: &Path, uuid: [u8; 16]) -> std::result::Result<LockedFile, OpenError> {
    let opened = open_unowned(path, &OpenFile { write: true, create: None, direct: true })?;
    // A sparse file: without space for the journal or the tables the cache ends.
    if let Ok(file) = opened.file()
        && let Ok(Some(sb)) = newest(path, &file)
        && sb.uuid == uuid
        && let Err(e) = opened.reserve(layout(&sb).buckets_offset())
    {
        let path = path.display();
        tracing::warn!(%path, "the space of the cache's journal cannot be reserved: {e}");
    }
    Ok(opened)
}

/// The same for use, and for reading alone unless `write` says something else.
pub fn open_for(
    handles: &Handles,
    path: &Path,
    write: bool,
) -> std::result::Result<CacheFile, OpenError> {
    let (file, info) = open(handles, path, &OpenFile { write, create: None, direct: true })?;
    Ok(CacheFile { path: path.display().to_string(), file, size_bytes: info.size_bytes })
}

/// A place for a new cache.
pub struct NewCachePlace {
    /// The file or device, open.
    pub opened: LockedFile,
    /// True if the file was not there before.
    pub is_new: bool,
}

/// The steps that opening a place takes.
struct OpenPlan {
    is_new: bool,
    /// True if the file that is there is made anew.
    renew: bool,
    create_len: Option<u64>,
}

/// Whether a cache for a pool that is yet to be made can be made at `path`, as far as that can be
/// told. Changes nothing.
pub fn check_place(path: &Path, size: Option<u64>) -> Result<()> {
    plan(path, size, None, false).map(drop)
}

/// Whether and how there can be a new cache at `path`. A pool that is yet to be made has no uuid.
fn plan(
    path: &Path,
    size: Option<u64>,
    pool_uuid: Option<[u8; 16]>,
    force: bool,
) -> Result<OpenPlan> {
    let failed = |e: std::io::Error| CommandError::failed(path.display(), e);
    let at = path.display();
    let meta = match path.metadata() {
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    let is_new = meta.is_none();
    let held = if is_new { CacheContent::Nothing } else { look(path)? };
    judge(path, &held, pool_uuid, force)?;
    let mut plan = OpenPlan { is_new, renew: false, create_len: None };
    let bytes;
    if meta.as_ref().is_none_or(Metadata::is_file) {
        let len = meta.as_ref().map_or(0, Metadata::len);
        // A cache that was detached counts as nothing, and its file may get another size.
        let lost = force
            || matches!(&held, CacheContent::Cache(..))
            || !is_new && cache_on(path)?.is_some();
        bytes = size.unwrap_or(len);
        match size {
            None if len == 0 => {
                return Err(CommandError::Failed(format!(
                    "say with --size how large {at} is to be"
                )));
            }
            None => {}
            Some(size) => {
                if len != size && len > 0 && !lost {
                    let text = format!(
                        "{at} has {}: a size is for files that are not there yet",
                        human_bytes(len)
                    );
                    return Err(CommandError::Failed(text));
                }
                check_room(path, size, meta.as_ref())?;
                plan.renew = len != size && len > 0;
                plan.create_len = Some(size);
            }
        }
    } else {
        bytes = File::open(path).and_then(|mut f| f.seek(SeekFrom::End(0))).map_err(failed)?;
    }
    cache::check_create(bytes, &cache::CreateOptions::default())
        .map_err(|e| CommandError::failed(at, e))?;
    Ok(plan)
}

/// Fails if what stands at `path` is to be left as it is. `force`: data may be lost.
fn judge(path: &Path, held: &CacheContent, pool_uuid: Option<[u8; 16]>, force: bool) -> Result<()> {
    let at = path.display();
    let what = match held {
        CacheContent::Nothing => return Ok(()),
        CacheContent::Refused(what) => {
            let text = format!("{at} is {what}; it was left as it is: name another place");
            return Err(CommandError::Failed(text));
        }
        CacheContent::Cache(sb, _) if !cache::holds_nothing(sb, pool_uuid) => {
            return Err(CommandError::Failed(in_use(path, sb, pool_uuid)));
        }
        CacheContent::Cache(_, None) => return Ok(()),
        CacheContent::Cache(_, Some(what)) | CacheContent::Data(what) => what,
    };
    if force {
        return Ok(());
    }
    Err(CommandError::Failed(format!(
        "{at} holds {what}; it was left as it is: name another place, or overwrite it with forebay \
         cache attach --force"
    )))
}

/// Why a cache that may hold what counts is left as it is.
fn in_use(path: &Path, sb: &CacheSuperblock, pool_uuid: Option<[u8; 16]>) -> String {
    let (at, uuid) = (path.display(), uuid::Uuid::from_bytes(sb.pool_uuid));
    let older = "this pool, which does not name it: these devices may be an older copy of the \
                 pool, and then all of them are needed";
    let whose = match Some(sb.pool_uuid) == pool_uuid {
        true => older.to_owned(),
        false => format!("another pool, {uuid}"),
    };
    let rid = match path.is_file() {
        true => format!("remove {at}"),
        false => format!(
            "clear it, with blkdiscard --zeroout --length 1M {at}, say, and attach with --force"
        ),
    };
    format!(
        "{at} holds the cache of {whose}. It was not detached, so it may hold what was flushed, \
         and was left as it is. If nothing in it counts any more, {rid}"
    )
}

/// Opens a place for a new cache of the pool `pool_uuid`, of `size` bytes if it is a file. Blocks,
/// for seconds if need be. `force`: data that stands there may be lost.
pub fn open_place(
    path: &Path,
    size: Option<u64>,
    pool_uuid: [u8; 16],
    force: bool,
) -> Result<NewCachePlace> {
    let OpenPlan { is_new, renew, create_len } = plan(path, size, Some(pool_uuid), force)?;
    // A cache that finds no space later fails with what it holds.
    let how = OpenFile { write: true, create: create_len.map(NewFile::Reserved), direct: true };
    let mut opened = open_unowned(path, &how).map_err(|e| CommandError::Failed(e.to_string()))?;
    // The place is locked now: nothing that is in use is touched, and the content that is looked at
    // now is the one that would be lost.
    let failed = |e| CommandError::failed(path.display(), e);
    let (file, bytes) = (opened.file().map_err(failed)?, opened.info.size_bytes);
    let held = look_at(path, &file, bytes)?;
    judge(path, &held, Some(pool_uuid), force)?;
    if let CacheContent::Data(what) | CacheContent::Cache(_, Some(what)) = &held {
        tracing::warn!("{} holds {what}: overwritten, as --force says", path.display());
    }
    let made = match (create_len, held) {
        (Some(len), _) if renew => opened.renew(len),
        (_, CacheContent::Nothing) => Ok(()),
        _ => emptiness::clear(&file, bytes),
    };
    let reserved = made.and_then(|()| create_len.map_or(Ok(()), |len| opened.reserve(len)));
    reserved.map_err(failed)?;
    Ok(NewCachePlace { opened, is_new })
}

/// Whether the file system has the space for a cache's file.
pub fn check_room(path: &Path, size: u64, meta: Option<&Metadata>) -> Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = sys::free_bytes(dir).map_err(|e| CommandError::failed(dir.display(), e))?;
    let room = free.saturating_add(meta.map_or(0, |m| m.blocks() * 512));
    if room >= size {
        return Ok(());
    }
    let (free, size) = (human_bytes(free), human_bytes(size));
    Err(CommandError::Failed(format!(
        "{} has {free} free, too little for a cache of {size}",
        dir.display()
    )))
}

/// The content of a file or device that is to be a cache.
#[derive(Debug)]
enum CacheContent {
    Nothing,
    /// A cache, by its newest superblock; and what else is there.
    Cache(Box<CacheSuperblock>, Option<String>),
    /// Something else.
    Data(String),
    /// No place for any of these.
    Refused(String),
}

/// The newest superblock of the cache at `path`, if there is a cache.
pub fn cache_on(path: &Path) -> Result<Option<CacheSuperblock>> {
    // Opening a pipe would wait for its other end.
    if !path.is_file() && !crate::host::world::is_block_device(path) {
        return Ok(None);
    }
    let file = File::open(path).map_err(|e| CommandError::failed(path.display(), e))?;
    newest(path, &file)
}

/// Looks what stands at `path`.
fn look(path: &Path) -> Result<CacheContent> {
    let failed = |e: std::io::Error| CommandError::failed(path.display(), e);
    let meta = path.metadata().map_err(failed)?;
    // Opening a pipe would wait for its other end.
    if !meta.is_file() && !crate::host::world::is_block_device(path) {
        return Ok(CacheContent::Refused("neither a regular file nor a block device".into()));
    }
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    look_at(path, &file, size)
}

/// Looks what an open file or device of `size_bytes` holds.
fn look_at(path: &Path, file: &File, size_bytes: u64) -> Result<CacheContent> {
    let newest = newest(path, file)?;
    let content = emptiness::look(file, size_bytes);
    let Some(sb) = newest else {
        return Ok(match content {
            Content::Empty | Content::Spent => CacheContent::Nothing,
            Content::Data(what) => CacheContent::Data(what),
        });
    };
    let beside = match content {
        Content::Data(what) if !is_unused(file, size_bytes, &sb) => Some(what),
        _ => None,
    };
    Ok(CacheContent::Cache(Box::new(sb), beside))
}

/// Whether a device holds a cache that was never opened, and no other data: a crash before the pool
/// had the cache leaves it so.
fn is_unused(file: &File, size_bytes: u64, sb: &CacheSuperblock) -> bool {
    let tables = sb.table_start * BLOCK_U64..layout(sb).ring().offset;
    let is_own = |offset, block: &[u8]| match CacheSuperblock::decode(block) {
        Ok(own) => own.uuid == sb.uuid && CacheSuperblock::offset_of(own.sequence) == offset,
        Err(_) => tables.contains(&offset) && emptiness::is_new_table(block),
    };
    sb.incarnation == 0 && emptiness::unlike(file, size_bytes, &is_own).is_none()
}

/// The newest superblock, if there is one. Error: one is there that is whole, and of a version that
/// this program does not know; the others are older then, and say nothing.
fn newest(path: &Path, file: &File) -> Result<Option<CacheSuperblock>> {
    let newest = newest_of(file);
    newest
        .map_err(|e| CommandError::Failed(format!("{}: {e}; it was left as it is", path.display())))
}

fn newest_of(file: &File) -> std::result::Result<Option<CacheSuperblock>, FormatError> {
    let mut newest: Option<CacheSuperblock> = None;
    for slot in 0..SLOTS {
        let block = block_at(file, CacheSuperblock::offset_of(slot));
        let read = block.as_deref().ok_or_else(|| "it cannot be read".to_owned());
        if let Slot::Whole(sb) = Slot::of(read)? {
            newest = newest.into_iter().chain([sb]).max_by_key(|sb| sb.sequence);
        }
    }
    Ok(newest)
}

/// The newest superblock of a device of a pool; `None` if none can be read.
pub fn newest_superblock(path: &Path) -> Option<Superblock> {
    let file = File::open(path).ok()?;
    emptiness::newest_of_pool(&file)
}

/// The cache of a pool, as the pool's newest superblock says.
pub struct PoolCache {
    /// The uuid of the cache.
    pub uuid: [u8; 16],
    /// The statement of the pool on the cache.
    pub has: PoolSeen,
    /// The open of the pool in which it was opened last.
    pub opened: OpenId,
}

/// The cache of the pool on these devices; `None` also if no superblock can be read, or if they are
/// not all of one pool.
pub fn cache_of_pool<'a>(devices: impl Iterator<Item = &'a Path>) -> Option<PoolCache> {
    let found: Vec<Superblock> = devices.filter_map(newest_superblock).collect();
    let newest = pool::raw::newest_superblock(found.iter())?;
    let uuid =
        found.iter().all(|sb| sb.pool_uuid == newest.pool_uuid).then_some(newest.cache_uuid)??;
    let has = PoolSeen { entry: newest.cache_journal, published: newest.published };
    Some(PoolCache { uuid, has, opened: newest.lineage.cache_opened })
}

/// The positions of all parts of a cache with this superblock.
fn layout(sb: &CacheSuperblock) -> Layout {
    Layout {
        bucket_blocks: sb.bucket_blocks,
        buckets: sb.bucket_count,
        journal_blocks: sb.journal_blocks,
        moved: sb.moved,
    }
}

/// Returns what a cache with this superblock has seen of its pool, as far as that can be read.
pub fn pool_seen(path: &Path, sb: &CacheSuperblock) -> PoolSeen {
    let mut seen = sb.pool_seen;
    let Ok(file) = File::open(path) else { return seen };
    let ring = layout(sb).ring();
    let (mut position, mut sequence) = (sb.replay_position, sb.replay_sequence);
    let entry_at = |offset: u64, sequence: EntrySeq| {
        let first = block_at(&file, offset)?;
        let mut bytes = vec![0; blocks_of(&first, &sb.uuid, sb.incarnation, sequence)? * BLOCK];
        file.read_exact_at(&mut bytes, offset).ok()?;
        decode_entry(&bytes, &sb.uuid, sb.incarnation, sequence).ok()
    };
    loop {
        if ring.blocks.saturating_sub(position) < MAX_ENTRY_BLOCKS {
            position = 0;
        }
        let found = ring.places(position).into_iter().find_map(|at| entry_at(at, sequence));
        let Some(entry) = found else { return seen };
        seen = seen.max(entry.pool_seen);
        position += entry.blocks();
        sequence.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::host::world::{IoChoice, World};

    const CACHE: u64 = 16 << 20;

    /// Makes a pool and a cache of it; returns the pool's uuid.
    fn pool_with_cache(dir: &Path, name: &str) -> [u8; 16] {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let at = dir.join(format!("{name}.pool"));
        let how = OpenFile { write: true, create: Some(NewFile::Sparse(320 << 20)), direct: true };
        let (file, info) = open(&world.handles, &at, &how).unwrap();
        let device = world.device(&at.clone().into(), file, &info);
        let on = dir.join(name);
        let (cache, info) =
            open(&world.handles, &on, &OpenFile { create: Some(NewFile::Sparse(CACHE)), ..how })
                .unwrap();
        let cache =
            CacheFile { path: on.display().to_string(), file: cache, size_bytes: info.size_bytes };
        let files = [file, cache.file];
        let ids = [uuid::Uuid::new_v4().into_bytes(), uuid::Uuid::new_v4().into_bytes()];
        let options = pool::CreateOptions { name: "p".into(), copies: 1, group_bytes: None };
        let rt = world.rt.clone();
        let made = world.rt.block_on(async move {
            pool::create(&rt, std::slice::from_ref(&device), &options, &ids).await?;
            let (pool, _) = pool::Pool::open(&rt, vec![device], pool::Settings::default()).await?;
            cache::create(&rt, &cache, &pool, &cache::CreateOptions::default(), [9; 16]).await?;
            pool.close().await
        });
        made.unwrap().unwrap();
        files.iter().for_each(|f| world.handles.close_file(*f).unwrap());
        assert_eq!(
            cache_of_pool([at.as_path()].into_iter()).map(|found| found.uuid),
            Some([9; 16])
        );
        ids[0]
    }

    /// Changes the superblock of a cache as an open does.
    fn opened_once(path: &Path) {
        let Ok(Some(mut sb)) = cache_on(path) else { panic!("a cache") };
        sb.incarnation += 1;
        sb.sequence += 1;
        let mut block = vec![0; BLOCK];
        sb.encode(&mut block);
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&block, CacheSuperblock::offset_of(sb.sequence)).unwrap();
    }

    fn mark(path: &Path) {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let file = open_for(&world.handles, path, true).unwrap();
        let (rt, at) = (world.rt.clone(), file.clone());
        let marked = async move { cache::mark_detached(&rt, &at).await };
        world.rt.block_on(marked).unwrap().unwrap();
        world.handles.close_file(file.file).unwrap();
    }

    #[test]
    fn a_file_is_not_made_among_devices() {
        let missing = Path::new("/dev/there-is-no-such-disk");
        let Err(e) = open_place(missing, Some(CACHE), [1; 16], false) else {
            panic!("it was made")
        };
        assert!(e.to_string().contains("is not there"), "{e}");
        assert!(!missing.exists());
    }

    #[test]
    fn only_what_may_be_lost_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let foreign = pool_with_cache(dir.path(), "foreign");
        let own = pool_with_cache(dir.path(), "own");
        let place = |name: &str, size| open_place(&dir.path().join(name), size, own, false);
        let refused = |name: &str, size, word: &str| {
            let before = std::fs::read(dir.path().join(name)).ok();
            let Err(e) = place(name, size) else { panic!("{name} was taken") };
            assert!(e.to_string().contains(word), "{name}: {e}");
            assert_eq!(std::fs::read(dir.path().join(name)).ok(), before);
        };
        refused("none", None, "--size");
        refused("none", Some(1 << 60), "free");
        refused("none", Some(1 << 20), "11 MiB at least");
        let new = place("none", Some(CACHE)).unwrap();
        assert!(new.is_new && new.opened.info.size_bytes == CACHE);

        std::fs::write(dir.path().join("plain"), [0; 5000]).unwrap();
        refused("plain", Some(2 << 20), "is for files");
        let (text, other) = (dir.path().join("text"), dir.path().join("other"));
        std::fs::write(&text, "of somebody\n".repeat(CACHE as usize / 12)).unwrap();
        refused("text", None, "attach --force");
        refused("text", Some(2 * CACHE), "attach --force");
        std::fs::copy(&text, &other).unwrap();
        for (path, size) in [(&text, None), (&other, Some(2 * CACHE))] {
            let taken = open_place(path, size, own, true).unwrap();
            assert!(!taken.is_new);
            drop(taken);
            assert!(matches!(look(path), Ok(CacheContent::Nothing)));
        }
        std::fs::remove_file(other).unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        refused("dir", Some(1 << 20), "regular file");

        refused("own", Some(1 << 20), "11 MiB at least");
        assert!(
            check_place(&dir.path().join("own"), Some(CACHE)).is_err(),
            "not the cache of a pool that is yet to be made"
        );
        let held = look(&dir.path().join("own"));
        assert!(matches!(held, Ok(CacheContent::Cache(sb, None)) if sb.pool_uuid == own));
        let again = place("own", Some(2 * CACHE)).unwrap();
        assert!(!again.is_new && again.opened.info.size_bytes == 2 * CACHE);

        refused("foreign", None, "another pool");
        refused("foreign", Some(2 * CACHE), "another pool");
        // One that was opened may hold what was flushed, whatever the pool says; one that is marked
        // holds nothing, of whichever pool it is.
        opened_once(&dir.path().join("foreign"));
        refused("foreign", Some(CACHE), "another pool");
        let other = pool_with_cache(dir.path(), "other");
        let at = dir.path().join("other");
        let again = |size| open_place(&at, size, other, false);
        opened_once(&at);
        let before = std::fs::read(&at).unwrap();
        for size in [None, Some(CACHE), Some(2 * CACHE)] {
            let Err(e) = again(size) else { panic!("it was taken") };
            assert!(e.to_string().contains("was not detached"), "{e}");
            assert!(open_place(&at, size, other, true).is_err(), "by force");
        }
        assert_eq!(std::fs::read(&at).unwrap(), before);
        mark(&at);
        // Somebody has used it for something else since.
        let write = |bytes: &[u8]| {
            let file = OpenOptions::new().write(true).open(&at).unwrap();
            file.write_all_at(bytes, 0x5000).unwrap();
        };
        write(b"data");
        let e = again(Some(CACHE)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains("left of a Forebay cache that was detached; it was left"), "{e}");
        write(&[0; 4]);
        drop(open_place(&at, Some(2 * CACHE), own, false).unwrap());
        drop(again(Some(2 * CACHE)).unwrap());

        let file = OpenOptions::new().write(true).open(dir.path().join("foreign")).unwrap();
        (0..SLOTS).for_each(|slot| {
            file.write_all_at(b"x", CacheSuperblock::offset_of(slot) + 100).unwrap()
        });
        refused("foreign", None, "damaged");
        let both = ["own.pool", "foreign.pool"].map(|name| dir.path().join(name));
        assert!(
            own != foreign && cache_of_pool(both.iter().map(|p| p.as_path())).is_none(),
            "of two pools"
        );
    }
}
