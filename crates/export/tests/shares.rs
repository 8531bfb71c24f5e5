//! Two volumes in one server, over the simulated wire: what the clients of one do costs those of
//! the other no more than its share.

use std::cell::{Cell, RefCell};
use std::num::{NonZeroU32, NonZeroU64};
use std::rc::Rc;

use base::{BLOCK_U64, Duration, Prng};
use export::{Access, VolumeExports};
use nbd::codec::request::{Command, flag};
use nbd::{Limits, Server};
use nbd_client::{Client, ClientOptions, Connection, Receiver};
use pool::VolumeLimit;
use rt::{Order, Rt, SocketId};
use sim::{DiskModel, Latency, WireModel, World};
use testkit::MIB;
use volume::Volumes;

const KIB: u64 = 1 << 10;
const VOLUME: u64 = 32 * MIB;

/// A server of two volumes, `a` and `b`, with data in all of their blocks.
#[derive(Clone)]
struct Bed {
    rt: Rt,
    world: World,
    volumes: Volumes,
    server: Server<VolumeExports>,
    listener: SocketId,
}

/// A disk that serves 8000 requests a second, or 200 MB.
fn disk() -> DiskModel {
    let latency = Latency::new(Duration::from_micros(500), Duration::from_micros(500));
    DiskModel {
        read_latency: latency,
        write_latency: latency,
        flush_latency: latency,
        bytes_per_second: 200_000_000,
        depth: 4,
        ..DiskModel::nvme(256 * MIB)
    }
}

fn run<T: 'static, F: Future<Output = T> + 'static>(body: impl FnOnce(Bed) -> F + 'static) -> T {
    let world = World::new(1);
    world.set_wire(WireModel { fragments: false, buffer_bytes: 1 << 20, ..WireModel::default() });
    let file = testkit::disk(&world, "disk", disk());
    let backend = world.backend();
    let ended = testkit::boot(backend, Order::Fifo, |rt| async move {
        testkit::create_pool(&rt, std::slice::from_ref(&file), 1).await;
        let pool = testkit::open(&rt, vec![file]).await;
        let volumes = Volumes::new(&pool);
        for name in ["a", "b"] {
            let v = volumes.create(name, VOLUME, 4096).await.expect("create");
            for at in (0..VOLUME).step_by(MIB as usize) {
                v.write(at, rt.bufs().zeroed(MIB as usize).freeze()).await.expect("write");
            }
            v.flush().await.expect("flush");
        }
        let server = Server::new(
            rt.clone(),
            VolumeExports::new(volumes.clone(), Access::default()),
            Limits::default(),
        );
        let listener = world.listener();
        server.serve(listener);
        let bed = Bed { rt, world, volumes, server, listener };
        let out = body(bed.clone()).await;
        bed.volumes.admit_all();
        assert!(bed.server.shutdown(Duration::from_secs(10)).await, "requests are left");
        pool.close().await.expect("close");
        out
    });
    ended.expect("alive")
}

impl Bed {
    async fn client(&self, name: &str) -> Client {
        let socket = self.world.connect(self.listener);
        Client::negotiate(&self.rt, socket, name, ClientOptions::default()).await.expect("a client")
    }
}

impl Bed {
    /// A client that has sent the header of a write of 16 MiB, and no data.
    async fn stalled(&self, name: &str) -> Connection {
        let connection = Connection::new(&self.rt, self.world.connect(self.listener));
        let mut receiver = Receiver::new(&connection);
        receiver.take(18).await.expect("a greeting");
        // Client flags, and NBD_OPT_EXPORT_NAME, which is answered by the size and flags.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x01");
        hello.extend(name.as_bytes());
        connection.send(connection.copy_of(&hello)).await.expect("sent");
        receiver.take(10).await.expect("an export");
        let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
        write.extend([0, 0, 0, 1]);
        write.extend([0; 16]);
        write.extend((16u32 << 20).to_be_bytes());
        connection.send(connection.copy_of(&write)).await.expect("sent");
        connection
    }
}

/// What a client does.
#[derive(Clone, Copy)]
enum What {
    Read(u64),
    Write(u64),
}

/// Latencies of requests, in the order of their end.
type Seen = Rc<RefCell<Vec<Duration>>>;

