//! Cases on sockets.

use base::{BufList, Duration, IoError, Slice, SliceList};
use rt::{Op, Payload, Rt, SocketId};

use crate::harness::{Case, Harness, on, pattern};

/// The cases on sockets.
pub const CASES: &[Case] = &[
    ("a connection carries bytes both ways", both_ways),
    ("an accept waits for its connection", accept_waits),
    ("large transfers both ways at once", large_transfers),
    ("a send of very many pieces", many_pieces),
    ("a receive returns the bytes that are there, and writes them behind `start`", partial_receive),
    ("a filling receive waits for all bytes", fill_waits),
    ("a receive at the end of the stream returns 0", end_of_stream),
    ("a send to a peer that is gone is an error", peer_gone),
    ("a close ends a pending receive", close_ends_recv),
    ("a close ends a pending send", close_ends_send),
    ("a close ends a pending accept", close_ends_accept),
    ("connections come and go", come_and_go),
    ("an unknown socket is an error", unknown_socket),
];

async fn accept(rt: &Rt, listener: SocketId) -> Result<SocketId, IoError> {
    let done = rt.op(Op::Accept { listener }).await;
    match (done.result, done.payload) {
        (Ok(_), Payload::Socket(socket)) => Ok(socket),
        (Ok(_), other) => panic!("an accept returned {other:?}"),
        (Err(e), _) => Err(e),
    }
}

async fn send_all(rt: &Rt, socket: SocketId, bytes: &[u8]) -> Result<(), IoError> {
    for part in bytes.chunks(1 << 20) {
        let whole = rt.bufs().copy_of(part).freeze();
        let mut at = 0;
        while at < part.len() {
            let data = SliceList::from_iter([whole.slice(at, part.len() - at)]);
            let n = rt.op(Op::Send { socket, data }).await.result? as usize;
            assert!(n > 0 && n <= part.len() - at, "sent {n} of {}", part.len() - at);
            at += n;
        }
    }
    Ok(())
}

async fn recv_once(
    rt: &Rt,
    socket: SocketId,
    len: usize,
    start: usize,
    fill: bool,
) -> Result<Vec<u8>, IoError> {
    let mut buf = rt.bufs().take(len);
    buf.fill(0xEE);
    let done = rt.op(Op::Recv { socket, buf: BufList::from_iter([buf]), start, fill }).await;
    let n = done.result? as usize;
    let bufs = done.into_bufs();
    assert!(start + n <= bufs[0].len(), "received {n} into {}", len - start);
    assert!(
        bufs[0][..start].iter().all(|&b| b == 0xEE),
        "the bytes before the start are untouched"
    );
    Ok(bufs[0][start..start + n].to_vec())
}

/// Receives `len` bytes, fewer only at the end of the stream.
async fn recv_all(rt: &Rt, socket: SocketId, len: usize, fill: bool) -> Result<Vec<u8>, IoError> {
    let mut out = Vec::new();
    while out.len() < len {
        let got = recv_once(rt, socket, (len - out.len()).min(1 << 20), 0, fill).await?;
        if got.is_empty() {
            break;
        }
        out.extend_from_slice(&got);
    }
    Ok(out)
}

async fn close(rt: &Rt, socket: SocketId) {
    let done = rt.op(Op::Close { socket }).await;
    assert!(done.result.is_ok(), "close: {:?}", done.result);
}

/// The server's end and the client's end of a connection.
fn pair(h: &mut dyn Harness) -> (Rt, SocketId, SocketId) {
    let (rt, listener) = (h.rt(), h.listener());
    let client = h.connect(listener);
    let r = rt.clone();
    let server = on(&rt, async move { accept(&r, listener).await });
    (rt, server.unwrap_or_else(|e| panic!("accept: {e}")), client)
}

fn both_ways(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        assert_ne!(server, client);
        for (from, to, text) in [(client, server, b"question"), (server, client, b"answer!!")] {
            assert_eq!(send_all(&r, from, text).await, Ok(()));
            assert_eq!(recv_all(&r, to, text.len(), false).await, Ok(text.to_vec()));
        }
    });
}

fn accept_waits(h: &mut dyn Harness) {
    let (rt, listener) = (h.rt(), h.listener());
    let r = rt.clone();
    let accepting = rt.spawn({
        let r = rt.clone();
        async move { accept(&r, listener).await }
    });
    // Let the accept reach the backend before there is a connection to accept.
    on(&rt, {
        let r = rt.clone();
        async move { r.sleep(Duration::from_millis(5)).await }
    });
    let client = h.connect(listener);
    on(&rt, async move {
        let Some(Ok(server)) = accepting.await else { panic!("not accepted") };
        assert_eq!(send_all(&r, client, b"hello").await, Ok(()));
        assert_eq!(recv_all(&r, server, 5, true).await, Ok(b"hello".to_vec()));
    });
}

fn large_transfers(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        const LEN: usize = 8 << 20;
        let senders = [(client, 1), (server, 2)].map(|(socket, seed)| {
            let r2 = r.clone();
            r.spawn(async move { send_all(&r2, socket, &pattern(seed, LEN)).await })
        });
        let receivers = [(server, 1, true), (client, 2, false)].map(|(socket, seed, fill)| {
            let r2 = r.clone();
            r.spawn(async move {
                recv_all(&r2, socket, LEN, fill).await.map(|got| got == pattern(seed, LEN))
            })
        });
        for sender in senders {
            assert_eq!(sender.await, Some(Ok(())));
        }
        for receiver in receivers {
            assert_eq!(receiver.await, Some(Ok(true)), "received what was sent");
        }
    });
}

