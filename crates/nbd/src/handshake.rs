//! Option haggling, the server's side: takes options, appends replies, says how it goes on. No I/O.

use crate::codec::option::{InfoRequest, MetaRequest, hello, info, opt, put_reply, rep, transmit};
use crate::codec::reply::ALLOCATION_CONTEXT;
use crate::codec::request::Terms;
use crate::codec::{MAX_PAYLOAD, MAX_STRING};
use crate::export::{Export, ExportInfo, Exports};
use tls::Peer;

const ALLOCATION: &str = "base:allocation";

/// The step that follows an option, once its replies have been sent.
pub enum NextStep<X> {
    /// The next option.
    Again,
    /// The connection ends.
    Close,
    /// A handshake of TLS, and then another option.
    Secure,
    /// Requests to this export.
    Start(X, Terms),
}

/// The state of TLS at a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Encryption {
    /// The client cannot have TLS.
    Absent,
    /// The client may ask for TLS.
    Offered,
    /// The client has to ask for TLS, before all else.
    Required,
    /// The client has TLS, and is this peer.
    Done(Peer),
}

/// The state of a client's handshake: what it has said so far.
pub struct Handshake {
    encryption: Encryption,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    meta: Option<String>,
    /// The name of an export that the client wanted, and does not get.
    unknown: Option<String>,
}

impl Handshake {
    /// After the client's flags; `None` if it wants what was not offered: the connection ends.
    pub fn new(client_flags: u32, encryption: Encryption) -> Option<Handshake> {
        let known = u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        if client_flags & !known != 0 {
            return None;
        }
        Some(Handshake {
            encryption,
            fixed: client_flags & u32::from(hello::FIXED_NEWSTYLE) != 0,
            no_zeroes: client_flags & u32::from(hello::NO_ZEROES) != 0,
            structured: false,
            meta: None,
            unknown: None,
        })
    }

    /// Whether an option is refused because the client has no TLS.
    pub fn refuses_plain(&self, option: u32) -> bool {
        self.encryption == Encryption::Required && ![opt::ABORT, opt::STARTTLS].contains(&option)
    }

    /// The name of an export that the last option wanted to enter, and that is not there for the
    /// client.
    pub fn take_unknown(&mut self) -> Option<String> {
        self.unknown.take()
    }

    /// TLS has begun: what was said in the clear holds no more.
    pub fn secured(&mut self, peer: Peer) {
        (self.structured, self.meta) = (false, None);
        self.encryption = Encryption::Done(peer);
    }

    /// The client, if it came over TLS.
    pub fn peer(&self) -> Option<&Peer> {
        match &self.encryption {
            Encryption::Done(peer) => Some(peer),
            _ => None,
        }
    }

