//! The server over the simulated wire, with an export in memory that takes its time.

mod fuzz;
mod hostile;
mod negotiate;
mod secure;
mod transmit;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use base::{Duration, Slice, SliceList, VolumeId};
use nbd::codec::Errno;
use nbd::codec::option::{self, GREETING};
use nbd::{BlockStatus, Export, ExportInfo, Exports, Limits, Peer, Server, Status, ZeroOpts};
use nbd_client::{Client, ClientError, ClientOptions, Connection, Receiver};
use rt::{Order, Rt, SocketId};
use sim::{WireModel, World};

const SIZE: usize = 1 << 20;
/// What cannot be read.
const BAD: u64 = 1 << 40;
/// Reads at this offset take a second.
const SLOW: u64 = 512 * 1024;

#[derive(Clone)]
struct Memory(Rc<Inner>);

struct Inner {
    rt: Rt,
    name: &'static str,
    read_only: bool,
    /// What it pretends to have; beyond the bytes it reads as zeros.
    size: Cell<u64>,
    bytes: RefCell<Vec<u8>>,
    running: Cell<usize>,
    most: Cell<usize>,
    /// Nothing ever completes.
    stuck: Cell<bool>,
    flushes: Cell<u32>,
    /// Bytes of all requests.
    admitted: Cell<u64>,
}

impl Memory {
    fn new(rt: &Rt, name: &'static str, read_only: bool) -> Memory {
        Memory(Rc::new(Inner {
            rt: rt.clone(),
            name,
            read_only,
            size: Cell::new(SIZE as u64),
            bytes: RefCell::new(vec![0; SIZE]),
            running: Cell::new(0),
            most: Cell::new(0),
            stuck: Cell::new(false),
            flushes: Cell::new(0),
            admitted: Cell::new(0),
        }))
    }

    async fn take_time(&self, offset: u64) {
        let s = &self.0;
        s.running.set(s.running.get() + 1);
        s.most.set(s.most.get().max(s.running.get()));
        if s.stuck.get() {
            std::future::pending::<()>().await;
        }
        let time = if offset == SLOW {
            Duration::from_secs(1)
        } else {
            Duration::from_nanos(s.rt.random() % 50_000)
        };
        s.rt.sleep(time).await;
        s.running.set(s.running.get() - 1);
    }

    fn fill(&self, offset: u64, len: u64, with: u8) {
        let (start, end) = (offset as usize, (offset + len) as usize);
        let mut bytes = self.0.bytes.borrow_mut();
        let end = end.min(bytes.len());
        if start < end {
            bytes[start..end].fill(with);
        }
    }
}

impl Export for Memory {
    fn info(&self) -> ExportInfo {
        ExportInfo {
            name: self.0.name.to_owned(),
            description: format!("{} in memory", self.0.name),
            min_block: 512,
            preferred_block: 4096,
            max_block: 32 << 20,
            read_only: self.0.read_only,
        }
    }
    fn size_bytes(&self) -> u64 {
        self.0.size.get()
    }
    fn volume(&self) -> VolumeId {
        VolumeId(self.0.read_only.into())
    }
    async fn admit(&self, bytes: u64, _fills: bool) -> Memory {
        self.0.admitted.set(self.0.admitted.get() + bytes);
        self.clone()
    }
    fn rest(&self) {}
    async fn go_on(&self) {}
    async fn read(&self, offset: u64, len: u32) -> Result<SliceList, Errno> {
        self.take_time(offset).await;
        if (offset..offset + u64::from(len)).contains(&BAD) {
            return Err(Errno::Io);
        }
        let mut buf = self.0.rt.bufs().zeroed(len as usize);
        let bytes = self.0.bytes.borrow();
        let here = bytes.get(offset as usize..).unwrap_or_default();
        let n = here.len().min(len as usize);
        buf[..n].copy_from_slice(&here[..n]);
        let all = buf.freeze();
        // In several views, as an export that reads by blocks gives them.
        Ok((0..all.len()).step_by(4096).take(1000).fold(SliceList::new(), |mut list, at| {
            let end = if list.len() == 999 { all.len() } else { (at + 4096).min(all.len()) };
            list.push(all.slice(at, end - at));
            list
        }))
    }
    async fn write(&self, offset: u64, data: Slice, _fua: bool) -> Result<(), Errno> {
        assert_eq!(data.as_ptr() as usize % 4096, 0, "a payload that is not aligned");
        self.take_time(offset).await;
        let mut bytes = self.0.bytes.borrow_mut();
        let len = bytes.len();
        if let Some(to) = bytes.get_mut(offset as usize..len.min(offset as usize + data.len())) {
            let n = to.len();
            to.copy_from_slice(&data[..n]);
        }
        Ok(())
    }
    async fn flush(&self) -> Result<(), Errno> {
        self.take_time(0).await;
        self.0.flushes.set(self.0.flushes.get() + 1);
        Ok(())
    }
    async fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<(), Errno> {
        self.take_time(offset).await;
        self.fill(offset, len, 0);
        Ok(())
    }
    async fn write_zeroes(&self, offset: u64, len: u64, opts: ZeroOpts) -> Result<(), Errno> {
        self.take_time(offset).await;
        if opts.fast && opts.no_hole {
            return Err(Errno::NotSup);
        }
        self.fill(offset, len, 0);
        Ok(())
    }
    async fn cache(&self, offset: u64, _len: u64) -> Result<(), Errno> {
        self.take_time(offset).await;
        Ok(())
    }
    async fn block_status(
        &self,
        offset: u64,
        len: u64,
        max_extents: usize,
    ) -> Result<Vec<BlockStatus>, Errno> {
        self.take_time(offset).await;
        // Runs of 64 KiB, every other one a hole; the last runs beyond the range.
        let mut at = offset;
        let mut extents = Vec::new();
        while at < offset + len && extents.len() < max_extents {
            let next = (at / 65536 + 1) * 65536;
            let hole = at / 65536 % 2 == 1;
            extents.push(BlockStatus { len: next - at, hole, zero: hole });
            at = next;
        }
        Ok(extents)
    }
}

