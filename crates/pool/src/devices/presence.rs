//! Whether the pool uses a device, and how that can change.
//!
//! | from | to | when |
//! | --- | --- | --- |
//! | in use | out of use | the device fails, is found stale as the pool is opened, or a command takes it out of use |
//! | out of use | joining | the device is there again |
//! | joining | in use | the device has all tables, and a superblock by which it is in use |
//! | joining | out of use | the device did not get all that was written meanwhile, or was taken out of use |
//!
//! A device never goes from out of use to in use without joining, and a device in use never joins.
//! A row of the table without a device gets one by being replaced as a whole.
//!
//! Users see more: of a device in use whether it is `online`, `behind`, `leaving` or a `spare`, and
//! of one out of use whether it is `failed`, `flapping`, `stale`, `offline` or `missing`.

use base::IoError;

use super::disk::Disk;

/// Whether the pool uses a device.
pub(super) enum Presence {
    /// The row has no device.
    Removed,
    /// The device is read and written.
    InUse(Disk),
    /// The device gets all that is written, and nothing is read from it.
    Joining(JoiningDevice),
    /// The device is neither read nor written.
    OutOfUse(AwayDevice),
}

/// A device that comes into use.
pub(super) struct JoiningDevice {
    /// The queue of the device.
    pub disk: Disk,
    /// Why the device was out of use; `None`: it is being added, and no superblock knows of it.
    pub was: Option<AwayDevice>,
    /// Why the device did not get something that was written meanwhile.
    pub missed: Option<MissedReason>,
}

/// A device that is out of use.
#[derive(Default)]
pub(super) struct AwayDevice {
    /// The queue of the device; `None`: the device is missing.
    pub disk: Option<Disk>,
    /// Why the device is out of use, where more is known than that it is missing or has failed.
    pub why: Option<AwayReason>,
    /// The device is being told that it is out of use.
    pub is_told: bool,
}

/// Why a device is out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AwayReason {
    /// The device failed.
    Failed,
    /// The device failed again and again.
    Flapping,
    /// The device was away while the pool was written.
    Stale,
}

/// Why a device that joins does not have all that was written meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MissedReason {
    /// A write to the device failed.
    Write(IoError),
    /// The user took the device out of use.
    TakenOut,
}

/// The kinds of presence, without what belongs to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Removed,
    InUse,
    Joining,
    OutOfUse,
}

impl Stage {
    /// Whether the table at the top of this file has this change.
    pub fn may_become(self, next: Stage) -> bool {
        matches!(
            (self, next),
            (Stage::InUse, Stage::OutOfUse)
                | (Stage::OutOfUse, Stage::Joining)
                | (Stage::Joining, Stage::InUse | Stage::OutOfUse)
        )
    }
}

impl Presence {
    /// The kind of this presence.
    pub fn stage(&self) -> Stage {
        match self {
            Presence::Removed => Stage::Removed,
            Presence::InUse(_) => Stage::InUse,
            Presence::Joining(_) => Stage::Joining,
            Presence::OutOfUse(_) => Stage::OutOfUse,
        }
    }

    /// The queue of the device, if the device is there.
    pub fn disk(&self) -> Option<&Disk> {
        match self {
            Presence::Removed => None,
            Presence::InUse(disk) => Some(disk),
            Presence::Joining(joining) => Some(&joining.disk),
            Presence::OutOfUse(away) => away.disk.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_joins_before_it_is_used() {
        let all = [Stage::Removed, Stage::InUse, Stage::Joining, Stage::OutOfUse];
        let next = |from: Stage| all.into_iter().filter(move |to| from.may_become(*to));
        assert_eq!(next(Stage::Removed).count(), 0, "its row is replaced as a whole");
        assert!(next(Stage::InUse).eq([Stage::OutOfUse]));
        assert!(next(Stage::OutOfUse).eq([Stage::Joining]));
        assert!(next(Stage::Joining).eq([Stage::InUse, Stage::OutOfUse]));
    }
}
