//! The sockets for NBD clients: a unix socket, and TCP with TLS.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use nbd::{ClientOrigin, Origins, Security};
use rt::SocketId;

use crate::config::{Complete, Sections};
use crate::error::{CommandError, Result};
use crate::host::sockets::inherited::Inherited;
use crate::host::sockets::open_tcp;
use crate::host::world::World;
use crate::serve::credentials::{self, Files};

/// Sockets that listen, and how their clients are secured.
pub struct Listeners {
    all: Vec<(SocketId, Security)>,
    /// The security of a unix socket: its mode says who may connect.
    local: Security,
    certificates: Option<Files>,
    origins: Origins,
}

impl Listeners {
    /// Reads the files of TLS, and listens on TCP.
    pub fn open(world: &World, said: &Sections, inherited: &mut Inherited) -> Result<Listeners> {
        let certificates = match said.has_tls() {
            true => Some(credentials::watch(&said.tls.credentials())?),
            false => None,
        };
        let acceptors = certificates.as_ref().map(Files::acceptors);
        let secured = |required: bool| match &acceptors {
            Some(acceptors) if required => Security::Required(acceptors.clone()),
            Some(acceptors) => Security::Offered(acceptors.clone()),
            None => Security::Plain,
        };
        let required = said.requires_tls();
        let handles = world.handles.clone();
        let origins: Origins = Rc::new(move |socket| match handles.peer(socket) {
            Some(address) => ClientOrigin::Tcp(address),
            None => match handles.peer_process(socket) {
                Some((pid, uid)) => ClientOrigin::Process { pid, uid },
                None => ClientOrigin::Local,
            },
        });
        let mut listeners =
            Listeners { all: Vec::new(), local: secured(false), certificates, origins };
        for &address in &said.nbd.listen {
            if !(required && said.tls.proves_clients() && acceptors.is_some()) {
                tracing::warn!(
                    "all who can reach {address} can read and write {}: {}",
                    if said.access.said().is_empty() { "all volumes" } else { "some volumes" },
                    if required { "tls.verify_peer is false" } else { "TLS is not required" }
                );
            }
            listeners.add(
                world,
                open_tcp(address, &said.nbd.listen, inherited)?,
                secured(required),
            )?;
        }
        Ok(listeners)
    }

    /// Adds a unix socket.
    pub fn add_local(&mut self, world: &World, socket: OwnedFd) -> Result<()> {
        self.add(world, socket, self.local.clone())
    }

    fn add(&mut self, world: &World, socket: OwnedFd, security: Security) -> Result<()> {
        let adopted = world.handles.adopt_listener(socket);
        let socket = adopted.map_err(|e| CommandError::failed("starting", e))?;
        self.all.push((socket, security));
        Ok(())
    }

    /// The files of TLS.
    pub fn certificates(&self) -> Option<Files> {
        self.certificates.clone()
    }

    /// Returns the function that says where clients are.
    pub fn origins(&self) -> Origins {
        self.origins.clone()
    }

    /// All of them.
    pub fn into_all(self) -> Vec<(SocketId, Security)> {
        self.all
    }
}
