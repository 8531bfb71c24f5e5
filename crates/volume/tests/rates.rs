//! Write-back in front of a rotating disk, while clients write evenly, stop, ask for a little and
//! come back: in no second is it outside of the bounds that are set for it, and no request waits
//! for it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, BufPool, Prng};
use cache::{Cache, CreateOptions};
use rt::{Order, Rt};
use sim::DiskModel;
use testkit::{CachedWorld, MIB, disk};
use volume::{Volume, Volumes};

const VOLUME_BYTES: u64 = 256 * MIB;
const CACHE_BYTES: u64 = 256 * MIB;
const MIN: u64 = 4 << 20;
const MAX: u64 = 16 << 20;
/// What a pacer saves up, in seconds; and the most that a pass takes in one turn.
const SAVED_UP: f64 = 0.05;
const TURN: u64 = MIB;
/// The longest request.
const LONGEST: Duration = Duration::from_millis(20);

struct Bench {
    rt: Rt,
    cache: Cache,
    volume: Volume,
    longest: Rc<Cell<Duration>>,
}

/// What was seen in one second.
#[derive(Clone, Copy, Debug)]
struct Second {
    carried: u64,
    /// The lowest and the highest rate in force, if a pass was under way at each look.
    rates: Option<(u64, u64)>,
}

impl Bench {
    /// Writes single blocks in no order, `per_second` of them, evenly, whether or not those before
    /// have ended; and looks a hundred times a second at what write-back does.
    async fn seconds(&self, seconds: u64, per_second: u64, r: &mut Prng) -> Vec<Second> {
        let mut seen = Vec::new();
        for _ in 0..seconds {
            let begin = self.rt.now();
            let before = self.cache.status().writeback.carried_bytes;
            let mut rates = Some((u64::MAX, 0));
            let mut asked = 0;
            for look in 1..=100 {
                while asked * 100 < per_second * look {
                    asked += 1;
                    let at = r.below(VOLUME_BYTES / BLOCK as u64) * BLOCK as u64;
                    let (rt, volume) = (self.rt.clone(), self.volume.clone());
                    let longest = self.longest.clone();
                    self.rt.detach(async move {
                        let (mut data, since) = (BufPool::new(0).take(BLOCK), rt.now());
                        data.fill(at as u8);
                        volume.write(at, data.freeze()).await.expect("write");
                        longest.set(longest.get().max(rt.now().since(since)));
                    });
                }
                let then = begin.after(Duration::from_millis(10 * look));
                self.rt.sleep(then.since(self.rt.now())).await;
                let in_force = self.cache.status().writeback.rate_in_force;
                rates = rates.zip(in_force).map(|((low, high), now)| (low.min(now), high.max(now)));
            }
            let carried = self.cache.status().writeback.carried_bytes - before;
            seen.push(Second { carried, rates });
        }
        seen
    }
}

#[test]
fn rates_are_within_their_bounds_in_every_second() {
    let mut devices = CachedWorld::new(1, 1024 * MIB, CACHE_BYTES);
    devices.disk = disk(&devices.world, "slow", DiskModel::rotating(1024 * MIB));
    devices.run(Order::Seeded(1), |rt, devices| async move {
        let pool = devices.create_pool(&rt, pool::Settings::default()).await;
        let options = CreateOptions { bucket_bytes: 256 << 10, journal_bytes: Some(8 * MIB) };
        cache::create(&rt, &devices.file, &pool, &options, [3; 16]).await.expect("create");
        let mut settings = cache::Settings::default();
        settings.writeback.min = MIN;
        settings.writeback.max = MAX;
        settings.writeback.idle_rate = 2 * MIN;
        let cache = devices.open_cache(&rt, &pool, settings).await;
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        let volume = volumes.create("a", VOLUME_BYTES, 512).await.expect("create");
        let longest = Rc::new(Cell::new(Duration::ZERO));
        let bench = Bench { rt, cache: cache.clone(), volume, longest };
        let r = &mut Prng::new(7);
        let mut all = Vec::new();
        // 1000 a second, nothing, a trickle, and 1000 a second again.
        for (seconds, per_second) in [(60, 1000), (60, 0), (30, 10), (60, 1000), (30, 0)] {
            let seen = bench.seconds(seconds, per_second, r).await;
            all.extend(seen);
        }
        let most = MAX + (MAX as f64 * SAVED_UP) as u64 + TURN;
        for (at, second) in all.iter().enumerate() {
            assert!(second.carried <= most, "second {at}: {second:?}");
            if let Some((low, high)) = second.rates {
                assert!(low >= MIN && high <= MAX, "second {at}: {second:?}");
            }
        }
        // Now and then the disk does not do as much as write-back may.
        let bounded: Vec<_> = all.iter().filter(|second| second.rates.is_some()).collect();
        let in_time = bounded.iter().filter(|second| second.carried + TURN >= MIN).count();
        assert!(bounded.len() >= 60, "a pass was under way throughout {} seconds", bounded.len());
        assert!(in_time * 2 >= bounded.len(), "{in_time} of {}", bounded.len());
        assert!(bench.longest.get() <= LONGEST, "a request took {:?}", bench.longest.get());
        cache.close().await.expect("close the cache");
        pool.close().await.expect("close");
    });
}
