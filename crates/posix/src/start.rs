//! The place where the operations of a file are started, so that the engine's thread waits for none
//! of them.

/// The place where operations of a file are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// At once, by the engine's thread: they only copy memory.
    Here,
    /// In the kernel's queue: it takes each of them without a wait, or hands it to a thread.
    Queue,
    /// In a thread: the kernel may hold the one that starts them. FUSE takes few requests at a
    /// time, and lets the others wait, even those that asked not to.
    Thread,
}

// By `linux/magic.h`.
const RAMFS: u64 = 0x8584_58F6;
const TMPFS: u64 = 0x0102_1994;
const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683E;
const F2FS: u64 = 0xF2F5_2010;

impl Start {
    /// The place where operations of the regular files of a file system are started. Only those
    /// file systems are trusted that answer a request which must not wait with "try again". The
    /// kernel itself hands requests of most of the others to a thread, so little is lost with them.
    pub(crate) fn of(file_system: u64) -> Start {
        match file_system {
            RAMFS | TMPFS => Start::Here,
            EXT | XFS | BTRFS | F2FS => Start::Queue,
            _ => Start::Thread,
        }
    }
}
