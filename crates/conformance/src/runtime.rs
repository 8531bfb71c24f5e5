//! Cases on a backend under the executor: slots, orphans, timers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use base::{BLOCK, BLOCK_U64, BufList, Duration, SliceList};
use rt::{Op, Rt, SocketId};

use crate::files::{read_all, write_all};
use crate::harness::{Case, Harness, SLOTS, on, pattern};

/// The cases on the executor.
pub const CASES: &[Case] = &[
    ("more operations than slots complete exactly once", more_than_slots),
    ("a dropped future leaves its buffer to the backend", orphan),
    ("a runtime is dropped with operations in flight", dropped_in_flight),
    ("timers fire in order, and not early, under I/O", timers),
    ("a poll does not block", poll),
];

fn more_than_slots(h: &mut dyn Harness) {
    const OPS: u64 = 40 * SLOTS as u64;
    let (rt, file) = (h.rt(), h.file(OPS * BLOCK_U64));
    let r = rt.clone();
    on(&rt, async move {
        let completions = Rc::new(Cell::new(0));
        for i in 0..OPS {
            let data = SliceList::from_iter([r.bufs().copy_of(&pattern(i, BLOCK)).freeze()]);
            let completions = completions.clone();
            // A callback can be called only once. A second completion would take the slot of
            // another operation.
            r.submit(Op::Write { file, offset: i * BLOCK_U64, data, fua: false }, move |done| {
                assert_eq!(done.result, Ok(BLOCK_U64));
                completions.set(completions.get() + 1);
            });
        }
        while completions.get() < OPS {
            r.sleep(Duration::from_millis(1)).await;
        }
        let reads: Vec<_> = (0..OPS)
            .map(|i| {
                let r2 = r.clone();
                r.spawn(async move {
                    read_all(&r2, file, i * BLOCK_U64, BLOCK).await == pattern(i, BLOCK)
                })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await, Some(true), "each read got its own block");
        }
        assert_eq!(r.bufs().outstanding(), 0);
    });
}

fn connection(h: &mut dyn Harness) -> (Rt, SocketId, SocketId) {
    let (rt, listener) = (h.rt(), h.listener());
    let client = h.connect(listener);
    let r = rt.clone();
    let done = on(&rt, async move { r.op(Op::Accept { listener }).await });
    match done.payload {
        rt::Payload::Socket(server) => (rt, server, client),
        other => panic!("accept: {:?} {other:?}", done.result),
    }
}

fn orphan(h: &mut dyn Harness) {
    let (rt, server, client) = connection(h);
    let r = rt.clone();
    on(&rt, async move {
        let buf = r.bufs().zeroed(BLOCK);
        let at = buf.as_ptr();
        let mut recv: Pin<Box<dyn Future<Output = _>>> = Box::pin(r.op(Op::Recv {
            socket: server,
            buf: BufList::from_iter([buf]),
            start: 0,
            fill: true,
        }));
        assert!(std::future::poll_fn(|cx| Poll::Ready(recv.as_mut().poll(cx).is_pending())).await);
        r.sleep(Duration::from_millis(5)).await;
        drop(recv);
        assert_eq!(r.bufs().outstanding(), BLOCK, "the backend still owns it");
        let others: Vec<_> = (0..64).map(|_| r.bufs().zeroed(BLOCK)).collect();
        assert!(others.iter().all(|b| b.as_ptr() != at), "no other task got its memory");
        let mut left = BLOCK;
        while left > 0 {
            let data = SliceList::from_iter([r.bufs().copy_of(&vec![0xFF; left]).freeze()]);
            left -= r
                .op(Op::Send { socket: client, data })
                .await
                .result
                .unwrap_or_else(|e| panic!("{e}")) as usize;
        }
        while r.bufs().outstanding() > 64 * BLOCK {
            r.sleep(Duration::from_millis(1)).await;
        }
        assert!(
            others.iter().all(|b| b.iter().all(|&x| x == 0)),
            "the bytes went to the orphan's buffer"
        );
    });
}

fn dropped_in_flight(h: &mut dyn Harness) {
    let (rt, server, _client) = connection(h);
    let (file, listener) = (h.file(1 << 20), h.listener());
    let r = rt.clone();
    on(&rt, async move {
        drop(r.op(Op::Accept { listener }));
        drop(r.op(Op::Recv {
            socket: server,
            buf: BufList::from_iter([r.bufs().take(BLOCK)]),
            start: 0,
            fill: true,
        }));
        r.sleep(Duration::from_millis(2)).await;
        drop(r.op(Op::Read {
            file,
            offset: 0,
            bufs: BufList::from_iter([r.bufs().take(1 << 20)]),
        }));
        drop(r.op(Op::Flush { file }));
    });
    // The world is dropped at the end of the case. The operations in flight must neither hang the
    // drop nor corrupt the memory of the next case.
}

fn timers(h: &mut dyn Harness) {
    let (rt, file) = (h.rt(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        let stop = Rc::new(Cell::new(false));
        let (r2, stop2) = (r.clone(), stop.clone());
        let io = r.spawn(async move {
            let mut rounds = 0u64;
            while !stop2.get() || rounds == 0 {
                write_all(&r2, file, (rounds % 256) * BLOCK_U64, &pattern(rounds, BLOCK), false)
                    .await;
                rounds += 1;
            }
        });
        let log = Rc::new(RefCell::new(Vec::new()));
        let sleepers: Vec<_> = [25u64, 5, 15, 10, 20]
            .into_iter()
            .map(|ms| {
                let (r2, log) = (r.clone(), log.clone());
                let due = r.now().after(Duration::from_millis(ms));
                r.spawn(async move {
                    r2.sleep_until(due).await;
                    assert!(r2.now() >= due, "{ms} ms fired early");
                    log.borrow_mut().push((ms, r2.now()));
                })
            })
            .collect();
        for sleeper in sleepers {
            sleeper.await;
        }
        stop.set(true);
        io.await;
        let log = log.borrow();
        assert_eq!(log.len(), 5);
        // Tasks that are woken at the same time may run in any order.
        assert!(log.windows(2).all(|w| w[0].0 < w[1].0 || w[0].1 == w[1].1), "{log:?}");
    });
}

fn poll(h: &mut dyn Harness) {
    let (rt, listener, file) = (h.rt(), h.listener(), h.file(1 << 20));
    let r = rt.clone();
    on(&rt, async move {
        // This accept never completes, so a poll that waits would wait for the timer of a minute.
        drop(r.op(Op::Accept { listener }));
        let start = r.precise_now();
        for _ in 0..2000 {
            r.yield_now().await;
        }
        assert!(
            r.precise_now().since(start) < Duration::from_secs(20),
            "the polls of a busy task took too long"
        );
        write_all(&r, file, 0, &pattern(1, BLOCK), false).await;
        assert!(read_all(&r, file, 0, BLOCK).await == pattern(1, BLOCK));
    });
}
