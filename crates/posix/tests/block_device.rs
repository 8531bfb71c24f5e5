//! Tests of block devices, with a loop device. Skipped if the user may not create one.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::ErrorKind;
use std::process::Command;

use base::{BufList, SliceList};
use posix::{Handles, OpenFile, Posix};
use rt::{DeviceKind, Op, Order, Rt};

const LEN: u64 = 8 << 20;
const OPEN: OpenFile = OpenFile { write: true, create: None, direct: true };

struct Loop(String);

impl Loop {
    fn new(dir: &std::path::Path) -> Option<Loop> {
        let image = dir.join("image");
        std::fs::File::create(&image).unwrap().set_len(LEN).unwrap();
        let out = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        let name = String::from_utf8(out.stdout).unwrap().trim().to_string();
        (out.status.success() && !name.is_empty()).then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("--detach").arg(&self.0).status());
    }
}

#[test]
fn a_block_device_is_recognised_locked_and_used() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(device) = Loop::new(dir.path()) else {
        return println!("skipped: no loop devices here");
    };
    let posix = Posix::new(1).unwrap();
    let handles = posix.handles();
    let (file, info) = handles.open_file(&device.0, &OPEN).unwrap();
    assert!(info.block_device && info.direct, "{info:?}");
    assert_eq!(info.size_bytes, LEN);
    assert_eq!(info.kind, DeviceKind::Unknown, "a loop device may be over anything");

    let other = Handles::new(true).open_file(&device.0, &OPEN);
    assert_eq!(other.err().map(|e| e.kind()), Some(ErrorKind::ResourceBusy));

    let rt = Rt::new(Box::new(posix), Order::Fifo, 4);
    let r = rt.clone();
    let got = rt.block_on(async move {
        let mut buf = r.bufs().zeroed(8192);
        buf.fill(7);
        let data = SliceList::from_iter([buf.freeze()]);
        assert_eq!(
            r.op(Op::Write { file, offset: LEN - 8192, data, fua: true }).await.result,
            Ok(8192)
        );
        if info.discard {
            assert_eq!(
                r.op(Op::Discard { file, offset: LEN - 4096, len: 4096 }).await.result,
                Ok(0)
            );
        }
        assert_eq!(r.op(Op::Flush { file }).await.result, Ok(0));
        let bufs = BufList::from_iter([r.bufs().take(16384)]);
        let done = r.op(Op::Read { file, offset: LEN - 8192, bufs }).await;
        (done.result, done.into_bufs()[0][..4096].iter().all(|&b| b == 7))
    });
    assert_eq!(got, Some((Ok(8192), true)), "a read at the end is short");
}
