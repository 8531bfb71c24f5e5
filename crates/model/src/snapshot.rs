//! Snapshots of volumes.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A snapshot as its users see it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// The name of the volume that it is of.
    pub volume: String,
    /// The name of the snapshot, which no other snapshot of the volume has. VOLUME@NAME is the name
    /// of its export.
    pub name: String,
    /// When the snapshot was taken, in seconds of Unix time; 0: not known.
    pub taken_at: u64,
    /// The size of the volume then, in bytes.
    pub size_bytes: u64,
    /// Bytes that the volume took of the pool then, one copy counted; the volume and other
    /// snapshots may share them.
    pub referenced_bytes: u64,
    /// Bytes in a logical sector.
    pub sector_bytes: u32,
}

impl Snapshot {
    /// The name with that of the volume: `VOLUME@NAME`.
    pub fn full_name(&self) -> String {
        let Snapshot { volume, name, .. } = self;
        format!("{volume}@{name}")
    }
}

/// Snapshots that were taken at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TakenSnapshots {
    /// The snapshots, in the order in which they were asked for.
    pub snapshots: Vec<Snapshot>,
    /// From the request until the snapshots were durable, in milliseconds.
    pub took_ms: f64,
}

/// The name of a snapshot with that of its volume: `VOLUME@NAME`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SnapshotName {
    /// The volume.
    pub volume: String,
    /// The snapshot.
    pub name: String,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.name)
    }
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotName, String> {
        match text.rsplit_once('@') {
            Some((volume, name)) if !volume.is_empty() && !name.is_empty() => {
                Ok(SnapshotName { volume: volume.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("{text:?} names no snapshot: VOLUME@NAME does, as vm1@monday")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_at_sign_is_before_the_name() {
        let name: SnapshotName = "a@b@c".parse().expect("a name");
        assert_eq!((&*name.volume, &*name.name), ("a@b", "c"));
        assert_eq!(name.to_string(), "a@b@c");
        for bad in ["", "a", "@", "a@", "@b"] {
            assert!(bad.parse::<SnapshotName>().is_err(), "{bad:?}");
        }
    }
}
