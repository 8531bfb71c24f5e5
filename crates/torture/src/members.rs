//! Which devices the pool has, of all that there ever were: as its user would know it.

use base::BLOCK;
use format::superblock::{DeviceState, SLOT_COPIES, SLOTS, Superblock};
use pool::DeviceFile;
use sim::World;

/// The newest superblock of a device.
fn newest(world: &World, file: &DeviceFile) -> Option<Superblock> {
    let copies = (0..SLOTS).flat_map(|slot| {
        (0..SLOT_COPIES).map(move |copy| Superblock::offset_of(slot) + (copy * BLOCK) as u64)
    });
    let all =
        copies.filter_map(|at| Superblock::decode(&world.contents(file.file, at, BLOCK)).ok());
    all.max_by_key(|sb| sb.sequence)
}

/// The devices of the pool, of all that there ever were: those that the newest superblock names.
pub(crate) fn members(world: &World, all: &[DeviceFile]) -> Vec<DeviceFile> {
    let own = |file: &DeviceFile| newest(world, file);
    let found: Vec<(&DeviceFile, Superblock)> =
        all.iter().filter_map(|file| Some((file, own(file)?))).collect();
    let best = found.iter().map(|(_, sb)| sb).max_by_key(|sb| (sb.generation, sb.sequence));
    let Some(best) = best else { return Vec::new() };
    let is_member = |sb: &Superblock| {
        let row = usize::from(sb.device);
        let known = best.devices.get(row).filter(|d| d.state != DeviceState::Removed);
        known.is_some_and(|d| d.uuid == sb.devices[row].uuid)
    };
    found.iter().filter(|(_, sb)| is_member(sb)).map(|(file, _)| (*file).clone()).collect()
}
