//! The queue over simulated disks, and over a backend that only keeps a list.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use base::{BLOCK, BufPool, Duration, Instant, IoError, Prng, SliceList};
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId, Order, Payload, Reason, Rt};
use sim::{DiskModel, Fault, FaultRates, World};

use crate::{Class, Device, Limits};

fn block(bufs: &BufPool, fill: u8, blocks: usize) -> SliceList {
    let mut b = bufs.take(blocks * BLOCK);
    b.fill(fill);
    SliceList::from_iter([b.freeze()])
}

/// Notes what is asked for and completes everything one microsecond later.
struct Noting {
    asked: Rc<RefCell<Vec<(bool, u64, usize)>>>,
    most: Rc<RefCell<usize>>,
    pending: Vec<Completion>,
    now: Instant,
}

impl Backend for Noting {
    fn submit(&mut self, id: OpId, op: Op) {
        let (write, offset, len, payload) = match op {
            Op::Read { offset, bufs, .. } => {
                (false, offset, bufs.iter().map(|b| b.len()).sum(), Payload::Bufs(bufs))
            }
            Op::Write { offset, data, .. } => {
                (true, offset, data.iter().map(|s| s.len()).sum(), Payload::Data(data))
            }
            other => panic!("{other:?}"),
        };
        self.asked.borrow_mut().push((write, offset, len));
        self.pending.push(Completion { id, result: Ok(len as u64), payload });
        let most = self.most.borrow().max(self.pending.len());
        *self.most.borrow_mut() = most;
    }
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        assert!(until.is_some() || !self.pending.is_empty(), "nothing will ever happen");
        self.now = self.now.after(Duration::from_micros(1));
        done.append(&mut self.pending);
        self.now
    }
    fn now(&self) -> Instant {
        self.now
    }
}

type Asked = Rc<RefCell<Vec<(bool, u64, usize)>>>;

fn noting() -> (Rt, Asked, Rc<RefCell<usize>>) {
    let (asked, most) = (Asked::default(), Rc::default());
    let backend = Noting {
        asked: asked.clone(),
        most: Rc::clone(&most),
        pending: Vec::new(),
        now: Instant(0),
    };
    (Rt::new(Box::new(backend), Order::Fifo, 64), asked, most)
}

#[test]
fn neighbours_submitted_together_become_one_request() {
    let (rt, asked, _) = noting();
    let limits = Limits { max_request_bytes: 4 * BLOCK, ..Limits::default() };
    let device = Device::new(&rt, FileId(0), limits);
    let r = rt.clone();
    let d = device.clone();
    rt.block_on(async move {
        // Blocks 0 to 5 backwards, one far away, and a read in between that must not be merged with
        // writes.
        let mut tasks = Vec::new();
        for i in (0..6u64).rev().chain([100]) {
            let (d, data) = (d.clone(), block(r.bufs(), i as u8, 1));
            tasks.push(
                r.spawn(async move { d.write(Class::Foreground, i * BLOCK as u64, data).await }),
            );
        }
        let (d2, buf) = (d.clone(), r.bufs().take(BLOCK));
        let read =
            r.spawn(async move { d2.read(Class::Foreground, 6 * BLOCK as u64, buf).await.0 });
        for t in tasks {
            assert_eq!(t.await, Some(Ok(())));
        }
        assert_eq!(read.await, Some(Ok(())));
    });
    let b = BLOCK as u64;
    let want = [
        (true, 0, 4 * BLOCK),
        (true, 4 * b, 2 * BLOCK),
        (false, 6 * b, BLOCK),
        (true, 100 * b, BLOCK),
    ];
    assert_eq!(*asked.borrow(), want);
    assert_eq!(device.stats().of(Class::Foreground).merged, 4);
    assert_eq!(device.stats().of(Class::Foreground).write.count, 7);
}

