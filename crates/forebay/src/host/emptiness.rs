//! Whether a device counts as empty, and the names of what it holds otherwise: so that nothing is
//! made over somebody's data unasked.
//!
//! A device is empty if both of its [edges](format::edges) are zeros, and `blkid`, where that is
//! installed, knows nothing on it. No list of formats decides: what is not known counts as data.
//! `blkid` and the magic numbers of Forebay's own superblocks only give names to what is there.
//!
//! A cache that was detached left its superblocks, which say so, and one that was being made when
//! the machine failed left tables with nothing in them. They count as zeros as long as nothing else
//! is in the edges: other data may have been written to the device since.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use base::{BLOCK, BLOCK_U64, BufPool};
use format::cache::superblock::{self as cache, CacheState, CacheSuperblock};
use format::edges::edges;
use format::page;
use format::seal::check_seal;
use format::superblock::{self, SLOT_STEP, Superblock};
use posix::LockedFile;

use crate::attach::tool;

/// Bytes that are looked at in one step.
const STEP: usize = 1 << 20;

const FOREBAY: &[u8] = b"FOREBAY1";
const FOREBAY_CACHE: &[u8] = b"FBCACHE1";
/// The first bytes of a page of the tables of a pool or a cache, and the number of bytes before its
/// content.
const PAGE: &[u8] = b"FBPG";
const PAGE_HEADER: usize = 56;

/// The content of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeros, as far as it was looked at.
    Empty,
    /// The superblocks of a cache that was detached, or the tables of one that was being made, and
    /// zeros.
    Spent,
    /// Something that is to be kept unless the user says otherwise: its name, for people.
    Data(String),
}

impl Content {
    /// The name of the data, if there is any.
    pub fn data(&self) -> Option<&str> {
        if let Content::Data(what) = self { Some(what) } else { None }
    }
}

/// A device that is to be made something new: locked, and looked at. The device is closed only when
/// this is dropped, too.
pub struct InspectedDevice {
    /// The path of the device.
    pub path: String,
    file: File,
    size_bytes: u64,
    /// The content of the device.
    pub content: Content,
}

impl InspectedDevice {
    /// Looks at what was opened at `path`. Blocks.
    pub fn at(path: &Path, opened: &LockedFile) -> io::Result<InspectedDevice> {
        let (file, size_bytes) = (opened.file()?, opened.info.size_bytes);
        let content = look(&file, size_bytes);
        Ok(InspectedDevice { path: path.display().to_string(), file, size_bytes, content })
    }

    /// The data that would be lost, in words; `None` if none would.
    pub fn held(&self) -> Option<String> {
        self.content.data().map(|what| format!("{} holds {what}", self.path))
    }

    /// Makes the device empty, durably. Blocks.
    pub fn clear(&self) -> io::Result<()> {
        if self.content == Content::Empty { Ok(()) } else { clear(&self.file, self.size_bytes) }
    }
}

/// Looks at an open device of `size_bytes`. Blocks; runs `blkid`.
pub fn look(file: &File, size_bytes: u64) -> Content {
    by_blkid(file).map_or_else(|| by_bytes(file, size_bytes), Content::Data)
}

/// The same without the help of another program.
pub fn by_bytes(file: &File, size_bytes: u64) -> Content {
    let Some(first) = unlike(file, size_bytes, &|_, _| false) else { return Content::Empty };
    let is_spent = |offset, block: &[u8]| {
        let slot = (0..cache::SLOTS).any(|slot| CacheSuperblock::offset_of(slot) == offset);
        let sb = slot.then(|| CacheSuperblock::decode(block).ok()).flatten();
        sb.is_some_and(|sb| sb.state == CacheState::Detached) || is_new_table(block)
    };
    match unlike(file, size_bytes, &is_spent) {
        Some(_) => Content::Data(own_name(file).unwrap_or_else(|| first.to_string())),
        None => Content::Spent,
    }
}

