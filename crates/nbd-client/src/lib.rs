//! A small NBD client over the seam: for the tests of the server, and for the simulation of the
//! whole engine. No product contains it.
//!
//! A [`Client`] is a handle; clones share the connection. Each call sends one request and waits for
//! its reply, so concurrent requests are concurrent calls. [`Client::negotiate`] is its handshake.
//! A test that wants to send what no good client sends speaks every byte by a [`Connection`].

mod connection;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::SliceList;
use nbd::codec::option::{self, GREETING, REPLY, hello, info, opt, rep};
use nbd::codec::reply::{ChunkBody, ReplyHead};
use nbd::codec::request::{Command, Request};
use nbd::codec::{Errno, MAX_PAYLOAD};
use rt::sync::{Channel, OneShotSender, oneshot};
use rt::{Rt, SocketId};

pub use connection::{Connection, Disconnected, Receiver};

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection is gone; whether the request was carried out is unknown.
    #[error("connection closed")]
    Closed,
    /// The server answered with an error.
    #[error("{0}")]
    Errno(#[from] Errno),
    /// The server refused an option, with this reply type.
    #[error("option refused: {0:#x}")]
    Refused(u32),
    /// The server broke the protocol.
    #[error("protocol: {0}")]
    Protocol(&'static str),
}

impl From<Disconnected> for ClientError {
    fn from(_: Disconnected) -> ClientError {
        ClientError::Closed
    }
}

/// The options that the client asks for in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation`; needs structured replies.
    pub block_status: bool,
    /// EXPORT_NAME instead of GO, as old clients do.
    pub export_name: bool,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions { structured: true, block_status: true, export_name: false }
    }
}

/// The properties of the export, as the server told them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Negotiated {
    /// The size of the export at the handshake.
    pub size_bytes: u64,
    /// Transmission flags, of [`option::transmit`].
    pub flags: u16,
    /// Smallest, preferred and largest request, if the server said.
    pub block_sizes: Option<[u32; 3]>,
}

/// The body of an answer, besides an error.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Body {
    Nothing,
    Data(Vec<u8>),
    Extents(Vec<(u32, u32)>),
}

struct Pending {
    request: Request,
    /// The body that chunks have brought so far.
    body: Body,
    error: Option<Errno>,
    /// The number of bytes of a READ that chunks have brought.
    got: u64,
    done: OneShotSender<Result<Body, ClientError>>,
}

struct State {
    connection: Connection,
    outbox: Channel<SliceList>,
    pending: RefCell<BTreeMap<u64, Pending>>,
    next_cookie: Cell<u64>,
    info: Negotiated,
}

/// A connection that has an export open.
#[derive(Clone)]
pub struct Client(Rc<State>);

impl Client {
    /// Opens an export over a connected socket, which the client closes in any case.
    pub async fn negotiate(
        rt: &Rt,
        socket: SocketId,
        export: &str,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        let connection = Connection::new(rt, socket);
        let mut receiver = Receiver::new(&connection);
        let info = match haggle(&connection, &mut receiver, export, options).await {
            Ok(info) => info,
            Err(e) => {
                connection.close();
                return Err(e);
            }
        };
        let state = Rc::new(State {
            connection,
            outbox: Channel::new(),
            pending: RefCell::new(BTreeMap::new()),
            next_cookie: Cell::new(1),
            info,
        });
        let sender = state.clone();
        rt.detach(async move { sender.send().await });
        let s = state.clone();
        rt.detach(async move {
            let why = s.replies(&mut receiver).await.err().unwrap_or(ClientError::Closed);
            s.connection.close();
            s.outbox.close();
            let pending = s.pending.take();
            pending.into_values().for_each(|p| p.done.send(Err(why)));
        });
        Ok(Client(state))
    }

    /// Returns the properties of the export, as the server told them.
    pub fn info(&self) -> Negotiated {
        self.0.info
    }

    /// Sends any request, with any payload, and waits for its reply.
    async fn call(
        &self,
        command: Command,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> Result<Body, ClientError> {
        let s = &self.0;
        if s.connection.is_closed() {
            return Err(ClientError::Closed);
        }
        let cookie = s.next_cookie.get();
        s.next_cookie.set(cookie + 1);
        let request = Request { flags, command, cookie, offset, len };
        let (done, answer) = oneshot();
        let body = if command == Command::Read { Body::Data(Vec::new()) } else { Body::Nothing };
        s.pending.borrow_mut().insert(cookie, Pending { request, body, error: None, got: 0, done });
        let mut message = s.connection.copy_of(&request.encode());
        message.extend(s.connection.copy_of(data));
        s.outbox.send(message);
        answer.await.unwrap_or(Err(ClientError::Closed))
    }

    /// Reads `len` bytes.
    pub async fn read(&self, offset: u64, len: u32, flags: u16) -> Result<Vec<u8>, ClientError> {
        match self.call(Command::Read, flags, offset, len, &[]).await? {
            Body::Data(data) => Ok(data),
            _ => Err(ClientError::Protocol("a read without data")),
        }
    }

    /// Writes `data`.
    pub async fn write(&self, offset: u64, data: &[u8], flags: u16) -> Result<(), ClientError> {
        self.call(Command::Write, flags, offset, data.len() as u32, data).await.map(|_| ())
    }

    /// Flushes.
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.call(Command::Flush, 0, 0, 0, &[]).await.map(|_| ())
    }

