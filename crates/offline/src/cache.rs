//! The tools for caches.

pub mod check;
pub mod dump;
pub mod repair;

pub use ::cache::CacheFile;