/// Whether a block is a page of a cache's bucket table that calls every bucket free, as they are
/// made for a new cache: nothing is in any of them.
pub fn is_new_table(block: &[u8]) -> bool {
    const BUCKETS: u8 = 4;
    let (header, rest) = block.split_at(block.len().min(PAGE_HEADER));
    let kind = header.get(PAGE.len()) == Some(&BUCKETS);
    let zeros = |part: &[u8]| part.iter().all(|&b| b == 0);
    let is_free = || rest.get(..page::PAYLOAD).is_some_and(zeros);
    header.starts_with(PAGE) && kind && is_free() && check_seal("page", block).is_ok()
}

/// A place where a device is not as it is expected to be.
#[derive(Debug)]
pub enum ContentMismatch {
    /// The byte from which on it is not zeros.
    Zeros(u64),
    /// The device cannot be read there.
    Unreadable(u64, io::Error),
}

impl std::fmt::Display for ContentMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ContentMismatch::Zeros(at) => write!(f, "data: it is not zeros at byte {at}"),
            ContentMismatch::Unreadable(at, e) => {
                write!(f, "what cannot be read at byte {at}: {e}")
            }
        }
    }
}

/// The first block in the edges that is neither zeros nor known, by its offset and its bytes.
pub fn unlike(
    file: &File,
    size_bytes: u64,
    is_known: &dyn Fn(u64, &[u8]) -> bool,
) -> Option<ContentMismatch> {
    let strange = |offset: u64, bytes: &[u8]| {
        let blocks = (offset..).step_by(BLOCK).zip(bytes.chunks(BLOCK));
        let first = |(at, block): (u64, &[u8])| {
            let zeros = block.iter().take_while(|&&b| b == 0).count();
            (zeros < block.len() && !is_known(at, block)).then_some(at + zeros as u64)
        };
        blocks.into_iter().find_map(first)
    };
    let mut found = None;
    let read = in_edges(file, size_bytes, &mut |offset, bytes| {
        found = strange(offset, bytes);
        Ok(found.is_none())
    });
    match read {
        Ok(()) => found.map(ContentMismatch::Zeros),
        Err((at, e)) => Some(ContentMismatch::Unreadable(at, e)),
    }
}

/// Overwrites the edges of an open device with zeros where they are not, durably. Blocks.
pub fn clear(file: &File, size_bytes: u64) -> io::Result<()> {
    let zeros = BufPool::new(0).zeroed(STEP);
    let cleared = in_edges(file, size_bytes, &mut |offset, bytes| {
        if bytes.iter().any(|&b| b != 0) {
            write_zeros(file, offset, &zeros[..bytes.len()])?;
        }
        Ok(true)
    });
    cleared.map_err(|(_, e)| e)?;
    file.sync_all()
}

/// A file whose length is no multiple of a block cannot be written to its end past the page cache.
fn write_zeros(file: &File, offset: u64, zeros: &[u8]) -> io::Result<()> {
    let (whole, rest) = zeros.split_at(zeros.len() / BLOCK * BLOCK);
    file.write_all_at(whole, offset)?;
    let offset = offset + whole.len() as u64;
    match file.write_all_at(rest, offset) {
        Err(e) if e.kind() == ErrorKind::InvalidInput && file.metadata()?.is_file() => {
            file.set_len(offset)?;
            file.set_len(offset + rest.len() as u64)
        }
        other => other,
    }
}

/// Hands all that is in the edges to `each`, in steps, until `each` returns false. An error comes
/// with its place. A device that is shorter than it is said to be ends early.
fn in_edges(
    file: &File,
    size_bytes: u64,
    each: &mut dyn FnMut(u64, &[u8]) -> io::Result<bool>,
) -> Result<(), (u64, io::Error)> {
    // Aligned: the device may be open for I/O past the page cache.
    let mut buf = BufPool::new(0).take(STEP);
    for edge in edges(size_bytes) {
        let mut offset = edge.start;
        while offset < edge.end {
            let n = read(file, &mut buf, offset).map_err(|e| (offset, e))?;
            let n = n.min((edge.end - offset) as usize);
            if n == 0 {
                break;
            }
            if !each(offset, &buf[..n]).map_err(|e| (offset, e))? {
                return Ok(());
            }
            offset += n as u64;
        }
    }
    Ok(())
}

