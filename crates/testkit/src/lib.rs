//! What integration tests share: worlds of simulated devices, pools and caches on them, errors in
//! answers, and what blocks hold. No product depends on this crate.
//!
//! The helpers panic where a test would. A test that is about an error calls the function of the
//! engine itself, or a helper whose name begins with `try`.

mod blocks;
mod cached;
mod changes;
mod image;
mod mirror;
mod model;
mod rules;
mod setup;
mod steps;
mod waits;

pub use blocks::{block, blocks, fill, holds, number, numbers, only_byte, put, try_put};
pub use cached::CachedWorld;
pub use changes::{change, holds_each};
pub use image::{disk_of_image, image_blocks, image_of, image_size};
pub use mirror::Mirror;
pub use model::Model;
pub use rules::{Effect, Rules, is_superblock, writes_to};
pub use setup::{MIB, boot, check_cache, check_pool, create_pool, disk, open, try_open};
pub use steps::{LongestSteps, Steps, compare_repeated_steps, compare_steps};
pub use waits::{device_states, moved, scrubbed};
