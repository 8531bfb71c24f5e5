//! Requests and replies of clients that keep to the protocol.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Duration, Prng};

use super::{BAD, Bed, Raw, SIZE, SLOW, run, smooth};
use nbd::Limits;
use nbd::codec::option::{info_request, opt};
use nbd::codec::reply::{ChunkBody, ReplyHead};
use nbd::codec::request::{Command, Request, flag};
use nbd::codec::{Errno, reply};
use nbd_client::{Client, ClientError};

const NO: fn(Errno) -> ClientError = ClientError::Errno;

#[test]
fn every_command_and_flag() {
    run(1, Limits::default(), |bed| async move {
        let c = bed.client("rw").await;
        c.write(0, &[9; 8192], flag::FUA).await.expect("write");
        assert_eq!(c.read(0, 8192, flag::DF | flag::FUA).await, Ok(vec![9; 8192]));
        c.command(Command::WriteZeroes, 512, 512, flag::NO_HOLE | flag::FUA).await.expect("zeroes");
        assert_eq!(c.read(0, 1536, 0).await, Ok([[9; 512], [0; 512], [9; 512]].concat()));
        let fast = c.command(Command::WriteZeroes, 0, 512, flag::FAST_ZERO | flag::NO_HOLE).await;
        assert_eq!(fast, Err(NO(Errno::NotSup)));
        c.command(Command::WriteZeroes, 0, 512, flag::FAST_ZERO).await.expect("fast zeroes");
        c.command(Command::Trim, 0, SIZE as u32, flag::FUA).await.expect("trim");
        assert_eq!(c.read(4096, 512, 0).await, Ok(vec![0; 512]));
        c.command(Command::Cache, 0, SIZE as u32, 0).await.expect("cache");
        c.flush().await.expect("flush");
        assert_eq!(bed.exports.rw.0.flushes.get(), 1);
        let status = c.block_status(60 * 1024, 16 * 1024, 0).await;
        assert_eq!(
            status,
            Ok(vec![(4096, 0), (12 * 1024, reply::state::HOLE | reply::state::ZERO)])
        );
        assert_eq!(c.block_status(60 * 1024, 16 * 1024, flag::REQ_ONE).await, Ok(vec![(4096, 0)]));
        // What is read and written, and the zeros that take space.
        assert_eq!(bed.exports.rw.0.admitted.get(), 8192 + 8192 + 512 + 1536 + 512 + 512);
        for (command, offset, len, flags, error) in [
            (Command::Read, 1, 512, 0, Errno::Inval),
            (Command::Read, 0, 0, 0, Errno::Inval),
            (Command::Read, SIZE as u64, 512, 0, Errno::Inval),
            (Command::Read, 0, 512, flag::NO_HOLE, Errno::Inval),
            (Command::WriteZeroes, SIZE as u64, 512, 0, Errno::NoSpc),
            (Command::Trim, SIZE as u64, 512, 0, Errno::Inval),
            (Command::BlockStatus, 0, 100, 0, Errno::Inval),
            (Command::Unknown(99), 0, 512, 0, Errno::Inval),
            (Command::Flush, 0, 0, 1 << 9, Errno::Inval),
        ] {
            assert_eq!(
                c.command(command, offset, len, flags).await,
                Err(NO(error)),
                "{command:?} {offset}+{len}"
            );
        }
        assert_eq!(c.write(SIZE as u64, &[1; 512], 0).await, Err(NO(Errno::NoSpc)));
        assert_eq!(c.write(3, &[1; 512], 0).await, Err(NO(Errno::Inval)));
        // The size counts as it is now.
        bed.exports.rw.0.size.set(4096);
        assert_eq!(c.read(4096, 512, 0).await, Err(NO(Errno::Inval)));
        assert_eq!(c.read(0, 512, 0).await, Ok(vec![0; 512]));
    });
}