/// Reads as many whole blocks as there are, and what is left at the end.
fn read(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match file.read_at(&mut buf[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if got % BLOCK != 0 {
            break;
        }
    }
    Ok(got)
}

/// A block that is there and can be read.
pub fn block_at(file: &File, offset: u64) -> Option<impl std::ops::Deref<Target = [u8]>> {
    let mut block = BufPool::new(0).take(BLOCK);
    (read(file, &mut block, offset).ok()? == BLOCK).then_some(block)
}

/// The name of what Forebay itself has written.
fn own_name(file: &File) -> Option<String> {
    let begins = |at: u64, magic: &[u8]| block_at(file, at).is_some_and(|b| b.starts_with(magic));
    if pool_magic(file) {
        return Some(match newest_of_pool(file) {
            Some(sb) => format!("a Forebay pool, {:?}", sb.name),
            None => "a Forebay pool whose superblocks are all damaged".into(),
        });
    }
    let slots = || (0..cache::SLOTS).map(CacheSuperblock::offset_of);
    if slots().any(|at| begins(at, FOREBAY_CACHE)) {
        let whole = slots().filter_map(|at| CacheSuperblock::decode(&block_at(file, at)?).ok());
        let text = match whole.max_by_key(|sb| sb.sequence).map(|sb| sb.state) {
            Some(CacheState::Attached) => "a Forebay cache",
            Some(CacheState::Detached) => "what is left of a Forebay cache that was detached",
            None => "a Forebay cache whose superblocks are all damaged",
        };
        return Some(text.into());
    }
    let tables = [1 << 20, (cache::SLOTS + 1) * cache::SLOT_STEP];
    let page = |at: &u64| begins(*at, PAGE) || begins(at + BLOCK_U64, PAGE);
    tables.iter().any(page).then(|| "what is left of a Forebay pool or cache".into())
}

/// The newest superblock of a pool on a device, if one can be read.
pub fn newest_of_pool(file: &File) -> Option<Superblock> {
    let read = |at| Superblock::decode(&block_at(file, at)?).ok();
    copies_of_superblocks().filter_map(read).max_by_key(|sb| sb.sequence)
}

fn pool_magic(file: &File) -> bool {
    copies_of_superblocks().any(|at| block_at(file, at).is_some_and(|b| b.starts_with(FOREBAY)))
}

/// The offsets of the superblocks of a pool on a device, and of their second copies.
fn copies_of_superblocks() -> impl Iterator<Item = u64> {
    (0..superblock::SLOTS).flat_map(|slot| {
        let at = Superblock::offset_of(slot);
        (0..superblock::SLOT_COPIES as u64).map(move |copy| at + copy * BLOCK_U64)
    })
}

/// Whether a device holds a superblock of a pool, or what is left of one. One that cannot be read
/// may hold one.
pub fn may_be_of_pool(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    file.read_at(&mut [0; BLOCK], SLOT_STEP).is_err() || pool_magic(&file)
}

/// Returns what `blkid` finds on a device. `None` also if `blkid` is not installed, or cannot be
/// run.
fn by_blkid(file: &File) -> Option<String> {
    /// The exit status of `blkid` where several things are there at once.
    const SEVERAL: i32 = 8;
    let program = tool::find("blkid")?;
    // The descriptor and no path: what is open is what is looked at.
    let done = Command::new(program)
        .args(["-p", "-o", "export", "/dev/stdin"])
        .stdin(Stdio::from(file.try_clone().ok()?))
        .output()
        .ok()?;
    if done.status.code() == Some(SEVERAL) {
        return Some("several things at once, as blkid -p says".into());
    }
    done.status.success().then(|| described(&String::from_utf8_lossy(&done.stdout)))?
}

/// The answer of `blkid -o export`, for people.
fn described(said: &str) -> Option<String> {
    let value = |key: &str| {
        let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
        said.lines().find_map(of)
    };
    if let Some(what) = value("TYPE") {
        return Some(match value("USAGE").as_deref() {
            Some("filesystem") => format!("a file system ({what})"),
            Some("raid") => format!("a member of a RAID or a volume group ({what})"),
            Some("crypto") => format!("an encrypted device ({what})"),
            _ => format!("something that blkid calls {what}"),
        });
    }
    value("PTTYPE").map(|what| format!("a partition table ({what})"))
}

#[cfg(test)]
#[path = "emptiness_tests.rs"]
mod tests;
