//! The directory of `forebay up`: two pool devices and the cache as sparse files, the sockets, and
//! a lock. Once devices have come and gone, their places are in a
//! [list](crate::host::device_list); the place of a cache that is elsewhere is in a file of its
//! own.
//!
//! A new pool is made under names that end in `.new`, and gets its real names when it is whole and
//! has its volume, the second device first. So a crash in the first run leaves one of these:
//!
//! | there is | then |
//! | --- | --- |
//! | neither `pool0.img` nor `pool1.img` | nothing was ever served: made anew |
//! | `pool0.img.new` and `pool1.img` | the pool is whole: the first device gets its name |
//! | `pool0.img` or `pool1.img`, otherwise; or a list of devices | a pool that was used: opened, degraded if one is missing, never made anew |

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use emulate::Emulate;
use pool::DeviceFile;
use posix::{NewFile, OpenFile};

use crate::error::{CommandError, Result};
use crate::host::device_list::DeviceList;
use crate::host::devices::DeviceChoice;
use crate::host::emptiness;
use crate::host::home_place::{self, HomePlace};
use crate::host::rights;
use crate::host::whole_file::{self, SHARED};
use crate::host::world::{OpenError, World};

const DEVICES: [&str; 2] = ["pool0.img", "pool1.img"];
const CACHE: &str = "cache.img";
/// The file that says where the cache is if it is elsewhere: the path and a newline; or that there
/// is to be none.
const CACHE_AT: &str = "cache.path";
/// The content of that file where there is to be no cache. A path that a server writes begins with
/// a slash.
const NO_CACHE: &[u8] = b"none";
const LOCK: &str = "lock";
const LOCK_BYTES: u64 = 4096;

/// The directory, locked.
pub struct Home {
    dir: PathBuf,
    made_dir: bool,
}

/// The place where the servers of a directory have their cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CachePlace {
    /// The place at which servers make a cache by themselves.
    Usual,
    /// Another path.
    At(PathBuf),
    /// The cache was taken out, and none is made until one is asked for.
    None,
}

impl CachePlace {
    /// The path at which a cache is looked for.
    pub fn path(self, dir: &Path) -> PathBuf {
        match self {
            CachePlace::At(path) => path,
            CachePlace::Usual | CachePlace::None => Home::own_cache(dir),
        }
    }
}

/// Devices of a new pool that do not have their names yet.
pub struct StagedDevices {
    dir: PathBuf,
    /// Open; called by the names that they will have.
    pub files: Vec<DeviceFile>,
}

impl Home {
    /// Makes the directory if there is none, and locks it for as long as `world` lives.
    pub fn open(world: &World, dir: &Path) -> Result<Home> {
        let failed = |e: std::io::Error| CommandError::failed(dir.display(), e);
        let made_dir = !exists(dir)?;
        Home::check_dir(dir)?;
        DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(failed)?;
        let how =
            OpenFile { write: true, create: Some(NewFile::Sparse(LOCK_BYTES)), direct: false };
        world.open(&dir.join(LOCK), &how).map_err(|e| match e {
            OpenError::Refused(CommandError::Failed(text)) if text.contains("in use") => {
                CommandError::Failed(format!(
                    "{} is in use by another process (is a server running? forebay status asks it)",
                    dir.display()
                ))
            }
            OpenError::Refused(e) => e,
            OpenError::Gone(text) | OpenError::ReadOnly(text) => CommandError::Failed(text),
        })?;
        Ok(Home { dir: dir.to_owned(), made_dir })
    }

    /// Fails if what is in the directory is not to be trusted: it belongs to another user, who may
    /// have made its token, or its list of devices; or everybody may write to it. May block.
    pub fn check_owner(dir: &Path) -> Result<()> {
        let Ok(meta) = dir.metadata() else { return Ok(()) };
        let (own, root) = (nix::unistd::geteuid().as_raw(), 0);
        let dir = dir.display();
        if meta.is_dir() && ![own, root].contains(&meta.uid()) {
            return Err(CommandError::Failed(format!(
                "{dir} belongs to another user ({}): the token and the list of devices in it \
                 would be what that user has made them. Name a directory of your own, or take this \
                 one over (chown)",
                meta.uid()
            )));
        }
        if meta.is_dir() && meta.mode() & 0o002 != 0 {
            return Err(CommandError::Failed(format!(
                "everybody may make or replace what is in {dir}, the token and the list of devices \
                 too: \
                 chmod o-w {dir}, then start again"
            )));
        }
        Ok(())
    }

