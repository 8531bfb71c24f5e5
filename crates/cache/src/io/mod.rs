//! The requests of clients, one file for each path of data.

pub(crate) mod clients;
pub(crate) mod direct;
pub(crate) mod journal_clock;
pub(crate) mod part_reader;
pub(crate) mod parts;
pub(crate) mod pool_commits;
pub(crate) mod promote;
pub(crate) mod read;
mod recent_parts;
pub(crate) mod volume_ends;
pub(crate) mod write;
