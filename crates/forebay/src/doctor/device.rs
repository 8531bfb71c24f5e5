//! Checks of each device by itself.

use emulate::Emulate;
use rt::DeviceKind;

use super::finding::{Finding, Level};
use super::found::{Device, MountPoint, Properties, QueueLimits, Role, State};
use crate::units::human_bytes;

const CHECK: &str = "device";
const BLOCK: u64 = 4096;
/// File systems over a network.
const NETWORK: [&str; 9] =
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"];
/// File systems that copy on write.
const COPIES: [&str; 3] = ["btrfs", "zfs", "bcachefs"];
/// File systems, and disks, in memory.
const MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
const MEMORY_DISKS: [&str; 2] = ["ram", "zram"];

/// Checks a device. `kind` is the kind of disk that the configuration says, if it does.
pub fn check(device: &Device, kind: Option<DeviceKind>) -> Vec<Finding> {
    let name = device.name();
    let mut all = match &device.state {
        State::Missing(why) => missing(device, &name, why),
        State::Odd => vec![Finding::new(
            Level::Problem,
            CHECK,
            format!("{name} is neither a file nor a block device"),
            "name another path",
        )],
        State::There(properties) => there(device, &name, properties, kind),
    };
    if let Some(mount) = &device.mount {
        all.extend(file_system(&name, mount));
    }
    if let Some(what) = device.emulate {
        let like = if what == Emulate::Hdd { "a rotating disk" } else { "an SSD on SATA" };
        all.push(Finding::new(
            Level::Note,
            CHECK,
            format!("{name} is slow on purpose, like {like} (emulate = \"{what}\")"),
            "leave emulate away where it is not for a trial",
        ));
    }
    if all.iter().all(|one| one.level > Level::Note) || all.is_empty() {
        if let State::There(properties) = &device.state {
            all.push(Finding::ok(CHECK, format!("{name}: {}", described(device, properties))));
        }
    }
    all
}

fn described(device: &Device, properties: &Properties) -> String {
    let what = if properties.block { "block device" } else { "file" };
    let mut text = format!("{what} of {}", human_bytes(properties.size_bytes));
    text += &match properties.kind {
        DeviceKind::Unknown => ", kind of disk not known".to_owned(),
        kind => format!(", {}", kind.word()),
    };
    if let Some(mount) = &device.mount {
        text += &format!(", on {}", mount.kind);
    }
    if let Some(queue) = &properties.queue {
        text += &format!(
            ", sectors of {} ({} at once)",
            queue.logical_bytes,
            human_bytes(queue.physical_bytes)
        );
        if !queue.write_cache.is_empty() {
            text += &format!(", {} cache", queue.write_cache);
        }
    }
    text
}

fn missing(device: &Device, name: &str, why: &str) -> Vec<Finding> {
    let todo = match device.role {
        Role::Cache(Some(size)) => {
            let found = format!(
                "{name} is not there; one of {} is made at the start, if the pool has none",
                human_bytes(size)
            );
            return vec![Finding::ok(CHECK, found)];
        }
        Role::Pool => {
            "plug it in, or name its path; a pool is served without it only where all blocks have \
             a copy elsewhere"
        }
        Role::Cache(None) => {
            "plug it in, or name its path; a pool that has a cache is not served without it. \
             cache.size has a new one made where the pool has none"
        }
    };
    vec![Finding::new(Level::Problem, CHECK, format!("{name} is missing: {why}"), todo)]
}

fn there(
    device: &Device,
    name: &str,
    properties: &Properties,
    kind: Option<DeviceKind>,
) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |level, found: String, todo: &str| {
        all.push(Finding::new(level, CHECK, found, todo));
    };
    if let Some(why) = &properties.refused {
        let todo = if properties.read_only {
            "mount its file system for writing; the kernel's log says why it is read-only. Until \
             then a pool is served without it, where all blocks have a copy elsewhere"
        } else if properties.block {
            "give the server's user the group of the device, usually disk \
             (SupplementaryGroups= of a unit), or the device a group of its own (udev)"
        } else {
            "make the server's user its owner (chown), and see that the directory can be entered"
        };
        add(Level::Problem, format!("{name} may not be read and written: {why}"), todo);
    }
    for user in &properties.users {
        let found = format!("{name} is used by something else: {user}");
        add(Level::Problem, found, "unmount it or stop its user, or name another device");
    }
    if properties.block && properties.disks.iter().any(|disk| is_in_memory(disk)) {
        let found = format!("{name} is a disk in memory: what it holds is lost at power-off");
        add(Level::Warning, found, "name a device that keeps what is written");
    }
    if properties.direct == Some(false) && properties.kind != DeviceKind::Memory {
        let found = format!("{name} cannot be read past the page cache (O_DIRECT)");
        let todo = "it works, and takes memory and CPU twice; ext4 and XFS can do it";
        add(Level::Warning, found, todo);
    }
    if let Some(queue) = &properties.queue {
        all.extend(of_queue(name, properties, queue));
    }
    if matches!(device.role, Role::Cache(_)) {
        all.extend(of_cache(device, name, properties, kind));
    }
    all
}

