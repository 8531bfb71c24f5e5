//! Write-back: cuts, and the passes that carry them to the pool.

pub(crate) mod age;
pub(crate) mod asked;
pub(crate) mod cuts;
pub(crate) mod pass;