    /// Sends TRIM, CACHE, WRITE_ZEROES or any other request without payload.
    pub async fn command(
        &self,
        command: Command,
        offset: u64,
        len: u32,
        flags: u16,
    ) -> Result<(), ClientError> {
        self.call(command, flags, offset, len, &[]).await.map(|_| ())
    }

    /// The extents (length, flags) of a range.
    pub async fn block_status(
        &self,
        offset: u64,
        len: u32,
        flags: u16,
    ) -> Result<Vec<(u32, u32)>, ClientError> {
        match self.call(Command::BlockStatus, flags, offset, len, &[]).await? {
            Body::Extents(e) => Ok(e),
            _ => Err(ClientError::Protocol("a block status without extents")),
        }
    }

    /// Takes leave as the protocol asks: the server closes when everything is answered.
    pub fn disconnect(&self) {
        let request = Request { flags: 0, command: Command::Disc, cookie: 0, offset: 0, len: 0 };
        self.0.outbox.send(self.0.connection.copy_of(&request.encode()));
    }

    /// Vanishes: the socket is closed at once, calls fail.
    pub fn vanish(&self) {
        self.0.connection.close();
    }
}

impl State {
    /// Sends requests, as many together as there are, until the connection ends.
    async fn send(&self) {
        while let Some(mut requests) = self.outbox.recv().await {
            while let Some(next) = self.outbox.try_recv() {
                requests.extend(next);
            }
            if self.connection.send(requests).await.is_err() {
                self.connection.close();
            }
        }
    }

    /// Takes replies until the connection ends.
    async fn replies(&self, receiver: &mut Receiver) -> Result<(), ClientError> {
        loop {
            let bad = |_| ClientError::Protocol("bad magic");
            let Some((head, n)) = ReplyHead::decode(receiver.data()).map_err(bad)? else {
                receiver.more().await?;
                continue;
            };
            receiver.consume(n);
            match head {
                ReplyHead::Simple { cookie, error } => {
                    let mut p = self.take(cookie)?;
                    if let (Body::Data(data), None) = (&mut p.body, error) {
                        *data = payload(receiver, p.request.len).await?;
                    }
                    p.done.send(match error {
                        None => Ok(p.body),
                        Some(e) => Err(e.into()),
                    });
                }
                ReplyHead::Chunk { cookie, done, kind, len } => {
                    let bytes = payload(receiver, len).await?;
                    let mut p = self.take(cookie)?;
                    let body = ChunkBody::decode(kind, &bytes)
                        .ok_or(ClientError::Protocol("malformed chunk"))?;
                    p.take_in(body)?;
                    if done {
                        p.finish()?;
                    } else {
                        self.pending.borrow_mut().insert(cookie, p);
                    }
                }
            }
        }
    }

    fn take(&self, cookie: u64) -> Result<Pending, ClientError> {
        self.pending
            .borrow_mut()
            .remove(&cookie)
            .ok_or(ClientError::Protocol("a reply to no request"))
    }
}

impl Pending {
    fn take_in(&mut self, chunk: ChunkBody<'_>) -> Result<(), ClientError> {
        let r = self.request;
        match (chunk, &mut self.body) {
            (ChunkBody::None, _) => {}
            (ChunkBody::Error(e), _) => self.error = Some(e),
            (ChunkBody::Data(offset, bytes), Body::Data(data)) => {
                place(data, r, offset, bytes.len() as u64)?.copy_from_slice(bytes);
                self.got += bytes.len() as u64;
            }
            (ChunkBody::Hole(offset, len), Body::Data(data)) => {
                place(data, r, offset, u64::from(len))?.fill(0);
                self.got += u64::from(len);
            }
            (ChunkBody::BlockStatus(_, extents), body) if r.command == Command::BlockStatus => {
                *body = Body::Extents(extents);
            }
            _ => return Err(ClientError::Protocol("a chunk that does not belong to its request")),
        }
        Ok(())
    }

