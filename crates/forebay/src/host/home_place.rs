//! The place where a directory of `forebay up` was when it was served last. A copy of the directory
//! (`cp -a`, a backup that was put elsewhere) names the same cache and the same devices outside of
//! it, which belong to the original: they must not be taken unseen.
//!
//! The place is the absolute path of the directory, and which file its `lock` is: its inode, and
//! when that was made. A directory that was moved has another path, one that was put back from a
//! backup another inode. A copy beside the original has neither; a snapshot has the inode, and the
//! original is still where it was.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use posix::names::is_same;

use crate::error::{CommandError, Result};
use crate::host::rights;
use crate::host::whole_file::{self, SHARED};

const NAME: &str = "place";

/// A place: in the file a line with these, a space between two of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HomePlace {
    inode: u64,
    /// In nanoseconds of Unix time; 0: the file system does not say it.
    made_at: u128,
    path: PathBuf,
}

impl HomePlace {
    /// That of a directory, which is locked by this file in it. Blocks.
    pub fn of(dir: &Path, lock: &Path) -> Result<HomePlace> {
        let path = dir.canonicalize().map_err(|e| rights::failed(dir, &e))?;
        let meta = lock.metadata().map_err(|e| rights::failed(lock, &e))?;
        let made = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let made_at = made.map_or(0, |at| at.as_nanos());
        Ok(HomePlace { inode: meta.ino(), made_at, path })
    }

    /// Returns the place where a directory was when it was served last; `None`: that is not known.
    /// Blocks.
    pub fn kept(dir: &Path) -> Result<Option<HomePlace>> {
        let at = dir.join(NAME);
        let text = match fs::read(&at) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(rights::failed(&at, &e)),
        };
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        HomePlace::parse(line).map(Some).ok_or_else(|| {
            CommandError::Failed(format!(
                "{}: it says where the directory was when it was served last, and is damaged: \
                 remove it if the directory is no copy of another one",
                at.display()
            ))
        })
    }

    fn parse(line: &[u8]) -> Option<HomePlace> {
        let mut parts = line.splitn(3, |&b| b == b' ');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let (inode, made_at) = (text()?.parse().ok()?, text()?.parse().ok()?);
        let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
        Some(HomePlace { inode, made_at, path })
    }

    /// Keeps this for the next server. Durable when it returns. Blocks.
    pub fn keep(&self, dir: &Path) -> Result<()> {
        let at = dir.join(NAME);
        let mut text = format!("{} {} ", self.inode, self.made_at).into_bytes();
        text.extend(self.path.clone().into_os_string().into_vec());
        text.push(b'\n');
        whole_file::write(&at, &text, SHARED).map_err(|e| CommandError::failed(at.display(), e))
    }

    /// True if a directory that was served there is here now, and no copy of it. Its `lock` is
    /// this. Blocks.
    fn is_still(&self, was: &HomePlace, lock: &Path) -> bool {
        if self.path == was.path {
            return true;
        }
        let there = lock.file_name().and_then(|name| was.path.join(name).metadata().ok());
        let here = lock.metadata().ok();
        let left = there.is_some_and(|there| here.is_none_or(|here| !is_same(&there, &here)));
        (self.inode, self.made_at) == (was.inode, was.made_at) && !left
    }
}

/// Forgets it: nothing was ever served from the directory. Blocks.
pub fn forget(dir: &Path) -> std::io::Result<()> {
    whole_file::remove_if_there(&dir.join(NAME))
}

