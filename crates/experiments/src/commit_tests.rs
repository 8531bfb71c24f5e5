//! The counters fit together, and the disk holds what it is given.

use std::collections::BTreeMap;

use super::*;

#[test]
fn what_is_written_and_what_is_skipped() {
    let rounds = Rounds { count: 2, writes: 10_000 };
    let found = bench::run(Groups { count: 200, mib: 1 }, rounds).into_iter();
    let found: BTreeMap<&str, CommitCounts> = found.map(|(s, f)| (s.name(), f)).collect();
    for (name, f) in &found {
        assert!(f.commits > 0 && f.written > 0, "{name}: {f:?}");
        // A bitmap page and a record for each group. A page that is all clear is not written.
        assert_eq!((f.written + f.skipped) % 2, 0, "{name}: {f:?}");
        assert!(f.touched() >= f.bitmap_pages + f.skipped, "{name}: {f:?}");
        assert!(f.touched() <= f.commits * 230, "{name}: {f:?}");
        assert!(f.same_used <= f.touched(), "{name}: {f:?}");
    }
    // Blocks that are overwritten within a transaction leave bitmaps as they were.
    let share = |f: &CommitCounts| f.skipped * 1000 / (f.written + f.skipped);
    assert!(share(&found["hot"]) > 2 * share(&found["everything"]), "{found:?}");
}

#[test]
fn a_run_is_the_same_again() {
    let run = || bench::run(Groups { count: 100, mib: 1 }, Rounds { count: 1, writes: 1_000 });
    assert_eq!(run(), run());
}
