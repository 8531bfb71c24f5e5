//! Statistics of a device, by class.

use base::{Duration, Histogram};

/// The purpose of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A client waits for it.
    Foreground,
    /// Writing a transaction, the journal or a checkpoint: clients may wait for it.
    Commit,
    /// Putting together what is left of thin buckets: clients would wait for the room.
    Compaction,
    /// A write-back pass.
    WriteBack,
    /// Blocks that were read move into the cache.
    Promotion,
    /// Garbage collection.
    Collection,
    /// A scrub.
    Scrub,
    /// Chunks move from one device to another.
    Move,
    /// A write-back pass for which clients wait, or will soon: in line with commits. It counts as
    /// write-back, and is told as such.
    HurriedWriteBack,
}

impl Class {
    /// All classes that are counted, in the order of [`DeviceStats::classes`].
    pub const ALL: [Class; 8] = [
        Class::Foreground,
        Class::Commit,
        Class::Compaction,
        Class::WriteBack,
        Class::Promotion,
        Class::Collection,
        Class::Scrub,
        Class::Move,
    ];

    /// No client waits for it: it gives way to the other classes ([`crate::Device`]).
    pub fn is_background(self) -> bool {
        !matches!(
            self,
            Class::Foreground | Class::Commit | Class::Compaction | Class::HurriedWriteBack
        )
    }

    /// The class as which it is counted: its place in [`Class::ALL`].
    pub(crate) fn index(self) -> usize {
        match self {
            Class::HurriedWriteBack => Class::WriteBack as usize,
            class => class as usize,
        }
    }

    /// True if the class is of the background, and clients may come to wait for what it makes:
    /// room, or a second copy. A scrub can always wait.
    pub(crate) fn is_hurried(self) -> bool {
        self.is_background() && self != Class::Scrub
    }

    /// The name of the class in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Foreground => "foreground",
            Class::Commit => "commit",
            Class::Compaction => "compaction",
            Class::WriteBack | Class::HurriedWriteBack => "write-back",
            Class::Promotion => "promotion",
            Class::Collection => "collection",
            Class::Scrub => "scrub",
            Class::Move => "move",
        }
    }
}

/// Counters of one kind of request.
#[derive(Clone, Default)]
pub struct KindStats {
    /// Requests.
    pub count: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// From submission to completion, waiting included.
    pub latency: Histogram,
}

impl KindStats {
    /// Counts one request.
    pub fn record(&mut self, bytes: u64, took: Duration) {
        self.count += 1;
        self.bytes += bytes;
        self.latency.record(took);
    }
}

/// Counters of one class.
#[derive(Clone, Default)]
pub struct ClassStats {
    /// Reads.
    pub read: KindStats,
    /// Writes.
    pub write: KindStats,
    /// Flushes.
    pub flush: KindStats,
    /// Requests that were merged into a neighbour.
    pub merged: u64,
    /// Bytes between requests that were read and thrown away, as they became one.
    pub gap_bytes: u64,
    /// Nanoseconds that requests waited in the queue, all together.
    pub waited_ns: u64,
    /// Nanoseconds that the device had them, all together.
    pub in_service_ns: u64,
    /// Of the foreground, requests to the device that took longer than its latency target.
    pub late: u64,
    /// Requests that the device has now.
    pub in_flight: usize,
}

/// Counters of one device.
#[derive(Clone, Default)]
pub struct DeviceStats {
    /// By class, in the order of [`Class::ALL`].
    pub classes: [ClassStats; Class::ALL.len()],
    /// Requests that the background may have in flight now while the device has nothing else to do.
    pub background_most: u32,
    /// Requests of clients, commits and the journal that wait now.
    pub waiting: usize,
    /// Requests of the background that wait now.
    pub background_waiting: usize,
    /// The time for which the device has had the oldest of the requests and flushes that it has
    /// now; zero if it has none. Time in which the thread could not see the end of one does not
    /// count.
    pub silent: Duration,
}

impl DeviceStats {
    /// The counters of `class`.
    pub fn of(&self, class: Class) -> &ClassStats {
        &self.classes[class.index()]
    }

    /// The same, to change them.
    pub fn of_mut(&mut self, class: Class) -> &mut ClassStats {
        &mut self.classes[class.index()]
    }
}

impl KindStats {
    fn merge(&mut self, other: &KindStats) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
    }
}

impl DeviceStats {
    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &DeviceStats) {
        for (a, b) in self.classes.iter_mut().zip(&other.classes) {
            a.read.merge(&b.read);
            a.write.merge(&b.write);
            a.flush.merge(&b.flush);
            a.merged += b.merged;
            a.gap_bytes += b.gap_bytes;
            a.waited_ns += b.waited_ns;
            a.in_service_ns += b.in_service_ns;
            a.late += b.late;
            a.in_flight += b.in_flight;
        }
        self.waiting += other.waiting;
        self.background_waiting += other.background_waiting;
        self.silent = self.silent.max(other.silent);
    }
}
