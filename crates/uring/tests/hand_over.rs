//! Reads that end together are handed over a few at a time, and every read is handed over.
#![allow(clippy::unwrap_used, reason = "a test")]

use base::{BufList, BufPool, Duration};
use posix::{NewFile, OpenFile};
use rt::{Backend, DeviceKind, Op, OpId};
use uring::Uring;

#[test]
fn reads_that_end_together_are_handed_over_a_few_at_a_time() {
    const READS: usize = 32;
    let mut uring = match Uring::new(64) {
        Ok(uring) => uring,
        Err(e) => return println!("skipped: io_uring is refused here: {e}"),
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let how = OpenFile { write: true, create: Some(NewFile::Sparse(1 << 20)), direct: true };
    let (file, _) = uring.handles().open_file(dir.path().join("disk"), &how).unwrap();
    if uring.kind(file) == DeviceKind::Memory {
        return println!("skipped: files in memory are read at once");
    }
    let bufs = BufPool::new(0);
    for n in 0..READS {
        let into = BufList::from_iter([bufs.take(4096)]);
        uring.submit(OpId(n as u64), Op::Read { file, offset: n as u64 * 4096, bufs: into });
    }
    let mut most = 0;
    let mut seen = [false; READS];
    let mut done = Vec::new();
    while seen.contains(&false) {
        let limit = uring.now().after(Duration::from_secs(60));
        let now = uring.wait(Some(limit), &mut done);
        assert!(now < limit, "every read ends");
        // All reads in flight end meanwhile.
        #[allow(clippy::disallowed_methods, reason = "a test without a runtime")]
        std::thread::sleep(std::time::Duration::from_millis(20));
        most = most.max(done.len());
        for c in done.drain(..) {
            assert_eq!(c.result, Ok(4096));
            assert!(!std::mem::replace(&mut seen[c.id.0 as usize], true), "twice");
        }
    }
    assert!(most <= READS / 8, "{most} at once");
}
