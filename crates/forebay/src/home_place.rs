//! Where a directory of `forebay up` was when it was served last. A copy of it (`cp -a`, a backup
//! that was put elsewhere) names the same cache and the same devices outside of it, which belong to
//! the original: they must not be taken unseen.
//!
//! The place is the absolute path of the directory, and which file its `lock` is: its inode, and
//! when that was made. A directory that was moved has another path, one that was put back from a
//! backup another inode. A copy beside the original has neither.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::{CommandError, Result};
use crate::rights;
use crate::whole_file;

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

    /// Where a directory was when it was served last; `None`: that is not known. Blocks.
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
        whole_file::write(&at, &text, 0o666).map_err(|e| CommandError::failed(at.display(), e))
    }

    /// True if a directory that was served there is here now, and no copy of it.
    fn is_still(&self, was: &HomePlace) -> bool {
        (self.inode, self.made_at) == (was.inode, was.made_at) || self.path == was.path
    }
}

/// Forgets it: nothing was ever served from the directory. Blocks.
pub fn forget(dir: &Path) -> std::io::Result<()> {
    whole_file::remove_if_there(&dir.join(NAME))
}

/// Fails if the directory is a copy of another one, and uses what lies outside of it. Else keeps
/// where it is. Blocks.
pub fn check<'a>(dir: &Path, lock: &Path, used: impl Iterator<Item = &'a Path>) -> Result<()> {
    let now = HomePlace::of(dir, lock)?;
    let Some(was) = HomePlace::kept(dir)? else { return now.keep(dir) };
    if now == was {
        return Ok(());
    }
    // A link in the directory leads out of it, in a copy too.
    let inside = |path: &Path| match path.canonicalize() {
        Ok(real) => real.starts_with(&now.path),
        Err(_) => path.starts_with(dir),
    };
    let mut outside = used.filter(|path| !inside(path));
    match outside.next() {
        Some(path) if !now.is_still(&was) => Err(CommandError::Failed(format!(
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
        _ => now.keep(dir),
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
        check(&first, &lock(&first), [&*fast].into_iter()).expect("the first start");
        check(&first, &lock(&first), [&*fast].into_iter()).expect("the second start");

        fs::create_dir(&second).expect("made");
        for name in ["lock", NAME] {
            fs::copy(first.join(name), second.join(name)).expect("copied");
        }
        let e = check(&second, &lock(&second), [&*own, &*fast].into_iter()).expect_err("a copy");
        let text = e.to_string();
        assert!(text.contains("is a copy of") && text.contains("cache.img"), "{text}");
        check(&first, &lock(&first), [&*fast].into_iter()).expect("the original");
        let inside = second.join("pool0.img");
        check(&second, &lock(&second), [&*inside].into_iter()).expect("whole by itself");
        check(&second, &lock(&second), [&*fast].into_iter()).expect("it is its own by now");

        fs::rename(&first, &third).expect("moved");
        check(&third, &lock(&third), [&*fast].into_iter()).expect("moved");
    }
}