fn is_in_memory(disk: &str) -> bool {
    let kind = disk.trim_end_matches(|c: char| c.is_ascii_digit());
    MEMORY_DISKS.contains(&kind)
}

fn of_queue(name: &str, properties: &Properties, queue: &QueueLimits) -> Vec<Finding> {
    let mut all = Vec::new();
    if queue.logical_bytes > BLOCK {
        all.push(Finding::new(
            Level::Problem,
            CHECK,
            format!(
                "{name} has sectors of {}: blocks of 4 KiB cannot be written to it",
                human_bytes(queue.logical_bytes)
            ),
            "format it with sectors of 512 or 4096 bytes, or name another device",
        ));
    }
    if properties.block && queue.misaligned_bytes > 0 {
        all.push(Finding::new(
            Level::Warning,
            CHECK,
            format!(
                "{name} begins {} bytes beside a physical sector of its disk: each write of a \
                 block makes the disk read first",
                queue.misaligned_bytes
            ),
            "make the partition anew, at a multiple of 1 MiB",
        ));
    }
    all
}

fn of_cache(
    device: &Device,
    name: &str,
    properties: &Properties,
    kind: Option<DeviceKind>,
) -> Option<Finding> {
    let rotates = kind.unwrap_or(properties.kind) == DeviceKind::Rotating;
    (rotates || device.emulate == Some(Emulate::Hdd)).then(|| {
        Finding::new(
            Level::Warning,
            CHECK,
            format!("{name} is on a disk that rotates: it is hardly faster than the pool"),
            "put the cache on an SSD, or do without (forebay cache detach)",
        )
    })
}

fn file_system(name: &str, mount: &MountPoint) -> Option<Finding> {
    let MountPoint { point, kind, .. } = mount;
    let at = point.display();
    let finding = |level, found: String, todo: &str| Some(Finding::new(level, CHECK, found, todo));
    match kind.as_str() {
        memory if MEMORY.contains(&memory) => finding(
            Level::Warning,
            format!("{name} is in memory ({memory} at {at}): it is lost at power-off"),
            "put it on a disk",
        ),
        network if NETWORK.contains(&network) => finding(
            Level::Warning,
            format!(
                "{name} is on a network file system ({network} at {at}): what was flushed is as \
                 safe as the server there makes it, and the lock may not hold for other machines"
            ),
            "put it on a disk of this machine; or be sure that one machine alone uses it, and that \
             its server honours fsync (NFS: export with sync)",
        ),
        "overlay" => finding(
            Level::Warning,
            format!("{name} is in a container's own layer ({kind} at {at}): it goes with it"),
            "put it on a volume that outlives the container",
        ),
        _ => None,
    }
}

/// Files that are copied on write below a pool that does so itself.
pub fn copies_twice(device: &Device) -> Option<Finding> {
    let (properties, mount) = (device.properties()?, device.mount.as_ref()?);
    if properties.block || !COPIES.contains(&mount.kind.as_str()) || properties.no_cow == Some(true)
    {
        return None;
    }
    let todo = match mount.kind.as_str() {
        "btrfs" => {
            "chattr +C on the directory before the file is made (an old file stays as it is: copy \
             it), or put it on ext4 or XFS"
        }
        _ => "put it on ext4 or XFS, or on a block device",
    };
    let found = format!(
        "{} is copied on write twice, by Forebay and by {}: it gets slow and scattered",
        device.name(),
        mount.kind
    );
    Some(Finding::new(Level::Note, CHECK, found, todo))
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