    /// Carries out an option; appends what is to be sent to `out`.
    pub fn option<E: Exports>(
        &mut self,
        exports: &E,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> NextStep<E::Export> {
        let plain = self.encryption == Encryption::Required;
        if option == opt::EXPORT_NAME && plain {
            // This option has no replies that refuse it.
            return NextStep::Close;
        }
        if option == opt::EXPORT_NAME {
            return self.export_name(exports, data, out);
        }
        if !self.fixed {
            // Such a client does not understand replies to options.
            return NextStep::Close;
        }
        match option {
            opt::ABORT => {
                put_reply(out, option, rep::ACK, &[]);
                return NextStep::Close;
            }
            opt::STARTTLS => return self.start_tls(data, out),
            _ if plain => refuse(out, option, rep::ERR_TLS_REQD, "TLS is required"),
            opt::LIST => list(exports, self.peer(), data, out),
            opt::INFO | opt::GO => return self.info(exports, option, data, out),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                put_reply(out, option, rep::ACK, &[]);
            }
            opt::STRUCTURED_REPLY => refuse(out, option, rep::ERR_INVALID, "no data expected"),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.meta_context(exports, option, data, out)
            }
            _ => refuse(out, option, rep::ERR_UNSUP, "not supported"),
        }
        NextStep::Again
    }

    /// Refuses an option whose data is too long to be looked at.
    pub fn too_long(option: u32, out: &mut Vec<u8>) {
        refuse(out, option, rep::ERR_TOO_BIG, "option too long");
    }

    fn start_tls<X>(&self, data: &[u8], out: &mut Vec<u8>) -> NextStep<X> {
        let (kind, why) = match self.encryption {
            Encryption::Absent => (rep::ERR_UNSUP, "TLS is not set up"),
            Encryption::Done(_) => (rep::ERR_INVALID, "there is TLS already"),
            _ if !data.is_empty() => (rep::ERR_INVALID, "no data expected"),
            _ => {
                put_reply(out, opt::STARTTLS, rep::ACK, &[]);
                return NextStep::Secure;
            }
        };
        refuse(out, opt::STARTTLS, kind, why);
        NextStep::Again
    }

    fn export_name<E: Exports>(
        &mut self,
        exports: &E,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> NextStep<E::Export> {
        let name = std::str::from_utf8(data).ok().filter(|n| n.len() <= MAX_STRING);
        let Some((name, export)) = name.and_then(|n| Some((n, exports.open(n, self.peer())?)))
        else {
            self.unknown = Some(name.unwrap_or("?").to_owned());
            return NextStep::Close;
        };
        let info = export.info();
        out.extend_from_slice(&export.size_bytes().to_be_bytes());
        out.extend_from_slice(&self.transmission_flags(&info).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        NextStep::Start(export, self.terms(name, &info))
    }

    fn info<E: Exports>(
        &mut self,
        exports: &E,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> NextStep<E::Export> {
        let Some(request) = InfoRequest::parse(data) else {
            refuse(out, option, rep::ERR_INVALID, "malformed");
            return NextStep::Again;
        };
        let Some(export) = exports.open(request.name, self.peer()) else {
            refuse(out, option, rep::ERR_UNKNOWN, "no such export");
            self.unknown = (option == opt::GO).then(|| request.name.to_owned());
            return NextStep::Again;
        };
        let i = export.info();
        let mut put = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let mut all = vec![&kind[..]];
            all.extend_from_slice(parts);
            put_reply(out, option, rep::INFO, &all);
        };
        let (size, flags) =
            (export.size_bytes().to_be_bytes(), self.transmission_flags(&i).to_be_bytes());
        put(info::EXPORT, &[&size, &flags]);
        if request.wants(info::NAME) {
            put(info::NAME, &[i.name.as_bytes()]);
        }
        if request.wants(info::DESCRIPTION) && !i.description.is_empty() {
            put(info::DESCRIPTION, &[i.description.as_bytes()]);
        }
        // Also to who did not ask: it is enforced.
        let sizes = [i.min_block, i.preferred_block, i.max_block].map(u32::to_be_bytes);
        put(info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        put_reply(out, option, rep::ACK, &[]);
        if option == opt::GO {
            NextStep::Start(export, self.terms(request.name, &i))
        } else {
            NextStep::Again
        }
    }

    fn meta_context<E: Exports>(
        &mut self,
        exports: &E,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // The context that was selected before is gone, even if this fails.
            self.meta = None;
        }
        let request = MetaRequest::parse(data).filter(|_| self.structured);
        let Some(request) = request else {
            return refuse(
                out,
                option,
                rep::ERR_INVALID,
                "malformed, or structured replies were not negotiated",
            );
        };
        if exports.open(request.name, self.peer()).is_none() {
            return refuse(out, option, rep::ERR_UNKNOWN, "no such export");
        }
        let selected = if set {
            request.queries.contains(&ALLOCATION)
        } else {
            request.queries.is_empty()
                || request.queries.iter().any(|q| *q == ALLOCATION || *q == "base:")
        };
        if selected {
            let id = if set { ALLOCATION_CONTEXT } else { 0 };
            put_reply(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
        }
        if set && selected {
            self.meta = Some(request.name.to_owned());
        }
        put_reply(out, option, rep::ACK, &[]);
    }

    fn transmission_flags(&self, info: &ExportInfo) -> u16 {
        use transmit::*;
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
        flags |= CAN_MULTI_CONN | SEND_CACHE | SEND_FAST_ZERO;
        if self.structured {
            flags |= SEND_DF;
        }
        if info.read_only {
            flags |= READ_ONLY;
        }
        flags
    }

    fn terms(&self, name: &str, info: &ExportInfo) -> Terms {
        assert!(
            info.min_block.is_power_of_two(),
            "an export with a minimum block of {}",
            info.min_block
        );
        Terms {
            min_block: info.min_block,
            max_block: info.max_block.min(MAX_PAYLOAD),
            read_only: info.read_only,
            structured: self.structured,
            block_status: self.meta.as_deref() == Some(name),
        }
    }
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    put_reply(out, option, kind, &[why.as_bytes()]);
}

fn list<E: Exports>(exports: &E, peer: Option<&Peer>, data: &[u8], out: &mut Vec<u8>) {
    if !data.is_empty() {
        return refuse(out, opt::LIST, rep::ERR_INVALID, "no data expected");
    }
    for (name, description) in exports.list(peer) {
        let len = (name.len() as u32).to_be_bytes();
        put_reply(out, opt::LIST, rep::SERVER, &[&len, name.as_bytes(), description.as_bytes()]);
    }
    put_reply(out, opt::LIST, rep::ACK, &[]);
}