/// So many requests at a time until `stop`, at random places.
fn work(bed: &Bed, client: &Client, (what, depth): (What, u64), stop: &Rc<Cell<bool>>) -> Seen {
    let seen = Seen::default();
    for number in 0..depth {
        let (rt, client, stop, seen) = (bed.rt.clone(), client.clone(), stop.clone(), seen.clone());
        bed.rt.detach(async move {
            let r = &mut Prng::new(number);
            while !stop.get() {
                let since = rt.now();
                let (What::Read(len) | What::Write(len)) = what;
                let at = r.below((VOLUME - len) / BLOCK_U64) * BLOCK_U64;
                let outcome = match what {
                    What::Read(_) => client.read(at, len as u32, 0).await.map(|_| ()),
                    What::Write(_) => client.write(at, &vec![7; len as usize], 0).await,
                };
                // At the end the server closes with requests that it has not received.
                assert!(outcome.is_ok() || stop.get(), "{outcome:?}");
                seen.borrow_mut().push(rt.now().since(since));
            }
        });
    }
    seen
}

/// A client of volume `b` that reads one block after the other, beside a flood of requests of 16
/// clients of volume `a`: its reads after the first, and those of the flood, a second.
fn reader_beside(what: What, depth: u64) -> (Duration, usize) {
    run(move |bed| async move {
        let stop = Rc::default();
        let mut floods = Vec::new();
        for _ in 0..16 {
            floods.push(work(&bed, &bed.client("a").await, (what, depth), &stop));
        }
        bed.rt.sleep(Duration::from_millis(200)).await;
        let seen = work(&bed, &bed.client("b").await, (What::Read(4 * KIB), 1), &stop);
        // Most of what had begun before.
        bed.rt.sleep(Duration::from_secs(1)).await;
        let (first, flooded) = (seen.borrow().len(), count(&floods));
        bed.rt.sleep(Duration::from_secs(1)).await;
        stop.set(true);
        let reads = seen.borrow()[first..].to_vec();
        assert!(!reads.is_empty(), "no read has ended in a second");
        let flooded = count(&floods) - flooded;
        let mean = reads.iter().sum::<Duration>() / reads.len() as u32;
        (mean, flooded)
    })
}

fn count(floods: &[Seen]) -> usize {
    floods.iter().map(|seen| seen.borrow().len()).sum()
}

#[test]
fn a_reader_waits_for_no_more_than_its_share_of_a_flood_of_reads() {
    // 2048 reads of the flood take the disk a quarter of a second, those in its window 8 ms.
    let (mean, flooded) = reader_beside(What::Read(4 * KIB), 128);
    assert!(mean < Duration::from_millis(20), "{mean:?}");
    assert!(flooded > 6500, "the disk has time for it: {flooded}");
}

#[test]
fn a_reader_waits_for_no_more_than_its_share_of_a_flood_of_large_writes() {
    // The memory for payloads holds 56 of them, the window 7.
    let (mean, flooded) = reader_beside(What::Write(MIB), 8);
    assert!(mean < Duration::from_millis(25), "{mean:?}");
    assert!(flooded > 150, "{flooded}");
}

#[test]
fn a_reader_waits_for_no_more_than_its_share_of_a_flood_of_small_writes() {
    // The disk's queue merges them: more of them at a time are faster, and wait for longer.
    let (mean, flooded) = reader_beside(What::Write(4 * KIB), 128);
    assert!(mean < Duration::from_millis(20), "{mean:?}");
    assert!(flooded > 5000, "{flooded}");
}

fn limit(iops: u32, bytes: u64) -> Option<VolumeLimit> {
    Some(VolumeLimit {
        iops: NonZeroU32::new(iops),
        bytes_per_second: NonZeroU64::new(bytes),
        burst_ms: NonZeroU32::new(100)?,
    })
}

#[test]
fn a_limit_is_kept_and_delays_no_other_volume() {
    run(|bed| async move {
        bed.volumes.set_limit("a", limit(100, 0)).await.expect("limit");
        let stop = Rc::default();
        let reads = work(&bed, &bed.client("a").await, (What::Read(4 * KIB), 32), &stop);
        let writes = work(&bed, &bed.client("a").await, (What::Write(MIB), 32), &stop);
        let other = bed.client("b").await;
        for _ in 0..10 {
            let since = bed.rt.now();
            other.write(0, &[1; 4096], flag::FUA).await.expect("write");
            other.flush().await.expect("flush");
            bed.rt.sleep(Duration::from_millis(200)).await;
            let took = bed.rt.now().since(since);
            assert!(took < Duration::from_millis(300), "{took:?}");
        }
        let n = reads.borrow().len() + writes.borrow().len();
        assert!((190..=250).contains(&n), "{n} requests in 2 s, at 100 a second");
        // A higher limit holds at once, though many wait.
        bed.volumes.set_limit("a", limit(1000, 0)).await.expect("limit");
        bed.rt.sleep(Duration::from_secs(1)).await;
        let more = reads.borrow().len() + writes.borrow().len() - n;
        assert!(more > 500, "{more} requests in a second, at 1000");
        // Bytes: hours of them wait, and the end is near all the same.
        bed.volumes.set_limit("a", limit(0, 4096)).await.expect("limit");
        bed.rt.sleep(Duration::from_secs(1)).await;
        assert!(bed.volumes.waits().waiting > 0);
        bed.volumes.resize("a", 2 * VOLUME).await.expect("resize");
        stop.set(true);
    });
}

