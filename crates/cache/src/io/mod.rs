//! The requests of clients, one file for each path of data.

mod direct;
mod flush;
pub(crate) mod parts;
pub(crate) mod past;
pub(crate) mod promote;
pub(crate) mod read;
pub(crate) mod write;