#[test]
fn replies_come_as_requests_end() {
    run(2, Limits::default(), |bed| async move {
        let c = bed.client("rw").await;
        let order = Rc::new(RefCell::new(Vec::new()));
        let both: Vec<_> = [SLOW, 0]
            .map(|offset| {
                let (c, order) = (c.clone(), order.clone());
                bed.rt.spawn(async move {
                    c.read(offset, 512, 0).await.expect("read");
                    order.borrow_mut().push(offset);
                })
            })
            .into();
        for b in both {
            b.await;
        }
        assert_eq!(*order.borrow(), [0, SLOW]);
        // DISC: what is in flight is answered before the end.
        let (c2, slow) = (
            c.clone(),
            bed.rt.spawn({
                let c = c.clone();
                async move { c.read(SLOW, 512, 0).await }
            }),
        );
        bed.sleep(10).await;
        c2.disconnect();
        assert_eq!(slow.await, Some(Ok(vec![0; 512])));
    });
}

async fn into_transmission(bed: &Bed) -> Raw {
    let mut raw = bed.raw(3).await;
    raw.option(opt::GO, &info_request("rw", &[])).await;
    raw
}

/// The chunks of one reply: (offset, length) of data, or `None` for an error.
async fn chunks_of(raw: &mut Raw, r: Request) -> Vec<Option<(u64, u32)>> {
    raw.send(&r.encode()).await;
    let mut chunks = Vec::new();
    loop {
        let head = raw.expect(20).await;
        let Ok(Some((ReplyHead::Chunk { cookie, done, kind, len }, 20))) = ReplyHead::decode(&head)
        else {
            panic!("not a chunk: {head:?}")
        };
        assert_eq!(cookie, r.cookie);
        let body = raw.expect(len as usize).await;
        chunks.push(match ChunkBody::decode(kind, &body) {
            Some(ChunkBody::Data(offset, data)) => Some((offset, data.len() as u32)),
            Some(ChunkBody::Error(Errno::Io)) => None,
            other => panic!("{other:?}"),
        });
        if done {
            return chunks;
        }
    }
}

#[test]
fn large_reads_come_in_pieces_where_the_client_allows() {
    const K: u32 = 1 << 10;
    run(4, Limits::default(), |bed| async move {
        bed.exports.rw.0.size.set(2 * BAD);
        let mut raw = bed.raw(3).await;
        raw.option(opt::STRUCTURED_REPLY, &[]).await;
        raw.option(opt::GO, &info_request("rw", &[])).await;
        let r = Request { flags: 0, command: Command::Read, cookie: 7, offset: 512, len: 300 * K };
        let first = 128 * K - 512;
        let (second, third) = (u64::from(128 * K), u64::from(256 * K));
        let want = [Some((512, first)), Some((second, 128 * K)), Some((third, 44 * K + 512))];
        assert_eq!(chunks_of(&mut raw, r).await, want);
        assert_eq!(
            chunks_of(&mut raw, Request { flags: flag::DF, ..r }).await,
            [Some((512, 300 * K))]
        );
        let bad = Request { offset: BAD - third, len: 512 * K, ..r };
        let before = [BAD - third, BAD - second].map(|at| Some((at, 128 * K)));
        assert_eq!(chunks_of(&mut raw, bad).await, [before[0], before[1], None]);
        // What is behind the bad piece is not sent, and what it took is given back.
        assert_eq!(chunks_of(&mut raw, Request { len: 512, ..r }).await, [Some((512, 512))]);
        bed.sleep(100).await;
        assert_eq!((bed.server.status().requests, bed.server.status().payload_bytes), (0, 0));
        raw.connection.close();
    });
}

