//! Making a pool on empty devices.

use base::{
    BLOCK, BLOCK_U64, Birth, EntrySeq, ErrorKind, Generation, Result, SliceList, StorageError,
    counted,
};
use format::page::{
    GROUPS_PER_PAGE, GroupRecord, PageId, PageKind, VOLUMES_PER_PAGE, encode_groups,
    encode_volumes, page_digest, payload_mut, seal_page,
};
use format::superblock::{DeviceRecord, MAX_COPIES, MAX_DEVICES, SLOT_COPIES, SLOTS, Superblock};
use queue::{Class, Device};
use rt::Rt;

use crate::devices::DeviceFile;
use crate::settings::{CreateOptions, check_name};
use crate::space::Geometry;

/// The generation of a new pool's empty tables.
const FIRST: Generation = Generation(1);
/// Pages zeroed or written by one request.
const PAGES_PER_WRITE: u64 = 64;

/// Whether a pool named and shaped by `options` can be made on `files`; how, if it can: with so
/// many chunks on each. Changes nothing.
fn plan(files: &[DeviceFile], options: &CreateOptions) -> Result<(Geometry, Vec<u64>)> {
    check_name("pool", &options.name)?;
    let invalid = |text: String| Err(StorageError::new(ErrorKind::Invalid, text));
    let n = files.len();
    if n == 0 || n > MAX_DEVICES {
        return invalid(format!("a pool has 1 to {MAX_DEVICES} devices, not {n}"));
    }
    let copies = usize::from(options.copies);
    let of_each = counted(options.copies.into(), "copy", "copies");
    if copies == 0 || copies > MAX_COPIES || copies > n {
        return invalid(format!(
            "{of_each} on {}: 1 to {MAX_COPIES}, and not more than there are devices",
            counted(n as u64, "device", "devices")
        ));
    }
    if let Some(b) = options.group_bytes
        && !((1 << 20..=1 << 30).contains(&b) && b % (64 * BLOCK_U64) == 0)
    {
        return invalid(format!(
            "a block group of {b} bytes: 1 MiB to 1 GiB, a multiple of 256 KiB"
        ));
    }
    let sizes: Vec<u64> = files.iter().map(|f| f.size_bytes).collect();
    let geometry = Geometry::choose(&sizes, options.group_bytes);
    let chunks_of =
        |f: &DeviceFile| geometry.chunks_of(f.size_bytes).min(u64::from(geometry.group_capacity));
    let chunks: Vec<u64> = files.iter().map(chunks_of).collect();
    let most: u64 = chunks.iter().sum();
    let fitting = chunks.iter().filter(|&&n| n > 0).count();
    if fitting < copies || most < 3 * copies as u64 {
        let need = (geometry.data_start() + 3 * geometry.group_bytes()) >> 20;
        return invalid(format!(
            "the devices are too small for a pool of {of_each}: at least {need} MiB each"
        ));
    }
    Ok((geometry, chunks))
}

/// Fails where [`create`] would, as far as that can be told without touching the devices.
pub fn check_create(files: &[DeviceFile], options: &CreateOptions) -> Result<()> {
    plan(files, options).map(drop)
}

