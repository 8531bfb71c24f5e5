//! The tools for pools.

pub mod check;
pub mod dump;
pub mod repair;