#[test]
fn a_thousand_requests_at_once() {
    let limits = Limits { max_in_flight_requests: 16, ..Limits::default() };
    run(3, limits, |bed| async move {
        let mut raw = into_transmission(&bed).await;
        let mut bytes = Vec::new();
        for cookie in 0..1000u64 {
            let command = if cookie % 2 == 0 { Command::Write } else { Command::Flush };
            let r = Request { flags: 0, command, cookie, offset: cookie * 512, len: 512 };
            bytes.extend_from_slice(&r.encode());
            bytes.extend_from_slice(&vec![cookie as u8; r.payload_len() as usize]);
        }
        raw.send(&bytes).await;
        let mut cookies = BTreeSet::new();
        let mut in_order = true;
        for i in 0..1000u64 {
            let head = raw.expect(16).await;
            let cookie = u64::from_be_bytes(head[8..].try_into().expect("8 bytes"));
            assert_eq!(head, reply::simple(cookie, None).bytes());
            in_order &= cookie == i;
            assert!(cookies.insert(cookie), "answered twice");
        }
        assert!(!in_order, "out of order is what is expected here");
        assert_eq!(bed.exports.rw.0.most.get(), 16, "as many at a time as allowed");
        raw.connection.close();
        let bytes = bed.exports.rw.0.bytes.borrow();
        (0..1000).step_by(2).for_each(|i| assert_eq!(bytes[i * 512 + 511], i as u8));
    });
}

#[test]
fn writes_of_all_sizes_in_one_stream() {
    for seed in 0..6 {
        run(seed, Limits::default(), move |bed| async move {
            // Cut anywhere, or as large as the receive buffer likes, so that large payloads are in
            // it whole too.
            if seed % 2 == 0 {
                smooth(&bed);
            }
            let mut rng = Prng::new(seed);
            let mut raw = into_transmission(&bed).await;
            let (mut bytes, mut want, mut at) = (Vec::new(), Vec::new(), 0u64);
            loop {
                let len = [1, 8, 63, 64, 65, 66, 100, 200][rng.below(8) as usize] * 512;
                if at + u64::from(len) > SIZE as u64 {
                    break;
                }
                let r = Request { flags: 0, command: Command::Write, cookie: at, offset: at, len };
                bytes.extend_from_slice(&r.encode());
                want.resize(want.len() + len as usize, 0);
                rng.fill(&mut want[at as usize..]);
                bytes.extend_from_slice(&want[at as usize..]);
                at += u64::from(len);
                // Something small in between.
                if rng.one_in(4) {
                    let r = Request { command: Command::Flush, cookie: 0, offset: 0, len: 0, ..r };
                    bytes.extend_from_slice(&r.encode());
                }
            }
            raw.send(&bytes).await;
            let disc = Request { flags: 0, command: Command::Disc, cookie: 0, offset: 0, len: 0 };
            raw.send(&disc.encode()).await;
            let replies = raw.end().await;
            assert!(
                replies.chunks(16).all(|r| r[..8] == *b"\x67\x44\x66\x98\0\0\0\0"),
                "all went well"
            );
            let bytes = bed.exports.rw.0.bytes.borrow();
            assert!(bytes[..want.len()] == want, "wrong bytes");
        });
    }
}

#[test]
fn several_clients_of_all_sizes_see_what_was_written() {
    for seed in 0..8 {
        // Less than all of them want together.
        let limits =
            Limits { max_payload_bytes: 0, max_in_flight_requests: 4, ..Limits::default() };
        run(seed, limits, move |bed| async move {
            let tasks: Vec<_> =
                (0..4u64).map(|n| bed.rt.spawn(one_client(bed.clone(), seed * 4 + n, n))).collect();
            for t in tasks {
                assert_eq!(t.await, Some(()));
            }
        });
    }
}

/// Writes and reads its quarter of the export.
async fn one_client(bed: Bed, seed: u64, quarter: u64) {
    let mut rng = Prng::new(seed);
    let c = bed.client("rw").await;
    let base = quarter * SIZE as u64 / 4;
    let mut model = vec![0u8; SIZE / 4];
    for _ in 0..60 {
        let start = rng.below(model.len() as u64 / 512) as usize * 512;
        let most = (model.len() - start) / 512;
        let most = if rng.one_in(3) { most } else { most.min(16) };
        let len = (rng.below(most as u64) as usize + 1) * 512;
        if rng.one_in(2) {
            rng.fill(&mut model[start..start + len]);
            c.write(base + start as u64, &model[start..start + len], 0).await.expect("write");
        } else {
            let got = c.read(base + start as u64, len as u32, 0).await.expect("read");
            assert!(got == model[start..start + len], "wrong bytes at {start}+{len}");
        }
    }
    c.disconnect();
}

