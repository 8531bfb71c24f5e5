//! Sessions that begin as good ones and are then damaged. Whatever comes: no panic, nothing is
//! left, and a good client beside them is served.

use base::{Duration, Prng};

use super::{Bed, run, within};
use nbd::Limits;
use nbd::codec::option::{info_request, meta_request, opt, put_option};
use nbd::codec::request::{Command, Request};
use nbd_client::{Connection, Receiver};

const COMMANDS: [Command; 9] = [
    Command::Read,
    Command::Write,
    Command::Disc,
    Command::Flush,
    Command::Trim,
    Command::Cache,
    Command::WriteZeroes,
    Command::BlockStatus,
    Command::Unknown(9),
];

fn session(rng: &mut Prng) -> Vec<u8> {
    let mut b = (rng.below(4) as u32).to_be_bytes().to_vec();
    for _ in 0..rng.below(4) {
        let name = ["", "rw", "ro", "none"][rng.below(4) as usize];
        match rng.below(6) {
            0 => put_option(&mut b, opt::LIST, &[]),
            1 | 2 => put_option(&mut b, opt::STRUCTURED_REPLY, &[]),
            3 => {
                put_option(&mut b, opt::SET_META_CONTEXT, &meta_request(name, &["base:allocation"]))
            }
            4 => put_option(&mut b, opt::INFO, &info_request(name, &[0, 1, 2, 3])),
            _ => put_option(&mut b, rng.below(14) as u32, &[0; 6]),
        }
    }
    if rng.one_in(4) {
        put_option(&mut b, opt::EXPORT_NAME, b"rw");
    } else {
        put_option(&mut b, opt::GO, &info_request("rw", &[3]));
    }
    for cookie in 0..rng.below(40) {
        // An early end only now and then.
        let command = COMMANDS[rng.below(9) as usize];
        let command =
            if command == Command::Disc && !rng.one_in(5) { Command::Read } else { command };
        let len = if rng.one_in(8) { rng.below(300_000) as u32 } else { rng.below(9) as u32 * 512 };
        let flags = if rng.one_in(4) { 1 << rng.below(6) } else { 0 };
        let r = Request { flags, command, cookie, offset: rng.below(2100) * 512, len };
        b.extend_from_slice(&r.encode());
        let at = b.len();
        b.resize(at + r.payload_len() as usize, 0x5A);
    }
    b
}

fn damage(b: &mut Vec<u8>, rng: &mut Prng) {
    // Most sessions keep their handshake, or nothing would get beyond it.
    let from = if rng.one_in(3) { 0 } else { b.len().min(200) };
    for _ in 0..rng.below(4) {
        if b.len() <= from {
            return;
        }
        let at = from + rng.below((b.len() - from) as u64) as usize;
        match rng.below(5) {
            0 => b[at] ^= 1 << rng.below(8),
            1 => b[at] = rng.next_u64() as u8,
            2 => b.truncate(at),
            3 => drop(b.drain(at..(at + rng.below(64) as usize + 1).min(b.len()))),
            _ => {
                let again: Vec<u8> = b[at..].iter().take(64).copied().collect();
                b.splice(at..at, again);
            }
        }
    }
}

async fn damaged_client(bed: Bed, seed: u64) {
    let mut rng = Prng::new(seed);
    let mut bytes = session(&mut rng);
    damage(&mut bytes, &mut rng);
    let connection = Connection::new(&bed.rt, bed.connect());
    let reads = !rng.one_in(6);
    let mut receiver = Receiver::new(&connection);
    let reading = bed.rt.spawn(async move {
        if reads {
            while receiver.more().await.is_ok() {
                let n = receiver.data().len();
                receiver.consume(n);
            }
        }
    });
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let n = if rng.one_in(2) { rest.len() } else { rng.below(rest.len() as u64) as usize + 1 };
        let data = connection.copy_of(&rest[..n]);
        rest = &rest[n..];
        // A client that does not read may find that it is not read.
        let sent = within(&bed.rt, Duration::from_secs(1), connection.send(data)).await;
        if sent != Some(Ok(())) {
            break;
        }
        if rng.one_in(4) {
            bed.rt.sleep(Duration::from_micros(rng.below(300))).await;
        }
    }
    if rng.one_in(2) {
        bed.rt.sleep(Duration::from_millis(rng.below(20))).await;
    }
    connection.close();
    reading.await;
}

fn world_of_damage(seed: u64) -> u64 {
    let limits = Limits {
        max_payload_bytes: 0,
        max_in_flight_requests: 1 + seed as usize % 9,
        ..Limits::default()
    };
    run(seed, limits, move |bed| async move {
        let bad: Vec<_> =
            (0..6).map(|i| bed.rt.spawn(damaged_client(bed.clone(), seed * 100 + i))).collect();
        let good = bed.client("ro").await;
        for i in 0..20 {
            let n = 512 * (1 + i % 5);
            assert_eq!(good.read(u64::from(i) * 512, n, 0).await, Ok(vec![0; n as usize]));
        }
        for b in bad {
            assert_eq!(b.await, Some(()));
        }
        good.disconnect();
        bed.quiet().await;
    })
}

#[test]
fn damaged_sessions_hurt_nobody() {
    for seed in 0..150 {
        world_of_damage(seed);
    }
}

#[test]
fn one_seed_is_one_history() {
    let hashes = |_| (0..5).map(world_of_damage).collect::<Vec<_>>();
    assert_eq!(hashes(1), hashes(2));
}
