//! The place where a server keeps the writes that it has answered and not made durable, for the
//! case that its process dies: see [`pool::HostLog`].

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;

use base::{HostMemory, HostMemoryId, HostPlace, IoError};
use posix::host::HostDir;

use crate::host::world::identity;

/// The choice of a user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HostLogChoice {
    /// Of the usual directories the first that can be used.
    #[default]
    Auto,
    Off,
    /// In this directory.
    Dir(PathBuf),
}

impl FromStr for HostLogChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<HostLogChoice, String> {
        match text {
            "auto" => Ok(HostLogChoice::Auto),
            "off" => Ok(HostLogChoice::Off),
            "" => Err("auto, off or a directory".into()),
            path => Ok(HostLogChoice::Dir(path.into())),
        }
    }
}

impl HostLogChoice {
    /// As the configuration file has it.
    pub fn text(&self) -> String {
        match self {
            HostLogChoice::Auto => "auto".into(),
            HostLogChoice::Off => "off".into(),
            HostLogChoice::Dir(path) => path.display().to_string(),
        }
    }

    /// The directory, if one is named.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        if let HostLogChoice::Dir(path) = self { Some(path) } else { None }
    }

    /// The place, with why nothing can be kept there if it cannot. `home` is where the server keeps
    /// its sockets. What an earlier server has left is found wherever that kept it, whatever the
    /// choice is now.
    pub fn open(&self, home: &Path) -> Result<Rc<HostDirs>, String> {
        let (to_keep, to_find) = match self {
            HostLogChoice::Off => (Vec::new(), usual(home)),
            HostLogChoice::Dir(path) => (vec![path.clone()], usual(home)),
            HostLogChoice::Auto => (usual(home), Vec::new()),
        };
        let (mut open, mut refused) = (Vec::new(), Vec::new());
        for path in to_keep {
            match HostDir::open(&path) {
                Ok(dir) => open.push(dir),
                Err(e) => refused.push(format!("{}: {e}", path.display())),
            }
        }
        if open.is_empty() && *self != HostLogChoice::Off {
            return Err(refused.join("; "));
        }
        let keep_in = open.len();
        let there = to_find.iter().filter(|dir| dir.is_dir());
        open.extend(there.flat_map(|dir| HostDir::open(dir)));
        Ok(Rc::new(HostDirs { all: open, keep_in }))
    }
}

/// Returns a file that a process which served one of these devices has left in a usual directory:
/// answers that no device has yet. `home` is the directory of the sockets of that process.
pub fn left_behind<'a>(devices: impl Iterator<Item = &'a Path>, home: &Path) -> Option<PathBuf> {
    let open: Vec<HostDir> =
        usual(home).iter().filter(|dir| dir.is_dir()).flat_map(|dir| HostDir::open(dir)).collect();
    let dirs = HostDirs { all: open, keep_in: 0 };
    devices.for_each(|path| dirs.add_device(path));
    dirs.all.iter().find_map(HostDir::any_left)
}

/// The usual directories, the best first: two in memory, and one that is there for certain.
fn usual(home: &Path) -> Vec<PathBuf> {
    let user = nix::unistd::geteuid();
    let own = format!("forebay-{user}");
    let mut dirs = Vec::new();
    if Path::new("/dev/shm").is_dir() {
        dirs.push(Path::new("/dev/shm").join(&own));
    }
    let runtime =
        if user.is_root() { PathBuf::from("/run") } else { format!("/run/user/{user}").into() };
    if runtime.is_dir() {
        dirs.push(runtime.join(&own));
    }
    dirs.push(home.join("answered"));
    dirs
}

/// Several directories: what was left is found in any of them.
pub struct HostDirs {
    all: Vec<HostDir>,
    /// The first so many keep what is new, as far as they have room.
    keep_in: usize,
}

impl HostDirs {
    /// The server uses the device at `path`: what is recorded is for this one, and for no copy.
    pub fn add_device(&self, path: &Path) {
        let identity = identity(path).display().to_string();
        self.all.iter().for_each(|dir| dir.add_device(&identity));
    }
}

impl HostPlace for HostDirs {
    fn find(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Option<Vec<u8>>, IoError> {
        let mut failed = None;
        for dir in &self.all {
            match dir.find(owner, id) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn create(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Box<dyn HostMemory>, IoError> {
        let mut failed = IoError::NO_SPACE;
        for dir in &self.all[..self.keep_in] {
            let made = dir.create(owner, id).and_then(|mut memory| {
                memory.back(base::BLOCK)?;
                Ok(memory)
            });
            match made {
                Ok(memory) => return Ok(memory),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    fn remove_others(&self, owner: [u8; 16], keep: Option<HostMemoryId>) {
        self.all.iter().for_each(|dir| dir.remove_others(owner, keep));
    }

    fn keeps(&self) -> bool {
        self.keep_in > 0
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.all[..self.keep_in].iter().map(HostPlace::name).collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(incarnation: u32) -> HostMemoryId {
        HostMemoryId { incarnation, open: base::OpenId(7) }
    }

    #[test]
    fn what_is_left_in_any_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let one = |name: &str| HostDir::open(&dir.path().join(name)).unwrap();
        let both = HostDirs { all: vec![one("a"), one("b")], keep_in: 1 };
        one("b").create([1; 16], id(2)).unwrap();
        assert!(both.find([1; 16], id(2)).unwrap().is_some());
        both.create([1; 16], id(3)).unwrap();
        assert!(one("a").find([1; 16], id(3)).unwrap().is_some());
        both.remove_others([1; 16], None);
        assert!(both.find([1; 16], id(2)).unwrap().is_none());
    }

    #[test]
    fn what_was_left_is_found_when_another_place_is_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        let at_home = home.join("answered");
        HostDir::open(&at_home).unwrap().create([1; 16], id(2)).unwrap();
        for choice in [HostLogChoice::Off, HostLogChoice::Dir(home.join("other"))] {
            let dirs = choice.open(home).unwrap();
            assert!(dirs.find([1; 16], id(2)).unwrap().is_some(), "{choice:?}");
            assert_eq!(dirs.keeps(), choice != HostLogChoice::Off);
            if dirs.keeps() {
                dirs.create([1; 16], id(3)).unwrap();
                assert_eq!(dirs.name(), home.join("other").display().to_string());
            }
        }
    }

    #[test]
    fn a_place_is_auto_off_or_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["auto", "off", "/some/dir"] {
            assert_eq!(text.parse::<HostLogChoice>().unwrap().text(), text);
        }
        assert!("".parse::<HostLogChoice>().is_err());
        assert!(!HostLogChoice::Off.open(dir.path()).unwrap().keeps());
        assert!(HostLogChoice::Auto.open(dir.path()).unwrap().keeps());
        let none = HostLogChoice::Dir(dir.path().join("no/where"));
        assert!(none.open(dir.path()).is_err());
    }
}