#[test]
fn the_largest_requests_go_through_and_larger_ones_do_not() {
    run(4, Limits::default(), |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        let c = bed.client("rw").await;
        let max = 32usize << 20;
        let mut data = vec![3; max];
        data[..SIZE].fill(5);
        let several: Vec<_> = (0..3)
            .map(|_| {
                let (c, data) = (c.clone(), data.clone());
                bed.rt.spawn(async move { c.write(0, &data, 0).await })
            })
            .collect();
        for s in several {
            assert_eq!(s.await, Some(Ok(())));
        }
        let got = c.read(0, max as u32, 0).await.expect("read");
        assert!(got[..SIZE].iter().all(|&b| b == 5) && got[SIZE..].iter().all(|&b| b == 0));
        assert_eq!(c.read(0, max as u32 + 512, 0).await, Err(NO(Errno::Inval)));
        data.resize(max + 512, 1);
        assert_eq!(c.write(0, &data, 0).await, Err(NO(Errno::Inval)));
        assert_eq!(
            c.read(0, 512, 0).await,
            Ok(vec![5; 512]),
            "its payload was skipped, the connection goes on"
        );
        data.resize(2 * max + 512, 1);
        assert_eq!(c.write(0, &data, 0).await, Err(ClientError::Closed), "not one that is absurd");
    });
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let limits = Limits { max_connections: 2, ..Limits::default() };
    run(5, limits, |bed| async move {
        let first = bed.client("rw").await;
        let _second = bed.client("rw").await;
        let third = bed.try_client("rw", Default::default()).await.err();
        assert_eq!(third, Some(ClientError::Closed));
        assert_eq!((bed.server.status().connections, bed.server.status().refused), (2, 1));
        first.disconnect();
        bed.sleep(10).await;
        bed.client("rw").await.flush().await.expect("room again");
    });
}

#[test]
fn shutdown_lets_requests_end_and_takes_no_new_ones() {
    run(6, Limits::default(), |bed| async move {
        let (c, idle) = (bed.client("rw").await, bed.client("ro").await);
        let slow = bed.rt.spawn({
            let c = c.clone();
            async move { c.read(SLOW, 512, 0).await }
        });
        let _in_handshake = bed.raw(3).await;
        bed.sleep(10).await;
        let stop = bed.rt.spawn({
            let s = bed.server.clone();
            async move { s.shutdown(Duration::from_secs(5)).await }
        });
        bed.sleep(10).await;
        assert_eq!(idle.flush().await, Err(ClientError::Closed));
        let late = bed.rt.spawn({
            let c = c.clone();
            async move { c.flush().await }
        });
        assert_eq!(slow.await, Some(Ok(vec![0; 512])), "it was in flight");
        assert_eq!(late.await, Some(Err(ClientError::Closed)));
        assert_eq!(stop.await, Some(true));
        assert_eq!(bed.try_client("rw", Default::default()).await.err(), Some(ClientError::Closed));
    });
}

#[test]
fn shutdown_does_not_wait_for_ever() {
    run(7, Limits::default(), |bed| async move {
        let c: Client = bed.client("rw").await;
        bed.exports.rw.0.stuck.set(true);
        let stuck = bed.rt.spawn(async move { c.flush().await });
        bed.sleep(10).await;
        let start = bed.rt.now();
        assert!(!bed.server.shutdown(Duration::from_secs(3)).await);
        assert!(bed.rt.now().since(start) < Duration::from_secs(5));
        assert_eq!(stuck.await, Some(Err(ClientError::Closed)));
    });
}