    /// Fails if something else than a directory is there. May block.
    pub fn check_dir(dir: &Path) -> Result<()> {
        if !exists(dir)? || dir.is_dir() {
            return Ok(());
        }
        Err(CommandError::Usage(format!(
            "{} is no directory, and forebay up keeps what it makes in one: name another place; a \
             device of a pool is served by forebay serve --device PATH",
            dir.display()
        )))
    }

    /// The paths of the devices of the pool, as far as they are known: those of a new pool if the
    /// servers of this directory have not said anything else. May block.
    pub fn devices(dir: &Path) -> Result<Vec<PathBuf>> {
        Home::check_dir(dir)?;
        let listed = DeviceList::of(dir).devices()?;
        Ok(listed.unwrap_or_else(|| Home::first_devices(dir)))
    }

    /// The paths of the devices of a new pool.
    fn first_devices(dir: &Path) -> Vec<PathBuf> {
        DEVICES.iter().map(|name| dir.join(name)).collect()
    }

    /// The path of the cache that a server of this directory makes by itself.
    pub fn own_cache(dir: &Path) -> PathBuf {
        dir.join(CACHE)
    }

    /// The path of the cache: where the last server of this directory had it. May block.
    pub fn cache(dir: &Path) -> Result<PathBuf> {
        Ok(Home::cache_place(dir)?.path(dir))
    }

    /// Returns the place where the last server of this directory had the cache, or that it had
    /// none. May block.
    pub fn cache_place(dir: &Path) -> Result<CachePlace> {
        let at = dir.join(CACHE_AT);
        match std::fs::read(&at) {
            Ok(path) => match path.strip_suffix(b"\n").unwrap_or(&path) {
                b"" => Err(CommandError::Failed(format!(
                    "{} is empty, and it says where the cache is: write its path into it, or \
                     remove it if the pool has none",
                    at.display()
                ))),
                NO_CACHE => Ok(CachePlace::None),
                path => Ok(CachePlace::At(dir.join(OsStr::from_bytes(path)))),
            },
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(CachePlace::Usual),
            Err(e) => Err(rights::failed(&at, &e)),
        }
    }

    /// Keeps for the next server where the cache is. Durable when it returns. Blocks.
    pub fn keep_cache(dir: &Path, place: &CachePlace) -> Result<()> {
        let at = dir.join(CACHE_AT);
        let failed = |e: std::io::Error| CommandError::failed(at.display(), e);
        let absolute = |path: &Path| std::path::absolute(path).map_err(failed);
        let mut text = match place {
            CachePlace::Usual => Vec::new(),
            CachePlace::None => NO_CACHE.to_vec(),
            CachePlace::At(path) => match absolute(path)? {
                path if path == absolute(&Home::own_cache(dir))? => Vec::new(),
                path => path.into_os_string().into_vec(),
            },
        };
        if text.is_empty() {
            remove_if_there(&at)?;
            return sync_dir(dir);
        }
        text.push(b'\n');
        whole_file::write(&at, &text, SHARED).map_err(failed)
    }

    /// The path of the socket of the HTTP API.
    pub fn http_socket(dir: &Path) -> PathBuf {
        dir.join("http.sock")
    }

    /// The path of the token that HTTP clients on TCP need.
    pub fn http_token(dir: &Path) -> PathBuf {
        dir.join("http.token")
    }

