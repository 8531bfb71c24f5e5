//! Tests of connections: streams cut into pieces, full buffers, ends that close and vanish.

use base::{BufList, Duration, IoError, SliceList};
use rt::{Op, Order, Payload, Rt, SocketId};
use sim::{WireModel, World};

/// A runtime, the client's end, and the server's end.
fn connected(seed: u64) -> (World, Rt, SocketId, SocketId) {
    let world = World::new(seed);
    let rt = Rt::new(world.backend(), Order::Seeded(seed), 64);
    let listener = world.listener();
    let client = world.connect(listener);
    let accept = rt.op(Op::Accept { listener });
    let done = rt.block_on(accept).expect("not killed");
    let Payload::Socket(server) = done.payload else { panic!("{done:?}") };
    (world, rt, client, server)
}

fn send(
    rt: &Rt,
    socket: SocketId,
    bytes: &[u8],
) -> impl Future<Output = Result<u64, IoError>> + use<> {
    let done =
        rt.op(Op::Send { socket, data: SliceList::from_iter([rt.bufs().copy_of(bytes).freeze()]) });
    async move { done.await.result }
}

fn recv(
    rt: &Rt,
    socket: SocketId,
    len: usize,
    fill: bool,
) -> impl Future<Output = Result<Vec<u8>, IoError>> + use<> {
    let done =
        rt.op(Op::Recv { socket, buf: BufList::from_iter([rt.bufs().take(len)]), start: 0, fill });
    async move {
        let done = done.await;
        let n = done.result? as usize;
        Ok(done.into_bufs()[0][..n].to_vec())
    }
}

#[test]
fn transfers_are_cut_at_random_and_nothing_is_lost() {
    let (mut short_sends, mut short_recvs) = (0, 0);
    for seed in 0..30 {
        let (_world, rt, client, server) = connected(seed);
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        let (r, sent) = (rt.clone(), bytes.clone());
        let sending = rt.spawn(async move {
            let (mut at, mut short) = (0, 0);
            while at < sent.len() {
                at += send(&r, client, &sent[at..]).await.expect("connected") as usize;
                short += 1;
            }
            short - 1
        });
        let r = rt.clone();
        let (got, pieces) = rt
            .block_on(async move {
                let (mut got, mut pieces) = (Vec::new(), 0);
                while got.len() < 20_000 {
                    got.extend(recv(&r, server, 32768, false).await.expect("connected"));
                    pieces += 1;
                }
                (got, pieces)
            })
            .expect("not killed");
        assert!(got == bytes);
        short_recvs += pieces - 1;
        short_sends += rt.block_on(sending).flatten().expect("done");
    }
    assert!(short_sends > 10 && short_recvs > 10, "{short_sends} {short_recvs}");
}

#[test]
fn a_sender_waits_while_nobody_receives() {
    let (world, rt, client, server) = connected(1);
    world.set_wire(WireModel { buffer_bytes: 1000, fragments: false, ..WireModel::default() });
    let r = rt.clone();
    rt.block_on(async move {
        assert_eq!(send(&r, client, &[1; 4000]).await, Ok(1000));
        let blocked = r.spawn(send(&r, client, &[2; 500]));
        let before = r.now();
        r.sleep(Duration::from_secs(1)).await;
        assert_eq!(recv(&r, server, 1000, true).await, Ok(vec![1; 1000]));
        assert_eq!(blocked.await, Some(Ok(500)));
        assert!(r.now().since(before) >= Duration::from_secs(1));
        assert_eq!(recv(&r, server, 500, true).await, Ok(vec![2; 500]));
    });
}

#[test]
fn after_a_close_sent_data_arrives_and_sends_fail() {
    let (_world, rt, client, server) = connected(2);
    let r = rt.clone();
    rt.block_on(async move {
        let n = send(&r, client, &[7; 100]).await.expect("connected") as usize;
        r.op(Op::Close { socket: client }).await.result.expect("open");
        assert_eq!(recv(&r, server, 100, true).await, Ok(vec![7; n]));
        assert_eq!(recv(&r, server, 100, false).await, Ok(vec![]));
        assert_eq!(send(&r, server, &[1]).await, Err(IoError::RESET));
        assert!(r.op(Op::Close { socket: client }).await.result.is_err(), "closed once");
    });
}

#[test]
fn a_peer_that_vanishes_resets_both_directions() {
    let (world, rt, client, server) = connected(3);
    let r = rt.clone();
    rt.block_on(async move {
        let waiting = r.spawn(recv(&r, server, 100, true));
        r.sleep(Duration::from_millis(1)).await;
        world.reset(client);
        assert_eq!(waiting.await, Some(Err(IoError::RESET)));
        assert_eq!(send(&r, server, &[1]).await, Err(IoError::RESET));
        assert_eq!(recv(&r, client, 1, false).await, Err(IoError::RESET));
    });
}

#[test]
fn a_new_boot_has_no_sockets_and_reuses_no_numbers() {
    let (world, rt, client, _server) = connected(4);
    world.power_cut();
    rt.kill();
    let rt = Rt::new(world.backend(), Order::Fifo, 64);
    assert!(world.listener().0 > client.0);
    let sent = send(&rt, client, &[1]);
    assert!(rt.block_on(sent).expect("not killed").is_err());
}
