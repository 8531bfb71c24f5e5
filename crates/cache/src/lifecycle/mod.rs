//! Creating, opening, and closing a cache; the end of a volume.

mod admin;
pub(crate) mod create;
mod open;
pub(crate) mod replay;
pub(crate) mod staged;
