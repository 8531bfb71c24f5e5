//! Checks of the machine: io_uring, the kernel, the limit of open files, memory.

use super::finding::{Finding, Level};
use crate::host::world::IoChoice;
use crate::units::human_bytes;

/// `EPERM`, `ENOMEM`, `ENOSYS` of Linux.
const NOT_PERMITTED: i32 = 1;
const NO_MEMORY: i32 = 12;
const NO_SUCH_CALL: i32 = 38;

/// The properties of the machine that were found.
#[derive(Clone, Default, Debug)]
pub struct Machine {
    /// The kernel's version.
    pub kernel: String,
    /// Why there is no io_uring, and the number of the error.
    pub no_ring: Option<(String, Option<i32>)>,
    /// `kernel.io_uring_disabled`; `None` where the kernel has no such key.
    pub ring_disabled: Option<u8>,
    /// Files that a process may have open, if it raises its limit.
    pub open_files: Option<u64>,
    /// Memory that can be had without swapping.
    pub available_bytes: Option<u64>,
    /// All memory.
    pub total_bytes: Option<u64>,
    /// The memory in bytes that the control group of this process may have.
    pub group_bytes: Option<u64>,
}

/// The needs of a server that the machine is to meet.
#[derive(Clone, Default, Debug)]
pub struct ServerNeeds {
    /// The I/O backend that is configured.
    pub io: IoChoice,
    /// The number of connections of NBD clients.
    pub connections: u64,
    /// The number of connections of HTTP clients.
    pub http_connections: u64,
    /// The number of files of the server itself: devices, sockets, commands.
    pub own_files: u64,
    /// The memory in bytes, by what it is for.
    pub memory: Vec<(&'static str, u64)>,
    /// True if a server runs, and has its memory already.
    pub runs: bool,
}

/// Checks the machine against the needs of a server.
pub fn check(machine: &Machine, needs: &ServerNeeds) -> Vec<Finding> {
    [Some(io(machine, needs.io)), files(machine, needs)]
        .into_iter()
        .flatten()
        .chain(memory(machine, needs))
        .collect()
}

fn io(machine: &Machine, choice: IoChoice) -> Finding {
    let kernel = &machine.kernel;
    let Some((why, number)) = &machine.no_ring else {
        return match choice {
            IoChoice::Posix => Finding::new(
                Level::Note,
                "io_uring",
                "io_uring is permitted, but io.backend is \"posix\": epoll and threads cost more \
                 CPU",
                "leave io.backend away, or set it to \"auto\"",
            ),
            _ => Finding::ok("io_uring", format!("it can be used (Linux {kernel})")),
        };
    };
    let todo = match (*number, machine.ring_disabled) {
        (Some(NOT_PERMITTED), Some(disabled)) if disabled > 0 => format!(
            "kernel.io_uring_disabled is {disabled}: sysctl -w kernel.io_uring_disabled=0, and the \
             same in /etc/sysctl.d; or =1, with the server's group in kernel.io_uring_group"
        ),
        (Some(NOT_PERMITTED), _) => "a filter of system calls refuses it, as those of containers \
             do: permit io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
             profile"
            .to_owned(),
        (Some(NO_SUCH_CALL), _) => format!(
            "this kernel (Linux {kernel}) is older than 5.11 or was built without it, or a filter \
             of system calls hides it: take a newer kernel, or another seccomp profile"
        ),
        (Some(NO_MEMORY), _) => "kernels before 5.12 count its memory as locked: raise the limit \
             (ulimit -l, LimitMEMLOCK= of a unit)"
            .to_owned(),
        _ => "take Linux 5.11 or newer".to_owned(),
    };
    match choice {
        IoChoice::Uring => Finding::new(
            Level::Problem,
            "io_uring",
            format!("it cannot be used ({why}), and io.backend is \"uring\": no server starts"),
            format!("{todo}. Or set io.backend to \"auto\""),
        ),
        IoChoice::Auto => Finding::new(
            Level::Warning,
            "io_uring",
            format!("it cannot be used ({why}): epoll and threads are, which cost more CPU"),
            todo,
        ),
        IoChoice::Posix => {
            Finding::ok("io_uring", format!("it cannot be used, and is not ({why})"))
        }
    }
}

fn files(machine: &Machine, needs: &ServerNeeds) -> Option<Finding> {
    let limit = machine.open_files?;
    let needed = needs.own_files + needs.connections + needs.http_connections;
    if limit >= needed {
        let found = format!("{limit} files can be open, at most {needed} are needed");
        return Some(Finding::ok("files", found));
    }
    let found = format!(
        "at most {limit} files can be open, and {needed} are needed: {} for clients \
         (nbd.max_connections), {} for HTTP, the rest for the server itself",
        needs.connections, needs.http_connections
    );
    let todo = "raise the hard limit (ulimit -Hn; LimitNOFILE= of a unit), or lower \
                nbd.max_connections";
    // With no room for its own files a server does not come up.
    let level = if limit <= needs.own_files { Level::Problem } else { Level::Warning };
    Some(Finding::new(level, "files", found, todo))
}

fn memory(machine: &Machine, needs: &ServerNeeds) -> Vec<Finding> {
    let needed: u64 = needs.memory.iter().map(|part| part.1).sum();
    let mut parts: Vec<_> = needs.memory.iter().filter(|part| part.1 > 0).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.1));
    let named: Vec<String> =
        parts.iter().map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes))).collect();
    let named = named.join(", ");
    let need = human_bytes(needed);
    let todo = "lower what is largest of these settings, or give the server more memory";
    let mut all = Vec::new();
    if let Some(group) = machine.group_bytes {
        let most = human_bytes(group);
        let found = format!("the server may need {need} ({named}), its control group has {most}");
        if needed > group {
            all.push(Finding::new(Level::Problem, "memory", found, todo));
        } else if needed > group / 4 * 3 {
            all.push(Finding::new(Level::Warning, "memory", found, todo));
        }
    }
    let (have, what) = match needs.runs {
        true => (machine.total_bytes, "the machine has"),
        false => (machine.available_bytes, "available are"),
    };
    if let Some(have) = have {
        let found = format!("the server may need {need} ({named}), {what} {}", human_bytes(have));
        if needed > have {
            all.push(Finding::new(Level::Warning, "memory", found, todo));
        } else if all.is_empty() {
            let found = format!("the server may need {need}, {what} {}", human_bytes(have));
            all.push(Finding::ok("memory", found));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::finding::has;
    use super::*;

    fn good() -> (Machine, ServerNeeds) {
        let machine = Machine {
            kernel: "6.1".into(),
            open_files: Some(1024),
            available_bytes: Some(4 << 30),
            total_bytes: Some(8 << 30),
            ..Machine::default()
        };
        let memory = vec![("pool.cached_nodes", 96 << 20), ("nbd.max_payload", 64 << 20)];
        let needs = ServerNeeds {
            connections: 256,
            http_connections: 128,
            own_files: 66,
            memory,
            ..ServerNeeds::default()
        };
        (machine, needs)
    }

    #[test]
    fn a_good_machine_is_fine() {
        let (machine, needs) = good();
        let all = check(&machine, &needs);
        assert!(all.len() == 3 && all.iter().all(|one| one.level == Level::Ok), "{all:?}");
    }

    #[test]
    fn io_uring_that_is_refused_costs_or_stops() {
        let (mut machine, mut needs) = good();
        machine.no_ring = Some(("Operation not permitted".into(), Some(1)));
        assert!(has(&check(&machine, &needs), Level::Warning, &["more CPU", "seccomp"]));
        machine.ring_disabled = Some(2);
        assert!(has(&check(&machine, &needs), Level::Warning, &["kernel.io_uring_disabled is 2"]));
        needs.io = IoChoice::Uring;
        assert!(has(&check(&machine, &needs), Level::Problem, &["no server starts", "\"auto\""]));
        needs.io = IoChoice::Posix;
        assert!(has(&check(&machine, &needs), Level::Ok, &["is not"]));
        for (number, word) in [(38, "older than 5.11"), (12, "LimitMEMLOCK"), (5, "newer")] {
            machine.no_ring = Some(("no".into(), Some(number)));
            needs.io = IoChoice::Auto;
            assert!(has(&check(&machine, &needs), Level::Warning, &[word]), "{number}");
        }
        machine.no_ring = None;
        needs.io = IoChoice::Posix;
        assert!(has(&check(&machine, &needs), Level::Note, &["io.backend"]));
    }

    #[test]
    fn too_few_files() {
        let (mut machine, needs) = good();
        machine.open_files = Some(300);
        assert!(has(
            &check(&machine, &needs),
            Level::Warning,
            &["at most 300", "450 are needed", "256 for"]
        ));
        machine.open_files = Some(66);
        assert!(has(&check(&machine, &needs), Level::Problem, &["ulimit -Hn"]));
    }

    #[test]
    fn too_little_memory() {
        let (mut machine, mut needs) = good();
        machine.available_bytes = Some(100 << 20);
        assert!(has(
            &check(&machine, &needs),
            Level::Warning,
            &["160 MiB", "pool.cached_nodes 96"]
        ));
        // A server that runs has taken its part of what is not available.
        needs.runs = true;
        assert!(has(&check(&machine, &needs), Level::Ok, &["the machine has 8 GiB"]));
        machine.group_bytes = Some(170 << 20);
        assert!(has(&check(&machine, &needs), Level::Warning, &["control group has 170 MiB"]));
        machine.group_bytes = Some(100 << 20);
        assert!(has(&check(&machine, &needs), Level::Problem, &["control group has 100 MiB"]));
    }
}
