//! The HTTP API at a server: its sockets, its token, and how its requests come to the shard.
//!
//! Fault model: see `http_api`. Nothing of it waits for the shard, and the shard waits for nothing
//! of it: a request that finds the mailbox full is refused.

pub mod token;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;

use http_api::places::HttpCrowds;
use http_api::{Engine, Listener, Reply, Rules, Server};
use model::{Failure, FailureKind, Request};

use crate::config::{HttpPlace, HttpSection};
use crate::control::server::Message;
use crate::error::{CommandError, Result};
use crate::host::sockets::inherited::Inherited;
use crate::host::sockets::{UnixSocket, open_tcp};
use crate::serve::mailbox::Sender;

/// The sockets of the HTTP API. The names of unix sockets go when it is dropped.
pub struct HttpSockets {
    listeners: Vec<Listener>,
    rules: Rules,
    names: SocketNames,
    /// The addresses to which clients connect, for people.
    pub places: Vec<String>,
}

/// Names of unix sockets, for as long as it lives.
struct SocketNames(Vec<UnixSocket>);

impl Drop for SocketNames {
    fn drop(&mut self) {
        self.0.iter().for_each(UnixSocket::remove);
    }
}

/// A server that runs.
pub struct RunningServer {
    server: Server,
    _names: SocketNames,
}

impl HttpSockets {
    /// Listens wherever it is to, and reads the token. Errors: a place that is taken, unless it was
    /// not asked for; a token that cannot be read.
    pub fn open(config: &HttpSection, inherited: &mut Inherited) -> Result<HttpSockets> {
        let mut sockets = HttpSockets {
            listeners: Vec::new(),
            rules: Rules { token: None, hosts: config.hosts.clone() },
            names: SocketNames(Vec::new()),
            places: Vec::new(),
        };
        if config.listen.is_empty() {
            return Ok(sockets);
        }
        for place in &config.listen {
            match sockets.listen(place, config, inherited) {
                Err(e) if config.optional && matches!(place, HttpPlace::Tcp(_)) => {
                    tracing::warn!("HTTP is not served over TCP: {e}")
                }
                other => other?,
            }
        }
        // The token is made only once all sockets listen.
        if let Some(path) = &config.token_file {
            if config.make_token {
                token::make(path)?;
            }
            sockets.rules.token = Some(token::read(path)?);
        }
        Ok(sockets)
    }

    fn listen(
        &mut self,
        place: &HttpPlace,
        config: &HttpSection,
        inherited: &mut Inherited,
    ) -> Result<()> {
        match place {
            HttpPlace::Unix(path) => {
                let (name, listener) = UnixSocket::open(path, &config.permits(), inherited)?;
                self.names.0.push(name);
                self.listeners.push(Listener::Unix(listener));
                self.places.push(format!("unix:{}", path.display()));
            }
            HttpPlace::Tcp(address) => {
                let listener = TcpListener::from(open_tcp(*address, &[], inherited)?);
                let address = listener.local_addr().unwrap_or(*address);
                if !address.ip().is_loopback() {
                    tracing::warn!(
                        "HTTP on {address} is not encrypted: the token can be read on its way"
                    );
                }
                self.listeners.push(Listener::Tcp(listener));
                let who = match &config.token_file {
                    Some(path) => format!("token in {}", path.display()),
                    None => "no token: metrics and health only".into(),
                };
                self.places.push(format!("http://{address} ({who})"));
            }
            HttpPlace::None => {}
        }
        Ok(())
    }

    /// Serves clients in a thread of its own; none if it listens nowhere.
    pub fn start(self, shard: Sender<Message>) -> Result<Option<RunningServer>> {
        if self.listeners.is_empty() {
            return Ok(None);
        }
        let engine = Arc::new(ShardEngine(shard));
        let server = Server::start(self.listeners, self.rules, engine)
            .map_err(|e| CommandError::failed("starting the HTTP server", e))?;
        Ok(Some(RunningServer { server, _names: self.names }))
    }
}

impl RunningServer {
    /// The counts of connections for which there was no room.
    pub fn crowds(&self) -> Arc<HttpCrowds> {
        self.server.crowds()
    }

    /// Ends it, when the shard takes no more requests.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// The shard, as the HTTP server sees it.
struct ShardEngine(Sender<Message>);

impl Engine for ShardEngine {
    fn ask(&self, request: Request, reply: Reply) {
        match self.0.try_send(Message::Request(request, reply)) {
            Err(TrySendError::Full(Message::Request(_, reply))) => {
                let text = "too many requests wait for the engine: try again in a moment";
                reply(Err(Failure::new(FailureKind::Busy, text)));
            }
            Err(TrySendError::Disconnected(Message::Request(_, reply))) => {
                reply(Err(Failure::stopping()))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
