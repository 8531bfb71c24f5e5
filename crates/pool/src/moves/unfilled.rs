//! Why chunks were not filled, in words that send the user to the right place.

use base::{ErrorKind, StorageError};

use crate::devices::PoolDevice;
use crate::state::State;

/// The number of writes that had failed on each device before chunks were filled.
pub(super) struct WriteErrors(Vec<u64>);

impl WriteErrors {
    pub fn of(st: &State) -> WriteErrors {
        WriteErrors(st.devices.iter().map(|d| d.errors().write).collect())
    }

    /// All rows.
    pub fn rows(&self) -> Vec<usize> {
        (0..self.0.len()).collect()
    }

    /// Says what a move waits for that has failed with `e`, as it wrote to the devices of these
    /// rows, or read from others.
    pub fn what_failed(&self, st: &State, rows: &[usize], e: &StorageError) -> String {
        let refused = |row: usize, d: &PoolDevice| Some(&d.errors().write) > self.0.get(row);
        let refuses = rows.iter().find_map(|&row| {
            let d = st.devices.row(row).filter(|d| refused(row, d))?;
            Some(st.devices.name_of(row, d))
        });
        match (refuses, e.kind == ErrorKind::NoSpace) {
            (Some(device), true) => format!("space under {device}"),
            (Some(device), false) => format!("writes to {device} to succeed (see log)"),
            (None, true) => "room in the pool (see log)".into(),
            (None, false) => "a readable copy (see log)".into(),
        }
    }
}
