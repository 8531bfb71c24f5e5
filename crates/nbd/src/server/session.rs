//! The task of a connection that receives: handshake, then requests. Each request runs as a task of
//! its own.

use std::cell::Cell;
use std::rc::Rc;

use base::SliceList;
use rt::{Reason, RequestClass};
use tls::Acceptor;

use super::connection::{Connection, ConnectionStatus};
use super::execute::{answer, answer_in_pieces, in_pieces, moved, payload_cost, refusal};
use super::shared::{Security, Shared, within};
use crate::codec::MAX_PAYLOAD;
use crate::codec::option::{self, GREETING, MAX_OPTION, OPTION, hello};
use crate::codec::request::{Command, HEADER, Request, Terms};
use crate::export::{Export, Exports};
use crate::handshake::{Handshake, NextStep};
use crate::receive_buffer::Receiver;
use crate::wire::Disconnected;

/// Payloads up to this size are copied out of the receive buffer; larger ones are received in
/// place.
const COPY_MAX: usize = 32 << 10;
/// The payload of a write that is refused is received and thrown away up to this size; a longer one
/// ends the connection.
const SKIP_MAX: u32 = 2 * MAX_PAYLOAD;

/// Serves the connection until its end.
pub(super) async fn run<E: Exports>(s: &Rc<Shared<E>>, c: &Rc<Connection>, security: &Security) {
    let mut receiver = Receiver::new(c.link.clone());
    let handshake = handshake(s, c, &mut receiver, security);
    let agreed = within(&s.rt, s.limits.handshake_timeout, handshake).await;
    if let Some(Ok(Some((export, terms)))) = agreed {
        // Others may have become known during its handshake.
        if !c.is_known() && !s.has_place(c.origin().way()) {
            s.note_refused(c.origin());
            c.close();
            return;
        }
        c.open.replace(Some((export.info().name, terms.read_only)));
        tell(c);
        let sender = c.clone();
        let sending = s.rt.spawn(async move { sender.outbox.run(|| sender.in_flight()).await });
        if requests(s, c, &mut receiver, &export, terms).await == End::Broken {
            c.close();
        }
        drop(receiver);
        c.drain_and_close().await;
        c.outbox.end();
        sending.await;
        tracing::debug!(connection = c.number(), "client gone");
    }
    c.close();
}

/// Says who has connected to what.
fn tell(c: &Connection) {
    let ConnectionStatus { number: connection, export, read_only, peer, .. } = c.status();
    let from = c.origin();
    let export = export.unwrap_or_default();
    match peer {
        None => tracing::debug!(connection, %from, export, read_only, "client connected"),
        Some(peer) => {
            let (tls, proof, who) = (peer.version, peer.proof.word(), peer.name().unwrap_or("?"));
            tracing::info!(
                connection,
                %from,
                export,
                read_only,
                who,
                proof,
                tls,
                "client connected"
            );
        }
    }
}

/// A handshake that counts as failed unless it is done, also where its time is over.
struct Attempt<'a>(Option<&'a Cell<u64>>);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(failed) = self.0 {
            failed.set(failed.get() + 1);
        }
    }
}

/// Begins TLS; false if that fails.
async fn secure<E: Exports>(
    s: &Shared<E>,
    c: &Connection,
    acceptor: &Acceptor,
    state: &mut Handshake,
) -> bool {
    let mut attempt = Attempt(Some(&s.handshakes_failed));
    match c.link.secure(acceptor).await {
        Ok(peer) => {
            attempt.0 = None;
            s.handshakes.set(s.handshakes.get() + 1);
            c.peer.replace(Some(peer.clone()));
            state.secured(peer);
            true
        }
        Err(why) => {
            s.tell_failed(c, format_args!("a handshake of TLS failed: {why}"));
            false
        }
    }
}

