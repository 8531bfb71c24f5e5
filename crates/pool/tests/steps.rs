//! How long the engine's thread works between two looks at the world, in small pools and in large
//! ones: no step grows with the pool.

use base::{BLOCK_U64, Duration, Lba, Prng, VolumeId};
use model::moves::MovesState;
use model::scrub::ScrubState;
use pool::{CreateOptions, DeviceFile, Pool, ScrubOptions, Settings};
use rt::{Order, Rt};
use sim::CompactDisks;
use testkit::{LongestSteps, MIB, Steps, block, blocks, compare_repeated_steps, compare_steps};

/// That of the product: others take milliseconds now and then to tidy up.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Blocks of a write of 1 MiB.
const LARGE: u64 = 256;
const JOBS: u64 = 8;
/// Commits of which the critical section is measured.
const COMMITS: usize = 200;

/// A pool of two copies on two disks, with a volume that fills most of it.
struct Bench {
    rt: Rt,
    steps: Steps,
    pool: Pool,
    volume: VolumeId,
    /// Blocks of the volume, and of a group.
    blocks: u64,
    group: u64,
}

impl Bench {
    async fn fill(&self) {
        for at in (0..self.blocks).step_by(LARGE as usize) {
            self.pool.write(self.volume, Lba(at), &blocks(1, LARGE)).await.expect("write");
        }
        self.pool.commit().await.expect("commit");
    }

    /// Writes single blocks: one for each so many, in order, or `count` at random places.
    async fn scatter(&self, every: u64, count: Option<u64>) {
        let places = self.blocks / every;
        let job = |job: u64| {
            let (pool, id) = (self.pool.clone(), self.volume);
            self.rt.spawn(async move {
                let mut rng = Prng::new(job);
                for i in 0..count.unwrap_or(places) / JOBS {
                    let place = if count.is_some() { rng.below(places) } else { i * JOBS + job };
                    let lba = place * every + rng.below(every);
                    pool.write(id, Lba(lba), &block(2)).await.expect("write");
                }
            })
        };
        for job in (0..JOBS).map(job).collect::<Vec<_>>() {
            job.await.expect("a job");
        }
        self.pool.commit().await.expect("commit");
    }