#[test]
fn classes_are_not_mixed_and_what_is_in_flight_is_bounded() {
    let (rt, asked, most) = noting();
    let device = Device::new(&rt, FileId(0), Limits { depth: 3, ..Limits::default() });
    let (r, d) = (rt.clone(), device.clone());
    rt.block_on(async move {
        let tasks: Vec<_> = (0..20u64)
            .map(|i| {
                let class = if i % 2 == 0 { Class::Foreground } else { Class::Commit };
                let (d, data) = (d.clone(), block(r.bufs(), 1, 1));
                r.spawn(async move { d.write(class, i * BLOCK as u64, data).await })
            })
            .collect();
        r.settled().await;
        assert!(d.load() > 3, "the rest waits");
        for t in tasks {
            assert_eq!(t.await, Some(Ok(())));
        }
        assert_eq!(d.load(), 0);
    });
    assert_eq!(asked.borrow().len(), 20, "neighbours of different classes stay apart");
    assert_eq!(*most.borrow(), 3);
    assert_eq!(device.stats().of(Class::Commit).write.count, 10);
}

#[test]
fn short_transfers_are_finished() {
    for seed in 0..40 {
        let world = World::new(seed);
        let disk = world.add_disk(DiskModel::nvme(4 << 20));
        world.set_rates(disk, FaultRates { short_transfer: 2, ..FaultRates::default() });
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 32);
        let device = Device::new(&rt, disk, Limits { depth: 4, ..Limits::default() });
        let r = rt.clone();
        rt.block_on(async move {
            let mut rng = Prng::new(seed);
            let tasks: Vec<_> = (0..30u64)
                .map(|i| {
                    let blocks = 1 + rng.below(12) as usize;
                    let (d, r) = (device.clone(), r.clone());
                    let offset = i * 16 * BLOCK as u64;
                    r.clone().spawn(async move {
                        let fill = i as u8 + 1;
                        assert_eq!(
                            d.write(Class::Foreground, offset, block(r.bufs(), fill, blocks)).await,
                            Ok(())
                        );
                        let (outcome, buf) =
                            d.read(Class::Foreground, offset, r.bufs().take(blocks * BLOCK)).await;
                        assert_eq!(outcome, Ok(()));
                        assert!(buf.iter().all(|&b| b == fill), "seed {seed} request {i}");
                    })
                })
                .collect();
            for t in tasks {
                t.await.expect("ran");
            }
        })
        .expect("alive");
        rt.kill();
    }
}

#[test]
fn errors_reach_those_they_belong_to() {
    let world = World::new(3);
    let disk = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 32);
    let device = Device::new(&rt, disk, Limits::default());
    let (r, w) = (rt.clone(), world.clone());
    rt.block_on(async move {
        let at = |i: u64| i * BLOCK as u64;
        assert_eq!(device.write(Class::Foreground, 0, block(r.bufs(), 7, 8)).await, Ok(()));
        assert!(w.inject(disk, Fault::ReadError { offset: at(2), len: 512 }));
        let (bad, _) = device.read(Class::Foreground, at(2), r.bufs().take(BLOCK)).await;
        assert_eq!(bad, Err(IoError::IO));
        let (good, buf) = device.read(Class::Foreground, at(3), r.bufs().take(BLOCK)).await;
        assert_eq!((good, buf[0]), (Ok(()), 7));
        let (past, _) = device.read(Class::Foreground, 1 << 20, r.bufs().take(BLOCK)).await;
        assert_eq!(past, Err(IoError::IO), "nothing is there: 0 bytes are no success");
        assert!(w.inject(disk, Fault::Dead));
        assert!(device.flush(Class::Commit).await.is_err());
        assert!(device.write(Class::Foreground, 0, block(r.bufs(), 1, 1)).await.is_err());
    })
    .expect("alive");
    rt.kill();
}

