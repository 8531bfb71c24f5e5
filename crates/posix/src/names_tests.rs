//! Needs a machine that has loop devices, and root: elsewhere these tests check the rest only.

use std::process::Command;

use super::*;
use crate::open::{LockedFile, OpenFile, open};

const WRITE: OpenFile = OpenFile { write: true, create: None, direct: true };
const READ: OpenFile = OpenFile { write: false, ..WRITE };
const MIB: u64 = 1 << 20;

/// A loop device, which is detached when it is dropped.
struct Loop(PathBuf);

impl Loop {
    /// One that shows `len` bytes of `file` from `from` on; `None` where that is not to be had.
    fn over(file: &Path, from: u64, len: u64) -> Option<Loop> {
        let (from, len) = (from.to_string(), len.to_string());
        let how = ["--find", "--show", "--offset", &from, "--sizelimit", &len];
        let made = Command::new("/sbin/losetup").args(how).arg(file).output().ok()?;
        let node = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        made.status.success().then(|| Loop(node.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/losetup").arg("--detach").arg(&self.0).status();
    }
}

fn image(dir: &Path) -> PathBuf {
    let path = dir.join("image");
    File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    path
}

fn refusal(opened: io::Result<LockedFile>) -> String {
    let Err(e) = opened else { panic!("opened by two names") };
    assert_eq!(e.kind(), ErrorKind::ResourceBusy, "{e}");
    e.to_string()
}

#[test]
fn a_file_and_the_loop_device_over_it_are_not_both_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    // The file is open before the loop device is made.
    let file = open(&path, &WRITE).unwrap();
    let Some(over) = Loop::over(&path, 0, 0) else { return };
    assert_eq!(shown_by(&over.0), Some(LoopBacking { of: path.clone(), from: 0, len: 8 * MIB }));
    for how in [WRITE, READ] {
        let text = refusal(open(&over.0, &how));
        assert!(text.contains("image") && text.contains("another name"), "{text}");
    }
    drop(file);
    let text = refusal(open(&path, &WRITE));
    assert!(text.contains(over.0.to_str().unwrap()) && text.contains("losetup"), "{text}");
    let reader = open(&path, &READ).unwrap();
    refusal(open(&over.0, &WRITE));
    drop(open(&over.0, &READ).unwrap());
    drop(reader);
    let device = open(&over.0, &WRITE).unwrap();
    assert_eq!(device.unlocked(), None);
    for how in [WRITE, READ] {
        refusal(open(&path, &how));
    }
    drop(device);
    // The name is of no matter.
    std::fs::hard_link(&path, dir.path().join("other")).unwrap();
    std::fs::remove_file(&path).unwrap();
    refusal(open(&dir.path().join("other"), &WRITE));
    drop(over);
    assert!(open(&dir.path().join("other"), &WRITE).is_ok());
}

#[test]
fn loop_devices_meet_where_they_show_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let Some(first) = Loop::over(&path, 0, 4 * MIB) else { return };
    let second = Loop::over(&path, 4 * MIB, 4 * MIB).unwrap();
    let both = Loop::over(&path, 3 * MIB, 2 * MIB).unwrap();
    let part_of_second = Loop::over(&second.0, MIB, MIB).unwrap();
    assert_eq!(shown_by(&second.0).map(|s| (s.from, s.len)), Some((4 * MIB, 4 * MIB)));
    let one = open(&first.0, &WRITE).unwrap();
    refusal(open(&both.0, &WRITE));
    // A loop device is over it.
    refusal(open(&second.0, &WRITE));
    let other = open(&part_of_second.0, &WRITE).unwrap();
    refusal(open(&second.0, &READ));
    drop((one, part_of_second));
    refusal(open(&path, &WRITE));
    drop(other);
    let one = open(&both.0, &READ).unwrap();
    assert!(open(&both.0, &READ).is_ok() && open(&path, &READ).is_ok());
    refusal(open(&first.0, &WRITE));
    drop(one);
    assert!(open(&first.0, &WRITE).is_ok());
}

#[test]
fn what_is_no_block_device_shows_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    assert_eq!((shown_by(&path), holder(&path)), (None, None));
    assert_eq!(shown_by(&dir.path().join("none")), None);
}
