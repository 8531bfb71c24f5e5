//! The HTTP API and the metrics of a running server, in a thread of their own beside the engine.
//!
//! The engine is something that takes a request of the control protocol and answers later
//! ([`Engine`]). So command and API have the same verbs, and nothing here can hold
//! the engine up: it is asked, as any command asks it.
//!
//! * [`routes`]: all methods and paths; [`table`]: what a row says; [`openapi`] is made of them
//! * `server`: thread, listeners, connections; `access`: who may ask; `api`: requests and answers
//! * `fields`: what requests take; `input`: what clients send, checked; `jobs`: long work;
//!   `events`: the status as a stream, and what has changed (`changes`); `past`: the last changes
//! * `history`: the last hour; `page`: the dashboard; [`places`]: how many connections there may be
//! * [`metrics`]: from a status to the text that Prometheus reads
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "outside of the engine: threads, locks and the clock are those of the system"
)]

mod access;
mod changes;
mod engine;
mod events;
mod failure;
mod fields;
mod handlers;
mod history;
mod input;
mod jobs;
pub mod metrics;
pub mod openapi;
mod page;
mod past;
pub mod places;
pub mod routes;
mod server;
mod snapshot;
mod stall;
pub mod table;

pub use access::{Rules, Token};
pub use engine::{Engine, Outcome, Reply};
pub use server::{Listener, Server};
