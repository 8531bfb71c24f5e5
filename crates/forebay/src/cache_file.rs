//! The file or block device that a cache is to be made on: whether it may be taken, and opening it.
//!
//! What may be taken: a file that is not there yet, or empty; a file or device on which nothing is recognised; one that holds a cache of this very pool, which
//! the pool does not count on any more. Everything else is refused, and left as it is.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use base::BLOCK;
use cache::CacheFile;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use posix::{Handles, OpenFile, sys};

use crate::error::{CommandError, Result};
use crate::signatures::{self, A_CACHE};
use crate::units::human_bytes;
use crate::world::{OpenError, open};

/// Opens a cache's file or device that exists.
pub fn open_existing(handles: &Handles, path: &Path) -> std::result::Result<CacheFile, OpenError> {
    opened(handles, path, None)
}

fn opened(handles: &Handles, path: &Path, create_len: Option<u64>) -> std::result::Result<CacheFile, OpenError> {
    let (file, info) = open(handles, path, &OpenFile { write: true, create_len, direct: true })?;
    Ok(CacheFile { path: path.display().to_string(), file, size_bytes: info.size_bytes })
}

/// A place for a new cache.
pub struct Place {
    /// The file or device, open.
    pub file: CacheFile,
    /// It was not there before.
    pub is_new: bool,
}

/// Opens a place for a new cache of the pool `pool_uuid`, of `size` bytes if it is a file.
pub fn open_place(handles: &Handles, path: &Path, size: Option<u64>, pool_uuid: [u8; 16]) -> Result<Place> {
    let failed = |e: std::io::Error| CommandError::failed(path.display(), e);
    let at = path.display();
    let meta = match path.metadata() {
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    let is_new = meta.is_none();
    let held = if is_new { Held::Nothing } else { look(path)? };
    if let Held::Refused(what) = &held {
        return Err(CommandError::Failed(format!("{at} holds {what}; it was left as it is: name another place")));
    }
    let mut create_len = None;
    if meta.as_ref().is_none_or(Metadata::is_file) {
        let len = meta.as_ref().map_or(0, Metadata::len);
        let own = matches!(&held, Held::Cache(sb) if sb.pool_uuid == pool_uuid);
        match size {
            None if len == 0 => {
                return Err(CommandError::Failed(format!("say with --size how large {at} is to be")));
            }
            None => {}
            Some(size) => {
                if len != size && len > 0 && !own {
                    let text = format!("{at} has {}: a size is for files that are not there yet", human_bytes(len));
                    return Err(CommandError::Failed(text));
                }
                check_room(path, size, meta.as_ref())?;
                if len != size && len > 0 {
                    // An old cache of this pool: nothing in it counts.
                    OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(0)).map_err(failed)?;
                }
                create_len = Some(size);
            }
        }
    }
    if let Held::Cache(sb) = &held
        && sb.pool_uuid != pool_uuid
    {
        return Err(CommandError::Failed(format!("{at} holds the cache of another pool; it was left as it is")));
    }
    let file = opened(handles, path, create_len).map_err(|e| CommandError::Failed(e.to_string()))?;
    Ok(Place { file, is_new })
}

/// The file is sparse; but a cache that finds no space later fails with what it holds.
fn check_room(path: &Path, size: u64, meta: Option<&Metadata>) -> Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = sys::free_bytes(dir).map_err(|e| CommandError::failed(dir.display(), e))?;
    let room = free.saturating_add(meta.map_or(0, |m| m.blocks() * 512));
    if room >= size {
        return Ok(());
    }
    let (free, size) = (human_bytes(free), human_bytes(size));
    Err(CommandError::Failed(format!("{} has {free} free, too little for a cache of {size}", dir.display())))
}

/// What stands on a file or device.
#[derive(Debug)]
pub enum Held {
    /// Nothing that is recognised.
    Nothing,
    /// A cache.
    Cache(Box<CacheSuperblock>),
    /// Something else.
    Refused(String),
}

