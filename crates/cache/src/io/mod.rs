//! The requests of clients, one file for each path of data.

mod direct;
mod flush;
pub(crate) mod parts;
pub(crate) mod past;
mod promote;
mod read;
mod transfer;
mod watermark;
pub(crate) mod window;
mod write;
