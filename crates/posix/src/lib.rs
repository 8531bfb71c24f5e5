//! The seam on epoll and a few threads, for systems where io_uring is not permitted (containers).
//! The io_uring backend shares the code that opens files ([`open`]) and the table of open files and
//! sockets ([`Handles`]).
//!
//! * [`backend`]: the backend
//! * `workers`: threads that execute blocking calls on files
//! * `poll`: waiting for sockets, and calls on sockets
//! * [`handles`]: files and sockets by number
//! * [`host`]: memory that outlives the process
//! * [`open`]: opens and locks files and block devices
//! * [`start`]: where operations of a file are started
//! * [`names`]: one disk by several names
//! * `kind`: what kind of disk is below them
//! * [`processors`]: what a thread has had of the processors
//! * [`look`]: what can be told of a file without using it
//! * [`call`]: an operation on a file as a blocking call
//! * [`sys`]: system calls with the results that the seam wants

pub mod backend;
pub mod call;
pub mod handles;
pub mod host;
mod kind;
pub mod look;
pub mod names;
pub mod open;
mod poll;
pub mod processors;
pub mod start;
pub mod sys;
mod workers;

pub use backend::Posix;
pub use handles::{FileHandle, Handles};
pub use kind::disk_kind;
pub use open::{FileInfo, LockedFile, NewFile, OpenFile};
pub use processors::Processors;
pub use start::Start;