/// Looks what stands at `path`.
pub fn look(path: &Path) -> Result<Held> {
    let failed = |e: std::io::Error| CommandError::failed(path.display(), e);
    let meta = path.metadata().map_err(failed)?;
    // Opening a pipe would wait for its other end.
    if !meta.is_file() && !crate::world::is_block_device(path) {
        return Ok(Held::Refused("neither a regular file nor a block device".into()));
    }
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let found = signatures::find(&file, size);
    if let Some(sb) = newest(&file) {
        return Ok(Held::Cache(Box::new(sb)));
    }
    // A damaged cache is still a cache.
    if found.is_empty() {
        return Ok(Held::Nothing);
    }
    let damaged = if found.iter().all(|s| s.what == A_CACHE) { " whose superblocks are all damaged" } else { "" };
    Ok(Held::Refused(signatures::describe(&found) + damaged))
}

fn newest(file: &File) -> Option<CacheSuperblock> {
    let read = |slot| {
        let mut block = vec![0; BLOCK];
        file.read_exact_at(&mut block, CacheSuperblock::offset_of(slot)).ok()?;
        CacheSuperblock::decode(&block).ok()
    };
    (0..SLOTS).filter_map(read).max_by_key(|sb| sb.sequence)
}

#[cfg(test)]
mod tests {
    use format::cache::superblock::CacheState;

    use super::*;
    use crate::world::{IoChoice, World};

    const POOL: [u8; 16] = [7; 16];

    fn cache_of(pool_uuid: [u8; 16], path: &Path) {
        let sb = CacheSuperblock {
            uuid: [1; 16],
            pool_uuid,
            sequence: 1,
            incarnation: 0,
            generation: base::Generation(1),
            root: None,
            bucket_blocks: 128,
            bucket_count: 16,
            table_start: 32,
            journal_start: 34,
            journal_blocks: 256,
            replay_position: 0,
            replay_sequence: 1,
            epoch: base::Epoch(1),
            cut: base::Epoch(0),
            state: CacheState::Detached,
            shard: 0,
        };
        let mut block = vec![0; BLOCK];
        sb.encode(&mut block);
        let file = File::create(path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&block, CacheSuperblock::offset_of(1)).unwrap();
    }

    #[test]
    fn only_what_may_be_lost_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(IoChoice::Posix).unwrap();
        let place = |name: &str, size| open_place(&world.handles, &dir.path().join(name), size, POOL);
        let refused = |name: &str, size, word: &str| {
            let before = std::fs::read(dir.path().join(name)).ok();
            let Err(e) = place(name, size) else { panic!("{name} was taken") };
            assert!(e.to_string().contains(word), "{name}: {e}");
            assert_eq!(std::fs::read(dir.path().join(name)).ok(), before);
        };
        refused("none", None, "--size");
        refused("none", Some(1 << 60), "free");
        let new = place("none", Some(1 << 20)).unwrap();
        assert!(new.is_new && new.file.size_bytes == 1 << 20);

        cache_of([8; 16], &dir.path().join("foreign"));
        refused("foreign", None, "another pool");
        refused("foreign", Some(2 << 20), "is for files");
        std::fs::write(dir.path().join("qcow2"), b"QFI\xfbabcd").unwrap();
        refused("qcow2", None, "qcow2");
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        refused("dir", Some(1 << 20), "regular file");

        cache_of(POOL, &dir.path().join("own"));
        assert!(matches!(look(&dir.path().join("own")), Ok(Held::Cache(sb)) if sb.pool_uuid == POOL));
        let again = place("own", Some(2 << 20)).unwrap();
        assert!(!again.is_new && again.file.size_bytes == 2 << 20);

        cache_of(POOL, &dir.path().join("torn"));
        let file = OpenOptions::new().write(true).open(dir.path().join("torn")).unwrap();
        file.write_all_at(b"x", CacheSuperblock::offset_of(1) + 100).unwrap();
        refused("torn", None, "damaged");
    }
}
