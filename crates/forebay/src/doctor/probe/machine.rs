//! io_uring, the kernel, limits, memory.

use std::fs::read_to_string;
use std::path::Path;

use uring::Uring;

use crate::doctor::machine::Machine;

/// The number of entries of the ring: as few as the kernel makes.
const ENTRIES: u32 = 8;

/// Looks at the machine.
pub fn look() -> Machine {
    let no_ring = Uring::new(ENTRIES).err().map(|e| (e.to_string(), e.raw_os_error()));
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let disabled = read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "?".into());
    Machine {
        kernel: kernel.trim().to_owned(),
        no_ring,
        ring_disabled: disabled.and_then(|text| text.trim().parse().ok()),
        open_files: open_files(&read_to_string("/proc/self/limits").unwrap_or_default()),
        available_bytes: field(&memory, "MemAvailable"),
        total_bytes: field(&memory, "MemTotal"),
        group_bytes: group_bytes(),
    }
}

/// The memory that this process may have, in bytes; `None`: nothing bounds it.
pub fn group_bytes() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    group(Path::new("/sys/fs/cgroup"), &groups)
}

/// The hard limit of open files in `/proc/self/limits`.
fn open_files(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match row.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Bytes of a field of `/proc/meminfo`.
fn field(memory: &str, name: &str) -> Option<u64> {
    let row = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    row.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that the control group of `/proc/self/cgroup` and those above it may have.
fn group(root: &Path, groups: &str) -> Option<u64> {
    let number = |path: &Path| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next(), parts.next(), parts.next());
        let (Some(controllers), Some(path)) = (controllers, path) else { continue };
        let (base, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        let dir = base.join(path.trim_start_matches('/'));
        // A container does not see the groups above its own.
        let all = dir.ancestors().take_while(|one| one.starts_with(&base));
        least = all.filter_map(|one| number(&one.join(name))).chain(least).min();
    }
    least
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_proc_are_read() {
        let limits = "Limit   Soft Limit  Hard Limit  Units\n\
                      Max processes     1    2   processes\n\
                      Max open files    1024      4096       files\n";
        assert_eq!(open_files(limits), Some(4096));
        assert_eq!(open_files(""), None);
        let memory = "MemTotal:  100 kB\nMemAvailable:     50 kB\n";
        assert_eq!((field(memory, "MemTotal"), field(memory, "Mem")), (Some(102_400), None));
    }

    #[test]
    fn the_tightest_group_counts() {
        let tmp = tempfile::tempdir().unwrap();
        let inner = tmp.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(group(tmp.path(), "0::/a/b\n"), None);
        fs::write(tmp.path().join("a/memory.max"), "4096\n").unwrap();
        assert_eq!(group(tmp.path(), "0::/a/b\n"), Some(4096));
        fs::write(inner.join("memory.max"), "8192\n").unwrap();
        assert_eq!(group(tmp.path(), "1:cpu:/x\n0::/a/b\n"), Some(4096));
    }

    #[test]
    fn this_machine_has_a_kernel() {
        let machine = look();
        assert!(machine.kernel.contains('.') && machine.open_files > Some(3), "{machine:?}");
    }
}