    fn finish(self) -> Result<(), ClientError> {
        let short = matches!(self.body, Body::Data(_)) && self.got != u64::from(self.request.len);
        if self.error.is_none() && short {
            return Err(ClientError::Protocol("a read that is not complete"));
        }
        self.done.send(self.error.map_or(Ok(self.body), |e| Err(e.into())));
        Ok(())
    }
}

/// Returns the part of a read's data to which a chunk belongs.
fn place(data: &mut Vec<u8>, r: Request, offset: u64, len: u64) -> Result<&mut [u8], ClientError> {
    data.resize(r.len as usize, 0);
    let start = offset.checked_sub(r.offset);
    start
        .and_then(|start| data.get_mut(start as usize..start.checked_add(len)? as usize))
        .ok_or(ClientError::Protocol("a chunk outside of its request"))
}

/// Bytes that follow a header.
async fn payload(receiver: &mut Receiver, len: u32) -> Result<Vec<u8>, ClientError> {
    if len > MAX_PAYLOAD + 8 {
        return Err(ClientError::Protocol("a reply of absurd length"));
    }
    Ok(receiver.take(len as usize).await?)
}

/// The handshake.
async fn haggle(
    connection: &Connection,
    receiver: &mut Receiver,
    export: &str,
    options: ClientOptions,
) -> Result<Negotiated, ClientError> {
    let bad = |_| ClientError::Protocol("bad magic");
    receiver.at_least(GREETING).await?;
    let greeting = receiver.data().first_chunk().ok_or(ClientError::Closed)?;
    let offered = option::parse_greeting(greeting).map_err(bad)?;
    receiver.consume(GREETING);
    if offered & hello::FIXED_NEWSTYLE == 0 {
        return Err(ClientError::Protocol("not fixed newstyle"));
    }
    let flags = u32::from(offered & (hello::FIXED_NEWSTYLE | hello::NO_ZEROES));
    let send = async |bytes: &[u8]| connection.send(connection.copy_of(bytes)).await;
    send(&flags.to_be_bytes()).await?;
    let mut info = Negotiated::default();
    let mut ask = Vec::new();
    if options.structured {
        option::put_option(&mut ask, opt::STRUCTURED_REPLY, &[]);
        send(&ask).await?;
        answers(receiver, opt::STRUCTURED_REPLY, &mut info).await?;
    }
    if options.structured && options.block_status {
        ask.clear();
        option::put_option(
            &mut ask,
            opt::SET_META_CONTEXT,
            &option::meta_request(export, &["base:allocation"]),
        );
        send(&ask).await?;
        answers(receiver, opt::SET_META_CONTEXT, &mut info).await?;
    }
    ask.clear();
    if options.export_name {
        option::put_option(&mut ask, opt::EXPORT_NAME, export.as_bytes());
        send(&ask).await?;
        let len = if offered & hello::NO_ZEROES != 0 { 10 } else { 134 };
        info.read_export(&receiver.take(len).await?).ok_or(ClientError::Closed)?;
    } else {
        option::put_option(&mut ask, opt::GO, &option::info_request(export, &[info::BLOCK_SIZE]));
        send(&ask).await?;
        answers(receiver, opt::GO, &mut info).await?;
    }
    Ok(info)
}

/// Takes the replies to an option up to the last one.
async fn answers(
    receiver: &mut Receiver,
    option: u32,
    info: &mut Negotiated,
) -> Result<(), ClientError> {
    loop {
        receiver.at_least(REPLY).await?;
        let head = receiver.data().first_chunk().ok_or(ClientError::Closed)?;
        let (to, kind, len) =
            option::parse_reply(head).map_err(|_| ClientError::Protocol("bad magic"))?;
        receiver.consume(REPLY);
        let data = payload(receiver, len).await?;
        match kind {
            _ if to != option => return Err(ClientError::Protocol("a reply to another option")),
            rep::ACK => return Ok(()),
            rep::INFO => info.read_info(&data).ok_or(ClientError::Protocol("malformed info"))?,
            kind if kind & rep::ERR != 0 => return Err(ClientError::Refused(kind)),
            _ => {}
        }
    }
}

impl Negotiated {
    fn read_export(&mut self, mut bytes: &[u8]) -> Option<()> {
        self.size_bytes = u64::from_be_bytes(next(&mut bytes)?);
        self.flags = u16::from_be_bytes(next(&mut bytes)?);
        Some(())
    }

    fn read_info(&mut self, mut bytes: &[u8]) -> Option<()> {
        match u16::from_be_bytes(next(&mut bytes)?) {
            info::EXPORT => self.read_export(bytes)?,
            info::BLOCK_SIZE => {
                let mut size = || Some(u32::from_be_bytes(next(&mut bytes)?));
                self.block_sizes = Some([size()?, size()?, size()?]);
            }
            _ => {}
        }
        Some(())
    }
}

/// Takes the next bytes; `None` where they end too early.
fn next<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}
