//! Everything is read and compared: content, what is allocated, how much space it takes. For when
//! no clients are about.

use std::rc::Rc;

use base::{BLOCK_U64, ErrorKind, SECTOR};
use cache::Cache;
use model::cache::CacheStatus;
use model::status::PoolState;

use crate::content::{self, SectorContent};
use crate::env::{Boot, Env};
use crate::front::{Failure, FailureReason, Front, run};
use crate::snapshots;

/// The largest volume that is read as a whole; of larger ones what may hold something.
const READ_WHOLE: u64 = snapshots::READ_WHOLE;

/// Reads everything and compares; also how much space it takes.
pub(crate) async fn verify(boot: &Rc<Boot>) {
    let env = &boot.env;
    let live = env.model.borrow().live();
    let mut bad = 0;
    for (name, id) in live {
        let Some(size) = env.model.borrow().volume(id).map(|v| v.size) else { continue };
        let Some(volume) = boot.volumes.open(&name) else {
            env.fail(format!("volume {name:?} cannot be opened"))
        };
        let step = (1 + env.below(256)) * BLOCK_U64;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        if size <= READ_WHOLE {
            let mut at = 0;
            while at < size {
                ranges.push((at, step.min(size - at)));
                at += step;
            }
        } else {
            let blocks =
                env.model.borrow().volume(id).map(|v| v.known_blocks()).unwrap_or_default();
            for b in blocks {
                match ranges.last_mut() {
                    Some((start, len)) if *start + *len == b * BLOCK_U64 && *len < step => {
                        *len += BLOCK_U64
                    }
                    _ => ranges.push((b * BLOCK_U64, BLOCK_U64)),
                }
            }
            ranges
                .iter_mut()
                .for_each(|(start, len)| *len = (*len).min(size.saturating_sub(*start)));
        }
        for (offset, len) in ranges.into_iter().filter(|r| r.1 > 0) {
            bad += compare(boot, id, &Front::Direct(volume.clone(), boot.rt.clone()), offset, len)
                .await;
        }
        compare_extents(boot, id, &volume, size).await;
    }
    env.count("volumes read as a whole", 1);
    snapshots::verify(boot).await;
    let spoilt = env.spoilt.borrow().len() as u64;
    if bad > spoilt && !env.failures_allowed() {
        env.fail(format!(
            "{bad} blocks cannot be read, and only {spoilt} of the cache's data cannot"
        ));
    }
    if let Some(cache) = &boot.volumes.cache() {
        match cache.status().gc.miscounted_buckets {
            0 => {}
            n => env.fail(format!("collections of this cache found {n} counters that are wrong")),
        }
        // The space that volumes take in the pool is known when all dirty data is there.
        if env.one_in(2) || env.cache_struck.get() || env.failing.get() {
            return;
        }
        match cache.publish_all().await {
            Ok(()) => check_kept(env, cache),
            Err(_) if env.errors_allowed() => return,
            Err(e) if e.kind == ErrorKind::NoSpace && lost_room(boot, &cache.status()) => {
                env.count("dirty data for which a pool that lost a device has no room", 1);
                return;
            }
            Err(e) => env.fail(format!("publishing everything: {:?}: {e}", e.kind)),
        }
        // Room is kept for what is dirty, and for nothing else.
        let (reserved, dirty) =
            (boot.volumes.pool().status().pool.reserved_bytes, cache.status().dirty_bytes);
        if reserved != dirty && !cache.is_aside() {
            env.fail(format!("{reserved} bytes are reserved for {dirty} dirty ones"));
        }
    }
    let mut volumes = boot.volumes.list();
    // Space that volumes which cannot be reached have given up may wait.
    let number = |name: &str| env.model.borrow().number_of(name);
    volumes.retain(|v| number(&v.name).is_none_or(|id| !env.cannot_reach(id)));
    if let Err(text) = env.model.borrow().check_space(&volumes) {
        if !env.errors_allowed() {
            env.fail(text);
        }
    }
}

/// Every block that can be read holds what some write wrote there, or zeros: of a cache that lied
/// more cannot be asked.
pub(crate) async fn all_in_place(boot: &Boot) {
    let env = &boot.env;
    let live = env.model.borrow().live();
    for (name, id) in live {
        let Some(volume) = boot.volumes.open(&name) else {
            env.fail(format!("volume {name:?} cannot be opened"))
        };
        let size = volume.size().min(READ_WHOLE);
        for at in (0..size).step_by(BLOCK_U64 as usize) {
            let (v, len) = (volume.clone(), BLOCK_U64.min(size - at));
            let Ok(data) = run(&boot.rt, async move { Ok(v.read(at, len).await?) }).await else {
                continue;
            };
            let bytes: Vec<u8> = data.iter().flat_map(|s| s.to_vec()).collect();
            for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                let number = at / SECTOR as u64 + i as u64;
                if let SectorContent::Wrong(text) = content::identify(sector, id, number) {
                    env.fail_at(id, at / BLOCK_U64, &format!("after a lie it holds {text}"));
                }
            }
        }
    }
    env.count("caches that lied and were served", 1);
}

