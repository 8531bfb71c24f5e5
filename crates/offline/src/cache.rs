//! The tools for caches.

pub mod check;
pub mod dump;

pub use ::cache::CacheFile;
