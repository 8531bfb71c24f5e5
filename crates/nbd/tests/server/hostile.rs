//! Clients that vanish, stand still, or speak nonsense: they cost nothing, and no other client
//! notices.

use base::Duration;

use super::{Bed, Raw, SLOW, run, smooth};
use nbd::Limits;
use nbd::codec::option::{info_request, opt};
use nbd::codec::request::{Command, Request};
use nbd_client::Connection;

async fn into_transmission(bed: &Bed) -> Raw {
    let mut raw = bed.raw(3).await;
    raw.option(opt::GO, &info_request("rw", &[])).await;
    raw
}

fn header(command: Command, offset: u64, len: u32) -> [u8; 28] {
    Request { flags: 0, command, cookie: 1, offset, len }.encode()
}

/// All that a client used has come back.
async fn assert_clean(bed: &Bed) {
    bed.quiet().await;
    let s = bed.server.status();
    assert_eq!((s.connections, s.requests, s.payload_bytes), (0, 0, 0));
}

#[test]
fn a_client_may_vanish_at_every_byte_of_a_session() {
    let mut session = Vec::new();
    session.extend_from_slice(&3u32.to_be_bytes());
    nbd::codec::option::put_option(&mut session, opt::STRUCTURED_REPLY, &[]);
    nbd::codec::option::put_option(&mut session, opt::GO, &info_request("rw", &[3]));
    session.extend_from_slice(&header(Command::Read, 0, 8192));
    session.extend_from_slice(&header(Command::Write, 0, 1024));
    session.extend_from_slice(&[1; 1024]);
    session.extend_from_slice(&header(Command::Read, SLOW, 512));
    run(1, Limits::default(), |bed| async move {
        for cut in (0..session.len()).step_by(7) {
            let connection = Connection::new(&bed.rt, bed.connect());
            connection.send(connection.copy_of(&session[..cut])).await.expect("sent");
            if cut % 2 == 0 {
                bed.sleep(cut as u64 % 3).await;
            }
            connection.close();
            assert_clean(&bed).await;
        }
    });
}

#[test]
fn a_client_may_vanish_in_the_middle_of_a_large_payload() {
    run(2, Limits::default(), |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        for reset in [true, false] {
            let socket = bed.connect();
            let mut raw = Raw::new(Connection::new(&bed.rt, socket));
            raw.expect(18).await;
            raw.send(&3u32.to_be_bytes()).await;
            raw.option(opt::GO, &info_request("rw", &[])).await;
            raw.send(&header(Command::Write, 0, 32 << 20)).await;
            raw.send(&vec![1; 1 << 20]).await;
            bed.sleep(5).await;
            assert_eq!(bed.server.status().payload_bytes, 32 << 20);
            if reset {
                bed.world.reset(socket);
            }
            raw.connection.close();
            assert_clean(&bed).await;
        }
        let bytes = bed.exports.rw.0.bytes.borrow();
        assert!(bytes.iter().all(|&b| b == 0), "half a payload was written");
    });
}

#[test]
fn garbage_after_the_handshake_ends_the_connection_only() {
    run(3, Limits::default(), |bed| async move {
        let good = bed.client("rw").await;
        let mut raw = into_transmission(&bed).await;
        raw.send(&header(Command::Read, SLOW, 512)).await;
        raw.send(&[0xAA; 100]).await;
        assert!(raw.end().await.is_empty(), "closed at once");
        assert_eq!(good.flush().await, Ok(()));
    });
}

#[test]
fn who_stands_still_is_closed_when_others_wait() {
    let limits =
        Limits { max_payload_bytes: 0, stall_timeout: Duration::from_secs(5), ..Limits::default() };
    run(4, limits, |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        // All bytes are taken by a payload that does not come.
        let mut lazy = into_transmission(&bed).await;
        lazy.send(&header(Command::Write, 0, 32 << 20)).await;
        let good = bed.client("rw").await;
        let start = bed.rt.now();
        assert_eq!(good.read(0, 512, 0).await, Ok(vec![0; 512]));
        let waited = bed.rt.now().since(start);
        assert!(waited > Duration::from_secs(4) && waited < Duration::from_secs(11), "{waited:?}");
        assert!(lazy.end().await.is_empty());
        // The same by replies that are not read.
        let mut lazy = into_transmission(&bed).await;
        lazy.send(&header(Command::Read, 0, 32 << 20)).await;
        bed.sleep(100).await;
        assert_eq!(good.write(0, &vec![1; 65536], 0).await, Ok(()));
        lazy.end().await;
        assert_eq!(bed.server.status().stalled, 2);
        // With no other waiting, one may stand still.
        let lazy = into_transmission(&bed).await;
        lazy.send(&header(Command::Write, 0, 65536)).await;
        bed.sleep(60_000).await;
        lazy.send(&vec![1; 65536]).await;
        bed.sleep(10).await;
        assert_eq!(bed.server.status().requests, 0);
        assert!(!lazy.connection.is_closed());
        lazy.connection.close();
    });
}