/// After a pass of all that is dirty: what stays in the cache is of volumes that cannot be reached.
fn check_kept(env: &Rc<Env>, cache: &Cache) {
    for (id, kept) in cache.kept() {
        let name = cache.pool().volume_name(id);
        let number = env.model.borrow().number_of(&name);
        // Faults beyond what the copies bear may have damaged nodes of any volume.
        if !env.beyond() && number.is_none_or(|id| !env.cannot_reach(id)) {
            env.fail(format!(
                "something is kept of volume {name:?}, which can be reached: {kept:?}"
            ));
        }
        env.count("cache: volumes of which something is kept", 1);
        env.count("cache: blocks kept", kept.blocks);
    }
    env.unreachable.borrow_mut().all_published();
}

/// Compares the blocks that are said to be allocated with the model: all of them must be blocks
/// that may be allocated, and all blocks that must be allocated must be among them.
async fn compare_extents(boot: &Rc<Boot>, id: u32, volume: &volume::Volume, size: u64) {
    let env = &boot.env;
    let mut at = 0;
    let mut expected: Vec<u64> =
        env.model.borrow().volume(id).map(|v| v.known_blocks()).unwrap_or_default();
    expected.retain(|b| b * BLOCK_U64 < size);
    while at < size {
        let (v, from) = (volume.clone(), at);
        let parts =
            run(&boot.rt, async move { Ok(v.extents(from, size - from, 100).await?) }).await;
        let parts = match parts {
            Ok(parts) => parts,
            Err(Failure { why: FailureReason::Io, .. })
                if env.errors_allowed() || env.cannot_reach(id) =>
            {
                return;
            }
            Err(e) => env.fail(format!("extents of volume {id} from {at} on: {}", e.text)),
        };
        for part in parts {
            let blocks = at / BLOCK_U64..(at + part.len).div_ceil(BLOCK_U64);
            at += part.len;
            let model = env.model.borrow();
            let Some(v) = model.volume(id) else { return };
            // Huge holes: only blocks that are known can be wrong there.
            let judged: Vec<u64> = if part.allocated {
                blocks.collect()
            } else {
                let first = expected.partition_point(|b| *b < blocks.start);
                expected[first..].iter().copied().take_while(|b| blocks.contains(b)).collect()
            };
            for b in judged {
                let (sure, perhaps) = v.takes(b);
                if part.allocated && !perhaps || !part.allocated && sure {
                    drop(model);
                    let is = if part.allocated {
                        "is allocated, and should not be"
                    } else {
                        "is not allocated"
                    };
                    env.fail_at(id, b, is);
                }
            }
        }
    }
}

/// A device is missing, and what the others have does not suffice for what is dirty: room was kept
/// for it when there were more.
fn lost_room(boot: &Boot, cache: &CacheStatus) -> bool {
    let (pool, settings) = (boot.volumes.pool().status().pool, &boot.env.settings);
    let room = pool.capacity_bytes.saturating_sub(pool.used_bytes);
    // The need includes room for metadata.
    let need = cache.dirty_bytes + cache.dirty_bytes / 10 + 4 * settings.group_bytes;
    pool.state == PoolState::Degraded && room < need
}

/// Gives the number of blocks that cannot be read; where errors are allowed for nothing but blocks
/// of the cache that are bad.
async fn compare(boot: &Rc<Boot>, id: u32, front: &Front, offset: u64, len: u64) -> u64 {
    let env = &boot.env;
    let op = env.model.borrow_mut().begin_read(id);
    let f = front.clone();
    match run(&boot.rt, async move { f.read(offset, len).await }).await {
        Ok(data) => {
            let verdict = env.model.borrow_mut().end_read(id, op, offset, &data);
            match verdict {
                Ok(too_hard) => env.count("blocks that could not be judged", too_hard),
                Err(m) => env.fail_at(id, m.block, &m.text),
            }
            0
        }
        Err(Failure { why: FailureReason::Io, text })
            if !env.may_be_unreadable(id, offset, len) =>
        {
            env.fail(format!(
                "{len} bytes at {offset} of volume {id} can be had, and are not: {text}"
            ))
        }
        Err(Failure { why: FailureReason::Io, .. })
            if len > BLOCK_U64 && !env.failures_allowed() =>
        {
            env.model.borrow_mut().drop_read(id, op);
            let mut bad = 0;
            for at in (offset..offset + len).step_by(BLOCK_U64 as usize) {
                let len = BLOCK_U64.min(offset + len - at);
                bad += Box::pin(compare(boot, id, front, at, len)).await;
            }
            bad
        }
        Err(Failure { why: FailureReason::Io, .. }) => {
            env.model.borrow_mut().drop_read(id, op);
            env.count("reads failed while comparing", 1);
            u64::from(!env.cannot_reach(id) && !env.unreachable.borrow().checksums())
        }
        Err(e) => env.fail(format!("reading {len} bytes at {offset} of volume {id}: {}", e.text)),
    }
}