/// Fails if the directory is a copy of another one, and uses what lies outside of it. Else returns
/// where it is, if that is not what it says: to be kept once all that it uses is its own. Blocks.
pub fn check<'a>(
    dir: &Path,
    lock: &Path,
    used: impl Iterator<Item = &'a Path>,
) -> Result<Option<HomePlace>> {
    let now = HomePlace::of(dir, lock)?;
    let Some(was) = HomePlace::kept(dir)? else { return Ok(Some(now)) };
    if now == was {
        return Ok(None);
    }
    // A link in the directory leads out of it, in a copy too.
    let inside = |path: &Path| match path.canonicalize() {
        Ok(real) => real.starts_with(&now.path),
        Err(_) => path.starts_with(dir),
    };
    let mut outside = used.filter(|path| !inside(path));
    match outside.next() {
        Some(path) if !now.is_still(&was, lock) => Err(CommandError::Failed(format!(
            "{} is a copy of {}, and uses {}, which lies outside of it and belongs to the \
             original: nothing was opened. Copy that too, while nothing serves it, and name the \
             copy: of a cache with --cache PATH, of a device in {}. If this is no copy, and was \
             moved here, remove {} and start again",
            dir.display(),
            was.path.display(),
            path.display(),
            dir.join("devices.json").display(),
            dir.join(NAME).display()
        ))),
        _ => Ok(Some(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_nothing_of_the_original() {
        let tmp = tempfile::tempdir().expect("a directory");
        let [first, second, third] = ["first", "second", "third"].map(|name| tmp.path().join(name));
        let lock = |dir: &Path| dir.join("lock");
        fs::create_dir(&first).expect("made");
        fs::write(lock(&first), b"").expect("written");
        let (own, fast) = (first.join("cache.img"), tmp.path().join("fast.img"));
        let start = |dir: &Path, used: &Path| {
            let place = check(dir, &lock(dir), [used].into_iter())?;
            place.map_or(Ok(()), |place| place.keep(dir))
        };
        start(&first, &fast).expect("the first start");
        start(&first, &fast).expect("the second start");

        fs::create_dir(&second).expect("made");
        for name in ["lock", NAME] {
            fs::copy(first.join(name), second.join(name)).expect("copied");
        }
        let e = check(&second, &lock(&second), [&*own, &*fast].into_iter()).expect_err("a copy");
        let text = e.to_string();
        assert!(text.contains("is a copy of") && text.contains("cache.img"), "{text}");
        start(&first, &fast).expect("the original");
        let inside = second.join("pool0.img");
        let failed = check(&second, &lock(&second), [&*inside].into_iter());
        assert!(failed.expect("whole by itself").is_some(), "to be kept when it was opened");
        start(&second, &fast).expect_err("a copy still, as that start failed");
        start(&second, &inside).expect("whole by itself");
        start(&second, &fast).expect("it is its own by now");

        fs::rename(&first, &third).expect("moved");
        start(&third, &fast).expect("moved");
    }

    #[test]
    fn a_snapshot_is_a_copy_and_what_a_backup_puts_back_is_none() {
        let tmp = tempfile::tempdir().expect("a directory");
        let [first, snapshot] = ["first", "snapshot"].map(|name| tmp.path().join(name));
        let lock = |dir: &Path| dir.join("lock");
        let fast = tmp.path().join("fast.img");
        for dir in [&first, &snapshot] {
            fs::create_dir(dir).expect("made");
            fs::write(lock(dir), b"").expect("written");
        }
        let was = HomePlace::of(&first, &lock(&first)).expect("a place");
        was.keep(&first).expect("kept");
        // A snapshot has the same inode, in another file system.
        let of_snapshot = HomePlace::of(&snapshot, &lock(&snapshot)).expect("a place");
        HomePlace { path: was.path.clone(), ..of_snapshot }.keep(&snapshot).expect("kept");
        let of = |dir: &Path| check(dir, &lock(dir), [&*fast].into_iter());
        of(&snapshot).expect_err("the original is there");

        // Put back at its own place: another inode.
        fs::remove_file(lock(&first)).expect("removed");
        fs::write(first.join("another"), b"").expect("written");
        fs::write(lock(&first), b"").expect("written");
        of(&first).expect("it is where it was");
        fs::remove_dir_all(&first).expect("removed");
        of(&snapshot).expect("the original is gone");
    }
}