#[test]
fn a_bad_block_takes_no_neighbour_with_it() {
    let world = World::new(3);
    let disk = world.add_disk(DiskModel::nvme(1 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, disk, Limits::default());
    let (r, w) = (rt.clone(), world.clone());
    rt.block_on(async move {
        let at = |i: u64| i * BLOCK as u64;
        for i in 0..16 {
            assert_eq!(
                device.write(Class::Foreground, at(i), block(r.bufs(), i as u8, 1)).await,
                Ok(())
            );
        }
        assert!(w.inject(disk, Fault::ReadError { offset: at(5), len: 512 }));
        let reads: Vec<_> = (0..16)
            .map(|i| {
                let d = device.clone();
                r.spawn(async move { d.read_new(Class::Foreground, at(i), BLOCK).await })
            })
            .collect();
        for (i, read) in reads.into_iter().enumerate() {
            let (outcome, buf) = read.await.expect("ran");
            assert_eq!(outcome.is_ok(), i != 5, "block {i}");
            assert!(i == 5 || buf.iter().all(|&b| b == i as u8), "block {i}");
        }
        assert_eq!((device.stats().of(Class::Foreground).merged, device.load()), (15, 0));

        // Blocks of one request, and an error that passes.
        let read = device.read_blocks(Class::Foreground, at(0), 16).await;
        assert_eq!(read.unreadable, [(5, IoError::IO)]);
        assert!(read.get(5).is_err() && read.get(6) == Ok(&[6; BLOCK][..]));
        assert!(w.inject(disk, Fault::FailNext));
        assert!(device.read_blocks(Class::Foreground, at(6), 1).await.unreadable.is_empty());
        assert!(w.inject(disk, Fault::Dead));
        assert_eq!(device.read_blocks(Class::Foreground, at(6), 3).await.unreadable.len(), 3);
    })
    .expect("alive");
    rt.kill();
}

#[test]
fn merged_writes_fail_one_by_one_and_durable_ones_together() {
    for (fua, seed) in [(false, 1), (false, 2), (true, 3)] {
        let world = World::new(seed);
        let disk = world.add_disk(DiskModel::nvme(1 << 20));
        let rt = Rt::new(world.backend(), Order::Fifo, 64);
        let device = Device::new(&rt, disk, Limits::default());
        let (r, w) = (rt.clone(), world.clone());
        rt.block_on(async move {
            let at = |i: u64| i * 2 * BLOCK as u64;
            // The first request is cut short, and what is left of it fails.
            assert!(seed != 2 || w.inject(disk, Fault::ShortenNext));
            assert!(seed == 2 || w.inject(disk, Fault::FailNext));
            let writes: Vec<_> = (0..8)
                .map(|i| {
                    let (d, data) = (device.clone(), block(r.bufs(), i as u8 + 1, 2));
                    r.spawn(async move {
                        let class = Class::Commit;
                        if fua {
                            d.write_durable(class, at(i), data).await
                        } else {
                            d.write(class, at(i), data).await
                        }
                    })
                })
                .collect();
            r.settled().await;
            if seed == 2 {
                while w.fault_counts(disk).short_transfers == 0 {
                    r.sleep(Duration::from_micros(1)).await;
                }
                assert!(w.inject(disk, Fault::FailNext));
            }
            for write in writes {
                assert_eq!(write.await.expect("ran").is_ok(), !fua);
            }
            for i in 0..8 {
                let (outcome, buf) = device.read_new(Class::Commit, at(i), 2 * BLOCK).await;
                assert_eq!(outcome, Ok(()));
                assert!(fua || buf.iter().all(|&b| b == i as u8 + 1), "request {i}");
            }
        })
        .expect("alive");
        rt.kill();
    }
}

#[test]
fn the_background_has_a_small_share_while_somebody_waits() {
    let (rt, asked, most) = noting();
    let device = Device::new(&rt, FileId(0), Limits { depth: 8, ..Limits::default() });
    let (r, d) = (rt.clone(), device.clone());
    rt.block_on(async move {
        let at = |i: u64| 2 * i * BLOCK as u64;
        let send = |class: Class, i: u64| {
            let (d, data) = (d.clone(), block(r.bufs(), 0, 1));
            r.spawn(async move { d.write(class, at(i), data).await })
        };
        let background: Vec<_> = (0..64).map(|i| send(Class::WriteBack, i)).collect();
        let urgent: Vec<_> = (1000..1064).map(|i| send(Class::Foreground, i)).collect();
        for task in background.into_iter().chain(urgent) {
            assert_eq!(task.await, Some(Ok(())));
        }
    });
    let asked = asked.borrow();
    let is_urgent: Vec<bool> =
        asked.iter().map(|&(_, offset, _)| offset >= 2000 * BLOCK as u64).collect();
    let last_urgent = is_urgent.iter().rposition(|&urgent| urgent).unwrap();
    let before = is_urgent[..last_urgent].iter().filter(|&&urgent| !urgent).count();
    assert_eq!((asked.len(), *most.borrow()), (128, 8));
    assert!((4..=64 / 8 + 4).contains(&before), "{before} of the background before the last other");
}

#[test]
fn a_pass_that_hurries_is_in_line_with_commits_and_counts_as_write_back() {
    let (rt, asked, _) = noting();
    let device = Device::new(&rt, FileId(0), Limits { depth: 1, ..Limits::default() });
    assert_eq!(device.holder(Class::HurriedWriteBack), device.holder(Class::WriteBack));
    let (r, d) = (rt.clone(), device.clone());
    rt.block_on(async move {
        let classes = [Class::WriteBack, Class::HurriedWriteBack, Class::Commit];
        let writes: Vec<_> = (0..30u64)
            .map(|i| {
                let (d, data) = (d.clone(), block(r.bufs(), 0, 1));
                let class = classes[(i % 3) as usize];
                // Far from each other, and in this order.
                r.spawn(async move { d.write(class, i << 20, data).await })
            })
            .collect();
        for write in writes {
            assert_eq!(write.await, Some(Ok(())));
        }
    });
    let stats = device.stats();
    assert_eq!(stats.of(Class::WriteBack).write.count, 20);
    assert_eq!(stats.of(Class::Commit).write.count, 10);
    // Of the others only what overtook eight of these went before the last of them.
    let hurried_is_last = asked.borrow().iter().rposition(|&(_, at, _)| at >> 20 == 28);
    assert!(hurried_is_last.is_some_and(|at| at < 25), "{hurried_is_last:?}");
    device.close();
}

#[test]
fn there_is_advice_whatever_keeps_a_device_busy() {
    let (rt, ..) = noting();
    let device = Device::new(&rt, FileId(0), Limits::default());
    for class in Class::ALL {
        for reason in [Reason::DeviceQueue, Reason::Transfer] {
            assert_ne!(rt::advice(reason, device.holder(class), "pool device"), "", "{class:?}");
        }
    }
    device.close();
}

#[test]
fn what_waits_beside_a_flush_alone_names_it() {
    let world = World::new(1);
    let disk = world.add_disk(DiskModel::nvme(4 << 20));
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    let device = Device::new(&rt, disk, Limits::default());
    let (r, d) = (rt.clone(), device.clone());
    rt.block_on(async move {
        let beside = || d.waits_for(Reason::Transfer).holder.name();
        assert_eq!(beside(), "");
        let device = d.clone();
        let flush = r.spawn(async move { device.flush(Class::Commit).await });
        r.yield_now().await;
        assert_eq!(beside(), "a device flush");
        assert_eq!(flush.await, Some(Ok(())));
        assert_eq!(beside(), "");
    });
    device.close();
}

/// A future that counts how often it is polled.
struct Polled<F> {
    future: Pin<Box<F>>,
    polls: Rc<Cell<u32>>,
}

impl<F: Future> Future for Polled<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.set(self.polls.get() + 1);
        self.future.as_mut().poll(cx)
    }
}