fn many_pieces(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        let bytes = pattern(4, 21_000);
        let whole = r.bufs().copy_of(&bytes).freeze();
        let mut pieces: Vec<Slice> = (0..3000).map(|i| whole.slice(i * 7, 7)).collect();
        let r2 = r.clone();
        let receiver = r.spawn(async move { recv_all(&r2, server, 21_000, true).await });
        while !pieces.is_empty() {
            let done =
                r.op(Op::Send { socket: client, data: pieces.iter().cloned().collect() }).await;
            let mut n = done.result.unwrap_or_else(|e| panic!("send: {e}")) as usize;
            assert!(n > 0);
            while n > 0 {
                let first = pieces.remove(0);
                if n < first.len() {
                    pieces.insert(0, first.slice(n, first.len() - n));
                }
                n = n.saturating_sub(first.len());
            }
        }
        assert_eq!(receiver.await, Some(Ok(bytes)));
    });
}

fn partial_receive(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        assert_eq!(send_all(&r, client, b"abc").await, Ok(()));
        let got = recv_once(&r, server, 4096, 100, false).await;
        assert!(matches!(&got, Ok(g) if !g.is_empty() && b"abc".starts_with(g)), "{got:?}");
    });
}

fn fill_waits(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        let bytes = pattern(6, 10_000);
        let (r2, sent) = (r.clone(), bytes.clone());
        let sender = r.spawn(async move {
            for part in sent.chunks(999) {
                assert_eq!(send_all(&r2, client, part).await, Ok(()));
                r2.sleep(Duration::from_millis(1)).await;
            }
        });
        let got = recv_once(&r, server, 10_028, 28, true).await;
        assert!(got == Ok(bytes), "one receive returned all bytes");
        sender.await;
    });
}

fn end_of_stream(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        assert_eq!(send_all(&r, client, b"the last words").await, Ok(()));
        close(&r, client).await;
        assert_eq!(recv_all(&r, server, 4096, true).await, Ok(b"the last words".to_vec()));
        assert_eq!(recv_once(&r, server, 4096, 0, false).await, Ok(Vec::new()));
        assert_eq!(recv_once(&r, server, 4096, 0, true).await, Ok(Vec::new()));
    });
}

fn peer_gone(h: &mut dyn Harness) {
    let (rt, server, client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        close(&r, client).await;
        // A network may accept some bytes before it learns that the peer is gone.
        for _ in 0..1000 {
            if send_all(&r, server, &[1; 4096]).await.is_err() {
                return;
            }
            r.sleep(Duration::from_millis(1)).await;
        }
        panic!("sends to a peer that is gone go on succeeding");
    });
}

fn close_ends_recv(h: &mut dyn Harness) {
    let (rt, server, _client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        for fill in [false, true] {
            let r2 = r.clone();
            drop(r.spawn(async move { recv_once(&r2, server, 4096, 0, fill).await }));
        }
        let r2 = r.clone();
        let receiver = r.spawn(async move { recv_once(&r2, server, 4096, 0, false).await });
        r.sleep(Duration::from_millis(5)).await;
        close(&r, server).await;
        let got = receiver.await;
        assert!(matches!(&got, Some(Err(_))) || got == Some(Ok(Vec::new())), "{got:?}");
        assert_eq!(r.bufs().outstanding(), 0, "all three have completed");
    });
}

fn close_ends_send(h: &mut dyn Harness) {
    let (rt, server, _client) = pair(h);
    let r = rt.clone();
    on(&rt, async move {
        let r2 = r.clone();
        // This is far more than any socket buffers, and nothing reads it.
        let sender = r.spawn(async move { send_all(&r2, server, &pattern(8, 64 << 20)).await });
        r.sleep(Duration::from_millis(50)).await;
        close(&r, server).await;
        assert!(matches!(sender.await, Some(Err(_))));
    });
}

fn close_ends_accept(h: &mut dyn Harness) {
    let (rt, listener) = (h.rt(), h.listener());
    let r = rt.clone();
    on(&rt, async move {
        let r2 = r.clone();
        let accepting = r.spawn(async move { accept(&r2, listener).await });
        r.sleep(Duration::from_millis(5)).await;
        close(&r, listener).await;
        assert!(matches!(accepting.await, Some(Err(_))));
    });
}

fn come_and_go(h: &mut dyn Harness) {
    let (rt, listener) = (h.rt(), h.listener());
    for round in 0..50u64 {
        let client = h.connect(listener);
        let r = rt.clone();
        on(&rt, async move {
            let server = accept(&r, listener).await.unwrap_or_else(|e| panic!("accept: {e}"));
            let r2 = r.clone();
            let echo = r.spawn(async move {
                let got = recv_all(&r2, server, 5000, true).await?;
                send_all(&r2, server, &got).await?;
                close(&r2, server).await;
                Ok::<_, IoError>(())
            });
            assert_eq!(send_all(&r, client, &pattern(round, 5000)).await, Ok(()));
            let got = recv_all(&r, client, 6000, true).await;
            assert!(
                got == Ok(pattern(round, 5000)),
                "connection {round} got another echo than its own"
            );
            assert_eq!(echo.await, Some(Ok(())));
            close(&r, client).await;
        });
    }
}

fn unknown_socket(h: &mut dyn Harness) {
    let rt = h.rt();
    let r = rt.clone();
    let socket = SocketId(4_000_000_000);
    on(&rt, async move {
        assert!(recv_once(&r, socket, 4096, 0, false).await.is_err());
        assert!(send_all(&r, socket, b"x").await.is_err());
        assert!(accept(&r, socket).await.is_err());
        assert!(r.op(Op::Close { socket }).await.result.is_err());
        assert_eq!(r.bufs().outstanding(), 0);
    });
}
