//! The devices: when a piece that was submitted is done.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Instant};
use emulate::{Access, Emulate, Emulation, Ticket};
use rt::DeviceKind;

/// Which device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Disk,
    Ssd,
    Nvme,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Disk, Kind::Ssd, Kind::Nvme];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Disk => "disk",
            Kind::Ssd => "SSD",
            Kind::Nvme => "NVMe",
        }
    }

    /// As the scheduler calls it.
    pub fn device_kind(self) -> DeviceKind {
        match self {
            Kind::Disk => DeviceKind::Rotating,
            Kind::Ssd => DeviceKind::Ssd,
            Kind::Nvme => DeviceKind::Nvme,
        }
    }

    /// Pieces that it may have at once.
    pub fn tags(self) -> usize {
        match self {
            Kind::Disk => 32,
            Kind::Ssd => 256,
            Kind::Nvme => 1023,
        }
    }

    pub fn bytes(self) -> u64 {
        match self {
            Kind::Disk => 4_000_000_000_000,
            Kind::Ssd => 1_800_000_000_000,
            Kind::Nvme => 1_500_000_000_000,
        }
    }

    pub fn device(self) -> Device {
        match self {
            Kind::Disk => {
                let model = Box::new(Emulation::new(Emulate::Hdd, self.bytes()));
                Device::Disk { model, pieces: BTreeMap::new(), done: Vec::new() }
            }
            Kind::Ssd => Device::Link(Link::new(1_130_000_000)),
            Kind::Nvme => Device::Link(Link::new(3_130_000_000)),
        }
    }
}

pub(crate) enum Device {
    Disk { model: Box<Emulation>, pieces: BTreeMap<Ticket, u64>, done: Vec<Ticket> },
    Link(Link),
}

impl Device {
    /// A read of this piece begins.
    pub fn submit(&mut self, now: Instant, piece: u64, offset: u64, len: usize) {
        match self {
            Device::Disk { model, pieces, .. } => {
                pieces.insert(model.submit(now, Access::Read, offset, len), piece);
            }
            Device::Link(link) => link.submit(now, piece, len),
        }
    }

    /// When a piece will be done next.
    pub fn next_at(&self) -> Option<Instant> {
        match self {
            Device::Disk { model, .. } => model.next_at(),
            Device::Link(link) => link.pending.first().map(|(at, _)| *at),
        }
    }

    /// Adds the pieces that are done by now, in the order in which they are.
    pub fn take_done(&mut self, now: Instant, out: &mut Vec<u64>) {
        match self {
            Device::Disk { model, pieces, done } => {
                model.take_done(now, done);
                out.extend(done.drain(..).filter_map(|ticket| pieces.remove(&ticket)));
            }
            Device::Link(link) => {
                while let Some(&(at, piece)) = link.pending.first().filter(|(at, _)| *at <= now) {
                    link.pending.remove(&(at, piece));
                    out.push(piece);
                }
            }
        }
    }
}

/// Flash: a link that moves one piece after the other, and a latency.
pub(crate) struct Link {
    bytes_a_second: u64,
    free_at: Instant,
    pending: BTreeSet<(Instant, u64)>,
}

impl Link {
    const LATENCY: Duration = Duration::from_micros(80);

    fn new(bytes_a_second: u64) -> Link {
        Link { bytes_a_second, free_at: Instant(0), pending: BTreeSet::new() }
    }

    fn submit(&mut self, now: Instant, piece: u64, len: usize) {
        let moves = Duration::from_nanos(len as u64 * 1_000_000_000 / self.bytes_a_second);
        self.free_at = self.free_at.max(now).after(moves);
        self.pending.insert((self.free_at.after(Link::LATENCY), piece));
    }
}
