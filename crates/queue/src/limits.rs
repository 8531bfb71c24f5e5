//! The limits of a device, and the latency that requests to it should have.

use base::Duration;
use rt::DeviceKind;

/// The limits of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Requests in flight.
    pub depth: usize,
    /// Requests are merged up to this many bytes, and larger ones are split, but for files in
    /// memory.
    pub max_request_bytes: usize,
    /// Requests are merged up to this many pieces of memory.
    pub max_segments: usize,
    /// The kind of the device; `None`: the one that the backend says.
    pub kind: Option<DeviceKind>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: 128, max_request_bytes: 1 << 20, max_segments: 256, kind: None }
    }
}

/// The time that a device's foreground requests should take at most, from their arrival to their
/// end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Targets {
    /// Reads; zero: as devices of this kind should.
    pub read: Duration,
    /// Writes; zero: as devices of this kind should.
    pub write: Duration,
}

impl Targets {
    /// The targets that devices of a kind should reach beside background work that is held back a
    /// little. On a virtual disk nothing is known of the device below, so the target is lenient.
    fn of_kind(kind: DeviceKind) -> Targets {
        let (read_ms, write_ms) = match kind {
            DeviceKind::Rotating => (30, 75),
            DeviceKind::Ssd => (5, 10),
            DeviceKind::Nvme | DeviceKind::Memory => (2, 5),
            DeviceKind::Unknown => (20, 40),
        };
        Targets { read: Duration::from_millis(read_ms), write: Duration::from_millis(write_ms) }
    }

    /// With those of a kind of device where none is set.
    pub(crate) fn or_of_kind(self, kind: DeviceKind) -> Targets {
        let usual = Targets::of_kind(kind);
        let set = |one: Duration, other| if one.is_zero() { other } else { one };
        Targets { read: set(self.read, usual.read), write: set(self.write, usual.write) }
    }

    /// Of reads or of writes.
    pub(crate) fn of(&self, write: bool) -> Duration {
        if write { self.write } else { self.read }
    }
}
