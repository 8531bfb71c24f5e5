//! Creating, opening, and closing a cache; its settings.

pub(crate) mod create;
pub(crate) mod detached;
pub(crate) mod failed_dirty;
pub(crate) mod open;
pub(crate) mod replay;
mod set;
pub(crate) mod staged;
