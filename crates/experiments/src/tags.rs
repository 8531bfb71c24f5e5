//! Request tags: which tasks are woken when a device has a free tag, and what that does to a disk.
//!
//! Tasks read 1 MiB at random places, more of it at once than the device has tags. Each read is
//! split into four pieces that lie in a row. A task submits the pieces one after another, and
//! sleeps where it gets no tag. Who is woken when a tag comes back, and how many, decides whether
//! the pieces of one read reach the disk together.
//!
//! * [`device`]: a rotating disk, an SSD, an NVMe drive
//! * [`lab`]: tasks, processors, time
//! * [`policies`]: a single queue, batch wake, stash and wake
//! * [`ours`]: the scheduler of the crate `queue`

pub(crate) mod device;
mod lab;
mod ours;
mod policies;
#[cfg(test)]
#[path = "tags_tests.rs"]
mod tests;

use base::{Duration, Instant};

use crate::report::{Report, Scale, Table, short};
use device::Kind;
use lab::{Front, Lab, TagCounts};
use ours::ForebayTags;
use policies::{BatchWake, OldTags, SingleQueue, StashAndWake};

/// Reads that all tasks together have under way.
const TOTAL_DEPTH: usize = 1024;
/// Numbers of tasks.
const JOBS: [usize; 4] = [1, 24, 48, 72];
/// A tag for each piece that there can be: then none waits for one.
const FOR_ALL: usize = TOTAL_DEPTH * 4;
/// The policies, in the order of the columns.
const POLICIES: [&str; 4] = ["single queue", "batch wake", "stash and wake", "ours"];

/// Measures the latency of reads with ours: the median and the 99th percentile.
fn latency(
    kind: Kind,
    jobs: usize,
    tags: usize,
    warm: Duration,
    counted: Duration,
) -> [Duration; 2] {
    let front = ForebayTags::new(kind.device_kind(), tags);
    let mut lab = Lab::new(kind.device(), front, jobs, TOTAL_DEPTH, kind.bytes());
    let warm = Instant(0).after(warm);
    lab.run(warm);
    lab.take_latency();
    lab.run(warm.after(counted));
    lab.take_latency()
}

