//! The effect on a scrub when its devices go.

use super::State;
use crate::devices::Disk;

impl State {
    /// Records, while a scrub runs, that a device that it is to read is out of use, or lacks what
    /// is being copied to it.
    pub fn note_scrub_lacks(&mut self) {
        if self.devices.degraded() {
            let devices = &self.devices;
            self.scrub.note_away(|row| devices.has_all(row));
        }
    }

    /// A device that holds nothing any more is removed from its row. The caller closes what it
    /// gets, and commits. `now`: the Unix time.
    pub fn remove_device(&mut self, row: usize, name: &str, now: u32) -> Option<Disk> {
        if self.scrub.device_removed(row, name, now) {
            tracing::warn!(
                device = %name,
                "the scrub of this device is cancelled, as the device was removed"
            );
        }
        self.devices.clear_row(row)
    }
}
