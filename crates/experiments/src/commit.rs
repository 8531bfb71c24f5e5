//! Commit: which records of block groups does it write, and what waits meanwhile?
//!
//! btrfs rewrote the item of each block group that a transaction had touched, in the critical
//! section of the commit. Copy-on-write often frees as much of a group as it allocates there, and
//! then the item says what it said. A comparison skips it.
//!
//! This is the real pool, on a disk in memory, in virtual time ([`disk`], [`bench`]).
//! What the other rules would have written is counted on what this pool has written.

mod bench;
mod disk;
#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;

use crate::report::{Report, Scale, Table, grouped, short, time};
use bench::{CommitCounts, Groups, Rounds, Spread};

/// Block groups of the pools.
const GROUPS: &[Groups] = &[
    Groups { count: 1_000, mib: 1 },
    Groups { count: 10_000, mib: 1 },
    Groups { count: 100_000, mib: 1 },
    Groups { count: 160, mib: 64 },
];
/// Block groups of the pools of a short run.
const FEW_GROUPS: &[Groups] = &[Groups { count: 200, mib: 1 }, Groups { count: 20, mib: 8 }];
/// The time that btrfs takes to rewrite an item of a block group, in nanoseconds.
const ITEM_NS: u64 = 10_000;
/// The time that our freeze takes, in nanoseconds: a few lists are moved out, however long they
/// are.
const FREEZE_NS: u64 = 1_000;

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let mut report = Report::new("Block groups at a commit");
    describe(&mut report);
    let mut updates = Table::new(
        2,
        &[
            "groups",
            "load",
            "commits",
            "groups touched a commit",
            "updates without a rule",
            "by `used`",
            "ours",
            "skipped, %",
            "pages a commit",
        ],
    );
    let mut critical =
        Table::new(2, &["groups", "load", "btrfs, without the rule", "btrfs, with it", "ours"]);
    for &groups in scale.pick(GROUPS, FEW_GROUPS) {
        let rounds =
            scale.pick(Rounds { count: 4, writes: 10_000 }, Rounds { count: 1, writes: 4_000 });
        for (spread, found) in bench::run(groups, rounds) {
            updates.row(updates_row(groups, spread, &found));
            critical.row(critical_row(groups, spread, &found));
        }
    }
    report.text(
        "Updates of each commit, on average. *Without a rule*: a bitmap page and a record for each \
         group touched. *By `used`*: the record is left out where the number of used blocks is as \
         before; the bitmap page, which btrfs has elsewhere, is counted with it.",
    );
    report.table(updates);
    report.text(&format!(
        "Time of the critical section of each commit. Counted are the items that btrfs would \
         rewrite there. Modelled is that each takes {}, and that our freeze takes {}: it moves the \
         lists of the transaction out (`crates/pool/src/commit/commit_flow.rs`), whatever their \
         length, and bitmaps, records and pages come later, in slices, while writes go on. The \
         simulation itself sees no time pass in it; measured, it is as long with 100,000 groups as \
         with a few ([testing](testing.md#steps)).",
        time(ITEM_NS),
        time(FREEZE_NS),
    ));
    report.table(critical);
    report.text(
        "So our comparison of pages does not save here what the one of btrfs saved there (20 to \
         80 % of the updates). A record of ours names the generation of its bitmap page, and the \
         bitmap says which blocks are used, not how many. Of a random overwrite both change \
         nearly always. What is skipped are bitmap pages of groups whose blocks were all taken \
         and freed within one transaction. A comparison by `used` would save a little where all \
         writes fall into few large groups, and nothing elsewhere: with next-fit allocation, \
         blocks are freed all over the pool and allocated in a few groups. What the rule of btrfs \
         was for, the critical section, does not depend on it in our pool.",
    );
    report
}

fn describe(report: &mut Report) {
    report.text(
        "Four jobs write 4 KiB at random into a pool that is filled to 70 %, one request each at a \
         time. After each 10,000 writes there is a commit, and earlier ones where the pool wants \
         them. The pool is the real one with its default settings, on a disk in memory of which \
         virtual time is modelled (20 us a write, 80 us a read, 3 GB/s). Block groups are of 1 \
         MiB, the smallest there are, so that 100,000 of them fit; the last rows are a pool of 10 \
         GiB with groups of 64 MiB, as the product chooses them.",
    );
    report.text(
        "- *hot*: each job writes to a MiB of its own. *files*: to 512 MiB of its own, or to a \
         quarter of what is there. *everything*: to all of the volume.",
    );
    report.text(
        "Counted: the pool's own counters, and on the disk the bitmap pages, the pages of group \
         records, and the records in these that have changed while their `used` has not. The \
         product has no switch for its comparison: *without a rule* is what it skipped and what it \
         wrote.",
    );
}

/// The block groups of a pool, as the tables call them.
fn cell(groups: Groups) -> String {
    format!("{} of {} MiB", grouped(groups.count), groups.mib)
}

fn updates_row(groups: Groups, spread: Spread, f: &CommitCounts) -> Vec<String> {
    let each = |n: u64| short(n as f64 / f.commits as f64);
    vec![
        cell(groups),
        spread.name().to_string(),
        f.commits.to_string(),
        each(f.touched()),
        each(f.written + f.skipped),
        each(f.written + f.skipped - f.same_used),
        each(f.written),
        short(100.0 * f.skipped as f64 / (f.written + f.skipped) as f64),
        each(f.bitmap_pages + f.record_pages),
    ]
}

fn critical_row(groups: Groups, spread: Spread, f: &CommitCounts) -> Vec<String> {
    let items = |n: u64| time(n * ITEM_NS / f.commits);
    vec![
        cell(groups),
        spread.name().to_string(),
        items(f.touched()),
        items(f.touched() - f.same_used),
        time(FREEZE_NS),
    ]
}
