//! The requests of clients, one file for each path of data.

pub(crate) mod block_part;
mod bucket_io;
pub(crate) mod clients;
pub(crate) mod direct;
mod flush;
mod group_commit;
pub(crate) mod group_commit_state;
mod heal_nodes;
mod journal_clock;
pub(crate) mod parts;
mod promote;
pub(crate) mod read;
mod recent_parts;
mod watermark;
mod write;