    async fn status(&self) {
        for _ in 0..100 {
            drop(self.pool.status());
            self.rt.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn scrub(&self) {
        self.pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
        while self.pool.scrubs().scrub_status().await.state == ScrubState::Running {
            self.rt.sleep(Duration::from_millis(100)).await;
        }
        let status = self.pool.scrubs().scrub_status().await;
        assert_eq!((status.state, status.bad), (ScrubState::Done, 0), "{status:?}");
    }

    /// Waits until nothing is left to be moved.
    async fn moved(&self) {
        while self.pool.moves().moves_status().state != MovesState::None {
            assert_eq!(self.pool.moves().moves_status().trouble, None);
            self.rt.sleep(Duration::from_millis(100)).await;
        }
    }

    /// A device is away while something is written to each group, and comes back.
    async fn resync(&self) {
        self.pool.returns().offline_device("b").await.expect("offline");
        self.scatter(self.group, None).await;
        self.pool.returns().online_device("b").await.expect("online");
        self.moved().await;
    }

    async fn replace(&self, new: DeviceFile) {
        self.pool.moves().replace_device("b", new, [9; 16]).await.expect("replace");
        self.moved().await;
    }

    async fn discard_half(&self) {
        self.pool.discard(self.volume, Lba(0), Lba(self.blocks / 2)).await.expect("discard");
        self.pool.commit().await.expect("commit");
    }

    async fn delete(&self) {
        self.pool.delete_volume(self.volume).await.expect("delete");
        self.pool.commit().await.expect("commit");
        // The groups' checksum trees stay, each a node.
        while self.pool.status().pool.used_bytes > self.blocks * BLOCK_U64 / 50 {
            self.rt.sleep(Duration::from_millis(100)).await;
        }
    }
}

/// All phases on a pool of so many groups of so many MiB.
fn run((groups, mib): (u64, u64)) -> Vec<LongestSteps> {
    let (disks, steps) = (CompactDisks::default(), Steps::default());
    let size = groups * mib * MIB * 21 / 20 + 16 * MIB;
    let [a, b, new] = ["a", "b", "new"].map(|name| DeviceFile {
        path: name.into(),
        file: disks.add(size),
        size_bytes: size,
    });
    let rt = Rt::new(steps.over(Box::new(disks)), Order::Fifo, 4096);
    let body = phases(rt.clone(), steps, vec![a, b], new, (groups, mib));
    let longest = rt.block_on(body).expect("alive");
    rt.kill();
    longest
}

async fn phases(
    rt: Rt,
    steps: Steps,
    files: Vec<DeviceFile>,
    new: DeviceFile,
    (groups, mib): (u64, u64),
) -> Vec<LongestSteps> {
    let options = CreateOptions { name: "bench".into(), copies: 2, group_bytes: Some(mib * MIB) };
    pool::create(&rt, &files, &options, &[[1; 16], [2; 16], [3; 16]]).await.expect("create");
    let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
    let group = mib * MIB / BLOCK_U64;
    let blocks = groups * group * 8 / 10 / LARGE * LARGE;
    let volume = pool.create_volume("v", blocks * BLOCK_U64, 4096).await.expect("volume");
    let bench = Bench { rt, steps, pool, volume, blocks, group };
    bench.steps.phase("fill", bench.fill()).await;
    bench.steps.phase("write at random", bench.scatter(1, Some(20_000))).await;
    bench.steps.phase("status", bench.status()).await;
    bench.steps.phase("scrub", bench.scrub()).await;
    bench.steps.phase("resync", bench.resync()).await;
    bench.steps.phase("replace", bench.replace(new)).await;
    bench.steps.phase("discard", bench.discard_half()).await;
    bench.steps.phase("delete", bench.delete()).await;
    bench.pool.close().await.expect("close");
    bench.steps.take_phases()
}

#[test]
fn no_step_grows_with_the_pool() {
    compare_steps(|| run((64, 1)), || run((4096, 1)));
}

/// The smaller groups are larger than what is read at once.
#[test]
fn no_step_grows_with_a_block_group() {
    compare_steps(|| run((64, 16)), || run((16, 256)));
}

/// Takes half an hour a try and 8 GiB of memory. Block groups are as large as the product has them.
#[test]
#[ignore = "run by hand: docs/testing.md"]
fn no_step_grows_up_to_a_tebibyte() {
    compare_repeated_steps(|| run((64, 16)), || run((1024, 1024)));
}

/// Tries of a comparison, of which the shorter times count, as in `testkit`: what else runs on the
/// machine lengthens some.
const TRIES: usize = 3;

/// How long each of many commits keeps all others waiting, in time of the processor: 1,000 blocks
/// of a pool of so many groups are written at random before each. Median, 99 of 100, and the
/// longest, in microseconds.
fn critical_sections(groups: u64) -> [f64; 3] {
    let (disks, steps) = (CompactDisks::default(), Steps::default());
    let size_bytes = groups * MIB * 21 / 20 + 16 * MIB;
    let file = DeviceFile { path: "a".into(), file: disks.add(size_bytes), size_bytes };
    let rt = Rt::new(steps.over(Box::new(disks)), Order::Fifo, 4096);
    let world = rt.clone();
    let body = async move {
        let options = CreateOptions { name: "bench".into(), copies: 1, group_bytes: Some(MIB) };
        pool::create(&rt, std::slice::from_ref(&file), &options, &[[1; 16], [2; 16]])
            .await
            .expect("create");
        let open = || Pool::open(&rt, vec![file.clone()], Settings::default());
        let (pool, _) = open().await.expect("open");
        let group = MIB / BLOCK_U64;
        let blocks = groups * group * 8 / 10 / LARGE * LARGE;
        let volume = pool.create_volume("v", blocks * BLOCK_U64, 4096).await.expect("volume");
        Bench { rt: rt.clone(), steps: steps.clone(), pool: pool.clone(), volume, blocks, group }
            .fill()
            .await;
        pool.close().await.expect("close");
        // The figures begin anew.
        let (pool, _) = open().await.expect("open");
        let bench = Bench { rt: rt.clone(), steps, pool, volume, blocks, group };
        for _ in 0..COMMITS {
            bench.scatter(1, Some(1000)).await;
        }
        let found = bench.pool.status().commit.critical_section_us;
        bench.pool.close().await.expect("close");
        [found.p50, found.p99, found.max]
    };
    let found = world.block_on(body).expect("alive");
    world.kill();
    found
}

fn compare_critical_sections(few: u64, many: u64) {
    let shorter = |one: [f64; 3], other: [f64; 3]| std::array::from_fn(|i| one[i].min(other[i]));
    let (mut small, mut large) = (critical_sections(few), critical_sections(many));
    for _ in 1..TRIES {
        if large[1] <= 6.0 * small[1] {
            break;
        }
        small = shorter(small, critical_sections(few));
        large = shorter(large, critical_sections(many));
    }
    println!("critical sections, us: {small:?}; with {many} block groups: {large:?}");
    assert!(large[1] <= 6.0 * small[1], "with {many}: {large:?}; with {few}: {small:?}");
}

#[test]
fn critical_sections_do_not_grow() {
    compare_critical_sections(64, 1024);
}

#[test]
#[ignore = "run by hand: docs/testing.md"]
fn critical_sections_do_not_grow_up_to_100000_groups() {
    compare_critical_sections(1000, 100_000);
}
