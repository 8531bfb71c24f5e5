//! Scrub: how what is read is gathered, and how its checksums are found.
//!
//! A scrub reads a device from its beginning to its end. A thread looks up what a stripe of 64 KiB
//! must be, and asks for it. Whether it then waits, gathers, or has many MiB under way decides how
//! much of the device's speed is used; so does what a look-up costs.
//!
//! * [`plant`]: the device, the thread, time
//! * [`old`]: 64 KiB and wait; groups and plug
//! * [`ours`]: the scheduler of the crate `queue`, with the runs and the window of the pool's scrub
//! * [`beside`]: clients at the same device, and what a scrub costs them

mod beside;
mod old;
mod ours;
mod plant;
#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;

use crate::report::{Picture, Report, Scale, Table, grouped, short};
use crate::svg::{self, Panel};
use crate::tags::device::Kind;
use beside::{Bench, Clients, Queueing};
use emulate::Emulate;
use old::{Plug, Wait};
use ours::ForebayScrub;
use plant::{ScrubCounts, ScrubPlant};

/// The policies, in the order of the rows.
const POLICIES: [&str; 3] = ["64 KiB, 8 at a time, and wait", "groups and plug", "ours"];
/// The devices.
const KINDS: [Kind; 2] = [Kind::Nvme, Kind::Disk];

/// A scrub of so many bytes. `cursor`: checksums are walked once, in order.
fn measured(kind: Kind, policy: usize, cursor: bool, bytes: u64) -> ScrubCounts {
    let stripe = plant::look_up(cursor);
    match policy {
        0 => ScrubPlant::new(kind, bytes, Wait::new(stripe)).run(),
        1 => ScrubPlant::new(kind, bytes, Plug::new(stripe)).run(),
        _ => ScrubPlant::new(kind, bytes, ForebayScrub::new(kind, plant::look_up_of_ours(cursor)))
            .run(),
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
        let mut panel = Panel::new(&format!("{}: GiB verified", kind.name()), svg::AxisScale::Even);
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
         small reads cost a disk its speed beside clients, which come next.",
    );
    beside_clients(&mut report, scale);
    report
}

/// Of what the clients' device can do, so much is asked for.
const LOADS: [f64; 3] = [0.25, 0.5, 0.75];

/// Clients and a scrub at one device: what each costs the other.
fn beside_clients(report: &mut Report, scale: Scale) {
    report.text(
        "**Beside clients.** Requests of 4 KiB, 70 % of them reads, come at random times over the \
         first GiB of the device, at a share of the rate that a closed loop of four gets; a scrub \
         reads what follows. *No scheduler*: all of it goes to the device at once, the scrub with \
         8 reads of 1 MiB. *Ours*: as the product has it. The last row of each device is a closed \
         loop of four, which leaves no gap. *Times as long*: of an idle scrub of ours.",
    );
    let mut table = Table::new(
        3,
        &[
            "device",
            "clients",
            "scheduler",
            "requests/s",
            "P99 alone, ms",
            "P99, times",
            "P99.9, times",
            "scrub, MB/s",
            "times as long",
        ],
    );
    for (what, name, bytes) in beside::DEVICES {
        let seconds = match what {
            Emulate::Hdd => scale.pick(600, 20),
            Emulate::Ssd => scale.pick(5, 1),
        };
        let seen = |queueing, clients, scrubs| {
            let bench = Bench::new(what, bytes, queueing, clients, scrubs);
            bench.run(base::Duration::from_secs(seconds))
        };
        let idle = seen(Queueing::Scheduled, Clients::None, true).speed();
        let most = seen(Queueing::Scheduled, Clients::Closed, false).rate();
        let open =
            LOADS.map(|share| (Clients::Open(share * most), format!("{:.0} %", share * 100.0)));
        for (clients, load) in open.into_iter().chain([(Clients::Closed, "all".to_string())]) {
            for (queueing, scheduler) in [(Queueing::None, "none"), (Queueing::Scheduled, "ours")] {
                let (alone, both) = (seen(queueing, clients, false), seen(queueing, clients, true));
                let times = |n| both.per_mille(n).as_secs_f64() / alone.per_mille(n).as_secs_f64();
                table.row(vec![
                    name.to_string(),
                    load.clone(),
                    scheduler.to_string(),
                    grouped(both.rate().round() as u64),
                    short(alone.per_mille(990).as_secs_f64() * 1e3),
                    short(times(990)),
                    short(times(999)),
                    short(both.speed()),
                    short(idle / both.speed()),
                ]);
            }
        }
    }
    report.table(table);
    report.text(
        "A disk takes as long to come to the place of the scrub as to read a MiB there. So few \
         large requests cost clients least for what they bring, and each stands in the way of the \
         next client only once. On an SSD it is the other way round: a client's request waits \
         while the link moves the scrub's bytes, and 32 KiB are little more than its own latency.",
    );
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
        "- *Ours*: runs of {} KiB, {} MiB under way, as the pool's scrub has them, in reads of a \
         size by kind of device, through the scheduler of the crate `queue`, which joins them \
         again where the device is quiet and does not rotate.",
        ours::run_bytes() >> 10,
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

fn row(kind: Kind, policy: &str, how: &str, c: &ScrubCounts) -> Vec<String> {
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
