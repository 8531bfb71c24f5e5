//! Creating, opening, and closing a cache; its settings; the end of a volume.

mod admin;
pub(crate) mod create;
pub(crate) mod detached;
pub(crate) mod open;
pub(crate) mod replay;
mod set;
pub(crate) mod staged;