#[test]
fn requests_that_wait_for_a_limit_are_told_of_the_end_of_their_volume() {
    run(|bed| async move {
        bed.volumes.set_limit("a", limit(1, 0)).await.expect("limit");
        let client = bed.client("a").await;
        let waiting: Vec<_> = (0..5)
            .map(|_| {
                let client = client.clone();
                bed.rt.spawn(async move { client.read(0, 4096, 0).await })
            })
            .collect();
        bed.rt.sleep(Duration::from_millis(100)).await;
        let since = bed.rt.now();
        bed.volumes.delete("a").await.expect("delete");
        let mut refused = 0;
        for read in waiting {
            refused += u32::from(read.await.expect("an answer").is_err());
        }
        assert_eq!(refused, 4);
        assert!(bed.rt.now().since(since) < Duration::from_secs(1));
    });
}

/// Clients of both volumes, which wait for nothing but the disk; how long the longest of so many
/// reads of a volume took.
async fn longest_read(bed: &Bed, client: &Client, reads: u64) -> Duration {
    let mut longest = Duration::ZERO;
    for n in 0..reads {
        let since = bed.rt.now();
        client.read(n * 4096, 4096, 0).await.expect("read");
        longest = longest.max(bed.rt.now().since(since));
        bed.rt.sleep(Duration::from_millis(5)).await;
    }
    longest
}

/// A write of zeros may be of gigabytes. It is carried out in pieces, and the others of its volume
/// have their turns between these, also while another volume is in use.
#[test]
fn a_large_write_of_zeros_does_not_stop_its_own_volume() {
    run(|bed| async move {
        let stop = Rc::default();
        work(&bed, &bed.client("b").await, (What::Read(4 * KIB), 1), &stop);
        let fills: Vec<_> = (0..12)
            .map(|_| {
                let bed = bed.clone();
                bed.rt.clone().spawn(async move {
                    let (zeroes, all) = (Command::WriteZeroes, VOLUME as u32);
                    bed.client("a").await.command(zeroes, 0, all, flag::NO_HOLE).await
                })
            })
            .collect();
        let client = bed.client("a").await;
        bed.rt.sleep(Duration::from_millis(50)).await;
        let since = bed.rt.now();
        let longest = longest_read(&bed, &client, 20).await;
        for fill in fills {
            fill.await.expect("alive").expect("zeroes");
        }
        let took = bed.rt.now().since(since);
        assert!(took > Duration::from_secs(1), "{took:?}");
        assert!(longest < Duration::from_millis(150), "{longest:?} of {took:?}");
        stop.set(true);
    });
}

/// Memory for payloads, and a turn among the volumes in use: a request that has the one and needs
/// the other must not wait for one that is the other way round.
#[test]
fn large_writes_of_two_clients_do_not_wait_for_each_other() {
    run(|bed| async move {
        bed.volumes.create("c", VOLUME, 4096).await.expect("create");
        let stop = Rc::default();
        for name in ["b", "c"] {
            work(&bed, &bed.client(name).await, (What::Read(4 * KIB), 1), &stop);
        }
        let mut large = Vec::new();
        for _ in 0..2 {
            large.push(work(&bed, &bed.client("a").await, (What::Write(24 * MIB), 1), &stop));
        }
        let mut before = 0;
        for time in 0..5 {
            bed.rt.sleep(Duration::from_secs(3)).await;
            let now = count(&large);
            assert!(now > before, "after {time} times three seconds: {now} writes");
            before = now;
        }
        stop.set(true);
    });
}

/// The client of a write may be a machine that is paused, or a peer that is gone.
#[test]
fn clients_that_send_no_data_hold_up_none_of_their_volume() {
    run(|bed| async move {
        let mut stalled = Vec::new();
        for _ in 0..3 {
            stalled.push(bed.stalled("a").await);
        }
        bed.rt.sleep(Duration::from_millis(10)).await;
        longest_read(&bed, &bed.client("b").await, 1).await;
        let longest = longest_read(&bed, &bed.client("a").await, 20).await;
        assert!(longest < Duration::from_millis(20), "{longest:?}");
        stalled.iter().for_each(Connection::close);
    });
}
