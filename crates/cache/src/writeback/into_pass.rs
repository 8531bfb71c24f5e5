//! Writes of blocks into a pass.

use base::{Crc, ErrorKind, Lba, Result, SliceList, VolumeId};
use pool::Pass;

/// Writes blocks into the pass. A volume that was deleted meanwhile needs nothing.
pub(super) async fn write_in(
    pass: &Pass,
    volume: VolumeId,
    lba: Lba,
    data: SliceList,
    crcs: &[Crc],
) -> Result<()> {
    gone_is_fine(pass.write(volume, lba, data, crcs).await)
}

/// A volume that was deleted meanwhile needs nothing.
pub(super) fn gone_is_fine(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