/// One run: warm up, then count.
fn measured(
    kind: Kind,
    jobs: usize,
    policy: usize,
    warm: Duration,
    counted: Duration,
) -> TagCounts {
    fn of<F: Front>(kind: Kind, jobs: usize, front: F, warm: Instant, until: Instant) -> TagCounts {
        let mut lab = Lab::new(kind.device(), front, jobs, TOTAL_DEPTH, kind.bytes());
        lab.run(warm);
        let before = lab.counts();
        lab.run(until);
        lab.counts().since(&before)
    }
    let warm = Instant(0).after(warm);
    let until = warm.after(counted);
    let tags = kind.tags();
    match policy {
        0 => of(kind, jobs, OldTags::new(tags, SingleQueue::new(tags, jobs)), warm, until),
        1 => of(kind, jobs, OldTags::new(tags, BatchWake::new(tags)), warm, until),
        2 => of(kind, jobs, OldTags::new(tags, StashAndWake::new(tags)), warm, until),
        _ => of(kind, jobs, ForebayTags::new(kind.device_kind(), tags), warm, until),
    }
}

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let mut report = Report::new("Request tags, and the tasks that wait for them");
    report.text(
        "Tasks read 1 MiB at random places, 1024 reads at once in total, as in the discussion of \
         2020. A device takes 256 KiB at most, so each read is four pieces, and a task submits \
         them in a row. A piece needs a tag. There are fewer tags than pieces, so tasks sleep.",
    );
    report.text(
        "- *Single queue* (Linux 4.18): each tag that comes back wakes one task, which may then \
         take up to 32 within 20 ms, and go over the limit by half for that.",
    );
    report.text(
        "- *Batch wake* (blk-mq): the sleepers stand in eight queues. When as many tags have come \
         back as a batch has (8, or an eighth of the tags if that is less), as many tasks of one \
         queue are woken, and race for what is free.",
    );
    report.text(
        "- *Stash and wake* (the proposal): tags are stashed until a quarter is free; then one \
         task is woken, takes what it needs, and the next one is woken.",
    );
    report.text(
        "- *Ours*: the scheduler of the crate `queue` as it is. A task hands in all of its pieces \
         and waits for the end of its read, so no task waits for a tag.",
    );
    report.text(&format!(
        "Modelled: a task that is woken runs after {} to {} us; it submits a piece in {} us; there \
         is a processor for each task. The disk is the one of `--emulate hdd` with 4 TB and {} \
         tags. SSD and NVMe move 1.13 and 3.13 GB/s, one piece after the other, and add 80 us; \
         they have {} and {} tags. None of the old policies has an elevator above it, so only the \
         handing out of tags differs between them.",
        lab::WAKING_US.0,
        lab::WAKING_US.1,
        lab::SUBMIT.as_micros(),
        Kind::Disk.tags(),
        Kind::Ssd.tags(),
        Kind::Nvme.tags(),
    ));
    let mut head = vec!["device", "jobs"];
    head.extend(POLICIES);
    let mut tables = [(); 4].map(|()| Table::new(1, &head));
    let mut latencies = Table::new(
        1,
        &["device", "jobs", "median, ms", "without tags", "99 of 100, ms", "without tags"],
    );
    for kind in Kind::ALL {
        let times = match kind {
            Kind::Disk => scale.pick((20, 180), (5, 15)),
            _ => scale.pick((1, 9), (1, 1)),
        };
        let (warm, counted) = (Duration::from_secs(times.0), Duration::from_secs(times.1));
        for jobs in JOBS {
            let all: Vec<TagCounts> =
                (0..POLICIES.len()).map(|p| measured(kind, jobs, p, warm, counted)).collect();
            let row = |cell: &dyn Fn(&TagCounts) -> String| {
                let mut cells = vec![kind.name().to_string(), jobs.to_string()];
                cells.extend(all.iter().map(cell));
                cells
            };
            tables[0].row(row(&|c| short(c.reads as f64 / counted.as_secs_f64())));
            tables[1].row(row(&|c| short(c.jumps as f64 / c.reads as f64)));
            tables[2].row(row(&|c| short(c.tag_wakes as f64 / c.grants as f64)));
            tables[3].row(row(&|c| short((c.tag_wakes + c.end_wakes) as f64 / c.grants as f64)));
            if kind != Kind::Disk {
                let [tags, none] =
                    [kind.tags(), FOR_ALL].map(|tags| latency(kind, jobs, tags, warm, counted));
                let cells = [tags[0], none[0], tags[1], none[1]];
                let cells = cells.map(|took| short(took.as_secs_f64() * 1e3));
                let name = [kind.name().to_string(), jobs.to_string()];
                latencies.row(name.into_iter().chain(cells).collect());
            }
        }
    }
    let titles = [
        "Reads of 1 MiB a second:",
        "Jumps for each MiB: how often the device does a piece that does not begin where the one \
         before it ended. 1 is the least for random reads. On the disk each is a seek; 2 are \
         common, as it begins a read with the piece that comes under its head first.",
        "Tasks woken for a tag, for each tag that was granted:",
        "All wake-ups for each grant, those at the end of a read too, of tasks that had nothing \
         else to do:",
    ];
    for (title, table) in titles.iter().zip(tables) {
        report.text(title);
        report.table(table);
    }
    report.text(
        "How long a read takes with ours, beside the same with a tag for each piece that there can \
         be, so that none waits for one:",
    );
    report.table(latencies);
    report.text(
        "Batch wake breaks reads apart on each device, and on the disk that costs a fifth of the \
         reads. (It was a sixth in the discussion.) What ours gains on the disk, also with one \
         task, is not from tags: it sorts all that waits by place, which none of the others does \
         here. It wakes a task at the end of each read, which is a quarter of a wake-up for each \
         piece. Single queue and stash and wake have fewer than that: a task that sleeps for tags \
         finds several reads ended when it is woken. So ours has no wake-up in vain, and not the \
         fewest. The processor's time for wake-ups is not modelled, so SSD and NVMe show no \
         difference in reads a second.",
    );
    report
}
