//! The verdict on the offline check of the pool: what it may find.

use offline::pool::check::{DeviceReport, Report};
use offline::{Problem, Severity, Slot, Subject};

use crate::env::Env;

/// Fails if the check has found what nothing that befell the devices explains.
pub(crate) fn judge(env: &Env, report: &Report) {
    env.count("damaged copies found by the check", report.damaged_copies);
    env.count("degraded checks", u64::from(report.degraded));
    let names = env.model.borrow().names() as u64;
    env.count(
        "volumes that a crash found half deleted",
        report.counts.volumes.saturating_sub(names),
    );
    if env.beyond() {
        return;
    }
    let victims: Vec<String> = env.settings.victims.iter().map(|d| format!("disk{d}")).collect();
    let of_victim = |p: &Problem| match &p.device {
        Some(d) => victims.contains(d),
        None => {
            victims.contains(&p.place) || p.severity == Severity::DamagedCopy && !victims.is_empty()
        }
    };
    let may_be = |p: &Problem| match p.severity {
        Severity::Note => true,
        // A crash may tear superblocks on some devices after they were written on others.
        Severity::DamagedCopy => {
            of_victim(p) || p.subject == Subject::Superblock || went_on(env, report, p)
        }
        // A device without a superblock takes no part.
        Severity::Error => {
            matches!(p.subject, Subject::Device | Subject::Superblock) && of_victim(p)
        }
    };
    if !report.problems.iter().all(may_be) {
        let all: Vec<String> = report
            .problems
            .iter()
            .filter(|p| p.severity != Severity::Note)
            .map(|p| p.to_string())
            .collect();
        env.fail(format!("the offline check found:\n{}", all.join("\n")));
    }
}

/// A crash left a device a superblock behind. The next open left out the other one, which failed or
/// was not there, and so went on from the commit before: what the later one had written into the
/// other slots of table pages, it wrote over. Then it ended before its first superblock. With both
/// of them there again, the later commit is the newest, and the device that was behind lacks those
/// pages, until an open ends well.
fn went_on(env: &Env, report: &Report, p: &Problem) -> bool {
    let behind =
        |d: &DeviceReport| newest(d).is_some_and(|generation| generation < report.generation);
    let device = report.devices.iter().find(|d| p.device.as_ref() == Some(&d.path));
    let so = p.subject == Subject::Table && env.cut_open.get() && device.is_some_and(behind);
    env.count("copies of table pages that an open alone wrote over", u64::from(so));
    so
}

/// The generation of a device's own newest superblock.
fn newest(device: &DeviceReport) -> Option<u64> {
    let of =
        |slot: &Slot| if let Slot::Ok { generation, .. } = slot { Some(*generation) } else { None };
    device.slots.iter().filter_map(of).max()
}
