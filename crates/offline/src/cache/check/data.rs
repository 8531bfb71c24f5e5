//! The blocks that keys name, against the keys' checksums.

use base::checksum::block_crcs;
use base::{BLOCK, CacheAddr, Lba};
use cache::raw::{Body, IndexKey, Layout};
use queue::Class;

use super::checker::CacheChecker;
use super::extents::blocks_of;
use super::plan::Fix;

/// Extents that are read at once.
const BATCH: usize = 32;
const LOST: &str = "the blocks are lost: the pool has older ones, and reading them is an error \
                    until they are written again";
const REFETCHED: &str = "nothing is lost: the pool has the blocks, and they are read from there";

/// The blocks of an extent that are bad: neighbours, first and behind the last, and why.
type BadRun = (u64, u64, String);

impl CacheChecker<'_> {
    /// Reads and verifies extents.
    pub(super) async fn verify(&mut self, layout: &Layout, extents: Vec<IndexKey>) {
        let mut extents = extents.into_iter();
        loop {
            let tasks: Vec<_> =
                extents.by_ref().take(BATCH).map(|e| self.start(layout, e)).collect();
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                let Some((e, bad)) = task.await else { continue };
                let Body::Data { addr, crcs, cover, .. } = &e.body else { continue };
                let dirty = e.written.is_some_and(|w| w > self.image.published);
                if !dirty && self.image.clean_void {
                    // Opening the cache drops it unread; and one that was cut short may have put
                    // something else there.
                    continue;
                }
                let lost: u64 = bad.iter().map(|(from, end, _)| end - from).sum();
                self.log.counts.verified_bytes += (e.end() - e.lba.0 - lost) * BLOCK as u64;
                for (from, end, why) in bad {
                    let blocks = blocks_of(self.image, e.volume, from, end);
                    if dirty {
                        let what = format!("dirty, and bad: {why}");
                        self.log.content(blocks, None, what.clone(), what, LOST);
                    } else {
                        let path = self.src.path.clone();
                        self.log.content(blocks, Some(&path), why.clone(), why, REFETCHED);
                        for lba in from..end {
                            let at = lba - e.lba.0;
                            self.plan.add(Fix::Data {
                                volume: e.volume,
                                lba: Lba(lba),
                                offset: layout.offset_of(CacheAddr(addr.0 + at)),
                                crc: crcs[at as usize],
                                sectors: cover.sectors,
                            });
                        }
                    }
                }
            }
        }
    }

    fn start(&self, layout: &Layout, e: IndexKey) -> rt::JoinHandle<(IndexKey, Vec<BadRun>)> {
        let (src, layout) = (self.src.clone(), *layout);
        self.src.rt.spawn(async move {
            let Body::Data { addr, crcs, .. } = &e.body else { return (e, Vec::new()) };
            let (outcome, buf) = src
                .device
                .read_new(Class::Foreground, layout.offset_of(*addr), crcs.len() * BLOCK)
                .await;
            let mut bad = Vec::new();
            match outcome {
                Ok(()) => {
                    for ((is, should), at) in block_crcs(&buf).zip(crcs).zip(e.lba.0..) {
                        if is != *should {
                            add(&mut bad, at, "its checksum is wrong".into());
                        }
                    }
                }
                // Which of them it is, only reading one by one tells.
                Err(_) => {
                    for (i, should) in crcs.iter().enumerate() {
                        let at = e.lba.0 + i as u64;
                        match src.block(layout.offset_of(CacheAddr(addr.0 + i as u64))).await {
                            Ok(block) if base::crc32c(&block) == *should => {}
                            Ok(_) => add(&mut bad, at, "its checksum is wrong".into()),
                            Err(why) => add(&mut bad, at, why),
                        }
                    }
                }
            }
            (e, bad)
        })
    }
}

/// Adds a block; neighbours that are bad in the same way are one.
fn add(bad: &mut Vec<BadRun>, at: u64, why: String) {
    match bad.last_mut() {
        Some((_, end, w)) if *end == at && *w == why => *end += 1,
        _ => bad.push((at, at + 1, why)),
    }
}
