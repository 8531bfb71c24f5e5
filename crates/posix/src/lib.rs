//! The seam on epoll and a few threads, for where io_uring is not permitted (containers), and what both share: how files
//! are opened ([`open`]), and the table of what is open ([`Handles`]).
//!
//! * [`backend`]: the backend
//! * `workers`: the threads that do what waits
//! * `poll`: waiting for sockets, and calls on them
//! * [`handles`]: files and sockets by number
//! * [`open`]: opening and locking files and block devices
//! * [`call`]: an operation on a file as a blocking call
//! * [`sys`]: system calls with the results that the seam wants

pub mod backend;
pub mod call;
pub mod handles;
pub mod open;
mod poll;
pub mod sys;
mod workers;

pub use backend::Posix;
pub use handles::{FileHandle, Handles};
pub use open::{FileInfo, OpenFile, Opened};