/// Makes a pool named and shaped by `options` on `files`. What stood on them is lost: the caller
/// has asked its user. `ids` are the pool's uuid and one for each device, from a source of true
/// randomness.
pub async fn create(
    rt: &Rt,
    files: &[DeviceFile],
    options: &CreateOptions,
    ids: &[[u8; 16]],
) -> Result<()> {
    let (geometry, chunks) = plan(files, options)?;
    assert_eq!(ids.len(), files.len() + 1, "a uuid for the pool and for each device");
    let record = |(&chunks, &uuid)| DeviceRecord::online(uuid, chunks);
    let devices: Vec<DeviceRecord> = chunks.iter().zip(&ids[1..]).map(record).collect();
    let digest = (0..geometry.table_pages())
        .fold(0u64, |sum, page| sum.wrapping_add(page_digest(page, FIRST)));
    for (i, f) in files.iter().enumerate() {
        let queue = f.queue(rt, queue::Limits::default());
        let sb = Superblock {
            pool_uuid: ids[0],
            sequence: 1,
            generation: FIRST.0,
            previous: FIRST.0,
            tables_digest: digest,
            published: base::Epoch(0),
            published_at: 0,
            cache_uuid: None,
            cache_journal: EntrySeq(0),
            clean_void: false,
            group_blocks: geometry.group_blocks,
            group_capacity: geometry.group_capacity,
            volume_pages: geometry.volume_pages,
            next_volume: 1,
            device: i as u16,
            copies: options.copies,
            balancing: false,
            shards: 1,
            name: options.name.clone(),
            devices: devices.clone(),
            scrub: Default::default(),
            lineage: Default::default(),
            birth: Birth(0),
        };
        let outcome = format_device(rt, &queue, &geometry, &sb).await;
        queue.close();
        outcome.map_err(|e| StorageError::from_io(e, format!("{}: creating the pool", f.path)))?;
    }
    Ok(())
}

/// Old superblocks go first and the new one comes last: a crash between leaves no pool, and never
/// half of one that looks whole.
async fn format_device(
    rt: &Rt,
    queue: &Device,
    geometry: &Geometry,
    sb: &Superblock,
) -> std::result::Result<(), base::IoError> {
    let zero = rt.bufs().zeroed(BLOCK).freeze();
    let one = |slice: base::Slice| SliceList::from_iter([slice]);
    // The boot sector goes too, so that nothing takes the device for what it was.
    queue.write(Class::Commit, 0, one(zero.clone())).await?;
    let empty = rt.bufs().zeroed(SLOT_COPIES * BLOCK).freeze();
    for slot in 0..SLOTS {
        queue.write(Class::Commit, Superblock::offset_of(slot), one(empty.clone())).await?;
    }
    queue.flush(Class::Commit).await?;
    let pages = u64::from(geometry.table_pages());
    let mut page = 0;
    while page < pages {
        let n = PAGES_PER_WRITE.min(pages - page);
        let mut buf = rt.bufs().zeroed(n as usize * 2 * BLOCK);
        for (i, slots) in buf.chunks_exact_mut(2 * BLOCK).enumerate() {
            let number = page as u32 + i as u32;
            let kind = geometry.kind_of_table_page(number);
            let block = &mut slots[..BLOCK];
            match kind {
                PageKind::Volumes => {
                    encode_volumes(&vec![None; VOLUMES_PER_PAGE as usize], payload_mut(block))
                }
                _ => encode_groups(
                    &vec![GroupRecord::free(); GROUPS_PER_PAGE as usize],
                    payload_mut(block),
                ),
            }
            seal_page(
                &PageId { pool_uuid: sb.pool_uuid, kind, page: u64::from(number), slot: 0 },
                FIRST,
                block,
            );
        }
        queue.write(Class::Commit, geometry.page_offset(page, 0), one(buf.freeze())).await?;
        page += n;
    }
    queue.flush(Class::Commit).await?;
    let mut slot = rt.bufs().take(SLOT_COPIES * BLOCK);
    sb.encode_slot(&mut slot);
    queue.write(Class::Commit, Superblock::offset_of(sb.sequence), one(slot.freeze())).await?;
    queue.flush(Class::Commit).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_told_in_the_right_number() {
        let refusal = |sizes: &[u64], copies| {
            let file =
                |&size_bytes| DeviceFile { path: "a".into(), file: rt::FileId(0), size_bytes };
            let files: Vec<DeviceFile> = sizes.iter().map(file).collect();
            let options = CreateOptions { name: "tank".into(), copies, group_bytes: None };
            check_create(&files, &options).expect_err("too small, or too few").context
        };
        let small = "the devices are too small for a pool of";
        assert!(refusal(&[1 << 20], 1).starts_with(&format!("{small} 1 copy: at least")));
        assert!(refusal(&[1 << 20; 2], 2).starts_with(&format!("{small} 2 copies: at least")));
        assert!(refusal(&[1 << 30], 2).starts_with("2 copies on 1 device: 1 to"));
    }
}