/// `None`: the client left, or was sent away.
async fn handshake<E: Exports>(
    s: &Shared<E>,
    c: &Connection,
    receiver: &mut Receiver,
    security: &Security,
) -> Result<Option<(E::Export, Terms)>, Disconnected> {
    let send = async |bytes: &[u8]| {
        let chunks =
            bytes.chunks(base::BufPool::MAX).map(|b| s.rt.bufs().copy_of(b).freeze()).collect();
        c.link.send_all(chunks).await
    };
    let greeting: [u8; GREETING] = option::greeting(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
    send(&greeting).await?;
    receiver.at_least(4).await?;
    let flags = receiver.peek().map_or(u32::MAX, |b| u32::from_be_bytes(*b));
    receiver.consume(4);
    let Some(mut state) = Handshake::new(flags, security.encryption()) else { return Ok(None) };
    c.progress.set(1);
    let (mut out, mut told) = (Vec::new(), false);
    loop {
        receiver.at_least(OPTION).await?;
        let Some(Ok((number, len))) = receiver.peek().map(option::parse_option) else {
            return Ok(None);
        };
        receiver.consume(OPTION);
        if len > MAX_OPTION {
            Handshake::too_long(number, &mut out);
            send(&out).await?;
            return Ok(None);
        }
        let len = len as usize;
        receiver.at_least(len).await?;
        if state.refuses_plain(number) && !std::mem::replace(&mut told, true) {
            s.tell_failed(c, format_args!("TLS is required, and the client did not begin it"));
        }
        let step = state.option(&s.exports, number, &receiver.data()[..len], &mut out);
        c.progress.set(2);
        receiver.consume(len);
        if let Some(name) = state.take_unknown() {
            let peer = c.peer.borrow();
            let who = peer.as_ref().and_then(|peer| peer.name()).unwrap_or("a client");
            s.tell_failed(
                c,
                format_args!(
                    "{who} asked for the volume {name:?}, which is not there, or not for it"
                ),
            );
        }
        if matches!(step, NextStep::Secure) && !receiver.data().is_empty() {
            // Bytes that came in the clear behind the request must not pass for bytes that come
            // through TLS.
            let (connection, from) = (c.number(), c.origin());
            tracing::warn!(connection, %from, "closed: it sent more before TLS began");
            return Ok(None);
        }
        send(&out).await?;
        out.clear();
        match step {
            NextStep::Secure => {
                let Some(acceptor) = security.acceptor() else { return Ok(None) };
                if !secure(s, c, &acceptor, &mut state).await {
                    return Ok(None);
                }
            }
            NextStep::Again => {}
            NextStep::Close => return Ok(None),
            NextStep::Start(export, terms) => return Ok(Some((export, terms))),
        }
    }
}

#[derive(PartialEq, Eq)]
enum End {
    /// No more requests will come; those that did are answered.
    Orderly,
    /// The stream cannot be followed.
    Broken,
}

/// Takes requests and starts them, until no more can come.
async fn requests<E: Exports>(
    s: &Rc<Shared<E>>,
    c: &Rc<Connection>,
    receiver: &mut Receiver,
    export: &E::Export,
    terms: Terms,
) -> End {
    loop {
        // All that one receive brought is parsed before the next one; that one is submitted before
        // what was parsed runs.
        let Some(header) = receiver.peek::<HEADER>() else {
            match receiver.more(HEADER).await {
                Ok(()) => continue,
                Err(Disconnected) => return End::Orderly,
            }
        };
        let Ok(request) = Request::decode(header) else { return End::Broken };
        if request.command == Command::Disc {
            return End::Orderly;
        }
        let admitted = terms.admit(&request, export.size_bytes());
        let len = request.payload_len() as usize;
        let small = len <= COPY_MAX;
        if admitted.is_ok() && small && receiver.data().len() < HEADER + len {
            // Bytes are taken only for what is already here.
            match receiver.more(HEADER + len).await {
                Ok(()) => continue,
                Err(Disconnected) => return End::Orderly,
            }
        }
        let story = s.rt.request(kind_of(request.command), request.offset, request.len.into());
        story.set_volume(export.volume());
        let place = story.waits(Reason::Depth, c.places.acquire(1)).await;
        if c.is_closed() {
            return End::Broken;
        }
        receiver.consume(HEADER);
        if let Err(e) = admitted {
            if request.payload_len() > SKIP_MAX || receiver.skip(len).await.is_err() {
                return End::Broken;
            }
            c.push(refusal(&request, &terms, e), SliceList::new(), place, None, story);
            continue;
        }
        // Before it takes memory: a request may wait for long, and others need that.
        let export = match request.command {
            Command::Flush => export.clone(),
            command => {
                let fills = command == Command::WriteZeroes;
                story.works(export.admit(moved(&request), fills)).await
            }
        };
        let payload = match payload_cost(&request) {
            0 => None,
            cost => match s.try_payload_permit(export.volume(), cost) {
                Some(bytes) => Some(bytes),
                None => {
                    // The turn of the request passes meanwhile: requests that have bytes may wait
                    // for a turn.
                    export.rest();
                    let bytes = s.payload_permit(export.volume(), cost);
                    let bytes = story.waits(Reason::Payload, bytes).await;
                    story.works(export.go_on()).await;
                    Some(bytes)
                }
            },
        };
        if c.is_closed() {
            return End::Broken;
        }
        let mut data = None;
        if request.command == Command::Write {
            let mut buf = s.rt.bufs().take(len);
            if small {
                buf.copy_from_slice(&receiver.data()[..len]);
                receiver.consume(len);
            } else {
                // The client may take long to send it, or never do so.
                export.rest();
                buf = match story.waits(Reason::Receive, receiver.payload(buf)).await {
                    Ok(buf) => buf,
                    Err(Disconnected) => return End::Broken,
                };
                story.works(export.go_on()).await;
            }
            data = Some(buf.freeze());
        }
        let (c, rt) = (c.clone(), s.rt.clone());
        if in_pieces(&request, &terms) {
            s.rt.detach_for(story, |story| async move {
                let push = |head, data| c.push_part(head, data);
                let (head, data) = answer_in_pieces(&rt, &export, &request, &terms, push).await;
                c.push(head, data, place, payload, story);
            });
            continue;
        }
        s.rt.detach_for(story, |story| async move {
            let (head, data) = answer(rt.bufs(), &export, &request, &terms, data).await;
            // A WRITE's payload is gone when it is done, its reply carries none.
            let payload = payload.filter(|_| request.command != Command::Write);
            c.push(head, data, place, payload, story);
        });
    }
}

fn kind_of(command: Command) -> RequestClass {
    match command {
        Command::Read => RequestClass::Read,
        Command::Write => RequestClass::Write,
        Command::Flush => RequestClass::Flush,
        Command::Trim | Command::WriteZeroes => RequestClass::Discard,
        _ => RequestClass::Other,
    }
}
