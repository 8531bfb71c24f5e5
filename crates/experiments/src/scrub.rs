//! Scrub: how what is read is gathered, and how its checksums are found.
//!
//! A scrub reads a device from its beginning to its end. A thread looks up what a stripe of 64 KiB
//! must be, and asks for it. Whether it then waits, gathers, or has many MiB under way decides how
//! much of the device's speed is used; so does what a look-up costs.
//!
//! * [`plant`]: the device, the thread, time
//! * [`old`]: 64 KiB and wait; groups and plug
//! * [`ours`]: the scheduler of the crate `queue`, with the runs and the window of the pool's scrub

mod old;
mod ours;
mod plant;
#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;

use crate::report::{Picture, Report, Scale, Table, grouped, short};
use crate::svg::{self, Panel};
use crate::tags::device::Kind;
use old::{Plug, Wait};
use ours::Ours;
use plant::{Counts, Plant};

/// The policies, in the order of the rows.
const POLICIES: [&str; 3] = ["64 KiB, 8 at a time, and wait", "groups and plug", "ours"];
/// The devices.
const KINDS: [Kind; 2] = [Kind::Nvme, Kind::Disk];

/// A scrub of so many bytes. `cursor`: checksums are walked once, in order.
fn measured(kind: Kind, policy: usize, cursor: bool, bytes: u64) -> Counts {
    let stripe = plant::look_up(cursor);
    match policy {
        0 => Plant::new(kind, bytes, Wait::new(stripe)).run(),
        1 => Plant::new(kind, bytes, Plug::new(stripe)).run(),
        _ => Plant::new(kind, bytes, Ours::new(kind, plant::look_up_of_ours(cursor))).run(),
    }
}

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let mut report = Report::new("Scrub");
    describe(&mut report);
    let mut table = Table::new(
        3,
        &[
            "device",
            "policy",
            "look-ups",
            "MB/s",
            "reads/s",
            "size of a read, kB",
            "reads under way",
        ],
    );
    let mut panels = Vec::new();
    for kind in KINDS {
        let gib = match kind {
            Kind::Disk => scale.pick(4, 1),
            _ => scale.pick(32, 1),
        };
        let mut panel = Panel::new(&format!("{}: GiB verified", kind.name()), svg::Scale::Even);
        for (policy, name) in POLICIES.iter().enumerate() {
            for cursor in [false, true] {
                let c = measured(kind, policy, cursor, gib << 30);
                let how = if cursor { "cursor" } else { "for each stripe" };
                table.row(row(kind, name, how, &c));
                // As it was, and ours as it is.
                if cursor == (policy == 2) {
                    panel = panel.curve(name, c.progress);
                }
            }
        }
        panels.push(panel);
    }
    report.table(table);
    let title = "Scrub: how far it is, by policy";
    report.picture(Picture {
        file: "scrub.svg".to_string(),
        title: title.to_string(),
        svg: svg::picture(title, &panels),
    });
    report.text(
        "With look-ups for each stripe the old policies are near to what was measured on a PCIe \
         3.0 drive: 1330 and 1996 MB/s. The thread that looks up is the limit of both; reads of \
         64 KiB and the wait for the last of eight come on top in the first. Ours needs the \
         cursor as much as they do: its one thread also verifies what was read, which the others \
         leave to workers. On the disk no policy matters: it is much slower than any look-up, and \
         its own buffer goes on reading where nothing is asked for, as the model of it does. Many \
         small reads cost a disk its speed beside clients, which this experiment has none of.",
    );
    report
}

fn describe(report: &mut Report) {
    report.text(
        "A device is verified from its beginning to its end, all of it in use, one copy. When \
         btrfs began to submit stripes of 64 KiB, 8 at a time, and to wait for them (Linux 6.4), a \
         scrub fell from 3.4 to 1.3 GB/s on an NVMe drive of 2023.",
    );
    report.text(
        "- *64 KiB, 8 at a time, and wait*: a look-up, a read of 64 KiB; after eight of them the \
         thread sleeps until all are read and verified.",
    );
    report.text(
        "- *Groups and plug* (what mended it): eight stripes are looked up and submitted together, \
         which makes one read of 512 KiB, and 8 MiB may be under way.",
    );
    report.text(&format!(
        "- *Ours*: runs of {} KiB in reads of {}, {} MiB under way, as the pool's scrub has them, \
         through the scheduler of the crate `queue`, which joins them again where the device is \
         quiet and does not rotate.",
        ours::run_bytes() >> 10,
        pool::SCRUB_READ_BYTES >> 10,
        ours::window_bytes() >> 20,
    ));
    report.text(&format!(
        "Modelled: a stripe costs the old threads {} us where its checksums are looked up in their \
         tree, and {} us where a cursor has them; {} us of both are for other trees and the \
         submission. These two numbers are from what was published: 1996 MB/s, and 2.7 GB/s \
         without the look-up. Ours needs {} us for a stripe with a cursor, and as much more for a \
         look-up as they do. To verify a stripe takes {} us, of workers beside the thread, or of \
         our only thread. A thread that sleeps runs {} us after it is woken. NVMe moves 3.13 GB/s, \
         one request after another, and adds 80 us. The disk is the one of `--emulate hdd` with 4 \
         TB.",
        us(plant::look_up(false)),
        us(plant::look_up(true)),
        us(plant::look_up(true)),
        us(plant::look_up_of_ours(true)),
        us(plant::VERIFY),
        us(plant::WAKING),
    ));
    report.text(
        "The product has no other way than the cursor: a scrub reads each leaf of its checksum \
         trees once, which a test of the pool counts (`crates/pool/tests/scrub.rs`).",
    );
}

fn us(d: base::Duration) -> String {
    short(d.as_nanos() as f64 / 1000.0)
}

fn row(kind: Kind, policy: &str, how: &str, c: &Counts) -> Vec<String> {
    let seconds = c.took.as_secs_f64();
    vec![
        kind.name().to_string(),
        policy.to_string(),
        how.to_string(),
        grouped((c.bytes as f64 / seconds / 1e6).round() as u64),
        grouped((c.reads as f64 / seconds).round() as u64),
        short(c.bytes as f64 / c.reads as f64 / 1000.0),
        short(c.busy.as_secs_f64() / seconds),
    ]
}