#[test]
fn a_task_is_woken_once_for_a_request_of_several_pieces() {
    const TASKS: u64 = 72;
    const READS: u64 = 20;
    for kind in [DeviceKind::Rotating, DeviceKind::Nvme] {
        let (rt, asked, _) = noting();
        let max_request_bytes = 256 << 10;
        let limits = Limits { max_request_bytes, kind: Some(kind), ..Limits::default() };
        let device = Device::new(&rt, FileId(0), limits);
        let polls = Rc::new(Cell::new(0));
        let (r, p) = (rt.clone(), polls.clone());
        rt.block_on(async move {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let (device, polls) = (device.clone(), p.clone());
                    r.spawn(async move {
                        for read in 0..READS {
                            let at = ((task * READS + read) * 3) << 20;
                            let read = device.read_new(Class::Foreground, at, 1 << 20);
                            let polled = Polled { future: Box::pin(read), polls: polls.clone() };
                            assert_eq!(polled.await.0, Ok(()));
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ran");
            }
        });
        let (grants, polls) = (TASKS * READS, u64::from(polls.get()));
        // The first poll of a request is when it is asked for.
        let woken = polls - grants;
        assert!(woken * 100 <= grants * 105, "{woken} times woken for {grants} reads");
        let asked = asked.borrow();
        assert_eq!(asked.len() as u64, 4 * grants);
        assert!(asked.iter().all(|&(_, _, len)| len == max_request_bytes));
        for pieces in asked.chunks_exact(4) {
            let row = pieces.windows(2).all(|p| p[0].1 + max_request_bytes as u64 == p[1].1);
            assert!(row, "pieces of one request are kept together: {pieces:?}");
        }
    }
}

#[test]
fn requests_in_pieces_and_across_gaps_move_the_right_bytes() {
    for seed in 0..20 {
        let world = World::new(seed);
        let disk = world.add_disk(DiskModel::nvme(4 << 20));
        let rates = FaultRates { short_transfer: 6, ..FaultRates::default() };
        world.set_rates(disk, rates);
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 64);
        let kind = if seed % 2 == 0 { DeviceKind::Rotating } else { DeviceKind::Unknown };
        let max_request_bytes = [4 * BLOCK, 1 << 20][(seed / 2 % 2) as usize];
        let limits = Limits { max_request_bytes, depth: 4, kind: Some(kind), max_segments: 32 };
        let device = Device::new(&rt, disk, limits);
        let (r, d) = (rt.clone(), device.clone());
        rt.block_on(async move {
            let mut whole = r.bufs().take(1 << 20);
            for (i, byte) in whole.iter_mut().enumerate() {
                *byte = (i / BLOCK * 7 + i % 251) as u8;
            }
            let whole = whole.freeze();
            let mut data = SliceList::new();
            // In slices of odd lengths.
            let (mut at, mut rng) = (0, Prng::new(seed));
            while at < whole.len() {
                let n = (rng.range(1, 9) as usize * 512).min(whole.len() - at);
                data.push(whole.slice(at, n));
                at += n;
            }
            assert_eq!(d.write(Class::Foreground, 0, data).await, Ok(()));
            // Small ones with room between them, and a large one.
            let mut places: Vec<_> =
                (0..60).map(|i| (4 * i + rng.below(2), rng.range(1, 3))).collect();
            places.push((240, 16));
            let reads: Vec<_> = places
                .into_iter()
                .map(|(at, blocks)| {
                    let (d, whole) = (d.clone(), whole.clone());
                    let (at, blocks) = (at as usize, blocks as usize);
                    r.spawn(async move {
                        let (at, len) = (at * BLOCK, blocks * BLOCK);
                        let (outcome, buf) = d.read_new(Class::Commit, at as u64, len).await;
                        assert_eq!(outcome, Ok(()));
                        assert!(buf[..] == whole[at..at + len], "seed {seed}: {at} {len}");
                    })
                })
                .collect();
            for read in reads {
                read.await.expect("ran");
            }
        })
        .expect("alive");
        let gaps = device.stats().of(Class::Commit).gap_bytes;
        assert_eq!(gaps > 0, kind == DeviceKind::Rotating, "{gaps} bytes of gaps");
        rt.kill();
    }
}

/// Answers nothing before this time.
struct Silent {
    until: Instant,
    pending: Vec<Completion>,
    now: Instant,
}

impl Backend for Silent {
    fn submit(&mut self, id: OpId, op: Op) {
        let (len, payload) = match op {
            Op::Write { data, .. } => (data.iter().map(|s| s.len()).sum(), Payload::Data(data)),
            Op::Flush { .. } => (0, Payload::None),
            other => panic!("{other:?}"),
        };
        self.pending.push(Completion { id, result: Ok(len as u64), payload });
    }
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        self.now = until.map_or(self.until, |until| until.min(self.until)).max(self.now);
        if self.now >= self.until {
            done.append(&mut self.pending);
        }
        self.now
    }
    fn now(&self) -> Instant {
        self.now
    }
}

#[test]
fn a_device_that_does_not_answer_is_known() {
    for flush in [false, true] {
        let until = Instant(30_000_000_000);
        let backend = Silent { until, pending: Vec::new(), now: Instant(0) };
        let rt = Rt::new(Box::new(backend), Order::Fifo, 64);
        let device = Device::new(&rt, FileId(0), Limits::default());
        let (r, d) = (rt.clone(), device.clone());
        rt.block_on(async move {
            let silent = || d.stats().silent.as_secs();
            r.sleep(Duration::from_secs(5)).await;
            assert_eq!(silent(), 0, "nothing was asked");
            let (own, data) = (d.clone(), block(r.bufs(), 1, 1));
            let asked = r.spawn(async move {
                match flush {
                    true => own.flush(Class::Commit).await.is_ok(),
                    false => own.write(Class::Foreground, 0, data).await.is_ok(),
                }
            });
            r.sleep(Duration::from_secs(11)).await;
            assert_eq!(silent(), 11);
            assert_eq!(asked.await, Some(true));
            assert_eq!((r.now(), silent()), (until, 0));
            d.close();
        });
    }
}