#[derive(Clone)]
struct Two {
    rw: Memory,
    ro: Memory,
}

impl Exports for Two {
    type Export = Memory;
    fn open(&self, name: &str, _peer: Option<&Peer>) -> Option<Memory> {
        match name {
            "" | "rw" => Some(self.rw.clone()),
            "ro" => Some(self.ro.clone()),
            _ => None,
        }
    }
    fn list(&self, _peer: Option<&Peer>) -> Vec<(String, String)> {
        [&self.rw, &self.ro].map(|e| (e.info().name, e.info().description)).to_vec()
    }
}

/// A world with a server in it.
#[derive(Clone)]
struct Bed {
    world: World,
    rt: Rt,
    server: Server<Two>,
    listener: SocketId,
    exports: Two,
}

/// Runs a test in a world of its own, then lets everything end and looks for what was left. The
/// hash of all that happened.
fn run<F: Future<Output = ()> + 'static>(
    seed: u64,
    limits: Limits,
    test: impl FnOnce(Bed) -> F,
) -> u64 {
    let world = World::new(seed);
    let rt = Rt::new(world.backend(), Order::Seeded(seed), 512);
    let exports = Two { rw: Memory::new(&rt, "rw", false), ro: Memory::new(&rt, "ro", true) };
    let server = Server::new(rt.clone(), exports.clone(), limits);
    let listener = world.listener();
    server.serve(listener);
    let bed = Bed { world: world.clone(), rt: rt.clone(), server, listener, exports };
    let test = test(bed.clone());
    let ended = rt.block_on(async move {
        let ended = within(&bed.rt, Duration::from_secs(3600), test).await;
        assert_eq!(ended, Some(()), "the test does not end");
        bed.rt.sleep(Duration::from_millis(10)).await;
        let stuck = bed.exports.rw.0.stuck.get();
        assert_eq!(bed.server.shutdown(Duration::from_secs(60)).await, !stuck);
        bed.rt.sleep(Duration::from_millis(10)).await;
        let left = bed.server.status();
        if !stuck {
            let none = Status { connections: 0, requests: 0, payload_bytes: 0, ..left };
            assert_eq!(left, none, "something was left");
            assert_eq!(bed.rt.bufs().outstanding(), 0, "buffers were left");
        }
    });
    assert_eq!(ended, Some(()));
    world.history_hash()
}

impl Bed {
    fn connect(&self) -> SocketId {
        self.world.connect(self.listener)
    }

    async fn client(&self, export: &str) -> Client {
        self.try_client(export, ClientOptions::default()).await.expect("a client")
    }

    async fn try_client(
        &self,
        export: &str,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        Client::negotiate(&self.rt, self.connect(), export, options).await
    }

    /// A connection of which the test speaks every byte, after the greeting.
    async fn raw(&self, client_flags: u32) -> Raw {
        let mut raw = Raw::new(Connection::new(&self.rt, self.connect()));
        raw.expect(GREETING).await;
        raw.send(&client_flags.to_be_bytes()).await;
        raw
    }

    async fn sleep(&self, ms: u64) {
        self.rt.sleep(Duration::from_millis(ms)).await;
    }

    /// Waits until no connection is left.
    async fn quiet(&self) {
        for _ in 0..10_000 {
            if self.server.status().connections == 0 {
                return;
            }
            self.sleep(10).await;
        }
        panic!("still there: {:?}", self.server.status());
    }
}

struct Raw {
    connection: Connection,
    receiver: Receiver,
}

impl Raw {
    fn new(connection: Connection) -> Raw {
        Raw { receiver: Receiver::new(&connection), connection }
    }

    async fn send(&self, bytes: &[u8]) {
        // A server that has closed does not take all: what it says before counts.
        let _ = self.connection.send(self.connection.copy_of(bytes)).await;
    }

    async fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut b = Vec::new();
        option::put_option(&mut b, option, data);
        self.send(&b).await;
        self.replies().await
    }

    /// Replies to an option, to the last one.
    async fn replies(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            let head = self.expect(option::REPLY).await;
            let (_, kind, len) =
                option::parse_reply(head.first_chunk().expect("a header")).expect("a reply");
            let data = self.expect(len as usize).await;
            all.push((kind, data));
            if kind == option::rep::ACK || kind & option::rep::ERR != 0 {
                return all;
            }
        }
    }

    async fn expect(&mut self, n: usize) -> Vec<u8> {
        self.receiver.take(n).await.expect("bytes")
    }

    /// Waits for the end of the connection; what came before it.
    async fn end(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        loop {
            got.extend_from_slice(self.receiver.data());
            let n = self.receiver.data().len();
            self.receiver.consume(n);
            if self.receiver.more().await.is_err() {
                self.connection.close();
                return got;
            }
        }
    }
}

/// The result of `future` if it comes in time.
async fn within<T>(rt: &Rt, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    rt::sync::within(&mut std::pin::pin!(future), rt.sleep(limit)).await
}

/// A wire that cuts nothing and has little latency: for much data.
fn smooth(bed: &Bed) {
    bed.world.set_wire(WireModel {
        fragments: false,
        buffer_bytes: 1 << 20,
        ..WireModel::default()
    });
}
