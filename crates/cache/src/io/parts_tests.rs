//! Writes of some sectors, in simulation, against the bytes that should be there.

use base::{Prng, SECTOR};
use pool::Pool;

use super::*;
use crate::Cache;
use crate::testkit::{Lab, settings, write_part};

const BLOCKS: u64 = 100;
/// The pool has none of them at first, nor has the cache.
const FIRST: u64 = 1300;

/// A volume of which the pool has some blocks, and what it holds.
struct Model {
    volume: VolumeId,
    bytes: Vec<u8>,
}

impl Model {
    async fn write(&mut self, cache: &Cache, r: &mut Prng) {
        let (block, from) = (r.below(BLOCKS) as usize, r.below(8) as usize);
        let (at, len) = match r.below(6) {
            // Bytes that are no sectors.
            0 => (from * SECTOR + 7, 100 + r.below(300) as usize),
            _ => (from * SECTOR, SECTOR * (1 + r.below(8 - from as u64) as usize)),
        };
        let byte = r.below(255) as u8 + 1;
        let mut data = cache.pool().bufs().take(len);
        data.fill(byte);
        let key = (self.volume, Lba(FIRST + block as u64));
        if len == BLOCK {
            cache.write(key.0, key.1, &data.freeze()).await.unwrap();
        } else {
            let known = write_part(cache, key, at, &data.freeze()).await.unwrap();
            assert!(known.sectors.has(Sectors::covered(at, len)));
        }
        self.bytes[block * BLOCK + at..][..len].fill(byte);
    }

    async fn holds(&self, cache: &Cache, block: u64) {
        let found = cache.read(self.volume, Lba(FIRST + block), 1).await.unwrap();
        let should = &self.bytes[block as usize * BLOCK..][..BLOCK];
        let wrong = found[0].iter().zip(should).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "block {block}");
    }
}

#[test]
fn parts_are_merged_read_carried_and_found_again() {
    for seed in 0..12 {
        let lab = Lab::new();
        let mut bytes: Option<Vec<u8>> = None;
        for life in 0..4u64 {
            let (files, file, before) = (lab.files(), lab.file(), bytes.take());
            let crash = life % 2 == 0;
            let f = move |rt: rt::Rt| async move {
                let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
                let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
                let volume = pool.find_volume("a").unwrap().id;
                let r = &mut Prng::new(seed * 10 + life);
                let bytes = match before {
                    Some(bytes) => bytes,
                    None => {
                        let found = cache.read(volume, Lba(FIRST), BLOCKS).await.unwrap();
                        found.iter().flat_map(|s| s.iter().copied()).collect()
                    }
                };
                let mut model = Model { volume, bytes };
                for block in 0..BLOCKS {
                    model.holds(&cache, block).await;
                }
                for _ in 0..150 {
                    match r.below(24) {
                        0 => cache.publish_all().await.unwrap(),
                        1 => cache.collect().await.unwrap(),
                        2..=8 => model.holds(&cache, r.below(BLOCKS)).await,
                        9 => {
                            let block = r.below(BLOCKS);
                            cache
                                .discard(volume, Lba(FIRST + block), Lba(FIRST + block + 1))
                                .await
                                .unwrap();
                            model.bytes[block as usize * BLOCK..][..BLOCK].fill(0);
                        }
                        _ => model.write(&cache, r).await,
                    }
                }
                cache.flush().await.unwrap();
                if !crash {
                    cache.close().await.unwrap();
                    pool.close().await.unwrap();
                }
                (model.bytes, cache.status())
            };
            let (now, status) = lab.boot(f);
            // Later lives begin with reads of all blocks, which are kept as a whole.
            assert!(life > 0 || status.part_writes > 10, "{status:?}");
            assert_eq!(status.gc.miscounted_buckets, 0);
            bytes = Some(now);
            let report = lab.check();
            assert!(report.is_clean(), "{report:?}");
        }
    }
}

#[test]
fn a_read_completes_a_block_and_the_next_one_needs_no_pool() {
    Lab::new().with(|cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        cache.publish_all().await.unwrap();
        let one = cache.pool().bufs().zeroed(SECTOR).freeze();
        for lba in 0..400 {
            write_part(&cache, (a, Lba(lba)), 512, &one).await.unwrap();
            write_part(&cache, (a, Lba(lba)), 1536, &one).await.unwrap();
        }
        // Of the blocks that the cache had, it made whole ones.
        let before = cache.status();
        assert_eq!((before.part_writes, before.misses), (400, 0));
        for completed in [1, 1, 1] {
            cache.read(a, Lba(399), 1).await.unwrap();
            cache.core().rt().sleep(std::time::Duration::from_millis(50)).await;
            assert_eq!((cache.status().misses, cache.status().completed_parts), (1, completed));
        }
    });
}

#[test]
fn a_block_that_was_written_in_part_a_moment_ago_is_not_read() {
    Lab::new().with(|cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        let foreground_reads =
            || cache.core().device().queue().stats().of(Class::Foreground).read.count;
        let sector = |byte: u8| {
            let mut data = cache.pool().bufs().take(SECTOR);
            data.fill(byte);
            data.freeze()
        };
        // The first round may read nodes of the index.
        let mut before = 0;
        for (n, at) in (0..BLOCK).step_by(SECTOR).enumerate() {
            for lba in 0..40 {
                let key = (a, Lba(FIRST + lba));
                write_part(&cache, key, at, &sector(n as u8 + 1)).await.unwrap();
            }
            if n == 0 {
                before = foreground_reads();
            }
        }
        assert_eq!(foreground_reads(), before, "read what it has just written");
        // What was written in another way is not merged with what was there before.
        let key = (a, Lba(FIRST));
        let mut whole = cache.pool().bufs().take(BLOCK);
        whole.fill(99);
        cache.write(key.0, key.1, &whole.freeze()).await.unwrap();
        write_part(&cache, key, SECTOR, &sector(7)).await.unwrap();
        assert_eq!(foreground_reads(), before + 1);
        let found = cache.read(key.0, key.1, 1).await.unwrap();
        assert!(found[0][..SECTOR].iter().all(|b| *b == 99));
        assert!(found[0][SECTOR..2 * SECTOR].iter().all(|b| *b == 7));
        assert!(found[0][2 * SECTOR..].iter().all(|b| *b == 99));
    });
}
