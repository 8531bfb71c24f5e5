//! One type for each request, answer and state of a server: what crosses the control socket and
//! the HTTP API, and what `--json` prints.
//!
//! The engine fills these types, and commands, HTTP API, metrics and health read them. The OpenAPI
//! document is derived from them: a comment on a field is the description that users read, so it
//! names the unit, and says what an absent value means.
//!
//! A command and a server of different versions talk to each other. A reader ignores fields that it
//! does not know. A field that a later version adds is an `Option`, which older servers leave out.
//!
//! * [`request`]: the verbs, each with the type of its answer; [`Answer`]: any answer
//! * [`status`]: everything of `forebay status`; [`cache`], [`device`], [`moves`], [`scrub`],
//!   [`volume`], [`snapshot`]: its parts
//! * [`explain`]: why requests were slow; [`wait`]: what a request may wait for
//! * [`setting`], [`job`], [`health`], [`change`], [`history`]: the rest of what is answered
//! * [`operations`]: what problems mean, and what to do

mod words;

pub mod answer;
pub mod cache;
pub mod change;
pub mod device;
pub mod explain;
pub mod failure;
pub mod health;
pub mod history;
pub mod io;
pub mod job;
pub mod moves;
pub mod operations;
pub mod request;
pub mod scrub;
pub mod setting;
pub mod snapshot;
pub mod status;
pub mod volume;
pub mod wait;

pub use answer::Answer;
pub use failure::{Failure, FailureKind};
pub use request::{Request, Verb};
pub use status::Status;