#[test]
fn clients_of_one_export_that_read_nothing_leave_bytes_to_another() {
    run(8, Limits::default(), |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        let good = bed.client("ro").await;
        let lazy = into_transmission(&bed).await;
        lazy.send(&header(Command::Read, 0, 1 << 20).repeat(100)).await;
        bed.sleep(1000).await;
        let taken = bed.server.status().payload_bytes;
        assert!((50 << 20..60 << 20).contains(&taken), "{taken}");
        let start = bed.rt.now();
        for _ in 0..100 {
            assert_eq!(good.read(0, 65536, 0).await, Ok(vec![0; 65536]));
        }
        let waited = bed.rt.now().since(start);
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        lazy.connection.close();
    });
}

#[test]
fn who_is_slow_is_not_closed_though_others_wait() {
    let limits =
        Limits { max_payload_bytes: 0, stall_timeout: Duration::from_secs(5), ..Limits::default() };
    run(6, limits, |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        let good = bed.client("rw").await;
        // 4 Mbit/s: more than a minute for the largest request.
        let part = vec![1; 64 << 10];
        let mut slow = into_transmission(&bed).await;
        slow.send(&header(Command::Write, 0, 32 << 20)).await;
        bed.sleep(10).await;
        let waiting = bed.rt.spawn({
            let good = good.clone();
            async move { good.read(0, 512, 0).await }
        });
        for _ in 0..512 {
            bed.sleep(131).await;
            slow.send(&part).await;
        }
        assert_eq!(waiting.await, Some(Ok(vec![1; 512])));
        assert_eq!(slow.expect(16).await[4..8], [0; 4]);
        slow.send(&header(Command::Read, 0, 32 << 20)).await;
        bed.sleep(100).await;
        let waiting = bed.rt.spawn(async move { good.write(0, &vec![2; 65536], 0).await });
        slow.expect(16).await;
        for _ in 0..512 {
            bed.sleep(131).await;
            slow.expect(64 << 10).await;
        }
        assert_eq!(waiting.await, Some(Ok(())));
        assert_eq!(bed.server.status().stalled, 0);
        slow.connection.close();
    });
}

#[test]
fn a_trickle_is_no_progress() {
    let limits =
        Limits { max_payload_bytes: 0, stall_timeout: Duration::from_secs(5), ..Limits::default() };
    run(7, limits, |bed| async move {
        smooth(&bed);
        bed.exports.rw.0.size.set(1 << 30);
        let good = bed.client("rw").await;
        for command in [Command::Write, Command::Read] {
            let mut lazy = into_transmission(&bed).await;
            lazy.send(&header(command, 0, 32 << 20)).await;
            bed.sleep(100).await;
            let connection = lazy.connection.clone();
            let trickling = bed.rt.spawn({
                let bed = bed.clone();
                async move {
                    // 4 KiB a second.
                    while !lazy.connection.is_closed() && bed.server.status().connections == 2 {
                        bed.sleep(1000).await;
                        match command {
                            Command::Write => lazy.send(&[1; 4096]).await,
                            _ => drop(
                                lazy.receiver
                                    .at_least(4096)
                                    .await
                                    .map(|()| lazy.receiver.consume(4096)),
                            ),
                        }
                    }
                }
            });
            let start = bed.rt.now();
            assert_eq!(good.read(0, 512, 0).await, Ok(vec![0; 512]));
            let waited = bed.rt.now().since(start);
            assert!(
                waited > Duration::from_secs(4) && waited < Duration::from_secs(11),
                "{command:?}: {waited:?}"
            );
            trickling.await;
            connection.close();
        }
        assert_eq!(bed.server.status().stalled, 2);
    });
}

#[test]
fn a_client_that_reads_nothing_is_not_read_for_ever() {
    let limits = Limits { max_in_flight_requests: 8, ..Limits::default() };
    run(5, limits, |bed| async move {
        let raw = into_transmission(&bed).await;
        // More than the wire and the server hold; the sender waits at the wire.
        let flood: Vec<u8> = header(Command::Read, 0, 65536).repeat(100_000);
        let sending = bed.rt.spawn(async move {
            raw.send(&flood).await;
        });
        bed.sleep(1000).await;
        let s = bed.server.status();
        assert_eq!(s.requests, 8);
        assert!(s.payload_bytes <= 8 * 65536, "{s:?}");
        assert!(bed.rt.bufs().outstanding() < 16 << 20);
        assert!(bed.server.shutdown(Duration::from_secs(1)).await, "closed, and then all ended");
        assert_eq!(sending.await, Some(()));
    });
}