    /// Fails if the directory is a copy of another one, and `used`, which it names, lies outside of
    /// it. Else returns where it is, if it does not say so: to be kept when all was opened. Blocks.
    pub fn check_place<'a>(
        &self,
        used: impl Iterator<Item = &'a Path>,
    ) -> Result<Option<HomePlace>> {
        home_place::check(&self.dir, &self.dir.join(LOCK), used)
    }

    /// The same of a directory that is not served now: what it uses may be changed.
    pub fn check_place_of<'a>(dir: &Path, used: impl Iterator<Item = &'a Path>) -> Result<()> {
        let lock = dir.join(LOCK);
        match exists(&lock)? {
            true => home_place::check(dir, &lock, used).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Whether there is a pool, or what is left of one. Finishes the naming of a whole one.
    pub fn has_pool(&self) -> Result<bool> {
        let [first, second] = DEVICES.map(|name| self.dir.join(name));
        if !exists(&first)? && exists(&second)? && exists(&staged(&first))? {
            rename(&staged(&first), &first)?;
            sync_dir(&self.dir)?;
        }
        Ok(exists(&first)? || exists(&second)? || exists(&DeviceList::of(&self.dir).path())?)
    }

    /// Makes the files of a new pool.
    pub fn stage(
        &self,
        world: &World,
        size_bytes: u64,
        emulate: Option<Emulate>,
    ) -> Result<StagedDevices> {
        let mut files = Vec::new();
        for path in Home::first_devices(&self.dir) {
            let staged = staged(&path);
            remove_if_there(&staged)?;
            let how =
                OpenFile { write: true, create: Some(NewFile::Sparse(size_bytes)), direct: true };
            let (file, info) =
                world.open(&staged, &how).map_err(|e| CommandError::Failed(e.to_string()))?;
            files.push(world.device(&DeviceChoice { path, emulate }, file, &info));
        }
        Ok(StagedDevices { dir: self.dir.clone(), files })
    }

    /// Takes back what an unsuccessful first run has made.
    fn unstage(&self) {
        for path in Home::first_devices(&self.dir) {
            if let Err(e) = remove_if_there(&staged(&path)) {
                tracing::warn!("{e}");
            }
        }
        if let Err(e) = home_place::forget(&self.dir) {
            tracing::warn!("{}: {e}", self.dir.display());
        }
        if self.made_dir {
            // Both may fail if somebody has put something there since: then it stays.
            let _ = std::fs::remove_file(self.dir.join(LOCK));
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

/// The directory of a pool that is being made. What was made of it is taken back where this is
/// dropped before the pool is whole, whatever went wrong.
pub struct UnfinishedHome {
    home: Home,
    whole: bool,
}

impl UnfinishedHome {
    /// Nothing is whole yet.
    pub fn new(home: Home) -> UnfinishedHome {
        UnfinishedHome { home, whole: false }
    }

    /// The directory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Keeps all that was made.
    pub fn keep(mut self) {
        self.whole = true;
    }
}

impl Drop for UnfinishedHome {
    fn drop(&mut self) {
        if !self.whole {
            self.home.unstage();
        }
    }
}

impl StagedDevices {
    /// Gives the devices their names: from now on this is the pool of the directory.
    pub fn publish(self) -> Result<()> {
        for path in Home::first_devices(&self.dir).iter().rev() {
            rename(&staged(path), path)?;
            sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// Fails if none of the devices of a directory holds anything of a pool any more. Blocks.
pub fn not_emptied(devices: &[DeviceFile]) -> Result<()> {
    if devices.iter().any(|one| emptiness::may_be_of_pool(Path::new(&one.path))) {
        return Ok(());
    }
    let all: Vec<&str> = devices.iter().map(|one| one.path.as_str()).collect();
    Err(CommandError::Failed(format!(
        "no device holds anything of a pool any more: {}. They were overwritten, or other files \
         are in their places: put the right ones there. Make no new pool on them while the data \
         that may be left is wanted; forebay up DIR makes one in another directory",
        all.join(", ")
    )))
}

fn staged(path: &Path) -> PathBuf {
    path.with_extension("img.new")
}

/// A link to something that is not mounted, say, does exist.
fn exists(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(rights::failed(path, &e)),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to)
        .map_err(|e| CommandError::failed(format_args!("renaming {}", from.display()), e))
}

fn remove_if_there(path: &Path) -> Result<()> {
    whole_file::remove_if_there(path)
        .map_err(|e| CommandError::failed(format_args!("removing {}", path.display()), e))
}

fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| CommandError::failed(dir.display(), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::world::IoChoice;

    fn home(dir: &Path) -> (World, Home) {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let home = Home::open(&world, dir).unwrap();
        (world, home)
    }

    #[test]
    fn a_cache_that_is_elsewhere_is_found_again() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path();
        let usual = dir.join("cache.img");
        assert_eq!(Home::cache(dir), Ok(usual.clone()));
        let odd = Path::new(OsStr::from_bytes(b"/fast/\xff \n"));
        for elsewhere in [Path::new("/fast/c"), odd] {
            Home::keep_cache(dir, &CachePlace::At(elsewhere.to_owned())).unwrap();
            assert_eq!(Home::cache(dir), Ok(elsewhere.to_owned()));
        }
        for usual_again in [CachePlace::At(usual.clone()), CachePlace::Usual] {
            Home::keep_cache(dir, &CachePlace::None).unwrap();
            assert_eq!(Home::cache_place(dir), Ok(CachePlace::None));
            assert_eq!(Home::cache(dir), Ok(usual.clone()), "where one would be made");
            Home::keep_cache(dir, &usual_again).unwrap();
            assert_eq!(Home::cache_place(dir), Ok(CachePlace::Usual));
        }
        std::fs::write(dir.join(CACHE_AT), "\n").unwrap();
        assert!(Home::cache(dir).unwrap_err().to_string().contains("is empty"));
        std::fs::remove_file(dir.join(CACHE_AT)).unwrap();
        std::fs::create_dir(dir.join(CACHE_AT)).unwrap();
        assert!(Home::cache(dir).unwrap_err().to_string().contains(CACHE_AT));
    }

    #[test]
    fn a_new_pool_appears_whole() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("data");
        let (world, home) = home(&dir);
        assert!(!home.has_pool().unwrap());
        let staged = home.stage(&world, 1 << 20, None).unwrap();
        assert!(!home.has_pool().unwrap());
        assert_eq!(staged.files[1].path, dir.join("pool1.img").display().to_string());
        staged.publish().unwrap();
        assert!(home.has_pool().unwrap());
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["lock", "pool0.img", "pool1.img"]);
    }

    #[test]
    fn a_crash_in_the_first_run_leaves_no_half() {
        let tmp = tempfile::tempdir().unwrap();
        let (world, home) = home(tmp.path());
        let touch = |name: &str| std::fs::write(tmp.path().join(name), name).unwrap();
        touch("pool0.img.new");
        touch("pool1.img.new");
        assert!(!home.has_pool().unwrap());
        drop(home.stage(&world, 1 << 20, None).unwrap());
        assert_eq!(tmp.path().join("pool0.img.new").metadata().unwrap().len(), 1 << 20);
        std::fs::rename(tmp.path().join("pool1.img.new"), tmp.path().join("pool1.img")).unwrap();
        assert!(home.has_pool().unwrap());
        assert!(tmp.path().join("pool0.img").exists());
    }

    #[test]
    fn remains_of_a_pool_are_a_pool() {
        for name in DEVICES {
            let tmp = tempfile::tempdir().unwrap();
            let (_world, home) = home(tmp.path());
            std::fs::write(tmp.path().join(name), "").unwrap();
            assert!(home.has_pool().unwrap());
        }
    }

    #[test]
    fn a_file_is_no_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        let e = Home::devices(&file).unwrap_err();
        assert!(e.to_string().contains("is no directory") && e.exit_status() == 2, "{e}");
    }

    #[test]
    fn a_directory_serves_once_and_a_failure_leaves_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("data");
        let (world, first) = home(&dir);
        let other = World::new(IoChoice::Posix, &[]).unwrap();
        let Err(e) = Home::open(&other, &dir) else { panic!("locked twice") };
        assert!(e.to_string().contains("in use"), "{e}");
        drop(first.stage(&world, 1 << 20, None).unwrap());
        drop(UnfinishedHome::new(first));
        assert!(!dir.exists());
        let third = Home::open(&World::new(IoChoice::Posix, &[]).unwrap(), &dir).unwrap();
        UnfinishedHome::new(third).keep();
        assert!(dir.exists());
    }
}
